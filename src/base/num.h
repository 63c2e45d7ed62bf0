/* Half and bfloat16 as bits, exact conversions (round to nearest even, NaN stays NaN, subnormals kept). Scalar; the ops have
 * their own vector forms, checked against these. */
#ifndef AG_NUM_H
#define AG_NUM_H

#include <stdint.h>
#include <string.h>

static inline uint32_t ag_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float ag_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float ag_bf16_to_f32(uint16_t h) { return ag_f32_from_bits((uint32_t)h << 16); }

static inline uint16_t ag_f32_to_bf16(float x)
{
    uint32_t u = ag_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x0040u); /* quiet NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* x rounded to the nearest bf16, as a float. */
static inline float ag_round_bf16(float x) { return ag_bf16_to_f32(ag_f32_to_bf16(x)); }

static inline float ag_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0) return ag_f32_from_bits(sign | ag_f32_bits((float)mantissa * 0x1p-24f));
    if (exponent == 31) return ag_f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    return ag_f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t ag_f32_to_f16(float x)
{
    uint32_t u = ag_f32_bits(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);  /* NaN */
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more round to infinity */
    if (magnitude < 0x38800000u) {                                   /* below 2^-14: the FPU rounds in steps of 2^-24 */
        float steps = ag_f32_from_bits(magnitude) * 0x1p24f + 0x1p23f;
        return (uint16_t)(sign | (ag_f32_bits(steps) & 0x7fffffu));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

#endif
