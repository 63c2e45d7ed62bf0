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

/* Where rows lie, asked once per call, and where one row lies. */
typedef struct {
    const ag_weight *w;
    int64_t row_bytes;     /* NF4: 0, its rows may end inside a byte */
    const float *map;      /* NF4 */
} weight_rows;

typedef struct {
    const ag_weight *w;
    const uint8_t *bytes;  /* of the stored row; for NF4 of the whole matrix */
    size_t first;          /* NF4: the row's first element */
    const float *map;
    int64_t n;             /* logical row */
    size_t block;          /* k-quants: the block whose scales lie below; AG_NO_BLOCK before the first */
    float scale[16], min[16];
} weight_row;
static const size_t AG_NO_BLOCK = SIZE_MAX;

/* Chunk j of a block of `per_block` chunks: 8 in a k-quant, whose scales belong together, 1 elsewhere. A loop that runs j as
 * a constant lets the compiler settle every shift and offset. */
typedef struct {
    size_t block;
    int j;
} chunk_at;

static inline chunk_at chunk_of(int64_t k, int per_block)
{
    const size_t chunk = (size_t)k / CHUNK;
    return (chunk_at){chunk / (size_t)per_block, (int)(chunk % (size_t)per_block)};
}

static inline weight_rows rows_of(const ag_weight *w)
{
    if (w->type == AG_W_NF4) return (weight_rows){.w = w, .map = ag_dynamic_map_signed()};
    return (weight_rows){.w = w, .row_bytes = ag_weight_row_bytes(w->type, w->K)};
}

static inline weight_row row_at(const weight_rows *rows, int64_t n)
{
    const ag_weight *w = rows->w;
    const int64_t stored = ag_weight_stored_row(w, n);
    weight_row row; /* scale and min stay as they are until a block fills them */
    row.w = w;
    row.bytes = (const uint8_t *)w->data + stored * rows->row_bytes;
    row.first = w->type == AG_W_NF4 ? (size_t)(w->first + stored * w->K) : 0;
    row.map = rows->map;
    row.n = n;
    row.block = AG_NO_BLOCK;
    return row;
}

/* Chunks of 32 that begin at multiples of 32 lie in whole bytes of one NF4 block. */
static inline bool chunks_are_aligned(const ag_weight *w)
{
    return w->type != AG_W_NF4 || (w->K % CHUNK == 0 && w->first % CHUNK == 0);
}

static inline void decode_exactly(vf out[CHUNK_VECTORS], weight_row *row, int64_t k)
{
    float x[CHUNK];
    ag_weight_row(x, row->w, row->n, k, k + CHUNK);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = vf_load(x + v * VF_LANES);
}

static inline void decode_f32(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    for (int v = 0; v < CHUNK_VECTORS; v++) memcpy(&out[v], row->bytes + 4 * (at.block * CHUNK + (size_t)v * VF_LANES), sizeof out[v]);
}

static inline void decode_bf16(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    typedef uint16_t vhalf __attribute__((vector_size(2 * VF_LANES)));
    for (int v = 0; v < CHUNK_VECTORS; v++) {
        vhalf h;
        memcpy(&h, row->bytes + 2 * (at.block * CHUNK + (size_t)v * VF_LANES), sizeof h);
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

/* f16 scale and minimum that stand side by side. */
typedef struct {
    float d, m;
} two_floats;

static inline two_floats two_halves_at(const uint8_t *p)
{
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    const __m128 x = _mm_cvtph_ps(_mm_cvtsi32_si128(bits));
    return (two_floats){_mm_cvtss_f32(x), _mm_cvtss_f32(_mm_movehdup_ps(x))};
}

/* 32 small integers: the first 16 and the last. */
typedef struct {
    __m128i first, last;
} small_ints;

static inline small_ints split(__m256i b) { return (small_ints){_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1)}; }
static inline __m256i joined(small_ints b) { return _mm256_set_m128i(b.last, b.first); }

static inline __m128i bytes16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline __m256i bytes32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Each byte shifted right by `bits`, and what `mask` leaves of it. */
static inline __m256i bits_of(__m256i bytes, int bits, int mask)
{
    return _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(bits)), _mm256_set1_epi8((char)mask));
}

/* 16 bytes: the low nibbles, then the high ones. */
static inline small_ints nibbles_in_halves(const uint8_t *p)
{
    const __m128i b = bytes16(p), low = _mm_set1_epi8(15);
    return (small_ints){_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low)};
}

/* 16 bytes: high and low nibble of each in turn (NF4). */
static inline small_ints nibbles_in_turn(const uint8_t *p)
{
    const __m128i b = bytes16(p), mask = _mm_set1_epi8(15);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(b, 4), mask), low = _mm_and_si128(b, mask);
    return (small_ints){_mm_unpacklo_epi8(high, low), _mm_unpackhi_epi8(high, low)};
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

/* q·d with q less `zero`, q·d + m and q·d - m of nibbles. */
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

static inline void decode_f16(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at) { halves_to_floats(out, row->bytes + 2 * CHUNK * at.block); }

static inline void decode_nf4(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const ag_weight *w = row->w;
    const size_t e = row->first + at.block * CHUNK, block = e / AG_NF4_BLOCK;
    const float absmax = w->absmax_q ? row->map[w->absmax_q[block]] * w->nested_absmax[block / AG_NF4_NESTED_BLOCK] + w->offset
                                     : w->absmax[block];
    nf4_scaled(out, nibbles_in_turn(row->bytes + e / 2), absmax);
}

static inline void decode_q4_0(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 18;
    nibbles_scaled(out, nibbles_in_halves(b + 2), 8, half_at(b));
}

static inline void decode_q4_1(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 20;
    const two_floats s = two_halves_at(b);
    nibbles_plus(out, nibbles_in_halves(b + 4), s.d, s.m);
}

static inline void scale_all(vf out[CHUNK_VECTORS], __m256i q, float d)
{
    bytes_to_floats(out, split(q));
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d);
}

static inline void decode_q5_0(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 22;
    const __m256i q = _mm256_or_si256(joined(nibbles_in_halves(b + 6)), fifth_bits(b + 2));
    scale_all(out, _mm256_sub_epi8(q, _mm256_set1_epi8(16)), half_at(b));
}

static inline void decode_q5_1(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 24;
    const two_floats s = two_halves_at(b);
    scale_all(out, _mm256_or_si256(joined(nibbles_in_halves(b + 8)), fifth_bits(b + 4)), s.d);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] + vf_set1(s.m);
}

static inline void decode_q8_0(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 34;
    scale_all(out, bytes32(b + 2), half_at(b));
}

/* ---- k-quants: 8 or 16 scales of a block of 256 are made at once ---- */
/* n (8 or 16) small integers times d. */
static inline void scales_times(float *out, __m128i bytes, float d, int n)
{
    for (int i = 0; i < n; i += 8, bytes = _mm_srli_si128(bytes, 8))
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))));
}

/* True once per block: its scales must be made. */
static inline bool enters_block(weight_row *row, size_t block)
{
    if (row->block == block) return false;
    row->block = block;
    return true;
}

/* ag_k_scale_min for all eight: the first four lie in the low six bits of their bytes, the others are put together out of the
 * nibbles of bytes 8..11 and the upper two bits of the first eight. */
static inline void k_scales(weight_row *row, const uint8_t *b)
{
    uint32_t s[3];
    memcpy(s, b + 4, sizeof s);
    const uint32_t upper_scales = (s[2] & 0x0f0f0f0fu) | (s[0] >> 6 & 0x03030303u) << 4;
    const uint32_t upper_mins = (s[2] >> 4 & 0x0f0f0f0fu) | (s[1] >> 6 & 0x03030303u) << 4;
    const two_floats d = two_halves_at(b);
    scales_times(row->scale, _mm_cvtsi64_si128((long long)((uint64_t)upper_scales << 32 | (s[0] & 0x3f3f3f3fu))), d.d, 8);
    scales_times(row->min, _mm_cvtsi64_si128((long long)((uint64_t)upper_mins << 32 | (s[1] & 0x3f3f3f3fu))), d.m, 8);
}

static inline void decode_q4_k(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 144;
    const int j = at.j;
    if (enters_block(row, at.block)) k_scales(row, b);
    nibbles_minus(out, split(bits_of(bytes32(b + 16 + 32 * (j / 2)), 4 * (j % 2), 15)), row->scale[j], row->min[j]);
}

static inline void decode_q5_k(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 176;
    const int j = at.j;
    if (enters_block(row, at.block)) k_scales(row, b);
    const __m256i fifth = _mm256_slli_epi16(bits_of(bytes32(b + 16), j, 1), 4);
    scale_all(out, _mm256_or_si256(bits_of(bytes32(b + 48 + 32 * (j / 2)), 4 * (j % 2), 15), fifth), row->scale[j]);
    const vf m = vf_set1(row->min[j]);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] - m;
}

/* Two scales, of 16 weights each. */
static inline void scale_halves(vf out[CHUNK_VECTORS], __m256i q, const float scale[2])
{
    bytes_to_floats(out, split(q));
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(scale[v / (CHUNK_VECTORS / 2)]);
}

static inline void decode_q6_k(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 210;
    const int half = at.j / 4, run = at.j % 4;
    if (enters_block(row, at.block)) scales_times(row->scale, bytes16(b + 192), half_at(b + 208), 16);
    const __m256i nibbles = bits_of(bytes32(b + 64 * half + 32 * (run % 2)), 4 * (run / 2), 15);
    const __m256i high = _mm256_slli_epi16(bits_of(bytes32(b + 128 + 32 * half), 2 * run, 3), 4);
    scale_halves(out, _mm256_sub_epi8(_mm256_or_si256(nibbles, high), _mm256_set1_epi8(32)), row->scale + 2 * at.j);
}

static inline void decode_q2_k(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 84;
    const int half = at.j / 4, pair = at.j % 4;
    if (enters_block(row, at.block)) {
        const two_floats d = two_halves_at(b + 80);
        const __m128i scales = bytes16(b), mask = _mm_set1_epi8(15);
        scales_times(row->scale, _mm_and_si128(scales, mask), d.d, 16);
        scales_times(row->min, _mm_and_si128(_mm_srli_epi16(scales, 4), mask), d.m, 16);
    }
    scale_halves(out, bits_of(bytes32(b + 16 + 32 * half), 2 * pair, 3), row->scale + 2 * at.j);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] - vf_set1(row->min[2 * at.j + v / (CHUNK_VECTORS / 2)]);
}

static inline void decode_q3_k(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 110;
    const int half = at.j / 4, pair = at.j % 4;
    if (enters_block(row, at.block)) {
        int8_t scales[16];
        ag_q3_k_scales(scales, b + 96);
        scales_times(row->scale, bytes16((const uint8_t *)scales), half_at(b + 108), 16);
    }
    const __m256i low = bits_of(bytes32(b + 32 + 32 * half), 2 * pair, 3);
    const __m256i high = _mm256_slli_epi16(bits_of(bytes32(b), at.j, 1), 2);
    scale_halves(out, _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(4)), row->scale + 2 * at.j);
}

#else
/* ---- elsewhere ------------------------------------------------------------------------------------------------------------ */
#define AG_DECODE_EXACTLY(name, per_block)                                                   \
    static inline void decode_##name(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)    \
    {                                                                                        \
        decode_exactly(out, row, ((int64_t)at.block * (per_block) + at.j) * CHUNK);          \
    }
AG_DECODE_EXACTLY(f16, 1)
AG_DECODE_EXACTLY(nf4, 1)
AG_DECODE_EXACTLY(q4_0, 1)
AG_DECODE_EXACTLY(q4_1, 1)
AG_DECODE_EXACTLY(q5_0, 1)
AG_DECODE_EXACTLY(q5_1, 1)
AG_DECODE_EXACTLY(q8_0, 1)
AG_DECODE_EXACTLY(q2_k, 8)
AG_DECODE_EXACTLY(q3_k, 8)
AG_DECODE_EXACTLY(q4_k, 8)
AG_DECODE_EXACTLY(q5_k, 8)
AG_DECODE_EXACTLY(q6_k, 8)
#undef AG_DECODE_EXACTLY
#endif

/* X(type, decoder, chunks in a block) for every weight type. */
#define AG_DECODERS(X)           \
    X(AG_W_F32, decode_f32, 1) \
    X(AG_W_F16, decode_f16, 1) \
    X(AG_W_BF16, decode_bf16, 1) \
    X(AG_W_NF4, decode_nf4, 1) \
    X(AG_W_Q4_0, decode_q4_0, 1) \
    X(AG_W_Q4_1, decode_q4_1, 1) \
    X(AG_W_Q5_0, decode_q5_0, 1) \
    X(AG_W_Q5_1, decode_q5_1, 1) \
    X(AG_W_Q8_0, decode_q8_0, 1) \
    X(AG_W_Q2_K, decode_q2_k, 8) \
    X(AG_W_Q3_K, decode_q3_k, 8) \
    X(AG_W_Q4_K, decode_q4_k, 8) \
    X(AG_W_Q5_K, decode_q5_k, 8) \
    X(AG_W_Q6_K, decode_q6_k, 8)

#endif
