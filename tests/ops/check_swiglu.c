#define _GNU_SOURCE
/* Proof of swiglu: the reference by finite differences, every level by the reference, over one list of cases. */
#include "ops/swiglu/swiglu_cases.h"
#include "support/op_check.h"
#include "support/tolerance.h"

typedef struct {
    int64_t T, F;
    ag_gate act;
    float *gate, *up, *dy, *y, *dgate, *dup;
} problem;

static problem problem_create(int64_t T, int64_t F, ag_gate act)
{
    const int64_t n = T * F;
    problem p = {T, F, act, check_floats(n), check_floats(n), check_floats(n), check_floats(n), check_floats(n), check_floats(n)};
    check_fill(p.gate, n, (uint32_t)(T * 31 + F), 12);
    check_fill(p.up, n, (uint32_t)(T * 31 + F) + 1, 2);
    check_fill(p.dy, n, (uint32_t)(T * 31 + F) + 2, 1);
    return p;
}

static void problem_free(problem *p)
{
    float *all[] = {p->gate, p->up, p->dy, p->y, p->dgate, p->dup};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_free(all[i]);
}

static void run(problem *p, const ag_backend *be)
{
    ag_err err;
    ag_tensor gate = ag_mat_f32(p->gate, p->T, p->F), up = ag_mat_f32(p->up, p->T, p->F);
    assert_int_equal(AG_OK, ag_swiglu_fwd(be, &(ag_swiglu_fwd_args){.y = ag_mat_f32(p->y, p->T, p->F), .gate = gate, .up = up, .act = p->act}, &err));
    assert_int_equal(AG_OK, ag_swiglu_bwd(be, &(ag_swiglu_bwd_args){
        .dgate = ag_mat_f32(p->dgate, p->T, p->F), .dup = ag_mat_f32(p->dup, p->T, p->F), .dy = ag_mat_f32(p->dy, p->T, p->F),
        .gate = gate, .up = up, .act = p->act}, &err));
}

static void check_case(ag_cpu_level level, int64_t T, int64_t F, ag_gate act)
{
    const int64_t n = T * F;
    const double tolerance = act == AG_GATE_SILU ? TOLERANCE_F32_ELEMENT : TOLERANCE_F32_GELU;
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem want = problem_create(T, F, act), first = problem_create(T, F, act);
    run(&want, &ref);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        ag_backend be = check_backend(level, n_threads);
        problem got = problem_create(T, F, act);
        run(&got, &be);
        check_close(got.y, want.y, n, tolerance, "y");
        check_close(got.dgate, want.dgate, n, tolerance, "dgate");
        check_close(got.dup, want.dup, n, tolerance, "dup");
        check_guards(got.y, n, "y");
        check_guards(got.dgate, n, "dgate");
        check_guards(got.dup, n, "dup");
        if (n_threads == 1) run(&first, &be);
        assert_memory_equal(got.dgate, first.dgate, (size_t)n * sizeof(float));
        problem_free(&got);
    }
    problem_free(&want);
    problem_free(&first);
}

static void every_level_equals_the_reference(void **state)
{
    (void)state;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
#define X(T, F)                             \
    check_case(*level, T, F, AG_GATE_SILU); \
    check_case(*level, T, F, AG_GATE_GELU_TANH);
        AG_SWIGLU_CASES(X)
#undef X
    }
}

static void outputs_may_lie_over_inputs(void **state)
{
    (void)state;
    ag_err err;
    const ag_cpu_level *level = check_levels();
    do {
        ag_backend be = check_backend(*level, 2);
        problem apart = problem_create(5, 255, AG_GATE_SILU), over = problem_create(5, 255, AG_GATE_SILU);
        run(&apart, &be);
        ag_tensor gate = ag_mat_f32(over.gate, 5, 255), up = ag_mat_f32(over.up, 5, 255), dy = ag_mat_f32(over.dy, 5, 255);
        assert_int_equal(AG_OK, ag_swiglu_bwd(&be, &(ag_swiglu_bwd_args){.dgate = gate, .dup = dy, .dy = dy, .gate = gate, .up = up}, &err));
        assert_memory_equal(over.gate, apart.dgate, 5 * 255 * sizeof(float));
        assert_memory_equal(over.dy, apart.dup, 5 * 255 * sizeof(float));
        problem_free(&apart);
        problem_free(&over);
    } while (*level++ != AG_CPU_REF);
}

static void extreme_gates_give_finite_numbers(void **state)
{
    (void)state;
    float gate[] = {-1e30f, -200, -89, -88, -20, 0, 20, 88, 200, 1e30f}, up[10], dy[10], y[10], dgate[10], dup[10];
    for (int i = 0; i < 10; i++) up[i] = dy[i] = 1;
    const ag_cpu_level *level = check_levels();
    do {
        ag_backend be = check_backend(*level, 1);
        problem p = {1, 10, AG_GATE_SILU, gate, up, dy, y, dgate, dup};
        run(&p, &be);
        for (int i = 0; i < 10; i++) {
            assert_true(isfinite(y[i]) && isfinite(dup[i]) && isfinite(dgate[i]));
            assert_true(fabsf(y[i] - (gate[i] > 0 ? gate[i] : 0)) <= 1e-6f * fabsf(gate[i]));
        }
    } while (*level++ != AG_CPU_REF);
}

static double loss(ag_gate act, double g, double u, double dy)
{
    const double gelu = 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))); /* as torch's documentation has it */
    return dy * u * (act == AG_GATE_SILU ? g / (1 + exp(-g)) : gelu);
}

static void check_differences(ag_gate act)
{
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem p = problem_create(1, 33, act);
    run(&p, &ref);
    const double h = 1e-6;
    for (int i = 0; i < 33; i++) {
        assert_true(fabs(loss(act, p.gate[i], p.up[i], 1) - p.y[i]) < 1e-5);
        const double g = p.gate[i], u = p.up[i], d = p.dy[i];
        assert_true(fabs((loss(act, g + h, u, d) - loss(act, g - h, u, d)) / (2 * h) - p.dgate[i]) < 1e-6);
        assert_true(fabs((loss(act, g, u + h, d) - loss(act, g, u - h, d)) / (2 * h) - p.dup[i]) < 1e-6);
    }
    problem_free(&p);
}

static void reference_backward_equals_finite_differences(void **state)
{
    (void)state;
    check_differences(AG_GATE_SILU);
    check_differences(AG_GATE_GELU_TANH);
}

static void wrong_shapes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem p = problem_create(3, 17, AG_GATE_SILU);
    assert_int_equal(AG_E_SHAPE, ag_swiglu_fwd(&ref, &(ag_swiglu_fwd_args){
        .y = ag_mat_f32(p.y, 3, 17), .gate = ag_mat_f32(p.gate, 3, 17), .up = ag_mat_f32(p.up, 3, 16)}, &err));
    assert_string_equal("swiglu: up is [3,16], gate is [3,17]; they must be f32 of the same shape", err.text);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_backward_equals_finite_differences),
        cmocka_unit_test(every_level_equals_the_reference),
        cmocka_unit_test(outputs_may_lie_over_inputs),
        cmocka_unit_test(extreme_gates_give_finite_numbers),
        cmocka_unit_test(wrong_shapes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
