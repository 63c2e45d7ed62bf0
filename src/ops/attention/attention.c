#define _GNU_SOURCE
#include "ops/attention/attention.h"

#include "ops/backend.h"

#include <omp.h>
#include <string.h>

void ag_attention_use(ag_attention_slots *slots, ag_cpu_level level)
{
    (void)level;
    *slots = (ag_attention_slots){.fwd = ag_attention_fwd_ref, .bwd = ag_attention_bwd_ref, .worker_bytes = ag_attention_worker_bytes_ref};
}

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

size_t ag_attention_scratch_bytes(const ag_backend *be, int64_t T, int64_t longest, int64_t H, int64_t G, int64_t D)
{
    (void)T;
    return (size_t)be->n_threads * align64(be->attention.worker_bytes(longest, H, G, D));
}

/* ---- checks --------------------------------------------------------------------------------------------------------- */

static ag_status check_tensors(ag_tensor q, ag_tensor k, ag_tensor v, ag_err *err)
{
    const int64_t T = q.dim[0], H = q.dim[1], D = q.dim[2], S = k.dim[0], G = k.dim[1];
    if (!ag_tensor_is_cube(q, T, H, D) || T < 0 || H < 1 || D < 1)
        return ag_fail(err, AG_E_SHAPE, "attention: q must be a [T,H,D] f32 tensor");
    if (!ag_tensor_is_cube(k, S, G, D) || S < 0 || G < 1)
        return ag_fail(err, AG_E_SHAPE, "attention: k must be a [S,G,D] f32 tensor with the head dim %lld of q", (long long)D);
    if (!ag_tensor_is_cube(v, S, G, D)) return ag_fail(err, AG_E_SHAPE, "attention: v must have the shape of k");
    if (H % G)
        return ag_fail(err, AG_E_SHAPE, "attention: %lld query heads do not divide into %lld key/value heads", (long long)H, (long long)G);
    return AG_OK;
}

static ag_status check_spans(const ag_attention_span *spans, int64_t n, int64_t T, int64_t S, bool keys_apart, int64_t *longest, ag_err *err)
{
    int64_t q_end = 0, kv_end = 0;
    *longest = 0;
    for (int64_t i = 0; i < n; i++) {
        const ag_attention_span s = spans[i];
        if (s.q0 < q_end || s.n_q < 1 || s.n_q > T - s.q0)
            return ag_fail(err, AG_E_SHAPE, "attention: span %lld has queries %lld+%lld; they must lie after row %lld and before row %lld",
                           (long long)i, (long long)s.q0, (long long)s.n_q, (long long)q_end - 1, (long long)T);
        if (s.kv0 < (keys_apart ? kv_end : 0) || s.n_kv < s.n_q || s.n_kv > S - s.kv0)
            return ag_fail(err, AG_E_SHAPE, "attention: span %lld has keys %lld+%lld for %lld queries; keys must be as many at least, "
                           "lie inside %lld rows and, for gradients, after those of the span before", (long long)i, (long long)s.kv0,
                           (long long)s.n_kv, (long long)s.n_q, (long long)S);
        q_end = s.q0 + s.n_q;
        kv_end = s.kv0 + s.n_kv;
        if (s.n_kv > *longest) *longest = s.n_kv;
    }
    return AG_OK;
}

/* Rows [row, row + n) of width `width`; data NULL: nothing. */
static void zero_rows(ag_tensor t, int64_t row, int64_t n, int64_t width)
{
    if (t.data && n > 0) memset((float *)t.data + row * width, 0, (size_t)(n * width) * sizeof(float));
}

static void *worker_scratch(const ag_backend *be, size_t worker_bytes)
{
    return (char *)be->scratch.data + (size_t)omp_get_thread_num() * worker_bytes;
}

ag_status ag_attention_fwd(const ag_backend *be, const ag_attention_fwd_args *a, ag_err *err)
{
    const int64_t T = a->q.dim[0], H = a->q.dim[1], D = a->q.dim[2], G = a->k.dim[1];
    int64_t longest;
    AG_TRY(check_tensors(a->q, a->k, a->v, err));
    if (!ag_tensor_is_cube(a->o, T, H, D)) return ag_fail(err, AG_E_SHAPE, "attention: o must have the shape of q");
    if (a->lse.data && !ag_tensor_is(a->lse, AG_F32, 2, T, H)) return ag_fail(err, AG_E_SHAPE, "attention: lse must be [T,H] f32");
    AG_TRY(check_spans(a->spans, a->n_spans, T, a->k.dim[0], false, &longest, err));
    AG_ASSERT(be->scratch.bytes >= ag_attention_scratch_bytes(be, T, longest, H, G, D));
    const size_t worker_bytes = align64(be->attention.worker_bytes(longest, H, G, D));
    int64_t row = 0;
    for (int64_t i = 0; i <= a->n_spans; i++) {
        const int64_t next = i < a->n_spans ? a->spans[i].q0 : T;
        zero_rows(a->o, row, next - row, H * D);
        zero_rows(a->lse, row, next - row, H);
        if (i < a->n_spans) row = next + a->spans[i].n_q;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(be->n_threads)
    for (int64_t i = 0; i < a->n_spans * G; i++) {
        const ag_attention_unit unit = {.span = &a->spans[i / G], .g = i % G, .t0 = 0, .t1 = a->spans[i / G].n_q};
        be->attention.fwd(a, &unit, worker_scratch(be, worker_bytes));
    }
    return AG_OK;
}

ag_status ag_attention_bwd(const ag_backend *be, const ag_attention_bwd_args *a, ag_err *err)
{
    const int64_t T = a->q.dim[0], H = a->q.dim[1], D = a->q.dim[2], S = a->k.dim[0], G = a->k.dim[1];
    int64_t longest;
    AG_TRY(check_tensors(a->q, a->k, a->v, err));
    if (!ag_tensor_is_cube(a->o, T, H, D) || !ag_tensor_is_cube(a->d_o, T, H, D) || !ag_tensor_is_cube(a->dq, T, H, D))
        return ag_fail(err, AG_E_SHAPE, "attention: o, d_o and dq must have the shape of q");
    if (!ag_tensor_is_cube(a->dk, S, G, D) || !ag_tensor_is_cube(a->dv, S, G, D))
        return ag_fail(err, AG_E_SHAPE, "attention: dk and dv must have the shape of k");
    if (!ag_tensor_is(a->lse, AG_F32, 2, T, H)) return ag_fail(err, AG_E_SHAPE, "attention: lse must be [T,H] f32");
    AG_TRY(check_spans(a->spans, a->n_spans, T, S, true, &longest, err));
    AG_ASSERT(be->scratch.bytes >= ag_attention_scratch_bytes(be, T, longest, H, G, D));
    const size_t worker_bytes = align64(be->attention.worker_bytes(longest, H, G, D));
    zero_rows(a->dq, 0, T, H * D);
    zero_rows(a->dk, 0, S, G * D);
    zero_rows(a->dv, 0, S, G * D);
#pragma omp parallel for schedule(dynamic, 1) num_threads(be->n_threads)
    for (int64_t i = 0; i < a->n_spans * G; i++) {
        const ag_attention_span *s = &a->spans[i / G];
        const ag_attention_unit unit = {.span = s, .g = i % G, .t0 = 0, .t1 = s->n_q};
        be->attention.bwd(a, &unit, (float *)a->dk.data + s->kv0 * G * D, (float *)a->dv.data + s->kv0 * G * D,
                          worker_scratch(be, worker_bytes));
    }
    return AG_OK;
}
