/* The reference: the formula, in double, element by element. Never optimized; every level answers to it. */
#include "ops/adamw/adamw_slots.h"

#include <math.h>

void ag_adamw_step_ref(float *p, float *m, float *v, const float *g, int64_t n, const ag_adamw_coefficients *c)
{
    for (int64_t i = 0; i < n; i++) {
        const double gradient = g[i] * c->grad_scale;
        const double m1 = m[i] + (gradient - m[i]) * c->one_minus_beta1;
        const double v1 = v[i] * c->beta2 + gradient * gradient * c->one_minus_beta2;
        p[i] = (float)(p[i] * c->decay - c->step_size * m1 / (sqrt(v1) / c->root_correction2 + c->eps));
        m[i] = (float)m1;
        v[i] = (float)v1;
    }
}

double ag_sum_squares_ref(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sum;
}
