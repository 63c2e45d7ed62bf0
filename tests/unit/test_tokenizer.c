#include "base/arena.h"
#include "base/fs.h"
#include "base/json.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- goldens: tests/golden/text, made by tools/golden/tokenizer.py --------------------------------------------- */
static const char *const byte_level[] = {"gpt2",   "gpt2-prefix", "llama3", "llama3-merges", "qwen2",
                                         "smollm", "minicpm5",    "added",  "roberta"};
static const char *const sentence_piece[] = {"spm-bpe", "metaspace", "metaspace-unk"};
static const char *const others[] = {"unigram", "unigram-bytes", "wordpiece", "wordlevel", "bpe-suffix"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static char *golden(ag_arena *a, const char *name, size_t *n)
{
    ag_err err = {0};
    char *text = NULL, *path = ag_path_join(a, AGOGE_TESTS_DIR "/golden/text", name);
    if (ag_file_read(&text, n, path, (size_t)64 << 20, a, &err)) fail_msg("%s", err.text);
    return text;
}

/* The values of a JSONL file, in a JSON array that the caller frees. */
static json_t *golden_lines(ag_arena *a, const char *name)
{
    size_t n = 0;
    char *text = golden(a, name, &n), *at = text;
    json_t *list = json_array();
    for (char *end; (end = memchr(at, '\n', n - (size_t)(at - text))); at = end + 1) {
        json_error_t error;
        json_t *value = json_loadb(at, (size_t)(end - at), JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        if (!value) fail_msg("%s: %s", name, error.text);
        json_array_append_new(list, value);
    }
    assert_true(json_array_size(list) > 0);
    return list;
}

static ag_tokenizer *from_text(const char *json, size_t n, ag_err *err)
{
    ag_tokenizer *t = NULL;
    ag_status status =
        ag_tokenizer_from_json(&t, &(ag_tokenizer_files){.name = "tokenizer.json", .tokenizer = json, .n_tokenizer = n}, err);
    assert_int_equal(status == AG_OK, t != NULL);
    return t;
}

static ag_tokenizer *from_golden(ag_arena *a, const char *name)
{
    size_t n;
    ag_err err = {0};
    char *json = golden(a, ag_arena_printf(a, "tokenizers/%s.json", name), &n);
    ag_tokenizer *t = from_text(json, n, &err);
    if (!t) fail_msg("%s", err.text);
    return t;
}

static int64_t int_at(const json_t *list, size_t i) { return json_integer_value(json_array_get(list, i)); }

static void check_text(ag_text found, const json_t *wanted, const char *where, size_t line)
{
    if (found.n != json_string_length(wanted) || (found.n && memcmp(found.text, json_string_value(wanted), found.n) != 0))
        fail_msg("%s, line %zu: found \"%.*s\", wanted \"%s\"", where, line + 1, (int)found.n, found.text,
                 json_string_value(wanted));
}

static void check_encoding(const ag_tokenizer *t, const ag_encoding *e, const json_t *row, const char *name, size_t line)
{
    const json_t *ids = json_array_get(row, 0), *offsets = json_array_get(row, 1), *shown = json_array_get(row, 2);
    if (json_array_size(ids) != e->n)
        fail_msg("%s, line %zu: %zu tokens, wanted %zu", name, line + 1, e->n, json_array_size(ids));
    for (size_t i = 0; i < e->n; i++) {
        if (int_at(ids, i) != e->ids[i])
            fail_msg("%s, line %zu: token %zu is %d, wanted %d", name, line + 1, i, (int)e->ids[i], (int)int_at(ids, i));
        if (int_at(offsets, 2 * i) != e->start[i] || int_at(offsets, 2 * i + 1) != e->end[i])
            fail_msg("%s, line %zu: token %zu lies at %u-%u, wanted %d-%d", name, line + 1, i, e->start[i], e->end[i],
                     (int)int_at(offsets, 2 * i), (int)int_at(offsets, 2 * i + 1));
        assert_true(e->surface[i] == 0 || json_array_size(shown) > 0);
    }
    for (size_t k = 0; k < json_array_size(shown); k++)
        check_text(ag_encoding_token(t, e, (size_t)int_at(json_array_get(shown, k), 0)),
                   json_array_get(json_array_get(shown, k), 1), name, line);
}

/* Byte offsets say the same as code point offsets. */
static void check_bytes(const ag_encoding *e, const char *text, size_t n)
{
    for (size_t i = 0; i < e->n; i++) {
        assert_true(e->byte_start[i] <= e->byte_end[i] && e->byte_end[i] <= n);
        assert_int_equal(ag_utf8_count(text, e->byte_start[i]), e->start[i]);
        assert_int_equal(ag_utf8_count(text, e->byte_end[i]), e->end[i]);
    }
}

static void check_strings(const char *name)
{
    ag_arena a = {0};
    ag_err err = {0};
    ag_tokenizer *t = from_golden(&a, name);
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    json_t *strings = golden_lines(&a, "strings.jsonl"), *rows = golden_lines(&a, ag_arena_printf(&a, "%s.jsonl", name));
    assert_int_equal(json_array_size(strings), json_array_size(rows));
    ag_encoding e = {0}, ids = {0};
    for (size_t i = 0; i < json_array_size(strings); i++) {
        const char *text = json_string_value(json_array_get(strings, i));
        size_t n = json_string_length(json_array_get(strings, i));
        ag_encoding_clear(&e);
        assert_int_equal(ag_tokenizer_encode(t, scratch, text, n, &(ag_encode_options){.add_special = true}, &e, &err), AG_OK);
        check_encoding(t, &e, json_array_get(rows, i), name, i);
        check_bytes(&e, text, n);
        ag_encoding_clear(&ids);
        assert_int_equal(
            ag_tokenizer_encode(t, scratch, text, n, &(ag_encode_options){.add_special = true, .ids_only = true}, &ids, &err),
            AG_OK);
        assert_int_equal(ids.n, e.n);
        assert_true(e.n == 0 || memcmp(ids.ids, e.ids, e.n * sizeof *e.ids) == 0);
    }
    ag_encoding_free(&e);
    ag_encoding_free(&ids);
    json_decref(strings);
    json_decref(rows);
    ag_tokenizer_scratch_free(&scratch);
    ag_tokenizer_free(&t);
    ag_arena_free(&a);
}

static void check_decode(const char *name)
{
    ag_arena a = {0};
    ag_tokenizer *t = from_golden(&a, name);
    json_t *rows = golden_lines(&a, ag_arena_printf(&a, "%s.decode.jsonl", name));
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r), *list = json_array_get(row, 0);
        size_t n = json_array_size(list);
        int32_t *ids = ag_arena_array(&a, n, sizeof *ids);
        for (size_t i = 0; i < n; i++) ids[i] = (int32_t)int_at(list, i);
        for (int skip = 0; skip < 2; skip++) {
            ag_str whole = {0}, pieces = {0};
            ag_tokenizer_decode(t, ids, n, skip, &whole);
            check_text((ag_text){whole.text, whole.n}, json_array_get(row, 1 + (size_t)skip), name, r);
            ag_decode_stream s = {.tokenizer = t, .skip_special = skip};
            for (size_t i = 0; i < n; i++) {
                ag_decode_stream_add(&s, ids[i], &pieces);
                assert_true(pieces.n == 0 || ag_utf8_valid(pieces.text, pieces.n));
            }
            ag_decode_stream_end(&s, &pieces);
            check_text((ag_text){pieces.text, pieces.n}, json_array_get(row, 1 + (size_t)skip), name, r);
            ag_str_free(&whole);
            ag_str_free(&pieces);
        }
    }
    json_decref(rows);
    ag_tokenizer_free(&t);
    ag_arena_free(&a);
}

static void byte_level_bpe_gives_the_ids_tokens_and_offsets_of_tokenizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(byte_level); i++) check_strings(byte_level[i]);
}

static void sentencepiece_like_bpe_gives_the_ids_tokens_and_offsets_of_tokenizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(sentence_piece); i++) check_strings(sentence_piece[i]);
}

static void other_models_give_the_ids_tokens_and_offsets_of_tokenizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) check_strings(others[i]);
}

static void decoding_gives_the_text_of_tokenizers_at_once_and_in_a_stream(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(byte_level); i++) check_decode(byte_level[i]);
    for (size_t i = 0; i < COUNT(sentence_piece); i++) check_decode(sentence_piece[i]);
    for (size_t i = 0; i < COUNT(others); i++) check_decode(others[i]);
}

static void every_rule_cuts_and_rewrites_as_in_tokenizers(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_err err = {0};
    json_t *strings = golden_lines(&a, "strings.jsonl"), *rules = golden_lines(&a, "rules.jsonl");
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding e = {0};
    for (size_t r = 0; r < json_array_size(rules); r++) {
        const json_t *rule = json_array_get(rules, r), *cases = json_array_get(rule, 2);
        json_t *root = json_pack("{s:O, s:O, s:{s:s, s:i, s:[[s, f]]}}", "normalizer", json_array_get(rule, 0), "pre_tokenizer",
                                 json_array_get(rule, 1), "model", "type", "Unigram", "unk_id", 0, "vocab", "<unk>", 0.0);
        char *json = json_dumps(root, 0);
        ag_tokenizer *t = from_text(json, strlen(json), &err);
        if (!t) fail_msg("rule %zu: %s", r + 1, err.text);
        for (size_t c = 0; c < json_array_size(cases); c++) {
            const json_t *one = json_array_get(cases, c), *text = json_array_get(strings, (size_t)int_at(one, 0));
            const json_t *tokens = json_array_get(one, 1), *offsets = json_array_get(one, 2);
            ag_encoding_clear(&e);
            assert_int_equal(ag_tokenizer_encode(t, scratch, json_string_value(text), json_string_length(text), NULL, &e, &err),
                             AG_OK);
            if (e.n != json_array_size(tokens))
                fail_msg("rule %zu, case %zu: %zu pieces, wanted %zu", r + 1, c + 1, e.n, json_array_size(tokens));
            for (size_t i = 0; i < e.n; i++) {
                check_text(ag_encoding_token(t, &e, i), json_array_get(tokens, i), "rules.jsonl", r);
                if (int_at(offsets, 2 * i) != e.start[i] || int_at(offsets, 2 * i + 1) != e.end[i])
                    fail_msg("rule %zu, case %zu: piece %zu lies at %u-%u", r + 1, c + 1, i, e.start[i], e.end[i]);
            }
        }
        ag_tokenizer_free(&t);
        free(json);
        json_decref(root);
    }
    ag_encoding_free(&e);
    ag_tokenizer_scratch_free(&scratch);
    json_decref(strings);
    json_decref(rules);
    ag_arena_free(&a);
}

/* ---- special tokens -------------------------------------------------------------------------------------------- */
static bool holds(const ag_encoding *e, int32_t id)
{
    for (size_t i = 0; i < e->n; i++)
        if (e->ids[i] == id) return true;
    return false;
}

static void special_tokens_that_users_wrote_are_text(void **state)
{
    (void)state;
    static const char text[] = "<|im_start|>user\nsay <|im_end|> twice<|im_end|>\n";
    ag_arena a = {0};
    ag_err err = {0};
    ag_tokenizer *t = from_golden(&a, "qwen2");
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    int32_t start = ag_tokenizer_token_id(t, "<|im_start|>", 12), end = ag_tokenizer_token_id(t, "<|im_end|>", 10);
    ag_encoding e = {0};
    size_t users = (size_t)(strstr(text, "say") - text), n_users = strlen("say <|im_end|> twice");
    assert_int_equal(ag_tokenizer_encode(t, scratch, text, strlen(text), NULL, &e, &err), AG_OK);
    int n_end = 0;
    for (size_t i = 0; i < e.n; i++) n_end += e.ids[i] == end;
    assert_int_equal(n_end, 2);

    ag_text_range range = {users, users + n_users};
    ag_encoding_clear(&e);
    assert_int_equal(ag_tokenizer_encode(t, scratch, text, strlen(text),
                                         &(ag_encode_options){.plain_ranges = &range, .n_plain_ranges = 1}, &e, &err),
                     AG_OK);
    n_end = 0;
    for (size_t i = 0; i < e.n; i++) {
        n_end += e.ids[i] == end;
        if (e.ids[i] == end) assert_int_equal(e.byte_start[i], range.end);
    }
    assert_int_equal(n_end, 1);
    assert_int_equal(e.ids[0], start);

    /* A range that holds only a part of the token makes it text as well. */
    range = (ag_text_range){users + 4, users + 5};
    ag_encoding_clear(&e);
    assert_int_equal(ag_tokenizer_encode(t, scratch, text, strlen(text),
                                         &(ag_encode_options){.plain_ranges = &range, .n_plain_ranges = 1}, &e, &err),
                     AG_OK);
    n_end = 0;
    for (size_t i = 0; i < e.n; i++) n_end += e.ids[i] == end;
    assert_int_equal(n_end, 1);

    ag_encoding_clear(&e);
    assert_int_equal(ag_tokenizer_encode(t, scratch, text, strlen(text), &(ag_encode_options){.plain = true}, &e, &err), AG_OK);
    assert_false(holds(&e, start) || holds(&e, end));
    ag_str back = {0};
    ag_tokenizer_decode(t, e.ids, e.n, true, &back);
    assert_string_equal(back.text, text);
    ag_str_free(&back);
    ag_encoding_free(&e);
    ag_tokenizer_scratch_free(&scratch);
    ag_tokenizer_free(&t);
    ag_arena_free(&a);
}

static void malformed_utf8_is_replaced_and_offsets_fit_the_given_bytes(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_err err = {0};
    ag_tokenizer *t = from_golden(&a, "gpt2");
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding bad = {0}, good = {0};
    static const char malformed[] = "a\xff"
                                    "b \xe2\x82 c",
                      replaced[] = "a\xef\xbf\xbd"
                                   "b \xef\xbf\xbd c";
    assert_int_equal(ag_tokenizer_encode(t, scratch, malformed, strlen(malformed), NULL, &bad, &err), AG_OK);
    assert_int_equal(ag_tokenizer_encode(t, scratch, replaced, strlen(replaced), NULL, &good, &err), AG_OK);
    assert_int_equal(bad.n, good.n);
    for (size_t i = 0; i < good.n; i++) {
        assert_int_equal(bad.ids[i], good.ids[i]);
        assert_int_equal(bad.start[i], good.start[i]);
        assert_int_equal(bad.end[i], good.end[i]);
        assert_true(bad.byte_end[i] <= strlen(malformed) && bad.byte_start[i] <= bad.byte_end[i]);
    }
    assert_int_equal(bad.byte_start[1], 1);
    assert_int_equal(bad.byte_end[1], 2);
    assert_int_equal(bad.byte_end[bad.n - 1], strlen(malformed));
    ag_encoding_free(&bad);
    ag_encoding_free(&good);
    ag_tokenizer_scratch_free(&scratch);
    ag_tokenizer_free(&t);
    ag_arena_free(&a);
}

/* ---- special ids, and out again -------------------------------------------------------------------------------- */
static void config_names_the_special_tokens(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_err err = {0};
    size_t n;
    char *json = golden(&a, "tokenizers/llama3.json", &n);
    static const char config[] =
        "{\"bos_token\": \"<|begin_of_text|>\", \"eos_token\": {\"content\": \"<|eot_id|>\"}, \"pad_token\": null}";
    ag_tokenizer *t = NULL;
    ag_tokenizer_files files = {
        .name = "tokenizer.json", .tokenizer = json, .n_tokenizer = n, .config = config, .n_config = strlen(config)};
    assert_int_equal(ag_tokenizer_from_json(&t, &files, &err), AG_OK);
    assert_int_equal(ag_tokenizer_special_id(t, AG_SPECIAL_BOS), 1006);
    assert_int_equal(ag_tokenizer_special_id(t, AG_SPECIAL_EOS), 1010);
    assert_int_equal(ag_tokenizer_special_id(t, AG_SPECIAL_PAD), -1);
    assert_string_equal(ag_tokenizer_special_text(t, AG_SPECIAL_EOS), "<|eot_id|>");
    assert_null(ag_tokenizer_special_text(t, AG_SPECIAL_PAD));
    int32_t before[2], after[2];
    size_t n_before, n_after;
    ag_tokenizer_affixes(t, before, &n_before, after, &n_after, 2);
    assert_int_equal(n_before, 1);
    assert_int_equal(before[0], 1006);
    assert_int_equal(n_after, 0);
    assert_true(ag_tokenizer_is_special(t, 1006));
    assert_false(ag_tokenizer_is_special(t, 5));
    assert_int_equal(ag_tokenizer_vocab_size(t), 1012);
    assert_null(ag_tokenizer_token_text(t, 1012).text);
    assert_null(ag_tokenizer_token_text(t, -1).text);
    ag_text space = ag_tokenizer_token_bytes(t, ag_tokenizer_token_id(t, "\xc4\xa0", 2));
    assert_true(space.n == 1 && space.text[0] == ' ');
    ag_tokenizer_free(&t);
    ag_arena_free(&a);
}

static void check_same(const ag_tokenizer *t, const ag_tokenizer *u, const json_t *strings, const char *name)
{
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding e = {0}, f = {0};
    ag_err err = {0};
    for (size_t i = 0; i < json_array_size(strings); i++) {
        const json_t *text = json_array_get(strings, i);
        ag_encode_options options = {.add_special = true};
        ag_encoding_clear(&e);
        ag_encoding_clear(&f);
        assert_int_equal(ag_tokenizer_encode(t, scratch, json_string_value(text), json_string_length(text), &options, &e, &err),
                         AG_OK);
        assert_int_equal(ag_tokenizer_encode(u, scratch, json_string_value(text), json_string_length(text), &options, &f, &err),
                         AG_OK);
        if (e.n != f.n || (e.n && memcmp(e.ids, f.ids, e.n * sizeof *e.ids) != 0))
            fail_msg("%s: other ids for \"%s\"", name, json_string_value(text));
        ag_str x = {0}, y = {0};
        ag_tokenizer_decode(t, e.ids, e.n, false, &x);
        ag_tokenizer_decode(u, e.ids, e.n, false, &y);
        assert_int_equal(x.n, y.n);
        assert_true(x.n == 0 || memcmp(x.text, y.text, x.n) == 0);
        ag_str_free(&x);
        ag_str_free(&y);
    }
    ag_encoding_free(&e);
    ag_encoding_free(&f);
    ag_tokenizer_scratch_free(&scratch);
}

static void check_written(ag_arena *a, const json_t *strings, const char *name)
{
    ag_err err = {0};
    ag_str json = {0};
    ag_tokenizer *t = from_golden(a, name);
    assert_int_equal(ag_tokenizer_write_json(t, &json, &err), AG_OK);
    ag_tokenizer *u = from_text(json.text, json.n, &err);
    if (!u) fail_msg("%s: %s", name, err.text);
    check_same(t, u, strings, name);
    ag_tokenizer_free(&t);
    ag_tokenizer_free(&u);
    ag_str_free(&json);
}

static void a_tokenizer_that_was_written_gives_the_same_ids(void **state)
{
    (void)state;
    ag_arena a = {0};
    json_t *strings = golden_lines(&a, "strings.jsonl");
    for (size_t i = 0; i < COUNT(byte_level); i++) check_written(&a, strings, byte_level[i]);
    for (size_t i = 0; i < COUNT(sentence_piece); i++) check_written(&a, strings, sentence_piece[i]);
    for (size_t i = 0; i < COUNT(others); i++) check_written(&a, strings, others[i]);
    json_decref(strings);
    ag_arena_free(&a);
}

/* To GGUF and back; and from there to tokenizer.json and back. */
static void check_gguf(ag_arena *a, const json_t *strings, const char *name, const char *model, const char *pre)
{
    ag_err err = {0};
    ag_tokenizer *t = from_golden(a, name), *u = NULL;
    ag_gguf_vocab v;
    ag_gguf_vocab_owner *keep = NULL;
    int32_t n = ag_tokenizer_vocab_size(t);
    if (ag_tokenizer_to_gguf(t, n + 3, &v, &keep, &err)) fail_msg("%s: %s", name, err.text);
    assert_string_equal(v.model, model);
    assert_string_equal(v.pre, pre);
    assert_int_equal(v.n_tokens, n + 3);
    assert_int_equal(v.types[n], AG_TOKEN_UNUSED);
    if (ag_tokenizer_from_gguf(&u, &v, &err)) fail_msg("%s: %s", name, err.text);
    ag_gguf_vocab_owner_free(&keep);
    check_same(t, u, strings, name);
    assert_int_equal(ag_tokenizer_vocab_size(u), n);

    ag_str json = {0};
    assert_int_equal(ag_tokenizer_write_json(u, &json, &err), AG_OK);
    ag_tokenizer *w = from_text(json.text, json.n, &err);
    if (!w) fail_msg("%s: %s", name, err.text);
    check_same(t, w, strings, name);
    ag_str_free(&json);
    ag_tokenizer_free(&t);
    ag_tokenizer_free(&u);
    ag_tokenizer_free(&w);
}

static void a_tokenizer_goes_to_gguf_and_back(void **state)
{
    (void)state;
    ag_arena a = {0};
    json_t *strings = golden_lines(&a, "strings.jsonl");
    check_gguf(&a, strings, "gpt2", "gpt2", "gpt-2");
    check_gguf(&a, strings, "smollm", "gpt2", "smollm");
    check_gguf(&a, strings, "llama3", "gpt2", "llama-bpe");
    check_gguf(&a, strings, "llama3-merges", "gpt2", "dbrx");
    check_gguf(&a, strings, "qwen2", "gpt2", "qwen2");
    check_gguf(&a, strings, "minicpm5", "gpt2", "minicpm5");
    json_decref(strings);

    ag_err err = {0};
    ag_gguf_vocab v;
    ag_gguf_vocab_owner *keep = NULL;
    ag_tokenizer *t = from_golden(&a, "gpt2-prefix");
    assert_int_equal(ag_tokenizer_to_gguf(t, 0, &v, &keep, &err), AG_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no GGUF pre-tokenizer name"));
    ag_tokenizer_free(&t);
    t = from_golden(&a, "gpt2");
    assert_int_equal(ag_tokenizer_to_gguf(t, 10, &v, &keep, &err), AG_E_SHAPE);
    ag_tokenizer_free(&t);
    ag_arena_free(&a);
}

static void an_unknown_pre_name_is_refused_by_name(void **state)
{
    (void)state;
    ag_err err = {0};
    ag_tokenizer *t = NULL;
    ag_text token = {"a", 1};
    ag_gguf_vocab v = {.name = "x.gguf",
                       .model = "gpt2",
                       .pre = "chess-v9",
                       .n_tokens = 1,
                       .tokens = &token,
                       .bos_id = -1,
                       .eos_id = -1,
                       .pad_id = -1,
                       .unk_id = -1,
                       .add_bos = -1,
                       .add_eos = -1,
                       .add_space_prefix = -1};
    assert_int_equal(ag_tokenizer_from_gguf(&t, &v, &err), AG_E_UNSUPPORTED);
    assert_null(t);
    assert_non_null(strstr(err.text, "'chess-v9'"));
    assert_non_null(strstr(err.text, "smollm"));
    v.model = "rwkv";
    assert_int_equal(ag_tokenizer_from_gguf(&t, &v, &err), AG_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "'rwkv'"));
    v.model = "gpt2", v.pre = "smollm", v.eos_id = 1;
    assert_int_equal(ag_tokenizer_from_gguf(&t, &v, &err), AG_E_FORMAT);
    assert_non_null(strstr(err.text, "eos"));
}

static void sentencepiece_in_gguf_gives_the_ids_of_sentencepiece(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_err err = {0};
    size_t n;
    char *text = golden(&a, "sentencepiece.json", &n);
    json_t *root = json_loadb(text, n, 0, NULL), *strings = golden_lines(&a, "strings.jsonl");
    const json_t *pieces = json_object_get(root, "pieces"), *cases = json_object_get(root, "cases");
    ag_gguf_vocab v = {.name = "sentencepiece.gguf",
                       .model = "llama",
                       .pre = "default",
                       .n_tokens = json_array_size(pieces),
                       .bos_id = 1,
                       .eos_id = 2,
                       .pad_id = -1,
                       .unk_id = 0,
                       .add_bos = 0,
                       .add_eos = -1,
                       .add_space_prefix = 1};
    ag_text *tokens = ag_arena_array(&a, v.n_tokens, sizeof *tokens);
    float *scores = ag_arena_array(&a, v.n_tokens, sizeof *scores);
    int32_t *types = ag_arena_array(&a, v.n_tokens, sizeof *types);
    for (size_t i = 0; i < v.n_tokens; i++) {
        tokens[i] = (ag_text){json_string_value(json_array_get(pieces, i)), json_string_length(json_array_get(pieces, i))};
        scores[i] = (float)json_number_value(json_array_get(json_object_get(root, "scores"), i));
        types[i] = (int32_t)int_at(json_object_get(root, "types"), i);
    }
    v.tokens = tokens, v.scores = scores, v.types = types;
    ag_tokenizer *t = NULL;
    if (ag_tokenizer_from_gguf(&t, &v, &err)) fail_msg("%s", err.text);
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding e = {0};
    ag_str back = {0};
    assert_true(json_array_size(cases) > 100);
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *one = json_array_get(cases, c), *line = json_array_get(strings, (size_t)int_at(one, 0)),
                     *ids = json_array_get(one, 1);
        const char *string = json_string_value(line);
        ag_encoding_clear(&e);
        assert_int_equal(ag_tokenizer_encode(t, scratch, string, json_string_length(line),
                                             &(ag_encode_options){.add_special = true}, &e, &err),
                         AG_OK);
        if (e.n != json_array_size(ids)) fail_msg("\"%s\": %zu tokens, wanted %zu", string, e.n, json_array_size(ids));
        for (size_t i = 0; i < e.n; i++)
            if (int_at(ids, i) != e.ids[i])
                fail_msg("\"%s\": token %zu is %d, wanted %d", string, i, (int)e.ids[i], (int)int_at(ids, i));
        ag_str_clear(&back);
        ag_tokenizer_decode(t, e.ids, e.n, true, &back);
        if (!strstr(string, "\xe2\x96\x81")) assert_string_equal(back.text, string);
    }
    ag_gguf_vocab again;
    ag_gguf_vocab_owner *keep = NULL;
    assert_int_equal(ag_tokenizer_to_gguf(t, 0, &again, &keep, &err), AG_OK);
    assert_string_equal(again.model, "llama");
    for (size_t i = 0; i < v.n_tokens; i++) assert_int_equal(again.types[i], types[i]);
    ag_tokenizer *u = NULL;
    assert_int_equal(ag_tokenizer_from_gguf(&u, &again, &err), AG_OK);
    check_same(t, u, strings, "sentencepiece");
    ag_gguf_vocab_owner_free(&keep);
    ag_tokenizer_free(&u);
    ag_str_free(&back);
    ag_encoding_free(&e);
    ag_tokenizer_scratch_free(&scratch);
    ag_tokenizer_free(&t);
    json_decref(root);
    json_decref(strings);
    ag_arena_free(&a);
}

/* ---- bad input ------------------------------------------------------------------------------------------------- */
#define MODEL(rest) "{\"model\":{\"type\":\"BPE\"," rest "}"
#define VOCAB       "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
static void damaged_files_are_refused_with_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *json, *sentence;
        ag_status status;
    } cases[] = {
        {"", "malformed JSON", AG_E_FORMAT},
        {"{}", "has no 'model'", AG_E_FORMAT},
        {"{\"model\":{\"type\":\"BPE\"}}", "no 'vocab'", AG_E_FORMAT},
        {MODEL("\"vocab\":{\"a\":0}}"), "no 'merges'", AG_E_FORMAT},
        {MODEL(VOCAB "\"merges\":[\"a c\"]}"), "dangles", AG_E_FORMAT},
        {MODEL(VOCAB "\"merges\":[[\"b\",\"a\"]]}"), "what they make", AG_E_FORMAT},
        {MODEL(VOCAB "\"merges\":[\"ab\"]}"), "one space between", AG_E_FORMAT},
        {MODEL(VOCAB "\"merges\":[\"a b\"],\"dropout\":0.1}"), "dropout", AG_E_UNSUPPORTED},
        {MODEL("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}"), "same id 0", AG_E_FORMAT},
        {MODEL("\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}"), "stands twice", AG_E_FORMAT},
        {MODEL("\"vocab\":{\"a\":2000000000},\"merges\":[]}"), "out of all proportion", AG_E_FORMAT},
        {MODEL("\"vocab\":{\"a\":-1},\"merges\":[]}"), "out of all proportion", AG_E_FORMAT},
        {MODEL("\"vocab\":{\"\\ud800\":1},\"merges\":[]}"), "surrogate", AG_E_FORMAT},
        {MODEL("\"vocab\":{\"a\":0.5},\"merges\":[]}"), "expected an integer", AG_E_FORMAT},
        {"{\"model\":{\"type\":\"Chess\",\"vocab\":{},\"merges\":[]}}", "'Chess'", AG_E_UNSUPPORTED},
        {MODEL(VOCAB "\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Chess\"}"), "pre-tokenizer 'Chess'", AG_E_UNSUPPORTED},
        {MODEL(VOCAB "\"merges\":[]},\"normalizer\":{\"type\":\"Chess\"}"), "normalizer 'Chess'", AG_E_UNSUPPORTED},
        {MODEL(VOCAB "\"merges\":[]},\"decoder\":{\"type\":\"Chess\"}"), "decoder 'Chess'", AG_E_UNSUPPORTED},
        {MODEL(VOCAB "\"merges\":[]},\"post_processor\":{\"type\":\"Chess\"}"), "post-processor 'Chess'", AG_E_UNSUPPORTED},
        {MODEL(
             VOCAB
             "\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"}"),
         "not understood", AG_E_UNSUPPORTED},
        {MODEL(VOCAB "\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\X\"},\"behavior\":"
                     "\"Isolated\"}"),
         "uses \\X", AG_E_UNSUPPORTED},
        {MODEL(VOCAB "\"merges\":[]},\"added_tokens\":[{\"id\":7,\"content\":\"<x>\"}]"), "a hole", AG_E_FORMAT},
        {MODEL("\"vocab\":{\"a\":0,\"b\":2},\"merges\":[]},\"added_tokens\":[{\"id\":2,\"content\":\"<x>\"}]"),
         "\"b\" of the vocabulary", AG_E_FORMAT},
        {MODEL(VOCAB "\"merges\":[]},\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"x\",9],\"cls\":[\"y\",0]}"),
         "token id 9", AG_E_FORMAT},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ag_err err = {0};
        ag_tokenizer *t = NULL;
        ag_tokenizer_files files = {.name = "bad.json", .tokenizer = cases[i].json, .n_tokenizer = strlen(cases[i].json)};
        ag_status status = ag_tokenizer_from_json(&t, &files, &err);
        if (status != cases[i].status || !strstr(err.text, cases[i].sentence) || !strstr(err.text, "bad.json"))
            fail_msg("case %zu: status %d, \"%s\", wanted \"%s\"", i, (int)status, err.text, cases[i].sentence);
        assert_null(t);
    }
}

static void a_pattern_that_explodes_is_stopped(void **state)
{
    (void)state;
    static const char json[] =
        MODEL(VOCAB "\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+$\"},"
                    "\"behavior\":\"Isolated\",\"invert\":false}");
    ag_err err = {0};
    ag_tokenizer *t = from_text(json, strlen(json), &err);
    assert_non_null(t);
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding e = {0};
    char text[64];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    assert_int_equal(ag_tokenizer_encode(t, scratch, text, sizeof text, NULL, &e, &err), AG_E_DATA);
    assert_non_null(strstr(err.text, "explodes"));
    assert_int_equal(e.n, 0);
    ag_encoding_free(&e);
    ag_tokenizer_scratch_free(&scratch);
    ag_tokenizer_free(&t);
}

static void a_long_word_takes_time_in_proportion(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_err err = {0};
    ag_tokenizer *t = from_golden(&a, "gpt2");
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding e = {0};
    size_t n = 1000000;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + i * i % 23 % 7);
    assert_int_equal(ag_tokenizer_encode(t, scratch, text, n, NULL, &e, &err), AG_OK);
    assert_true(e.n > 1000);
    assert_int_equal(e.byte_end[e.n - 1], n);
    free(text);
    ag_encoding_free(&e);
    ag_tokenizer_scratch_free(&scratch);
    ag_tokenizer_free(&t);
    ag_arena_free(&a);
}

/* ---- threads --------------------------------------------------------------------------------------------------- */
typedef struct {
    const ag_tokenizer *tokenizers[2];
    const json_t *strings;
    ag_encoding e;
} job;

static void *run_job(void *pointer)
{
    job *j = pointer;
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    for (size_t i = 0; i < json_array_size(j->strings); i++) {
        const json_t *text = json_array_get(j->strings, i);
        if (ag_tokenizer_encode(j->tokenizers[i % 2], scratch, json_string_value(text), json_string_length(text), NULL, &j->e,
                                NULL))
            break;
    }
    ag_tokenizer_scratch_free(&scratch);
    return NULL;
}

static void threads_share_tokenizers_and_give_the_same(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_tokenizer *t = from_golden(&a, "smollm"), *u = from_golden(&a, "added");
    json_t *strings = golden_lines(&a, "strings.jsonl");
    job jobs[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){.tokenizers = {t, u}, .strings = strings};
        assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 1; i < 4; i++) {
        assert_true(jobs[0].e.n > 0 && jobs[i].e.n == jobs[0].e.n);
        assert_memory_equal(jobs[i].e.ids, jobs[0].e.ids, jobs[0].e.n * sizeof *jobs[0].e.ids);
        assert_memory_equal(jobs[i].e.end, jobs[0].e.end, jobs[0].e.n * sizeof *jobs[0].e.end);
    }
    for (int i = 0; i < 4; i++) ag_encoding_free(&jobs[i].e);
    json_decref(strings);
    ag_tokenizer_free(&t);
    ag_tokenizer_free(&u);
    ag_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level_bpe_gives_the_ids_tokens_and_offsets_of_tokenizers),
        cmocka_unit_test(sentencepiece_like_bpe_gives_the_ids_tokens_and_offsets_of_tokenizers),
        cmocka_unit_test(other_models_give_the_ids_tokens_and_offsets_of_tokenizers),
        cmocka_unit_test(decoding_gives_the_text_of_tokenizers_at_once_and_in_a_stream),
        cmocka_unit_test(every_rule_cuts_and_rewrites_as_in_tokenizers),
        cmocka_unit_test(special_tokens_that_users_wrote_are_text),
        cmocka_unit_test(malformed_utf8_is_replaced_and_offsets_fit_the_given_bytes),
        cmocka_unit_test(config_names_the_special_tokens),
        cmocka_unit_test(a_tokenizer_that_was_written_gives_the_same_ids),
        cmocka_unit_test(a_tokenizer_goes_to_gguf_and_back),
        cmocka_unit_test(sentencepiece_in_gguf_gives_the_ids_of_sentencepiece),
        cmocka_unit_test(an_unknown_pre_name_is_refused_by_name),
        cmocka_unit_test(damaged_files_are_refused_with_a_sentence),
        cmocka_unit_test(a_pattern_that_explodes_is_stopped),
        cmocka_unit_test(a_long_word_takes_time_in_proportion),
        cmocka_unit_test(threads_share_tokenizers_and_give_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
