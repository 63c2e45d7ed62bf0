/* Weights straight into panels of bf16 pairs. Forward, a pair is two neighbours of a row (k, k+1), which a register of 32 decoded
 * weights already holds as 16 lanes: 16 rows are one transpose of lanes. Backward, a pair is (row n, row n+1) at the same column:
 * two rows are interleaved. */
#include "ops/linear/linear_kernel.h"
#include "ops/linear/linear_pairs.h"
#include "ops/linear/linear_transpose.h"

enum { HALF = 16, PAIRS = CHUNK / 2, ROW_VALUES = 2 * AG_LINEAR_COLS /* bf16 in a row of the panel */ };

static inline void store_columns(uint16_t *panel, vf m[HALF], int n_pairs)
{
    transpose(m);
    for (int p = 0; p < n_pairs; p++) _mm512_storeu_si512(panel + p * ROW_VALUES, (__m512i)m[p]);
}

static inline __attribute__((always_inline)) void fwd_chunks(decode_bf16_fn *decode, const int per_block, uint16_t *panel, const ag_weight *w, int64_t n0,
                                                             int n_cols, int64_t k0, int64_t n_chunks)
{
    const weight_rows all = rows_of(w);
    for (int c = 0; c < AG_LINEAR_COLS; c += HALF) {
        const int n = n_cols - c < HALF ? n_cols - c : HALF;
        weight_row rows[HALF];
        for (int i = 0; i < n; i++) rows[i] = row_at(&all, n0 + c + i);
        for (int64_t j = 0; j < n_chunks; j++) {
            vf m[HALF];
            if (n == HALF)
                for (int i = 0; i < HALF; i++) m[i] = (vf)decode(&rows[i], chunk_of(k0 + j * CHUNK, per_block));
            else
                for (int i = 0; i < HALF; i++) m[i] = i < n ? (vf)decode(&rows[i], chunk_of(k0 + j * CHUNK, per_block)) : vf_zero();
            store_columns(panel + j * PAIRS * ROW_VALUES + 2 * c, m, PAIRS);
        }
    }
}

/* `n` columns of W from k on, filled up with zeros to n_pairs pairs. */
static void fwd_some(uint16_t *panel, const ag_weight *w, int64_t n0, int n_cols, int64_t k, int64_t n, int n_pairs)
{
    for (int c = 0; c < AG_LINEAR_COLS; c += HALF) {
        vf m[HALF];
        for (int i = 0; i < HALF; i++) m[i] = c + i < n_cols ? (vf)decode_some_to_bf16(w, n0 + c + i, k, n) : vf_zero();
        store_columns(panel + 2 * c, m, n_pairs);
    }
}

void ag_linear_pack_pairs_fwd(void *panel, const ag_weight *w, int64_t n0, int n_cols, int64_t k0, int64_t k1, int depth_step)
{
    const bool aligned = k0 % CHUNK == 0 && chunks_are_aligned(w);
    const int64_t n_chunks = aligned ? (k1 - k0) / CHUNK : 0;
    uint16_t *out = panel;
    if (n_chunks > 0) switch (w->type) {
#define X(type, decode, per_block) \
        case type: fwd_chunks(decode##_to_bf16, per_block, out, w, n0, n_cols, k0, n_chunks); break;
        AG_DECODERS(X)
#undef X
        case AG_N_WEIGHT_TYPES: break;
        }
    for (int64_t k = k0 + n_chunks * CHUNK; k < k1; k += CHUNK) {
        const int64_t n = k1 - k < CHUNK ? k1 - k : CHUNK, padded = (n + depth_step - 1) / depth_step * depth_step;
        fwd_some(out + (k - k0) / 2 * ROW_VALUES, w, n0, n_cols, k, n, (int)(padded / 2));
    }
}

static inline void store_pair_of_rows(uint16_t *panel, __m512i even, __m512i odd)
{
    const __m512i low_lanes = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high_lanes = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
    _mm512_storeu_si512(panel, _mm512_permutex2var_epi64(low, low_lanes, high));
    _mm512_storeu_si512(panel + AG_LINEAR_COLS, _mm512_permutex2var_epi64(low, high_lanes, high));
}

static inline __attribute__((always_inline)) void bwd_rows(decode_bf16_fn *decode, const int per_block, uint16_t *panel, const ag_weight *w, int64_t k0,
                                                           int64_t n0, int64_t n1)
{
    const weight_rows all = rows_of(w);
    for (int64_t n = n0; n < n1; n += 2, panel += ROW_VALUES) {
        weight_row even = row_at(&all, n), odd = row_at(&all, n + 1 < n1 ? n + 1 : n);
        const __m512i e = decode(&even, chunk_of(k0, per_block));
        store_pair_of_rows(panel, e, n + 1 < n1 ? decode(&odd, chunk_of(k0, per_block)) : _mm512_setzero_si512());
    }
}

void ag_linear_pack_pairs_bwd(void *panel, const ag_weight *w, int64_t k0, int n_cols, int64_t n0, int64_t n1, int depth_step)
{
    uint16_t *out = panel;
    if (n_cols == AG_LINEAR_COLS && k0 % CHUNK == 0 && chunks_are_aligned(w)) {
        switch (w->type) {
#define X(type, decode, per_block) \
        case type: bwd_rows(decode##_to_bf16, per_block, out, w, k0, n0, n1); break;
            AG_DECODERS(X)
#undef X
        case AG_N_WEIGHT_TYPES: break;
        }
    } else {
        for (int64_t n = n0; n < n1; n += 2)
            store_pair_of_rows(out + (n - n0) / 2 * ROW_VALUES, decode_some_to_bf16(w, n, k0, n_cols),
                               n + 1 < n1 ? decode_some_to_bf16(w, n + 1, k0, n_cols) : _mm512_setzero_si512());
    }
    const int64_t pairs = (n1 - n0 + 1) / 2, padded = (n1 - n0 + depth_step - 1) / depth_step * depth_step / 2;
    memset(out + pairs * ROW_VALUES, 0, (size_t)(padded - pairs) * ROW_VALUES * sizeof *out);
}

void ag_linear_pack_tiles(void *out, const float *a, int64_t stride, int64_t n_rows, int n_packed, int64_t depth)
{
    uint16_t *to = out;
    for (int64_t d = 0; d < depth; d += CHUNK) {
        const int64_t n = depth - d;
        for (int64_t r = 0; r < n_packed; r++, to += CHUNK) {
            const float *x = a + r * stride + d;
            if (r >= n_rows)
                _mm512_storeu_si512(to, _mm512_setzero_si512());
            else
                _mm512_storeu_si512(to, to_bf16(vf_load_n(x, n), n > 16 ? vf_load_n(x + 16, n - 16) : vf_zero()));
        }
    }
}
