/* RMSNorm (Zhang & Sennrich 2019, eq. 4), forward and backward, for a frozen weight.
 *
 *     y[t,c] = x[t,c] · r[t] · w[c]          r[t] = (mean_c x[t,c]² + eps)^(-1/2)
 *
 * Backward, with g = dy·w (row by row, C columns):
 *     dy/dx_j brings  r·g_j  directly, and through r:  ∂r/∂x_j = -r³·x_j/C
 *     dx_j = r·g_j - x_j·r³·mean_c(g·x)
 * The weight is frozen in adapter training, so there is no dw. */
#ifndef AG_RMSNORM_H
#define AG_RMSNORM_H

#include "base/status.h"
#include "ops/tensor.h"

struct ag_backend;

typedef struct {
    ag_tensor y;  /* out [T,C] f32; may be x itself */
    ag_tensor r;  /* out [T]   f32, kept for backward */
    ag_tensor x;  /* in  [T,C] f32 */
    ag_tensor w;  /* in  [C]   f32 */
    float eps;    /* > 0 */
} ag_rmsnorm_fwd_args;

typedef struct {
    ag_tensor dx; /* += [T,C] f32: a residual stream collects gradients; not dy */
    ag_tensor dy; /* in [T,C] f32 */
    ag_tensor x;  /* in [T,C] f32, what forward read */
    ag_tensor w;  /* in [C]   f32 */
    ag_tensor r;  /* in [T]   f32, what forward wrote */
} ag_rmsnorm_bwd_args;

/* AG_E_SHAPE where tensors do not fit each other, AG_E_UNSUPPORTED where the backend has no such op. */
AG_MUST_USE ag_status ag_rmsnorm_fwd(const struct ag_backend *be, const ag_rmsnorm_fwd_args *args, ag_err *err);
AG_MUST_USE ag_status ag_rmsnorm_bwd(const struct ag_backend *be, const ag_rmsnorm_bwd_args *args, ag_err *err);

#endif
