/* The device's AdamW (f32 and 8-bit) and gradient norm: f32 against the CPU's reference, 8-bit against its own formula in
 * double. */
#include "device_check.h"

#include "base/num.h"
#include "ops/adamw/adamw_cases.h"

static const struct {
    double lr, beta1, beta2, eps, weight_decay;
} HYPER = {1e-2, 0.9, 0.999, 1e-8, 0.1};

static bkl_adamw_coefficients coefficients_of(int64_t step)
{
    return (bkl_adamw_coefficients){.decay = (float)(1 - HYPER.lr * HYPER.weight_decay),
                                    .beta2 = (float)HYPER.beta2,
                                    .one_minus_beta1 = (float)(1 - HYPER.beta1),
                                    .one_minus_beta2 = (float)(1 - HYPER.beta2),
                                    .root_correction2 = (float)sqrt(1 - pow(HYPER.beta2, (double)step)),
                                    .eps = (float)HYPER.eps,
                                    .step_size = (float)(HYPER.lr / (1 - pow(HYPER.beta1, (double)step)))};
}

static void check_case(int64_t n, double grad_scale)
{
    float *p = host_floats(n), *m = host_floats(n), *v = host_floats(n), *g = host_floats(n);
    const float scale = (float)grad_scale;
    check_fill(p, n, 1, 1), check_fill(m, n, 2, 0.1f), check_fill(v, n, 3, 0.01f);
    for (int64_t i = 0; i < n; i++) v[i] = fabsf(v[i]);
    float *d_p = device_f32(p, n), *d_m = device_f32(m, n), *d_v = device_f32(v, n), *d_scale = device_f32(&scale, 1);
    bkl_bf16 *d_rounded = device_bf16(NULL, n);
    const ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_err err;
    for (int64_t step = 1; step <= 3; step++) {
        check_fill(g, n, 10 + (uint32_t)step, 1);
        const bkl_adamw_coefficients c = coefficients_of(step);
        bkl_adamw_coefficients *d_c = device_bytes(&c, sizeof c);
        float *d_g = device_f32(g, n);
        run_op(adamw, {.p = d_p,
                       .m = d_m,
                       .v = d_v,
                       .p_bf16 = d_rounded,
                       .g = d_g,
                       .grad_scale = grad_scale == 1 ? NULL : d_scale,
                       .coefficients = d_c,
                       .n = n});
        device_drop(d_c), device_drop(d_g);
        assert_int_equal(AG_OK, ag_adamw(&ref,
                                         &(ag_adamw_args){.p = ag_vec_f32(p, n),
                                                          .m = ag_vec_f32(m, n),
                                                          .v = ag_vec_f32(v, n),
                                                          .g = ag_vec_f32(g, n),
                                                          .lr = HYPER.lr,
                                                          .beta1 = HYPER.beta1,
                                                          .beta2 = HYPER.beta2,
                                                          .eps = HYPER.eps,
                                                          .weight_decay = HYPER.weight_decay,
                                                          .grad_scale = grad_scale,
                                                          .step = step},
                                         &err));
    }
    check_f32(d_p, p, n, TOLERANCE_F32_ELEMENT, "p");
    check_f32(d_m, m, n, TOLERANCE_F32_ELEMENT, "m");
    check_f32(d_v, v, n, TOLERANCE_F32_ELEMENT, "v");
    check_bf16(d_rounded, p, n, 0x1p-8, "p in bf16");
    void *device[] = {d_p, d_m, d_v, d_scale, d_rounded};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    free(p), free(m), free(v), free(g);
}

static void f32_equals_the_reference(void **state)
{
    (void)state;
#define X(n) check_case(n > 20000 ? 20001 : n, 1), check_case(n > 20000 ? 20001 : n, 0.3);
    AG_ADAMW_CASES(X)
#undef X
}

/* ---- 8-bit ------------------------------------------------------------------------------------------------------------- */
static uint8_t nearest(const float *map, float x)
{
    int best = 0;
    for (int i = 1; i < 256; i++)
        if (fabsf(x - map[i]) < fabsf(x - map[best])) best = i;
    return (uint8_t)best;
}

/* One block's step from the stored codes, by the formula in double; the new codes in m8 and v8. */
static void step8_ref(float *p, uint8_t *m8, uint8_t *v8, float *m_scale, float *v_scale, const float *g, int64_t n,
                      const float *map1, const float *map2, const bkl_adamw_coefficients *c)
{
    float m[256], v[256], m_most = 0, v_most = 0;
    for (int64_t i = 0; i < n; i++) {
        const float m0 = map1[m8[i]] * *m_scale, v0 = map2[v8[i]] * *v_scale;
        m[i] = m0 + (g[i] - m0) * c->one_minus_beta1, v[i] = v0 * c->beta2 + g[i] * g[i] * c->one_minus_beta2;
        p[i] = (float)((double)p[i] * c->decay - (double)c->step_size * m[i] / (sqrt(v[i]) / c->root_correction2 + c->eps));
        m_most = fmaxf(m_most, fabsf(m[i])), v_most = fmaxf(v_most, v[i]);
    }
    *m_scale = m_most, *v_scale = v_most;
    for (int64_t i = 0; i < n; i++)
        m8[i] = nearest(map1, m_most > 0 ? m[i] / m_most : 0), v8[i] = nearest(map2, v_most > 0 ? v[i] / v_most : 0);
}

static void moments_of_8_bits_follow_their_formula(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 255, 256, 257, 3000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s], n_blocks = (n + 255) / 256;
        float map2[256];
        for (int i = 0; i < 256; i++) map2[i] = (float)pow(i / 255.0, 4); /* an unsigned map: fine near 0 */
        const float *map1 = ag_dynamic_map_signed();
        float *p = host_floats(n), *g = host_floats(n), *m_scale = calloc((size_t)n_blocks, sizeof(float)),
              *v_scale = calloc((size_t)n_blocks, sizeof(float));
        uint8_t *m8 = calloc((size_t)n, 1), *v8 = calloc((size_t)n, 1), *got = malloc((size_t)n);
        assert_true(m_scale && v_scale && m8 && v8 && got);
        check_fill(p, n, 1, 1);
        float *d_p = device_f32(p, n), *d_ms = device_f32(m_scale, n_blocks), *d_vs = device_f32(v_scale, n_blocks),
              *d_map1 = device_f32(map1, 256), *d_map2 = device_f32(map2, 256);
        uint8_t *d_m8 = device_bytes(m8, (size_t)n), *d_v8 = device_bytes(v8, (size_t)n);
        for (int64_t step = 1; step <= 3; step++) {
            check_fill(g, n, 20 + (uint32_t)step, 1);
            for (int64_t i = 0; i < n && n > 300; i++)
                if (i / 256 == 1) g[i] = 0; /* a block without a gradient */
            const bkl_adamw_coefficients c = coefficients_of(step);
            bkl_adamw_coefficients *d_c = device_bytes(&c, sizeof c);
            float *d_g = device_f32(g, n);
            run_op(adamw8, {.p = d_p,
                            .m = d_m8,
                            .v = d_v8,
                            .m_scale = d_ms,
                            .v_scale = d_vs,
                            .signed_map = d_map1,
                            .unsigned_map = d_map2,
                            .g = d_g,
                            .coefficients = d_c,
                            .n = n});
            device_drop(d_c), device_drop(d_g);
            for (int64_t b = 0; b < n_blocks; b++)
                step8_ref(p + 256 * b, m8 + 256 * b, v8 + 256 * b, m_scale + b, v_scale + b, g + 256 * b,
                          n - 256 * b < 256 ? n - 256 * b : 256, map1, map2, &c);
            /* the codes agree but for values halfway between two, where a fused multiply-add decides */
            int64_t differ = 0;
            fetch_bytes(got, d_m8, (size_t)n);
            for (int64_t i = 0; i < n; i++) differ += abs(got[i] - m8[i]) > 0;
            fetch_bytes(got, d_v8, (size_t)n);
            for (int64_t i = 0; i < n; i++) differ += abs(got[i] - v8[i]) > 0;
            if (differ > n / 500) fail_msg("%lld of %lld codes differ", (long long)differ, (long long)(2 * n));
        }
        check_f32(d_p, p, n, device_info.emulated ? TOLERANCE_F32_ELEMENT : 1e-3,
                  "p"); /* a code that differs moves its element */
        check_f32(d_ms, m_scale, n_blocks, 1e-5, "m's scales");
        void *device[] = {d_p, d_ms, d_vs, d_map1, d_map2, d_m8, d_v8};
        for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
        free(p), free(g), free(m_scale), free(v_scale), free(m8), free(v8), free(got);
    }
}

static void norm_and_clip_factor_are_those_of_the_gradient(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 4096, 4097, 100003};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s];
        float *g = host_floats(n), out[2];
        check_fill(g, n, 5, 1);
        float *d_g = device_f32(g, n), *d_out = device_f32(NULL, 2);
        const ag_backend ref = check_backend(AG_CPU_REF, 1);
        double squares;
        ag_err err;
        assert_int_equal(AG_OK, ag_sum_squares(&ref, &squares, ag_vec_f32(g, n), &err));
        const double norm = sqrt(squares);
        for (int i = 0; i < 3; i++) {
            const float max_norm = (float[]){0, (float)(norm * 2), (float)(norm / 4)}[i];
            run_op(grad_norm, {.out = d_out, .g = d_g, .n = n, .max_norm = max_norm});
            fetch_f32(out, d_out, 2);
            assert_true(fabs(out[0] - norm) < 1e-6 * norm);
            assert_true(fabs(out[1] - (i == 2 ? 0.25 : 1)) < 1e-4);
        }
        device_drop(d_g), device_drop(d_out);
        free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_equals_the_reference),
        cmocka_unit_test(moments_of_8_bits_follow_their_formula),
        cmocka_unit_test(norm_and_clip_factor_are_those_of_the_gradient),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
