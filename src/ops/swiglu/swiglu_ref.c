/* The reference: the formula, in double, element by element. Never optimized; every level answers to it. */
#include "ops/swiglu/swiglu_slots.h"

#include <math.h>

/* z and z' of the header's formulas. */
static double inner(ag_gate act, double g) { return act == AG_GATE_SILU ? g : AG_GELU_TANH_A * (g + AG_GELU_TANH_B * g * g * g); }
static double slope(ag_gate act, double g) { return act == AG_GATE_SILU ? 1 : AG_GELU_TANH_A * (1 + 3 * AG_GELU_TANH_B * g * g); }

void ag_swiglu_fwd_ref(const ag_swiglu_fwd_args *a, int64_t i0, int64_t i1)
{
    const float *gate = a->gate.data, *up = a->up.data;
    float *y = a->y.data;
    for (int64_t i = i0; i < i1; i++) {
        double g = gate[i];
        y[i] = (float)(g / (1 + exp(-inner(a->act, g))) * up[i]);
    }
}

void ag_swiglu_bwd_ref(const ag_swiglu_bwd_args *a, int64_t i0, int64_t i1)
{
    const float *gate = a->gate.data, *up = a->up.data, *dy = a->dy.data;
    float *dgate = a->dgate.data, *dup = a->dup.data;
    for (int64_t i = i0; i < i1; i++) {
        double g = gate[i], u = up[i], d = dy[i], sigma = 1 / (1 + exp(-inner(a->act, g)));
        dgate[i] = (float)(d * u * sigma * (1 + g * slope(a->act, g) * (1 - sigma)));
        dup[i] = (float)(d * g * sigma);
    }
}
