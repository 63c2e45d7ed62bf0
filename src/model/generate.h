/* One answer from one prompt: prefill in chunks, then token after token until an id that ends it, a limit, or the caller's word.
 * Knows ids only; text, stop words and streaming are the caller's, through on_token. */
#ifndef AG_GENERATE_H
#define AG_GENERATE_H

#include "model/decoder.h"
#include "model/sampling.h"

/* Rows of a decoder for generation. Prompts are computed in chunks of the decoder's max_tokens, and with few rows and with many sums
 * have different last bits, so whoever wants the same bits makes the decoder with the same number (or the context's, if less). */
enum { AG_PREFILL_ROWS = 512 };

typedef enum { AG_FINISH_STOP, AG_FINISH_LENGTH, AG_FINISH_CALLER } ag_finish; /* an end id · a limit · on_token said so */

typedef struct {
    ag_sampling sampling;
    int64_t max_new_tokens;
    bool ignore_eos;
    /* Called with each new id (not with the id that ends the answer); false ends the answer. May be NULL. */
    bool (*on_token)(void *user, int32_t id);
    void *user;
} ag_generate_options;

typedef struct {
    ag_finish finish;
    int64_t n_prompt, n_prefilled; /* ids of the prompt; of those, the ones that the cache did not hold yet */
    int64_t n_new;
    uint64_t prefill_ns, decode_ns;
} ag_generate_result;

/* Answers prompt[0..n_prompt) in slot 0 of the cache, of which `n_cached` leading ids are in there already (a conversation going
 * on). New ids go to out[0..n_new), room for max_new_tokens. AG_E_DATA where prompt and one new token do not fit the cache. */
AG_MUST_USE ag_status ag_generate(ag_decoder *dec, ag_kv_cache *cache, const int32_t *prompt, int64_t n_prompt, int64_t n_cached,
                                  const ag_generate_options *options, int32_t *out, ag_generate_result *result, ag_err *err);

#endif
