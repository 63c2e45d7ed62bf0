/* VF_LANES vectors as a square matrix, transposed in registers. For level files only. */
#ifndef AG_LINEAR_TRANSPOSE_H
#define AG_LINEAR_TRANSPOSE_H

#include "ops/simd.h"

#if defined(AG_SIMD_AVX512)
static inline void transpose(vf m[16])
{
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) /* each 128-bit lane is now a 4×4 transpose */
        for (int j = 0; j < 2; j++) {
            m[i + 2 * j] = (__m512)_mm512_unpacklo_pd((__m512d)t[i + j], (__m512d)t[i + j + 2]);
            m[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd((__m512d)t[i + j], (__m512d)t[i + j + 2]);
        }
    for (int j = 0; j < 4; j++) {
        const __m512 a = _mm512_shuffle_f32x4(m[j], m[j + 4], 0x88), b = _mm512_shuffle_f32x4(m[j], m[j + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(m[j + 8], m[j + 12], 0x88), d = _mm512_shuffle_f32x4(m[j + 8], m[j + 12], 0xdd);
        t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
        t[j + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        t[j + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        t[j + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
    memcpy(m, t, sizeof t);
}
#elif defined(AG_SIMD_AVX2)
static inline void transpose(vf m[8])
{
    __m256 t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            m[i + 2 * j] = (__m256)_mm256_unpacklo_pd((__m256d)t[i + j], (__m256d)t[i + j + 2]);
            m[i + 2 * j + 1] = (__m256)_mm256_unpackhi_pd((__m256d)t[i + j], (__m256d)t[i + j + 2]);
        }
    for (int j = 0; j < 4; j++) {
        t[j] = _mm256_permute2f128_ps(m[j], m[j + 4], 0x20);
        t[j + 4] = _mm256_permute2f128_ps(m[j], m[j + 4], 0x31);
    }
    memcpy(m, t, sizeof t);
}
#else
static inline void transpose(vf m[4])
{
    const float32x4x2_t a = vtrnq_f32(m[0], m[1]), b = vtrnq_f32(m[2], m[3]);
    m[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    m[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    m[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    m[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
#endif

#endif
