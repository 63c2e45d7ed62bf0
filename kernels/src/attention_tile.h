/* What attention's kernels share: tiles of rows [rows][D_MAX] in swizzled shared memory, which keys a query sees, and how the
 * result of one product becomes the left side of the next without leaving registers. */
#ifndef BKL_ATTENTION_TILE_H
#define BKL_ATTENTION_TILE_H

#include "device.h"

enum { ATTENTION_THREADS = 128, ATTENTION_ROWS = 64 /* of a block: 16 a warp */ };

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

template <int D_MAX> BKL_FN bf16 *row_at(bf16 *tile, int row, int chunk)
{
    return tile + row * D_MAX + ((chunk ^ (row & 7)) * 8);
}

/* Puts `rows` rows of a head on their way; rows from n on and columns from D on are 0. `from` is row 0's. */
template <int D_MAX, int rows>
BKL_FN void rows_copy(bf16 *tile, const bf16 *from, int64_t pitch, int64_t row0, int64_t n, int D)
{
    BKL_UNROLL
    for (int i = 0; i < rows * D_MAX / 8 / ATTENTION_THREADS; i++) {
        const int of_all = i * ATTENTION_THREADS + (int)threadIdx.x, row = of_all / (D_MAX / 8), chunk = of_all % (D_MAX / 8);
        const bool inside = row0 + row < n && 8 * chunk < D;
        copy16_async(row_at<D_MAX>(tile, row, chunk), inside ? from + (row0 + row) * pitch + 8 * chunk : from, inside ? 16 : 0);
    }
}

/* Keys that query t sees: [lowest, t + S - T]; none: INT_MAX. */
BKL_FN int lowest_key(const int32_t *first_key, int t, int T, int S, int window)
{
    if (t >= T) return INT32_MAX;
    const int first = first_key ? first_key[t] : 0, of_window = window > 0 ? t + S - T - window + 1 : 0;
    return first < 0 ? INT32_MAX : first > of_window ? first : of_window;
}

BKL_FN int warp_min(int x)
{
    for (int lanes = WARP / 2; lanes; lanes /= 2) {
        const int other = shuffle_xor(x, lanes);
        x = other < x ? other : x;
    }
    return x;
}
BKL_FN int warp_max(int x)
{
    for (int lanes = WARP / 2; lanes; lanes /= 2) {
        const int other = shuffle_xor(x, lanes);
        x = other > x ? other : x;
    }
    return x;
}

/* c[16, 8·n] = the warp's 16 rows of `left` times the 8·n rows of `right`, over their common D columns. */
template <int D_MAX, int n> BKL_FN void multiply_rows(float c[n][4], bf16 *left, int left_row, bf16 *right, int D)
{
    const int lane = (int)threadIdx.x % WARP, matrix = lane / 8, in_matrix = lane % 8;
    BKL_UNROLL
    for (int j = 0; j < n; j++)
        BKL_UNROLL
        for (int x = 0; x < 4; x++) c[j][x] = 0;
    BKL_UNROLL
    for (int k = 0; k < D_MAX / 16; k++) {
        if (16 * k >= D) break;
        uint32_t a[4];
        load_matrices(a, row_at<D_MAX>(left, left_row + matrix % 2 * 8 + in_matrix, 2 * k + matrix / 2));
        BKL_UNROLL
        for (int j = 0; j < n / 2; j++) {
            uint32_t b[4];
            load_matrices(b, row_at<D_MAX>(right, 16 * j + matrix / 2 * 8 + in_matrix, 2 * k + matrix % 2));
            mma_bf16(c[2 * j], a, b[0], b[1]);
            mma_bf16(c[2 * j + 1], a, b[2], b[3]);
        }
    }
}

/* sums[16, D] += c[16, 8·n], rounded to bf16, times the 8·n rows of `right`. */
template <int D_MAX, int n> BKL_FN void multiply_columns(float sums[D_MAX / 8][4], float c[n][4], bf16 *right, int D)
{
    const int lane = (int)threadIdx.x % WARP, matrix = lane / 8, in_matrix = lane % 8;
    BKL_UNROLL
    for (int k = 0; k < n / 2; k++) {
        const uint32_t a[4] = {bf16_pair(c[2 * k][0], c[2 * k][1]), bf16_pair(c[2 * k][2], c[2 * k][3]),
                               bf16_pair(c[2 * k + 1][0], c[2 * k + 1][1]), bf16_pair(c[2 * k + 1][2], c[2 * k + 1][3])};
        BKL_UNROLL
        for (int j = 0; j < D_MAX / 16; j++) {
            if (16 * j >= D) break;
            uint32_t b[4];
            load_matrices_transposed(b, row_at<D_MAX>(right, 16 * k + matrix % 2 * 8 + in_matrix, 2 * j + matrix / 2));
            mma_bf16(sums[2 * j], a, b[0], b[1]);
            mma_bf16(sums[2 * j + 1], a, b[2], b[3]);
        }
    }
}

template <int D_MAX> BKL_FN void sums_clear(float sums[D_MAX / 8][4])
{
    BKL_UNROLL
    for (int j = 0; j < D_MAX / 8; j++)
        BKL_UNROLL
        for (int x = 0; x < 4; x++) sums[j][x] = 0;
}

#endif
