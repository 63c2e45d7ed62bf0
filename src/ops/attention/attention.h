/* Causal attention with grouped keys and values, forward and backward, without a T×T matrix in memory (online softmax as in
 * Milakov & Gimelshein 2018 and FlashAttention).
 *
 *     s[i,j] = scale · q[i]·k[j]   for j ≤ i + (n_kv - n_q) and j > i + (n_kv - n_q) - window      p = softmax_j(s)
 *     o[i] = Σ_j p[i,j] · v[j]                       lse[i] = log Σ_j exp(s[i,j])
 * Backward, with δ[i] = do[i]·o[i]:
 *     dv[j] += Σ_i p[i,j]·do[i]     ds[i,j] = p[i,j]·(do[i]·v[j] - δ[i])     dq[i] += scale·Σ_j ds[i,j]·k[j]
 *     dk[j] += scale·Σ_i ds[i,j]·q[i]
 * With a softcap c (Gemma 2) a score is c·tanh(scale·q·k/c) before it is masked, and ds has the factor 1 - (s/c)².
 * Query head h reads key/value head h / (H/G); dk and dv sum over the query heads of their group, in head order.
 *
 * Rows are divided into spans that do not see each other: the rows of a batch (padding is simply not part of a span) and the
 * documents of a packed row. In a span the last query sees the last key, so one new token against a cache is the span
 * {q0, 1, kv0, n}. Under AG_COMPUTE_BF16 the operands of the products (q, k, v, do, p, ds) are rounded to bf16, nearest even, where
 * the processor multiplies pairs of them (AMX, AVX512-BF16), and sums are f32; elsewhere, and for few queries without lse
 * (decoding), it is AG_COMPUTE_F32. Softmax is f32 always. */
#ifndef AG_ATTENTION_H
#define AG_ATTENTION_H

#include "base/status.h"
#include "ops/linear/linear.h"
#include "ops/tensor.h"

typedef struct {
    int64_t q0, n_q;   /* query rows [q0, q0+n_q) */
    int64_t kv0, n_kv; /* key/value rows [kv0, kv0+n_kv); n_kv >= n_q */
} ag_attention_span;

typedef struct {
    ag_tensor o;   /* out [T,H,D] f32; rows in no span are set to 0; may be q itself only when !lse.data (decoding) */
    ag_tensor lse; /* out [T,H] f32, kept for backward; data NULL: not wanted */
    ag_tensor q;   /* in [T,H,D] f32 */
    ag_tensor k;   /* in [S,G,D] f32 */
    ag_tensor v;   /* in [S,G,D] f32 */
    const ag_attention_span *spans; /* n_spans, in ascending q0, queries not overlapping; spans may share keys */
    int64_t n_spans;
    int64_t window; /* keys a query sees at most, itself included; 0: all */
    float scale;    /* 1/sqrt(D) usually */
    float softcap;  /* c; 0: none */
    ag_compute compute;
} ag_attention_fwd_args;

typedef struct {
    ag_tensor dq, dk, dv;    /* out [T,H,D], [S,G,D], [S,G,D] f32: overwritten; rows in no span are set to 0 */
    ag_tensor d_o;           /* in [T,H,D] f32 */
    ag_tensor o, lse;        /* in, what forward wrote */
    ag_tensor q, k, v;       /* in, what forward read */
    const ag_attention_span *spans; /* as in forward, and keys in ascending kv0, not overlapping */
    int64_t n_spans;
    int64_t window;
    float scale, softcap;
    ag_compute compute;
} ag_attention_bwd_args;

/* Bytes of backend scratch for forward or backward with at most T query rows, the longest span at most `longest` keys. */
size_t ag_attention_scratch_bytes(const struct ag_backend *be, int64_t T, int64_t longest, int64_t H, int64_t G, int64_t D);

/* Queries of a span that are computed together. A span may be computed in several calls, cut at multiples of it, each with more than
 * 8 queries, and gives the same bits. */
int64_t ag_attention_granule(const struct ag_backend *be, ag_compute compute, int64_t H, int64_t G, int64_t D);

/* AG_E_SHAPE where tensors or spans do not fit each other. Need ag_attention_scratch_bytes of be->scratch (an assertion). */
AG_MUST_USE ag_status ag_attention_fwd(const struct ag_backend *be, const ag_attention_fwd_args *args, ag_err *err);
AG_MUST_USE ag_status ag_attention_bwd(const struct ag_backend *be, const ag_attention_bwd_args *args, ag_err *err);

#endif
