/* The research GEMMs: codes against brute force over all codes, products against sums in double over what the codes mean. */
#include "device_check.h"

#include <stdio.h>

static double e4m3_value(int code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa / 8.0, -6);
    return code & 128 ? -magnitude : magnitude;
}
static double e2m1_value(int code)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -value[code & 7] : value[code & 7];
}

/* The nearest code of `n` magnitudes, even codes on ties, with x's sign. */
static int nearest(double x, double (*value)(int), int n, int sign)
{
    int best = 0;
    for (int c = 1; c < n; c++) {
        const double d = fabs(value(c) - fabs(x)), d_best = fabs(value(best) - fabs(x));
        if (d < d_best || (d == d_best && c % 2 == 0)) best = c;
    }
    return best | (signbit(x) ? sign : 0);
}
static int nearest_e4m3(double x) { return nearest(x, e4m3_value, 127, 128); } /* code 127 is NaN */
static int nearest_e2m1(double x) { return nearest(x, e2m1_value, 8, 8); }

/* ---- a matrix in both forms -----------------------------------------------------------------------------------------------
 */
typedef struct {
    int64_t rows, K;
    bool is_fp4;
    double *values; /* what the codes mean, scales included (but for NVFP4's unit) */
    uint8_t *codes, *block_scale;
    float *row_scale;
} low_bit_matrix;

static const float UNIT = 0.25f;

/* Quantizes on the device and checks each code; then decodes on the host. */
static low_bit_matrix matrix_create(int64_t rows, int64_t K, bool is_fp4, uint32_t seed)
{
    low_bit_matrix m = {rows, K, is_fp4, malloc((size_t)(rows * K) * sizeof(double)), NULL, NULL, NULL};
    const size_t n_codes = (size_t)(rows * K) / (is_fp4 ? 2 : 1), n_blocks = (size_t)(rows * K / 16);
    float *x = host_floats(rows * K), *scales = host_floats(rows);
    uint8_t *codes = malloc(n_codes), *blocks = malloc(n_blocks);
    assert_true(m.values && codes && blocks);
    check_fill(x, rows * K, seed, 3);
    for (int64_t k = 0; k < 16; k++) x[k] = k % 3 ? 0 : -0.0f;
    for (int64_t k = 0; k < 16 && rows > 1; k++) x[K + k] *= 0.001f; /* small beside its row */
    bkl_bf16 *d_x = device_bf16(x, rows * K);
    m.codes = device_bytes(NULL, n_codes);
    if (is_fp4) m.block_scale = device_bytes(NULL, n_blocks);
    else m.row_scale = device_f32(NULL, rows);
    run_op(low_bit_quantize, {.codes = m.codes,
                              .row_scale = m.row_scale,
                              .block_scale = m.block_scale,
                              .x = d_x,
                              .M = rows,
                              .K = K,
                              .scale = UNIT,
                              .is_fp4 = is_fp4});
    fetch_bytes(codes, m.codes, n_codes);
    if (is_fp4) fetch_bytes(blocks, m.block_scale, n_blocks);
    else fetch_f32(scales, m.row_scale, rows);
    for (int64_t i = 0; i < rows * K; i++) {
        if (is_fp4) {
            float most = 0;
            for (int64_t j = i / 16 * 16; j < i / 16 * 16 + 16; j++) most = fmaxf(most, fabsf(x[j]));
            assert_int_equal(blocks[i / 16], nearest_e4m3(most / 6.0f / UNIT));
            const float scale = (float)e4m3_value(blocks[i / 16]) * UNIT, by = scale > 0 ? 1 / scale : 0;
            const int code = codes[i / 2] >> (i % 2 * 4) & 15;
            if (code != nearest_e2m1(x[i] * by))
                fail_msg("[%lld] %.9g / %.9g has the code %d, not %d", (long long)i, (double)x[i], (double)scale, code,
                         nearest_e2m1(x[i] * by));
            m.values[i] = e2m1_value(code) * e4m3_value(blocks[i / 16]);
        } else {
            const int code = codes[i];
            if (code != nearest_e4m3(x[i] / scales[i / K]))
                fail_msg("[%lld] %.9g has the code %d, not %d", (long long)i, (double)x[i], code,
                         nearest_e4m3(x[i] / scales[i / K]));
            m.values[i] = e4m3_value(code) * scales[i / K];
        }
    }
    device_drop(d_x);
    free(x), free(scales), free(codes), free(blocks);
    return m;
}

static void matrix_free(low_bit_matrix *m)
{
    device_drop(m->codes), device_drop(m->block_scale), device_drop(m->row_scale);
    free(m->values);
}

static bool refused; /* the device is not one for these GEMMs */

static void check_case(int64_t M, int64_t N, int64_t K, bool is_fp4)
{
    low_bit_matrix a = matrix_create(M, K, is_fp4, 1), b = matrix_create(N, K, is_fp4, 2);
    bkl_bf16 *d_y = device_bf16(NULL, M * N);
    const bkl_low_bit_gemm_args args = {.y = d_y,
                                        .a = a.codes,
                                        .b = b.codes,
                                        .a_row_scale = a.row_scale,
                                        .b_row_scale = b.row_scale,
                                        .a_block_scale = a.block_scale,
                                        .b_block_scale = b.block_scale,
                                        .M = M,
                                        .N = N,
                                        .K = K,
                                        .scale = is_fp4 ? UNIT * UNIT : 1,
                                        .is_fp4 = is_fp4};
    const bkl_status status = bkl->low_bit_gemm(device_stream, &args, NULL, 0);
    if (status == BKL_E_UNSUPPORTED && device_info.major != 12) {
        refused = true;
    } else {
        must_run(status);
        float *y = host_floats(M * N);
        for (int64_t m = 0; m < M; m++)
            for (int64_t n = 0; n < N; n++) {
                double sum = 0;
                for (int64_t k = 0; k < K; k++) sum += a.values[m * K + k] * b.values[n * K + k];
                y[m * N + n] = (float)(args.scale * sum);
            }
        check_bf16(d_y, y, M * N, tolerance_bf16((double)K), "y");
        free(y);
    }
    device_drop(d_y);
    matrix_free(&a), matrix_free(&b);
}

static void products_of_8_bits_are_sums_over_what_codes_mean(void **state)
{
    (void)state;
    check_case(1, 8, 64, false);
    check_case(130, 136, 192, false);
    check_case(33, 48, 512, false);
    if (refused) skip();
}

static void products_of_4_bits_are_sums_over_what_codes_and_scales_mean(void **state)
{
    (void)state;
    check_case(1, 8, 256, true);
    check_case(130, 136, 256, true);
    check_case(33, 48, 768, true);
    if (refused) skip();
}

static void wrong_sizes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    if (refused) skip();
    must_refuse(BKL_E_SHAPE, "K = 32",
                bkl->low_bit_gemm(device_stream, &(bkl_low_bit_gemm_args){.M = 1, .N = 8, .K = 32}, NULL, 0));
    must_refuse(BKL_E_SHAPE, "scales are missing",
                bkl->low_bit_gemm(device_stream, &(bkl_low_bit_gemm_args){.M = 1, .N = 8, .K = 64}, NULL, 0));
    must_refuse(BKL_E_SHAPE, "K = 8",
                bkl->low_bit_quantize(device_stream, &(bkl_low_bit_quantize_args){.M = 1, .K = 8}, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_8_bits_are_sums_over_what_codes_mean),
        cmocka_unit_test(products_of_4_bits_are_sums_over_what_codes_and_scales_mean),
        cmocka_unit_test(wrong_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
