#include "ops/grad/grad.h"

#include "base/arena.h"
#include "base/num.h"
#include "ops/backend.h"
#include "ops/profile.h"

#include <math.h>

/* Outputs whose gradient rows are made by one product; rows of the vocabulary at a time; columns that a thread takes. */
enum { ROWS = 512, LOGITS = 512, COLUMNS = 64 };

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static ag_status misfit(const char *of, const char *name, ag_err *err)
{
    return ag_fail(err, AG_E_SHAPE, "gradient of %s: %s does not fit the other tensors", of, name);
}

/* The backend with its scratch behind `used` bytes, for an op within this one. */
static ag_backend behind(const ag_backend *be, size_t used)
{
    ag_backend inner = *be;
    inner.scratch.data = (char *)be->scratch.data + used;
    inner.scratch.bytes = be->scratch.bytes - used;
    return inner;
}

/* ---- a matrix: the linear op's forward with dyᵀ for x and xᵀ for W ----------------------------------------------------------- */
typedef struct {
    float *x_turned, *dy_turned; /* [K,T], [ROWS,T] */
    size_t end;
} weight_room;

static weight_room place_weight(ag_layout *layout, int64_t T, int64_t K, int64_t N)
{
    weight_room r = {.x_turned = ag_layout_place(layout, (size_t)(K * T) * sizeof(float))};
    r.dy_turned = ag_layout_place(layout, (size_t)(min64(ROWS, N) * T) * sizeof(float));
    r.end = layout->bytes;
    return r;
}

size_t ag_grad_weight_scratch_bytes(const ag_backend *be, int64_t T, int64_t K, int64_t N)
{
    ag_layout layout = {0};
    place_weight(&layout, T, K, N);
    ag_layout_place(&layout, ag_linear_scratch_bytes(be, min64(ROWS, N), T, K));
    return layout.bytes;
}

/* to[j,t] = from[t,first+j] for j < n; rows of `from` have `pitch` numbers. */
static void turn(const ag_backend *be, float *to, const float *from, int64_t T, int64_t pitch, int64_t first, int64_t n)
{
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t j0 = 0; j0 < n; j0 += COLUMNS)
        for (int64_t t = 0; t < T; t++)
            for (int64_t j = j0; j < min64(j0 + COLUMNS, n); j++) to[j * T + t] = from[t * pitch + first + j];
}

ag_status ag_grad_weight(const ag_backend *be, const ag_grad_weight_args *a, ag_err *err)
{
    const int64_t T = a->x.dim[0], K = a->x.dim[1], N = a->dw.dim[0];
    if (!ag_tensor_is(a->x, AG_F32, 2, T, K)) return misfit("a matrix", "x", err);
    if (!ag_tensor_is(a->dy, AG_F32, 2, T, N)) return misfit("a matrix", "dy", err);
    if (!ag_tensor_is(a->dw, AG_F32, 2, N, K)) return misfit("a matrix", "dw", err);
    AG_ASSERT(ag_grad_weight_scratch_bytes(be, T, K, N) <= be->scratch.bytes);
    AG_PROFILE(be, AG_PROFILE_GRAD_WEIGHT, 2.0 * (double)T * (double)N * (double)K, 4.0 * (double)(T * (K + N) + 2 * N * K));
    ag_layout layout = {.base = be->scratch.data};
    const weight_room r = place_weight(&layout, T, K, N);
    const ag_backend inner = behind(be, r.end);
    turn(be, r.x_turned, a->x.data, T, K, 0, K);
    const ag_weight x_turned = {.type = AG_W_F32, .N = K, .K = T, .data = r.x_turned};
    for (int64_t n0 = 0; n0 < N; n0 += ROWS) {
        const int64_t n_rows = min64(ROWS, N - n0);
        turn(be, r.dy_turned, a->dy.data, T, N, n0, n_rows);
        AG_TRY(ag_linear_fwd(&inner, &(ag_linear_fwd_args){
            .y = {ag_mat_f32((float *)a->dw.data + n0 * K, n_rows, K)}, .w = {&x_turned}, .n = 1, .accumulate = true, .scale = a->scale,
            .x = ag_mat_f32(r.dy_turned, n_rows, T), .compute = a->compute}, err));
    }
    return AG_OK;
}

/* ---- vectors ------------------------------------------------------------------------------------------------------------------ */
ag_status ag_grad_bias(const ag_backend *be, ag_tensor db, ag_tensor dy, float scale, ag_err *err)
{
    const int64_t T = dy.dim[0], N = dy.dim[1];
    if (!ag_tensor_is(dy, AG_F32, 2, T, N)) return misfit("a bias", "dy", err);
    if (!ag_tensor_is(db, AG_F32, 1, N, 0)) return misfit("a bias", "db", err);
    AG_PROFILE(be, AG_PROFILE_GRAD_BIAS, (double)(T * N), 4.0 * (double)(T * N + 2 * N));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t n0 = 0; n0 < N; n0 += COLUMNS) {
        const int64_t n_columns = min64(COLUMNS, N - n0);
        double sum[COLUMNS] = {0};
        for (int64_t t = 0; t < T; t++)
            for (int64_t j = 0; j < n_columns; j++) sum[j] += (double)((const float *)dy.data)[t * N + n0 + j];
        for (int64_t j = 0; j < n_columns; j++) ((float *)db.data)[n0 + j] += (float)((double)scale * sum[j]);
    }
    return AG_OK;
}

ag_status ag_grad_norm(const ag_backend *be, ag_tensor dw, ag_tensor dy, ag_tensor x, ag_tensor r, ag_err *err)
{
    const int64_t T = dy.dim[0], C = dy.dim[1];
    if (!ag_tensor_is(dy, AG_F32, 2, T, C)) return misfit("a norm", "dy", err);
    if (!ag_tensor_is(x, AG_F32, 2, T, C)) return misfit("a norm", "x", err);
    if (!ag_tensor_is(r, AG_F32, 1, T, 0)) return misfit("a norm", "r", err);
    if (!ag_tensor_is(dw, AG_F32, 1, C, 0)) return misfit("a norm", "dw", err);
    AG_PROFILE(be, AG_PROFILE_GRAD_NORM, 3.0 * (double)(T * C), 8.0 * (double)(T * C));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t c0 = 0; c0 < C; c0 += COLUMNS) {
        const int64_t n_columns = min64(COLUMNS, C - c0);
        double sum[COLUMNS] = {0};
        for (int64_t t = 0; t < T; t++) {
            const float *dy_row = (const float *)dy.data + t * C + c0, *x_row = (const float *)x.data + t * C + c0;
            const float r_t = ((const float *)r.data)[t];
            for (int64_t j = 0; j < n_columns; j++) sum[j] += (double)dy_row[j] * (double)(x_row[j] * r_t);
        }
        for (int64_t j = 0; j < n_columns; j++) ((float *)dw.data)[c0 + j] += (float)sum[j];
    }
    return AG_OK;
}

/* ---- embedding: a token may stand several times, so threads share columns and not tokens ------------------------------------------- */
ag_status ag_grad_embed(const ag_backend *be, ag_tensor dw, ag_tensor dx, ag_tensor ids, float scale, ag_err *err)
{
    const int64_t T = dx.dim[0], C = dx.dim[1], V = dw.dim[0];
    if (!ag_tensor_is(dx, AG_F32, 2, T, C)) return misfit("the embedding", "dx", err);
    if (!ag_tensor_is(ids, AG_I32, 1, T, 0)) return misfit("the embedding", "ids", err);
    if (!ag_tensor_is(dw, AG_F32, 2, V, C)) return misfit("the embedding", "dw", err);
    AG_PROFILE(be, AG_PROFILE_GRAD_EMBED, 2.0 * (double)(T * C), 12.0 * (double)(T * C));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t c0 = 0; c0 < C; c0 += COLUMNS)
        for (int64_t t = 0; t < T; t++) {
            const int32_t id = ((const int32_t *)ids.data)[t];
            AG_ASSERT(id >= 0 && id < V);
            float *to = (float *)dw.data + id * C;
            const float *from = (const float *)dx.data + t * C;
            for (int64_t c = c0; c < min64(c0 + COLUMNS, C); c++) to[c] += scale * from[c];
        }
    return AG_OK;
}

/* ---- head ------------------------------------------------------------------------------------------------------------------------ */
typedef struct {
    double *lse;             /* [M] */
    float *logits, *row;     /* [M,LOGITS], [C] */
    size_t end;
} head_room;

static head_room place_head(ag_layout *layout, int64_t M, int64_t C)
{
    head_room r = {.lse = ag_layout_place(layout, (size_t)M * sizeof(double))};
    r.logits = ag_layout_place(layout, (size_t)(M * LOGITS) * sizeof(float));
    r.row = ag_layout_place(layout, (size_t)C * sizeof(float));
    r.end = layout->bytes;
    return r;
}

size_t ag_grad_head_scratch_bytes(const ag_backend *be, int64_t M, int64_t C, int64_t V)
{
    ag_layout layout = {0};
    place_head(&layout, M, C);
    const size_t logits = ag_linear_scratch_bytes(be, M, C, min64(LOGITS, V)), product = ag_grad_weight_scratch_bytes(be, M, C, LOGITS);
    ag_layout_place(&layout, logits > product ? logits : product);
    return layout.bytes;
}

static double capped(const ag_grad_head_args *a, double logit)
{
    return a->softcap > 0 ? (double)a->softcap * tanh(logit / (double)a->softcap) : logit;
}

/* log Σ exp(logits[m]) = nll[m] + logits[m,target[m]] */
static void find_lse(const head_room *r, const ag_grad_head_args *a)
{
    const bool bf16 = a->compute == AG_COMPUTE_BF16;
    const int64_t M = a->x.dim[0], C = a->x.dim[1];
    for (int64_t m = 0; m < M; m++) {
        const float *x = (const float *)a->x.data + m * C;
        double logit = 0;
        ag_weight_row(r->row, a->w, ((const int32_t *)a->targets.data)[m], 0, C);
        for (int64_t c = 0; c < C; c++)
            logit += bf16 ? (double)ag_round_bf16(x[c]) * (double)ag_round_bf16(r->row[c]) : (double)x[c] * (double)r->row[c];
        r->lse[m] = (double)((const float *)a->nll.data)[m] + capped(a, (double)a->logit_scale * logit);
    }
}

/* Logits of the vocabulary's rows [v0,v0+n) become d(loss)/d(product). */
static void differentiate(const ag_backend *be, const head_room *r, const ag_grad_head_args *a, int64_t v0, int64_t n)
{
    const int64_t M = a->x.dim[0];
    const double factor = (double)a->dloss * (double)a->logit_scale;
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t m = 0; m < M; m++) {
        float *row = r->logits + m * n;
        const int64_t target = ((const int32_t *)a->targets.data)[m] - v0;
        for (int64_t v = 0; v < n; v++) {
            const double logit = capped(a, (double)row[v]), distance = logit - r->lse[m];
            const double t = a->softcap > 0 ? logit / (double)a->softcap : 0;
            row[v] = (float)(factor * (1 - t * t) * (v == target ? expm1(distance) : exp(distance)));
        }
    }
}

ag_status ag_grad_head(const ag_backend *be, const ag_grad_head_args *a, ag_err *err)
{
    const int64_t M = a->x.dim[0], C = a->x.dim[1], V = a->w->N;
    if (!ag_tensor_is(a->x, AG_F32, 2, M, C) || a->w->K != C) return misfit("the head", "x", err);
    if (!ag_tensor_is(a->targets, AG_I32, 1, M, 0)) return misfit("the head", "targets", err);
    if (!ag_tensor_is(a->nll, AG_F32, 1, M, 0)) return misfit("the head", "nll", err);
    if (!ag_tensor_is(a->dw, AG_F32, 2, V, C)) return misfit("the head", "dw", err);
    AG_ASSERT(ag_grad_head_scratch_bytes(be, M, C, V) <= be->scratch.bytes);
    AG_PROFILE(be, AG_PROFILE_GRAD_HEAD, 4.0 * (double)M * (double)C * (double)V, (double)ag_weight_bytes(a->w) + 4.0 * (double)(M * C + 2 * V * C));
    ag_layout layout = {.base = be->scratch.data};
    const head_room r = place_head(&layout, M, C);
    const ag_backend inner = behind(be, r.end);
    find_lse(&r, a);
    for (int64_t v0 = 0; v0 < V; v0 += LOGITS) {
        const int64_t n = min64(LOGITS, V - v0);
        const ag_weight rows = ag_weight_rows(a->w, v0, v0 + n);
        AG_TRY(ag_linear_fwd(&inner, &(ag_linear_fwd_args){.y = {ag_mat_f32(r.logits, M, n)}, .w = {&rows}, .n = 1, .scale = a->logit_scale,
                                                           .x = a->x, .compute = a->compute}, err));
        differentiate(be, &r, a, v0, n);
        AG_TRY(ag_grad_weight(&inner, &(ag_grad_weight_args){.dw = ag_mat_f32((float *)a->dw.data + v0 * C, n, C),
                                                             .dy = ag_mat_f32(r.logits, M, n), .x = a->x, .scale = 1,
                                                             .compute = a->compute}, err));
    }
    return AG_OK;
}
