/* 32 weights as bf16 in one register. Conversion rounds to nearest even and takes subnormals as zero, as the instruction does.
 * For files with AVX512-BF16 only. */
#ifndef AG_LINEAR_PAIRS_H
#define AG_LINEAR_PAIRS_H

#include "ops/linear/linear_decode.h"

typedef __m512i decode_bf16_fn(weight_row *row, chunk_at at);

static inline __m512i to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

#define X(type, decode, per_block)                                                           \
    static inline __m512i decode##_to_bf16(weight_row *row, chunk_at at)                     \
    {                                                                                        \
        if (type == AG_W_BF16) return _mm512_loadu_si512(row->bytes + 2 * CHUNK * at.block); \
        vf x[CHUNK_VECTORS];                                                                 \
        decode(x, row, at);                                                                  \
        return to_bf16(x[0], x[1]);                                                          \
    }
AG_DECODERS(X)
#undef X

/* Columns [k,k+n) of a row with n < 32, or a row that does not lie in whole chunks; zeros behind them. */
static inline __m512i decode_some_to_bf16(const ag_weight *w, int64_t n_row, int64_t k, int64_t n)
{
    float x[CHUNK] = {0};
    ag_weight_row(x, w, n_row, k, k + n);
    return to_bf16(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16));
}

#endif
