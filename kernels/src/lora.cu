/* The thin products of LoRA pairs, for as many pairs at once as share a moment of the step:
 *
 *     lora_down    out[T,R] = scale·drop(left)[T,K]·right      h' = s·drop(x)·Aᵀ (right = A [R,K])
 *                                                              dh = s·dy·B (right = B [N,R], by rows of the sum)
 *     lora_grad    dA[R,W] += leftᵀ·drop(wide)                 left = dh, wide = x
 *                  dB[W,R] (transposed) += wideᵀ·left          left = h', wide = dy
 *
 * Since h' carries the scale s, dB = dyᵀ·h' needs none. Down: a block has 16 rows, its four warps take turns along K and add up
 * in shared memory. Grad: a block has 64 columns of W and 256 rows of T; what blocks sum goes to a workspace and is added in
 * order. */
#include "dropout.h"
#include "lab.h"

enum {
    THREADS = 128,
    WARPS = THREADS / WARP,
    ROWS = 16,
    RANKS = 64 /* of a block */,
    ROWS_OF_SPLIT = 256,
    COLUMNS = 64,
    TIMES = 64
};

/* ---- down -----------------------------------------------------------------------------------------------------------------
 */
/* A lane takes 8 neighbours of a row, so four lanes cover 32 of the inner dimension in two multiplications. Which of them
 * counts as which does not matter to a sum, as long as both sides agree. */
BKL_FN uint4 right_chunk(const bkl_lora_down_item *item, int64_t r, int64_t k, int64_t R)
{
    uint4 v;
    v.x = v.y = v.z = v.w = 0;
    if (r >= R || k >= item->K) return v;
    if (!item->right_is_kn) return load16(item->right + r * item->K + k);
    const bf16 *const from = item->right + k * R + r;
    v.x = (uint32_t)from[R] << 16 | from[0], v.y = (uint32_t)from[3 * R] << 16 | from[2 * R];
    v.z = (uint32_t)from[5 * R] << 16 | from[4 * R], v.w = (uint32_t)from[7 * R] << 16 | from[6 * R];
    return v;
}

__global__ void __launch_bounds__(THREADS) lora_down_kernel(bkl_lora_down_args a)
{
    BKL_SHARED(float, parts, [WARPS][ROWS][RANKS]);
    const bkl_lora_down_item *const item = &a.item[blockIdx.y];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t t0 = (int64_t)blockIdx.x * ROWS + lane / 4, r0 = (int64_t)blockIdx.z * RANKS;
    const int n_columns = a.R - r0 < RANKS ? (int)((a.R - r0) / 8) : RANKS / 8;
    float sums[RANKS / 8][4];
    BKL_UNROLL
    for (int j = 0; j < RANKS / 8; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
    for (int64_t k0 = 32 * warp; k0 < item->K; k0 += 32 * WARPS) {
        const int64_t k = k0 + lane % 4 * 8;
        uint4 upper, lower;
        upper.x = upper.y = upper.z = upper.w = 0;
        lower = upper;
        if (k < item->K && t0 < a.T) upper = load16(item->left + t0 * item->left_pitch + k);
        if (k < item->K && t0 + 8 < a.T) lower = load16(item->left + (t0 + 8) * item->left_pitch + k);
        if (item->dropout.drop) {
            upper = dropout8(&item->dropout, t0 * item->K + k, upper);
            lower = dropout8(&item->dropout, (t0 + 8) * item->K + k, lower);
        }
        const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
        BKL_UNROLL
        for (int j = 0; j < RANKS / 8; j++) {
            if (j >= n_columns) break;
            const uint4 b = right_chunk(item, r0 + 8 * j + lane / 4, k, a.R);
            mma_bf16(sums[j], first, b.x, b.y);
            mma_bf16(sums[j], second, b.z, b.w);
        }
    }
    BKL_UNROLL
    for (int j = 0; j < RANKS / 8; j++)
        BKL_UNROLL
        for (int x = 0; x < 4; x++) parts[warp][lane / 4 + x / 2 * 8][8 * j + lane % 4 * 2 + x % 2] = sums[j][x];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < ROWS * RANKS; i += THREADS) {
        const int row = i / RANKS, r = i % RANKS;
        const int64_t t = (int64_t)blockIdx.x * ROWS + row;
        if (t >= a.T || r0 + r >= a.R) continue;
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += parts[w][row][r];
        item->out[t * a.R + r0 + r] = f32_to_bf16(item->scale * sum);
    }
}

BKL_NO_WORKSPACE(lora_down)
bkl_status bkl_lora_down(bkl_stream *stream, const bkl_lora_down_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->n >= 1 && a->n <= BKL_LORA_MAX && a->T > 0 && a->R > 0 && a->R % 8 == 0,
               "lora_down: %d pairs (1 to %d), T = %lld, R = %lld; R a multiple of 8", a->n, BKL_LORA_MAX, (long long)a->T,
               (long long)a->R);
    for (int i = 0; i < a->n; i++)
        BKL_EXPECT(stream,
                   a->item[i].K > 0 && a->item[i].K % 8 == 0 && a->item[i].left_pitch >= a->item[i].K &&
                       a->item[i].left_pitch % 8 == 0,
                   "lora_down: pair %d: K = %lld, a pitch of %lld; multiples of 8", i, (long long)a->item[i].K,
                   (long long)a->item[i].left_pitch);
    const dim3 grid((unsigned)ceil_div(a->T, ROWS), (unsigned)a->n, (unsigned)ceil_div(a->R, RANKS));
    return BKL_LAUNCH(stream, lora_down_kernel, grid, THREADS, 0, *a);
}

/* ---- grad -----------------------------------------------------------------------------------------------------------------
 */
/* [TIMES][64] of a matrix, swizzled by 16-byte chunks. */
BKL_FN bf16 *chunk_at(bf16 *tile, int row, int chunk) { return tile + row * 64 + ((chunk ^ (row & 7)) * 8); }

BKL_FN void tile_copy(bf16 *tile, const bf16 *from, int64_t pitch, int64_t t0, int64_t T, int64_t c0, int64_t n_columns)
{
    BKL_UNROLL
    for (int i = 0; i < TIMES * 8 / THREADS; i++) {
        const int of_all = i * THREADS + (int)threadIdx.x, row = of_all / 8, chunk = of_all % 8;
        const bool inside = t0 + row < T && c0 + 8 * chunk < n_columns;
        copy16_async(chunk_at(tile, row, chunk), inside ? from + (t0 + row) * pitch + c0 + 8 * chunk : from, inside ? 16 : 0);
    }
}

/* Drops from what this thread has copied, before the others read it. */
BKL_FN void tile_drop(bf16 *tile, const bkl_dropout *d, int64_t t0, int64_t c0, int64_t n_columns)
{
    if (d->drop == 0) return;
    BKL_UNROLL
    for (int i = 0; i < TIMES * 8 / THREADS; i++) {
        const int of_all = i * THREADS + (int)threadIdx.x, row = of_all / 8, chunk = of_all % 8;
        bf16 *const at = chunk_at(tile, row, chunk);
        store16(at, dropout8(d, (t0 + row) * n_columns + c0 + 8 * chunk, load16(at)));
    }
}

/* Blocks: (columns, splits of T, pairs · groups of ranks). Parts: [pair][split][R][W], W the widest's. */
__global__ void __launch_bounds__(THREADS, 3) lora_grad_kernel(bkl_lora_grad_args a, float *parts, int64_t widest, int n_groups)
{
    BKL_DYNAMIC_SHARED(memory);
    bf16 *const left = (bf16 *)memory, *const wide = left + 2 * TIMES * RANKS;
    const int pair = (int)blockIdx.z / n_groups;
    const bkl_lora_grad_item *const item = &a.item[pair];
    const int64_t c0 = (int64_t)blockIdx.x * COLUMNS, r0 = (int64_t)((int)blockIdx.z % n_groups) * RANKS,
                  begin = (int64_t)blockIdx.y * ROWS_OF_SPLIT;
    if (c0 >= item->W) return;
    const int64_t end = begin + ROWS_OF_SPLIT < a.T ? begin + ROWS_OF_SPLIT : a.T;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, matrix = lane / 8, in_matrix = lane % 8;
    float sums[RANKS / 16][2][4]; /* 64 ranks by the warp's 16 columns */
    BKL_UNROLL
    for (int i = 0; i < RANKS / 16; i++)
        BKL_UNROLL
        for (int j = 0; j < 2; j++) sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0;

    tile_copy(left, item->left, a.R, begin, end, r0, a.R);
    tile_copy(wide, item->wide, item->wide_pitch, begin, end, c0, item->W);
    copy_commit();
    int now = 0;
    for (int64_t t0 = begin; t0 < end; t0 += TIMES, now ^= 1) {
        if (t0 + TIMES < end) {
            tile_copy(left + (now ^ 1) * TIMES * RANKS, item->left, a.R, t0 + TIMES, end, r0, a.R);
            tile_copy(wide + (now ^ 1) * TIMES * COLUMNS, item->wide, item->wide_pitch, t0 + TIMES, end, c0, item->W);
        }
        copy_commit();
        copy_wait<1>();
        tile_drop(wide + now * TIMES * COLUMNS, &item->dropout, t0, c0, item->W);
        __syncthreads();
        bf16 *const l = left + now * TIMES * RANKS, *const w = wide + now * TIMES * COLUMNS;
        BKL_UNROLL
        for (int k = 0; k < TIMES; k += 16) {
            uint32_t b[4];
            load_matrices_transposed(b, chunk_at(w, k + matrix % 2 * 8 + in_matrix, 2 * warp + matrix / 2));
            BKL_UNROLL
            for (int i = 0; i < RANKS / 16; i++) {
                if (r0 + 16 * i >= a.R) break;
                uint32_t x[4];
                load_matrices_transposed(x, chunk_at(l, k + matrix / 2 * 8 + in_matrix, 2 * i + matrix % 2));
                mma_bf16(sums[i][0], x, b[0], b[1]);
                mma_bf16(sums[i][1], x, b[2], b[3]);
            }
        }
        __syncthreads();
    }
    copy_wait<0>();

    float *const part = parts + ((int64_t)pair * gridDim.y + blockIdx.y) * a.R * widest;
    BKL_UNROLL
    for (int i = 0; i < RANKS / 16; i++)
        BKL_UNROLL
        for (int j = 0; j < 2; j++)
            BKL_UNROLL
            for (int x = 0; x < 4; x++) {
                const int64_t r = r0 + 16 * i + lane / 4 + x / 2 * 8, c = c0 + 16 * warp + 8 * j + lane % 4 * 2 + x % 2;
                if (r < a.R && c < item->W) part[r * widest + c] = sums[i][j][x];
            }
}

__global__ void __launch_bounds__(THREADS)
    lora_grad_parts_kernel(bkl_lora_grad_args a, const float *parts, int64_t widest, int n_splits)
{
    const bkl_lora_grad_item *const item = &a.item[blockIdx.y];
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.R * item->W) return;
    const int64_t r = i / item->W, c = i % item->W;
    const float *part = parts + (int64_t)blockIdx.y * n_splits * a.R * widest + r * widest + c;
    float sum = 0;
    for (int s = 0; s < n_splits; s++) sum += part[(int64_t)s * a.R * widest];
    float *const out = item->out + (item->transposed ? c * a.R + r : i);
    *out = a.accumulate ? *out + sum : sum;
}

static int64_t widest_of(const bkl_lora_grad_args *a)
{
    int64_t widest = 0;
    for (int i = 0; i < a->n && i < BKL_LORA_MAX; i++)
        if (a->item[i].W > widest) widest = a->item[i].W;
    return widest;
}

size_t bkl_lora_grad_workspace(const bkl_lora_grad_args *a)
{
    if (a->n < 1 || a->T <= 0 || a->R <= 0) return 0;
    return (size_t)a->n * (size_t)ceil_div(a->T, ROWS_OF_SPLIT) * (size_t)a->R * (size_t)widest_of(a) * sizeof(float);
}

bkl_status bkl_lora_grad(bkl_stream *stream, const bkl_lora_grad_args *a, void *workspace, size_t workspace_bytes)
{
    BKL_EXPECT(stream, a->n >= 1 && a->n <= BKL_LORA_MAX && a->T > 0 && a->R > 0 && a->R % 8 == 0,
               "lora_grad: %d gradients (1 to %d), T = %lld, R = %lld; R a multiple of 8", a->n, BKL_LORA_MAX, (long long)a->T,
               (long long)a->R);
    for (int i = 0; i < a->n; i++)
        BKL_EXPECT(stream,
                   a->item[i].W > 0 && a->item[i].W % 8 == 0 && a->item[i].wide_pitch >= a->item[i].W &&
                       a->item[i].wide_pitch % 8 == 0,
                   "lora_grad: gradient %d: W = %lld, a pitch of %lld; multiples of 8", i, (long long)a->item[i].W,
                   (long long)a->item[i].wide_pitch);
    BKL_NEED_WORKSPACE(stream, lora_grad, a, workspace_bytes);
    const int64_t widest = widest_of(a), n_splits = ceil_div(a->T, ROWS_OF_SPLIT), n_groups = ceil_div(a->R, RANKS);
    const dim3 grid((unsigned)ceil_div(widest, COLUMNS), (unsigned)n_splits, (unsigned)(a->n * n_groups));
    BKL_TRY(BKL_LAUNCH(stream, lora_grad_kernel, grid, THREADS, 4 * TIMES * 64 * sizeof(bf16), *a, (float *)workspace, widest,
                       (int)n_groups));
    const dim3 elements((unsigned)ceil_div(a->R * widest, THREADS), (unsigned)a->n);
    return BKL_LAUNCH(stream, lora_grad_parts_kernel, elements, THREADS, 0, *a, (const float *)workspace, widest,
                      (int)n_splits);
}
