/* Layouts: ggml-common.h; the sums and products of dequantize_row_* in ggml-quants.c (facts in docs/formats.md). */
#include "ops/weight/weight_blocks.h"

#include "base/num.h"

static float half_at(const uint8_t *p) { return ag_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

static uint32_t word_at(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }

/* d, 16 bytes of nibbles: byte j holds element j low and j+16 high. */
void ag_q4_0_decode(float *out, const uint8_t *b)
{
    const float d = half_at(b);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)((b[2 + j] & 15) - 8) * d;
        out[j + 16] = (float)((b[2 + j] >> 4) - 8) * d;
    }
}

/* d, m, nibbles */
void ag_q4_1_decode(float *out, const uint8_t *b)
{
    const float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)(b[4 + j] & 15) * d + m;
        out[j + 16] = (float)(b[4 + j] >> 4) * d + m;
    }
}

/* d, 32 fifth bits, nibbles */
void ag_q5_0_decode(float *out, const uint8_t *b)
{
    const float d = half_at(b);
    const uint32_t fifth = word_at(b + 2);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)((int)((b[6 + j] & 15u) | (fifth >> j & 1) << 4) - 16) * d;
        out[j + 16] = (float)((int)(b[6 + j] >> 4 | (fifth >> (j + 16) & 1) << 4) - 16) * d;
    }
}

/* d, m, 32 fifth bits, nibbles */
void ag_q5_1_decode(float *out, const uint8_t *b)
{
    const float d = half_at(b), m = half_at(b + 2);
    const uint32_t fifth = word_at(b + 4);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)((b[8 + j] & 15u) | (fifth >> j & 1) << 4) * d + m;
        out[j + 16] = (float)(b[8 + j] >> 4 | (fifth >> (j + 16) & 1) << 4) * d + m;
    }
}

/* d, 32 signed bytes */
void ag_q8_0_decode(float *out, const uint8_t *b)
{
    const float d = half_at(b);
    for (int j = 0; j < 32; j++) out[j] = (float)(int8_t)b[2 + j] * d;
}

/* scales[16] (low nibble scale, high nibble minimum), qs[64], d, dmin. Two halves of 128 weights; in each, the four pairs of
 * bits of 32 bytes are four runs of 32, and a scale belongs to 16. */
void ag_q2_k_decode(float *out, const uint8_t *b)
{
    const uint8_t *scales = b, *q = b + 16;
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, pair = i / 32 % 4, s = scales[i / 16];
        out[i] = d * (float)(s & 15) * (float)(q[32 * half + i % 32] >> 2 * pair & 3) - dmin * (float)(s >> 4);
    }
}

/* hmask[32], qs[64], scales[12], d. As Q2_K, and bit i/32 of hmask[i%32] clear takes 4 off. */
void ag_q3_k_decode(float *out, const uint8_t *b)
{
    const uint8_t *hmask = b, *q = b + 32;
    const float d = half_at(b + 108);
    int8_t scales[16];
    ag_q3_k_scales(scales, b + 96);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, pair = i / 32 % 4;
        const int low = q[32 * half + i % 32] >> 2 * pair & 3, high = hmask[i % 32] >> i / 32 & 1;
        out[i] = d * (float)scales[i / 16] * (float)(high ? low : low - 4);
    }
}

/* d, dmin, scales[12], qs[128]: for each 64 weights the low nibbles of 32 bytes, then their high nibbles. */
void ag_q4_k_decode(float *out, const uint8_t *b)
{
    const float d = half_at(b), dmin = half_at(b + 2);
    const uint8_t *q = b + 16;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        ag_k_scale_min(&scale, &min, b + 4, j);
        const float s = d * (float)scale, m = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            const uint8_t byte = q[32 * (j / 2) + i];
            out[32 * j + i] = s * (float)(j % 2 ? byte >> 4 : byte & 15) - m;
        }
    }
}

/* d, dmin, scales[12], qh[32], qs[128]: as Q4_K, with bit j of qh[i] the fifth bit in sub-block j. */
void ag_q5_k_decode(float *out, const uint8_t *b)
{
    const float d = half_at(b), dmin = half_at(b + 2);
    const uint8_t *qh = b + 16, *q = b + 48;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        ag_k_scale_min(&scale, &min, b + 4, j);
        const float s = d * (float)scale, m = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            const uint8_t byte = q[32 * (j / 2) + i];
            out[32 * j + i] = s * (float)((j % 2 ? byte >> 4 : byte & 15) + (qh[i] >> j & 1) * 16) - m;
        }
    }
}

/* ql[128], qh[64], signed scales[16], d. Two halves of 128: the low nibbles of 64 bytes, then their high nibbles; qh gives two
 * more bits, run by run of 32. */
void ag_q6_k_decode(float *out, const uint8_t *b)
{
    const uint8_t *ql = b, *qh = b + 128;
    const float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, run = i / 32 % 4;
        const int nibble = ql[64 * half + i % 64] >> (run < 2 ? 0 : 4) & 15, high = qh[32 * half + i % 32] >> 2 * run & 3;
        out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((nibble | high << 4) - 32);
    }
}
