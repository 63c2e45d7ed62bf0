/* 32 weights at a time out of their stored form into vectors, in natural order; the same bits as ag_weight_row, because each
 * product is taken in f32 in the same order (a table of q·d for all 16 nibbles holds the same products).
 *
 * Layouts are those of weight_blocks.c. On x86 the integer part needs AVX2 alone and serves both levels; on NEON the halves and
 * f32 are vectors and the rest goes through the scalar decoder. Included by level files only. */
#ifndef AG_LINEAR_DECODE_H
#define AG_LINEAR_DECODE_H

#include "ops/simd.h"
#include "ops/weight/weight_blocks.h"

#include <stdbool.h>

enum { CHUNK = 32, CHUNK_VECTORS = CHUNK / VF_LANES };

/* Where a row lies; built once per row. */
typedef struct {
    const ag_weight *w;
    const uint8_t *bytes;  /* of the stored row; for NF4 of the whole matrix */
    int64_t first;         /* NF4: the row's first element */
    const float *map;      /* NF4 */
    int64_t n;             /* logical row */
} weight_row;

static inline weight_row row_at(const ag_weight *w, int64_t n)
{
    const int64_t stored = ag_weight_stored_row(w, n);
    weight_row row = {.w = w, .bytes = w->data, .n = n};
    if (w->type == AG_W_NF4) {
        row.first = w->first + stored * w->K;
        row.map = ag_dynamic_map_signed();
    } else {
        row.bytes += stored * ag_weight_row_bytes(w->type, w->K);
    }
    return row;
}

/* Chunks of 32 that begin at multiples of 32 lie in whole bytes of one NF4 block. */
static inline bool chunks_are_aligned(const ag_weight *w)
{
    return w->type != AG_W_NF4 || (w->K % CHUNK == 0 && w->first % CHUNK == 0);
}

static inline void decode_exactly(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    float x[CHUNK];
    ag_weight_row(x, row->w, row->n, k, k + CHUNK);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = vf_load(x + v * VF_LANES);
}

static inline void decode_f32(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    for (int v = 0; v < CHUNK_VECTORS; v++) memcpy(&out[v], row->bytes + 4 * (k + v * VF_LANES), sizeof out[v]);
}

static inline void decode_bf16(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    typedef uint16_t vhalf __attribute__((vector_size(2 * VF_LANES)));
    for (int v = 0; v < CHUNK_VECTORS; v++) {
        vhalf h;
        memcpy(&h, row->bytes + 2 * (k + v * VF_LANES), sizeof h);
        out[v] = (vf)(__builtin_convertvector(h, vu) << 16);
    }
}

#if defined(__x86_64__)
/* ---- x86 ------------------------------------------------------------------------------------------------------------------ */
static inline float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

static inline __m128i bytes16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline __m256i bytes32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Each byte shifted right by `bits`, and what `mask` leaves of it. */
static inline __m256i bits_of(__m256i bytes, int bits, int mask)
{
    return _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(bits)), _mm256_set1_epi8((char)mask));
}

/* 16 bytes: the low nibbles, then the high ones. */
static inline __m256i nibbles_in_halves(const uint8_t *p)
{
    const __m128i b = bytes16(p), low = _mm_set1_epi8(15);
    return _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(b, 4), low), _mm_and_si128(b, low));
}

/* 16 bytes: high and low nibble of each in turn (NF4). */
static inline __m256i nibbles_in_turn(const uint8_t *p)
{
    const __m128i b = bytes16(p), mask = _mm_set1_epi8(15);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(b, 4), mask), low = _mm_and_si128(b, mask);
    return _mm256_set_m128i(_mm_unpackhi_epi8(high, low), _mm_unpacklo_epi8(high, low));
}

/* 32 bits as 32 bytes of 0 or 16. */
static inline __m256i fifth_bits(const uint8_t *p)
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
static inline void bytes_to_floats(vf out[CHUNK_VECTORS], __m256i q)
{
    out[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(q)));
    out[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(q, 1)));
}

static inline void look_up(vf out[CHUNK_VECTORS], __m256i codes, vf table)
{
    out[0] = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(codes)), table);
    out[1] = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(codes, 1)), table);
}

static inline vf from_0(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

/* q·d with q less `zero`, q·d + m and q·d - m of nibbles. */
static inline void nibbles_scaled(vf out[CHUNK_VECTORS], __m256i q, int zero, float d)
{
    look_up(out, q, (from_0() - vf_set1((float)zero)) * vf_set1(d));
}
static inline void nibbles_plus(vf out[CHUNK_VECTORS], __m256i q, float d, float m) { look_up(out, q, from_0() * vf_set1(d) + vf_set1(m)); }
static inline void nibbles_minus(vf out[CHUNK_VECTORS], __m256i q, float d, float m) { look_up(out, q, from_0() * vf_set1(d) - vf_set1(m)); }
static inline void nf4_scaled(vf out[CHUNK_VECTORS], __m256i codes, float absmax)
{
    look_up(out, codes, vf_load(ag_nf4_code) * vf_set1(absmax));
}
static inline void halves_to_floats(vf out[CHUNK_VECTORS], const uint8_t *p)
{
    out[0] = _mm512_cvtph_ps(bytes32(p));
    out[1] = _mm512_cvtph_ps(bytes32(p + 32));
}
#else
static inline void bytes_to_floats(vf out[CHUNK_VECTORS], __m256i q)
{
    const __m128i low = _mm256_castsi256_si128(q), high = _mm256_extracti128_si256(q, 1);
    out[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low));
    out[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(low, 8)));
    out[2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high));
    out[3] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(high, 8)));
}

static inline void nibbles_scaled(vf out[CHUNK_VECTORS], __m256i q, int zero, float d)
{
    bytes_to_floats(out, _mm256_sub_epi8(q, _mm256_set1_epi8((char)zero)));
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d);
}
static inline void nibbles_plus(vf out[CHUNK_VECTORS], __m256i q, float d, float m)
{
    bytes_to_floats(out, q);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d) + vf_set1(m);
}
static inline void nibbles_minus(vf out[CHUNK_VECTORS], __m256i q, float d, float m)
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
static inline void nf4_scaled(vf out[CHUNK_VECTORS], __m256i codes, float absmax)
{
    const vf low = vf_load(ag_nf4_code) * vf_set1(absmax), high = vf_load(ag_nf4_code + 8) * vf_set1(absmax);
    const __m128i first = _mm256_castsi256_si128(codes), second = _mm256_extracti128_si256(codes, 1);
    out[0] = nf4_eight(first, low, high);
    out[1] = nf4_eight(_mm_srli_si128(first, 8), low, high);
    out[2] = nf4_eight(second, low, high);
    out[3] = nf4_eight(_mm_srli_si128(second, 8), low, high);
}
static inline void halves_to_floats(vf out[CHUNK_VECTORS], const uint8_t *p)
{
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = _mm256_cvtph_ps(bytes16(p + 16 * v));
}
#endif

static inline void decode_f16(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k) { halves_to_floats(out, row->bytes + 2 * k); }

static inline void decode_nf4(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const ag_weight *w = row->w;
    const int64_t e = row->first + k, block = e / AG_NF4_BLOCK;
    const float absmax = w->absmax_q ? row->map[w->absmax_q[block]] * w->nested_absmax[block / AG_NF4_NESTED_BLOCK] + w->offset
                                     : w->absmax[block];
    nf4_scaled(out, nibbles_in_turn(row->bytes + e / 2), absmax);
}

static inline void decode_q4_0(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 32 * 18;
    nibbles_scaled(out, nibbles_in_halves(b + 2), 8, half_at(b));
}

static inline void decode_q4_1(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 32 * 20;
    nibbles_plus(out, nibbles_in_halves(b + 4), half_at(b), half_at(b + 2));
}

static inline void scale_all(vf out[CHUNK_VECTORS], __m256i q, float d)
{
    bytes_to_floats(out, q);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d);
}

static inline void decode_q5_0(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 32 * 22;
    const __m256i q = _mm256_or_si256(nibbles_in_halves(b + 6), fifth_bits(b + 2));
    scale_all(out, _mm256_sub_epi8(q, _mm256_set1_epi8(16)), half_at(b));
}

static inline void decode_q5_1(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 32 * 24;
    const float m = half_at(b + 2);
    scale_all(out, _mm256_or_si256(nibbles_in_halves(b + 8), fifth_bits(b + 4)), half_at(b));
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] + vf_set1(m);
}

static inline void decode_q8_0(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 32 * 34;
    scale_all(out, bytes32(b + 2), half_at(b));
}

static inline void decode_q4_k(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 256 * 144;
    const int j = (int)(k % 256 / 32);
    int scale, min;
    ag_k_scale_min(&scale, &min, b + 4, j);
    nibbles_minus(out, bits_of(bytes32(b + 16 + 32 * (j / 2)), 4 * (j % 2), 15), half_at(b) * (float)scale,
                  half_at(b + 2) * (float)min);
}

static inline void decode_q5_k(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 256 * 176;
    const int j = (int)(k % 256 / 32);
    int scale, min;
    ag_k_scale_min(&scale, &min, b + 4, j);
    const __m256i fifth = _mm256_slli_epi16(bits_of(bytes32(b + 16), j, 1), 4);
    scale_all(out, _mm256_or_si256(bits_of(bytes32(b + 48 + 32 * (j / 2)), 4 * (j % 2), 15), fifth), half_at(b) * (float)scale);
    const vf m = vf_set1(half_at(b + 2) * (float)min);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] - m;
}

/* Two scales, of 16 weights each. */
static inline void scale_halves(vf out[CHUNK_VECTORS], __m256i q, float d0, float d1)
{
    bytes_to_floats(out, q);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(v < CHUNK_VECTORS / 2 ? d0 : d1);
}

static inline void decode_q6_k(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 256 * 210;
    const int half = (int)(k % 256 / 128), run = (int)(k % 128 / 32);
    const float d = half_at(b + 208);
    const int8_t *scales = (const int8_t *)b + 192 + k % 256 / 16;
    const __m256i nibbles = bits_of(bytes32(b + 64 * half + 32 * (run % 2)), 4 * (run / 2), 15);
    const __m256i high = _mm256_slli_epi16(bits_of(bytes32(b + 128 + 32 * half), 2 * run, 3), 4);
    scale_halves(out, _mm256_sub_epi8(_mm256_or_si256(nibbles, high), _mm256_set1_epi8(32)), d * (float)scales[0], d * (float)scales[1]);
}

static inline void decode_q2_k(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 256 * 84, *scales = b + k % 256 / 16;
    const int half = (int)(k % 256 / 128), pair = (int)(k % 128 / 32);
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    scale_halves(out, bits_of(bytes32(b + 16 + 32 * half), 2 * pair, 3), d * (float)(scales[0] & 15), d * (float)(scales[1] & 15));
    const vf m0 = vf_set1(dmin * (float)(scales[0] >> 4)), m1 = vf_set1(dmin * (float)(scales[1] >> 4));
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] - (v < CHUNK_VECTORS / 2 ? m0 : m1);
}

static inline void decode_q3_k(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k)
{
    const uint8_t *b = row->bytes + k / 256 * 110;
    const int half = (int)(k % 256 / 128), pair = (int)(k % 128 / 32), j = (int)(k % 256 / 32);
    const float d = half_at(b + 108);
    int8_t scales[16];
    ag_q3_k_scales(scales, b + 96);
    const __m256i low = bits_of(bytes32(b + 32 + 32 * half), 2 * pair, 3);
    const __m256i high = _mm256_slli_epi16(bits_of(bytes32(b), j, 1), 2);
    scale_halves(out, _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(4)), d * (float)scales[2 * j],
                 d * (float)scales[2 * j + 1]);
}

#else
/* ---- elsewhere ------------------------------------------------------------------------------------------------------------ */
#define AG_DECODE_EXACTLY(name) \
    static inline void decode_##name(vf out[CHUNK_VECTORS], const weight_row *row, int64_t k) { decode_exactly(out, row, k); }
AG_DECODE_EXACTLY(f16)
AG_DECODE_EXACTLY(nf4)
AG_DECODE_EXACTLY(q4_0)
AG_DECODE_EXACTLY(q4_1)
AG_DECODE_EXACTLY(q5_0)
AG_DECODE_EXACTLY(q5_1)
AG_DECODE_EXACTLY(q8_0)
AG_DECODE_EXACTLY(q2_k)
AG_DECODE_EXACTLY(q3_k)
AG_DECODE_EXACTLY(q4_k)
AG_DECODE_EXACTLY(q5_k)
AG_DECODE_EXACTLY(q6_k)
#undef AG_DECODE_EXACTLY
#endif

/* X(type, decoder) for every weight type. */
#define AG_DECODERS(X)           \
    X(AG_W_F32, decode_f32)      \
    X(AG_W_F16, decode_f16)      \
    X(AG_W_BF16, decode_bf16)    \
    X(AG_W_NF4, decode_nf4)      \
    X(AG_W_Q4_0, decode_q4_0)    \
    X(AG_W_Q4_1, decode_q4_1)    \
    X(AG_W_Q5_0, decode_q5_0)    \
    X(AG_W_Q5_1, decode_q5_1)    \
    X(AG_W_Q8_0, decode_q8_0)    \
    X(AG_W_Q2_K, decode_q2_k)    \
    X(AG_W_Q3_K, decode_q3_k)    \
    X(AG_W_Q4_K, decode_q4_k)    \
    X(AG_W_Q5_K, decode_q5_k)    \
    X(AG_W_Q6_K, decode_q6_k)

#endif
