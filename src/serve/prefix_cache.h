/* Which conversations the cache of keys and values holds, and what of them a new prompt may use.
 *
 * Last bits depend on how a token was computed: many rows at once (a prompt) or few (an answer, token by token), and where its block
 * of queries began. So that an answer does not depend on what happened to be there, only tokens are handed on that a prompt's chunk
 * computed, in whole blocks (ag_decoder_granule), and a new prompt is cut where ag_generate's own chunks allow a cut. The answer's
 * tokens are computed again as part of the next turn's prompt, or before, while nobody waits (ag_prefix_polish_piece). */
#ifndef AG_PREFIX_CACHE_H
#define AG_PREFIX_CACHE_H

#include "model/decoder.h"

typedef struct {
    int adapter;
    int32_t *ids;     /* [context] of prompt and answer */
    int64_t n_ids;    /* known ids */
    int64_t n_exact;  /* of those, leading ones that another prompt may use */
    uint64_t used;    /* when last; 0: never */
    bool busy;
} ag_prefix_slot;

typedef struct {
    ag_prefix_slot *slots;
    int64_t n_slots, context, granule, chunk;
    uint64_t clock;
    ag_kv_cache *cache; /* borrowed */
} ag_prefix_cache;

void ag_prefix_cache_init(ag_prefix_cache *c, ag_kv_cache *cache, int64_t n_slots, int64_t context, int64_t granule, int64_t chunk);
void ag_prefix_cache_deinit(ag_prefix_cache *c);

/* The largest position <= limit at which computing a prompt of n tokens may begin. */
int64_t ag_prefix_cut(const ag_prefix_cache *c, int64_t n, int64_t limit);
/* Of a prompt of n tokens that was computed to its end: how many tokens may be handed on. */
int64_t ag_prefix_exact(const ag_prefix_cache *c, int64_t n);
/* Where the piece that begins at `at` ends, when at most `room` rows are free: a cut, the chunk's end or n; `at`: no piece fits. */
int64_t ag_prefix_piece_end(const ag_prefix_cache *c, int64_t n, int64_t at, int64_t room);

/* A slot for a prompt: marked busy, its cache holding the *n_reused leading tokens that need no computing, ids filled with the prompt.
 * There is always one while fewer are busy than there are slots. */
int64_t ag_prefix_cache_take(ag_prefix_cache *c, int adapter, const int32_t *prompt, int64_t n, int64_t *n_reused);
/* Tokens of the prompt that a busy slot will have when its own prompt is computed and no slot has now: > 0 means waiting pays. */
int64_t ag_prefix_cache_coming(const ag_prefix_cache *c, int adapter, const int32_t *prompt, int64_t n);
/* The slot's conversation has ended with n_ids ids known. */
void ag_prefix_cache_give_back(ag_prefix_cache *c, int64_t slot, int64_t n_ids);
/* A free slot whose known ids could be handed on further, the newest first, and the piece to compute for it; false: none. */
bool ag_prefix_cache_unpolished(const ag_prefix_cache *c, int64_t rows, int64_t *slot, int64_t *from, int64_t *to);

#endif
