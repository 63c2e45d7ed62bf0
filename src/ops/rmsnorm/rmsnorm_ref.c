/* The reference: the formula, in double, one row after the other. Never optimized; every level answers to it. */
#include "ops/rmsnorm/rmsnorm_slots.h"

#include <math.h>

void ag_rmsnorm_fwd_ref(const ag_rmsnorm_fwd_args *a, int64_t t0, int64_t t1)
{
    const int64_t C = a->x.dim[1];
    const float *w = a->w.data;
    for (int64_t t = t0; t < t1; t++) {
        const float *x = (const float *)a->x.data + t * C;
        float *y = (float *)a->y.data + t * C;
        double sum = 0;
        for (int64_t c = 0; c < C; c++) sum += (double)x[c] * x[c];
        double r = 1 / sqrt(sum / (double)C + a->eps);
        for (int64_t c = 0; c < C; c++) y[c] = (float)(x[c] * r * w[c]);
        ((float *)a->r.data)[t] = (float)r;
    }
}

void ag_rmsnorm_bwd_ref(const ag_rmsnorm_bwd_args *a, int64_t t0, int64_t t1)
{
    const int64_t C = a->x.dim[1];
    const float *w = a->w.data;
    for (int64_t t = t0; t < t1; t++) {
        const float *x = (const float *)a->x.data + t * C, *dy = (const float *)a->dy.data + t * C;
        float *dx = (float *)a->dx.data + t * C;
        double r = ((const float *)a->r.data)[t], gx = 0;
        for (int64_t c = 0; c < C; c++) gx += (double)dy[c] * w[c] * x[c];
        for (int64_t c = 0; c < C; c++) dx[c] += (float)(r * dy[c] * w[c] - x[c] * r * r * r * (gx / (double)C));
    }
}
