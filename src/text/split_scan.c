#include "text/split_scan.h"

#include "text/unicode_class.h"

#include <string.h>

enum { OTHER, LETTER, NUMBER, SPACE };

static inline int class_at(const uint16_t *kinds, const unsigned char *text, size_t at, size_t *bytes)
{
    unsigned kind = kinds[ag_utf8_peek(text, at, bytes)];
    if (ag_kind_in(kind, AG_CATS_LETTER)) return LETTER;
    if (ag_kind_in(kind, AG_CATS_NUMBER)) return NUMBER;
    return kind & AG_CHAR_SPACE ? SPACE : OTHER;
}

static inline size_t run_of(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, int class)
{
    size_t bytes;
    while (at < n && class_at(kinds, text, at, &bytes) == class) at += bytes;
    return at;
}

/* \s+(?!\S)|\s+ at a white space: the whole run, but its last character belongs to the word behind it (unless it is alone). */
static size_t spaces(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at)
{
    size_t bytes = 0, end = at, last = at;
    while (end < n && class_at(kinds, text, end, &bytes) == SPACE) last = end, end += bytes;
    return end == n || last == at ? end : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d behind an apostrophe at text[at]; 0: none of them. With `fold`, in any case; then U+017F, the long s,
 * is an s as well. */
static size_t contraction(const unsigned char *text, size_t n, size_t at, bool fold)
{
    if (at + 1 >= n) return 0;
    unsigned a = text[at + 1], b = at + 2 < n ? text[at + 2] : 0;
    if (fold) {
        if (a == 0xc5 && b == 0xbf) return 3;
        a |= a >= 'A' && a <= 'Z' ? 0x20 : 0;
        b |= b >= 'A' && b <= 'Z' ? 0x20 : 0;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

bool ag_scan_gpt2(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, size_t *start, size_t *end)
{
    if (at >= n) return false;
    *start = at;
    size_t bytes, word = at;
    int class = class_at(kinds, text, at, &bytes);
    if (text[at] == '\'' && (bytes = contraction(text, n, at, false))) return *end = at + bytes, true;
    if (text[at] == ' ' && at + 1 < n) {
        word = at + 1;
        class = class_at(kinds, text, word, &bytes);
    }
    *end = class == SPACE ? spaces(kinds, text, n, at) : run_of(kinds, text, n, word, class);
    return true;
}

static bool number(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, size_t *start, size_t *end, int most)
{
    size_t bytes;
    while (at < n && class_at(kinds, text, at, &bytes) != NUMBER) at += bytes;
    if (at >= n) return false;
    *start = at;
    for (int i = 0; i < most && at < n && class_at(kinds, text, at, &bytes) == NUMBER; i++) at += bytes;
    *end = at;
    return true;
}

bool ag_scan_number_1(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, size_t *start, size_t *end)
{
    return number(kinds, text, n, at, start, end, 1);
}

bool ag_scan_number_3(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, size_t *start, size_t *end)
{
    return number(kinds, text, n, at, start, end, 3);
}

static inline bool line_end(unsigned char c) { return c == '\r' || c == '\n'; }

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,D}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static inline size_t llama(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, int digits)
{
    size_t bytes, next_bytes, end;
    if (text[at] == '\'' && (bytes = contraction(text, n, at, true))) return at + bytes;
    int class = class_at(kinds, text, at, &bytes);
    size_t next = at + bytes;
    if (class == LETTER) return run_of(kinds, text, n, next, LETTER);
    if (class == NUMBER) {
        for (int i = 1; i < digits && next < n && class_at(kinds, text, next, &next_bytes) == NUMBER; i++) next += next_bytes;
        return next;
    }
    int next_class = next < n ? class_at(kinds, text, next, &next_bytes) : SPACE;
    if (next_class == LETTER && !line_end(text[at])) return run_of(kinds, text, n, next, LETTER);
    if (class == OTHER || (text[at] == ' ' && next_class == OTHER)) {
        end = run_of(kinds, text, n, class == OTHER ? at : next, OTHER);
        while (end < n && line_end(text[end])) end++;
        return end;
    }
    size_t last_line_end = 0; /* white space up to and with the last line end in it */
    for (end = at; end < n && class_at(kinds, text, end, &bytes) == SPACE; end += bytes)
        if (line_end(text[end])) last_line_end = end + 1;
    return last_line_end ? last_line_end : spaces(kinds, text, n, at);
}

static bool scan_llama3(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, size_t *start, size_t *end)
{
    if (at >= n) return false;
    *start = at;
    *end = llama(kinds, text, n, at, 3);
    return true;
}

static bool scan_qwen2(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, size_t *start, size_t *end)
{
    if (at >= n) return false;
    *start = at;
    *end = llama(kinds, text, n, at, 1);
    return true;
}

#define LLAMA(digits)                                                                                                          \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                                       \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"

ag_split_scanner *ag_split_scanner_find(const char *pattern)
{
    static const struct {
        const char *pattern;
        ag_split_scanner *scan;
    } known[] = {
        {GPT2 "|\\s+", ag_scan_gpt2}, {LLAMA("\\p{N}{1,3}"), scan_llama3}, {LLAMA("\\p{N}"), scan_qwen2},
        {"\\p{N}", ag_scan_number_1}, {"\\p{N}{1,3}", ag_scan_number_3},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].pattern, pattern) == 0) return known[i].scan;
    return NULL;
}
