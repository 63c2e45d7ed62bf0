/* The device's rmsnorm against the CPU's reference, over its cases whose rows the device takes (C a multiple of 8). */
#include "device_check.h"

#include "base/num.h"
#include "ops/rmsnorm/rmsnorm_cases.h"

static void check_case(int64_t T, int64_t C, bool with_residual)
{
    const int64_t n = T * C;
    float *x = host_floats(n), *residual = host_floats(n), *w = host_floats(C), *dy = host_floats(n),
          *dresidual = host_floats(n);
    float *y = host_floats(n), *r = host_floats(T);
    check_fill(x, n, 1, 3), check_fill(residual, n, 2, 2), check_fill(w, C, 3, 1), check_fill(dy, n, 4, 1),
        check_fill(dresidual, n, 5, 1);

    bkl_bf16 *d_x = device_bf16(x, n), *d_residual = device_bf16(residual, n), *d_dy = device_bf16(dy, n),
             *d_dx = device_bf16(dresidual, n);
    bkl_bf16 *d_y = device_bf16(NULL, n);
    float *d_w = device_f32(w, C), *d_r = device_f32(NULL, T);
    run_op(rmsnorm_fwd, {.y = d_y,
                         .sum = with_residual ? d_x : NULL,
                         .r = d_r,
                         .x = d_x,
                         .residual = with_residual ? d_residual : NULL,
                         .w = d_w,
                         .T = T,
                         .C = C,
                         .eps = 1e-5f});
    run_op(rmsnorm_bwd, {.dx = d_dx, .dresidual = d_dx, .dy = d_dy, .x = d_x, .w = d_w, .r = d_r, .T = T, .C = C});

    const ag_backend ref = check_backend(AG_CPU_REF, 1);
    for (int64_t i = 0; with_residual && i < n; i++) x[i] = ag_round_bf16(x[i] + residual[i]);
    const ag_tensor tx = ag_mat_f32(x, T, C), tw = ag_vec_f32(w, C), tr = ag_vec_f32(r, T);
    ag_err err;
    assert_int_equal(
        AG_OK,
        ag_rmsnorm_fwd(&ref, &(ag_rmsnorm_fwd_args){.y = ag_mat_f32(y, T, C), .r = tr, .x = tx, .w = tw, .eps = 1e-5f}, &err));
    assert_int_equal(
        AG_OK, ag_rmsnorm_bwd(&ref,
                              &(ag_rmsnorm_bwd_args){
                                  .dx = ag_mat_f32(dresidual, T, C), .dy = ag_mat_f32(dy, T, C), .x = tx, .w = tw, .r = tr},
                              &err));
    check_bf16(d_x, x, n, 0, "the sum");
    check_bf16(d_y, y, n, tolerance_bf16((double)C), "y");
    check_f32(d_r, r, T, tolerance_f32_sum((double)C), "r");
    check_bf16(d_dx, dresidual, n, tolerance_bf16((double)C), "dx");

    void *device[] = {d_x, d_residual, d_dy, d_dx, d_y, d_w, d_r};
    float *host[] = {x, residual, w, dy, dresidual, y, r};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static void equals_the_reference(void **state)
{
    (void)state;
#define X(T, C) \
    if (C % 8 == 0) check_case(T > 64 ? 64 : T, C, false);
    AG_RMSNORM_CASES(X)
#undef X
    check_case(3, 8192, false);
}

static void with_a_residual_equals_the_reference_of_the_sum(void **state)
{
    (void)state;
    check_case(1, 8, true);
    check_case(17, 64, true);
    check_case(5, 2056, true);
    check_case(9, 1536, true);
}

static void wrong_sizes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    must_refuse(BKL_E_SHAPE, "C = 7", bkl->rmsnorm_fwd(device_stream, &(bkl_rmsnorm_fwd_args){.T = 1, .C = 7}, NULL, 0));
    must_refuse(BKL_E_UNSUPPORTED, "8200",
                bkl->rmsnorm_bwd(device_stream, &(bkl_rmsnorm_bwd_args){.T = 1, .C = 8200}, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(with_a_residual_equals_the_reference_of_the_sum),
        cmocka_unit_test(wrong_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
