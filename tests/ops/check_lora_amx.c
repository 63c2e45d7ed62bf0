/* The matrix unit's products, compiled here with tiles emulated in plain C, so that they are checked on machines that have none.
 * What packs for them needs AVX512-BF16; without that the check is skipped. */
#define AG_AMX_EMULATE
#define ag_lora_kernel_amx emulated_kernel
#include "ops/lora/lora_amx.c"

#include "ops/lora/lora_cases.h"
#include "support/lora_problem.h"

static ag_backend emulated_backend(int n_threads)
{
    ag_backend be = check_backend(AG_CPU_AVX512, n_threads);
    be.lora.kernel[AG_COMPUTE_BF16] = &emulated_kernel;
    return be;
}

static void check_case(int64_t T, int64_t K, int64_t N, int64_t R, float p)
{
    ag_backend ref = check_backend(AG_CPU_REF, 2), one = emulated_backend(1), three = emulated_backend(3);
    problem want = problem_create(T, K, N, R, p, AG_COMPUTE_BF16), got = problem_create(T, K, N, R, p, AG_COMPUTE_BF16),
            threads = problem_create(T, K, N, R, p, AG_COMPUTE_BF16);
    run(&want, &ref);
    run(&got, &one);
    run(&threads, &three);
    compare(&got, &want);
    same_bits(&threads, &got);
    problem_free(&want);
    problem_free(&got);
    problem_free(&threads);
    check_backend_free(&ref);
    check_backend_free(&one);
    check_backend_free(&three);
}

static void emulated_tiles_equal_the_reference(void **state)
{
    (void)state;
    if (!ag_cpu_has_avx512_bf16()) skip();
#define X(T, K, N, R) check_case(T, K, N, R, 0), check_case(T, K, N, R, 0.3f);
    AG_LORA_CASES(X)
#undef X
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(emulated_tiles_equal_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
