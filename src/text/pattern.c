#define _GNU_SOURCE
#include "text/pattern.h"

#include "base/arena.h"
#include "text/unicode_class.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A sane pattern takes a few steps for each byte, even where one match covers the whole text; far too little for one that
 * explodes. */
enum { MATCH_LIMIT = 2000000, MATCH_LIMIT_PER_BYTE = 8, DEPTH_LIMIT = 100000, HEAP_LIMIT_KIB = 65536 };
enum { JIT_STACK_MIN = 32 * 1024, JIT_STACK_MAX = 4 * 1024 * 1024 };

struct ag_regex {
    pcre2_code *code;
};

/* Match data and JIT stack belong to a thread, and live as long as it does. */
typedef struct {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} thread_state;
static pthread_key_t state_key;
static pthread_once_t state_once = PTHREAD_ONCE_INIT;

static void state_free(void *pointer)
{
    thread_state *s = pointer;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

static void state_key_make(void)
{
    if (pthread_key_create(&state_key, state_free)) ag_out_of_memory(sizeof(thread_state));
}

static thread_state *state_get(void)
{
    pthread_once(&state_once, state_key_make);
    thread_state *s = pthread_getspecific(state_key);
    if (s) return s;
    s = calloc(1, sizeof *s);
    if (!s) ag_out_of_memory(sizeof *s);
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (!s->data || !s->context || !s->stack || pthread_setspecific(state_key, s)) ag_out_of_memory(JIT_STACK_MIN);
    pcre2_set_depth_limit(s->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(s->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

static ag_status compile(ag_pattern *p, const char *name, ag_err *err)
{
    ag_str translated = {0};
    ag_status status = ag_regex_translate(p->text, &translated, name, err);
    if (status) {
        ag_str_free(&translated);
        return status;
    }
    int code = 0;
    PCRE2_SIZE at = 0;
    p->regex = calloc(1, sizeof *p->regex);
    if (!p->regex) ag_out_of_memory(sizeof *p->regex);
    p->regex->code =
        pcre2_compile((PCRE2_SPTR)translated.text, translated.n,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
    ag_str_free(&translated);
    if (!p->regex->code) {
        PCRE2_UCHAR text[256];
        pcre2_get_error_message(code, text, sizeof text);
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: the pattern \"%.300s\" is not understood: %s", name, p->text,
                       (const char *)text);
    }
    pcre2_jit_compile(p->regex->code, PCRE2_JIT_COMPLETE); /* without JIT it works as well, slowly */
    return AG_OK;
}

ag_status ag_pattern_init(ag_pattern *p, const char *text, size_t n, bool is_regex, bool no_scanner, const char *name,
                          ag_err *err)
{
    *p = (ag_pattern){.n = n, .is_regex = is_regex};
    if (is_regex && (strlen(text) != n || n > 65536))
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: a split pattern of %zu bytes, or with a NUL in it, is not supported", name,
                       n);
    p->text = malloc(n + 1);
    if (!p->text) ag_out_of_memory(n + 1);
    memcpy(p->text, text, n);
    p->text[n] = 0;
    if (!is_regex) return AG_OK;
    if (!no_scanner) p->scanner = ag_split_scanner_find(p->text);
    ag_status status = p->scanner ? AG_OK : compile(p, name, err);
    if (status) ag_pattern_deinit(p);
    return status;
}

void ag_pattern_deinit(ag_pattern *p)
{
    free(p->text);
    if (p->regex) pcre2_code_free(p->regex->code);
    free(p->regex);
    *p = (ag_pattern){0};
}

/* ---- finding --------------------------------------------------------------------------------------------------- */
static void span(ag_pieces *pieces, size_t start, size_t end, bool match, bool invert)
{
    ag_spans_add(pieces, start, end, match != invert);
}

/* The empty text stands between any two characters and at both ends. */
static void find_nothing(const unsigned char *text, size_t n, bool invert, ag_pieces *pieces)
{
    size_t bytes;
    span(pieces, 0, 0, true, invert);
    for (size_t at = 0; at < n; at += bytes) {
        ag_utf8_peek(text, at, &bytes);
        span(pieces, at, at + bytes, false, invert);
        span(pieces, at + bytes, at + bytes, true, invert);
    }
}

static void find_text(const ag_pattern *p, const unsigned char *text, size_t n, bool invert, ag_pieces *pieces)
{
    size_t done = 0;
    if (p->n == 0) {
        find_nothing(text, n, invert, pieces);
        return;
    }
    if (p->n <= n) {
        for (size_t at = 0; at + p->n <= n;) {
            const unsigned char *hit = memmem(text + at, n - at, p->text, p->n);
            if (!hit) break;
            size_t start = (size_t)(hit - text);
            if (start > done) span(pieces, done, start, false, invert);
            span(pieces, start, start + p->n, true, invert);
            at = done = start + p->n;
        }
    }
    if (done < n) span(pieces, done, n, false, invert);
}

static ag_status find_regex(const ag_pattern *p, const unsigned char *text, size_t n, bool invert, ag_pieces *pieces,
                            ag_err *err)
{
    thread_state *s = state_get();
    size_t done = 0, at = 0, last_end = SIZE_MAX, limit = MATCH_LIMIT + MATCH_LIMIT_PER_BYTE * n;
    pcre2_set_match_limit(s->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    while (at <= n) {
        int found = pcre2_match(p->regex->code, text, n, at, PCRE2_NO_UTF_CHECK, s->data, s->context);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0)
            return ag_fail(err, AG_E_DATA,
                           "the split pattern \"%.200s\" gives up on a text of %zu bytes (match limit, code %d); the "
                           "pattern explodes on it",
                           p->text, n, found);
        const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(s->data);
        size_t start = bounds[0], end = bounds[1], bytes;
        if (end < start || end > n) break;     /* \K in a look-ahead: nothing to cut by */
        if (start == end && end == last_end) { /* an empty match right behind a match: one character on */
            if (at >= n) break;
            ag_utf8_peek(text, at, &bytes);
            at += bytes;
            continue;
        }
        at = last_end = end;
        if (start > done) span(pieces, done, start, false, invert);
        span(pieces, start, end, true, invert);
        done = end;
    }
    if (done < n) span(pieces, done, n, false, invert);
    return AG_OK;
}

ag_status ag_pattern_find(const ag_pattern *p, const unsigned char *text, size_t n, bool invert, ag_pieces *pieces, ag_err *err)
{
    ag_spans_clear(pieces);
    if (n == 0) return ag_spans_add(pieces, 0, 0, invert), AG_OK;
    if (!p->is_regex) return find_text(p, text, n, invert, pieces), AG_OK;
    if (!p->scanner) return find_regex(p, text, n, invert, pieces, err);
    const uint16_t *kinds = ag_unicode_kinds();
    size_t done = 0, start, end;
    while (p->scanner(kinds, text, n, done, &start, &end)) {
        if (start > done) span(pieces, done, start, false, invert);
        span(pieces, start, end, true, invert);
        done = end;
    }
    if (done < n) span(pieces, done, n, false, invert);
    return AG_OK;
}
