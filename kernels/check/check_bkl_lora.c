/* The device's thin LoRA products, with its GEMM for the wide ones, against the CPU's reference of lora; and several pairs in
 * one call. */
#include "device_check.h"

#include "ops/lora/dropout_hash.h"
#include "ops/lora/lora_cases.h"

static int64_t up8(int64_t n) { return (n + 7) / 8 * 8; }

/* y += s·drop(x)·Aᵀ·Bᵀ and all its gradients, as the CPU's op has them. h' carries the scale, so it is rounded once more: 2^-8.
 */
static void check_case(int64_t T, int64_t K, int64_t N, int64_t R, float scale, float p)
{
    const ag_dropout dropout = {p, 42, 7};
    const dropout_plan plan = dropout_plan_make(&dropout);
    const bkl_dropout d_dropout = {plan.drop, plan.scale, dropout_key_words(&plan, 0)};
    float *x = host_floats(T * K), *a = host_floats(R * K), *b = host_floats(N * R), *dy = host_floats(T * N),
          *y = host_floats(T * N);
    float *h = host_floats(T * R), *dx = host_floats(T * K), *da = host_floats(R * K), *db = host_floats(N * R);
    check_fill(x, T * K, 1, 1), check_fill(a, R * K, 2, 1), check_fill(b, N * R, 3, 1), check_fill(dy, T * N, 4, 1),
        check_fill(y, T * N, 5, 1);
    check_fill(dx, T * K, 6, 1), check_fill(da, R * K, 7, 1), check_fill(db, N * R, 8, 1);
    bkl_bf16 *d_x = device_bf16(x, T * K), *d_a = device_bf16(a, R * K), *d_b = device_bf16(b, N * R),
             *d_dy = device_bf16(dy, T * N);
    bkl_bf16 *d_y = device_bf16(y, T * N), *d_h = device_bf16(NULL, T * R), *d_dh = device_bf16(NULL, T * R),
             *d_dx = device_bf16(dx, T * K);
    float *d_da = device_f32(da, R * K), *d_db = device_f32(db, N * R);

    run_op(lora_down,
           {.n = 2,
            .T = T,
            .R = R,
            .item = {{.out = d_h, .left = d_x, .right = d_a, .K = K, .left_pitch = K, .scale = scale, .dropout = d_dropout},
                     {.out = d_dh, .left = d_dy, .right = d_b, .K = N, .left_pitch = N, .scale = scale, .right_is_kn = true}}});
    run_op(gemm, {.y = d_y,
                  .a = d_h,
                  .b = d_b,
                  .M = T,
                  .N = N,
                  .K = R,
                  .y_pitch = N,
                  .a_pitch = R,
                  .b_pitch = R,
                  .scale = 1,
                  .accumulate = true});
    run_op(gemm, {.y = d_dx,
                  .a = d_dh,
                  .b = d_a,
                  .M = T,
                  .N = K,
                  .K = R,
                  .y_pitch = K,
                  .a_pitch = R,
                  .b_pitch = K,
                  .scale = 1,
                  .b_is_kn = true,
                  .accumulate = true});
    run_op(lora_grad, {.n = 2, .T = T, .R = R, .accumulate = true,
                       .item = {{.out = d_da, .left = d_dh, .wide = d_x, .W = K, .wide_pitch = K, .dropout = d_dropout},
                                {.out = d_db, .left = d_h, .wide = d_dy, .W = N, .wide_pitch = N, .transposed = true}}});

    ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_err err;
    check_backend_scratch(&ref, ag_lora_scratch_bytes(&ref, T, K, N, R));
    const ag_tensor tx = ag_mat_f32(x, T, K), ta = ag_mat_f32(a, R, K), tb = ag_mat_f32(b, N, R), th = ag_mat_f32(h, T, R);
    if (ag_lora_fwd(&ref,
                    &(ag_lora_fwd_args){.y = ag_mat_f32(y, T, N),
                                        .h = th,
                                        .x = tx,
                                        .a = ta,
                                        .b = tb,
                                        .scale = scale,
                                        .dropout = dropout,
                                        .compute = AG_COMPUTE_BF16},
                    &err) ||
        ag_lora_bwd(&ref,
                    &(ag_lora_bwd_args){.dx = ag_mat_f32(dx, T, K),
                                        .da = ag_mat_f32(da, R, K),
                                        .db = ag_mat_f32(db, N, R),
                                        .dy = ag_mat_f32(dy, T, N),
                                        .x = tx,
                                        .h = th,
                                        .a = ta,
                                        .b = tb,
                                        .scale = scale,
                                        .dropout = dropout,
                                        .compute = AG_COMPUTE_BF16},
                    &err))
        fail_msg("%s", err.text);
    check_backend_free(&ref);
    for (int64_t i = 0; i < T * R; i++) h[i] *= scale;
    check_bf16(d_h, h, T * R, tolerance_bf16((double)K), "h'");
    check_bf16(d_y, y, T * N, 2 * tolerance_bf16((double)K), "y");
    if (p == 0) check_bf16(d_dx, dx, T * K, 2 * tolerance_bf16((double)N), "dx");
    check_f32(d_da, da, R * K, 2 * tolerance_bf16((double)(N + T)), "da");
    check_f32(d_db, db, N * R, 2 * tolerance_bf16((double)(K + T)), "db");
    void *device[] = {d_x, d_a, d_b, d_dy, d_y, d_h, d_dh, d_dx, d_da, d_db};
    float *host[] = {x, a, b, dy, y, h, dx, da, db};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static void equals_the_reference(void **state)
{
    (void)state;
#define X(T, K, N, R) check_case(T, up8(K), up8(N > 300 ? 300 : N), up8(R), 1.7f, 0);
    AG_LORA_CASES(X)
#undef X
    check_case(40, 64, 72, 136, 0.5f, 0); /* more ranks than a block takes */
}

/* The mask is the CPU's, element for element; that of dx belongs to nf4_bwd. */
static void with_dropout_equals_the_reference(void **state)
{
    (void)state;
    check_case(33, 72, 40, 16, 1.7f, 0.3f);
    check_case(300, 64, 72, 8, 0.5f, 0.05f);
    check_case(20, 328, 64, 24, 1, 0.5f);
}

/* Adapters of different widths in one call give the same bits as one call each. */
static void several_pairs_at_once_give_the_bits_of_one_at_a_time(void **state)
{
    (void)state;
    enum { T = 300, R = 16, PAIRS = BKL_LORA_MAX };
    const int64_t W[PAIRS] = {64, 200, 72, 8, 136, 64};
    bkl_lora_grad_args all = {.n = PAIRS, .T = T, .R = R};
    bkl_lora_down_args down = {.n = PAIRS, .T = T, .R = R};
    float *values = host_floats(T * 200), *once = host_floats(R * 200), *each = host_floats(R * 200);
    bkl_bf16 *alone = device_bf16(NULL, T * R);
    float *alone_grad = device_f32(NULL, R * 200);
    for (int i = 0; i < PAIRS; i++) {
        check_fill(values, T * 200, 10 + (uint32_t)i, 1);
        bkl_bf16 *wide = device_bf16(values, T * W[i]), *left = device_bf16(values, T * R),
                 *right = device_bf16(values + 7, R * W[i]);
        all.item[i] = (bkl_lora_grad_item){
            .out = device_f32(NULL, R * W[i]), .left = left, .wide = wide, .W = W[i], .wide_pitch = W[i], .transposed = i % 2};
        down.item[i] = (bkl_lora_down_item){.out = device_bf16(NULL, T * R),
                                            .left = wide,
                                            .right = right,
                                            .K = W[i],
                                            .left_pitch = W[i],
                                            .scale = 1,
                                            .right_is_kn = i % 2};
    }
    run_op(lora_grad, all);
    run_op(lora_down, down);
    for (int i = 0; i < PAIRS; i++) {
        run_op(lora_grad,
               {.n = 1, .T = T, .R = R, .item = {{alone_grad, all.item[i].left, all.item[i].wide, W[i], W[i], i % 2, {0}}}});
        run_op(lora_down,
               {.n = 1, .T = T, .R = R, .item = {{alone, down.item[i].left, down.item[i].right, W[i], W[i], 1, i % 2, {0}}}});
        fetch_f32(once, all.item[i].out, R * W[i]), fetch_f32(each, alone_grad, R * W[i]);
        assert_memory_equal(once, each, (size_t)(R * W[i]) * sizeof *once);
        fetch_bytes(values, down.item[i].out, T * R * 2), fetch_bytes(values + T * R, alone, T * R * 2);
        assert_memory_equal(values, values + T * R, T * R * 2);
        device_drop((void *)all.item[i].wide), device_drop((void *)all.item[i].left), device_drop((void *)down.item[i].right);
        device_drop(all.item[i].out), device_drop(down.item[i].out);
    }
    device_drop(alone), device_drop(alone_grad);
    free(values), free(once), free(each);
}

static void wrong_sizes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    must_refuse(BKL_E_SHAPE, "R = 4", bkl->lora_down(device_stream, &(bkl_lora_down_args){.n = 1, .T = 1, .R = 4}, NULL, 0));
    must_refuse(BKL_E_SHAPE, "7 gradients",
                bkl->lora_grad(device_stream, &(bkl_lora_grad_args){.n = 7, .T = 1, .R = 8}, NULL, 0));
    bkl_lora_grad_args args = {.n = 1, .T = 1, .R = 8, .item = {{.W = 8, .wide_pitch = 8}}};
    must_refuse(BKL_E_WORKSPACE, "needs 256", bkl->lora_grad(device_stream, &args, NULL, 255));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(with_dropout_equals_the_reference),
        cmocka_unit_test(several_pairs_at_once_give_the_bits_of_one_at_a_time),
        cmocka_unit_test(wrong_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
