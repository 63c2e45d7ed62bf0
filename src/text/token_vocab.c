#include "text/token_vocab.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

static void *grow(void *old, size_t n, size_t size)
{
    void *grown = realloc(old, n * size);
    if (!grown) ag_out_of_memory(n * size);
    return grown;
}

static uint64_t load64(const unsigned char *p, size_t n)
{
    uint64_t word = 0;
    memcpy(&word, p, n);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Eight bytes a step, folded by a 128-bit product (the mixing step of wyhash). */
uint64_t ag_text_hash(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t hash = 0x9e3779b97f4a7c15u ^ n;
    while (n > 8) {
        __extension__ typedef unsigned __int128 u128;
        u128 product = (u128)(hash ^ load64(p, 8)) * 0xa0761d6478bd642fu;
        hash = (uint64_t)product ^ (uint64_t)(product >> 64);
        p += 8, n -= 8;
    }
    __extension__ typedef unsigned __int128 u128;
    u128 product = (u128)(hash ^ load64(p, n)) * 0xe7037ed1a0b428dbu;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static void place(ag_token_vocab *v, uint32_t hash, int32_t id)
{
    size_t at = hash & (v->n_slots - 1);
    while (v->slots[at] >= 0) at = (at + 1) & (v->n_slots - 1);
    v->slots[at] = id;
    v->slot_hash[at] = hash;
}

static void widen(ag_token_vocab *v)
{
    int32_t *old = v->slots;
    uint32_t *old_hash = v->slot_hash;
    size_t n_old = v->n_slots;
    v->n_slots = n_old ? n_old * 2 : 1024;
    v->slots = grow(NULL, v->n_slots, sizeof *v->slots);
    v->slot_hash = grow(NULL, v->n_slots, sizeof *v->slot_hash);
    memset(v->slots, 0xff, v->n_slots * sizeof *v->slots);
    for (size_t i = 0; i < n_old; i++)
        if (old[i] >= 0) place(v, old_hash[i], old[i]);
    free(old);
    free(old_hash);
}

static int32_t find_hashed(const ag_token_vocab *v, uint32_t hash, const char *text, size_t n)
{
    if (!v->n_slots) return -1;
    for (size_t at = hash & (v->n_slots - 1); v->slots[at] >= 0; at = (at + 1) & (v->n_slots - 1)) {
        int32_t id = v->slots[at];
        if (v->slot_hash[at] == hash && v->length[id] == n && memcmp(v->blob + v->start[id], text, n) == 0) return id;
    }
    return -1;
}

int32_t ag_token_vocab_find(const ag_token_vocab *v, const char *text, size_t n)
{
    return find_hashed(v, (uint32_t)ag_text_hash(text, n), text, n);
}

static ag_status add(ag_token_vocab *v, const char *text, size_t n, int64_t id, bool again, const char *name, ag_err *err)
{
    int shown = n < 60 ? (int)n : 60;
    if (id < 0 || id >= AG_VOCAB_MAX_IDS || (uint64_t)id > v->n_tokens * 8 + AG_VOCAB_MAX_HOLES)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: token \"%.*s\" has the id %lld, which is out of all proportion to the %zu tokens before "
                       "it; the file is damaged",
                       name, shown, text, (long long)id, v->n_tokens);
    if (ag_token_vocab_has(v, id))
        return ag_fail(err, AG_E_FORMAT, "%s: tokens \"%.*s\" and \"%.*s\" have the same id %lld; each needs its own", name,
                       (int)(v->length[id] < 60 ? v->length[id] : 60), v->blob + v->start[id], shown, text, (long long)id);
    uint32_t hash = (uint32_t)ag_text_hash(text, n);
    int32_t same = find_hashed(v, hash, text, n);
    if (same >= 0 && !again)
        return ag_fail(err, AG_E_FORMAT, "%s: token \"%.*s\" stands twice in the vocabulary, as id %d and as id %lld", name,
                       shown, text, (int)same, (long long)id);
    if (n >= UINT32_MAX || v->n_blob >= UINT32_MAX - n)
        return ag_fail(err, AG_E_FORMAT, "%s: the texts of the vocabulary take more than 4 GiB", name);

    if ((size_t)id >= v->room) {
        size_t room = v->room ? v->room : 1024;
        while (room <= (size_t)id) room *= 2;
        v->start = grow(v->start, room, sizeof *v->start);
        v->length = grow(v->length, room, sizeof *v->length);
        v->room = room;
    }
    for (; v->n <= (size_t)id; v->n++) v->start[v->n] = UINT32_MAX, v->length[v->n] = 0;
    if (v->n_blob + n > v->room_blob) {
        v->room_blob = (v->n_blob + n) * 2 + 4096;
        v->blob = grow(v->blob, v->room_blob, 1);
    }
    v->start[id] = (uint32_t)v->n_blob;
    v->length[id] = (uint32_t)n;
    if (n) memcpy(v->blob + v->n_blob, text, n);
    v->n_blob += n;
    v->n_tokens++;
    if (v->n_tokens * 2 > v->n_slots) widen(v);
    if (same < 0) {
        place(v, hash, (int32_t)id);
        return AG_OK;
    }
    size_t at = hash & (v->n_slots - 1);
    while (v->slots[at] != same) at = (at + 1) & (v->n_slots - 1);
    v->slots[at] = (int32_t)id;
    return AG_OK;
}

ag_status ag_token_vocab_add(ag_token_vocab *v, const char *text, size_t n, int64_t id, const char *name, ag_err *err)
{
    return add(v, text, n, id, false, name, err);
}

ag_status ag_token_vocab_add_again(ag_token_vocab *v, const char *text, size_t n, int64_t id, const char *name, ag_err *err)
{
    return add(v, text, n, id, true, name, err);
}

void ag_token_vocab_free(ag_token_vocab *v)
{
    free(v->blob);
    free(v->start);
    free(v->length);
    free(v->slots);
    free(v->slot_hash);
    *v = (ag_token_vocab){0};
}
