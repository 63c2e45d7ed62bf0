/* Proof of adamw: against torch.optim.AdamW's own numbers, to the bit for the vector levels; every level by the reference. */
#include "golden/adamw/steps.h"
#include "ops/adamw/adamw_cases.h"
#include "support/op_check.h"
#include "support/tolerance.h"

typedef struct {
    const char *name;
    double lr, beta1, beta2, eps, weight_decay;
    const float (*p)[GOLDEN_N], (*m)[GOLDEN_N], (*v)[GOLDEN_N];
} golden_case;

static const golden_case golden_cases[] = {
    {"no decay", 1e-3, 0.9, 0.999, 1e-8, 0, golden_a_p, golden_a_m, golden_a_v},
    {"decay", 2e-4, 0.9, 0.95, 1e-6, 0.1, golden_b_p, golden_b_m, golden_b_v},
    {"beta1 below a half", 3e-3, 0.3, 0.99, 1e-8, 0.01, golden_c_p, golden_c_m, golden_c_v},
};

static void check_golden(const golden_case *of, ag_cpu_level level)
{
    ag_err err;
    ag_backend be = check_backend(level, 2);
    float *p = check_floats(GOLDEN_N), *m = check_floats(GOLDEN_N), *v = check_floats(GOLDEN_N), g[GOLDEN_N];
    memcpy(p, golden_start[0], sizeof g);
    memset(m, 0, sizeof g);
    memset(v, 0, sizeof g);
    for (int step = 1; step <= GOLDEN_STEPS; step++) {
        memcpy(g, golden_g[step - 1], sizeof g);
        assert_int_equal(AG_OK, ag_adamw(&be, &(ag_adamw_args){
            .p = ag_vec_f32(p, GOLDEN_N), .m = ag_vec_f32(m, GOLDEN_N), .v = ag_vec_f32(v, GOLDEN_N), .g = ag_vec_f32(g, GOLDEN_N),
            .lr = of->lr, .beta1 = of->beta1, .beta2 = of->beta2, .eps = of->eps, .weight_decay = of->weight_decay,
            .grad_scale = 1, .step = step}, &err));
        check_close(p, of->p[step - 1], GOLDEN_N, TOLERANCE_F32_ELEMENT, of->name);
        check_close(m, of->m[step - 1], GOLDEN_N, TOLERANCE_F32_ELEMENT, of->name);
        check_close(v, of->v[step - 1], GOLDEN_N, TOLERANCE_F32_ELEMENT, of->name);
        if (level == AG_CPU_REF) continue; /* in double: close, and not the same bits */
        assert_memory_equal(m, of->m[step - 1], sizeof g);
        assert_memory_equal(v, of->v[step - 1], sizeof g);
        assert_memory_equal(p, of->p[step - 1], sizeof g);
    }
    check_guards(p, GOLDEN_N, "p");
    check_free(p), check_free(m), check_free(v);
}

static void steps_equal_torch(void **state)
{
    (void)state;
    const ag_cpu_level *level = check_levels();
    do {
        for (size_t i = 0; i < sizeof golden_cases / sizeof *golden_cases; i++) check_golden(&golden_cases[i], *level);
    } while (*level++ != AG_CPU_REF);
}

typedef struct {
    float *p, *m, *v, *g;
    double squares;
} problem;

static problem solve(ag_cpu_level level, int n_threads, int64_t n)
{
    ag_err err;
    ag_backend be = check_backend(level, n_threads);
    problem q = {check_floats(n), check_floats(n), check_floats(n), check_floats(n), 0};
    check_fill(q.p, n, 1, 1);
    check_fill(q.m, n, 2, 1);
    check_fill(q.v, n, 3, 1);
    for (int64_t i = 0; i < n; i++) q.v[i] = fabsf(q.v[i]);
    check_fill(q.g, n, 4, 1);
    assert_int_equal(AG_OK, ag_adamw(&be, &(ag_adamw_args){
        .p = ag_vec_f32(q.p, n), .m = ag_vec_f32(q.m, n), .v = ag_vec_f32(q.v, n), .g = ag_vec_f32(q.g, n), .lr = 1e-2,
        .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.37, .step = 3}, &err));
    assert_int_equal(AG_OK, ag_sum_squares(&be, &q.squares, ag_vec_f32(q.g, n), &err));
    check_guards(q.p, n, "p");
    check_guards(q.m, n, "m");
    check_guards(q.v, n, "v");
    return q;
}

static void problem_free(problem *q) { check_free(q->p), check_free(q->m), check_free(q->v), check_free(q->g); }

static void check_case(ag_cpu_level level, int64_t n)
{
    problem want = solve(AG_CPU_REF, 1, n), one = solve(level, 1, n);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        problem got = solve(level, n_threads, n);
        check_close(got.p, want.p, n, TOLERANCE_F32_ELEMENT, "p");
        check_close(got.m, want.m, n, TOLERANCE_F32_ELEMENT, "m");
        check_close(got.v, want.v, n, TOLERANCE_F32_ELEMENT, "v");
        assert_true(fabs(got.squares - want.squares) <= 1e-12 * want.squares && want.squares > 0);
        assert_memory_equal(got.p, one.p, (size_t)n * sizeof(float));
        assert_memory_equal(&got.squares, &one.squares, sizeof one.squares);
        problem_free(&got);
    }
    problem_free(&want);
    problem_free(&one);
}

static void every_level_equals_the_reference_for_any_number_of_threads(void **state)
{
    (void)state;
    const ag_cpu_level *level = check_levels();
    do {
#define X(n) check_case(*level, n);
        AG_ADAMW_CASES(X)
#undef X
    } while (*level++ != AG_CPU_REF);
}

static void wrong_arguments_are_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    float x[4] = {0};
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_adamw_args a = {.p = ag_vec_f32(x, 4), .m = ag_vec_f32(x, 4), .v = ag_vec_f32(x, 3), .g = ag_vec_f32(x, 4),
                       .beta1 = 0.9, .beta2 = 0.999, .step = 1, .grad_scale = 1};
    assert_int_equal(AG_E_SHAPE, ag_adamw(&ref, &a, &err));
    assert_string_equal("adamw: v has 3 values, p has 4", err.text);
    a.v = ag_vec_f32(x, 4), a.step = 0;
    assert_int_equal(AG_E_CONFIG, ag_adamw(&ref, &a, &err));
    assert_string_equal("adamw: step is 0; steps count from 1", err.text);
    a.step = 1, a.beta2 = 1;
    assert_int_equal(AG_E_CONFIG, ag_adamw(&ref, &a, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_torch),
        cmocka_unit_test(every_level_equals_the_reference_for_any_number_of_threads),
        cmocka_unit_test(wrong_arguments_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
