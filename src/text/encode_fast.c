/* The path that nearly all text takes: byte-level BPE behind hand-written scanners. Nothing is rewritten or copied; words go
 * straight from the text to their ids, most of them through a cache. Equal to the step-by-step path, and tested so. */
#include "text/tokenizer_parts.h"
#include "text/unicode_class.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

enum { CACHE_ENTRIES = 1 << 15, CACHE_KEY = 30, CACHE_IDS = 6 };

/* One cache line. A word whose tokens do not fit is not kept. */
struct ag_cache_entry {
    uint8_t n_key, n_ids; /* n_ids 0: empty */
    unsigned char key[CACHE_KEY];
    uint8_t lengths[8];
    int32_t ids[CACHE_IDS];
};
_Static_assert(sizeof(struct ag_cache_entry) == 64, "a cache entry is one cache line");

void ag_encode_fast_free(ag_tokenizer_scratch *s)
{
    free(s->cache);
    s->cache = NULL;
}

static void begin_cache(const ag_tokenizer *t, ag_tokenizer_scratch *s)
{
    if (!s->cache) {
        s->cache = aligned_alloc(64, CACHE_ENTRIES * sizeof *s->cache);
        if (!s->cache) ag_out_of_memory(CACHE_ENTRIES * sizeof *s->cache);
        s->serial = 0;
    }
    if (s->serial == t->serial) return;
    memset(s->cache, 0, CACHE_ENTRIES * sizeof *s->cache);
    s->serial = t->serial;
}

static inline bool continues(unsigned char byte) { return (byte & 0xc0) == 0x80; }

/* Tokens may begin and end inside characters; their offsets cover whole ones. */
static void push_ids(ag_encode_run *r, size_t start, const int32_t *ids, const uint8_t *short_lengths, const uint32_t *lengths,
                     size_t n)
{
    ag_encoding *e = r->e;
    ag_encoding_reserve(e, n);
    memcpy(e->ids + e->n, ids, n * sizeof *ids);
    if (!r->offsets) {
        e->n += n;
        return;
    }
    size_t at = start;
    for (size_t k = 0; k < n; k++) {
        size_t end = at + (short_lengths ? short_lengths[k] : lengths[k]), i = e->n + k, whole_start = at, whole_end = end;
        if (!r->ascii) {
            while (continues(r->text[whole_start])) whole_start--;
            while (whole_end < r->n && continues(r->text[whole_end])) whole_end++;
        }
        e->byte_start[i] = (uint32_t)whole_start;
        e->byte_end[i] = (uint32_t)whole_end;
        e->start[i] = ag_encode_char_at(r, whole_start);
        e->end[i] = ag_encode_char_at(r, whole_end);
        e->surface[i] = 0;
        at = end;
    }
    e->n += n;
}

static bool lacks_a_byte(const ag_bpe *b, const unsigned char *word, size_t n)
{
    for (size_t i = 0; i < n && !b->all_bytes; i++)
        if (b->byte_ids[word[i]] < 0) return true;
    return false;
}

/* A word with a byte that the vocabulary lacks (SmolLM2 has no token for U+0004) goes step by step: what is dropped moves the
 * offsets of what follows, in the units of the byte-level alphabet. */
static void push_odd_word(ag_encode_run *r, size_t start, size_t end)
{
    ag_pieces *p = &r->s->pieces;
    ag_bpe_work *w = &r->s->bpe;
    ag_pieces_begin(p);
    ag_pieces_add_original(p, r->text + start, end - start, (uint32_t)start, -1);
    ag_byte_level_map(p);
    ag_bpe_word(&r->t->bpe, w, p->now.text, p->now.n);
    for (size_t k = 0, at = 0; k < w->n; at += w->lengths[k++])
        ag_encode_push(r, w->ids[k], p->now.from[at], p->now.to[at + w->lengths[k] - 1], NULL, 0);
}

static void push_word(ag_encode_run *r, size_t start, size_t end)
{
    const unsigned char *word = r->text + start;
    size_t n = end - start;
    ag_bpe_work *w = &r->s->bpe;
    if (n > CACHE_KEY) {
        if (lacks_a_byte(&r->t->bpe, word, n)) {
            push_odd_word(r, start, end);
            return;
        }
        ag_bpe_word_bytes(&r->t->bpe, w, word, n);
        push_ids(r, start, w->ids, NULL, w->lengths, w->n);
        return;
    }
    struct ag_cache_entry *entry = &r->s->cache[ag_text_hash(word, n) & (CACHE_ENTRIES - 1)];
    if (entry->n_ids && entry->n_key == n && memcmp(entry->key, word, n) == 0) {
        push_ids(r, start, entry->ids, entry->lengths, NULL, entry->n_ids);
        return;
    }
    if (lacks_a_byte(&r->t->bpe, word, n)) {
        push_odd_word(r, start, end);
        return;
    }
    ag_bpe_word_bytes(&r->t->bpe, w, word, n);
    push_ids(r, start, w->ids, NULL, w->lengths, w->n);
    if (w->n > CACHE_IDS) return;
    entry->n_key = (uint8_t)n;
    entry->n_ids = (uint8_t)w->n;
    memcpy(entry->key, word, n);
    memcpy(entry->ids, w->ids, w->n * sizeof *w->ids);
    for (size_t k = 0; k < w->n; k++) entry->lengths[k] = (uint8_t)w->lengths[k];
}

/* Digits as the pre-tokenizer of that name sees them: each for itself, or a run. */
static bool next_digits(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, bool contiguous, size_t *start,
                        size_t *end)
{
    size_t bytes;
    while (at < n && !(kinds[ag_utf8_peek(text, at, &bytes)] & AG_CHAR_NUMERIC)) at += bytes;
    if (at >= n) return false;
    *start = at;
    ag_utf8_peek(text, at, &bytes);
    at += bytes;
    while (contiguous && at < n && kinds[ag_utf8_peek(text, at, &bytes)] & AG_CHAR_NUMERIC) at += bytes;
    *end = at;
    return true;
}

/* Cuts text[start, end) by scanner `level`, and what comes out by the next. */
static void cut(ag_encode_run *r, const uint16_t *kinds, size_t level, size_t start, size_t end)
{
    if (level == r->t->n_scanners) {
        push_word(r, start, end);
        return;
    }
    const unsigned char *text = r->text + start;
    ag_split_scanner *scan = r->t->scanners[level].scan;
    size_t n = end - start, done = 0, from, to;
    while (scan ? scan(kinds, text, n, done, &from, &to)
                : next_digits(kinds, text, n, done, r->t->scanners[level].contiguous, &from, &to)) {
        if (from > done) cut(r, kinds, level + 1, start + done, start + from);
        cut(r, kinds, level + 1, start + from, start + to);
        done = to;
    }
    if (n > done) cut(r, kinds, level + 1, start + done, end);
}

void ag_encode_fast(ag_encode_run *r, size_t start, size_t end)
{
    begin_cache(r->t, r->s);
    if (start < end) cut(r, ag_unicode_kinds(), 0, start, end);
}
