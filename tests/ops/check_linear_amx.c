/* The matrix unit's kernel, compiled here with tiles emulated in plain C, so that it is checked on machines that have none. Its
 * packing needs AVX512-BF16; without that the check is skipped. */
#define AG_AMX_EMULATE
#define ag_linear_kernel_amx emulated_kernel
#include "ops/linear/linear_amx.c"

#include "ops/linear/linear_cases.h"
#include "support/linear_problem.h"

static ag_backend emulated_backend(int n_threads)
{
    ag_backend be = check_backend(AG_CPU_AVX512, n_threads);
    be.linear.kernel[AG_COMPUTE_BF16] = &emulated_kernel;
    return be;
}

static void check_case(ag_weight_type type, int64_t T, int64_t K, int64_t N, variant v)
{
    v.compute = AG_COMPUTE_BF16;
    ag_backend ref = check_backend(AG_CPU_REF, 1), one = emulated_backend(1), three = emulated_backend(3);
    problem want = problem_create(type, T, K, N, v), got = problem_create(type, T, K, N, v), threads = problem_create(type, T, K, N, v);
    run_rows(&want, &ref, T);
    run_rows(&got, &one, T);
    run_rows(&threads, &three, T);
    check_problem(&got, &want);
    check_same_bits(&threads, &got, T);
    problem_free(&want);
    problem_free(&got);
    problem_free(&threads);
    check_backend_free(&one);
    check_backend_free(&three);
}

static void emulated_tiles_equal_the_reference(void **state)
{
    (void)state;
    if (!ag_cpu_has_avx512_bf16()) skip();
    int number = 0;
    for (int type = 0; type < AG_N_WEIGHT_TYPES; type++) {
#define X(T, K, N)                                   \
    if (type <= AG_W_NF4 || T * K * N < 200000)      \
        check_case((ag_weight_type)type, T, K, type == AG_W_NF4 && K * N % 2 ? N + 1 : N, variant_of(number++));
        AG_LINEAR_CASES(X)
#undef X
        number += 7;
    }
}

static void a_rows_bits_do_not_depend_on_where_tiles_end(void **state)
{
    (void)state;
    if (!ag_cpu_has_avx512_bf16()) skip();
    static const int64_t pairs[][2] = {{9, 32}, {31, 64}, {33, 61}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int number = 1; number < 24; number += 2) {
            const variant v = variant_of(number);
            problem few = problem_create(AG_W_NF4, 64, 1600, 48, v), many = problem_create(AG_W_NF4, 64, 1600, 48, v);
            ag_backend be = emulated_backend(1);
            run_rows(&few, &be, pairs[i][0]);
            run_rows(&many, &be, pairs[i][1]);
            check_same_bits(&few, &many, pairs[i][0]);
            problem_free(&few);
            problem_free(&many);
            check_backend_free(&be);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emulated_tiles_equal_the_reference),
        cmocka_unit_test(a_rows_bits_do_not_depend_on_where_tiles_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
