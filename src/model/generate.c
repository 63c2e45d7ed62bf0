#include "model/generate.h"

#include "base/clock.h"
#include "model/decoder_internal.h"

#include <stdlib.h>
#include <string.h>

static bool ends(const ag_description *d, int32_t id)
{
    for (int i = 0; i < d->n_eos_ids; i++)
        if (d->eos_ids[i] == id) return true;
    return false;
}

static ag_status prefill(ag_decoder *dec, ag_kv_cache *cache, const int32_t *ids, int64_t n, float *logits, ag_err *err)
{
    for (int64_t at = 0; at < n;) {
        const int64_t chunk = n - at < dec->o.max_tokens ? n - at : dec->o.max_tokens;
        const bool is_last = at + chunk == n;
        AG_TRY(ag_decoder_infer(dec, cache, &(ag_decoder_run){.slot = 0, .n_new = chunk}, 1, ids + at, is_last ? logits : NULL,
                                err));
        at += chunk;
    }
    return AG_OK;
}

/* Whether a sequence of `length` would rotate what is in the cache otherwise than it was. Dynamic scaling keeps old keys as
 * they are. */
static bool is_stale(const ag_description *d, const ag_kv_cache *cache, int64_t length)
{
    return d->rope_kind == AG_ROPE_LONGROPE && ag_rope_age(d, length) != ag_kv_cache_age(cache, d, 0, 0);
}

typedef struct {
    float *logits;
    int32_t *seen; /* prompt and answer */
    ag_chooser *chooser;
} memory;

static ag_status answer(ag_decoder *dec, ag_kv_cache *cache, memory *mem, const ag_generate_options *o, int64_t n_prompt,
                        int32_t *out, ag_generate_result *result, ag_err *err)
{
    const ag_description *d = &dec->o.model->d;
    result->finish = AG_FINISH_LENGTH;
    while (result->n_new < o->max_new_tokens) {
        const int32_t id =
            ag_sample(mem->chooser, &o->sampling, mem->logits, mem->seen, n_prompt + result->n_new, (uint64_t)result->n_new);
        if (!o->ignore_eos && ends(d, id)) {
            result->finish = AG_FINISH_STOP;
            break;
        }
        out[result->n_new] = mem->seen[n_prompt + result->n_new] = id;
        result->n_new++;
        if (o->on_token && !o->on_token(o->user, id)) {
            result->finish = AG_FINISH_CALLER;
            break;
        }
        if (result->n_new == o->max_new_tokens || ag_kv_cache_length(cache, 0) == ag_kv_cache_capacity(cache)) break;
        if (is_stale(d, cache, ag_kv_cache_length(cache, 0) + 1)) { /* transformers starts over there, too */
            ag_kv_cache_truncate(cache, 0, 0);
            ag_kv_cache_expect(cache, 0, n_prompt + result->n_new);
            AG_TRY(prefill(dec, cache, mem->seen, n_prompt + result->n_new, mem->logits, err));
        } else {
            AG_TRY(ag_decoder_infer(dec, cache, &(ag_decoder_run){.slot = 0, .n_new = 1}, 1, &id, mem->logits, err));
        }
    }
    return AG_OK;
}

ag_status ag_generate(ag_decoder *dec, ag_kv_cache *cache, const int32_t *prompt, int64_t n_prompt, int64_t n_cached,
                      const ag_generate_options *o, int32_t *out, ag_generate_result *result, ag_err *err)
{
    AG_ASSERT(n_cached >= 0 && n_cached <= ag_kv_cache_length(cache, 0));
    AG_TRY(ag_sampling_check(&o->sampling, err));
    const ag_description *d = &dec->o.model->d;
    *result = (ag_generate_result){.n_prompt = n_prompt};
    if (n_prompt < 1) return ag_fail(err, AG_E_DATA, "the prompt has no token; give a text");
    if (n_prompt + 1 > ag_kv_cache_capacity(cache))
        return ag_fail(err, AG_E_DATA,
                       "the prompt has %lld tokens, the context has room for %lld and one new; shorten the prompt "
                       "or ask for a longer context",
                       (long long)n_prompt, (long long)ag_kv_cache_capacity(cache) - 1);
    if (n_cached == n_prompt) n_cached--; /* the last token's logits are wanted again */
    if (is_stale(d, cache, n_prompt)) n_cached = 0;
    ag_kv_cache_truncate(cache, 0, n_cached);
    ag_kv_cache_expect(cache, 0, n_prompt);

    memory mem = {malloc((size_t)d->V * sizeof(float)), malloc((size_t)(n_prompt + o->max_new_tokens) * sizeof(int32_t)),
                  ag_chooser_create(d->V)};
    if (!mem.logits || !mem.seen) ag_out_of_memory((size_t)d->V * sizeof(float));
    memcpy(mem.seen, prompt, (size_t)n_prompt * sizeof *prompt);

    const uint64_t start = ag_clock_ns();
    ag_status status = prefill(dec, cache, prompt + n_cached, n_prompt - n_cached, mem.logits, err);
    const uint64_t prefilled = ag_clock_ns();
    result->n_prefilled = n_prompt - n_cached;
    result->prefill_ns = prefilled - start;
    if (!status) status = answer(dec, cache, &mem, o, n_prompt, out, result, err);
    result->decode_ns = ag_clock_ns() - prefilled;

    free(mem.logits);
    free(mem.seen);
    ag_chooser_free(&mem.chooser);
    return status;
}
