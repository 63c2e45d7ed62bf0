/* Proof of lora: the reference by finite differences, every level by the reference, the dropout mask by its definition and by
 * statistics, and the whole against PEFT's own numbers. */
#include "golden/lora/peft.h"
#include "ops/lora/lora_cases.h"
#include "support/lora_problem.h"

static void check_case(int64_t T, int64_t K, int64_t N, int64_t R, float p, ag_compute compute)
{
    ag_backend ref = check_backend(AG_CPU_REF, 2);
    problem want = problem_create(T, K, N, R, p, compute);
    run(&want, &ref);
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
        problem one = {0};
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            ag_backend be = check_backend(*level, n_threads);
            problem got = problem_create(T, K, N, R, p, compute);
            run(&got, &be);
            compare(&got, &want);
            if (n_threads == 1) one = got;
            same_bits(&got, &one);
            if (n_threads > 1) problem_free(&got);
            check_backend_free(&be);
        }
        problem_free(&one);
    }
    problem_free(&want);
    check_backend_free(&ref);
}

static void every_level_equals_the_reference_for_any_number_of_threads(void **state)
{
    (void)state;
#define X(T, K, N, R)                                \
    check_case(T, K, N, R, 0, AG_COMPUTE_F32);       \
    check_case(T, K, N, R, 0.3f, AG_COMPUTE_F32);    \
    check_case(T, K, N, R, 0.3f, AG_COMPUTE_BF16);
    AG_LORA_CASES(X)
#undef X
}

static void dx_may_be_left_out(void **state)
{
    (void)state;
    const ag_cpu_level *level = check_levels();
    do {
        ag_backend be = check_backend(*level, 2);
        problem with = problem_create(33, 70, 50, 5, 0.2f, AG_COMPUTE_F32), without = problem_create(33, 70, 50, 5, 0.2f, AG_COMPUTE_F32);
        run(&with, &be);
        run_forward(&without, &be);
        float *dx = without.dx;
        without.dx = NULL;
        run_backward(&without, &be);
        without.dx = dx;
        assert_memory_equal(with.da, without.da, 5 * 70 * sizeof(float));
        assert_memory_equal(with.db, without.db, 5 * 50 * sizeof(float));
        problem_free(&with);
        problem_free(&without);
        check_backend_free(&be);
    } while (*level++ != AG_CPU_REF);
}

static void scratch_for_many_tokens_is_enough_for_fewer(void **state)
{
    (void)state;
    const ag_cpu_level *level = check_levels();
    do {
        ag_backend be = check_backend(*level, 2);
        for (int64_t T = 1; T < 3000; T++)
            assert_true(ag_lora_scratch_bytes(&be, T, 576, 1536, 16) <= ag_lora_scratch_bytes(&be, T + 1, 576, 1536, 16));
    } while (*level++ != AG_CPU_REF);
}

/* ---- the reference by finite differences ----------------------------------------------------------------------------- */

static double loss(const problem *q, const double *x, const double *a, const double *b)
{
    double l = 0;
    for (int64_t t = 0; t < q->T; t++)
        for (int64_t n = 0; n < q->N; n++)
            for (int64_t r = 0; r < q->R; r++)
                for (int64_t k = 0; k < q->K; k++)
                    if (ag_dropout_keeps(&q->dropout, (uint64_t)(t * q->K + k)))
                        l += (double)q->dy[t * q->N + n] * q->scale * (double)ag_dropout_scale(&q->dropout) * x[t * q->K + k] *
                             a[r * q->K + k] * b[n * q->R + r];
    return l;
}

static void check_slope(const problem *q, double *at, const float *gradient, int64_t n, const double *x, const double *a, const double *b)
{
    const double step = 1e-4;
    for (int64_t i = 0; i < n; i++) {
        const double kept = at[i];
        at[i] = kept + step;
        const double above = loss(q, x, a, b);
        at[i] = kept - step;
        const double below = loss(q, x, a, b);
        at[i] = kept;
        assert_true(fabs((above - below) / (2 * step) - gradient[i]) < 1e-5);
    }
}

static void reference_backward_equals_finite_differences(void **state)
{
    (void)state;
    enum { T = 5, K = 9, N = 6, R = 3 };
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem q = problem_create(T, K, N, R, 0.25f, AG_COMPUTE_F32);
    memset(q.dx, 0, T * K * sizeof(float));
    memset(q.da, 0, R * K * sizeof(float));
    memset(q.db, 0, N * R * sizeof(float));
    run(&q, &ref);
    double x[T * K], a[R * K], b[N * R];
    for (int i = 0; i < T * K; i++) x[i] = q.x[i];
    for (int i = 0; i < R * K; i++) a[i] = q.a[i];
    for (int i = 0; i < N * R; i++) b[i] = q.b[i];
    check_slope(&q, x, q.dx, T * K, x, a, b);
    check_slope(&q, a, q.da, R * K, x, a, b);
    check_slope(&q, b, q.db, N * R, x, a, b);
    problem_free(&q);
    check_backend_free(&ref);
}

/* ---- dropout --------------------------------------------------------------------------------------------------------- */

/* With A, B and x of ones on the diagonal, h shows the mask of forward, dx that of backward and da its column sums. */
static void check_mask(ag_cpu_level level, int64_t T, int64_t K)
{
    ag_backend be = check_backend(level, 2);
    problem q = problem_create(T, K, K, K, 0.4f, AG_COMPUTE_F32);
    float *zero[] = {q.a, q.b, q.da, q.db};
    for (int i = 0; i < 4; i++) memset(zero[i], 0, (size_t)(K * K) * sizeof(float));
    memset(q.dx, 0, (size_t)(T * K) * sizeof(float));
    for (int64_t k = 0; k < K; k++) q.a[k * K + k] = q.b[k * K + k] = 1;
    for (int64_t i = 0; i < T * K; i++) q.x[i] = q.dy[i] = 1;
    q.scale = 1;
    run(&q, &be);
    const float scale = ag_dropout_scale(&q.dropout);
    for (int64_t k = 0; k < K; k++) {
        float column = 0;
        for (int64_t t = 0; t < T; t++) {
            const float want = ag_dropout_keeps(&q.dropout, (uint64_t)(t * K + k)) ? scale : 0;
            assert_true(q.h[t * K + k] == want && q.dx[t * K + k] == want);
            column += want;
        }
        for (int64_t r = 0; r < K; r++) assert_true(fabsf(q.da[r * K + k] - column) < 1e-4f);
    }
    problem_free(&q);
    check_backend_free(&be);
}

static void forward_and_backward_see_the_mask_of_the_definition(void **state)
{
    (void)state;
    const ag_cpu_level *level = check_levels();
    do {
        check_mask(*level, 65, 96);
        check_mask(*level, 37, 50); /* rows that do not begin at a group of 32 */
    } while (*level++ != AG_CPU_REF);
}

static void dropout_keeps_its_share(void **state)
{
    (void)state;
    enum { N = 1 << 18 };
    const float ps[] = {0.05f, 0.1f, 0.5f, 0.9f};
    for (size_t i = 0; i < sizeof ps / sizeof *ps; i++) {
        const ag_dropout d = {ps[i], 1234, 56};
        const double keep = 1 / (double)ag_dropout_scale(&d);
        assert_true(fabs(keep - (1 - (double)d.p)) <= 1.0 / 65536);
        double kept = 0;
        for (uint64_t e = 0; e < N; e++) kept += ag_dropout_keeps(&d, e);
        assert_true(fabs(kept - N * keep) < 4 * sqrt(N * keep * (1 - keep)));
    }
    const ag_dropout never = {0, 1, 2};
    for (uint64_t e = 0; e < 1000; e++) assert_true(ag_dropout_keeps(&never, e));
    assert_true(ag_dropout_scale(&never) == 1);
}

/* The upper four of an element's sixteen bits, found by asking at four shares. */
static unsigned upper_bits(uint64_t key, uint64_t site, uint64_t element)
{
    unsigned bits = 0;
    for (unsigned bit = 8; bit > 0; bit /= 2)
        if (ag_dropout_keeps(&(ag_dropout){(float)(bits + bit) / 16, key, site}, element)) bits += bit;
    return bits;
}

/* How many standard deviations a χ² over the 16×16 table of pairs lies from its mean. */
static double correlation(const uint8_t *a, const uint8_t *b, int n)
{
    double table[16][16] = {{0}}, chi2 = 0, want = n / 256.0;
    for (int i = 0; i < n; i++) table[a[i]][b[i]]++;
    for (int i = 0; i < 256; i++) chi2 += (table[i / 16][i % 16] - want) * (table[i / 16][i % 16] - want) / want;
    return (chi2 - 255) / sqrt(2 * 255);
}

static void neighbours_rows_sites_and_keys_are_independent(void **state)
{
    (void)state;
    enum { N = 1 << 18, MORE = 4608, KEYS = 3 };
    /* the next element, the other half of the hash, other groups, rows of real widths */
    const int apart[] = {1, 2, 15, 16, 17, 32, 64, 576, 1536, MORE};
    static uint8_t here[N + MORE], next_site[N], next_key[N];
    for (uint64_t key = 0; key < KEYS; key++) {
        for (uint64_t e = 0; e < N + MORE; e++) here[e] = (uint8_t)upper_bits(key, 9, e);
        for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
            if (correlation(here, here + apart[i], N) > 5) fail_msg("elements %d apart are correlated", apart[i]);
        for (uint64_t e = 0; e < N; e++) {
            next_site[e] = (uint8_t)upper_bits(key, 10, e);
            next_key[e] = (uint8_t)upper_bits(key + 1, 9, e);
        }
        assert_true(correlation(here, next_site, N) < 5 && correlation(here, next_key, N) < 5);
    }
}

/* ---- PEFT ------------------------------------------------------------------------------------------------------------ */

static void numbers_equal_peft(void **state)
{
    (void)state;
    enum { T = GOLDEN_T, K = GOLDEN_K, N = GOLDEN_N, R = GOLDEN_R };
    const ag_cpu_level *level = check_levels();
    do {
        ag_backend be = check_backend(*level, 2);
        problem q = problem_create(T, K, N, R, 0, AG_COMPUTE_F32);
        q.scale = golden_scale;
        memcpy(q.x, golden_x, sizeof golden_x);
        memcpy(q.a, golden_a, sizeof golden_a);
        memcpy(q.b, golden_b, sizeof golden_b);
        memcpy(q.dy, golden_dy, sizeof golden_dy);
        memcpy(q.y, golden_base_y, sizeof golden_base_y);
        memcpy(q.dx, golden_base_dx, sizeof golden_base_dx);
        memset(q.da, 0, sizeof golden_da);
        memset(q.db, 0, sizeof golden_db);
        run(&q, &be);
        check_close(q.y, golden_y, T * N, 2e-6, "y");
        check_close(q.dx, golden_dx, T * K, 2e-6, "dx");
        check_close(q.da, golden_da, R * K, 2e-6, "da");
        check_close(q.db, golden_db, N * R, 2e-6, "db");
        problem_free(&q);
        check_backend_free(&be);
    } while (*level++ != AG_CPU_REF);
}

static void wrong_arguments_are_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    float f[64] = {0};
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_lora_fwd_args a = {.y = ag_mat_f32(f, 2, 4), .h = ag_mat_f32(f, 2, 3), .x = ag_mat_f32(f, 2, 5), .a = ag_mat_f32(f, 3, 5),
                          .b = ag_mat_f32(f, 4, 2), .scale = 1};
    assert_int_equal(AG_E_SHAPE, ag_lora_fwd(&ref, &a, &err));
    assert_string_equal("lora: b is [4,2], must be f32 [N,R] = [4,3]", err.text);
    a.b = ag_mat_f32(f, 4, 3), a.dropout.p = 1;
    assert_int_equal(AG_E_CONFIG, ag_lora_fwd(&ref, &a, &err));
    assert_string_equal("lora: dropout is 1; it must be at least 0 and below 1", err.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_backward_equals_finite_differences),
        cmocka_unit_test(every_level_equals_the_reference_for_any_number_of_threads),
        cmocka_unit_test(dx_may_be_left_out),
        cmocka_unit_test(scratch_for_many_tokens_is_enough_for_fewer),
        cmocka_unit_test(forward_and_backward_see_the_mask_of_the_definition),
        cmocka_unit_test(dropout_keeps_its_share),
        cmocka_unit_test(neighbours_rows_sites_and_keys_are_independent),
        cmocka_unit_test(numbers_equal_peft),
        cmocka_unit_test(wrong_arguments_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
