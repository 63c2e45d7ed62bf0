/* Proof of rmsnorm: the reference by finite differences, every level by the reference, over one list of cases. */
#include "ops/rmsnorm/rmsnorm_cases.h"
#include "support/op_check.h"
#include "support/tolerance.h"

typedef struct {
    int64_t T, C;
    float *x, *w, *dy, *y, *r, *dx;
} problem;

static problem problem_create(int64_t T, int64_t C)
{
    problem p = {T, C, check_floats(T * C), check_floats(C), check_floats(T * C), check_floats(T * C), check_floats(T), check_floats(T * C)};
    uint32_t seed = (uint32_t)(T * 31 + C);
    check_fill(p.x, T * C, seed, 3);
    check_fill(p.dy, T * C, seed + 1, 1);
    check_fill(p.dx, T * C, seed + 2, 1);
    check_fill(p.w, C, seed + 3, 1);
    return p;
}

static void problem_free(problem *p)
{
    float *all[] = {p->x, p->w, p->dy, p->y, p->r, p->dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_free(all[i]);
}

static void run(problem *p, const ag_backend *be)
{
    ag_err err;
    ag_tensor x = ag_mat_f32(p->x, p->T, p->C), w = ag_vec_f32(p->w, p->C), r = ag_vec_f32(p->r, p->T);
    assert_int_equal(AG_OK, ag_rmsnorm_fwd(be, &(ag_rmsnorm_fwd_args){
        .y = ag_mat_f32(p->y, p->T, p->C), .r = r, .x = x, .w = w, .eps = 1e-5f}, &err));
    assert_int_equal(AG_OK, ag_rmsnorm_bwd(be, &(ag_rmsnorm_bwd_args){
        .dx = ag_mat_f32(p->dx, p->T, p->C), .dy = ag_mat_f32(p->dy, p->T, p->C), .x = x, .w = w, .r = r}, &err));
}

static void check_case(ag_cpu_level level, int n_threads, int64_t T, int64_t C)
{
    ag_backend ref = check_backend(AG_CPU_REF, 1), be = check_backend(level, n_threads);
    problem want = problem_create(T, C), got = problem_create(T, C);
    run(&want, &ref);
    run(&got, &be);
    check_close(got.y, want.y, T * C, tolerance_f32_sum((double)C), "y");
    check_close(got.r, want.r, T, tolerance_f32_sum((double)C), "r");
    check_close(got.dx, want.dx, T * C, tolerance_f32_sum((double)C), "dx");
    check_guards(got.y, T * C, "y");
    check_guards(got.r, T, "r");
    check_guards(got.dx, T * C, "dx");
    problem_free(&want);
    problem_free(&got);
}

static void every_level_equals_the_reference(void **state)
{
    (void)state;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
#define X(T, C) check_case(*level, n_threads, T, C);
            AG_RMSNORM_CASES(X)
#undef X
        }
}

static double loss(const double *x, const float *w, const float *dy, int64_t C) /* sum(dy·y) of one row, in double */
{
    double sum = 0, l = 0;
    for (int64_t c = 0; c < C; c++) sum += x[c] * x[c];
    for (int64_t c = 0; c < C; c++) l += dy[c] * x[c] / sqrt(sum / (double)C + 1e-5f) * w[c];
    return l;
}

static void reference_backward_equals_finite_differences(void **state)
{
    (void)state;
    enum { C = 17 };
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem p = problem_create(1, C);
    memset(p.dx, 0, C * sizeof *p.dx);
    run(&p, &ref);
    const double h = 1e-6;
    for (int c = 0; c < C; c++) {
        double x[C];
        for (int i = 0; i < C; i++) x[i] = p.x[i];
        x[c] += h;
        double above = loss(x, p.w, p.dy, C);
        x[c] -= 2 * h;
        double below = loss(x, p.w, p.dy, C);
        assert_true(fabs((above - below) / (2 * h) - p.dx[c]) < 1e-6);
    }
    problem_free(&p);
}

static void wrong_shapes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem p = problem_create(3, 17);
    ag_status s = ag_rmsnorm_fwd(&ref, &(ag_rmsnorm_fwd_args){
        .y = ag_mat_f32(p.y, 3, 17), .r = ag_vec_f32(p.r, 3), .x = ag_mat_f32(p.x, 3, 17), .w = ag_vec_f32(p.w, 16), .eps = 1e-5f}, &err);
    assert_int_equal(AG_E_SHAPE, s);
    assert_string_equal("rmsnorm: w has 16 values, x has 17 columns", err.text);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_backward_equals_finite_differences),
        cmocka_unit_test(every_level_equals_the_reference),
        cmocka_unit_test(wrong_shapes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
