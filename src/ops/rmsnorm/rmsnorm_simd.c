/* Two sums hide the latency of the FMA. A row's order of additions depends on C alone, so its bits do not depend on threads or
 * on neighbours. */
#include "ops/rmsnorm/rmsnorm_slots.h"
#include "ops/simd.h"

void AG_LEVEL(ag_rmsnorm_fwd)(const ag_rmsnorm_fwd_args *a, int64_t t0, int64_t t1)
{
    const int64_t C = a->x.dim[1];
    const float *w = a->w.data;
    for (int64_t t = t0; t < t1; t++) {
        const float *x = (const float *)a->x.data + t * C;
        float *y = (float *)a->y.data + t * C;
        vf s0 = vf_zero(), s1 = s0;
        int64_t c = 0;
        for (; c + 2 * VF_LANES <= C; c += 2 * VF_LANES) {
            vf x0 = vf_load(x + c), x1 = vf_load(x + c + VF_LANES);
            s0 = vf_fma(x0, x0, s0);
            s1 = vf_fma(x1, x1, s1);
        }
        for (; c < C; c += VF_LANES) {
            vf x0 = vf_load_n(x + c, C - c);
            s0 = vf_fma(x0, x0, s0);
        }
        float r = 1 / sqrtf(vf_sum(s0 + s1) / (float)C + a->eps);
        for (c = 0; c < C; c += VF_LANES)
            vf_store_n(y + c, vf_load_n(x + c, C - c) * vf_set1(r) * vf_load_n(w + c, C - c), C - c);
        ((float *)a->r.data)[t] = r;
    }
}

void AG_LEVEL(ag_rmsnorm_bwd)(const ag_rmsnorm_bwd_args *a, int64_t t0, int64_t t1)
{
    const int64_t C = a->x.dim[1];
    const float *w = a->w.data;
    for (int64_t t = t0; t < t1; t++) {
        const float *x = (const float *)a->x.data + t * C, *dy = (const float *)a->dy.data + t * C;
        float *dx = (float *)a->dx.data + t * C;
        const float r = ((const float *)a->r.data)[t];
        vf s = vf_zero();
        for (int64_t c = 0; c < C; c += VF_LANES)
            s = vf_fma(vf_load_n(dy + c, C - c) * vf_load_n(w + c, C - c), vf_load_n(x + c, C - c), s);
        const vf k = vf_set1(r * r * r * vf_sum(s) / (float)C);
        for (int64_t c = 0; c < C; c += VF_LANES) {
            vf g = vf_load_n(dy + c, C - c) * vf_load_n(w + c, C - c);
            vf d = vf_fma(vf_set1(r), g, vf_load_n(dx + c, C - c));
            vf_store_n(dx + c, vf_fnma(k, vf_load_n(x + c, C - c), d), C - c);
        }
    }
}
