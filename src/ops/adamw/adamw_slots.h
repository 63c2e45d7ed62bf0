#ifndef AG_ADAMW_SLOTS_H
#define AG_ADAMW_SLOTS_H

#include "ops/adamw/adamw.h"
#include "ops/adamw/adamw8.h"
#include "ops/cpu_level.h"

/* What a step multiplies with, made once from the step's arguments. */
typedef struct {
    double decay;       /* 1 - lr·wd */
    double beta1, beta2;
    double one_minus_beta1, one_minus_beta2;
    double root_correction2; /* sqrt(1-β2^t) */
    double eps;
    double step_size;   /* lr / (1-β1^t) */
    double grad_scale;
    bool decays;        /* wd != 0 */
    bool scales;        /* grad_scale != 1 */
} ag_adamw_coefficients;

/* One step over n elements. */
typedef void ag_adamw_step_fn(float *p, float *m, float *v, const float *g, int64_t n, const ag_adamw_coefficients *c);
/* Makes them; AG_E_CONFIG where step < 1 or a beta is not in [0,1). */
AG_MUST_USE ag_status ag_adamw_make_coefficients(ag_adamw_coefficients *c, double lr, double beta1, double beta2, double eps,
                                                 double weight_decay, double grad_scale, int64_t step, ag_err *err);

/* At most AG_ADAMW8_BLOCK numbers with moments in 8 bits, and what codes mean: 256 ascending values, and the bounds between them. */
typedef struct {
    float *p;
    const float *g;
    uint8_t *m, *v;
    float *absmax_m, *absmax_v;
    int64_t n;
} ag_adamw8_block;
typedef struct {
    const float *m, *v;
    float m_bounds[256], v_bounds[256]; /* the last is infinite */
} ag_adamw8_maps;
typedef void ag_adamw8_step_fn(const ag_adamw8_block *block, const ag_adamw_coefficients *c, const ag_adamw8_maps *maps);
typedef double ag_sum_squares_fn(const float *x, int64_t n);

typedef struct {
    ag_adamw_step_fn *step;
    ag_sum_squares_fn *sum_squares;
    ag_adamw8_step_fn *step8;
} ag_adamw_slots;

void ag_adamw_use(ag_adamw_slots *slots, ag_cpu_level level);

ag_adamw_step_fn ag_adamw_step_ref, ag_adamw_step_neon, ag_adamw_step_avx2, ag_adamw_step_avx512;
ag_adamw8_step_fn ag_adamw8_step_ref, ag_adamw8_step_neon, ag_adamw8_step_avx2, ag_adamw8_step_avx512;
ag_sum_squares_fn ag_sum_squares_ref, ag_sum_squares_neon, ag_sum_squares_avx2, ag_sum_squares_avx512;

#endif
