/* Output head and cross-entropy in one, without a T×V matrix in memory.
 *
 *     logits[m,v] = logit_scale · x[m]·W[v]        nll[m] = log Σ_v exp(logits[m,v]) - logits[m,target[m]]
 * With a softcap c (Gemma 2) a logit is c·tanh(logit_scale · x[m]·W[v] / c), and each term of dx has the factor 1 - (logit/c)².
 * Backward, for a loss that is dloss · Σ_m nll[m]:
 *     dx[m] = dloss · logit_scale · Σ_v (softmax(logits[m])[v] - [v = target[m]]) · W[v]
 *
 * The vocabulary is walked once, block by block, as attention walks keys (Milakov & Gimelshein 2018; Dao et al. 2022): with
 * μ the largest logit so far, a block adds its exp(logit-μ) to a sum and its exp(logit-μ)·W[v] to dx; where μ grows, sum and dx
 * shrink by exp(old μ - new μ). At the end dx is divided by the sum. So backward costs one product and nothing is recomputed
 * or kept. The target's own term is left out of both and added last, as -(Σ others / Σ all)·W[target]: where the model is
 * sure of the target, softmax - 1 would have cancelled to the rounding of the operands.
 *
 * The caller gathers the rows that have a target (M of them); rows without one never get here. Block sizes depend on shapes
 * alone. Sums over the vocabulary are f32 within a block, double across blocks. */
#ifndef AG_HEAD_CE_H
#define AG_HEAD_CE_H

#include "base/status.h"
#include "ops/linear/linear.h"
#include "ops/tensor.h"

typedef struct {
    ag_tensor nll;       /* out [M] f32 */
    ag_tensor best;      /* out [M] i32: the id with the largest logit, the lowest of equals; data NULL: not wanted */
    ag_tensor dx;        /* out [M,C] f32; data NULL: forward only */
    ag_tensor x;         /* in [M,C] f32, after the final norm; not dx */
    ag_tensor targets;   /* in [M] i32; outside 0..V-1 is AG_E_DATA */
    const ag_weight *w;  /* [V,C] */
    float logit_scale;   /* 1 usually */
    float softcap;       /* c; 0: none */
    float dloss;         /* 1 / number of targets of the whole optimizer step */
    ag_compute compute;
} ag_head_ce_args;

/* Bytes of backend scratch for a call with at most M rows; does not grow with M beyond a block of rows. */
size_t ag_head_ce_scratch_bytes(const struct ag_backend *be, int64_t M, int64_t C, int64_t V);
/* AG_E_SHAPE where tensors do not fit each other; AG_E_DATA names the row and the target that is not in the vocabulary. Needs
 * ag_head_ce_scratch_bytes of be->scratch (an assertion). */
AG_MUST_USE ag_status ag_head_ce(const struct ag_backend *be, const ag_head_ce_args *args, ag_err *err);

#endif
