/* Rotary position embedding (Su et al. 2021) as Hugging Face writes it: halves rotate, not neighbours.
 *
 *     for i < D/2:  y[i]     = x[i]·cos(θ) - x[i+D/2]·sin(θ)      θ = position · freq[i]
 *                   y[i+D/2] = x[i+D/2]·cos(θ) + x[i]·sin(θ)      cos and sin both times `mscale`
 * With n_rotated only the first so many dimensions of a head rotate, as if they were the head; the rest stays.
 * Backward is the rotation by -θ (times mscale), the transpose of forward.
 *
 * Frequencies are made once per model: freq[i] = base^(-2i/D), then changed as its rope scaling says; that is the model's
 * knowledge, not this op's. cos and sin of a position are computed in double and rounded once, in a table the caller owns:
 *
 *     ag_rope_table(cos, sin, freq, n_positions, D, mscale);                       once
 *     ag_rope(be, &(ag_rope_args){.x = q, .positions = p, .cos = cos, .sin = sin, .n_positions = n}, err);
 */
#ifndef AG_ROPE_H
#define AG_ROPE_H

#include "base/status.h"
#include "ops/tensor.h"

struct ag_backend;

typedef struct {
    ag_tensor x;              /* in and out [T,H,D] f32, D even: rotated in place */
    ag_tensor positions;      /* in [T] i32, 0 <= p < n_positions of the table */
    const float *cos, *sin;   /* in [n_positions, D/2] */
    int64_t n_positions;
    int64_t n_rotated;        /* dimensions of a head, even; 0: all. cos and sin then have n_rotated/2 columns */
    bool backward;            /* rotate by -θ */
} ag_rope_args;

/* AG_E_SHAPE where tensors do not fit each other, AG_E_DATA for a position outside the table; x is then as it was. */
AG_MUST_USE ag_status ag_rope(const struct ag_backend *be, const ag_rope_args *args, ag_err *err);

/* cos and sin [n_positions, D/2] for freq [D/2]. */
void ag_rope_table(float *cos, float *sin, const double *freq, int64_t n_positions, int64_t D, double mscale);

#endif
