/* The reference: the formula, in double, one head after the other. Never optimized; every level answers to it. */
#include "ops/rope/rope_slots.h"

void ag_rope_rotate_ref(const ag_rope_args *a, int64_t t0, int64_t t1)
{
    const int64_t H = a->x.dim[1], D = a->x.dim[2], half = (a->n_rotated > 0 ? a->n_rotated : D) / 2;
    const int32_t *positions = a->positions.data;
    for (int64_t t = t0; t < t1; t++) {
        const float *cos = a->cos + positions[t] * half, *sin = a->sin + positions[t] * half;
        for (int64_t h = 0; h < H; h++) {
            float *x = (float *)a->x.data + (t * H + h) * D;
            for (int64_t i = 0; i < half; i++) {
                double c = cos[i], s = a->backward ? -sin[i] : sin[i], lower = x[i], upper = x[i + half];
                x[i] = (float)(lower * c - upper * s);
                x[i + half] = (float)(upper * c + lower * s);
            }
        }
    }
}
