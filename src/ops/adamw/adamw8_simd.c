/* torch's order of operations, as in adamw_simd.c, but for the first moment: bitsandbytes multiplies it with β1 and adds (1-β1)·g. */
#include "ops/adamw/adamw_slots.h"
#include "ops/simd.h"

/* The code nearest to x by f32 distance, the lower of equals. Bounds between codes lead to it, or next to it where distances round. */
static inline uint8_t code_of(const float *bounds, const float *map, float x)
{
    unsigned at = 0;
    for (unsigned step = 128; step > 0; step /= 2) at += bounds[at + step - 1] < x ? step : 0;
    const float here = fabsf(x - map[at]);
    if (at > 0 && fabsf(x - map[at - 1]) <= here) return (uint8_t)(at - 1);
    if (at < 255 && fabsf(x - map[at + 1]) < here) return (uint8_t)(at + 1);
    return (uint8_t)at;
}

/* A block of zeros has codes 0, as bitsandbytes has it: absmax 0 makes them 0. */
static void encode(uint8_t *codes, float *absmax, const float *x, int64_t n, const float *bounds, const float *map)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    *absmax = largest;
    const float reciprocal = 1 / largest;
    for (int64_t i = 0; i < n; i++) {
        const float scaled = x[i] * reciprocal;
        codes[i] = largest > 0 ? code_of(bounds, map, scaled > 1 ? 1 : scaled < -1 ? -1 : scaled) : 0;
    }
}

void AG_LEVEL(ag_adamw8_step)(const ag_adamw8_block *b, const ag_adamw_coefficients *c, const ag_adamw8_maps *maps)
{
    float m[AG_ADAMW8_BLOCK] = {0}, v[AG_ADAMW8_BLOCK] = {0};
    for (int64_t i = 0; i < b->n; i++) {
        m[i] = maps->m[b->m[i]] * *b->absmax_m;
        v[i] = maps->v[b->v[i]] * *b->absmax_v;
    }
    const vf beta1 = vf_set1((float)c->beta1), weight1 = vf_set1((float)c->one_minus_beta1), beta2 = vf_set1((float)c->beta2),
             weight2 = vf_set1((float)c->one_minus_beta2), root = vf_set1((float)c->root_correction2), eps = vf_set1((float)c->eps),
             minus_step = vf_set1((float)-c->step_size), decay = vf_set1((float)c->decay), scale = vf_set1((float)c->grad_scale);
    for (int64_t i = 0; i < b->n; i += VF_LANES) {
        vf p = vf_load_n(b->p + i, b->n - i), g = vf_load_n(b->g + i, b->n - i);
        if (c->scales) g = g * scale;
        const vf m1 = vf_fma(g, weight1, vf_load(m + i) * beta1), v1 = vf_fma(weight2 * g, g, vf_load(v + i) * beta2);
        if (c->decays) p = p * decay;
        p = p + (minus_step * m1) / (vf_sqrt(v1) / root + eps);
        vf_store(m + i, m1);
        vf_store(v + i, v1);
        vf_store_n(b->p + i, p, b->n - i);
    }
    encode(b->m, b->absmax_m, m, b->n, maps->m_bounds, maps->m);
    encode(b->v, b->absmax_v, v, b->n, maps->v_bounds, maps->v);
}
