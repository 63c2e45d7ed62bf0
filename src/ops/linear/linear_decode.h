/* 32 weights at a time out of their stored form into vectors, in natural order; the same bits as ag_weight_row, because each
 * product is taken in f32 in the same order (a table of q·d for all 16 nibbles holds the same products).
 *
 * Layouts are those of weight_blocks.c. Included by level files only. */
#ifndef AG_LINEAR_DECODE_H
#define AG_LINEAR_DECODE_H

#include "ops/linear/linear_bytes.h"
#include "ops/weight/weight_blocks.h"

#include <stdbool.h>

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
    size_t block;          /* k-quants and NF4: the block whose scales lie below; AG_NO_BLOCK before the first */
    float scale[16], min[16];
} weight_row;
static const size_t AG_NO_BLOCK = SIZE_MAX;

/* With several tokens the products hide the time that memory takes only where the weights were asked for early enough: this many bytes
 * ahead of their use, rows being one behind the other. (NF4's rows are not asked for: their place is counted in nibbles.) */
enum { AG_LINEAR_AHEAD = 3072 };

/* Chunk j of a block of `per_block` chunks: 8 in a k-quant, whose scales belong together, 2 in NF4, 1 elsewhere. A loop that runs j as
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

/* Rows that begin with a block. An NF4 row may not; it is decoded by the exact decoder then. */
static inline bool chunks_are_aligned(const ag_weight *w)
{
    return w->type != AG_W_NF4 || (w->K % AG_NF4_BLOCK == 0 && w->first % AG_NF4_BLOCK == 0);
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

/* True once per block: its scales must be made. */
static inline bool enters_block(weight_row *row, size_t block)
{
    if (row->block == block) return false;
    row->block = block;
    return true;
}

static inline void decode_f16(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at) { halves_to_floats(out, row->bytes + 2 * CHUNK * at.block); }

static inline void decode_nf4(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const ag_weight *w = row->w;
    const size_t block = row->first / AG_NF4_BLOCK + at.block;
    if (enters_block(row, at.block))
        row->scale[0] = w->absmax_q ? row->map[w->absmax_q[block]] * w->nested_absmax[block / AG_NF4_NESTED_BLOCK] + w->offset
                                    : w->absmax[block];
    nf4_scaled(out, nibbles_in_turn(row->bytes + block * (AG_NF4_BLOCK / 2) + (size_t)at.j * (CHUNK / 2)), row->scale[0]);
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

static inline void scale_all(vf out[CHUNK_VECTORS], b32 q, float d)
{
    bytes_to_floats(out, split(q));
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(d);
}

static inline void decode_q5_0(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 22;
    const b32 q = either(joined(nibbles_in_halves(b + 6)), fifth_bits(b + 2));
    scale_all(out, less(q, 16), half_at(b));
}

static inline void decode_q5_1(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 24;
    const two_floats s = two_halves_at(b);
    scale_all(out, either(joined(nibbles_in_halves(b + 8)), fifth_bits(b + 4)), s.d);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] + vf_set1(s.m);
}

static inline void decode_q8_0(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 34;
    scale_all(out, bytes32(b + 2), half_at(b));
}

/* ---- k-quants: 8 or 16 scales of a block of 256 are made at once ---- */
/* ag_k_scale_min for all eight: the first four lie in the low six bits of their bytes, the others are put together out of the
 * nibbles of bytes 8..11 and the upper two bits of the first eight. */
static inline void k_scales(weight_row *row, const uint8_t *b)
{
    uint32_t s[3];
    memcpy(s, b + 4, sizeof s);
    const uint32_t upper_scales = (s[2] & 0x0f0f0f0fu) | (s[0] >> 6 & 0x03030303u) << 4;
    const uint32_t upper_mins = (s[2] >> 4 & 0x0f0f0f0fu) | (s[1] >> 6 & 0x03030303u) << 4;
    const two_floats d = two_halves_at(b);
    const uint32_t scales[2] = {s[0] & 0x3f3f3f3fu, upper_scales}, mins[2] = {s[1] & 0x3f3f3f3fu, upper_mins};
    scales_times(row->scale, scales, d.d, 8);
    scales_times(row->min, mins, d.m, 8);
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
    const b32 fifth = raised(bits_of(bytes32(b + 16), j, 1), 4);
    scale_all(out, either(bits_of(bytes32(b + 48 + 32 * (j / 2)), 4 * (j % 2), 15), fifth), row->scale[j]);
    const vf m = vf_set1(row->min[j]);
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] - m;
}

/* Two scales, of 16 weights each. */
static inline void scale_halves(vf out[CHUNK_VECTORS], b32 q, const float scale[2])
{
    bytes_to_floats(out, split(q));
    for (int v = 0; v < CHUNK_VECTORS; v++) out[v] = out[v] * vf_set1(scale[v / (CHUNK_VECTORS / 2)]);
}

static inline void decode_q6_k(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 210;
    const int half = at.j / 4, run = at.j % 4;
    if (enters_block(row, at.block)) scales_times(row->scale, b + 192, half_at(b + 208), 16);
    const b32 nibbles = bits_of(bytes32(b + 64 * half + 32 * (run % 2)), 4 * (run / 2), 15);
    const b32 high = raised(bits_of(bytes32(b + 128 + 32 * half), 2 * run, 3), 4);
    scale_halves(out, less(either(nibbles, high), 32), row->scale + 2 * at.j);
}

static inline void decode_q2_k(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at)
{
    const uint8_t *b = row->bytes + at.block * 84;
    const int half = at.j / 4, pair = at.j % 4;
    if (enters_block(row, at.block)) {
        const two_floats d = two_halves_at(b + 80);
        uint8_t scales[16], mins[16];
        for (int i = 0; i < 16; i++) {
            scales[i] = b[i] & 15;
            mins[i] = b[i] >> 4;
        }
        scales_times(row->scale, scales, d.d, 16);
        scales_times(row->min, mins, d.m, 16);
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
        scales_times(row->scale, scales, half_at(b + 108), 16);
    }
    const b32 low = bits_of(bytes32(b + 32 + 32 * half), 2 * pair, 3);
    const b32 high = raised(bits_of(bytes32(b), at.j, 1), 2);
    scale_halves(out, less(either(low, high), 4), row->scale + 2 * at.j);
}

/* X(type, decoder, chunks in a block) for every weight type. */
#define AG_DECODERS(X)           \
    X(AG_W_F32, decode_f32, 1) \
    X(AG_W_F16, decode_f16, 1) \
    X(AG_W_BF16, decode_bf16, 1) \
    X(AG_W_NF4, decode_nf4, 2) \
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
