/* The device's NF4 quantizer gives the CPU's bytes, and its dequantizer the CPU's values rounded to bf16. */
#include "device_check.h"
#include "nf4_problem.h"

#include "base/num.h"

static void quantizing_gives_the_bytes_of_the_cpu(void **state)
{
    (void)state;
    const int64_t sizes[] = {64, 128, 2048, 2112, 40000 / 64 * 64};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s];
        float *x = host_floats(n), *absmax = host_floats(n / 64), *got_absmax = host_floats(n / 64);
        uint8_t *packed = malloc((size_t)n), *got = malloc((size_t)n);
        assert_true(packed && got);
        check_fill(x, n, 1, 0.1f);
        for (int64_t i = 0; i < 64 && n > 64; i++) x[64 + i] = 0; /* a block of zeros */
        bkl_bf16 *d_x = device_bf16(x, n);
        uint8_t *d_packed = device_bytes(NULL, (size_t)(n / 2));
        float *d_absmax = device_f32(NULL, n / 64);
        run_op(nf4_quantize, {.packed = d_packed, .absmax = d_absmax, .x = d_x, .n = n});
        ag_nf4_quantize(packed, absmax, x, n);
        fetch_bytes(got, d_packed, (size_t)(n / 2)), fetch_f32(got_absmax, d_absmax, n / 64);
        assert_memory_equal(got, packed, (size_t)(n / 2));
        assert_memory_equal(got_absmax, absmax, (size_t)(n / 64) * sizeof *absmax);
        device_drop(d_x), device_drop(d_packed), device_drop(d_absmax);
        free(x), free(absmax), free(got_absmax), free(packed), free(got);
    }
}

static void dequantizing_gives_the_values_of_the_cpu(void **state)
{
    (void)state;
    for (int doubly = 0; doubly < 2; doubly++) {
        const int64_t N = 40, K = 448;
        nf4_problem w = nf4_problem_create(N, K, doubly, 3);
        bkl_bf16 *d_y = device_bf16(NULL, N * K);
        float *y = host_floats(N * K), *row = host_floats(K);
        run_op(nf4_dequantize, {.y = d_y, .w = w.device});
        fetch_bf16(y, d_y, N * K);
        for (int64_t n = 0; n < N; n++) {
            ag_weight_row(row, &w.host, n, 0, K);
            for (int64_t k = 0; k < K; k++) assert_true(y[n * K + k] == ag_round_bf16(row[k]));
        }
        device_drop(d_y), free(y), free(row);
        nf4_problem_free(&w);
    }
}

static void wrong_sizes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    must_refuse(BKL_E_SHAPE, "65 values", bkl->nf4_quantize(device_stream, &(bkl_nf4_quantize_args){.n = 65}, NULL, 0));
    must_refuse(BKL_E_SHAPE, "rows of 100",
                bkl->nf4_dequantize(device_stream, &(bkl_nf4_dequantize_args){.w = {.N = 8, .K = 100}}, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantizing_gives_the_bytes_of_the_cpu),
        cmocka_unit_test(dequantizing_gives_the_values_of_the_cpu),
        cmocka_unit_test(wrong_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
