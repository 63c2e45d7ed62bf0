/* The device's NF4 GEMMs with the LoRA pair beside them, against the CPU's references of linear and lora. */
#include "device_check.h"
#include "nf4_problem.h"

#include "base/num.h"
#include "ops/lora/dropout_hash.h"

static void add_product(float *y, const float *left, const float *right, int64_t M, int64_t N, int64_t R, float scale,
                        bool right_is_kn, const ag_dropout *dropout)
{
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            double sum = 0;
            for (int64_t r = 0; r < R; r++) sum += (double)left[m * R + r] * right[right_is_kn ? r * N + n : n * R + r];
            if (dropout && dropout->p > 0)
                sum = ag_dropout_keeps(dropout, (uint64_t)(m * N + n)) ? sum * ag_dropout_scale(dropout) : 0;
            y[m * N + n] = (float)(y[m * N + n] + scale * sum);
        }
}

typedef struct {
    int64_t R; /* 0: no adapter */
    bool accumulate, single, bias;
    float scale;
    float p; /* dropout of the adapters' input */
} variant;

static void check_forward(int64_t T, int64_t K, int64_t N, variant v)
{
    nf4_problem w = nf4_problem_create(N, K, !v.single, 7);
    float *x = host_floats(T * K), *y = host_floats(T * N), *h = host_floats(T * v.R), *b = host_floats(N * v.R),
          *bias = host_floats(N);
    check_fill(x, T * K, 1, 1), check_fill(y, T * N, 2, 1), check_fill(h, T * v.R, 3, 1), check_fill(b, N * v.R, 4, 0.2f),
        check_fill(bias, N, 5, 1);
    bkl_bf16 *d_x = device_bf16(x, T * K), *d_y = device_bf16(y, T * N), *d_h = NULL, *d_b = NULL;
    if (v.R) d_h = device_bf16(h, T * v.R), d_b = device_bf16(b, N * v.R);
    float *d_bias = v.bias ? device_f32(bias, N) : NULL;
    run_op(nf4_fwd, {.y = d_y,
                     .x = d_x,
                     .w = w.device,
                     .lora_h = d_h,
                     .lora_b = d_b,
                     .bias = d_bias,
                     .T = T,
                     .R = v.R,
                     .y_pitch = N,
                     .x_pitch = K,
                     .scale = v.scale,
                     .accumulate = v.accumulate});

    const ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_err err;
    assert_int_equal(AG_OK, ag_linear_fwd(&ref,
                                          &(ag_linear_fwd_args){.y = {ag_mat_f32(y, T, N)},
                                                                .w = {&w.host},
                                                                .bias = {v.bias ? bias : NULL},
                                                                .n = 1,
                                                                .accumulate = v.accumulate,
                                                                .scale = v.scale,
                                                                .x = ag_mat_f32(x, T, K),
                                                                .compute = AG_COMPUTE_BF16},
                                          &err));
    if (v.R) add_product(y, h, b, T, N, v.R, v.scale, false, NULL);
    check_bf16(d_y, y, T * N, tolerance_bf16((double)K), "y");
    void *device[] = {d_x, d_y, d_h, d_b, d_bias};
    float *host[] = {x, y, h, b, bias};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
    nf4_problem_free(&w);
}

static void check_backward(int64_t T, int64_t K, int n, const int64_t N[], variant v)
{
    nf4_problem w[BKL_NF4_MAX];
    ag_dropout dropout[BKL_NF4_MAX];
    float *dx = host_floats(T * K), *dy[BKL_NF4_MAX], *dh[BKL_NF4_MAX], *a[BKL_NF4_MAX];
    check_fill(dx, T * K, 1, 1);
    bkl_nf4_bwd_args args = {
        .dx = device_bf16(dx, T * K), .n = n, .T = T, .R = v.R, .dx_pitch = K, .scale = v.scale, .accumulate = v.accumulate};
    ag_linear_bwd_args want = {
        .dx = ag_mat_f32(dx, T, K), .n = n, .accumulate = v.accumulate, .scale = v.scale, .compute = AG_COMPUTE_BF16};
    for (int i = 0; i < n; i++) {
        w[i] = nf4_problem_create(N[i], K, !v.single, 20 + (uint32_t)i);
        dy[i] = host_floats(T * N[i]), dh[i] = host_floats(T * v.R), a[i] = host_floats(v.R * K);
        check_fill(dy[i], T * N[i], 30 + (uint32_t)i, 1), check_fill(dh[i], T * v.R, 40 + (uint32_t)i, 1),
            check_fill(a[i], v.R * K, 50 + (uint32_t)i, 0.2f);
        args.w[i] = w[i].device, args.dy[i] = device_bf16(dy[i], T * N[i]), args.dy_pitch[i] = N[i];
        dropout[i] = (ag_dropout){v.p, 11, (uint64_t)i};
        const dropout_plan plan = dropout_plan_make(&dropout[i]);
        args.lora_dropout[i] = (bkl_dropout){plan.drop, plan.scale, dropout_key_words(&plan, 0)};
        if (v.R) args.lora_dh[i] = device_bf16(dh[i], T * v.R), args.lora_a[i] = device_bf16(a[i], v.R * K);
        want.w[i] = &w[i].host, want.dy[i] = ag_mat_f32(dy[i], T, N[i]);
    }
    must_run(bkl->nf4_bwd(device_stream, &args, NULL, 0));
    const ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_err err;
    assert_int_equal(AG_OK, ag_linear_bwd(&ref, &want, &err));
    for (int i = 0; i < n && v.R; i++) add_product(dx, dh[i], a[i], T, K, v.R, v.scale, true, &dropout[i]);
    check_bf16(args.dx, dx, T * K, tolerance_bf16((double)(N[0] * n)), "dx");
    device_drop(args.dx), free(dx);
    for (int i = 0; i < n; i++) {
        device_drop((void *)args.dy[i]), device_drop((void *)args.lora_dh[i]), device_drop((void *)args.lora_a[i]);
        free(dy[i]), free(dh[i]), free(a[i]);
        nf4_problem_free(&w[i]);
    }
}

static void forward_equals_the_reference(void **state)
{
    (void)state;
    check_forward(1, 64, 8, (variant){.scale = 1});
    check_forward(1, 2112, 72, (variant){.scale = 1});
    check_forward(8, 192, 40, (variant){.scale = 0.5f, .accumulate = true, .bias = true, .single = true});
    check_forward(9, 128, 136, (variant){.scale = 1});
    check_forward(130, 128, 136, (variant){.scale = 1});
    check_forward(33, 576, 192, (variant){.scale = 0.22f});
    check_forward(5, 1088, 72, (variant){.scale = 1, .single = true});
    check_forward(40, 192, 264, (variant){.scale = 0.5f, .accumulate = true, .bias = true});
}

static void forward_with_an_adapter_equals_the_references(void **state)
{
    (void)state;
    check_forward(1, 128, 64, (variant){.scale = 1, .R = 8});
    check_forward(3, 64, 24, (variant){.scale = 2, .R = 40});
    check_forward(7, 64, 24, (variant){.scale = 1, .R = 16, .accumulate = true});
    check_forward(70, 128, 64, (variant){.scale = 1, .R = 8});
    check_forward(129, 192, 136, (variant){.scale = 0.5f, .R = 16});
    check_forward(9, 64, 40, (variant){.scale = 1, .R = 72, .accumulate = true});
}

static void backward_equals_the_reference(void **state)
{
    (void)state;
    check_backward(1, 64, 1, (const int64_t[]){8}, (variant){.scale = 1});
    check_backward(130, 192, 1, (const int64_t[]){136}, (variant){.scale = 0.22f});
    check_backward(37, 576, 3, (const int64_t[]){192, 64, 72}, (variant){.scale = 1});
    check_backward(20, 128, 2, (const int64_t[]){200, 200}, (variant){.scale = 1, .accumulate = true, .single = true});
}

static void backward_with_adapters_equals_the_references(void **state)
{
    (void)state;
    check_backward(65, 128, 1, (const int64_t[]){64}, (variant){.scale = 1, .R = 16});
    check_backward(130, 192, 3, (const int64_t[]){96, 48, 48}, (variant){.scale = 0.5f, .R = 8, .accumulate = true});
}

static void backward_with_dropout_on_the_adapters_equals_the_references(void **state)
{
    (void)state;
    check_backward(130, 192, 1, (const int64_t[]){64}, (variant){.scale = 0.5f, .R = 16, .p = 0.3f});
    check_backward(40, 128, 3, (const int64_t[]){48, 24, 24}, (variant){.scale = 1, .R = 72, .p = 0.05f, .accumulate = true});
}

static void wrong_weights_are_refused_with_a_sentence(void **state)
{
    (void)state;
    bkl_nf4_fwd_args args = {.T = 1, .x_pitch = 96, .y_pitch = 8, .w = {.N = 8, .K = 96, .absmax = (const float *)8}};
    must_refuse(BKL_E_SHAPE, "8 rows of 96", bkl->nf4_fwd(device_stream, &args, NULL, 0));
    args.w.K = 64, args.w.absmax = NULL;
    must_refuse(BKL_E_SHAPE, "neither absmax", bkl->nf4_fwd(device_stream, &args, NULL, 0));
    args.w.absmax = (const float *)8, args.lora_h = (const bkl_bf16 *)8;
    must_refuse(BKL_E_SHAPE, "needs both", bkl->nf4_fwd(device_stream, &args, NULL, 0));
    must_refuse(BKL_E_SHAPE, "4 weights", bkl->nf4_bwd(device_stream, &(bkl_nf4_bwd_args){.n = 4}, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_equals_the_reference),
        cmocka_unit_test(forward_with_an_adapter_equals_the_references),
        cmocka_unit_test(backward_equals_the_reference),
        cmocka_unit_test(backward_with_adapters_equals_the_references),
        cmocka_unit_test(backward_with_dropout_on_the_adapters_equals_the_references),
        cmocka_unit_test(wrong_weights_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
