#include "ops/adamw/adamw.h"

#include "ops/backend.h"
#include "ops/profile.h"
#include "ops/simd_levels.h"

#include <math.h>

enum {
    ELEMENTS_PER_BLOCK = 8192, /* what a thread takes at a time: a multiple of every vector's lanes */
    MOST_PARTIAL_SUMS = 256    /* a partial sum covers n/256 elements or a block, whichever is more */
};

void ag_adamw_use(ag_adamw_slots *slots, ag_cpu_level level)
{
    *slots = (ag_adamw_slots){.step = ag_adamw_step_ref, .sum_squares = ag_sum_squares_ref, .step8 = ag_adamw8_step_ref};
    AG_USE_SIMD(slots->step, ag_adamw_step, level);
    AG_USE_SIMD(slots->sum_squares, ag_sum_squares, level);
    AG_USE_SIMD(slots->step8, ag_adamw8_step, level);
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static ag_status check(ag_tensor p, ag_tensor other, const char *name, ag_err *err)
{
    if (!ag_tensor_is(other, AG_F32, 1, p.dim[0], 0))
        return ag_fail(err, AG_E_SHAPE, "adamw: %s has %lld values, p has %lld", name, (long long)other.dim[0],
                       (long long)p.dim[0]);
    return AG_OK;
}

ag_status ag_adamw_make_coefficients(ag_adamw_coefficients *c, double lr, double beta1, double beta2, double eps, double weight_decay,
                                     double grad_scale, int64_t step, ag_err *err)
{
    if (step < 1) return ag_fail(err, AG_E_CONFIG, "adamw: step is %lld; steps count from 1", (long long)step);
    if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1))
        return ag_fail(err, AG_E_CONFIG, "adamw: beta1 is %g and beta2 is %g; both must be at least 0 and below 1", beta1, beta2);
    *c = (ag_adamw_coefficients){
        .decay = 1 - lr * weight_decay, .beta1 = beta1, .beta2 = beta2, .one_minus_beta1 = 1 - beta1, .one_minus_beta2 = 1 - beta2,
        .root_correction2 = sqrt(1 - pow(beta2, (double)step)), .eps = eps, .step_size = lr / (1 - pow(beta1, (double)step)),
        .grad_scale = grad_scale, .decays = weight_decay != 0, .scales = grad_scale != 1};
    return AG_OK;
}

ag_status ag_adamw(const ag_backend *be, const ag_adamw_args *a, ag_err *err)
{
    if (!ag_tensor_is(a->p, AG_F32, 1, a->p.dim[0], 0))
        return ag_fail(err, AG_E_SHAPE, "adamw: p must be an f32 vector");
    AG_TRY(check(a->p, a->m, "m", err));
    AG_TRY(check(a->p, a->v, "v", err));
    AG_TRY(check(a->p, a->g, "g", err));
    ag_adamw_coefficients c;
    AG_TRY(ag_adamw_make_coefficients(&c, a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, a->grad_scale, a->step, err));
    float *p = a->p.data, *m = a->m.data, *v = a->v.data;
    const float *g = a->g.data;
    const int64_t n = a->p.dim[0];
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t i = 0; i < n; i += ELEMENTS_PER_BLOCK)
        be->adamw.step(p + i, m + i, v + i, g + i, min64(ELEMENTS_PER_BLOCK, n - i), &c);
    return AG_OK;
}

ag_status ag_sum_squares(const ag_backend *be, double *out, ag_tensor x, ag_err *err)
{
    if (!ag_tensor_is(x, AG_F32, 1, x.dim[0], 0))
        return ag_fail(err, AG_E_SHAPE, "sum of squares: x must be an f32 vector");
    const int64_t n = x.dim[0], share = (n + MOST_PARTIAL_SUMS - 1) / MOST_PARTIAL_SUMS;
    const int64_t block = share > ELEMENTS_PER_BLOCK ? share : ELEMENTS_PER_BLOCK, n_blocks = (n + block - 1) / block;
    double partial[MOST_PARTIAL_SUMS];
    AG_PROFILE(be, AG_PROFILE_SUM_SQUARES, 2.0 * (double)n, 4.0 * (double)n);
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t b = 0; b < n_blocks; b++)
        partial[b] = be->adamw.sum_squares((const float *)x.data + b * block, min64(block, n - b * block));
    double sum = 0;
    for (int64_t b = 0; b < n_blocks; b++) sum += partial[b];
    *out = sum;
    return AG_OK;
}
