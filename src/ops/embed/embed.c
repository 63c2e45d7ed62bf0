#include "ops/embed/embed.h"

#include "ops/backend.h"
#include "ops/profile.h"

/* Tokens a thread takes at a time. */
enum { TOKENS_PER_BLOCK = 8 };

void ag_embed_use(ag_embed_slots *slots, ag_cpu_level level)
{
    (void)level; /* a gather of a few rows waits for memory at any level */
    slots->fwd = ag_embed_fwd_ref;
}

ag_status ag_embed(const ag_backend *be, const ag_embed_args *a, ag_err *err)
{
    const int64_t T = a->ids.dim[0], V = a->w->N, C = a->w->K;
    if (!ag_tensor_is(a->ids, AG_I32, 1, T, 0)) return ag_fail(err, AG_E_SHAPE, "embed: ids must be a [T] vector of i32");
    if (!ag_tensor_is(a->x, AG_F32, 2, T, C))
        return ag_fail(err, AG_E_SHAPE, "embed: x must be [%lld,%lld] f32, the number of ids by the width of the table",
                       (long long)T, (long long)C);
    const int32_t *ids = a->ids.data;
    for (int64_t t = 0; t < T; t++)
        if (ids[t] < 0 || ids[t] >= V)
            return ag_fail(err, AG_E_DATA, "token %lld has the id %d, but the model's vocabulary has the ids 0 to %lld",
                           (long long)t, (int)ids[t], (long long)V - 1);
    AG_PROFILE(be, AG_PROFILE_EMBED, 0, (double)T * ((double)ag_weight_bytes(a->w) / (double)V + 4.0 * (double)C));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t t = 0; t < T; t += TOKENS_PER_BLOCK) be->embed.fwd(a, t, t + TOKENS_PER_BLOCK < T ? t + TOKENS_PER_BLOCK : T);
    return AG_OK;
}
