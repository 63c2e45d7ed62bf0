/* A block's part of a GEMM: 128×128 of the result by 256 threads, 64 of the inner dimension at a time, on tensor cores
 * (mma.sync m16n8k16), out of shared memory whose 16-byte chunks are swizzled so that ldmatrix meets no bank twice.
 *
 * Eight warps stand 2 by 4, each with 64×32 of the result in registers. Left tiles are [128][64]. Right tiles are either rows
 * of the result's columns, [128][64] (y = x·Wᵀ: W's rows), or rows of the inner dimension, [64][128] (dx = dy·W). */
#ifndef BKL_GEMM_TILE_H
#define BKL_GEMM_TILE_H

#include "device.h"

enum { TILE_M = 128, TILE_N = 128, TILE_K = 64, TILE_THREADS = 256, TILE_BYTES = 128 * 64 * 2 };

/* Where chunk `chunk` (8 values) of a row lies in a tile of 64 or 128 columns. */
BKL_FN bf16 *tile64_at(bf16 *tile, int row, int chunk) { return tile + row * 64 + ((chunk ^ (row & 7)) * 8); }
BKL_FN bf16 *tile128_at(bf16 *tile, int row, int chunk) { return tile + row * 128 + ((chunk ^ (row & 7)) * 8); }

/* Puts rows [row0,row0+128) and columns [k0,k0+64) of a matrix with n_rows rows and n_columns columns on their way into a tile;
 * what lies outside the matrix is 0. */
BKL_FN void tile64_copy(bf16 *tile, const bf16 *from, int64_t pitch, int64_t row0, int64_t n_rows, int64_t k0,
                        int64_t n_columns)
{
    BKL_UNROLL
    for (int i = 0; i < TILE_M * TILE_K / 8 / TILE_THREADS; i++) {
        const int chunk_of_all = i * TILE_THREADS + (int)threadIdx.x, row = chunk_of_all / 8, chunk = chunk_of_all % 8;
        const bool inside = row0 + row < n_rows && k0 + 8 * chunk < n_columns;
        copy16_async(tile64_at(tile, row, chunk), inside ? from + (row0 + row) * pitch + k0 + 8 * chunk : from,
                     inside ? 16 : 0);
    }
}
/* The same with rows [k0,k0+64) and columns [n0,n0+128). */
BKL_FN void tile128_copy(bf16 *tile, const bf16 *from, int64_t pitch, int64_t k0, int64_t n_rows, int64_t n0, int64_t n_columns)
{
    BKL_UNROLL
    for (int i = 0; i < TILE_N * TILE_K / 8 / TILE_THREADS; i++) {
        const int chunk_of_all = i * TILE_THREADS + (int)threadIdx.x, row = chunk_of_all / 16, chunk = chunk_of_all % 16;
        const bool inside = k0 + row < n_rows && n0 + 8 * chunk < n_columns;
        copy16_async(tile128_at(tile, row, chunk), inside ? from + (k0 + row) * pitch + n0 + 8 * chunk : from, inside ? 16 : 0);
    }
}

/* sums[4][4][4] of this warp += left·right over the first `depth` (1..64) of the inner dimension, 16 at a time. */
template <bool right_is_kn> BKL_FN void tile_multiply(float sums[4][4][4], bf16 *left, bf16 *right, int depth)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int m0 = warp / 4 * 64, n0 = warp % 4 * 32, matrix = lane / 8, in_matrix = lane % 8;
    BKL_UNROLL
    for (int k = 0; k < TILE_K / 16; k++) {
        if (16 * k >= depth) break;
        uint32_t a[4][4], b[2][4];
        BKL_UNROLL
        for (int i = 0; i < 4; i++)
            load_matrices(a[i], tile64_at(left, m0 + 16 * i + matrix % 2 * 8 + in_matrix, 2 * k + matrix / 2));
        BKL_UNROLL
        for (int j = 0; j < 2; j++) {
            if (right_is_kn)
                load_matrices_transposed(b[j],
                                         tile128_at(right, 16 * k + matrix % 2 * 8 + in_matrix, n0 / 8 + 2 * j + matrix / 2));
            else
                load_matrices(b[j], tile64_at(right, n0 + 16 * j + matrix / 2 * 8 + in_matrix, 2 * k + matrix % 2));
        }
        BKL_UNROLL
        for (int i = 0; i < 4; i++)
            BKL_UNROLL
            for (int j = 0; j < 4; j++) mma_bf16(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

typedef struct {
    void *y;               /* [M,N] bf16 or f32 */
    const float *bias;     /* [N] or NULL */
    int64_t M, N, pitch;   /* N even */
    float scale;           /* y (=, +=) scale·product + bias */
    bool is_f32, accumulate;
} tile_result;

BKL_FN void tile_store(const tile_result *to, int64_t m, int64_t n, float low, float high)
{
    if (m >= to->M || n >= to->N) return;
    low *= to->scale, high *= to->scale;
    if (to->bias) low += to->bias[n], high += to->bias[n + 1];
    if (to->is_f32) {
        float *y = (float *)to->y + m * to->pitch + n;
        y[0] = to->accumulate ? y[0] + low : low;
        y[1] = to->accumulate ? y[1] + high : high;
    } else {
        bf16 *y = (bf16 *)to->y + m * to->pitch + n;
        if (to->accumulate) {
            const uint32_t before = load4(y);
            low += bf16_low(before), high += bf16_high(before);
        }
        store4(y, bf16_pair(low, high));
    }
}

BKL_FN void tile_finish(const tile_result *to, float sums[4][4][4], int64_t block_m0, int64_t block_n0)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t m0 = block_m0 + warp / 4 * 64 + lane / 4, n0 = block_n0 + warp % 4 * 32 + lane % 4 * 2;
    BKL_UNROLL
    for (int i = 0; i < 4; i++)
        BKL_UNROLL
        for (int j = 0; j < 4; j++) {
            tile_store(to, m0 + 16 * i, n0 + 8 * j, sums[i][j][0], sums[i][j][1]);
            tile_store(to, m0 + 16 * i + 8, n0 + 8 * j, sums[i][j][2], sums[i][j][3]);
        }
}

BKL_FN void tile_clear(float sums[4][4][4])
{
    BKL_UNROLL
    for (int i = 0; i < 4; i++)
        BKL_UNROLL
        for (int j = 0; j < 4; j++)
            BKL_UNROLL
            for (int x = 0; x < 4; x++) sums[i][j][x] = 0;
}

#endif
