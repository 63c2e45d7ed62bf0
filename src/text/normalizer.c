#include "text/normalizer.h"

#include "base/arena.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

/* ---- byte-level alphabet --------------------------------------------------------------------------------------- */
/* Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and on, in order. */
uint32_t ag_byte_level_char(unsigned char byte)
{
    if ((byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad)) return byte;
    if (byte <= ' ') return 256u + byte;
    if (byte <= 0xa0) return 256u + 33 + (byte - 127u);
    return 256 + 67;
}

int ag_byte_level_byte(uint32_t c)
{
    if (c < 256) return ag_byte_level_char((unsigned char)c) == c ? (int)c : -1;
    if (c < 256 + 33) return (int)c - 256;
    if (c < 256 + 67) return (int)(c - 256 - 33 + 127);
    return c == 256 + 67 ? 0xad : -1;
}

void ag_byte_level_map(ag_pieces *p)
{
    ag_rewrite_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        if (!ag_rewrite_piece(p, i)) continue;
        const unsigned char *text = ag_piece_text(p, p->source);
        size_t n = p->source->end - p->source->start, bytes;
        for (size_t at = 0; at < n; at += bytes) {
            ag_utf8_peek(text, at, &bytes);
            for (size_t k = 0; k < bytes; k++) ag_rewrite_put(p, ag_byte_level_char(text[at + k]), k > 0);
        }
        ag_rewrite_piece_end(p);
    }
    ag_rewrite_end(p);
}

/* ---- passes ---------------------------------------------------------------------------------------------------- */
/* What a character becomes: n code points (0: it is left out). The first stands for it, the others are new behind it. */
typedef size_t map_char(const ag_norm_rule *rule, uint32_t c, uint32_t out[32]);

/* Characters left out are counted on the character kept before them, or dropped at the start. */
static void map_pass(const ag_norm_rule *rule, ag_pieces *p, map_char *map)
{
    ag_rewrite_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        if (!ag_rewrite_piece(p, i)) continue;
        const unsigned char *text = ag_piece_text(p, p->source);
        size_t n = p->source->end - p->source->start, bytes;
        uint32_t out[32], skipped[32];
        for (size_t at = 0; at < n;) {
            size_t n_out = map(rule, ag_utf8_peek(text, at, &bytes), out);
            at += bytes;
            if (n_out == 0) {
                ag_rewrite_drop(p, bytes);
                continue;
            }
            int gone = 0;
            while (at < n && map(rule, ag_utf8_peek(text, at, &bytes), skipped) == 0) at += bytes, gone++;
            for (size_t k = 0; k < n_out; k++) ag_rewrite_put(p, out[k], k > 0 ? 1 : -gone);
        }
        ag_rewrite_piece_end(p);
    }
    ag_rewrite_end(p);
}

static size_t map_lower(const ag_norm_rule *rule, uint32_t c, uint32_t out[32])
{
    (void)rule;
    return ag_unicode_lower(c, out);
}

static size_t map_no_marks(const ag_norm_rule *rule, uint32_t c, uint32_t out[32])
{
    unsigned flag = rule->kind == AG_NORM_BERT ? AG_CHAR_BERT_MARK : AG_CHAR_MARK;
    return out[0] = c, !(ag_unicode_kinds()[c] & flag);
}

static size_t map_nmt(const ag_norm_rule *rule, uint32_t c, uint32_t out[32])
{
    (void)rule;
    bool space = c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 ||
                 c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
    bool control = (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
    return out[0] = space ? ' ' : c, !control;
}

static size_t map_clean(const ag_norm_rule *rule, uint32_t c, uint32_t out[32])
{
    (void)rule;
    unsigned kind = ag_unicode_kinds()[c];
    out[0] = kind & AG_CHAR_SPACE ? ' ' : c;
    return c != 0 && c != 0xfffd && (c == '\t' || c == '\n' || c == '\r' || !(kind & AG_CHAR_BERT_CONTROL));
}

static bool is_cjk(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

static size_t map_chinese(const ag_norm_rule *rule, uint32_t c, uint32_t out[32])
{
    (void)rule;
    if (!is_cjk(c)) return out[0] = c, 1;
    return out[0] = ' ', out[1] = c, out[2] = ' ', 3;
}

/* ---- normal forms ---------------------------------------------------------------------------------------------- */
typedef struct {
    uint32_t c;
    int change;
    unsigned class;
} norm_char;

typedef struct {
    norm_char *chars;
    size_t n, room;
} norm_buffer;

static void push_char(norm_buffer *b, norm_char c)
{
    if (b->n == b->room) {
        b->room = b->room ? b->room * 2 : 256;
        b->chars = realloc(b->chars, b->room * sizeof *b->chars);
        if (!b->chars) ag_out_of_memory(b->room * sizeof *b->chars);
    }
    b->chars[b->n++] = c;
}

static int by_class(const void *a, const void *b)
{
    const norm_char *x = a, *y = b;
    return x->class != y->class ? (x->class < y->class ? -1 : 1) : 0;
}

/* Marks between two starters, in the order of their classes. Short runs by insertion; a text of nothing but marks by merge
 * sort (glibc's qsort is one, and stable, only where memory allows; so positions are made part of the key). */
static void order_marks(norm_char *run, size_t n)
{
    if (n > 32) {
        for (size_t i = 0; i < n; i++) run[i].class = run[i].class << 23 | (unsigned)(i & 0x7fffff);
        qsort(run, n, sizeof *run, by_class);
        for (size_t i = 0; i < n; i++) run[i].class >>= 23;
        return;
    }
    for (size_t i = 1; i < n; i++) {
        norm_char moved = run[i];
        size_t k = i;
        for (; k > 0 && run[k - 1].class > moved.class; k--) run[k] = run[k - 1];
        run[k] = moved;
    }
}

static void decompose(norm_buffer *b, const unsigned char *text, size_t n, bool compat)
{
    size_t bytes, marks = 0; /* b->chars[marks …] are marks not yet in order */
    uint32_t parts[32];
    for (size_t at = 0; at < n; at += bytes) {
        size_t n_parts = ag_unicode_decompose(ag_utf8_peek(text, at, &bytes), compat, parts);
        for (size_t k = 0; k < n_parts; k++) {
            norm_char c = {parts[k], k > 0, ag_unicode_combining_class(parts[k])};
            if (c.class == 0) {
                if (b->n > marks) order_marks(b->chars + marks, b->n - marks);
                marks = b->n + 1;
            }
            push_char(b, c);
        }
    }
    if (b->n > marks) order_marks(b->chars + marks, b->n - marks);
}

/* In place. A composed character's change is that of its parts, less one for each character that went into it. */
static void compose(norm_buffer *b)
{
    size_t out = 0, starter = SIZE_MAX;
    int last_class = -1; /* of what lies between the starter and here; -1: nothing */
    for (size_t i = 0; i < b->n; i++) {
        norm_char c = b->chars[i];
        bool blocked = last_class >= 0 && (unsigned)last_class >= c.class;
        uint32_t whole = starter != SIZE_MAX && !blocked ? ag_unicode_compose(b->chars[starter].c, c.c) : 0;
        if (whole) {
            b->chars[starter].c = whole;
            b->chars[starter].change += c.change - 1;
            continue;
        }
        if (c.class == 0)
            starter = out, last_class = -1;
        else if (starter != SIZE_MAX)
            last_class = (int)c.class;
        b->chars[out++] = c;
    }
    b->n = out;
}

static void form_pass(ag_pieces *p, bool compat, bool composed)
{
    norm_buffer b = {0};
    ag_rewrite_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        if (!ag_rewrite_piece(p, i)) continue;
        const unsigned char *text = ag_piece_text(p, p->source);
        size_t n = p->source->end - p->source->start;
        if (composed && !compat && ag_nfc_surely(text, n)) {
            ag_rewrite_keep(p, n);
        } else {
            b.n = 0;
            decompose(&b, text, n, compat);
            if (composed) compose(&b);
            for (size_t k = 0; k < b.n; k++) ag_rewrite_put(p, b.chars[k].c, b.chars[k].change);
        }
        ag_rewrite_piece_end(p);
    }
    ag_rewrite_end(p);
    free(b.chars);
}

/* ---- other passes ---------------------------------------------------------------------------------------------- */
static void strip_pass(const ag_norm_rule *rule, ag_pieces *p)
{
    const uint16_t *kinds = ag_unicode_kinds();
    ag_rewrite_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        if (!ag_rewrite_piece(p, i)) continue;
        const unsigned char *text = ag_piece_text(p, p->source);
        size_t n = p->source->end - p->source->start, start = 0, end = n, bytes;
        while (rule->left && start < n && kinds[ag_utf8_peek(text, start, &bytes)] & AG_CHAR_SPACE) start += bytes;
        while (rule->right && end > start && kinds[ag_utf8_before(text, end, &bytes)] & AG_CHAR_SPACE) end -= bytes;
        ag_rewrite_drop(p, start);
        ag_rewrite_keep(p, end - start);
        ag_rewrite_piece_end(p);
    }
    ag_rewrite_end(p);
}

static void put_text(ag_pieces *p, const char *text, size_t n, int first_change)
{
    size_t bytes;
    for (size_t at = 0; at < n; at += bytes) {
        uint32_t c = ag_utf8_peek((const unsigned char *)text, at, &bytes);
        ag_rewrite_put(p, c, at == 0 ? first_change : 1);
    }
}

void ag_prepend(ag_pieces *p, const char *text, size_t n, bool even_if_there, bool at_start_only)
{
    ag_rewrite_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        if (!ag_rewrite_piece(p, i)) continue;
        const unsigned char *old = ag_piece_text(p, p->source);
        size_t n_old = p->source->end - p->source->start, bytes;
        bool there = !even_if_there && n_old >= n && memcmp(old, text, n) == 0;
        if (n > 0 && n_old > 0 && !there && (!at_start_only || p->source->origin == 0)) {
            uint32_t first = ag_utf8_peek(old, 0, &bytes);
            put_text(p, text, n, 0);
            ag_rewrite_put(p, first, 1);
            ag_rewrite_keep(p, n_old - bytes);
        } else {
            ag_rewrite_keep(p, n_old);
        }
        ag_rewrite_piece_end(p);
    }
    ag_rewrite_end(p);
}

ag_status ag_replace(ag_pieces *p, const ag_pattern *pattern, const char *text, size_t n, ag_err *err)
{
    ag_rewrite_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        if (!ag_rewrite_piece(p, i)) continue;
        size_t n_old = p->source->end - p->source->start;
        AG_TRY(ag_pattern_find(pattern, ag_piece_text(p, p->source), n_old, false, p, err));
        for (size_t k = 0; k < p->n_spans; k++) {
            size_t n_span = p->spans[k].end - p->spans[k].start;
            if (p->spans[k].match) {
                ag_rewrite_drop(p, n_span);
                put_text(p, text, n, 1);
            } else {
                ag_rewrite_keep(p, n_span);
            }
        }
        ag_rewrite_piece_end(p);
    }
    ag_rewrite_end(p);
    return AG_OK;
}

static void bert_passes(const ag_norm_rule *rule, ag_pieces *p)
{
    if (rule->clean_text) map_pass(rule, p, map_clean);
    if (rule->chinese) map_pass(rule, p, map_chinese);
    if (rule->strip_accents) {
        form_pass(p, false, false);
        map_pass(rule, p, map_no_marks);
    }
    if (rule->lowercase) map_pass(rule, p, map_lower);
}

ag_status ag_normalizer_apply(const ag_normalizer *z, ag_pieces *p, ag_err *err)
{
    for (size_t i = 0; i < z->n; i++) {
        const ag_norm_rule *rule = &z->rules[i];
        switch (rule->kind) {
        case AG_NORM_NFC: form_pass(p, false, true); break;
        case AG_NORM_NFD: form_pass(p, false, false); break;
        case AG_NORM_NFKC: form_pass(p, true, true); break;
        case AG_NORM_NFKD: form_pass(p, true, false); break;
        case AG_NORM_LOWERCASE: map_pass(rule, p, map_lower); break;
        case AG_NORM_STRIP: strip_pass(rule, p); break;
        case AG_NORM_STRIP_ACCENTS: map_pass(rule, p, map_no_marks); break;
        case AG_NORM_PREPEND: ag_prepend(p, rule->text, rule->n_text, true, false); break;
        case AG_NORM_REPLACE: AG_TRY(ag_replace(p, &rule->pattern, rule->text, rule->n_text, err)); break;
        case AG_NORM_BERT: bert_passes(rule, p); break;
        case AG_NORM_NMT: map_pass(rule, p, map_nmt); break;
        case AG_NORM_PRECOMPILED: ag_charsmap_apply(rule->charsmap, p); break;
        case AG_NORM_BYTE_LEVEL: ag_byte_level_map(p); break;
        }
    }
    return AG_OK;
}
