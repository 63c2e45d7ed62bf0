/* Decoding: one to eight tokens. A row of W is read once; with one token its weights stay in registers, with more they pass
 * through a buffer in the L1 cache. Either way output (t,n) is CHUNK_VECTORS chains over every CHUNK_VECTORS-th vector of K, added
 * as a tree at the end, so its bits do not depend on the number of tokens. */
#include "ops/linear/linear_decode.h"
#include "ops/linear/linear_kernel.h"

typedef void decode_fn(vf out[CHUNK_VECTORS], weight_row *row, chunk_at at);

static inline float sum_of(const vf sum[CHUNK_VECTORS])
{
    vf s[CHUNK_VECTORS];
    memcpy(s, sum, sizeof s);
    for (int half = CHUNK_VECTORS / 2; half > 0; half /= 2)
        for (int v = 0; v < half; v++) s[v] = s[v] + s[v + half];
    return vf_sum(s[0]);
}

static inline void put(const ag_linear_fwd_args *a, int i, int64_t t, int64_t n, float sum)
{
    float *y = (float *)a->y[i].data + t * a->w[i]->N + n, result = sum * a->scale;
    if (a->accumulate) result = result + *y;
    if (a->bias[i]) result = result + a->bias[i][n];
    *y = result;
}

/* The last K % CHUNK columns, which chunks cannot reach. */
static inline void add_tail(vf sum[CHUNK_VECTORS], const float *w, const float *x, int64_t n, bool round)
{
    for (int v = 0; v * VF_LANES < n; v++) {
        vf wv = vf_load_n(w + v * VF_LANES, n - v * VF_LANES);
        if (round) wv = vf_round_bf16(wv);
        sum[v] = vf_fma(wv, vf_load_n(x + v * VF_LANES, n - v * VF_LANES), sum[v]);
    }
}

static inline __attribute__((always_inline)) void one_token(decode_fn *chunk, const int per_block, const ag_linear_fwd_args *a, const float *x, int i,
                                                            int64_t n0, int64_t n1, const bool round)
{
    const ag_weight *w = a->w[i];
    const weight_rows all = rows_of(w);
    const int64_t K = w->K, whole = K / CHUNK * CHUNK;
    const size_t n_blocks = (size_t)(whole / CHUNK / per_block);
    for (int64_t n = n0; n < n1; n++) {
        weight_row row = row_at(&all, n);
        vf sum[CHUNK_VECTORS];
        for (int v = 0; v < CHUNK_VECTORS; v++) sum[v] = vf_zero();
        const float *xk = x;
        for (size_t block = 0; block < n_blocks; block++)
#pragma GCC unroll 8
            for (int j = 0; j < per_block; j++, xk += CHUNK) {
                vf wv[CHUNK_VECTORS];
                chunk(wv, &row, (chunk_at){block, j});
                for (int v = 0; v < CHUNK_VECTORS; v++)
                    sum[v] = vf_fma(round ? vf_round_bf16(wv[v]) : wv[v], vf_load(xk + v * VF_LANES), sum[v]);
            }
        if (whole < K) {
            float tail[CHUNK];
            ag_weight_row(tail, w, n, whole, K);
            add_tail(sum, tail, x + whole, K - whole, round);
        }
        put(a, i, 0, n, sum_of(sum));
    }
}

static inline void some_tokens(const ag_linear_fwd_args *a, const float *x, int i, int64_t n0, int64_t n1, const bool round)
{
    enum { PIECE = 512 };
    const ag_weight *w = a->w[i];
    const int64_t T = a->x.dim[0], K = w->K;
    for (int64_t n = n0; n < n1; n++) {
        vf sum[AG_LINEAR_FEW][CHUNK_VECTORS];
        for (int64_t t = 0; t < T; t++)
            for (int v = 0; v < CHUNK_VECTORS; v++) sum[t][v] = vf_zero();
        for (int64_t k0 = 0; k0 < K; k0 += PIECE) {
            float piece[PIECE] __attribute__((aligned(64)));
            const int64_t n_cols = K - k0 < PIECE ? K - k0 : PIECE, whole = n_cols / CHUNK * CHUNK;
            AG_LEVEL(ag_linear_decode)(piece, PIECE, w, n, 1, k0, n_cols);
            if (round)
                for (int64_t k = 0; k < whole; k += VF_LANES) vf_store(piece + k, vf_round_bf16(vf_load(piece + k)));
            for (int64_t t = 0; t < T; t++) {
                const float *xt = x + t * K + k0;
                vf s[CHUNK_VECTORS];
                memcpy(s, sum[t], sizeof s);
                for (int64_t k = 0; k < whole; k += CHUNK)
                    for (int v = 0; v < CHUNK_VECTORS; v++)
                        s[v] = vf_fma(vf_load(piece + k + v * VF_LANES), vf_load(xt + k + v * VF_LANES), s[v]);
                if (whole < n_cols) add_tail(s, piece + whole, xt + whole, n_cols - whole, round);
                memcpy(sum[t], s, sizeof s);
            }
        }
        for (int64_t t = 0; t < T; t++) put(a, i, t, n, sum_of(sum[t]));
    }
}

static inline __attribute__((always_inline)) void few(const ag_linear_fwd_args *a, const float *x, int i, int64_t n0, int64_t n1,
                                                      const bool round)
{
    if (a->x.dim[0] > 1 || !chunks_are_aligned(a->w[i])) {
        some_tokens(a, x, i, n0, n1, round);
        return;
    }
    switch (a->w[i]->type) {
#define X(type, decode, per_block) \
    case type: one_token(decode, per_block, a, x, i, n0, n1, round); break;
        AG_DECODERS(X)
#undef X
    case AG_N_WEIGHT_TYPES: break;
    }
}

void AG_LEVEL(ag_linear_few_f32)(const ag_linear_fwd_args *a, const void *x, int i, int64_t n0, int64_t n1) { few(a, x, i, n0, n1, false); }

void AG_LEVEL(ag_linear_few_round)(const ag_linear_fwd_args *a, const void *x, int i, int64_t n0, int64_t n1)
{
    few(a, x, i, n0, n1, true);
}

void AG_LEVEL(ag_linear_few_x_round)(void *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) vf_store_n((float *)out + i, vf_round_bf16(vf_load_n(x + i, n - i)), n - i);
}
