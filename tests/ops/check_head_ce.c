/* Proof of the head: the reference by finite differences, every level by the reference, and both against torch's cross_entropy. */
#include "golden/head_ce/torch.h"
#include "ops/head_ce/head_ce_cases.h"
#include "support/op_check.h"
#include "support/tolerance.h"
#include "support/weight_make.h"

typedef struct {
    int64_t M, C, V;
    float logit_scale, softcap;
    ag_compute compute;
    ag_weight w;
    float *x, *weights, *nll, *dx;
    int32_t *targets, *best;
} problem;

static problem problem_create(int64_t M, int64_t C, int64_t V, ag_compute compute)
{
    problem p = {M, C, V, 0.7f, 0, compute, {0}, check_floats(M * C), check_floats(V * C), check_floats(M), check_floats(M * C),
                 calloc((size_t)M, sizeof(int32_t)), calloc((size_t)M, sizeof(int32_t))};
    assert_true(p.targets && p.best);
    const uint32_t seed = (uint32_t)(M * 31 + C * 7 + V);
    check_fill(p.x, M * C, seed, 8 / sqrtf((float)C)); /* logits up to about 8, for any C */
    check_fill(p.weights, V * C, seed + 1, 1);
    for (int64_t m = 0; m < M; m++) p.targets[m] = (int32_t)((m * 7919 + 13) % V);
    p.w = (ag_weight){.type = AG_W_F32, .N = V, .K = C, .data = p.weights};
    return p;
}

static void problem_free(problem *p)
{
    check_free(p->x), check_free(p->weights), check_free(p->nll), check_free(p->dx);
    free(p->targets), free(p->best);
}

static ag_head_ce_args args_of(problem *p)
{
    return (ag_head_ce_args){
        .nll = ag_vec_f32(p->nll, p->M), .best = ag_vec_i32(p->best, p->M), .dx = ag_mat_f32(p->dx, p->M, p->C),
        .x = ag_mat_f32(p->x, p->M, p->C), .targets = ag_vec_i32(p->targets, p->M), .w = &p->w, .logit_scale = p->logit_scale, .softcap = p->softcap,
        .dloss = 0.25f, .compute = p->compute};
}

static void run(problem *p, ag_backend *be)
{
    ag_err err;
    check_backend_scratch(be, ag_head_ce_scratch_bytes(be, p->M, p->C, p->V));
    const ag_head_ce_args a = args_of(p);
    if (ag_head_ce(be, &a, &err)) fail_msg("%s", err.text);
    check_guards(p->nll, p->M, "nll");
    check_guards(p->dx, p->M * p->C, "dx");
}

/* A logit's error is a relative error of its softmax: what a dot product may be wrong by counts times the logit's size. */
static double tolerance_dx(const problem *p)
{
    return p->compute == AG_COMPUTE_BF16 ? 0x1p-8 : 8 * tolerance_f32_sum((double)p->C);
}

static void check_case(ag_cpu_level level, const problem *want)
{
    const int64_t M = want->M, C = want->C;
    problem one = {0};
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        ag_backend be = check_backend(level, n_threads);
        problem got = problem_create(M, C, want->V, want->compute);
        got.softcap = want->softcap;
        run(&got, &be);
        check_close(got.nll, want->nll, M, tolerance_f32_sum((double)C), "nll");
        check_close(got.dx, want->dx, M * C, tolerance_dx(want), "dx");
        assert_memory_equal(got.best, want->best, (size_t)M * sizeof *got.best);
        if (n_threads == 1) one = got;
        assert_memory_equal(got.dx, one.dx, (size_t)(M * C) * sizeof(float));
        assert_memory_equal(got.nll, one.nll, (size_t)M * sizeof(float));
        assert_memory_equal(got.best, one.best, (size_t)M * sizeof *got.best);
        if (n_threads > 1) problem_free(&got);
        check_backend_free(&be);
    }
    problem_free(&one);
}

static void every_level_equals_the_reference_for_any_number_of_threads(void **state)
{
    (void)state;
    ag_backend ref = check_backend(AG_CPU_REF, 2);
#define X(M, C, V)                                                                                                \
    for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++) {                                   \
        problem want = problem_create(M, C, V, (ag_compute)compute);                                              \
        run(&want, &ref);                                                                                         \
        for (const ag_cpu_level *l = check_levels(); *l != AG_CPU_REF; l++) check_case(*l, &want);          \
        problem_free(&want);                                                                                      \
    }
    AG_HEAD_CE_CASES(X)
#undef X
    check_backend_free(&ref);
}

static void capped_logits_equal_the_reference(void **state)
{
    (void)state;
    ag_backend ref = check_backend(AG_CPU_REF, 2);
    for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++) {
        problem want = problem_create(13, 33, 4100, (ag_compute)compute);
        want.softcap = 3;
        run(&want, &ref);
        for (const ag_cpu_level *l = check_levels(); *l != AG_CPU_REF; l++) check_case(*l, &want);
        problem_free(&want);
    }
    check_backend_free(&ref);
}

/* A block of ids is a slice of the head's rows, and rows of NF4 may begin inside a block of scales. */
static void a_head_in_any_stored_form_equals_the_reference(void **state)
{
    (void)state;
    ag_backend ref = check_backend(AG_CPU_REF, 2);
    const ag_weight_type types[] = {AG_W_BF16, AG_W_Q8_0, AG_W_Q6_K, AG_W_NF4, AG_W_NF4};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int64_t C = types[i] == AG_W_NF4 ? 90 : 256;
        ag_weight w = weight_make(types[i], 2100, C, 5, i == 4);
        problem want = problem_create(9, C, 2100, AG_COMPUTE_F32);
        want.w = w;
        run(&want, &ref);
        for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
            ag_backend be = check_backend(*level, 2);
            problem got = problem_create(9, C, 2100, AG_COMPUTE_F32);
            got.w = w;
            run(&got, &be);
            check_close(got.nll, want.nll, 9, tolerance_f32_sum((double)C), "nll");
            check_close(got.dx, want.dx, 9 * C, tolerance_dx(&want), "dx");
            problem_free(&got);
            check_backend_free(&be);
        }
        problem_free(&want);
        weight_free(&w);
    }
    check_backend_free(&ref);
}

static void numbers_equal_torch(void **state)
{
    (void)state;
    const ag_cpu_level *level = check_levels();
    do {
        ag_backend be = check_backend(*level, 2);
        problem p = problem_create(GOLDEN_M, GOLDEN_C, GOLDEN_V, AG_COMPUTE_F32);
        memcpy(p.x, golden_x, sizeof golden_x);
        memcpy(p.weights, golden_w, sizeof golden_w);
        memcpy(p.targets, golden_targets, sizeof golden_targets);
        p.logit_scale = golden_logit_scale;
        check_backend_scratch(&be, ag_head_ce_scratch_bytes(&be, p.M, p.C, p.V));
        ag_head_ce_args a = args_of(&p);
        a.dloss = golden_dloss;
        ag_err err;
        assert_int_equal(AG_OK, ag_head_ce(&be, &a, &err));
        check_close(p.nll, golden_nll, GOLDEN_M, TOLERANCE_F32_ELEMENT, "nll");
        check_close(p.dx, golden_dx, GOLDEN_M * GOLDEN_C, 2e-6, "dx");
        assert_memory_equal(p.best, golden_best, sizeof golden_best);
        problem_free(&p);
        check_backend_free(&be);
    } while (*level++ != AG_CPU_REF);
}

static double loss(const problem *p, const double *x, int64_t m)
{
    double sum = 0, at_target = 0;
    for (int64_t v = 0; v < p->V; v++) {
        double logit = 0;
        for (int64_t c = 0; c < p->C; c++) logit += p->logit_scale * x[c] * p->weights[v * p->C + c];
        if (p->softcap > 0) logit = p->softcap * tanh(logit / p->softcap);
        sum += exp(logit);
        if (v == p->targets[m]) at_target = logit;
    }
    return log(sum) - at_target;
}

static void check_differences(float softcap)
{
    enum { M = 3, C = 7, V = 50 };
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem p = problem_create(M, C, V, AG_COMPUTE_F32);
    p.softcap = softcap;
    run(&p, &ref);
    const double h = 1e-5;
    for (int64_t m = 0; m < M; m++)
        for (int64_t c = 0; c < C; c++) {
            double x[C];
            for (int i = 0; i < C; i++) x[i] = p.x[m * C + i];
            assert_true(fabs(loss(&p, x, m) - p.nll[m]) < 1e-5);
            x[c] += h;
            const double above = loss(&p, x, m);
            x[c] -= 2 * h;
            const double below = loss(&p, x, m);
            assert_true(fabs(0.25 * (above - below) / (2 * h) - p.dx[m * C + c]) < 1e-6);
        }
    problem_free(&p);
    check_backend_free(&ref);
}

static void reference_backward_equals_finite_differences(void **state)
{
    (void)state;
    check_differences(0);
    check_differences(3);
}

/* Where the model is sure of the target, softmax - 1 is tiny: it may not drown in the rounding of operands. */
static void a_sure_target_keeps_an_exact_gradient(void **state)
{
    (void)state;
    enum { M = 9, C = 32, V = 3000 };
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++) {
        problem want = problem_create(M, C, V, (ag_compute)compute);
        for (const ag_cpu_level *level = check_levels();; level++) {
            const bool is_ref = *level == AG_CPU_REF;
            ag_backend be = check_backend(*level, 2);
            problem p = problem_create(M, C, V, (ag_compute)compute);
            problem *q = is_ref ? &want : &p;
            for (int64_t m = 0; m < M; m++) /* x along its target's weights: a logit of about 30 over the others' 10 */
                for (int64_t c = 0; c < C; c++) q->x[m * C + c] = 4 * q->weights[q->targets[m] * C + c];
            if (is_ref) {
                problem_free(&p);
                check_backend_free(&be);
                break;
            }
            memcpy(want.x, p.x, (size_t)(M * C) * sizeof(float));
            run(&want, &ref);
            run(&p, &be);
            check_close(p.dx, want.dx, M * C, compute == AG_COMPUTE_BF16 ? 0x1p-7 : 2e-5, "dx");
            problem_free(&p);
            check_backend_free(&be);
        }
        problem_free(&want);
    }
    check_backend_free(&ref);
}

static void the_first_of_equal_logits_is_the_best(void **state)
{
    (void)state;
    const ag_cpu_level *level = check_levels();
    do {
        ag_backend be = check_backend(*level, 2);
        problem p = problem_create(2, 4, 2100, AG_COMPUTE_F32);
        memset(p.weights, 0, 2100 * 4 * sizeof(float));
        p.x[0] = p.x[4] = 1;
        p.weights[70 * 4] = p.weights[71 * 4] = p.weights[2090 * 4] = 5;
        run(&p, &be);
        assert_int_equal(70, p.best[0]);
        assert_int_equal(70, p.best[1]);
        problem_free(&p);
        check_backend_free(&be);
    } while (*level++ != AG_CPU_REF);
}

static void large_logits_stay_finite(void **state)
{
    (void)state;
    const ag_cpu_level *level = check_levels();
    do {
        ag_backend be = check_backend(*level, 1);
        problem p = problem_create(9, 64, 2500, AG_COMPUTE_F32);
        for (int64_t i = 0; i < 9 * 64; i++) p.x[i] *= 1000;
        run(&p, &be);
        for (int64_t m = 0; m < 9; m++) assert_true(isfinite(p.nll[m]) && p.nll[m] >= 0);
        for (int64_t i = 0; i < 9 * 64; i++) assert_true(isfinite(p.dx[i]));
        problem_free(&p);
        check_backend_free(&be);
    } while (*level++ != AG_CPU_REF);
}

static void forward_alone_gives_the_same_loss(void **state)
{
    (void)state;
    const ag_cpu_level *level = check_levels();
    do {
        ag_err err;
        ag_backend be = check_backend(*level, 2);
        problem whole = problem_create(13, 33, 4100, AG_COMPUTE_F32), alone = problem_create(13, 33, 4100, AG_COMPUTE_F32);
        run(&whole, &be);
        ag_head_ce_args a = args_of(&alone);
        a.dx.data = a.best.data = NULL;
        assert_int_equal(AG_OK, ag_head_ce(&be, &a, &err));
        assert_memory_equal(whole.nll, alone.nll, 13 * sizeof(float));
        problem_free(&whole);
        problem_free(&alone);
        check_backend_free(&be);
    } while (*level++ != AG_CPU_REF);
}

static void wrong_arguments_are_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem p = problem_create(3, 7, 50, AG_COMPUTE_F32);
    p.targets[1] = 50;
    ag_head_ce_args a = args_of(&p);
    assert_int_equal(AG_E_DATA, ag_head_ce(&ref, &a, &err));
    assert_string_equal("head: the target of row 1 is 50, which is not in the vocabulary 0..49", err.text);
    p.targets[1] = -100;
    assert_int_equal(AG_E_DATA, ag_head_ce(&ref, &a, &err));
    p.targets[1] = 0;
    a.x = ag_mat_f32(p.x, 3, 6);
    assert_int_equal(AG_E_SHAPE, ag_head_ce(&ref, &a, &err));
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_backward_equals_finite_differences),
        cmocka_unit_test(every_level_equals_the_reference_for_any_number_of_threads),
        cmocka_unit_test(capped_logits_equal_the_reference),
        cmocka_unit_test(a_head_in_any_stored_form_equals_the_reference),
        cmocka_unit_test(numbers_equal_torch),
        cmocka_unit_test(a_sure_target_keeps_an_exact_gradient),
        cmocka_unit_test(the_first_of_equal_logits_is_the_best),
        cmocka_unit_test(large_logits_stay_finite),
        cmocka_unit_test(forward_alone_gives_the_same_loss),
        cmocka_unit_test(wrong_arguments_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
