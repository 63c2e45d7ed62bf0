/* Decoding under AG_COMPUTE_BF16 by VDPBF16PS; see linear_few_simd.c. Output (t,n) is one chain over chunks of 32 weights, then a
 * tree over lanes. */
#include "ops/linear/linear_kernel.h"
#include "ops/linear/linear_pairs.h"

static inline void put(const ag_linear_fwd_args *a, int i, int64_t t, int64_t n, __m512 sum)
{
    float *y = (float *)a->y[i].data + t * a->w[i]->N + n, result = vf_sum(sum) * a->scale;
    if (a->accumulate) result = result + *y;
    if (a->bias[i]) result = result + a->bias[i][n];
    *y = result;
}

static inline __m512i load_some(const uint16_t *x, int64_t n)
{
    return _mm512_maskz_loadu_epi16(n >= CHUNK ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1, x);
}

static inline __m512 add_products(__m512 sum, __m512i w, __m512i x) { return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x); }

static inline __attribute__((always_inline)) void one_token(decode_bf16_fn *decode, const int per_block, const ag_linear_fwd_args *a, const uint16_t *x, int i,
                                                            int64_t n0, int64_t n1)
{
    const ag_weight *w = a->w[i];
    const weight_rows all = rows_of(w);
    const int64_t K = w->K, whole = K / CHUNK * CHUNK;
    const size_t n_blocks = (size_t)(whole / CHUNK / per_block);
    for (int64_t n = n0; n < n1; n++) {
        weight_row row = row_at(&all, n);
        __m512 sum = _mm512_setzero_ps();
        const uint16_t *xk = x;
        for (size_t block = 0; block < n_blocks; block++)
#pragma GCC unroll 8
            for (int j = 0; j < per_block; j++, xk += CHUNK)
                sum = add_products(sum, decode(&row, (chunk_at){block, j}), _mm512_loadu_si512(xk));
        if (whole < K) sum = add_products(sum, decode_some_to_bf16(w, n, whole, K - whole), load_some(x + whole, K - whole));
        put(a, i, 0, n, sum);
    }
}

/* Two to eight tokens share each decoded chunk. */
static inline __attribute__((always_inline)) void some_tokens(decode_bf16_fn *decode, const int per_block, const ag_linear_fwd_args *a, const uint16_t *x, int i,
                                                              int64_t n0, int64_t n1)
{
    const ag_weight *w = a->w[i];
    const weight_rows all = rows_of(w);
    const int64_t T = a->x.dim[0], K = w->K, whole = decode ? K / CHUNK * CHUNK : 0;
    for (int64_t n = n0; n < n1; n++) {
        weight_row row = row_at(&all, n);
        __m512 sum[AG_LINEAR_FEW];
        for (int64_t t = 0; t < T; t++) sum[t] = _mm512_setzero_ps();
        int64_t k = 0;
        for (; k < whole; k += CHUNK) {
            const __m512i chunk = decode(&row, chunk_of(k, per_block));
            for (int64_t t = 0; t < T; t++) sum[t] = add_products(sum[t], chunk, _mm512_loadu_si512(x + t * K + k));
        }
        for (; k < K; k += CHUNK) {
            const int64_t n_cols = K - k < CHUNK ? K - k : CHUNK;
            const __m512i chunk = decode_some_to_bf16(w, n, k, n_cols);
            for (int64_t t = 0; t < T; t++) sum[t] = add_products(sum[t], chunk, load_some(x + t * K + k, n_cols));
        }
        for (int64_t t = 0; t < T; t++) put(a, i, t, n, sum[t]);
    }
}

/* As many tokens as there may be: their sums stay in registers. */
static inline __attribute__((always_inline)) void most_tokens(decode_bf16_fn *decode, const int per_block, const ag_linear_fwd_args *a, const uint16_t *x,
                                                              int i, int64_t n0, int64_t n1)
{
    const ag_weight *w = a->w[i];
    const weight_rows all = rows_of(w);
    const int64_t K = w->K, whole = K / CHUNK * CHUNK, chunk_bytes = all.row_bytes * CHUNK / K;
    for (int64_t n = n0; n < n1; n++) {
        weight_row row = row_at(&all, n);
        __m512 sum[AG_LINEAR_FEW];
#pragma GCC unroll 8
        for (int t = 0; t < AG_LINEAR_FEW; t++) sum[t] = _mm512_setzero_ps();
        const uint8_t *ahead = row.bytes + AG_LINEAR_AHEAD;
        for (int64_t k = 0; k < whole; k += CHUNK, ahead += chunk_bytes) {
            __builtin_prefetch(ahead);
            const __m512i chunk = decode(&row, chunk_of(k, per_block));
#pragma GCC unroll 8
            for (int t = 0; t < AG_LINEAR_FEW; t++) sum[t] = add_products(sum[t], chunk, _mm512_loadu_si512(x + t * K + k));
        }
        if (whole < K) {
            const __m512i chunk = decode_some_to_bf16(w, n, whole, K - whole);
#pragma GCC unroll 8
            for (int t = 0; t < AG_LINEAR_FEW; t++) sum[t] = add_products(sum[t], chunk, load_some(x + t * K + whole, K - whole));
        }
#pragma GCC unroll 8
        for (int t = 0; t < AG_LINEAR_FEW; t++) put(a, i, t, n, sum[t]);
    }
}

void ag_linear_few_avx512bf16(const ag_linear_fwd_args *a, const void *x, int i, int64_t n0, int64_t n1)
{
    if (!chunks_are_aligned(a->w[i])) {
        some_tokens(NULL, 1, a, x, i, n0, n1);
        return;
    }
    switch (a->w[i]->type) {
#define X(type, decode, per_block)                                      \
    case type:                                                          \
        if (a->x.dim[0] == 1)                                           \
            one_token(decode##_to_bf16, per_block, a, x, i, n0, n1);               \
        else if (a->x.dim[0] == AG_LINEAR_FEW)                          \
            most_tokens(decode##_to_bf16, per_block, a, x, i, n0, n1);             \
        else                                                            \
            some_tokens(decode##_to_bf16, per_block, a, x, i, n0, n1);             \
        break;
        AG_DECODERS(X)
#undef X
    case AG_N_WEIGHT_TYPES: break;
    }
}

void ag_linear_few_x_avx512bf16(void *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t left = n - i;
        const __m512i v = to_bf16(vf_load_n(x + i, left), left > 16 ? vf_load_n(x + i + 16, left - 16) : vf_zero());
        _mm512_mask_storeu_epi16((uint16_t *)out + i, left >= CHUNK ? ~(__mmask32)0 : ((__mmask32)1 << left) - 1, v);
    }
}
