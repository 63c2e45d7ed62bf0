/* Proof of AdamW with moments in 8 bits: bitsandbytes' own codes and scales, to the bit for the vector levels; every level by the reference. */
#include "ops/adamw/adamw.h"
#include "ops/adamw/adamw8.h"
#include "ops/weight/weight.h"
#include "support/golden.h"
#include "support/op_check.h"

#include <stdio.h>

enum { N_STEPS = 4, N = 67 * 65, N_BLOCKS = (N + 255) / 256, N_SMALL = 31 * 7 };

static const void *at_step(const golden *g, const char *name, int step, const char *dtype, int64_t n)
{
    char full[64];
    snprintf(full, sizeof full, "%s%d", name, step);
    return golden_get(g, full, dtype, n);
}

static void the_maps_are_those_of_bitsandbytes(void **state)
{
    (void)state;
    golden g = golden_open("adamw8/steps.safetensors");
    assert_memory_equal(golden_get(&g, "qmap1", "F32", 256), ag_dynamic_map_signed(), 256 * sizeof(float));
    assert_memory_equal(golden_get(&g, "qmap2", "F32", 256), ag_dynamic_map_unsigned(), 256 * sizeof(float));
    golden_close(&g);
}

typedef struct {
    float p[N], absmax_m[N_BLOCKS], absmax_v[N_BLOCKS];
    uint8_t m[N], v[N];
} moments;

static void take(moments *s, const golden *g, int step, ag_cpu_level level, int n_threads)
{
    ag_err err;
    ag_backend be = check_backend(level, n_threads);
    assert_int_equal(AG_OK, ag_adamw8(&be, &(ag_adamw8_args){
        .p = ag_vec_f32(s->p, N), .g = ag_vec_f32((float *)at_step(g, "big.grad", step, "F32", N), N), .m = s->m, .v = s->v,
        .absmax_m = s->absmax_m, .absmax_v = s->absmax_v, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1,
        .grad_scale = 1, .step = step}, &err));
}

/* Codes and scales are the very ones; p is within a rounding, because torch on a CPU takes square roots of long vectors through MKL, which
 * does not round them correctly. */
static void moments_equal_bitsandbytes_to_the_bit(void **state)
{
    (void)state;
    golden g = golden_open("adamw8/steps.safetensors");
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            moments s = {0};
            memcpy(s.p, golden_get(&g, "big.p0", "F32", N), sizeof s.p);
            for (int step = 1; step <= N_STEPS; step++) {
                take(&s, &g, step, *level, n_threads);
                assert_memory_equal(s.absmax_m, at_step(&g, "big.absmax1.", step, "F32", N_BLOCKS), sizeof s.absmax_m);
                assert_memory_equal(s.absmax_v, at_step(&g, "big.absmax2.", step, "F32", N_BLOCKS), sizeof s.absmax_v);
                assert_memory_equal(s.m, at_step(&g, "big.state1.", step, "U8", N), sizeof s.m);
                assert_memory_equal(s.v, at_step(&g, "big.state2.", step, "U8", N), sizeof s.v);
                check_close(s.p, at_step(&g, "big.p", step, "F32", N), N, 1e-7, "p");
            }
        }
    golden_close(&g);
}

/* In double, codes may be one off where a number lies at a midpoint. */
static void the_reference_agrees(void **state)
{
    (void)state;
    golden g = golden_open("adamw8/steps.safetensors");
    moments s = {0};
    memcpy(s.p, golden_get(&g, "big.p0", "F32", N), sizeof s.p);
    int n_off = 0;
    for (int step = 1; step <= N_STEPS; step++) {
        take(&s, &g, step, AG_CPU_REF, 1);
        check_close(s.absmax_m, at_step(&g, "big.absmax1.", step, "F32", N_BLOCKS), N_BLOCKS, 1e-6, "absmax of m");
        check_close(s.absmax_v, at_step(&g, "big.absmax2.", step, "F32", N_BLOCKS), N_BLOCKS, 1e-6, "absmax of v");
        const uint8_t *m = at_step(&g, "big.state1.", step, "U8", N), *v = at_step(&g, "big.state2.", step, "U8", N);
        for (int i = 0; i < N; i++) {
            assert_true(abs(s.m[i] - m[i]) <= 1 && abs(s.v[i] - v[i]) <= 1);
            n_off += (s.m[i] != m[i]) + (s.v[i] != v[i]);
        }
    }
    assert_true(n_off <= 2 * N * N_STEPS / 500);
    golden_close(&g);
}

/* Tensors of fewer than 4096 numbers keep their moments in f32. */
static void small_tensors_take_plain_steps(void **state)
{
    (void)state;
    ag_err err;
    golden g = golden_open("adamw8/steps.safetensors");
    ag_backend be = check_backend(ag_cpu_best_level(), 1);
    float p[N_SMALL], m[N_SMALL] = {0}, v[N_SMALL] = {0};
    memcpy(p, golden_get(&g, "small.p0", "F32", N_SMALL), sizeof p);
    for (int step = 1; step <= N_STEPS; step++) {
        assert_int_equal(AG_OK, ag_adamw(&be, &(ag_adamw_args){
            .p = ag_vec_f32(p, N_SMALL), .m = ag_vec_f32(m, N_SMALL), .v = ag_vec_f32(v, N_SMALL),
            .g = ag_vec_f32((float *)at_step(&g, "small.grad", step, "F32", N_SMALL), N_SMALL), .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999,
            .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1, .step = step}, &err));
        if (step < 3) continue; /* its gradients were 0 until then, but for the decay of p */
        check_close(p, at_step(&g, "small.p", step, "F32", N_SMALL), N_SMALL, 1e-6, "p");
        check_close(m, at_step(&g, "small.state1.", step, "F32", N_SMALL), N_SMALL, 1e-6, "m");
        check_close(v, at_step(&g, "small.state2.", step, "F32", N_SMALL), N_SMALL, 1e-6, "v");
    }
    golden_close(&g);
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_backend be = check_backend(ag_cpu_best_level(), 1);
    float p[3] = {0}, absmax = 0;
    uint8_t codes[3] = {0};
    ag_adamw8_args a = {.p = ag_vec_f32(p, 3), .g = ag_vec_f32(p, 2), .m = codes, .v = codes, .absmax_m = &absmax, .absmax_v = &absmax, .step = 1};
    assert_int_equal(AG_E_SHAPE, ag_adamw8(&be, &a, &err));
    a.g = ag_vec_f32(p, 3);
    a.step = 0;
    assert_int_equal(AG_E_CONFIG, ag_adamw8(&be, &a, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_maps_are_those_of_bitsandbytes),
        cmocka_unit_test(moments_equal_bitsandbytes_to_the_bit),
        cmocka_unit_test(the_reference_agrees),
        cmocka_unit_test(small_tensors_take_plain_steps),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
