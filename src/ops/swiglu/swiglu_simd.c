/* σ = 1/(1+e^-z). Where e^-z is infinite (z < -88) σ is 0 and so is every product, as it should be. The activation is a constant of
 * each loop. */
#include "ops/simd.h"
#include "ops/swiglu/swiglu_slots.h"

#define INLINE static inline __attribute__((always_inline))

INLINE vf sigmoid(vf z) { return vf_set1(1) / (vf_set1(1) + vf_exp(vf_zero() - z)); }

INLINE vf inner(const ag_gate act, vf g)
{
    if (act == AG_GATE_SILU) return g;
    const float a = (float)AG_GELU_TANH_A, ab = (float)(AG_GELU_TANH_A * AG_GELU_TANH_B);
    return g * vf_fma(g * g, vf_set1(ab), vf_set1(a));
}

/* g·z' */
INLINE vf times_slope(const ag_gate act, vf g)
{
    if (act == AG_GATE_SILU) return g;
    const float a = (float)AG_GELU_TANH_A, ab = (float)(3 * AG_GELU_TANH_A * AG_GELU_TANH_B);
    return g * vf_fma(g * g, vf_set1(ab), vf_set1(a));
}

INLINE void forward_all(const ag_gate act, const ag_swiglu_fwd_args *a, int64_t i0, int64_t i1)
{
    const float *gate = a->gate.data, *up = a->up.data;
    float *y = a->y.data;
    int64_t i = i0;
    for (; i + VF_LANES <= i1; i += VF_LANES) {
        vf g = vf_load(gate + i);
        vf_store(y + i, g * sigmoid(inner(act, g)) * vf_load(up + i));
    }
    if (i < i1) {
        vf g = vf_load_n(gate + i, i1 - i);
        vf_store_n(y + i, g * sigmoid(inner(act, g)) * vf_load_n(up + i, i1 - i), i1 - i);
    }
}

void AG_LEVEL(ag_swiglu_fwd)(const ag_swiglu_fwd_args *a, int64_t i0, int64_t i1)
{
    if (a->act == AG_GATE_SILU) forward_all(AG_GATE_SILU, a, i0, i1);
    else forward_all(AG_GATE_GELU_TANH, a, i0, i1);
}

/* Where σ is exactly 1 or 0 the slope's product with 1-σ or σ is 0, unless the slope itself overflowed. */
INLINE void backward(const ag_gate act, vf *dgate, vf *dup, vf g, vf u, vf d)
{
    const vf one = vf_set1(1), sigma = sigmoid(inner(act, g)), d_sigma = d * sigma;
    *dup = d_sigma * g;
    *dgate = d_sigma * u * vf_fma(times_slope(act, g), one - sigma, one);
}

INLINE void backward_all(const ag_gate act, const ag_swiglu_bwd_args *a, int64_t i0, int64_t i1)
{
    const float *gate = a->gate.data, *up = a->up.data, *dy = a->dy.data;
    float *dgate = a->dgate.data, *dup = a->dup.data;
    vf dg, du;
    int64_t i = i0;
    for (; i + VF_LANES <= i1; i += VF_LANES) {
        backward(act, &dg, &du, vf_load(gate + i), vf_load(up + i), vf_load(dy + i));
        vf_store(dgate + i, dg);
        vf_store(dup + i, du);
    }
    if (i < i1) {
        const int64_t n = i1 - i;
        backward(act, &dg, &du, vf_load_n(gate + i, n), vf_load_n(up + i, n), vf_load_n(dy + i, n));
        vf_store_n(dgate + i, dg, n);
        vf_store_n(dup + i, du, n);
    }
}

void AG_LEVEL(ag_swiglu_bwd)(const ag_swiglu_bwd_args *a, int64_t i0, int64_t i1)
{
    if (a->act == AG_GATE_SILU) backward_all(AG_GATE_SILU, a, i0, i1);
    else backward_all(AG_GATE_GELU_TANH, a, i0, i1);
}
