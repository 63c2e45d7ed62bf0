/* Decoders and quantizers against bitsandbytes and the gguf package, to the bit; views and vector levels against the decoder. */
#include "ops/simd_levels.h"
#include "ops/weight/weight_blocks.h"
#include "support/golden.h"
#include "support/op_check.h"

#include "base/num.h"

#include <stdio.h>

static const char *const nf4_cases[] = {"one", "short", "zeros", "odd", "straddle", "many"};
enum { N_NF4_CASES = sizeof nf4_cases / sizeof *nf4_cases };

static const char *key(const char *name, const char *what)
{
    static char text[4][64];
    static int at;
    at = (at + 1) % 4;
    snprintf(text[at], sizeof text[at], "%s.%s", name, what);
    return text[at];
}

static ag_weight nf4_weight(const golden *g, const char *name)
{
    ag_weight w = {.type = AG_W_NF4, .N = 1, .K = golden_n(g, key(name, "x")), .data = golden_get(g, key(name, "packed"), "U8", -1)};
    if (golden_has(g, key(name, "offset"))) {
        w.absmax_q = golden_get(g, key(name, "absmax_q"), "U8", -1);
        w.nested_absmax = golden_get(g, key(name, "nested_absmax"), "F32", -1);
        w.offset = *(const float *)golden_get(g, key(name, "offset"), "F32", 1);
    } else {
        w.absmax = golden_get(g, key(name, "absmax"), "F32", -1);
    }
    return w;
}

static void nf4_bytes_are_those_of_bitsandbytes(void **state)
{
    (void)state;
    golden g = golden_open("weight/nf4.safetensors");
    for (int c = 0; c < N_NF4_CASES; c++) {
        const char *name = nf4_cases[c];
        const int64_t n = golden_n(&g, key(name, "x")), n_blocks = (n + 63) / 64;
        float *x = golden_floats(&g, key(name, "x")), *absmax = check_floats(n_blocks);
        uint8_t *packed = malloc((size_t)(n + 1) / 2 + 1);
        packed[(n + 1) / 2] = 0xa5;
        ag_nf4_quantize(packed, absmax, x, n);
        assert_memory_equal(golden_get(&g, key(name, "packed"), "U8", (n + 1) / 2), packed, (size_t)(n + 1) / 2);
        assert_memory_equal(golden_get(&g, key(name, "absmax"), "F32", n_blocks), absmax, (size_t)n_blocks * 4);
        assert_int_equal(0xa5, packed[(n + 1) / 2]);
        check_guards(absmax, n_blocks, "absmax");
        free(packed);
        check_free(absmax);
        free(x);
    }
    golden_close(&g);
}

static void blocks_may_be_quantized_range_by_range_from_any_type(void **state)
{
    (void)state;
    golden g = golden_open("weight/nf4.safetensors");
    const char *const cases[] = {"odd", "straddle"}; /* f32 with a short last block; bf16 */
    for (int c = 0; c < 2; c++) {
        const char *name = cases[c];
        const bool bf16 = strcmp(golden_dtype(&g, key(name, "x")), "BF16") == 0;
        const int64_t N = golden_dim(&g, key(name, "x"), 0), K = golden_dim(&g, key(name, "x"), 1), n_blocks = (N * K + 63) / 64;
        /* at an odd address, as a tensor in a file may lie */
        char *bytes = malloc((size_t)(N * K * 4 + 1));
        memcpy(bytes + 1, golden_get(&g, key(name, "x"), bf16 ? "BF16" : "F32", N * K), (size_t)(N * K) * (bf16 ? 2 : 4));
        const ag_weight w = {.type = bf16 ? AG_W_BF16 : AG_W_F32, .N = N, .K = K, .data = bytes + 1};
        float *absmax = check_floats(n_blocks);
        uint8_t *packed = calloc(1, (size_t)(N * K + 1) / 2);
        ag_nf4_quantize_blocks(packed, absmax, &w, 2, n_blocks);
        ag_nf4_quantize_blocks(packed, absmax, &w, 0, 2);
        assert_memory_equal(golden_get(&g, key(name, "packed"), "U8", (N * K + 1) / 2), packed, (size_t)(N * K + 1) / 2);
        assert_memory_equal(golden_get(&g, key(name, "absmax"), "F32", n_blocks), absmax, (size_t)n_blocks * 4);
        free(packed);
        free(bytes);
        check_free(absmax);
    }
    golden_close(&g);
}

static void double_quantization_finds_the_nearest_code(void **state)
{
    (void)state;
    golden g = golden_open("weight/nf4.safetensors");
    assert_memory_equal(golden_get(&g, "code", "F32", 16), ag_nf4_code, sizeof ag_nf4_code);
    assert_memory_equal(golden_get(&g, "dynamic_map", "F32", 256), ag_dynamic_map_signed(), 256 * sizeof(float));
    for (int c = 0; c < N_NF4_CASES; c++) {
        const char *name = nf4_cases[c];
        if (!golden_has(&g, key(name, "offset"))) continue;
        const int64_t n_blocks = golden_n(&g, key(name, "absmax")), n_nested = (n_blocks + 255) / 256;
        uint8_t q[512];
        float nested[2], offset;
        ag_nf4_double_quantize(q, nested, &offset, golden_get(&g, key(name, "absmax"), "F32", n_blocks), n_blocks);
        assert_memory_equal(golden_get(&g, key(name, "offset"), "F32", 1), &offset, sizeof offset);
        assert_memory_equal(golden_get(&g, key(name, "nested_absmax"), "F32", n_nested), nested, (size_t)n_nested * 4);
        assert_memory_equal(golden_get(&g, key(name, "absmax_q"), "U8", n_blocks), q, (size_t)n_blocks);
    }
    golden_close(&g);
}

static void equal_scales_double_quantize_to_the_offset(void **state)
{
    (void)state;
    const float absmax[3] = {0.75f, 0.75f, 0.75f};
    uint8_t q[3] = {9, 9, 9};
    float nested = 9, offset;
    ag_nf4_double_quantize(q, &nested, &offset, absmax, 3);
    assert_true(offset == 0.75f && nested == 0 && q[0] == 0 && q[1] == 0 && q[2] == 0);
}

static void nf4_decodes_to_the_bit(void **state)
{
    (void)state;
    golden g = golden_open("weight/nf4.safetensors");
    for (int c = 0; c < N_NF4_CASES; c++) {
        const ag_weight w = nf4_weight(&g, nf4_cases[c]);
        if (!w.absmax_q) continue;
        float *out = check_floats(w.K);
        ag_weight_row(out, &w, 0, 0, w.K);
        assert_memory_equal(golden_get(&g, key(nf4_cases[c], "dequant"), "F32", w.K), out, (size_t)w.K * 4);
        check_guards(out, w.K, "row");
        check_free(out);
    }
    golden_close(&g);
}

static void every_gguf_type_decodes_to_the_bit(void **state)
{
    (void)state;
    golden g = golden_open("weight/gguf.safetensors");
    for (int t = AG_W_F16; t < AG_N_WEIGHT_TYPES; t++) {
        if (t == AG_W_NF4) continue;
        const char *name = ag_weight_type_name((ag_weight_type)t);
        const int64_t K = golden_dim(&g, key(name, "dequant"), 1);
        const ag_weight w = {.type = (ag_weight_type)t, .N = 2, .K = K, .data = golden_get(&g, key(name, "rows"), "U8", -1)};
        assert_int_equal(ag_weight_bytes(&w), golden_n(&g, key(name, "rows")));
        const float *want = golden_get(&g, key(name, "dequant"), "F32", 2 * K);
        float *out = check_floats(K);
        for (int64_t n = 0; n < 2; n++) {
            ag_weight_row(out, &w, n, 0, K);
            for (int64_t k = 0; k < K; k++)
                if (!(out[k] == want[n * K + k])) fail_msg("%s [%d,%d] is %a, want %a", name, (int)n, (int)k, out[k], want[n * K + k]);
        }
        check_guards(out, K, name);
        check_free(out);
    }
    golden_close(&g);
}

static void a_part_of_a_row_is_the_same_part_of_the_whole(void **state)
{
    (void)state;
    golden g = golden_open("weight/gguf.safetensors"), nf4 = golden_open("weight/nf4.safetensors");
    static const int64_t cuts[][2] = {{0, 1}, {0, 256}, {31, 33}, {32, 64}, {5, 300}, {255, 257}, {300, 385}, {7, 7}};
    for (int t = AG_W_Q2_K - 1; t < AG_N_WEIGHT_TYPES; t++) {
        ag_weight w = {.type = (ag_weight_type)t, .N = 2, .K = 768};
        if (t == AG_W_Q2_K - 1)
            w = nf4_weight(&nf4, "odd");
        else
            w.data = golden_get(&g, key(ag_weight_type_name(w.type), "rows"), "U8", -1);
        float *whole = check_floats(w.K);
        ag_weight_row(whole, &w, w.N - 1, 0, w.K);
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            const int64_t n = cuts[i][1] - cuts[i][0];
            float *part = check_floats(n);
            ag_weight_row(part, &w, w.N - 1, cuts[i][0], cuts[i][1]);
            assert_memory_equal(whole + cuts[i][0], part, (size_t)n * 4);
            check_guards(part, n, "part of a row");
            check_free(part);
        }
        check_free(whole);
    }
    golden_close(&g);
    golden_close(&nf4);
}

static void a_slice_of_rows_has_the_rows_of_the_whole(void **state)
{
    (void)state;
    golden g = golden_open("weight/gguf.safetensors"), nf4 = golden_open("weight/nf4.safetensors");
    ag_weight odd = nf4_weight(&nf4, "odd");
    odd.N = 5, odd.K = 77; /* rows begin inside bytes and blocks */
    const ag_weight q6 = {.type = AG_W_Q6_K, .N = 2, .K = 768, .data = golden_get(&g, "q6_k.rows", "U8", -1)};
    const ag_weight wholes[] = {odd, q6};
    for (int i = 0; i < 2; i++) {
        const ag_weight *w = &wholes[i], rows = ag_weight_rows(w, 1, w->N), again = ag_weight_rows(&rows, w->N - 2, w->N - 1);
        float a[768], b[768];
        assert_int_equal(w->N - 1, rows.N);
        for (int64_t n = 1; n < w->N; n++) {
            ag_weight_row(a, w, n, 0, w->K);
            ag_weight_row(b, &rows, n - 1, 0, w->K);
            assert_memory_equal(a, b, (size_t)w->K * 4);
        }
        ag_weight_row(b, &again, 0, 0, w->K);
        assert_memory_equal(a, b, (size_t)w->K * 4); /* a slice of a slice: the last row */
    }
    golden_close(&g);
    golden_close(&nf4);
}

static void rope_pairs_give_rows_in_the_order_of_halves(void **state)
{
    (void)state;
    enum { D = 6, HEADS = 2 };
    float rows[D * HEADS];
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < D / 2; j++) rows[h * D + 2 * j + i] = (float)(h * D + i * (D / 2) + j);
    const ag_weight w = {.type = AG_W_F32, .N = D * HEADS, .K = 1, .data = rows, .rope_pairs_head_dim = D};
    const ag_weight second = ag_weight_rows(&w, D, 2 * D);
    for (int64_t n = 0; n < D * HEADS; n++) {
        float x;
        ag_weight_row(&x, &w, n, 0, 1);
        assert_true(x == (float)n);
        if (n >= D) ag_weight_row(&x, &second, n - D, 0, 1);
        assert_true(x == (float)n);
    }
}

static void every_level_quantizes_to_the_same_bytes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 63, 64, 65, 640, 1000};
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
        ag_nf4_quantize_fn *f32 = NULL;
        ag_nf4_quantize_bf16_fn *bf16 = NULL;
        AG_USE_SIMD(f32, ag_nf4_quantize, *level);
        AG_USE_SIMD(bf16, ag_nf4_quantize_bf16, *level);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const int64_t n = sizes[s], n_blocks = (n + 63) / 64;
            float *x = check_floats(n), *absmax = check_floats(n_blocks), *want = check_floats(n_blocks);
            uint16_t half[1000];
            uint8_t packed[501], want_packed[501];
            check_fill(x, n, (uint32_t)s + 1, 3);
            for (int64_t i = 0; i < n; i += 5) x[i] *= 1e-3f;
            if (n == 640) {
                x[3] = NAN;
                x[70] = INFINITY;
                x[80] = -INFINITY;
                for (int i = 128; i < 192; i++) x[i] = 0;
                for (int i = 192; i < 256; i++) x[i] *= 1e-40f; /* subnormal */
            }
            memset(packed, 0xa5, sizeof packed);
            memset(want_packed, 0xa5, sizeof want_packed);
            ag_nf4_quantize_ref(want_packed, want, x, n);
            f32(packed, absmax, x, n);
            assert_memory_equal(want_packed, packed, sizeof packed);
            assert_memory_equal(want, absmax, (size_t)n_blocks * 4);
            for (int64_t i = 0; i < n; i++) half[i] = ag_f32_to_bf16(x[i]);
            ag_nf4_quantize_bf16_ref(want_packed, want, half, n);
            bf16(packed, absmax, half, n);
            assert_memory_equal(want_packed, packed, sizeof packed);
            assert_memory_equal(want, absmax, (size_t)n_blocks * 4);
            check_guards(absmax, n_blocks, "absmax");
            check_free(x);
            check_free(absmax);
            check_free(want);
        }
    }
}

static void rows_are_written_as_ggml_writes_them(void **state)
{
    (void)state;
    ag_err err;
    golden g = golden_open("weight/gguf.safetensors");
    static const char *const names[][2] = {{"f16", "rows"}, {"bf16", "rows"}, {"q8_0", "quantized"}};
    for (int i = 0; i < 3; i++) {
        ag_weight_type type;
        assert_int_equal(AG_OK, ag_weight_type_parse(&type, names[i][0], &err));
        const int64_t N = golden_dim(&g, key(names[i][0], "x"), 0), K = golden_dim(&g, key(names[i][0], "x"), 1);
        const float *x = golden_get(&g, key(names[i][0], "x"), "F32", N * K);
        const uint8_t *want = golden_get(&g, key(names[i][0], names[i][1]), "U8", -1);
        const size_t bytes = (size_t)ag_weight_row_bytes(type, K);
        uint8_t out[256];
        for (int64_t n = 0; n < N; n++) {
            assert_int_equal(AG_OK, ag_weight_quantize_row(out, type, x + n * K, K, &err));
            assert_memory_equal(want + (size_t)n * bytes, out, bytes);
        }
    }
    golden_close(&g);
}

static void what_cannot_be_written_is_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    float x[256] = {1, NAN};
    uint8_t out[1024];
    assert_int_equal(AG_E_SHAPE, ag_weight_quantize_row(out, AG_W_Q8_0, x, 33, &err));
    assert_string_equal("a row of 33 weights cannot be q8_0, whose blocks hold 32", err.text);
    assert_int_equal(AG_E_NUMERIC, ag_weight_quantize_row(out, AG_W_Q8_0, x, 32, &err));
    assert_string_equal("column 1 of a row is not finite; q8_0 cannot hold that", err.text);
    assert_int_equal(AG_E_NUMERIC, ag_weight_quantize_row(out, AG_W_Q4_K, x, 256, &err));
    assert_string_equal("column 1 of a row is not finite; q4_k cannot hold that", err.text);
    x[1] = -1e5f;
    assert_int_equal(AG_E_NUMERIC, ag_weight_quantize_row(out, AG_W_Q6_K, x, 256, &err));
    assert_string_equal("column 1 of a row is -100000; q6_k is only written for weights up to 65504", err.text);
    assert_int_equal(AG_E_UNSUPPORTED, ag_weight_quantize_row(out, AG_W_Q2_K, x, 256, &err));
    assert_string_equal("weights cannot be written as q2_k; f32, f16, bf16, q8_0, q4_0, q5_0, q5_1, q4_k, q5_k and q6_k can", err.text);
    ag_weight_type type;
    assert_int_equal(AG_E_USAGE, ag_weight_type_parse(&type, "iq2_xs", &err));
    assert_string_equal("'iq2_xs' is no weight type; there are f32 f16 bf16 nf4 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k", err.text);
}

static void sizes_count_scales(void **state)
{
    (void)state;
    const float some = 0;
    const uint8_t byte = 0;
    const ag_weight plain = {.type = AG_W_NF4, .N = 256, .K = 64, .absmax = &some};
    const ag_weight nested = {.type = AG_W_NF4, .N = 256, .K = 64, .absmax_q = &byte};
    const ag_weight q4 = {.type = AG_W_Q4_K, .N = 2, .K = 256};
    assert_int_equal(256 * 32 + 256 * 4, ag_weight_bytes(&plain));
    assert_int_equal(256 * 32 + 256 + 4 + 4, ag_weight_bytes(&nested));
    assert_true(ag_weight_bits(&plain) == 4.5 && ag_weight_bits(&q4) == 4.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nf4_bytes_are_those_of_bitsandbytes),
        cmocka_unit_test(blocks_may_be_quantized_range_by_range_from_any_type),
        cmocka_unit_test(double_quantization_finds_the_nearest_code),
        cmocka_unit_test(equal_scales_double_quantize_to_the_offset),
        cmocka_unit_test(nf4_decodes_to_the_bit),
        cmocka_unit_test(every_gguf_type_decodes_to_the_bit),
        cmocka_unit_test(a_part_of_a_row_is_the_same_part_of_the_whole),
        cmocka_unit_test(a_slice_of_rows_has_the_rows_of_the_whole),
        cmocka_unit_test(rope_pairs_give_rows_in_the_order_of_halves),
        cmocka_unit_test(every_level_quantizes_to_the_same_bytes),
        cmocka_unit_test(rows_are_written_as_ggml_writes_them),
        cmocka_unit_test(what_cannot_be_written_is_refused_with_a_sentence),
        cmocka_unit_test(sizes_count_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
