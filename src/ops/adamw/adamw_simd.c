/* torch's order of operations (torch/optim/adam.py, _single_tensor_adam, and its vectorized lerp, addcmul and addcdiv):
 *     p *= decay;   m = fma(w, g - m, m), or from the other end, g + (w-1)·(g - m), where w = 1-β1 ≥ 1/2
 *     v *= β2;      v = fma((1-β2)·g, g, v);   p += (-step·m) / (sqrt(v)/root + eps) */
#include "ops/adamw/adamw_slots.h"
#include "ops/simd.h"

typedef struct {
    vf decay, weight1, beta2, weight2, root, eps, minus_step, scale;
    bool small_weight1, decays, scales;
} vector_coefficients;

static inline void step(vf *p, vf *m, vf *v, vf g, const vector_coefficients *c)
{
    if (c->scales) g = g * c->scale;
    if (c->decays) *p = *p * c->decay;
    *m = vf_fma(c->weight1, g - *m, c->small_weight1 ? *m : g);
    *v = vf_fma(c->weight2 * g, g, *v * c->beta2);
    *p = *p + (c->minus_step * *m) / (vf_sqrt(*v) / c->root + c->eps);
}

void AG_LEVEL(ag_adamw_step)(float *p, float *m, float *v, const float *g, int64_t n, const ag_adamw_coefficients *of)
{
    const bool small = of->one_minus_beta1 < 0.5;
    const vector_coefficients c = {
        .decay = vf_set1((float)of->decay), .beta2 = vf_set1((float)of->beta2),
        .weight1 = vf_set1(small ? (float)of->one_minus_beta1 : (float)of->one_minus_beta1 - 1),
        .weight2 = vf_set1((float)of->one_minus_beta2), .root = vf_set1((float)of->root_correction2),
        .eps = vf_set1((float)of->eps), .minus_step = vf_set1((float)-of->step_size), .scale = vf_set1((float)of->grad_scale),
        .small_weight1 = small, .decays = of->decays, .scales = of->scales};
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES) {
        vf p1 = vf_load(p + i), m1 = vf_load(m + i), v1 = vf_load(v + i);
        step(&p1, &m1, &v1, vf_load(g + i), &c);
        vf_store(p + i, p1);
        vf_store(m + i, m1);
        vf_store(v + i, v1);
    }
    if (i < n) {
        vf p1 = vf_load_n(p + i, n - i), m1 = vf_load_n(m + i, n - i), v1 = vf_load_n(v + i, n - i);
        step(&p1, &m1, &v1, vf_load_n(g + i, n - i), &c);
        vf_store_n(p + i, p1, n - i);
        vf_store_n(m + i, m1, n - i);
        vf_store_n(v + i, v1, n - i);
    }
}

/* Half a vector of floats becomes a whole one of doubles. */
typedef float half_vf __attribute__((vector_size(2 * VF_LANES)));
typedef double vd __attribute__((vector_size(4 * VF_LANES)));

double AG_LEVEL(ag_sum_squares)(const float *x, int64_t n)
{
    enum { HALF = VF_LANES / 2, SUMS = 4 };
    vd sum[SUMS] = {0};
    int64_t i = 0;
    for (; i + SUMS * HALF <= n; i += SUMS * HALF)
        for (int s = 0; s < SUMS; s++) {
            half_vf f;
            memcpy(&f, x + i + s * HALF, sizeof f);
            vd d = __builtin_convertvector(f, vd);
            sum[s] += d * d;
        }
    vd all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double total = 0;
    for (int l = 0; l < HALF; l++) total += all[l];
    for (; i < n; i++) total += (double)x[i] * x[i];
    return total;
}
