/* σ = 1/(1+e^-g). Where e^-g is infinite (g < -88) σ is 0 and so is every product, as it should be. */
#include "ops/simd.h"
#include "ops/swiglu/swiglu_slots.h"

static inline vf sigmoid(vf g) { return vf_set1(1) / (vf_set1(1) + vf_exp(vf_zero() - g)); }

void AG_LEVEL(ag_swiglu_fwd)(const ag_swiglu_fwd_args *a, int64_t i0, int64_t i1)
{
    const float *gate = a->gate.data, *up = a->up.data;
    float *y = a->y.data;
    int64_t i = i0;
    for (; i + VF_LANES <= i1; i += VF_LANES) {
        vf g = vf_load(gate + i);
        vf_store(y + i, g * sigmoid(g) * vf_load(up + i));
    }
    if (i < i1) {
        vf g = vf_load_n(gate + i, i1 - i);
        vf_store_n(y + i, g * sigmoid(g) * vf_load_n(up + i, i1 - i), i1 - i);
    }
}

static inline void backward(vf *dgate, vf *dup, vf g, vf u, vf d)
{
    const vf one = vf_set1(1), sigma = sigmoid(g), d_sigma = d * sigma;
    *dup = d_sigma * g;
    *dgate = d_sigma * u * vf_fma(g, one - sigma, one);
}

void AG_LEVEL(ag_swiglu_bwd)(const ag_swiglu_bwd_args *a, int64_t i0, int64_t i1)
{
    const float *gate = a->gate.data, *up = a->up.data, *dy = a->dy.data;
    float *dgate = a->dgate.data, *dup = a->dup.data;
    vf dg, du;
    int64_t i = i0;
    for (; i + VF_LANES <= i1; i += VF_LANES) {
        backward(&dg, &du, vf_load(gate + i), vf_load(up + i), vf_load(dy + i));
        vf_store(dgate + i, dg);
        vf_store(dup + i, du);
    }
    if (i < i1) {
        const int64_t n = i1 - i;
        backward(&dg, &du, vf_load_n(gate + i, n), vf_load_n(up + i, n), vf_load_n(dy + i, n));
        vf_store_n(dgate + i, dg, n);
        vf_store_n(dup + i, du, n);
    }
}
