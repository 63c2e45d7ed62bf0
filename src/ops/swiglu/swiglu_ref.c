/* The reference: the formula, in double, element by element. Never optimized; every level answers to it. */
#include "ops/swiglu/swiglu_slots.h"

#include <math.h>

void ag_swiglu_fwd_ref(const ag_swiglu_fwd_args *a, int64_t i0, int64_t i1)
{
    const float *gate = a->gate.data, *up = a->up.data;
    float *y = a->y.data;
    for (int64_t i = i0; i < i1; i++) {
        double g = gate[i];
        y[i] = (float)(g / (1 + exp(-g)) * up[i]);
    }
}

void ag_swiglu_bwd_ref(const ag_swiglu_bwd_args *a, int64_t i0, int64_t i1)
{
    const float *gate = a->gate.data, *up = a->up.data, *dy = a->dy.data;
    float *dgate = a->dgate.data, *dup = a->dup.data;
    for (int64_t i = i0; i < i1; i++) {
        double g = gate[i], u = up[i], d = dy[i], sigma = 1 / (1 + exp(-g));
        dgate[i] = (float)(d * u * sigma * (1 + g * (1 - sigma)));
        dup[i] = (float)(d * g * sigma);
    }
}
