/* The small matrix products of attention, in registers. For files that are compiled for a level, as simd.h.
 *
 *     c[m][n] = Σ_k a[m][k]·b[k][n]     a is read one value at a time and broadcast, so it may lie either way round;
 *                                       b and c are rows of whole vectors
 * A tile of GEMM_ROWS × GEMM_VECTORS keeps its sums in registers over the whole k. With four times as many multiply-adds as
 * loads the loads hide. The order of a sum is k ascending, whatever the tile. */
#ifndef AG_ATTENTION_GEMM_H
#define AG_ATTENTION_GEMM_H

#include "ops/simd.h"

#if defined(AG_SIMD_AVX2)
enum { GEMM_ROWS = 6, GEMM_VECTORS = 2 }; /* 12 sums, 2 of b, 1 of a: 15 of 16 registers */
#else
enum { GEMM_ROWS = 6, GEMM_VECTORS = 4 }; /* 24 sums, 4 of b, 1 of a: 29 of 32 registers */
#endif

#define AG_INLINE static inline __attribute__((always_inline))

typedef struct {
    float *c;
    int64_t c_pitch;
    const float *a;
    int64_t a_row, a_k; /* a[m][k] is a[m·a_row + k·a_k] */
    const float *b;
    int64_t b_pitch;
    int64_t n_k;
} ag_product;

/* Rows [m, m + n_rows), vectors from column n. factor NULL: c = product; else c = factor[m]·c + product. */
AG_INLINE void ag_gemm_tile(const int n_rows, const int n_vectors, const ag_product *p, int64_t m, int64_t n, int64_t k0, int64_t k1,
                            const float *factor)
{
    vf sum[GEMM_ROWS][GEMM_VECTORS];
    const float *a = p->a + m * p->a_row, *b = p->b + n;
    float *c = p->c + m * p->c_pitch + n;
    const int64_t a_row = p->a_row, a_k = p->a_k, b_pitch = p->b_pitch;
#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < n_vectors; v++) {
            sum[i][v] = vf_zero();
            if (factor) sum[i][v] = vf_set1(factor[m + i]) * vf_load(c + i * p->c_pitch + v * VF_LANES);
        }
    for (int64_t k = k0; k < k1; k++) {
        vf x[GEMM_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < n_vectors; v++) x[v] = vf_load(b + k * b_pitch + v * VF_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < n_rows; i++) {
            const vf y = vf_set1(a[i * a_row + k * a_k]);
#pragma GCC unroll 8
            for (int v = 0; v < n_vectors; v++) sum[i][v] = vf_fma(y, x[v], sum[i][v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < n_vectors; v++) vf_store(c + i * p->c_pitch + v * VF_LANES, sum[i][v]);
}

#endif
