/* The device's swiglu against the CPU's reference, over its cases (the length rounded up to a multiple of 8). */
#include "device_check.h"

#include "ops/swiglu/swiglu_cases.h"

static void check_case(int64_t T, int64_t F)
{
    const int64_t n = (T * F + 7) / 8 * 8;
    float *gate = host_floats(n), *up = host_floats(n), *dy = host_floats(n), *y = host_floats(n), *dgate = host_floats(n),
          *dup = host_floats(n);
    check_fill(gate, n, 1, 6), check_fill(up, n, 2, 2), check_fill(dy, n, 3, 1);
    gate[0] = 100, gate[n / 2] = -100, gate[n - 1] = -20; /* where e^-gate is 0, infinite, large */

    bkl_bf16 *d_gate = device_bf16(gate, n), *d_up = device_bf16(up, n), *d_dy = device_bf16(dy, n),
             *d_y = device_bf16(NULL, n);
    run_op(swiglu_fwd, {.y = d_y, .gate = d_gate, .up = d_up, .n = n});

    const ag_backend ref = check_backend(AG_CPU_REF, 1);
    const ag_tensor t_gate = ag_mat_f32(gate, 1, n), t_up = ag_mat_f32(up, 1, n);
    ag_err err;
    assert_int_equal(AG_OK,
                     ag_swiglu_fwd(&ref, &(ag_swiglu_fwd_args){.y = ag_mat_f32(y, 1, n), .gate = t_gate, .up = t_up}, &err));
    assert_int_equal(AG_OK, ag_swiglu_bwd(&ref,
                                          &(ag_swiglu_bwd_args){.dgate = ag_mat_f32(dgate, 1, n),
                                                                .dup = ag_mat_f32(dup, 1, n),
                                                                .dy = ag_mat_f32(dy, 1, n),
                                                                .gate = t_gate,
                                                                .up = t_up},
                                          &err));
    check_bf16(d_y, y, n, tolerance_bf16(1), "y");
    run_op(swiglu_bwd,
           {.dgate = d_gate, .dup = d_up, .y = d_dy, .gate = d_gate, .up = d_up, .dy = d_dy, .n = n}); /* all in place */
    check_bf16(d_gate, dgate, n, tolerance_bf16(1), "dgate");
    check_bf16(d_up, dup, n, tolerance_bf16(1), "dup");
    check_bf16(d_dy, y, n, tolerance_bf16(1), "y, recomputed");

    void *device[] = {d_gate, d_up, d_dy, d_y};
    float *host[] = {gate, up, dy, y, dgate, dup};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static void equals_the_reference(void **state)
{
    (void)state;
#define X(T, F) check_case(T, F);
    AG_SWIGLU_CASES(X)
#undef X
}

static void wrong_sizes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    must_refuse(BKL_E_SHAPE, "9 elements", bkl->swiglu_fwd(device_stream, &(bkl_swiglu_fwd_args){.n = 9}, NULL, 0));
    must_refuse(BKL_E_SHAPE, "0 elements", bkl->swiglu_bwd(device_stream, &(bkl_swiglu_bwd_args){.n = 0}, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(wrong_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
