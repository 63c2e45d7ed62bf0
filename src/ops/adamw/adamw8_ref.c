/* The reference: the formula, in double, element by element; codes by looking at all of them. */
#include "ops/adamw/adamw_slots.h"

#include <math.h>

static uint8_t nearest(const float *map, double x)
{
    int best = 0;
    for (int i = 1; i < 256; i++)
        if (fabs(x - (double)map[i]) < fabs(x - (double)map[best])) best = i;
    return (uint8_t)best;
}

void ag_adamw8_step_ref(const ag_adamw8_block *b, const ag_adamw_coefficients *c, const ag_adamw8_maps *maps)
{
    double m[AG_ADAMW8_BLOCK], v[AG_ADAMW8_BLOCK], most_m = 0, most_v = 0;
    for (int64_t i = 0; i < b->n; i++) {
        const double g = (double)b->g[i] * c->grad_scale;
        m[i] = c->beta1 * ((double)maps->m[b->m[i]] * (double)*b->absmax_m) + c->one_minus_beta1 * g;
        v[i] = c->beta2 * ((double)maps->v[b->v[i]] * (double)*b->absmax_v) + c->one_minus_beta2 * g * g;
        b->p[i] = (float)((double)b->p[i] * c->decay - c->step_size * m[i] / (sqrt(v[i]) / c->root_correction2 + c->eps));
        most_m = fmax(most_m, fabs(m[i]));
        most_v = fmax(most_v, fabs(v[i]));
    }
    *b->absmax_m = (float)most_m;
    *b->absmax_v = (float)most_v;
    for (int64_t i = 0; i < b->n; i++) {
        b->m[i] = most_m > 0 ? nearest(maps->m, m[i] / most_m) : 0;
        b->v[i] = most_v > 0 ? nearest(maps->v, v[i] / most_v) : 0;
    }
}
