/* SwiGLU (Shazeer 2020), the feed-forward gate of Llama:  y = silu(gate)·up,  silu(g) = g·σ(g).
 *
 * Backward:  σ = 1/(1+e^-g)      dup = dy·g·σ      dgate = dy·up·σ·(1 + g·(1-σ)) */
#ifndef AG_SWIGLU_H
#define AG_SWIGLU_H

#include "base/status.h"
#include "ops/tensor.h"

struct ag_backend;

typedef struct {
    ag_tensor y;    /* out [T,F] f32; may be gate or up */
    ag_tensor gate; /* in  [T,F] f32 */
    ag_tensor up;   /* in  [T,F] f32 */
} ag_swiglu_fwd_args;

typedef struct {
    ag_tensor dgate, dup; /* out [T,F] f32; dgate may be gate, dup may be up, either may be dy */
    ag_tensor dy;         /* in [T,F] f32 */
    ag_tensor gate, up;   /* in [T,F] f32 */
} ag_swiglu_bwd_args;

AG_MUST_USE ag_status ag_swiglu_fwd(const struct ag_backend *be, const ag_swiglu_fwd_args *args, ag_err *err);
AG_MUST_USE ag_status ag_swiglu_bwd(const struct ag_backend *be, const ag_swiglu_bwd_args *args, ag_err *err);

#endif
