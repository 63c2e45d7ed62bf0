/* Numbers of 8 and 4 bits: e4m3 (FP8; unsigned as NVFP4's block scales) and e2m1 (FP4), nearest even, saturating. In software,
 * so that every architecture and the emulator give the same codes. */
#ifndef BKL_LOW_BIT_H
#define BKL_LOW_BIT_H

#include "device.h"

#define E4M3_MOST 448.0f
#define E2M1_MOST 6.0f

BKL_FN float e4m3_to_f32(uint32_t code)
{
    const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    const float magnitude =
        exponent == 0 ? (float)mantissa * 0.001953125f /* 2^-9 */ : __uint_as_float((exponent + 120) << 23 | mantissa << 20);
    return code & 0x80 ? -magnitude : magnitude;
}

BKL_FN uint32_t f32_to_e4m3(float x)
{
    const uint32_t sign = __float_as_uint(x) >> 24 & 0x80;
    const float magnitude = fminf(fabsf(x), E4M3_MOST);
    if (magnitude < 0.015625f) /* below 2^-6: steps of 2^-9, rounded by the addition */
        return sign | (__float_as_uint(magnitude * 512.0f + 8388608.0f) & 15u);
    const uint32_t u = __float_as_uint(magnitude), rounded = u + 0x7ffffu + (u >> 20 & 1u);
    return sign | ((rounded >> 20) - (120u << 3));
}

/* 0, 0.5, 1, 1.5, 2, 3, 4, 6 */
BKL_FN float e2m1_to_f32(uint32_t code)
{
    const uint32_t exponent = code >> 1 & 3, mantissa = code & 1;
    const float magnitude = exponent == 0 ? (float)mantissa * 0.5f : (float)(2 + mantissa) * (float)(1u << exponent) * 0.25f;
    return code & 8 ? -magnitude : magnitude;
}

BKL_FN uint32_t f32_to_e2m1(float x)
{
    const float m = fabsf(x);
    const uint32_t code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) +
                          (m > 5.0f); /* ties to even codes */
    return (__float_as_uint(x) >> 28 & 8u) | code;
}

#endif
