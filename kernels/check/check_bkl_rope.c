/* The device's rope against the CPU's reference, over its cases whose heads the device takes (D a multiple of 16), with and
 * without room between tokens. */
#include "device_check.h"

#include "ops/rope/rope_cases.h"

static void check_case(int64_t T, int64_t H, int64_t D, int64_t gap, bool backward)
{
    enum { N_POSITIONS = 600 };
    const int64_t pitch = H * D + gap, n = T * H * D, half = D / 2;
    float *x = host_floats(T * pitch), *dense = host_floats(n), *cos = host_floats(N_POSITIONS * half),
          *sin = host_floats(N_POSITIONS * half);
    int32_t *positions = malloc((size_t)T * sizeof *positions);
    double *freq = malloc((size_t)half * sizeof *freq);
    assert_true(positions && freq);
    for (int64_t i = 0; i < half; i++) freq[i] = pow(10000, -2.0 * (double)i / (double)D);
    ag_rope_table(cos, sin, freq, N_POSITIONS, D, 1.25);
    for (int64_t t = 0; t < T; t++) positions[t] = (int32_t)(t * 7 % N_POSITIONS);
    check_fill(x, T * pitch, 1, 2);

    bkl_bf16 *d_x = device_bf16(x, T * pitch);
    int32_t *d_positions = device_i32(positions, T);
    float *d_cos = device_f32(cos, N_POSITIONS * half), *d_sin = device_f32(sin, N_POSITIONS * half);
    run_op(rope, {.x = d_x,
                  .positions = d_positions,
                  .cos = d_cos,
                  .sin = d_sin,
                  .T = T,
                  .H = H,
                  .D = D,
                  .pitch = pitch,
                  .backward = backward});

    const ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_err err;
    for (int64_t t = 0; t < T; t++) memcpy(dense + t * H * D, x + t * pitch, (size_t)(H * D) * sizeof *x);
    assert_int_equal(AG_OK, ag_rope(&ref,
                                    &(ag_rope_args){.x = ag_cube_f32(dense, T, H, D),
                                                    .positions = ag_vec_i32(positions, T),
                                                    .cos = cos,
                                                    .sin = sin,
                                                    .n_positions = N_POSITIONS,
                                                    .backward = backward},
                                    &err));
    for (int64_t t = 0; t < T; t++) memcpy(x + t * pitch, dense + t * H * D, (size_t)(H * D) * sizeof *x);
    check_bf16(d_x, x, T * pitch, tolerance_bf16(2), "x");
    void *device[] = {d_x, d_positions, d_cos, d_sin}, *host[] = {x, dense, cos, sin, positions, freq};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static void equals_the_reference(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
#define X(T, H, D) \
    if (D % 16 == 0) check_case(T > 48 ? 48 : T, H, D, 0, backward);
        AG_ROPE_CASES(X)
#undef X
        check_case(5, 3, 16, 8, backward);
        check_case(7, 2, 128, 264, backward);
    }
}

static void wrong_sizes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    must_refuse(BKL_E_SHAPE, "D = 34",
                bkl->rope(device_stream, &(bkl_rope_args){.T = 1, .H = 1, .D = 34, .pitch = 40}, NULL, 0));
    must_refuse(BKL_E_SHAPE, "pitch = 16",
                bkl->rope(device_stream, &(bkl_rope_args){.T = 1, .H = 2, .D = 16, .pitch = 16}, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(wrong_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
