#include "ops/rope/rope_slots.h"
#include "ops/simd.h"

static inline void rotate(float *lower, float *upper, vf c, vf s, int64_t n)
{
    vf l = vf_load_n(lower, n), u = vf_load_n(upper, n);
    vf_store_n(lower, vf_fnma(u, s, l * c), n);
    vf_store_n(upper, vf_fma(l, s, u * c), n);
}

void AG_LEVEL(ag_rope_rotate)(const ag_rope_args *a, int64_t t0, int64_t t1)
{
    const int64_t H = a->x.dim[1], D = a->x.dim[2], half = (a->n_rotated > 0 ? a->n_rotated : D) / 2;
    const int32_t *positions = a->positions.data;
    const vf sign = vf_set1(a->backward ? -1 : 1);
    for (int64_t t = t0; t < t1; t++) {
        const float *cos = a->cos + positions[t] * half, *sin = a->sin + positions[t] * half;
        float *x = (float *)a->x.data + t * H * D;
        for (int64_t i = 0; i < half; i += VF_LANES) {
            const vf c = vf_load_n(cos + i, half - i), s = vf_load_n(sin + i, half - i) * sign;
            for (int64_t h = 0; h < H; h++) rotate(x + h * D + i, x + h * D + half + i, c, s, half - i);
        }
    }
}
