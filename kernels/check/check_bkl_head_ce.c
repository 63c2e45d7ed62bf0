/* The device's embedding, and its head with cross-entropy, against the CPU's references. */
#include "device_check.h"

#include "ops/head_ce/head_ce_cases.h"

static int64_t up8(int64_t n) { return (n + 7) / 8 * 8; }

static void check_case(int64_t M, int64_t C, int64_t V, float logit_scale, bool sure)
{
    float *x = host_floats(M * C), *w = host_floats(V * C), *nll = host_floats(M), *dx = host_floats(M * C);
    int32_t *targets = malloc((size_t)M * sizeof *targets), *best = malloc((size_t)M * sizeof *best),
            *got = malloc((size_t)M * sizeof *got);
    assert_true(targets && best && got);
    check_fill(x, M * C, 1, 1), check_fill(w, V * C, 2, 1);
    for (int64_t m = 0; m < M; m++) targets[m] = (int32_t)(m * 7919 % V);
    for (int64_t m = 0; sure && m < M; m++) /* a target that stands out: softmax is 1 to the last bit of f32 */
        for (int64_t c = 0; c < C; c++) x[m * C + c] = 20 * w[targets[m] * C + c];
    bkl_bf16 *d_x = device_bf16(x, M * C), *d_w = device_bf16(w, V * C), *d_dx = device_bf16(NULL, M * C);
    float *d_nll = device_f32(NULL, M);
    int32_t *d_targets = device_i32(targets, M), *d_best = device_i32(NULL, M);
    const float dloss = 1.0f / (float)M;
    run_op(head_ce, {.nll = d_nll,
                     .best = d_best,
                     .dx = d_dx,
                     .x = d_x,
                     .targets = d_targets,
                     .w = d_w,
                     .M = M,
                     .C = C,
                     .V = V,
                     .logit_scale = logit_scale,
                     .dloss = dloss});

    ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_err err;
    check_backend_scratch(&ref, ag_head_ce_scratch_bytes(&ref, M, C, V));
    const ag_weight weight = {.type = AG_W_F32, .N = V, .K = C, .data = w};
    if (ag_head_ce(&ref,
                   &(ag_head_ce_args){.nll = ag_vec_f32(nll, M),
                                      .best = ag_vec_i32(best, M),
                                      .dx = ag_mat_f32(dx, M, C),
                                      .x = ag_mat_f32(x, M, C),
                                      .targets = ag_vec_i32(targets, M),
                                      .w = &weight,
                                      .logit_scale = logit_scale,
                                      .dloss = dloss,
                                      .compute = AG_COMPUTE_F32},
                   &err))
        fail_msg("%s", err.text);
    check_backend_free(&ref);
    if (!sure) {
        check_f32(d_nll, nll, M, tolerance_f32_sum((double)C) + 1e-6, "nll");
        fetch_bytes(got, d_best, (size_t)M * sizeof *got);
        assert_memory_equal(got, best, (size_t)M * sizeof *got);
        check_bf16(d_dx, dx, M * C, 2 * tolerance_bf16((double)V),
                   "dx"); /* the gradient of the logits is rounded to bf16, too */
    } else {
        fetch_f32(nll, d_nll, M), fetch_bf16(dx, d_dx, M * C);
        for (int64_t m = 0; m < M; m++) assert_true(nll[m] >= 0 && nll[m] < 1e-3f);
        for (int64_t i = 0; i < M * C; i++) assert_true(isfinite(dx[i]));
    }
    run_op(head_ce, {.nll = d_nll,
                     .x = d_x,
                     .targets = d_targets,
                     .w = d_w,
                     .M = M,
                     .C = C,
                     .V = V,
                     .logit_scale = logit_scale}); /* forward alone */
    void *device[] = {d_x, d_w, d_dx, d_nll, d_targets, d_best};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    free(x), free(w), free(nll), free(dx), free(targets), free(best), free(got);
}

static void head_equals_the_reference(void **state)
{
    (void)state;
#define X(M, C, V) check_case(M > 300 ? 300 : M, up8(C > 64 ? 64 : C), up8(V), 1, false);
    AG_HEAD_CE_CASES(X)
#undef X
    check_case(5, 64, 4160, 0.125f, false); /* long enough to cut the sum of dx */
}

static void head_of_a_sure_model_neither_cancels_nor_overflows(void **state)
{
    (void)state;
    check_case(9, 64, 200, 1, true);
}

static void embedding_is_the_row_times_the_scale(void **state)
{
    (void)state;
    enum { V = 50, C = 72, T = 33 };
    float *w = host_floats(V * C), *x = host_floats(T * C);
    int32_t ids[T];
    check_fill(w, V * C, 1, 1);
    for (int t = 0; t < T; t++) ids[t] = t * 31 % V;
    bkl_bf16 *d_w = device_bf16(w, V * C), *d_x = device_bf16(NULL, T * C);
    int32_t *d_ids = device_i32(ids, T);
    run_op(embed, {.x = d_x, .ids = d_ids, .w = d_w, .T = T, .C = C, .scale = 12});
    const ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_err err;
    const ag_weight weight = {.type = AG_W_F32, .N = V, .K = C, .data = w};
    assert_int_equal(
        AG_OK,
        ag_embed(&ref, &(ag_embed_args){.x = ag_mat_f32(x, T, C), .ids = ag_vec_i32(ids, T), .w = &weight, .scale = 12}, &err));
    check_bf16(d_x, x, T * C, 0x1p-8, "x");
    device_drop(d_w), device_drop(d_x), device_drop(d_ids);
    free(w), free(x);
}

static void wrong_sizes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    must_refuse(BKL_E_SHAPE, "V = 9", bkl->head_ce(device_stream, &(bkl_head_ce_args){.M = 1, .C = 8, .V = 9}, NULL, 0));
    must_refuse(BKL_E_WORKSPACE, "head_ce", bkl->head_ce(device_stream, &(bkl_head_ce_args){.M = 1, .C = 8, .V = 8}, NULL, 0));
    must_refuse(BKL_E_SHAPE, "C = 4", bkl->embed(device_stream, &(bkl_embed_args){.T = 1, .C = 4}, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_equals_the_reference),
        cmocka_unit_test(head_of_a_sure_model_neither_cancels_nor_overflows),
        cmocka_unit_test(embedding_is_the_row_times_the_scale),
        cmocka_unit_test(wrong_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
