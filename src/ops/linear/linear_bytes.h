/* What the decoders of linear_decode.h are made of, once per processor family: small integers out of bytes, and integers into
 * scaled floats. On x86 the integer part needs AVX2 alone and serves both levels.
 *
 *     small_ints            32 bytes, the first 16 and the last
 *     b32                   the same in the form in which all 32 are worked on
 *     bytes32               32 bytes as they are
 *     bits_of               each byte shifted right by `bits`, and what `mask` leaves of it (its neighbours' bits, if not masked)
 *     raised, either, less  each byte shifted left (no bit may leave it), a | b, b - n
 *     nibbles_in_halves     of 16 bytes the low nibbles, then the high ones (GGUF)
 *     nibbles_in_turn       of 16 bytes high and low nibble of each in turn (NF4)
 *     fifth_bits            32 bits as 32 bytes of 0 or 16
 *     bytes_to_floats       signed bytes as floats
 *     nibbles_scaled, _plus, _minus    (q - zero)·d, q·d + m, q·d - m
 *     nf4_scaled            code[q]·absmax
 *     halves_to_floats      32 f16
 *     scales_times          out[i] = d·bytes[i], i < n (8 or 16) */
#ifndef AG_LINEAR_BYTES_H
#define AG_LINEAR_BYTES_H

#include "ops/simd.h"
#include "ops/weight/weight.h"

enum { CHUNK = 32, CHUNK_VECTORS = CHUNK / VF_LANES };

/* f16 scale and minimum that stand side by side. */
typedef struct {
    float d, m;
} two_floats;

#if defined(__x86_64__)
/* ---- x86 ------------------------------------------------------------------------------------------------------------------ */
static inline float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

static inline two_floats two_halves_at(const uint8_t *p)
{
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    const __m128 x = _mm_cvtph_ps(_mm_cvtsi32_si128(bits));
    return (two_floats){_mm_cvtss_f32(x), _mm_cvtss_f32(_mm_movehdup_ps(x))};
}

typedef __m256i b32;
typedef struct {
    __m128i first, last;
} small_ints;

static inline small_ints split(b32 b) { return (small_ints){_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1)}; }
static inline b32 joined(small_ints b) { return _mm256_set_m128i(b.last, b.first); }

static inline __m128i bytes16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline b32 bytes32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

static inline b32 bits_of(b32 b, int bits, int mask)
{
    return _mm256_and_si256(_mm256_srl_epi16(b, _mm_cvtsi32_si128(bits)), _mm256_set1_epi8((char)mask));
}
static inline b32 raised(b32 b, int bits) { return _mm256_sll_epi16(b, _mm_cvtsi32_si128(bits)); }
static inline b32 either(b32 a, b32 b) { return _mm256_or_si256(a, b); }
static inline b32 less(b32 b, int n) { return _mm256_sub_epi8(b, _mm256_set1_epi8((char)n)); }

static inline small_ints nibbles_in_halves(const uint8_t *p)
{
    const __m128i b = bytes16(p), low = _mm_set1_epi8(15);
    return (small_ints){_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low)};
}

static inline small_ints nibbles_in_turn(const uint8_t *p)
{
    const __m128i b = bytes16(p), mask = _mm_set1_epi8(15);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(b, 4), mask), low = _mm_and_si128(b, mask);
    return (small_ints){_mm_unpacklo_epi8(high, low), _mm_unpackhi_epi8(high, low)};
}

static inline b32 fifth_bits(const uint8_t *p)
{
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    const __m256i which_byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i which_bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), which_byte);
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, which_bit), which_bit);
    return _mm256_and_si256(is_set, _mm256_set1_epi8(16));
}

#if defined(AG_SIMD_AVX512)
static inline void bytes_to_floats(vf out[CHUNK_VECTORS], small_ints q)
{
    out[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q.first));
    out[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q.last));
}

static inline void look_up(vf out[CHUNK_VECTORS], small_ints codes, vf table)
{
    out[0] = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes.first), table);
    out[1] = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes.last), table);
}

static inline vf from_0(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

/* Products of all 16 nibbles are a table: one multiplication serves 32 weights. */
static inline void nibbles_scaled(vf out[CHUNK_VECTORS], small_ints q, int zero, float d)
{
    look_up(out, q, (from_0() - vf_set1((float)zero)) * vf_set1(d));
}
static inline void nibbles_plus(vf out[CHUNK_VECTORS], small_ints q, float d, float m) { look_up(out, q, from_0() * vf_set1(d) + vf_set1(m)); }
static inline void nibbles_minus(vf out[CHUNK_VECTORS], small_ints q, float d, float m) { look_up(out, q, from_0() * vf_set1(d) - vf_set1(m)); }
static inline void nf4_scaled(vf out[CHUNK_VECTORS], small_ints codes, float absmax)
{
    look_up(out, codes, vf_load(ag_nf4_code) * vf_set1(absmax));
}
static inline void halves_to_floats(vf out[CHUNK_VECTORS], const uint8_t *p)
{
    out[0] = _mm512_cvtph_ps(bytes32(p));
    out[1] = _mm512_cvtph_ps(bytes32(p + 32));
}
#else
static inline void bytes_to_floats(vf out[CHUNK_VECTORS], small_ints q)
{
    out[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q.first));
    out[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q.first, 8)));
    out[2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q.last));
    out[3] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q.last, 8)));
}

static inline void nibbles_scaled(vf out[CHUNK_VECTORS], small_ints q, int zero, float d)
{
    const __m128i z = _mm_set1_epi8((char)zero);
    bytes_to_floats(out, (small_ints){_mm_sub_epi8(q.first, z), _mm_sub_epi8(q.last, z)});
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d);
}
static inline void nibbles_plus(vf out[CHUNK_VECTORS], small_ints q, float d, float m)
{
    bytes_to_floats(out, q);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d) + vf_set1(m);
}
static inline void nibbles_minus(vf out[CHUNK_VECTORS], small_ints q, float d, float m)
{
    bytes_to_floats(out, q);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d) - vf_set1(m);
}
/* A permute takes one of 8: both halves of the table, and bit 3 of the code (moved to the sign) chooses. */
static inline vf nf4_eight(__m128i codes, vf low, vf high)
{
    const __m256i c = _mm256_cvtepu8_epi32(codes);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, c), _mm256_permutevar8x32_ps(high, c),
                            _mm256_castsi256_ps(_mm256_slli_epi32(c, 28)));
}
static inline void nf4_scaled(vf out[CHUNK_VECTORS], small_ints codes, float absmax)
{
    const vf low = vf_load(ag_nf4_code) * vf_set1(absmax), high = vf_load(ag_nf4_code + 8) * vf_set1(absmax);
    out[0] = nf4_eight(codes.first, low, high);
    out[1] = nf4_eight(_mm_srli_si128(codes.first, 8), low, high);
    out[2] = nf4_eight(codes.last, low, high);
    out[3] = nf4_eight(_mm_srli_si128(codes.last, 8), low, high);
}
static inline void halves_to_floats(vf out[CHUNK_VECTORS], const uint8_t *p)
{
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = _mm256_cvtph_ps(bytes16(p + 16 * v));
}
#endif

static inline void scales_times(float *out, const void *bytes, float d, int n)
{
    for (int i = 0; i < n; i += 8) {
        const __m128i b = _mm_loadl_epi64((const __m128i *)((const char *)bytes + i));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b))));
    }
}

#else
/* ---- arm64 ---------------------------------------------------------------------------------------------------------------- */
typedef struct {
    uint8x16_t first, last;
} small_ints;
typedef small_ints b32;

static inline float half_at(const uint8_t *p)
{
    __fp16 h;
    memcpy(&h, p, sizeof h);
    return (float)h;
}
static inline two_floats two_halves_at(const uint8_t *p) { return (two_floats){half_at(p), half_at(p + 2)}; }

static inline small_ints split(b32 b) { return b; }
static inline b32 joined(small_ints b) { return b; }
static inline b32 bytes32(const uint8_t *p) { return (b32){vld1q_u8(p), vld1q_u8(p + 16)}; }

static inline b32 bits_of(b32 b, int bits, int mask)
{
    const int8x16_t down = vdupq_n_s8((int8_t)-bits);
    const uint8x16_t m = vdupq_n_u8((uint8_t)mask);
    return (b32){vandq_u8(vshlq_u8(b.first, down), m), vandq_u8(vshlq_u8(b.last, down), m)};
}
static inline b32 raised(b32 b, int bits)
{
    const int8x16_t up = vdupq_n_s8((int8_t)bits);
    return (b32){vshlq_u8(b.first, up), vshlq_u8(b.last, up)};
}
static inline b32 either(b32 a, b32 b) { return (b32){vorrq_u8(a.first, b.first), vorrq_u8(a.last, b.last)}; }
static inline b32 less(b32 b, int n)
{
    const uint8x16_t v = vdupq_n_u8((uint8_t)n);
    return (b32){vsubq_u8(b.first, v), vsubq_u8(b.last, v)};
}

static inline small_ints nibbles_in_halves(const uint8_t *p)
{
    const uint8x16_t b = vld1q_u8(p);
    return (small_ints){vandq_u8(b, vdupq_n_u8(15)), vshrq_n_u8(b, 4)};
}

static inline small_ints nibbles_in_turn(const uint8_t *p)
{
    const uint8x16_t b = vld1q_u8(p), high = vshrq_n_u8(b, 4), low = vandq_u8(b, vdupq_n_u8(15));
    return (small_ints){vzip1q_u8(high, low), vzip2q_u8(high, low)};
}

static inline b32 fifth_bits(const uint8_t *p)
{
    const uint8x16_t which_bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull)), sixteen = vdupq_n_u8(16);
    const uint8x16_t first = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1])), last = vcombine_u8(vdup_n_u8(p[2]), vdup_n_u8(p[3]));
    return (b32){vandq_u8(vtstq_u8(first, which_bit), sixteen), vandq_u8(vtstq_u8(last, which_bit), sixteen)};
}

static inline void eight_to_floats(vf out[2], int8x8_t q)
{
    const int16x8_t wide = vmovl_s8(q);
    out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
    out[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide)));
}

static inline void bytes_to_floats(vf out[CHUNK_VECTORS], small_ints q)
{
    const int8x16_t first = vreinterpretq_s8_u8(q.first), last = vreinterpretq_s8_u8(q.last);
    eight_to_floats(out, vget_low_s8(first));
    eight_to_floats(out + 2, vget_high_s8(first));
    eight_to_floats(out + 4, vget_low_s8(last));
    eight_to_floats(out + 6, vget_high_s8(last));
}

static inline void nibbles_scaled(vf out[CHUNK_VECTORS], small_ints q, int zero, float d)
{
    bytes_to_floats(out, less(q, zero));
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d);
}
static inline void nibbles_plus(vf out[CHUNK_VECTORS], small_ints q, float d, float m)
{
    bytes_to_floats(out, q);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d) + vf_set1(m);
}
static inline void nibbles_minus(vf out[CHUNK_VECTORS], small_ints q, float d, float m)
{
    bytes_to_floats(out, q);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d) - vf_set1(m);
}

/* The 16 codes are 64 bytes, which one table instruction can reach: byte i of a float is entry 4·code + i. */
static inline void nf4_scaled(vf out[CHUNK_VECTORS], small_ints codes, float absmax)
{
    const uint8x16x4_t table = vld1q_u8_x4((const uint8_t *)ag_nf4_code);
    const uint8x16_t byte = vreinterpretq_u8_u32(vdupq_n_u32(0x03020100u));
    for (int v = 0; v < CHUNK_VECTORS; v++) {
        const uint8x16_t spread = vreinterpretq_u8_u32(vdupq_n_u32(0x01010101u * (uint32_t)(v % 4) * 4));
        const uint8x16_t lanes = vaddq_u8(spread, vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(0x0101010100000000ull), vcreate_u64(0x0303030302020202ull))));
        const uint8x16_t four = vqtbl1q_u8(v < 4 ? codes.first : codes.last, lanes);
        out[v] = vreinterpretq_f32_u8(vqtbl4q_u8(table, vorrq_u8(vshlq_n_u8(four, 2), byte))) * vf_set1(absmax);
    }
}

static inline void halves_to_floats(vf out[CHUNK_VECTORS], const uint8_t *p)
{
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * v)));
}

static inline void scales_times(float *out, const void *bytes, float d, int n)
{
    for (int i = 0; i < n; i += 8) {
        vf x[2];
        eight_to_floats(x, vld1_s8((const int8_t *)bytes + i));
        vf_store(out + i, vf_set1(d) * x[0]);
        vf_store(out + i + 4, vf_set1(d) * x[1]);
    }
}
#endif

#endif
