/* Gated feed-forward units (Shazeer 2020):  y = act(gate)·up.
 *
 *     SwiGLU (Llama)         act(g) = g·σ(g)
 *     GeGLU (Gemma)          act(g) = g/2·(1 + tanh(√(2/π)·(g + 0.044715·g³))), the tanh form of GELU (Hendrycks & Gimpel 2016)
 * Since (1 + tanh u)/2 = σ(2u), both are g·σ(z): z = g, or z = 2√(2/π)·(g + 0.044715·g³).
 * Backward:  σ = 1/(1+e^-z)      dup = dy·g·σ      dgate = dy·up·σ·(1 + g·z'·(1-σ)) */
#ifndef AG_SWIGLU_H
#define AG_SWIGLU_H

#include "base/status.h"
#include "ops/tensor.h"

struct ag_backend;

typedef enum { AG_GATE_SILU, AG_GATE_GELU_TANH } ag_gate;
/* z = a·(g + b·g³) */
#define AG_GELU_TANH_A 1.5957691216057308 /* 2·sqrt(2/π) */
#define AG_GELU_TANH_B 0.044715

typedef struct {
    ag_tensor y;    /* out [T,F] f32; may be gate or up */
    ag_tensor gate; /* in  [T,F] f32 */
    ag_tensor up;   /* in  [T,F] f32 */
    ag_gate act;
} ag_swiglu_fwd_args;

typedef struct {
    ag_tensor dgate, dup; /* out [T,F] f32; dgate may be gate, dup may be up, either may be dy */
    ag_tensor dy;         /* in [T,F] f32 */
    ag_tensor gate, up;   /* in [T,F] f32 */
    ag_gate act;
} ag_swiglu_bwd_args;

AG_MUST_USE ag_status ag_swiglu_fwd(const struct ag_backend *be, const ag_swiglu_fwd_args *args, ag_err *err);
AG_MUST_USE ag_status ag_swiglu_bwd(const struct ag_backend *be, const ag_swiglu_bwd_args *args, ag_err *err);

#endif
