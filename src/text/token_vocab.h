/* The vocabulary of a model: texts by id, ids by text. Ids may have holes. Built once, then read by any thread. */
#ifndef AG_TOKEN_VOCAB_H
#define AG_TOKEN_VOCAB_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *blob; /* all texts, one after the other */
    size_t n_blob, room_blob;
    uint32_t *start, *length; /* by id; start UINT32_MAX where there is a hole */
    size_t n, room;           /* ids: highest + 1 */
    size_t n_tokens;          /* texts in it */
    int32_t *slots;           /* open addressing, -1 empty; a power of two */
    uint32_t *slot_hash;
    size_t n_slots;
} ag_token_vocab;

/* Ids may run ahead of the number of tokens by so much; a file that names larger ones is refused. */
enum { AG_VOCAB_MAX_HOLES = 1 << 20, AG_VOCAB_MAX_IDS = 1 << 26 };

/* AG_E_FORMAT: an id twice, a text twice, an id that is too large. `name` stands in the sentence. */
AG_MUST_USE ag_status ag_token_vocab_add(ag_token_vocab *v, const char *text, size_t n, int64_t id, const char *name,
                                         ag_err *err);
/* The same, but of two ids with one text the later is the one that is found. Unigram vocabularies have that. */
AG_MUST_USE ag_status ag_token_vocab_add_again(ag_token_vocab *v, const char *text, size_t n, int64_t id, const char *name,
                                               ag_err *err);
int32_t ag_token_vocab_find(const ag_token_vocab *v, const char *text, size_t n); /* -1: none */
void ag_token_vocab_free(ag_token_vocab *v);

static inline bool ag_token_vocab_has(const ag_token_vocab *v, int64_t id)
{
    return id >= 0 && (uint64_t)id < v->n && v->start[id] != UINT32_MAX;
}

/* A fast hash of bytes, the same on every machine. */
uint64_t ag_text_hash(const void *bytes, size_t n);

#endif
