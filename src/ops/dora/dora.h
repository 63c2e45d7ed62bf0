/* DoRA (Liu et al. 2024): a LoRA pair whose sum with the weight is rescaled row by row to a trained length m.
 *
 *     W' = diag(g)·(W + s·B·A)        g[n] = m[n] / ‖(W + s·B·A)[n]‖
 *     z  = W·x + s·B·A·x              y = g ⊙ z + bias
 *
 * The length is a constant in backward, as the paper (section 4.3) proposes and PEFT does it, so with d = ∂L/∂y:
 *     dz = g ⊙ d                      dm[n] = Σ_t d[t,n]·z[t,n] / ‖(W + s·B·A)[n]‖
 * and dA, dB, dx follow from dz as without DoRA (lora.h, linear.h). */
#ifndef AG_DORA_H
#define AG_DORA_H

#include "base/status.h"
#include "ops/tensor.h"
#include "ops/weight/weight.h"

struct ag_backend;

typedef struct {
    ag_tensor norm;      /* out [N]: length of each row of W + s·B·A */
    ag_tensor gain;      /* out [N]: magnitude / norm; data NULL: only the lengths */
    ag_tensor magnitude; /* in  [N]; not looked at where gain is not wanted */
    ag_tensor a;         /* in  [R,K] f32 */
    ag_tensor b;         /* in  [N,R] f32 */
    const ag_weight *w;  /* [N,K] */
    float scale;         /* s */
} ag_dora_gain_args;

/* Bytes of backend scratch for a call with these sizes. */
size_t ag_dora_scratch_bytes(const struct ag_backend *be, int64_t K, int64_t N, int64_t R);
/* Sums in double. AG_E_SHAPE where tensors do not fit each other; AG_E_NUMERIC names the row whose length is 0 or not finite. */
AG_MUST_USE ag_status ag_dora_gain(const struct ag_backend *be, const ag_dora_gain_args *args, ag_err *err);

typedef struct {
    ag_tensor y;       /* out or += [T,N] */
    ag_tensor z;       /* in [T,N]; may be y where nothing is accumulated */
    const float *gain; /* [N]; NULL: 1 */
    const float *bias; /* [N] or NULL */
    float scale;       /* of both */
    bool accumulate;
} ag_dora_fwd_args;
/* y = scale·(gain ⊙ z + bias), or += */
AG_MUST_USE ag_status ag_dora_fwd(const struct ag_backend *be, const ag_dora_fwd_args *args, ag_err *err);

typedef struct {
    ag_tensor dz;          /* out [T,N] = scale·gain ⊙ dy; may be z */
    ag_tensor dmagnitude;  /* += [N] */
    ag_tensor dy, z;       /* in [T,N] */
    const float *gain, *norm;
    float scale;
} ag_dora_bwd_args;
AG_MUST_USE ag_status ag_dora_bwd(const struct ag_backend *be, const ag_dora_bwd_args *args, ag_err *err);

#endif
