#include "support/weight_make.h"

#include "base/num.h"
#include "support/op_check.h"

static uint32_t next(uint32_t *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

static void put_half(uint8_t *at, float value)
{
    const uint16_t h = ag_f32_to_f16(value);
    memcpy(at, &h, sizeof h);
}

/* Random bits, then scales that a real file could hold where the layout has f16 scales. */
static void fill_blocks(uint8_t *bytes, ag_weight_type type, int64_t n_blocks, uint32_t *state)
{
    static const struct {
        int at[2]; /* offsets of f16 scales, -1: none */
        float size;
    } scales[AG_N_WEIGHT_TYPES] = {
        [AG_W_Q4_0] = {{0, -1}, 0.1f},    [AG_W_Q4_1] = {{0, 2}, 0.1f},      [AG_W_Q5_0] = {{0, -1}, 0.06f},
        [AG_W_Q5_1] = {{0, 2}, 0.06f},    [AG_W_Q8_0] = {{0, -1}, 0.008f},   [AG_W_Q2_K] = {{80, 82}, 0.02f},
        [AG_W_Q3_K] = {{108, -1}, 0.01f}, [AG_W_Q4_K] = {{0, 2}, 0.001f},    [AG_W_Q5_K] = {{0, 2}, 0.0006f},
        [AG_W_Q6_K] = {{208, -1}, 0.0003f},
    };
    const int64_t size = ag_weight_block_bytes(type);
    for (int64_t b = 0; b < n_blocks; b++, bytes += size) {
        for (int64_t i = 0; i < size; i++) bytes[i] = (uint8_t)next(state);
        for (int s = 0; s < 2; s++)
            if (scales[type].at[s] >= 0)
                put_half(bytes + scales[type].at[s], scales[type].size * ((float)(next(state) % 2001) / 1000 - 1));
    }
}

static void fill_nf4(ag_weight *w, uint8_t *bytes, uint32_t seed, bool double_quantized)
{
    const int64_t n = w->N * w->K, n_blocks = (n + AG_NF4_BLOCK - 1) / AG_NF4_BLOCK;
    float *x = check_floats(n), *absmax = malloc((size_t)n_blocks * sizeof *absmax);
    assert_non_null(absmax);
    check_fill(x, n, seed, 1);
    for (int64_t i = 0; i < n; i++) x[i] *= 0.3f + 0.1f * (float)(i / AG_NF4_BLOCK % 7);
    ag_nf4_quantize(bytes, absmax, x, n);
    check_free(x);
    w->absmax = absmax;
    if (!double_quantized) return;
    const int64_t n_nested = (n_blocks + AG_NF4_NESTED_BLOCK - 1) / AG_NF4_NESTED_BLOCK;
    uint8_t *q = malloc((size_t)n_blocks);
    float *nested = malloc((size_t)n_nested * sizeof *nested);
    assert_non_null(q);
    assert_non_null(nested);
    ag_nf4_double_quantize(q, nested, &w->offset, absmax, n_blocks);
    free(absmax);
    w->absmax = NULL;
    w->absmax_q = q;
    w->nested_absmax = nested;
}

ag_weight weight_make(ag_weight_type type, int64_t N, int64_t K, uint32_t seed, bool double_quantized)
{
    ag_weight w = {.type = type, .N = N, .K = K};
    uint32_t state = seed * 2654435761u + 99u;
    const int64_t n = N * K, per_block = ag_weight_block_weights(type);
    const int64_t n_blocks = (n + per_block - 1) / per_block;
    uint8_t *bytes = malloc((size_t)(n_blocks * ag_weight_block_bytes(type)) + 1);
    assert_non_null(bytes);
    bytes++;
    w.data = bytes;
    for (int64_t i = 0; type <= AG_W_BF16 && i < n; i++) {
        const float x = (float)next(&state) / 8388608.0f - 1.0f;
        const uint16_t half = type == AG_W_F16 ? ag_f32_to_f16(x) : ag_f32_to_bf16(x);
        if (type == AG_W_F32)
            memcpy(bytes + 4 * i, &x, sizeof x);
        else
            memcpy(bytes + 2 * i, &half, sizeof half);
    }
    if (type == AG_W_NF4)
        fill_nf4(&w, bytes, seed, double_quantized);
    else if (type > AG_W_NF4)
        fill_blocks(bytes, type, n_blocks, &state);
    return w;
}

void weight_free(ag_weight *w)
{
    free((uint8_t *)w->data - 1);
    free((float *)w->absmax);
    free((uint8_t *)w->absmax_q);
    free((float *)w->nested_absmax);
    *w = (ag_weight){0};
}
