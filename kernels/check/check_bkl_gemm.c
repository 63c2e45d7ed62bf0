/* The device's bf16 GEMM against the CPU's reference of linear: y = x·Wᵀ and dx = dy·W, over linear's cases that the device
 * takes (with rows rounded up to its multiples of 8), results in bf16 and f32, added and overwritten, with room between rows.
 */
#include "device_check.h"

#include "base/num.h"
#include "ops/linear/linear_cases.h"

typedef struct {
    bool is_kn, is_f32, accumulate, bias;
    int64_t gap;
    float scale;
} variant;

static void check_case(int64_t M, int64_t K, int64_t N, variant v)
{
    const int64_t y_pitch = N + v.gap, a_pitch = K + v.gap, b_pitch = (v.is_kn ? N : K) + v.gap, b_rows = v.is_kn ? K : N;
    float *a = host_floats(M * a_pitch), *b = host_floats(b_rows * b_pitch), *y = host_floats(M * y_pitch),
          *bias = host_floats(N);
    float *dense_a = host_floats(M * K), *dense_b = host_floats(N * K), *dense_y = host_floats(M * N);
    check_fill(a, M * a_pitch, 1, 1), check_fill(b, b_rows * b_pitch, 2, 1), check_fill(y, M * y_pitch, 3, 1),
        check_fill(bias, N, 4, 2);

    bkl_bf16 *d_a = device_bf16(a, M * a_pitch), *d_b = device_bf16(b, b_rows * b_pitch);
    void *d_y = v.is_f32 ? (void *)device_f32(y, M * y_pitch) : (void *)device_bf16(y, M * y_pitch);
    float *d_bias = v.bias ? device_f32(bias, N) : NULL;
    run_op(gemm, {.y = d_y,
                  .a = d_a,
                  .b = d_b,
                  .bias = d_bias,
                  .M = M,
                  .N = N,
                  .K = K,
                  .y_pitch = y_pitch,
                  .a_pitch = a_pitch,
                  .b_pitch = b_pitch,
                  .scale = v.scale,
                  .b_is_kn = v.is_kn,
                  .y_is_f32 = v.is_f32,
                  .accumulate = v.accumulate});

    for (int64_t m = 0; m < M; m++)
        for (int64_t k = 0; k < K; k++) dense_a[m * K + k] = a[m * a_pitch + k];
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) dense_b[n * K + k] = v.is_kn ? b[k * b_pitch + n] : b[n * b_pitch + k];
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) dense_y[m * N + n] = y[m * y_pitch + n];
    const ag_backend ref = check_backend(AG_CPU_REF, 1);
    const ag_weight w = {.type = AG_W_F32, .N = N, .K = K, .data = dense_b};
    ag_err err;
    assert_int_equal(AG_OK, ag_linear_fwd(&ref,
                                          &(ag_linear_fwd_args){.y = {ag_mat_f32(dense_y, M, N)},
                                                                .w = {&w},
                                                                .bias = {v.bias ? bias : NULL},
                                                                .n = 1,
                                                                .accumulate = v.accumulate,
                                                                .scale = v.scale,
                                                                .x = ag_mat_f32(dense_a, M, K),
                                                                .compute = AG_COMPUTE_BF16},
                                          &err));
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) y[m * y_pitch + n] = dense_y[m * N + n];
    if (v.is_f32)
        check_f32(d_y, y, M * y_pitch, tolerance_f32_sum((double)K), "y");
    else
        check_bf16(d_y, y, M * y_pitch, tolerance_bf16((double)K), "y");

    void *device[] = {d_a, d_b, d_y, d_bias};
    float *host[] = {a, b, y, bias, dense_a, dense_b, dense_y};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static int64_t up8(int64_t n) { return (n + 7) / 8 * 8; }
static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }

static void equals_the_reference(void **state)
{
    (void)state;
#define X(T, K, N) check_case(at_most(T, 150), up8(at_most(K, 600)), up8(at_most(N, 300)), (variant){.scale = 1});
    AG_LINEAR_CASES(X)
#undef X
}

static void with_the_right_side_by_rows_of_the_sum_equals_the_reference(void **state)
{
    (void)state;
    check_case(1, 8, 8, (variant){.is_kn = true, .scale = 1});
    check_case(130, 200, 136, (variant){.is_kn = true, .scale = 0.5f});
    check_case(17, 328, 264, (variant){.is_kn = true, .scale = 1, .gap = 8});
}

static void in_f32_added_with_bias_and_room_between_rows_equals_the_reference(void **state)
{
    (void)state;
    check_case(129, 72, 136, (variant){.is_f32 = true, .accumulate = true, .bias = true, .gap = 16, .scale = 0.25f});
    check_case(33, 256, 48, (variant){.accumulate = true, .scale = 2});
    check_case(5, 64, 128, (variant){.is_f32 = true, .bias = true, .scale = 1});
}

static void wrong_sizes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    must_refuse(BKL_E_SHAPE, "K = 7", bkl->gemm(device_stream, &(bkl_gemm_args){.M = 1, .N = 8, .K = 7}, NULL, 0));
    must_refuse(BKL_E_SHAPE, "pitches of 8",
                bkl->gemm(device_stream, &(bkl_gemm_args){.M = 1, .N = 8, .K = 16, .a_pitch = 8, .b_pitch = 16, .y_pitch = 8},
                          NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(with_the_right_side_by_rows_of_the_sum_equals_the_reference),
        cmocka_unit_test(in_f32_added_with_bias_and_room_between_rows_equals_the_reference),
        cmocka_unit_test(wrong_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
