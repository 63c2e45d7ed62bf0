/* Gradients of the model's own tensors, where they are trained in full: matrices, biases, norms, the embedding, the output head.
 * The base is frozen otherwise, so the ops that use these tensors compute only dx; what is missing there stands here.
 *
 *     matrix      dw[n,k] += s · Σ_t dy[t,n]·x[t,k]
 *     bias        db[n]   += s · Σ_t dy[t,n]
 *     norm        dw[c]   += Σ_t dy[t,c]·x[t,c]·r[t]                (rmsnorm.h: y = x·r·w)
 *     embedding   dw[id_t,c] += s · dx[t,c]                          (embed.h)
 *     head        dw[v,c] += dloss · logit_scale · Σ_m (softmax(logits[m])[v] - [v = target[m]]) · x[m,c]      (head_ce.h; with a
 *                 softcap c each term times 1 - (logit/c)²)
 *
 * Sums run in an order that depends on shapes alone. The products of matrix and head go through the linear op, with its compute
 * (AG_COMPUTE_BF16 rounds dy and x to bf16); the other sums are in double. */
#ifndef AG_GRAD_H
#define AG_GRAD_H

#include "base/status.h"
#include "ops/linear/linear.h"
#include "ops/tensor.h"

typedef struct {
    ag_tensor dw; /* += [N,K] */
    ag_tensor dy; /* in [T,N] */
    ag_tensor x;  /* in [T,K] */
    float scale;
    ag_compute compute;
} ag_grad_weight_args;
/* Bytes of backend scratch for a call with at most T tokens. */
size_t ag_grad_weight_scratch_bytes(const struct ag_backend *be, int64_t T, int64_t K, int64_t N);
AG_MUST_USE ag_status ag_grad_weight(const struct ag_backend *be, const ag_grad_weight_args *args, ag_err *err);

/* db [N], dy [T,N] */
AG_MUST_USE ag_status ag_grad_bias(const struct ag_backend *be, ag_tensor db, ag_tensor dy, float scale, ag_err *err);
/* dw [C]; dy, x [T,C]; r [T] */
AG_MUST_USE ag_status ag_grad_norm(const struct ag_backend *be, ag_tensor dw, ag_tensor dy, ag_tensor x, ag_tensor r, ag_err *err);
/* dw [V,C], dx [T,C], ids [T] within the table (an assertion) */
AG_MUST_USE ag_status ag_grad_embed(const struct ag_backend *be, ag_tensor dw, ag_tensor dx, ag_tensor ids, float scale, ag_err *err);

typedef struct {
    ag_tensor dw;       /* += [V,C] */
    ag_tensor x;        /* in [M,C], what head_ce read */
    ag_tensor targets;  /* in [M] i32 */
    ag_tensor nll;      /* in [M], what head_ce wrote */
    const ag_weight *w; /* [V,C] */
    float logit_scale, softcap, dloss; /* as head_ce had them */
    ag_compute compute;
} ag_grad_head_args;
size_t ag_grad_head_scratch_bytes(const struct ag_backend *be, int64_t M, int64_t C, int64_t V);
/* Computes the logits once more, block by block of the vocabulary. */
AG_MUST_USE ag_status ag_grad_head(const struct ag_backend *be, const ag_grad_head_args *args, ag_err *err);

#endif
