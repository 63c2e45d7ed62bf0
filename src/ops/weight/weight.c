/* The table of types, views, and the exact decoder of a row. */
#include "ops/weight/weight.h"

#include "base/num.h"
#include "ops/weight/weight_blocks.h"
#include "ops/weight/weight_encode.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static const struct {
    const char *name;
    int weights, bytes;
} types[AG_N_WEIGHT_TYPES] = {
#define X(type, name_, weights_, bytes_) [type] = {.name = name_, .weights = weights_, .bytes = bytes_},
    AG_WEIGHT_TYPES(X)
#undef X
};

static ag_weight_decode_fn *const decoders[AG_N_WEIGHT_TYPES] = {
    [AG_W_Q4_0] = ag_q4_0_decode, [AG_W_Q4_1] = ag_q4_1_decode, [AG_W_Q5_0] = ag_q5_0_decode, [AG_W_Q5_1] = ag_q5_1_decode,
    [AG_W_Q8_0] = ag_q8_0_decode, [AG_W_Q2_K] = ag_q2_k_decode, [AG_W_Q3_K] = ag_q3_k_decode, [AG_W_Q4_K] = ag_q4_k_decode,
    [AG_W_Q5_K] = ag_q5_k_decode, [AG_W_Q6_K] = ag_q6_k_decode,
};

const char *ag_weight_type_name(ag_weight_type type) { return types[type].name; }

ag_status ag_weight_type_parse(ag_weight_type *out, const char *name, ag_err *err)
{
    for (int i = 0; i < AG_N_WEIGHT_TYPES; i++)
        if (strcmp(name, types[i].name) == 0) {
            *out = (ag_weight_type)i;
            return AG_OK;
        }
    return ag_fail(err, AG_E_USAGE, "'%s' is no weight type; there are"
#define X(type, name_, weights, bytes) " " name_
                   AG_WEIGHT_TYPES(X)
#undef X
                   , name);
}

int64_t ag_weight_block_weights(ag_weight_type type) { return types[type].weights; }
int64_t ag_weight_block_bytes(ag_weight_type type) { return types[type].bytes; }

int64_t ag_weight_row_bytes(ag_weight_type type, int64_t K)
{
    AG_ASSERT(type != AG_W_NF4 && K % types[type].weights == 0);
    return K / types[type].weights * types[type].bytes;
}

size_t ag_weight_bytes(const ag_weight *w)
{
    if (w->type != AG_W_NF4) return (size_t)(w->N * ag_weight_row_bytes(w->type, w->K));
    const int64_t n = w->N * w->K, n_blocks = (n + AG_NF4_BLOCK - 1) / AG_NF4_BLOCK;
    size_t bytes = (size_t)((n + 1) / 2);
    if (!w->absmax_q) return bytes + (size_t)n_blocks * sizeof *w->absmax;
    const int64_t n_nested = (n_blocks + AG_NF4_NESTED_BLOCK - 1) / AG_NF4_NESTED_BLOCK;
    return bytes + (size_t)n_blocks + (size_t)n_nested * sizeof *w->nested_absmax + sizeof w->offset;
}

double ag_weight_bits(const ag_weight *w) { return 8.0 * (double)ag_weight_bytes(w) / ((double)w->N * (double)w->K); }

ag_weight ag_weight_rows(const ag_weight *w, int64_t n0, int64_t n1)
{
    AG_ASSERT(0 <= n0 && n0 <= n1 && n1 <= w->N);
    const int64_t D = w->rope_pairs_head_dim;
    AG_ASSERT(D == 0 || (n0 % D == 0 && n1 % D == 0));
    ag_weight rows = *w;
    rows.N = n1 - n0;
    if (w->type == AG_W_NF4)
        rows.first += n0 * w->K;
    else
        rows.data = (const uint8_t *)w->data + n0 * ag_weight_row_bytes(w->type, w->K);
    return rows;
}

static void nf4_row(float *out, const ag_weight *w, int64_t e, int64_t n)
{
    const uint8_t *nibbles = w->data;
    const float *map = ag_dynamic_map_signed();
    for (int64_t i = 0; i < n;) {
        const int64_t block = (e + i) / AG_NF4_BLOCK, end = (block + 1) * AG_NF4_BLOCK - e;
        const float scale = w->absmax_q ? map[w->absmax_q[block]] * w->nested_absmax[block / AG_NF4_NESTED_BLOCK] + w->offset
                                        : w->absmax[block];
        for (; i < n && i < end; i++) {
            const uint8_t byte = nibbles[(e + i) / 2];
            out[i] = ag_nf4_code[(e + i) % 2 ? byte & 15 : byte >> 4] * scale;
        }
    }
}

static void blocks_row(float *out, const ag_weight *w, const uint8_t *row, int64_t k0, int64_t k1)
{
    const int64_t B = types[w->type].weights, bytes = types[w->type].bytes;
    float block[AG_WEIGHT_BLOCK_MAX];
    for (int64_t k = k0; k < k1;) {
        const int64_t first = k / B * B, end = first + B < k1 ? first + B : k1;
        const bool whole = k == first && end == first + B;
        float *to = whole ? out + (k - k0) : block;
        decoders[w->type](to, row + first / B * bytes);
        if (!whole) memcpy(out + (k - k0), block + (k - first), (size_t)(end - k) * sizeof *out);
        k = end;
    }
}

void ag_weight_row(float *out, const ag_weight *w, int64_t n, int64_t k0, int64_t k1)
{
    const int64_t stored = ag_weight_stored_row(w, n);
    if (w->type == AG_W_NF4) {
        nf4_row(out, w, w->first + stored * w->K + k0, k1 - k0);
        return;
    }
    const uint8_t *row = (const uint8_t *)w->data + stored * ag_weight_row_bytes(w->type, w->K);
    switch (w->type) {
    case AG_W_F32: memcpy(out, row + 4 * k0, (size_t)(k1 - k0) * 4); break;
    case AG_W_F16:
    case AG_W_BF16:
        for (int64_t k = k0; k < k1; k++) {
            uint16_t half; /* a tensor in a file may begin at an odd byte */
            memcpy(&half, row + 2 * k, sizeof half);
            out[k - k0] = w->type == AG_W_F16 ? ag_f16_to_f32(half) : ag_bf16_to_f32(half);
        }
        break;
    default: blocks_row(out, w, row, k0, k1);
    }
}

/* ggml's quantize_row_q8_0_ref: the scale is the f16 of amax/127, but the codes are by the unrounded scale's reciprocal. */
static void quantize_q8_0(uint8_t *out, const float *x, int64_t K)
{
    enum { B = 32, BYTES = 34 };
    for (int64_t k = 0; k < K; k += B, out += BYTES) {
        float largest = 0;
        for (int i = 0; i < B; i++) largest = fmaxf(largest, fabsf(x[k + i]));
        const float d = largest / 127, inverse = d != 0 ? 1 / d : 0;
        const uint16_t half = ag_f32_to_f16(d);
        memcpy(out, &half, sizeof half);
        for (int i = 0; i < B; i++) out[2 + i] = (uint8_t)(int8_t)roundf(x[k + i] * inverse);
    }
}

ag_status ag_weight_quantize_row(void *out, ag_weight_type type, const float *x, int64_t K, ag_err *err)
{
    if (K % types[type].weights != 0)
        return ag_fail(err, AG_E_SHAPE, "a row of %lld weights cannot be %s, whose blocks hold %d", (long long)K, types[type].name,
                       types[type].weights);
    if (type == AG_W_F32) {
        memcpy(out, x, (size_t)K * sizeof *x);
        return AG_OK;
    }
    if (type == AG_W_F16 || type == AG_W_BF16) {
        for (int64_t k = 0; k < K; k++) {
            const uint16_t half = type == AG_W_F16 ? ag_f32_to_f16(x[k]) : ag_f32_to_bf16(x[k]);
            memcpy((uint8_t *)out + 2 * k, &half, sizeof half);
        }
        return AG_OK;
    }
    ag_weight_encode_fn *encode = ag_weight_encoder(type);
    if (!encode && type != AG_W_Q8_0)
        return ag_fail(err, AG_E_UNSUPPORTED, "weights cannot be written as %s; f32, f16, bf16, q8_0, q4_0, q5_0, q5_1, q4_k, q5_k and q6_k can",
                       types[type].name);
    for (int64_t k = 0; k < K; k++) {
        if (!isfinite(x[k]))
            return ag_fail(err, AG_E_NUMERIC, "column %lld of a row is not finite; %s cannot hold that", (long long)k, types[type].name);
        if (encode && fabsf(x[k]) > AG_LARGEST_ENCODED)
            return ag_fail(err, AG_E_NUMERIC, "column %lld of a row is %g; %s is only written for weights up to %g", (long long)k, (double)x[k],
                           types[type].name, (double)AG_LARGEST_ENCODED);
    }
    if (type == AG_W_Q8_0)
        quantize_q8_0(out, x, K);
    else
        for (int64_t k = 0; k < K; k += types[type].weights) encode((uint8_t *)out + k / types[type].weights * types[type].bytes, x + k);
    return AG_OK;
}
