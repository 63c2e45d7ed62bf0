/* Proof of linear: the reference by plain sums and finite differences, every level by the reference, over one list of cases, all
 * weight types, both compute types and 1..3 threads. */
#include "base/num.h"
#include "ops/linear/linear_cases.h"
#include "ops/linear/linear_kernel.h"
#include "support/linear_problem.h"

static void check_case(ag_weight_type type, int64_t T, int64_t K, int64_t N, variant v)
{
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem want = problem_create(type, T, K, N, v);
    run_rows(&want, &ref, T);
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
        problem first = problem_create(type, T, K, N, v);
        ag_backend one = check_backend(*level, 1);
        run_rows(&first, &one, T);
        check_problem(&first, &want);
        for (int n_threads = 2; n_threads <= 3; n_threads++) {
            ag_backend be = check_backend(*level, n_threads);
            problem got = problem_create(type, T, K, N, v);
            run_rows(&got, &be, T);
            check_same_bits(&got, &first, T);
            problem_free(&got);
            check_backend_free(&be);
        }
        problem_free(&first);
        check_backend_free(&one);
    }
    problem_free(&want);
}

static void every_level_equals_the_reference(void **state)
{
    (void)state;
    int number = 0;
    for (int type = 0; type < AG_N_WEIGHT_TYPES; type++) {
        const bool common = type == AG_W_F32 || type == AG_W_NF4 || type == AG_W_BF16 || type == AG_W_Q4_K;
#define X(T, K, N)                                                            \
    for (int i = 0; i < (common ? 2 : 1); i++, number++)                      \
        if (common || T * K * N < 200000) check_case((ag_weight_type)type, T, K, type == AG_W_NF4 && K * N % 2 ? N + 1 : N, variant_of(number));
        AG_LINEAR_CASES(X)
#undef X
        number += 7;
    }
}

static void rounding_in_f32_equals_the_reference(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!ag_cpu_has_level(AG_CPU_AVX512)) skip();
    for (int number = 1; number < 12; number += 2) { /* what AVX-512 does where it has no bf16 products */
        const variant v = variant_of(number);
        for (int64_t T = 3; T < 50; T += 23) {
            ag_backend ref = check_backend(AG_CPU_REF, 1), be = check_backend(AG_CPU_AVX512, 2);
            be.linear.kernel[AG_COMPUTE_BF16] = &ag_linear_kernels_avx512[AG_COMPUTE_BF16];
            problem want = problem_create(AG_W_NF4, T, 75, 50, v), got = problem_create(AG_W_NF4, T, 75, 50, v);
            run_rows(&want, &ref, T);
            run_rows(&got, &be, T);
            check_problem(&got, &want);
            problem_free(&want);
            problem_free(&got);
            check_backend_free(&be);
        }
    }
#else
    skip();
#endif
}

static void rows_stored_in_rope_pairs_are_found(void **state)
{
    (void)state;
    static const ag_weight_type types[] = {AG_W_F32, AG_W_NF4, AG_W_Q4_1, AG_W_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int64_t T = 1; T <= 20; T += 19) {
            enum { N = 48, D = 16 };
            variant v = {.n = 1, .scale = 1};
            problem paired = problem_create(types[i], T, 256, N, v);
            paired.w[0].rope_pairs_head_dim = D;
            ag_backend ref = check_backend(AG_CPU_REF, 1);
            run_rows(&paired, &ref, T);
            for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
                problem got = problem_create(types[i], T, 256, N, v);
                got.w[0].rope_pairs_head_dim = D;
                ag_backend be = check_backend(*level, 2);
                run_rows(&got, &be, T);
                check_problem(&got, &paired);
                problem_free(&got);
                check_backend_free(&be);
            }
            problem_free(&paired);
        }
}

static void a_rows_bits_do_not_depend_on_its_neighbours(void **state)
{
    (void)state;
    static const int64_t pairs[][2] = {{1, 2}, {1, 8}, {5, 7}, {9, 14}, {11, 40}, {29, 61}};
    static const ag_weight_type types[] = {AG_W_F32, AG_W_NF4, AG_W_BF16, AG_W_Q4_1, AG_W_Q8_0, AG_W_Q4_K, AG_W_Q6_K};
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++)
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            for (size_t type = 0; type < sizeof types / sizeof *types; type++)
                for (int compute = 0; compute < 2; compute++) {
                    variant v = {.compute = (ag_compute)compute, .n = 2, .accumulate = i % 2, .bias = true, .scale = i % 3 ? 1 : 0.5f};
                    problem few = problem_create(types[type], 64, 1100, 40, v), many = problem_create(types[type], 64, 1100, 40, v);
                    ag_backend be = check_backend(*level, 1);
                    run_rows(&few, &be, pairs[i][0]);
                    run_rows(&many, &be, pairs[i][1]);
                    check_same_bits(&few, &many, pairs[i][0]);
                    problem_free(&few);
                    problem_free(&many);
                    check_backend_free(&be);
                }
}

/* The definition, written out again: f32 operands (rounded to bf16 or not), sums in double. */
static double term(float x, float w, ag_compute compute)
{
    return compute == AG_COMPUTE_BF16 ? (double)ag_round_bf16(x) * (double)ag_round_bf16(w) : (double)x * (double)w;
}

static void reference_forward_equals_plain_sums(void **state)
{
    (void)state;
    for (int number = 0; number < 12; number++) {
        enum { T = 19, K = 300, N = 9 };
        const variant v = variant_of(number);
        problem p = problem_create(AG_W_F32, T, K, N, v), before = problem_create(AG_W_F32, T, K, N, v);
        ag_backend ref = check_backend(AG_CPU_REF, 2);
        run_rows(&p, &ref, T);
        for (int i = 0; i < v.n; i++)
            for (int t = 0; t < T; t++)
                for (int64_t n = 0; n < p.N[i]; n++) {
                    float w[K];
                    ag_weight_row(w, &p.w[i], n, 0, K);
                    double sum = 0;
                    for (int k = 0; k < K; k++) sum += term(p.x[t * K + k], w[k], v.compute);
                    const double want = (v.accumulate ? before.y[i][t * p.N[i] + n] : 0) + v.scale * sum + (v.bias ? p.bias[i][n] : 0);
                    assert_true(fabs(want - p.y[i][t * p.N[i] + n]) <= 1e-6 * fmax(1, fabs(want)));
                }
        problem_free(&p);
        problem_free(&before);
    }
}

static double loss(const problem *p, const double *x) /* Σ dy·scale·(x·Wᵀ) of one row */
{
    double l = 0;
    for (int i = 0; i < p->v.n; i++)
        for (int64_t n = 0; n < p->N[i]; n++) {
            float w[64];
            ag_weight_row(w, &p->w[i], n, 0, p->K);
            for (int64_t k = 0; k < p->K; k++) l += p->v.scale * p->dy[i][n] * x[k] * w[k];
        }
    return l;
}

static void reference_backward_equals_finite_differences(void **state)
{
    (void)state;
    static const ag_weight_type types[] = {AG_W_F32, AG_W_NF4, AG_W_Q8_0};
    for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
        enum { K = 64 };
        problem p = problem_create(types[type], 1, K, 10, (variant){.n = 3, .accumulate = true, .scale = 0.5f});
        memset(p.dx, 0, K * sizeof *p.dx);
        ag_backend ref = check_backend(AG_CPU_REF, 1);
        run_rows(&p, &ref, 1);
        for (int k = 0; k < K; k++) {
            const double h = 1e-4;
            double x[K];
            for (int i = 0; i < K; i++) x[i] = p.x[i];
            x[k] += h;
            const double above = loss(&p, x);
            x[k] -= 2 * h;
            assert_true(fabs((above - loss(&p, x)) / (2 * h) - p.dx[k]) < 1e-6);
        }
        problem_free(&p);
    }
}

static void check_decoder(ag_linear_decode_fn *decode, const ag_weight *w)
{
    static const struct {
        int64_t n0, n_rows, k0, n_cols;
    } pieces[] = {{0, 5, 0, 512}, {1, 3, 256, 256}, {2, 2, 96, 160}, {0, 5, 32, 70}, {3, 1, 7, 41}, {4, 1, 480, 32}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        enum { STRIDE = 516 };
        const int64_t n_rows = pieces[i].n_rows, n_cols = pieces[i].n_cols;
        float *got = check_floats(n_rows * STRIDE), *want = check_floats(n_rows * STRIDE);
        decode(got, STRIDE, w, pieces[i].n0, n_rows, pieces[i].k0, n_cols);
        for (int64_t r = 0; r < n_rows; r++)
            ag_weight_row(want + r * STRIDE, w, pieces[i].n0 + r, pieces[i].k0, pieces[i].k0 + n_cols);
        if (memcmp(got, want, (size_t)(n_rows * STRIDE) * sizeof *got) != 0)
            fail_msg("%s, piece %zu: other bits than the exact decoder's", ag_weight_type_name(w->type), i);
        check_guards(got, n_rows * STRIDE, "decoded");
        check_free(got);
        check_free(want);
    }
}

static void vector_decoders_give_the_bits_of_the_exact_one(void **state)
{
    (void)state;
    for (int type = 0; type < AG_N_WEIGHT_TYPES; type++)
        for (int times = 0; times < 4; times++) {
            ag_weight w = weight_make((ag_weight_type)type, 6, 512, (uint32_t)(type + 100 * times), times % 2), slice = w;
            if (type == AG_W_NF4 && times >= 2) { /* a slice of rows, which begins with a block or not */
                slice.N = 5;
                slice.first = times == 2 ? 64 : 13;
            }
#if defined(__x86_64__)
            if (ag_cpu_has_level(AG_CPU_AVX2)) check_decoder(ag_linear_decode_avx2, &slice);
            if (ag_cpu_has_level(AG_CPU_AVX512)) check_decoder(ag_linear_decode_avx512, &slice);
#elif defined(__aarch64__)
            check_decoder(ag_linear_decode_neon, &slice);
#endif
            weight_free(&w);
        }
}

static void scratch_for_more_serves_less(void **state)
{
    (void)state;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
        const ag_backend be = check_backend(*level, 2);
        size_t before = 0;
        for (int64_t T = 1; T < 2200; T++, before = ag_linear_scratch_bytes(&be, T - 1, 100, 100))
            assert_true(ag_linear_scratch_bytes(&be, T, 100, 100) >= before);
        before = 0;
        for (int64_t N = 1; N < 9000; N++, before = ag_linear_scratch_bytes(&be, 20, 100, N - 1))
            assert_true(ag_linear_scratch_bytes(&be, 20, 100, N) >= before);
        for (int64_t T = 1000; T < 1100; T += 9) { /* parts of rows, and of the depth behind 4096 */
            problem p = problem_create(AG_W_F32, T, 3, 2, (variant){.n = 1, .scale = 1});
            ag_backend own = be;
            run_rows(&p, &own, T);
            problem_free(&p);
            check_backend_free(&own);
        }
    }
}

static void wrong_shapes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem p = problem_create(AG_W_F32, 3, 17, 8, (variant){.n = 2, .scale = 1});
    ag_linear_fwd_args fwd = fwd_args(&p, 3);
    fwd.x = ag_mat_f32(p.x, 3, 16);
    assert_int_equal(AG_E_SHAPE, ag_linear_fwd(&ref, &fwd, &err));
    assert_string_equal("linear: weight 0 has 17 columns, x has 16", err.text);
    fwd = fwd_args(&p, 3);
    fwd.y[1] = ag_mat_f32(p.y[1], 3, 4);
    assert_int_equal(AG_E_SHAPE, ag_linear_fwd(&ref, &fwd, &err));
    assert_string_equal("linear: y[1] must be a [3,5] f32 matrix", err.text);
    ag_linear_bwd_args bwd = bwd_args(&p, 3);
    bwd.n = 4;
    assert_int_equal(AG_E_SHAPE, ag_linear_bwd(&ref, &bwd, &err));
    assert_string_equal("linear: a call takes 1 to 3 weights, not 4", err.text);
    bwd = bwd_args(&p, 3);
    bwd.dx = ag_mat_f32(p.dy[0], 3, 17);
    assert_int_equal(AG_E_SHAPE, ag_linear_bwd(&ref, &bwd, &err));
    assert_string_equal("linear: dy[0] must not be dx itself", err.text);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_forward_equals_plain_sums),
        cmocka_unit_test(reference_backward_equals_finite_differences),
        cmocka_unit_test(vector_decoders_give_the_bits_of_the_exact_one),
        cmocka_unit_test(every_level_equals_the_reference),
        cmocka_unit_test(rounding_in_f32_equals_the_reference),
        cmocka_unit_test(rows_stored_in_rope_pairs_are_found),
        cmocka_unit_test(a_rows_bits_do_not_depend_on_its_neighbours),
        cmocka_unit_test(scratch_for_more_serves_less),
        cmocka_unit_test(wrong_shapes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
