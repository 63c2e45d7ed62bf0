/* One form for all levels: the product B·A goes through the linear op, the rest is bound by memory. */
#include "ops/dora/dora.h"

#include "base/arena.h"
#include "ops/backend.h"
#include "ops/linear/linear.h"
#include "ops/profile.h"

#include <math.h>

/* Rows of B·A at a time; columns that a thread takes at a time. */
enum { ROWS = 256, COLUMNS = 64 };

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static ag_status misfit(const char *name, ag_err *err)
{
    return ag_fail(err, AG_E_SHAPE, "dora: %s does not fit the other tensors", name);
}

/* ---- lengths ------------------------------------------------------------------------------------------------------------ */
typedef struct {
    float *a_turned, *delta, *rows; /* [K,R], [ROWS,K], [ROWS,K] */
    size_t rest;                    /* where the linear op's own scratch begins */
} room;

static room place(ag_layout *layout, int64_t K, int64_t N, int64_t R)
{
    const size_t block = (size_t)(min64(ROWS, N) * K) * sizeof(float);
    room r = {.a_turned = ag_layout_place(layout, (size_t)(K * R) * sizeof(float))};
    r.delta = ag_layout_place(layout, block);
    r.rows = ag_layout_place(layout, block);
    r.rest = layout->bytes;
    return r;
}

size_t ag_dora_scratch_bytes(const ag_backend *be, int64_t K, int64_t N, int64_t R)
{
    ag_layout layout = {0};
    place(&layout, K, N, R);
    ag_layout_place(&layout, ag_linear_scratch_bytes(be, min64(ROWS, N), R, K));
    return layout.bytes;
}

static double length_of_sum(float *w_row, const ag_weight *w, int64_t n, const float *delta, float scale)
{
    double sum = 0;
    ag_weight_row(w_row, w, n, 0, w->K);
    for (int64_t k = 0; k < w->K; k++) {
        const double x = (double)(w_row[k] + scale * delta[k]);
        sum += x * x;
    }
    return sqrt(sum);
}

ag_status ag_dora_gain(const ag_backend *be, const ag_dora_gain_args *a, ag_err *err)
{
    const int64_t N = a->w->N, K = a->w->K, R = a->a.dim[0];
    if (!ag_tensor_is(a->a, AG_F32, 2, R, K)) return misfit("a", err);
    if (!ag_tensor_is(a->b, AG_F32, 2, N, R)) return misfit("b", err);
    if (!ag_tensor_is(a->norm, AG_F32, 1, N, 0)) return misfit("norm", err);
    if (a->gain.data && (!ag_tensor_is(a->gain, AG_F32, 1, N, 0) || !ag_tensor_is(a->magnitude, AG_F32, 1, N, 0)))
        return misfit("gain", err);
    ag_layout layout = {.base = be->scratch.data};
    const room r = place(&layout, K, N, R);
    AG_ASSERT(ag_dora_scratch_bytes(be, K, N, R) <= be->scratch.bytes);
    ag_backend inner = *be;
    inner.scratch.data = (char *)be->scratch.data + r.rest;
    inner.scratch.bytes = be->scratch.bytes - r.rest;

    AG_PROFILE(be, AG_PROFILE_DORA_GAIN, 2.0 * (double)N * (double)K * (double)(R + 1), (double)ag_weight_bytes(a->w) + 4.0 * (double)(R * (K + N) + 3 * N));
    const float *lora_a = a->a.data;
    float *b = a->b.data, *norm = a->norm.data;
    for (int64_t i = 0; i < R; i++)
        for (int64_t k = 0; k < K; k++) r.a_turned[k * R + i] = lora_a[i * K + k];
    const ag_weight turned = {.type = AG_W_F32, .N = K, .K = R, .data = r.a_turned};
    for (int64_t n0 = 0; n0 < N; n0 += ROWS) {
        const int64_t n1 = min64(n0 + ROWS, N);
        AG_TRY(ag_linear_fwd(&inner, &(ag_linear_fwd_args){
            .y = {ag_mat_f32(r.delta, n1 - n0, K)}, .w = {&turned}, .n = 1, .scale = 1, .x = ag_mat_f32(b + n0 * R, n1 - n0, R),
            .compute = AG_COMPUTE_F32}, err));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
        for (int64_t n = n0; n < n1; n++)
            norm[n] = (float)length_of_sum(r.rows + (n - n0) * K, a->w, n, r.delta + (n - n0) * K, a->scale);
    }
    for (int64_t n = 0; n < N; n++) {
        if (!(isfinite(norm[n]) && norm[n] > 0))
            return ag_fail(err, AG_E_NUMERIC, "row %lld of a weight with its DoRA pair has the length %g; it cannot be scaled to its magnitude",
                           (long long)n, (double)norm[n]);
        if (a->gain.data) ((float *)a->gain.data)[n] = ((const float *)a->magnitude.data)[n] / norm[n];
    }
    return AG_OK;
}

/* ---- forward and backward ------------------------------------------------------------------------------------------------- */
ag_status ag_dora_fwd(const ag_backend *be, const ag_dora_fwd_args *a, ag_err *err)
{
    const int64_t T = a->z.dim[0], N = a->z.dim[1];
    if (!ag_tensor_is(a->z, AG_F32, 2, T, N)) return misfit("z", err);
    if (!ag_tensor_is(a->y, AG_F32, 2, T, N)) return misfit("y", err);
    AG_PROFILE(be, AG_PROFILE_DORA_FWD, 3.0 * (double)(T * N), (a->accumulate ? 12.0 : 8.0) * (double)(T * N));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t t = 0; t < T; t++) {
        float *y = (float *)a->y.data + t * N;
        const float *z = (const float *)a->z.data + t * N;
        for (int64_t n = 0; n < N; n++) {
            float out = a->gain ? a->gain[n] * z[n] : z[n];
            if (a->bias) out += a->bias[n];
            y[n] = a->accumulate ? y[n] + a->scale * out : a->scale * out;
        }
    }
    return AG_OK;
}

ag_status ag_dora_bwd(const ag_backend *be, const ag_dora_bwd_args *a, ag_err *err)
{
    const int64_t T = a->z.dim[0], N = a->z.dim[1];
    if (!ag_tensor_is(a->z, AG_F32, 2, T, N)) return misfit("z", err);
    if (!ag_tensor_is(a->dz, AG_F32, 2, T, N)) return misfit("dz", err);
    if (!ag_tensor_is(a->dy, AG_F32, 2, T, N)) return misfit("dy", err);
    if (!ag_tensor_is(a->dmagnitude, AG_F32, 1, N, 0)) return misfit("dmagnitude", err);
    float *dz = a->dz.data, *dm = a->dmagnitude.data;
    const float *dy = a->dy.data, *z = a->z.data;
    AG_PROFILE(be, AG_PROFILE_DORA_BWD, 4.0 * (double)(T * N), 12.0 * (double)(T * N));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t n0 = 0; n0 < N; n0 += COLUMNS) {
        const int64_t n_columns = min64(COLUMNS, N - n0);
        double sum[COLUMNS] = {0};
        for (int64_t t = 0; t < T; t++)
            for (int64_t j = 0; j < n_columns; j++) {
                const int64_t at = t * N + n0 + j;
                sum[j] += (double)dy[at] * (double)z[at];
                dz[at] = a->scale * a->gain[n0 + j] * dy[at];
            }
        for (int64_t j = 0; j < n_columns; j++) dm[n0 + j] += (float)((double)a->scale * sum[j] / (double)a->norm[n0 + j]);
    }
    return AG_OK;
}
