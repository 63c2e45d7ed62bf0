/* One source for every vector level. A file named <op>_simd.c is compiled once per level of the processor family, with that
 * level's flags; here the level's vector of floats gets one set of names, and AG_LEVEL(f) makes f_avx2, f_avx512 or f_neon.
 *
 *     void AG_LEVEL(ag_swiglu_fwd)(const ag_swiglu_fwd_args *a, int64_t t0, int64_t t1) { … vf x = vf_load(p + i); … }
 *
 * + - * / work on vf as they are (GCC vector types); nothing is contracted to FMA unless vf_fma says so. Only files named for a
 * level may include this header: nothing else may use its instructions. */
#ifndef AG_SIMD_H
#define AG_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(AG_SIMD_AVX512)
#include <immintrin.h>
#define AG_LEVEL(name) name##_avx512
enum { VF_LANES = 16 };
typedef __m512 vf;
static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline __mmask16 vf_mask_n(int64_t n) { return n >= 16 ? 0xffffu : (__mmask16)((1u << n) - 1u); }
static inline vf vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vf_mask_n(n), p); }
static inline void vf_store_n(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, vf_mask_n(n), v); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }

#elif defined(AG_SIMD_AVX2)
#include <immintrin.h>
#define AG_LEVEL(name) name##_avx2
enum { VF_LANES = 8 };
typedef __m256 vf;
static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline __m256i vf_mask_n(int64_t n)
{
    static const int32_t ones_then_zeros[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(ones_then_zeros + 8 - (n > 8 ? 8 : n)));
}
static inline vf vf_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, vf_mask_n(n)); }
static inline void vf_store_n(float *p, vf v, int64_t n) { _mm256_maskstore_ps(p, vf_mask_n(n), v); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }

#elif defined(AG_SIMD_NEON)
#include <arm_neon.h>
#define AG_LEVEL(name) name##_neon
enum { VF_LANES = 4 };
typedef float32x4_t vf;
static inline vf vf_set1(float x) { return vdupq_n_f32(x); }
static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline void vf_store(float *p, vf v) { vst1q_f32(p, v); }
static inline vf vf_load_n(const float *p, int64_t n)
{
    float x[4] = {0};
    memcpy(x, p, (size_t)(n > 4 ? 4 : n) * sizeof *x);
    return vld1q_f32(x);
}
static inline void vf_store_n(float *p, vf v, int64_t n)
{
    float x[4];
    vst1q_f32(x, v);
    memcpy(p, x, (size_t)(n > 4 ? 4 : n) * sizeof *x);
}
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vf_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }
static inline vf vf_max(vf a, vf b) { return vmaxq_f32(a, b); }
static inline vf vf_min(vf a, vf b) { return vminq_f32(a, b); }
static inline vf vf_sqrt(vf a) { return vsqrtq_f32(a); }

#else
#error "only <op>_simd.c and files named for a level include simd.h"
#endif

typedef int32_t vi __attribute__((vector_size(4 * VF_LANES)));   /* lanes as integers */
typedef uint32_t vu __attribute__((vector_size(4 * VF_LANES)));

static inline vf vf_zero(void) { return vf_set1(0); }

/* Sums the lanes as a tree: halves onto halves. */
static inline float vf_sum(vf v)
{
#if defined(AG_SIMD_AVX512)
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#elif defined(AG_SIMD_AVX2)
    const __m256 eight = v;
#endif
#if defined(AG_SIMD_NEON)
    const float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
#else
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#endif
}

static inline float vf_max_lane(vf v)
{
    float x[VF_LANES];
    memcpy(x, &v, sizeof x);
    for (int half = VF_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}

/* e^x to 1 ulp: x = n·ln2 + r with |r| ≤ ln2/2 and ln2 in two parts, a polynomial of degree 6 for e^r (minimax in relative
 * error with the first two terms 1: 3e-9), n added to the exponent. 0 below -87.3 (no subnormals), infinity above 88.8, NaN of
 * NaN. */
static inline vf vf_exp_polynomial(vf n, vf x)
{
    vf r = vf_fnma(n, vf_set1(0x1.62e4p-1f), x); /* ln2, upper bits: n·upper is exact */
    r = vf_fnma(n, vf_set1(0x1.7f7d1cp-20f), r);
    vf p = vf_set1(0.00138144658f);
    p = vf_fma(p, r, vf_set1(0.00836878053f));
    p = vf_fma(p, r, vf_set1(0.0416683942f));
    p = vf_fma(p, r, vf_set1(0.166665201f));
    p = vf_fma(p, r, vf_set1(0.499999934f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_fma(p, r, vf_set1(1.0f));
}

#if defined(AG_SIMD_AVX512)
/* The processor's own instructions for the exponent: half as many as below. */
static inline vf vf_exp(vf x)
{
    const __mmask16 normal = _mm512_cmp_ps_mask(x, vf_set1(-87.3f), _CMP_NLT_UQ);
    const vf y = vf_min(vf_set1(89), x); /* in this order NaN stays NaN */
    const vf n = _mm512_roundscale_ps(y * vf_set1(1.44269504f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_maskz_scalef_ps(normal, vf_exp_polynomial(n, y), n);
}
#else
static inline vf vf_exp(vf x)
{
    const vf magic = vf_set1(0x1.8p23f);
    vf clamped = vf_min(vf_set1(88.7f), vf_max(vf_set1(-87.3f), x)); /* in this order NaN stays NaN */
    vf n = (vf)(clamped * vf_set1(1.44269504f) + magic);
    vi exponent = (vi)n - (vi)magic;
    n = n - magic;
    vi bits = (vi)vf_exp_polynomial(n, clamped) + (exponent << 23);
    bits = bits & ~(vi)(x < vf_set1(-87.3f));
    vi over = (vi)(x > vf_set1(88.7f));
    return (vf)((bits & ~over) | (over & (vi)vf_set1(INFINITY)));
}
#endif

/* tanh to about 1e-7 (absolute), ±1 for infinities. */
static inline vf vf_tanh(vf x) { return vf_set1(1) - vf_set1(2) / (vf_exp(x + x) + vf_set1(1)); }

/* Each lane rounded to the nearest bf16 (ties to even), as a float. Finite values only: NaN may become infinity. */
static inline vf vf_round_bf16(vf x)
{
    vu u = (vu)x;
    u = u + 0x7fffu + ((u >> 16) & 1u);
    return (vf)(u & 0xffff0000u);
}

#endif
