/* The matrix unit's products, compiled here with tiles emulated in plain C, so that they are checked on machines that have none.
 * What packs for them needs AVX512-BF16; without that the check is skipped. */
#define AG_AMX_EMULATE
#define ag_attention_fwd_amx emulated_fwd
#define ag_attention_bwd_amx emulated_bwd
#include "ops/attention/attention_amx.c"

#include "support/attention_problem.h"
#include "support/tolerance.h"

static ag_backend emulated_backend(int n_threads)
{
    ag_backend be = check_backend(AG_CPU_AVX512, n_threads);
    be.attention.by_compute[AG_COMPUTE_BF16] = (ag_attention_kernels){emulated_fwd, emulated_bwd, ag_attention_pairs_worker_bytes,
                                                                      ag_attention_pairs_block_tokens};
    return be;
}

static void check_case(attention_problem want)
{
    attention_problem one = attention_problem_like(&want), three = attention_problem_like(&want);
    ag_backend ref = check_backend(AG_CPU_REF, 2), be = emulated_backend(1);
    attention_problem_run(&want, &ref, AG_COMPUTE_F32);
    attention_problem_run(&one, &be, AG_COMPUTE_BF16);
    be = emulated_backend(3);
    attention_problem_run(&three, &be, AG_COMPUTE_BF16);
    attention_problem_check_guards(&one);
    if (one.largest_score < 100) attention_problem_check_close(&one, &want, tolerance_attention_bf16(one.largest_score));
    attention_problem_check_same_bits(&three, &one, "with one thread");
    attention_problem_free(&want);
    attention_problem_free(&one);
    attention_problem_free(&three);
}

static void emulated_tiles_equal_the_reference(void **state)
{
    (void)state;
    if (!ag_cpu_has_avx512_bf16()) skip();
#define X(T, S, H, G, D, layout, window, largest) check_case(attention_problem_create(T, S, H, G, D, AG_ATTENTION_##layout, window, largest));
    AG_ATTENTION_CASES(X)
#undef X
    attention_problem capped = attention_problem_create(130, 130, 6, 2, 20, AG_ATTENTION_WHOLE, 70, 4);
    capped.softcap = 2;
    check_case(capped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(emulated_tiles_equal_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
