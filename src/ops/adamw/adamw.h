/* AdamW (Loshchilov & Hutter 2019) over flat f32 arrays, as torch.optim.AdamW takes the step, and the norm of a gradient.
 *
 *     p ← p·(1 - lr·wd)
 *     m ← m + (g - m)·(1-β1)            v ← v·β2 + g²·(1-β2)
 *     p ← p - (lr / (1-β1^t)) · m / (sqrt(v)/sqrt(1-β2^t) + eps)
 * Coefficients are made in double from the step count and rounded once. g is multiplied by grad_scale first (clipping).
 *
 * The vector levels keep torch's order of operations, so that a run taken over from torch goes on along the same bits as long
 * as its gradients do: the moments by one fused multiply-add each, the rest rounded operation by operation. */
#ifndef AG_ADAMW_H
#define AG_ADAMW_H

#include "base/status.h"
#include "ops/tensor.h"

struct ag_backend;

typedef struct {
    ag_tensor p, m, v;  /* in and out [n] f32 */
    ag_tensor g;        /* in [n] f32 */
    double lr, beta1, beta2, eps, weight_decay;
    double grad_scale;  /* 1: no clipping */
    int64_t step;       /* t, counts from 1 */
} ag_adamw_args;

/* AG_E_SHAPE where the arrays differ in length; AG_E_CONFIG where step < 1 or a beta is not in [0,1). */
AG_MUST_USE ag_status ag_adamw(const struct ag_backend *be, const ag_adamw_args *args, ag_err *err);

/* Σ x², in double, in an order that depends on n alone. */
AG_MUST_USE ag_status ag_sum_squares(const struct ag_backend *be, double *out, ag_tensor x, ag_err *err);

#endif
