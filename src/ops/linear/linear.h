/* Linear layers with frozen weights: the GEMM that everything else waits for.
 *
 *     forward    y_i[T,N_i]  (= or +=)  x[T,K] · W_i[N_i,K]ᵀ + bias_i        i = 0 … n-1, up to 3 that share x (q,k,v; gate,up)
 *     backward   dx[T,K]     (= or +=)  Σ_i dy_i[T,N_i] · W_i[N_i,K]          W is frozen, so there is no dW
 *
 * Weights stay in their stored form (NF4, GGUF blocks, bf16, f16, f32) and are dequantized while a panel is packed; the panel
 * is reused over all tokens. With few tokens (decoding) rows are dequantized in registers and never stored at all.
 *
 * Numbers: AG_COMPUTE_F32 multiplies f32 by f32. AG_COMPUTE_BF16 rounds both operands (x or dy, and the dequantized weight)
 * to bf16, nearest even, and sums in f32: AMX and AVX512-BF16 do so natively, other levels round and multiply in f32. The
 * order of the sum over K (or N) depends on shapes alone, never on threads, and not on how many rows T the call has: a row's
 * bits are the same alone and in a batch as long as T is on the same side of AG_LINEAR_FEW. */
#ifndef AG_LINEAR_H
#define AG_LINEAR_H

#include "base/status.h"
#include "ops/tensor.h"
#include "ops/weight/weight.h"

struct ag_backend;

typedef enum { AG_COMPUTE_F32, AG_COMPUTE_BF16 } ag_compute;

enum { AG_LINEAR_MAX = 3, AG_LINEAR_FEW = 8 /* tokens up to which the decoding path runs */ };

typedef struct {
    ag_tensor y[AG_LINEAR_MAX];         /* out or += [T,N_i] f32 */
    const ag_weight *w[AG_LINEAR_MAX];  /* [N_i,K] */
    const float *bias[AG_LINEAR_MAX];   /* [N_i] or NULL */
    int n;                              /* 1..3 */
    bool accumulate;                    /* += instead of = */
    float scale;                        /* of the product, before bias; 1 usually (Granite's residual multiplier) */
    ag_tensor x;                        /* in [T,K] f32; not any y */
    ag_compute compute;
} ag_linear_fwd_args;

typedef struct {
    ag_tensor dx;                       /* out or += [T,K] f32; not any dy */
    ag_tensor dy[AG_LINEAR_MAX];        /* in [T,N_i] f32 */
    const ag_weight *w[AG_LINEAR_MAX];
    int n;
    bool accumulate;
    float scale;
    ag_compute compute;
} ag_linear_bwd_args;

/* Bytes of backend scratch that a call with at most T tokens and these sizes needs (K inputs, N outputs of the largest). */
size_t ag_linear_scratch_bytes(const struct ag_backend *be, int64_t T, int64_t K, int64_t N);

/* AG_E_SHAPE where tensors do not fit each other. Needs ag_linear_scratch_bytes of be->scratch (an assertion). */
AG_MUST_USE ag_status ag_linear_fwd(const struct ag_backend *be, const ag_linear_fwd_args *args, ag_err *err);
AG_MUST_USE ag_status ag_linear_bwd(const struct ag_backend *be, const ag_linear_bwd_args *args, ag_err *err);

#endif
