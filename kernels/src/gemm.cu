/* bf16 GEMM: both operands come by cp.async, three tiles deep.
 *
 *     y[M,N] (= or +=) scale · a[M,K]·bᵀ + bias        b [N,K], or [K,N] (then ·b)
 *
 * Where the result has too few tiles for a GPU and the sum is long, it is cut into stretches whose sums lie in the workspace
 * until a second kernel adds them, in order. How many depends on shapes alone. */
#include "gemm_tile.h"
#include "lab.h"

enum { STAGES = 3, SHARED_BYTES = 2 * STAGES * TILE_BYTES };
enum { FEW_TILES = 128, MANY_TILES = 256, LONG_SUM = 4096, SHORTEST_CUT = 1024, MOST_CUTS = 16 };

static int cuts_of(const bkl_gemm_args *a)
{
    const int64_t tiles = ceil_div(a->M, TILE_M) * ceil_div(a->N, TILE_N);
    if (tiles >= FEW_TILES || a->K < LONG_SUM) return 1;
    int64_t cuts = ceil_div(MANY_TILES, tiles);
    if (cuts > a->K / SHORTEST_CUT) cuts = a->K / SHORTEST_CUT;
    return cuts < MOST_CUTS ? (int)cuts : (int)MOST_CUTS;
}

template <bool b_is_kn>
BKL_FN void copy_tiles(bf16 *left, bf16 *right, int i, int first, const bkl_gemm_args *a, int64_t m0, int64_t n0)
{
    bf16 *const r = right + i % STAGES * (TILE_BYTES / 2);
    const int64_t k0 = (int64_t)(first + i) * TILE_K;
    tile64_copy(left + i % STAGES * (TILE_BYTES / 2), a->a, a->a_pitch, m0, a->M, k0, a->K);
    if (b_is_kn)
        tile128_copy(r, a->b, a->b_pitch, k0, a->K, n0, a->N);
    else
        tile64_copy(r, a->b, a->b_pitch, n0, a->N, k0, a->K);
}

/* One stretch of the sum a block: `tiles_of_cut` tiles of TILE_K. */
template <bool b_is_kn>
__global__ void __launch_bounds__(TILE_THREADS) gemm_kernel(bkl_gemm_args a, tile_result to, int tiles_of_cut)
{
    BKL_DYNAMIC_SHARED(memory);
    bf16 *const left = (bf16 *)memory, *const right = left + STAGES * TILE_BYTES / 2;
    const int64_t m0 = (int64_t)blockIdx.x * TILE_M, n0 = (int64_t)blockIdx.y * TILE_N;
    const int first = (int)blockIdx.z * tiles_of_cut, all = (int)ceil_div(a.K, TILE_K);
    const int n_tiles = all - first < tiles_of_cut ? all - first : tiles_of_cut;
    float sums[4][4][4];
    tile_clear(sums);

    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n_tiles) copy_tiles<b_is_kn>(left, right, i, first, &a, m0, n0);
        copy_commit(); /* empty at the end, so that the count of groups stays the count of tiles */
    }
    for (int i = 0; i < n_tiles; i++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < n_tiles)
            copy_tiles<b_is_kn>(left, right, i + STAGES - 1, first, &a, m0, n0); /* where the last turn read */
        copy_commit();
        const int64_t depth = a.K - (int64_t)(first + i) * TILE_K;
        tile_multiply<b_is_kn>(sums, left + i % STAGES * (TILE_BYTES / 2), right + i % STAGES * (TILE_BYTES / 2),
                               depth < TILE_K ? (int)depth : TILE_K);
    }
    copy_wait<0>();
    if (gridDim.z > 1) to.y = (float *)to.y + (int64_t)blockIdx.z * a.M * a.N;
    tile_finish(&to, sums, m0, n0);
}

__global__ void __launch_bounds__(TILE_THREADS) gemm_cuts_kernel(tile_result to, const float *parts, int n_cuts)
{
    const int64_t i = 2 * ((int64_t)blockIdx.x * TILE_THREADS + threadIdx.x), n = to.M * to.N;
    if (i >= n) return;
    float low = 0, high = 0;
    for (int c = 0; c < n_cuts; c++) low += parts[c * n + i], high += parts[c * n + i + 1];
    tile_store(&to, i / to.N, i % to.N, low, high);
}

size_t bkl_gemm_workspace(const bkl_gemm_args *a)
{
    if (a->M <= 0 || a->N <= 0 || a->K <= 0) return 0;
    const int cuts = cuts_of(a);
    return cuts > 1 ? (size_t)cuts * (size_t)(a->M * a->N) * sizeof(float) : 0;
}

bkl_status bkl_gemm(bkl_stream *stream, const bkl_gemm_args *a, void *workspace, size_t workspace_bytes)
{
    BKL_EXPECT(stream, a->M > 0 && a->N > 0 && a->K > 0 && a->K % 8 == 0 && a->N % 8 == 0,
               "gemm: M = %lld, N = %lld, K = %lld; all positive, N and K multiples of 8", (long long)a->M, (long long)a->N,
               (long long)a->K);
    BKL_EXPECT(stream,
               a->a_pitch >= a->K && a->a_pitch % 8 == 0 && a->b_pitch >= (a->b_is_kn ? a->N : a->K) && a->b_pitch % 8 == 0 &&
                   a->y_pitch >= a->N && a->y_pitch % 2 == 0,
               "gemm: pitches of %lld (a), %lld (b), %lld (y); at least a row, and those of a and b multiples of 8",
               (long long)a->a_pitch, (long long)a->b_pitch, (long long)a->y_pitch);
    const tile_result to = {a->y, a->bias, a->M, a->N, a->y_pitch, a->scale, a->y_is_f32, a->accumulate};
    BKL_NEED_WORKSPACE(stream, gemm, a, workspace_bytes);
    const int n_cuts = cuts_of(a), tiles_of_cut = (int)ceil_div(ceil_div(a->K, TILE_K), n_cuts);
    const tile_result part = {workspace, nullptr, a->M, a->N, a->N, 1, true, false}, first = n_cuts > 1 ? part : to;
    const dim3 grid((unsigned)ceil_div(a->M, TILE_M), (unsigned)ceil_div(a->N, TILE_N),
                    (unsigned)ceil_div(ceil_div(a->K, TILE_K), tiles_of_cut));
    if (a->b_is_kn)
        BKL_TRY(BKL_LAUNCH(stream, gemm_kernel<true>, grid, TILE_THREADS, SHARED_BYTES, *a, first, tiles_of_cut));
    else
        BKL_TRY(BKL_LAUNCH(stream, gemm_kernel<false>, grid, TILE_THREADS, SHARED_BYTES, *a, first, tiles_of_cut));
    if (n_cuts == 1) return BKL_OK;
    return BKL_LAUNCH(stream, gemm_cuts_kernel, (unsigned)ceil_div(a->M * a->N / 2, TILE_THREADS), TILE_THREADS, 0, to,
                      (const float *)workspace, (int)grid.z);
}
