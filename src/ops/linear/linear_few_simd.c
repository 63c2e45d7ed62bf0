/* Decoding: one to eight tokens. A row of W is read once and its weights stay in registers. Output (t,n) is CHUNK_VECTORS chains
 * over every CHUNK_VECTORS-th vector of K, added as a tree at the end, so its bits do not depend on the number of tokens. */
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

/* n chunks from column k on, times what every token has there. */
static inline __attribute__((always_inline)) void add_chunks(vf sum[AG_LINEAR_FEW][CHUNK_VECTORS], const int n,
                                                             vf w[][CHUNK_VECTORS], const float *x, int64_t T, int64_t K)
{
    for (int64_t t = 0; t < T; t++, x += K)
        for (int v = 0; v < CHUNK_VECTORS; v++) {
            vf s = sum[t][v];
            for (int i = 0; i < n; i++) s = vf_fma(w[i][v], vf_load(x + i * CHUNK + v * VF_LANES), s);
            sum[t][v] = s;
        }
}

/* Two to eight tokens share each decoded chunk; two chunks at a time, because sums go through memory. `chunk` NULL: rows that do
 * not lie in whole chunks, by the exact decoder. */
static inline __attribute__((always_inline)) void some_tokens(decode_fn *chunk, const int per_block, const ag_linear_fwd_args *a,
                                                              const float *x, int i, int64_t n0, int64_t n1, const bool round)
{
    const ag_weight *w = a->w[i];
    const weight_rows all = rows_of(w);
    const int64_t T = a->x.dim[0], K = w->K, whole = K / CHUNK * CHUNK;
    for (int64_t n = n0; n < n1; n++) {
        weight_row row = row_at(&all, n);
        vf sum[AG_LINEAR_FEW][CHUNK_VECTORS];
        for (int64_t t = 0; t < T; t++)
            for (int v = 0; v < CHUNK_VECTORS; v++) sum[t][v] = vf_zero();
        for (int64_t k = 0; k < whole; k += 2 * CHUNK) {
            vf wv[2][CHUNK_VECTORS];
            const int n_chunks = whole - k < 2 * CHUNK ? 1 : 2;
            for (int c = 0; c < n_chunks; c++) {
                if (chunk)
                    chunk(wv[c], &row, chunk_of(k + c * CHUNK, per_block));
                else
                    decode_exactly(wv[c], &row, k + c * CHUNK);
                if (round)
                    for (int v = 0; v < CHUNK_VECTORS; v++) wv[c][v] = vf_round_bf16(wv[c][v]);
            }
            if (n_chunks == 2)
                add_chunks(sum, 2, wv, x + k, T, K);
            else
                add_chunks(sum, 1, wv, x + k, T, K);
        }
        if (whole < K) {
            float tail[CHUNK];
            ag_weight_row(tail, w, n, whole, K);
            for (int64_t t = 0; t < T; t++) add_tail(sum[t], tail, x + t * K + whole, K - whole, round);
        }
        for (int64_t t = 0; t < T; t++) put(a, i, t, n, sum_of(sum[t]));
    }
}

/* As many tokens as there may be, where the sums of all fit the registers (32 of 16 lanes): the same sums in the same order. */
static inline __attribute__((always_inline)) void most_tokens(decode_fn *chunk, const int per_block, const ag_linear_fwd_args *a, const float *x, int i,
                                                              int64_t n0, int64_t n1, const bool round)
{
    const ag_weight *w = a->w[i];
    const weight_rows all = rows_of(w);
    const int64_t K = w->K, whole = K / CHUNK * CHUNK, chunk_bytes = all.row_bytes * CHUNK / K;
    for (int64_t n = n0; n < n1; n++) {
        weight_row row = row_at(&all, n);
        vf sum[AG_LINEAR_FEW][CHUNK_VECTORS];
#pragma GCC unroll 8
        for (int t = 0; t < AG_LINEAR_FEW; t++)
#pragma GCC unroll 4
            for (int v = 0; v < CHUNK_VECTORS; v++) sum[t][v] = vf_zero();
        const uint8_t *ahead = row.bytes + AG_LINEAR_AHEAD;
        for (int64_t k = 0; k < whole; k += CHUNK, ahead += chunk_bytes) {
            vf wv[CHUNK_VECTORS];
            __builtin_prefetch(ahead);
            chunk(wv, &row, chunk_of(k, per_block));
            for (int v = 0; v < CHUNK_VECTORS && round; v++) wv[v] = vf_round_bf16(wv[v]);
#pragma GCC unroll 8
            for (int t = 0; t < AG_LINEAR_FEW; t++)
#pragma GCC unroll 4
                for (int v = 0; v < CHUNK_VECTORS; v++) sum[t][v] = vf_fma(wv[v], vf_load(x + t * K + k + v * VF_LANES), sum[t][v]);
        }
        if (whole < K) {
            float tail[CHUNK];
            ag_weight_row(tail, w, n, whole, K);
            for (int t = 0; t < AG_LINEAR_FEW; t++) add_tail(sum[t], tail, x + t * K + whole, K - whole, round);
        }
#pragma GCC unroll 8
        for (int t = 0; t < AG_LINEAR_FEW; t++) put(a, i, t, n, sum_of(sum[t]));
    }
}

static inline __attribute__((always_inline)) void few(const ag_linear_fwd_args *a, const float *x, int i, int64_t n0, int64_t n1,
                                                      const bool round)
{
    if (!chunks_are_aligned(a->w[i])) {
        some_tokens(NULL, 1, a, x, i, n0, n1, round);
        return;
    }
    switch (a->w[i]->type) {
#define X(type, decode, per_block)                                  \
    case type:                                                      \
        if (a->x.dim[0] == 1)                                       \
            one_token(decode, per_block, a, x, i, n0, n1, round);   \
        else if (VF_LANES == 16 && a->x.dim[0] == AG_LINEAR_FEW)    \
            most_tokens(decode, per_block, a, x, i, n0, n1, round); \
        else                                                        \
            some_tokens(decode, per_block, a, x, i, n0, n1, round); \
        break;
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
