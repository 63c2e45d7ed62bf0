/* Decoders of one block of each GGUF type: exact, scalar, in the order of products of ggml's dequantize_row_*. */
#ifndef AG_WEIGHT_BLOCKS_H
#define AG_WEIGHT_BLOCKS_H

#include "ops/weight/weight.h"

enum { AG_WEIGHT_BLOCK_MAX = 256 };

typedef void ag_weight_decode_fn(float *out, const uint8_t *block);
ag_weight_decode_fn ag_q4_0_decode, ag_q4_1_decode, ag_q5_0_decode, ag_q5_1_decode, ag_q8_0_decode;
ag_weight_decode_fn ag_q2_k_decode, ag_q3_k_decode, ag_q4_k_decode, ag_q5_k_decode, ag_q6_k_decode;

/* Scale and minimum of sub-block j (0..7) of a Q4_K or Q5_K block, out of its 12 bytes of 6-bit numbers. */
static inline void ag_k_scale_min(int *scale, int *min, const uint8_t s[12], int j)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* The 16 scales of a Q3_K block, -32..31, out of its 12 bytes: low nibbles in bytes 0..7, upper two bits in 8..11. */
static inline void ag_q3_k_scales(int8_t scales[16], const uint8_t s[12])
{
    for (int j = 0; j < 16; j++) {
        const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
        const int high = s[8 + j % 4] >> 2 * (j / 4) & 3;
        scales[j] = (int8_t)((low | high << 4) - 32);
    }
}

/* The slots of the NF4 quantizer: `n` weights from x, which begin a block. */
typedef void ag_nf4_quantize_fn(uint8_t *packed, float *absmax, const float *x, int64_t n);
ag_nf4_quantize_fn ag_nf4_quantize_ref, ag_nf4_quantize_neon, ag_nf4_quantize_avx2, ag_nf4_quantize_avx512;
/* From bf16 numbers, which may begin at an odd address. */
typedef void ag_nf4_quantize_bf16_fn(uint8_t *packed, float *absmax, const void *x, int64_t n);
ag_nf4_quantize_bf16_fn ag_nf4_quantize_bf16_ref, ag_nf4_quantize_bf16_neon, ag_nf4_quantize_bf16_avx2, ag_nf4_quantize_bf16_avx512;

/* Midpoints of neighbouring codes: code i+1 is taken above midpoint[i]. */
extern const float ag_nf4_midpoint[15];
/* What bitsandbytes raises a block's largest magnitude to before it takes the reciprocal. */
static const float AG_NF4_ABSMAX_MIN = 1e-38f;

#endif
