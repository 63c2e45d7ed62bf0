/* Pieces of a weight as f32, for packing and for the few-token path with more than one token. */
#include "ops/linear/linear_decode.h"
#include "ops/linear/linear_kernel.h"

typedef void decode_fn(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at);

static inline __attribute__((always_inline)) void decode_rows(decode_fn *chunk, int per_block, float *out, int64_t stride, const ag_weight *w,
                                                              int64_t n0, int64_t n_rows, int64_t k0, int64_t n_cols)
{
    const weight_rows all = rows_of(w);
    for (int64_t r = 0; r < n_rows; r++, out += stride) {
        weight_row row = row_at(&all, n0 + r);
        int64_t c = 0;
        for (; c + CHUNK <= n_cols; c += CHUNK) {
            vf x[CHUNK_VECTORS];
            chunk(x, &row, chunk_of(k0 + c, per_block));
            for (int v = 0; v < CHUNK_VECTORS; v++) vf_store(out + c + v * VF_LANES, x[v]);
        }
        if (c < n_cols) ag_weight_row(out + c, w, n0 + r, k0 + c, k0 + n_cols);
    }
}

void AG_LEVEL(ag_linear_decode)(float *out, int64_t stride, const ag_weight *w, int64_t n0, int64_t n_rows, int64_t k0, int64_t n_cols)
{
    if (k0 % CHUNK != 0 || !chunks_are_aligned(w)) {
        for (int64_t r = 0; r < n_rows; r++) ag_weight_row(out + r * stride, w, n0 + r, k0, k0 + n_cols);
        return;
    }
    switch (w->type) {
#define X(type, decode, per_block) \
    case type: decode_rows(decode, per_block, out, stride, w, n0, n_rows, k0, n_cols); break;
        AG_DECODERS(X)
#undef X
    case AG_N_WEIGHT_TYPES: break;
    }
}
