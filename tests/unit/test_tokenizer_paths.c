/* Two ways to the same result: scanners against the regular expressions they stand for, the fast path against the general one;
 * on random texts out of characters that the rules tell apart. */
#include "base/arena.h"
#include "base/fs.h"
#include "text/pattern.h"
#include "text/tokenizer_parts.h"
#include "text/unicode_class.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t state = 88172645463325252u;
static uint32_t roll(uint32_t n)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 33) % n;
}

/* Letters of all kinds, numbers of all kinds, spaces of all kinds, marks, signs, and what contractions are made of. */
static const uint32_t alphabet[] = {
    'a',  'b',    'Z',    's',    'S',    't',    'T',     'r',     'e',    'v',    'V',   'E',    'l',     'L',     'd', 'm',
    'M',  0x17f,  0x212a, 0xe9,   0x130,  0x4e2d, 0x65e5,  0x3042,  0x5d0,  0x1c5,  0x2b0, 0x1c89, 0x10d4a, 0x323b0, '0', '1',
    '7',  '9',    0x660,  0xb2,   0xbd,   0x2160, 0x3007,  0x10d40, ' ',    ' ',    ' ',   '\n',   '\r',    '\t',    0xb, 0x85,
    0xa0, 0x1680, 0x2003, 0x2028, 0x3000, 0x180e, 0x200b,  0xfeff,  '\'',   '\'',   '\'',  '.',    ',',     '!',     '-', '_',
    '/',  0x2019, 0x20ac, 0x301,  0x323,  0x903,  0x1f600, 0x1f1e9, 0xe000, 0xfffd, 0,     1,      4,       0x7f,
};
enum { N_ALPHABET = sizeof alphabet / sizeof *alphabet, MAX_CHARS = 40 };

static size_t random_text(unsigned char *text)
{
    size_t n = 0, chars = roll(MAX_CHARS);
    uint32_t last = ' ';
    for (size_t i = 0; i < chars; i++) {
        if (roll(3)) last = alphabet[roll(N_ALPHABET)]; /* runs come often */
        n += ag_utf8_put(text + n, last);
    }
    return n;
}

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA(digits)                                                                                                          \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                                       \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static void scanners_cut_as_their_regular_expressions(void **unused)
{
    (void)unused;
    static const char *const patterns[] = {GPT2, LLAMA("\\p{N}{1,3}"), LLAMA("\\p{N}"), "\\p{N}", "\\p{N}{1,3}"};
    ag_err err = {0};
    ag_pieces a = {0}, b = {0};
    unsigned char text[MAX_CHARS * 4];
    for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
        ag_pattern scanner, regex;
        assert_int_equal(ag_pattern_init(&scanner, patterns[k], strlen(patterns[k]), true, false, "test", &err), AG_OK);
        assert_int_equal(ag_pattern_init(&regex, patterns[k], strlen(patterns[k]), true, true, "test", &err), AG_OK);
        assert_non_null(scanner.scanner);
        assert_null(regex.scanner);
        for (int round = 0; round < 20000; round++) {
            size_t n = random_text(text);
            assert_int_equal(ag_pattern_find(&scanner, text, n, false, &a, &err), AG_OK);
            assert_int_equal(ag_pattern_find(&regex, text, n, false, &b, &err), AG_OK);
            if (a.n_spans != b.n_spans)
                fail_msg("%s: %zu and %zu spans for \"%.*s\"", patterns[k], a.n_spans, b.n_spans, (int)n, text);
            for (size_t i = 0; i < a.n_spans; i++)
                if (a.spans[i].end != b.spans[i].end || a.spans[i].match != b.spans[i].match)
                    fail_msg("%s: span %zu differs for \"%.*s\"", patterns[k], i, (int)n, text);
        }
        ag_pattern_deinit(&scanner);
        ag_pattern_deinit(&regex);
    }
    ag_pieces_free(&a);
    ag_pieces_free(&b);
}

/* Every code point: the class that scanners see is the one that the translated expression sees. */
static void every_code_point_has_one_class(void **unused)
{
    (void)unused;
    static const char *const patterns[] = {"\\p{L}",  "\\p{N}",  "\\s",    "\\w",    "\\p{M}",
                                           "\\p{Lu}", "\\p{Nd}", "\\p{P}", "\\p{S}", "\\p{Han}"};
    const uint32_t cats[] = {AG_CATS_LETTER,
                             AG_CATS_NUMBER,
                             0,
                             0,
                             AG_CATS_MARK,
                             AG_CAT_BIT(AG_CAT_LU),
                             AG_CAT_BIT(AG_CAT_ND),
                             AG_CAT_BIT(AG_CAT_PC) | AG_CAT_BIT(AG_CAT_PD) | AG_CAT_BIT(AG_CAT_PS) | AG_CAT_BIT(AG_CAT_PE) |
                                 AG_CAT_BIT(AG_CAT_PI) | AG_CAT_BIT(AG_CAT_PF) | AG_CAT_BIT(AG_CAT_PO),
                             AG_CAT_BIT(AG_CAT_SM) | AG_CAT_BIT(AG_CAT_SC) | AG_CAT_BIT(AG_CAT_SK) | AG_CAT_BIT(AG_CAT_SO),
                             0};
    const unsigned flags[] = {0, 0, AG_CHAR_SPACE, AG_CHAR_WORD, 0, 0, 0, 0, 0, AG_CHAR_HAN};
    const uint16_t *kinds = ag_unicode_kinds();
    ag_err err = {0};
    ag_pieces p = {0};
    unsigned char *all = malloc(AG_CODE_POINTS * 4);
    assert_non_null(all);
    size_t n = 0, bytes;
    for (uint32_t c = 0; c < AG_CODE_POINTS; c++)
        if (c < 0xd800 || c > 0xdfff) n += ag_utf8_put(all + n, c);
    for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
        ag_pattern regex;
        size_t wrong = 0;
        assert_int_equal(ag_pattern_init(&regex, patterns[k], strlen(patterns[k]), true, true, "test", &err), AG_OK);
        assert_int_equal(ag_pattern_find(&regex, all, n, false, &p, &err), AG_OK);
        for (size_t i = 0; i < p.n_spans; i++)
            for (size_t at = p.spans[i].start; at < p.spans[i].end; at += bytes) {
                unsigned kind = kinds[ag_utf8_peek(all, at, &bytes)];
                bool in = cats[k] ? ag_kind_in(kind, cats[k]) : (kind & flags[k]) != 0;
                wrong += in != p.spans[i].match;
            }
        if (wrong) fail_msg("%s: %zu code points differ", patterns[k], wrong);
        ag_pattern_deinit(&regex);
    }
    free(all);
    ag_pieces_free(&p);
}

static void the_fast_path_gives_what_the_general_one_gives(void **unused)
{
    (void)unused;
    static const char *const names[] = {"gpt2", "llama3", "llama3-merges", "qwen2", "smollm", "minicpm5", "added"};
    ag_arena arena = {0};
    ag_err err = {0};
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding fast = {0}, general = {0};
    unsigned char text[MAX_CHARS * 4];
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char *json, *path = ag_arena_printf(&arena, "%s/golden/text/tokenizers/%s.json", AGOGE_TESTS_DIR, names[k]);
        size_t n_json;
        ag_tokenizer *t;
        if (ag_file_read(&json, &n_json, path, (size_t)1 << 24, &arena, &err)) fail_msg("%s", err.text);
        assert_int_equal(
            ag_tokenizer_from_json(&t, &(ag_tokenizer_files){.name = path, .tokenizer = json, .n_tokenizer = n_json}, &err),
            AG_OK);
        assert_true(t->fast);
        for (int round = 0; round < 5000; round++) {
            size_t n = random_text(text);
            ag_encoding_clear(&fast);
            ag_encoding_clear(&general);
            t->fast = true;
            assert_int_equal(ag_tokenizer_encode(t, scratch, (char *)text, n, NULL, &fast, &err), AG_OK);
            t->fast = false;
            assert_int_equal(ag_tokenizer_encode(t, scratch, (char *)text, n, NULL, &general, &err), AG_OK);
            if (fast.n != general.n) fail_msg("%s: %zu and %zu tokens for \"%.*s\"", names[k], fast.n, general.n, (int)n, text);
            for (size_t i = 0; i < fast.n; i++)
                if (fast.ids[i] != general.ids[i] || fast.start[i] != general.start[i] || fast.end[i] != general.end[i] ||
                    fast.byte_start[i] != general.byte_start[i] || fast.byte_end[i] != general.byte_end[i])
                    fail_msg("%s: token %zu differs for \"%.*s\"", names[k], i, (int)n, text);
        }
        ag_tokenizer_free(&t);
    }
    ag_encoding_free(&fast);
    ag_encoding_free(&general);
    ag_tokenizer_scratch_free(&scratch);
    ag_arena_free(&arena);
}

/* Long words take the heap, short ones do not; both must merge alike. A vocabulary of runs of one letter makes ties. */
static void short_and_long_words_merge_alike(void **unused)
{
    (void)unused;
    ag_token_vocab v = {0};
    ag_bpe b;
    ag_err err = {0};
    static const char *const texts[] = {"a", "b", "aa", "ab", "ba", "aaa", "aab", "aaaa", "abab", "baab", "aaaaa"};
    static const char *const merges[][2] = {{"a", "a"},  {"a", "b"},   {"aa", "aa"}, {"b", "a"},   {"aa", "b"},
                                            {"a", "aa"}, {"ab", "ab"}, {"ba", "ab"}, {"a", "aaaa"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_int_equal(ag_token_vocab_add(&v, texts[i], strlen(texts[i]), (int64_t)i, "test", &err), AG_OK);
    ag_bpe_init(&b, &v);
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
        assert_int_equal(ag_bpe_add_merge(&b, merges[i][0], strlen(merges[i][0]), merges[i][1], strlen(merges[i][1]),
                                          (uint32_t)i, "test", &err),
                         AG_OK);
    ag_bpe_work w = {0};
    for (int round = 0; round < 20000; round++) {
        unsigned char word[60];
        size_t n = 1 + roll(sizeof word);
        for (size_t i = 0; i < n; i++) word[i] = roll(4) ? 'a' : 'b';
        /* The plain way: the lowest rank, leftmost, until there is none. */
        int32_t ids[60];
        size_t left = n;
        for (size_t i = 0; i < n; i++) ids[i] = word[i] == 'b';
        for (;;) {
            size_t best = 0, rank = SIZE_MAX;
            int32_t id = -1;
            for (size_t i = 0; i + 1 < left; i++)
                for (size_t m = 0; m < sizeof merges / sizeof *merges && m < rank; m++) {
                    const char *x = texts[ids[i]], *y = texts[ids[i + 1]];
                    if (strcmp(x, merges[m][0]) != 0 || strcmp(y, merges[m][1]) != 0) continue;
                    char whole[16];
                    snprintf(whole, sizeof whole, "%s%s", x, y);
                    rank = m, best = i, id = ag_token_vocab_find(&v, whole, strlen(whole));
                }
            if (id < 0) break;
            ids[best] = id;
            memmove(ids + best + 1, ids + best + 2, (left - best - 2) * sizeof *ids);
            left--;
        }
        ag_bpe_word(&b, &w, word, n);
        if (w.n != left || memcmp(w.ids, ids, left * sizeof *ids) != 0) fail_msg("\"%.*s\" merges otherwise", (int)n, word);
    }
    ag_bpe_work_free(&w);
    ag_bpe_deinit(&b);
    ag_token_vocab_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scanners_cut_as_their_regular_expressions),
        cmocka_unit_test(every_code_point_has_one_class),
        cmocka_unit_test(the_fast_path_gives_what_the_general_one_gives),
        cmocka_unit_test(short_and_long_words_merge_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
