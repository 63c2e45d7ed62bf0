/* Output head and cross-entropy in one, without a T×V matrix in memory.
 *
 *     logits[m,v] = logit_scale · x[m]·W[v]        nll[m] = log Σ_v exp(logits[m,v]) - logits[m,target[m]]
 * Backward, for a loss that is dloss · Σ_m nll[m]:
 *     dx[m] = dloss · logit_scale · Σ_v (softmax(logits[m])[v] - [v = target[m]]) · W[v]
 * The caller gathers the rows that have a target (M of them); rows without one never get here. The vocabulary is walked in
 * blocks whose size depends on shapes alone. Sums over the vocabulary are f32 within a block, double across blocks. */
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
    float dloss;         /* 1 / number of targets of the whole optimizer step */
    ag_compute compute;
} ag_head_ce_args;

size_t ag_head_ce_scratch_bytes(const struct ag_backend *be, int64_t M, int64_t C, int64_t V);
AG_MUST_USE ag_status ag_head_ce(const struct ag_backend *be, const ag_head_ce_args *args, ag_err *err);

#endif
