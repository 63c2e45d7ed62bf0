#include "text/bpe.h"

#include "base/arena.h"
#include "base/str.h"
#include "text/normalizer.h"
#include "text/unicode_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_WORD = 40 };

struct ag_bpe_entry {
    uint32_t rank, at;
    int32_t id;
};

/* ---- the model ------------------------------------------------------------------------------------------------- */
void ag_bpe_init(ag_bpe *b, const ag_token_vocab *vocab)
{
    *b = (ag_bpe){.vocab = vocab, .unk_id = -1, .all_bytes = true};
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned char text[8];
        char code[8];
        size_t n = ag_utf8_put(text, ag_byte_level_char((unsigned char)byte));
        b->byte_ids[byte] = ag_token_vocab_find(vocab, (const char *)text, n);
        b->all_bytes &= b->byte_ids[byte] >= 0;
        n = (size_t)snprintf(code, sizeof code, "<0x%02X>", byte);
        b->fallback_ids[byte] = ag_token_vocab_find(vocab, code, n);
    }
}

static inline size_t slot_of(const ag_bpe *b, uint64_t pair) { return (pair * 0x9e3779b97f4a7c15u) >> b->shift; }

static inline const ag_merge *find_merge(const ag_bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if (b->n_slots == 0) return NULL;
    for (size_t at = slot_of(b, pair);; at = (at + 1) & (b->n_slots - 1)) {
        if (b->slots[at].pair == pair) return &b->slots[at];
        if (b->slots[at].pair == UINT64_MAX) return NULL;
    }
}

static void place(ag_bpe *b, ag_merge merge)
{
    size_t at = slot_of(b, merge.pair);
    while (b->slots[at].pair != UINT64_MAX && b->slots[at].pair != merge.pair) at = (at + 1) & (b->n_slots - 1);
    b->slots[at] = merge;
}

static void widen(ag_bpe *b)
{
    ag_merge *old = b->slots;
    size_t n_old = b->n_slots;
    b->n_slots = n_old ? n_old * 2 : 1024;
    b->shift = 64 - __builtin_ctzll(b->n_slots);
    b->slots = malloc(b->n_slots * sizeof *b->slots);
    if (!b->slots) ag_out_of_memory(b->n_slots * sizeof *b->slots);
    for (size_t i = 0; i < b->n_slots; i++) b->slots[i].pair = UINT64_MAX;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].pair != UINT64_MAX) place(b, old[i]);
    free(old);
}

static ag_status dangling(const char *left, size_t n_left, const char *right, size_t n_right, const char *what,
                          const char *name, ag_err *err)
{
    return ag_fail(err, AG_E_FORMAT,
                   "%s: the merge of \"%.*s\" and \"%.*s\" dangles: %s is not in the vocabulary; the file is "
                   "damaged or was edited",
                   name, (int)(n_left < 60 ? n_left : 60), left, (int)(n_right < 60 ? n_right : 60), right, what);
}

ag_status ag_bpe_add_merge(ag_bpe *b, const char *left, size_t n_left, const char *right, size_t n_right, uint32_t rank,
                           const char *name, ag_err *err)
{
    int32_t a = ag_token_vocab_find(b->vocab, left, n_left), c = ag_token_vocab_find(b->vocab, right, n_right);
    if (a < 0 || c < 0) return dangling(left, n_left, right, n_right, a < 0 ? "the first" : "the second", name, err);
    size_t skip = b->prefix ? strlen(b->prefix) : 0;
    if (skip > n_right) skip = n_right;
    char stack[256], *whole = stack;
    size_t n = n_left + n_right - skip;
    if (n > sizeof stack && !(whole = malloc(n))) ag_out_of_memory(n);
    memcpy(whole, left, n_left);
    memcpy(whole + n_left, right + skip, n_right - skip);
    int32_t id = ag_token_vocab_find(b->vocab, whole, n);
    if (whole != stack) free(whole);
    if (id < 0) return dangling(left, n_left, right, n_right, "what they make", name, err);
    if (b->n_merges * 2 >= b->n_slots) widen(b);
    if (b->n_merges == b->room_pairs) {
        b->room_pairs = b->room_pairs ? b->room_pairs * 2 : 1024;
        b->pairs = realloc(b->pairs, b->room_pairs * sizeof *b->pairs);
        if (!b->pairs) ag_out_of_memory(b->room_pairs * sizeof *b->pairs);
    }
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)c;
    b->pairs[b->n_merges++] = pair;
    place(b, (ag_merge){pair, rank, id});
    return AG_OK;
}

void ag_bpe_deinit(ag_bpe *b)
{
    free(b->slots);
    free(b->pairs);
    free(b->prefix);
    free(b->suffix);
    *b = (ag_bpe){0};
}

/* ---- a word ---------------------------------------------------------------------------------------------------- */
void ag_bpe_work_free(ag_bpe_work *w)
{
    free(w->ids);
    free(w->lengths);
    free(w->ranks);
    free(w->merged);
    free(w->next);
    free(w->previous);
    free(w->heap);
    *w = (ag_bpe_work){0};
}

static void *resized(void *old, size_t n, size_t size)
{
    void *grown = realloc(old, n * size);
    if (!grown) ag_out_of_memory(n * size);
    return grown;
}

static void reserve(ag_bpe_work *w, size_t n)
{
    if (n <= w->room) return;
    size_t room = w->room ? w->room : 256;
    while (room < n) room *= 2;
    w->ids = resized(w->ids, room, sizeof *w->ids);
    w->lengths = resized(w->lengths, room, sizeof *w->lengths);
    w->ranks = resized(w->ranks, room, sizeof *w->ranks);
    w->merged = resized(w->merged, room, sizeof *w->merged);
    w->next = resized(w->next, room, sizeof *w->next);
    w->previous = resized(w->previous, room, sizeof *w->previous);
    w->room = room;
}

static inline void look_up(const ag_bpe *b, ag_bpe_work *w, size_t at, size_t next)
{
    const ag_merge *merge = find_merge(b, w->ids[at], w->ids[next]);
    w->ranks[at] = merge ? merge->rank : UINT32_MAX;
    w->merged[at] = merge ? merge->id : -1;
}

/* Short words: the arrays are so short that looking for the lowest rank and closing the gap beat any cleverer structure. */
static void merge_short(const ag_bpe *b, ag_bpe_work *w)
{
    for (size_t i = 0; i + 1 < w->n; i++) look_up(b, w, i, i + 1);
    while (w->n > 1) {
        size_t best = 0, last = w->n - 1;
        for (size_t i = 1; i < last; i++)
            if (w->ranks[i] < w->ranks[best]) best = i;
        if (w->ranks[best] == UINT32_MAX) return;
        w->ids[best] = w->merged[best];
        w->lengths[best] += w->lengths[best + 1];
        for (size_t i = best + 1; i < last; i++) {
            w->ids[i] = w->ids[i + 1];
            w->lengths[i] = w->lengths[i + 1];
            w->ranks[i] = w->ranks[i + 1];
            w->merged[i] = w->merged[i + 1];
        }
        w->n--;
        if (best > 0) look_up(b, w, best - 1, best);
        if (best + 1 < w->n) look_up(b, w, best, best + 1);
    }
}

static inline bool before(struct ag_bpe_entry a, struct ag_bpe_entry b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(ag_bpe_work *w, struct ag_bpe_entry entry)
{
    if (w->n_heap == w->room_heap) {
        w->room_heap = w->room_heap ? w->room_heap * 2 : 256;
        w->heap = resized(w->heap, w->room_heap, sizeof *w->heap);
    }
    size_t at = w->n_heap++;
    while (at > 0 && before(entry, w->heap[(at - 1) / 2])) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = entry;
}

static struct ag_bpe_entry heap_pop(ag_bpe_work *w)
{
    struct ag_bpe_entry top = w->heap[0], moved = w->heap[--w->n_heap];
    size_t at = 0, child;
    while ((child = at * 2 + 1) < w->n_heap) {
        if (child + 1 < w->n_heap && before(w->heap[child + 1], w->heap[child])) child++;
        if (!before(w->heap[child], moved)) break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = moved;
    return top;
}

static void push_pair(const ag_bpe *b, ag_bpe_work *w, size_t at)
{
    look_up(b, w, at, w->next[at]);
    if (w->ranks[at] != UINT32_MAX) heap_push(w, (struct ag_bpe_entry){w->ranks[at], (uint32_t)at, w->merged[at]});
}

/* Long words: a heap of pairs over a linked list, n log n. An entry is stale where the pair at its place has become another. */
static void merge_long(const ag_bpe *b, ag_bpe_work *w)
{
    size_t n = w->n;
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        w->next[i] = (uint32_t)(i + 1);
        w->previous[i] = i > 0 ? (uint32_t)(i - 1) : UINT32_MAX;
        w->merged[i] = -1;
    }
    for (size_t i = 0; i + 1 < n; i++) push_pair(b, w, i);
    while (w->n_heap > 0) {
        struct ag_bpe_entry top = heap_pop(w);
        size_t at = top.at;
        if (w->lengths[at] == 0 || w->next[at] >= n || w->merged[at] != top.id) continue;
        size_t right = w->next[at];
        w->ids[at] = top.id;
        w->lengths[at] += w->lengths[right];
        w->lengths[right] = 0; /* gone */
        w->next[at] = w->next[right];
        w->merged[at] = -1;
        if (w->next[at] < n) {
            w->previous[w->next[at]] = (uint32_t)at;
            push_pair(b, w, at);
        }
        if (w->previous[at] != UINT32_MAX) push_pair(b, w, w->previous[at]);
    }
    size_t out = 0;
    for (size_t i = 0; i < n; i = w->next[i]) {
        w->ids[out] = w->ids[i];
        w->lengths[out++] = w->lengths[i];
    }
    w->n = out;
}

static void merge_all(const ag_bpe *b, ag_bpe_work *w)
{
    if (w->n <= SHORT_WORD)
        merge_short(b, w);
    else
        merge_long(b, w);
}

static inline void symbol(ag_bpe_work *w, int32_t id, size_t length)
{
    w->ids[w->n] = id;
    w->lengths[w->n++] = (uint32_t)length;
}

/* The token of one character, with what the model puts around characters inside and at the end of a word. */
static int32_t char_id(const ag_bpe *b, ag_str *spelled, const unsigned char *c, size_t n, bool first, bool last)
{
    bool prefix = !first && b->prefix, suffix = last && b->suffix;
    if (!prefix && !suffix) return ag_token_vocab_find(b->vocab, (const char *)c, n);
    ag_str_clear(spelled);
    if (prefix) ag_str_add(spelled, b->prefix);
    ag_str_add_n(spelled, (const char *)c, n);
    if (suffix) ag_str_add(spelled, b->suffix);
    return ag_token_vocab_find(b->vocab, spelled->text, spelled->n);
}

/* True where all bytes have their <0x..> token; then they are added. With a prefix or suffix those bytes count as well. */
static bool fall_back(const ag_bpe *b, ag_bpe_work *w, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->fallback_ids[bytes[i]] < 0) return false;
    reserve(w, w->n + n);
    for (size_t i = 0; i < n; i++) symbol(w, b->fallback_ids[bytes[i]], 1);
    return true;
}

void ag_bpe_word(const ag_bpe *b, ag_bpe_work *w, const unsigned char *word, size_t n)
{
    w->n = 0;
    reserve(w, n + 1);
    if (b->ignore_merges) {
        int32_t id = ag_token_vocab_find(b->vocab, (const char *)word, n);
        if (id >= 0) {
            symbol(w, id, n);
            return;
        }
    }
    ag_str spelled = {0};
    size_t bytes, unknown = 0; /* bytes of an unknown token that is not yet added */
    for (size_t at = 0; at < n; at += bytes) {
        ag_utf8_peek(word, at, &bytes);
        bool last = at + bytes >= n, plain = (at == 0 || !b->prefix) && !(last && b->suffix);
        int32_t id = char_id(b, &spelled, word + at, bytes, at == 0, last);
        reserve(w, w->n + n - at + 1);
        if (id >= 0) {
            if (unknown) symbol(w, b->unk_id, unknown), unknown = 0;
            symbol(w, id, bytes);
        } else if (b->byte_fallback &&
                   fall_back(b, w, plain ? word + at : (const unsigned char *)spelled.text, plain ? bytes : spelled.n)) {
            continue; /* an unknown token before it stays open, as in the original */
        } else if (b->unk_id >= 0) {
            if (unknown && !b->fuse_unk) symbol(w, b->unk_id, unknown), unknown = 0;
            unknown += bytes;
        }
    }
    reserve(w, w->n + 1);
    if (unknown) symbol(w, b->unk_id, unknown);
    ag_str_free(&spelled);
    merge_all(b, w);
}

void ag_bpe_word_bytes(const ag_bpe *b, ag_bpe_work *w, const unsigned char *word, size_t n)
{
    w->n = 0;
    reserve(w, n + 1);
    if (b->ignore_merges) {
        unsigned char stack[512], *spelled = stack;
        size_t n_spelled = 0;
        if (n * 2 > sizeof stack && !(spelled = malloc(n * 2))) ag_out_of_memory(n * 2);
        for (size_t i = 0; i < n; i++) n_spelled += ag_utf8_put(spelled + n_spelled, ag_byte_level_char(word[i]));
        int32_t id = ag_token_vocab_find(b->vocab, (const char *)spelled, n_spelled);
        if (spelled != stack) free(spelled);
        if (id >= 0) {
            symbol(w, id, n);
            return;
        }
    }
    for (size_t i = 0; i < n; i++) symbol(w, b->byte_ids[word[i]], 1);
    merge_all(b, w);
}
