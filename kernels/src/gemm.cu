/* bf16 GEMM: both operands come by cp.async, three tiles deep.
 *
 *     y[M,N] (= or +=) scale · a[M,K]·bᵀ        b [N,K], or [K,N] (then ·b) */
#include "gemm_tile.h"
#include "lab.h"

enum { STAGES = 3, SHARED_BYTES = 2 * STAGES * TILE_BYTES };

template <bool b_is_kn>
BKL_FN void copy_tiles(bf16 *left, bf16 *right, int i, const bkl_gemm_args *a, int64_t m0, int64_t n0)
{
    bf16 *const r = right + i % STAGES * (TILE_BYTES / 2);
    const int64_t k0 = (int64_t)i * TILE_K;
    tile64_copy(left + i % STAGES * (TILE_BYTES / 2), a->a, a->a_pitch, m0, a->M, k0, a->K);
    if (b_is_kn)
        tile128_copy(r, a->b, a->b_pitch, k0, a->K, n0, a->N);
    else
        tile64_copy(r, a->b, a->b_pitch, n0, a->N, k0, a->K);
}

template <bool b_is_kn> __global__ void __launch_bounds__(TILE_THREADS) gemm_kernel(bkl_gemm_args a, tile_result to)
{
    BKL_DYNAMIC_SHARED(memory);
    bf16 *const left = (bf16 *)memory, *const right = left + STAGES * TILE_BYTES / 2;
    const int64_t m0 = (int64_t)blockIdx.x * TILE_M, n0 = (int64_t)blockIdx.y * TILE_N;
    const int n_tiles = (int)ceil_div(a.K, TILE_K);
    float sums[4][4][4];
    tile_clear(sums);

    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n_tiles) copy_tiles<b_is_kn>(left, right, i, &a, m0, n0);
        copy_commit(); /* empty at the end, so that the count of groups stays the count of tiles */
    }
    for (int i = 0; i < n_tiles; i++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < n_tiles) copy_tiles<b_is_kn>(left, right, i + STAGES - 1, &a, m0, n0); /* where the last turn read */
        copy_commit();
        const int64_t depth = a.K - (int64_t)i * TILE_K;
        tile_multiply<b_is_kn>(sums, left + i % STAGES * (TILE_BYTES / 2), right + i % STAGES * (TILE_BYTES / 2),
                               depth < TILE_K ? (int)depth : TILE_K);
    }
    copy_wait<0>();
    tile_finish(&to, sums, m0, n0);
}

BKL_NO_WORKSPACE(gemm)
bkl_status bkl_gemm(bkl_stream *stream, const bkl_gemm_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->M > 0 && a->N > 0 && a->K > 0 && a->K % 8 == 0 && a->N % 8 == 0,
               "gemm: M = %lld, N = %lld, K = %lld; all positive, N and K multiples of 8", (long long)a->M, (long long)a->N, (long long)a->K);
    BKL_EXPECT(stream, a->a_pitch >= a->K && a->a_pitch % 8 == 0 && a->b_pitch >= (a->b_is_kn ? a->N : a->K) && a->b_pitch % 8 == 0 &&
               a->y_pitch >= a->N && a->y_pitch % 2 == 0,
               "gemm: pitches of %lld (a), %lld (b), %lld (y); at least a row, and those of a and b multiples of 8", (long long)a->a_pitch,
               (long long)a->b_pitch, (long long)a->y_pitch);
    const tile_result to = {a->y, a->bias, a->M, a->N, a->y_pitch, a->scale, a->y_is_f32, a->accumulate};
    const dim3 grid((unsigned)ceil_div(a->M, TILE_M), (unsigned)ceil_div(a->N, TILE_N));
    if (a->b_is_kn) return BKL_LAUNCH(stream, gemm_kernel<true>, grid, TILE_THREADS, SHARED_BYTES, *a, to);
    return BKL_LAUNCH(stream, gemm_kernel<false>, grid, TILE_THREADS, SHARED_BYTES, *a, to);
}
