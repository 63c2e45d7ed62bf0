/* What is added to an embedding's rows: a LoRA pair, noise. One form for all levels; both are bound by memory. */
#include "ops/embed/embed.h"

#include "ops/backend.h"
#include "ops/lora/dropout_hash.h"
#include "ops/profile.h"

/* Numbers that a thread takes at a time. */
enum { NUMBERS = 4096 };

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static ag_status check(const ag_embed_lora_args *a, ag_err *err)
{
    const int64_t T = a->x.dim[0], C = a->x.dim[1], R = a->a.dim[0], V = a->a.dim[1];
    if (!ag_tensor_is(a->x, AG_F32, 2, T, C) || !ag_tensor_is(a->ids, AG_I32, 1, T, 0) || !ag_tensor_is(a->a, AG_F32, 2, R, V) ||
        !ag_tensor_is(a->b, AG_F32, 2, C, R))
        return ag_fail(err, AG_E_SHAPE, "embed: the LoRA pair does not fit x");
    for (int64_t t = 0; t < T; t++) AG_ASSERT(((const int32_t *)a->ids.data)[t] >= 0 && ((const int32_t *)a->ids.data)[t] < V);
    return AG_OK;
}

ag_status ag_embed_lora_fwd(const ag_backend *be, const ag_embed_lora_args *a, ag_err *err)
{
    AG_TRY(check(a, err));
    const int64_t T = a->x.dim[0], C = a->x.dim[1], R = a->a.dim[0], V = a->a.dim[1];
    const float *lora_a = a->a.data, *b = a->b.data;
    AG_PROFILE(be, AG_PROFILE_EMBED_LORA_FWD, 2.0 * (double)T * (double)R * (double)C, 4.0 * (double)(T * R + C * R + 2 * T * C));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t t = 0; t < T; t++) {
        float *x = (float *)a->x.data + t * C;
        const float *column = lora_a + ((const int32_t *)a->ids.data)[t];
        for (int64_t c = 0; c < C; c++) {
            float sum = 0;
            for (int64_t r = 0; r < R; r++) sum += column[r * V] * b[c * R + r];
            x[c] += a->scale * sum;
        }
    }
    return AG_OK;
}

size_t ag_embed_lora_scratch_bytes(int64_t T, int64_t R) { return (size_t)(T * R) * sizeof(float); }

ag_status ag_embed_lora_bwd(const ag_backend *be, const ag_embed_lora_args *a, ag_err *err)
{
    AG_TRY(check(a, err));
    const int64_t T = a->x.dim[0], C = a->x.dim[1], R = a->a.dim[0], V = a->a.dim[1];
    if (!ag_tensor_is(a->da, AG_F32, 2, R, V) || !ag_tensor_is(a->db, AG_F32, 2, C, R))
        return ag_fail(err, AG_E_SHAPE, "embed: the gradients do not fit the LoRA pair");
    AG_ASSERT(ag_embed_lora_scratch_bytes(T, R) <= be->scratch.bytes);
    const float *lora_a = a->a.data, *b = a->b.data, *dx = a->x.data;
    const int32_t *ids = a->ids.data;
    AG_PROFILE(be, AG_PROFILE_EMBED_LORA_BWD, 4.0 * (double)T * (double)R * (double)C, 4.0 * (double)(3 * T * R + 2 * C * R + T * C));
    float *of_tokens = be->scratch.data, *da = a->da.data, *db = a->db.data;
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t t = 0; t < T; t++)
        for (int64_t r = 0; r < R; r++) {
            double sum = 0;
            for (int64_t c = 0; c < C; c++) sum += (double)dx[t * C + c] * (double)b[c * R + r];
            of_tokens[t * R + r] = (float)((double)a->scale * sum);
        }
    for (int64_t t = 0; t < T; t++) /* in order: a token may stand several times */
        for (int64_t r = 0; r < R; r++) da[r * V + ids[t]] += of_tokens[t * R + r];
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t c = 0; c < C; c++)
        for (int64_t r = 0; r < R; r++) {
            double sum = 0;
            for (int64_t t = 0; t < T; t++) sum += (double)dx[t * C + c] * (double)lora_a[r * V + ids[t]];
            db[c * R + r] += (float)((double)a->scale * sum);
        }
    return AG_OK;
}

ag_status ag_embed_noise(const ag_backend *be, ag_tensor x, float magnitude, uint64_t key, uint64_t site, ag_err *err)
{
    const int64_t T = x.dim[0], C = x.dim[1];
    if (!ag_tensor_is(x, AG_F32, 2, T, C)) return ag_fail(err, AG_E_SHAPE, "embed: x must be [T,C] f32");
    const dropout_plan plan = {.key = key, .site = site};
    AG_PROFILE(be, AG_PROFILE_EMBED_NOISE, 2.0 * (double)(T * C), 8.0 * (double)(T * C));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t i0 = 0; i0 < T * C; i0 += NUMBERS)
        for (int64_t i = i0; i < min64(i0 + NUMBERS, T * C); i++) {
            const uint64_t words = dropout_key_words(&plan, (uint32_t)((uint64_t)i >> 32));
            const uint32_t bits = dropout_mix((uint32_t)i, words) >> 8; /* 24, as many as a float has */
            ((float *)x.data)[i] += magnitude * ((float)bits * 0x1p-23f - 1);
        }
    return AG_OK;
}
