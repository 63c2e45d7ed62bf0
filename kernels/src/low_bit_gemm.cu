/* Research: GEMMs of 8- and 4-bit operands for sm_120a, and the quantizers that make them.
 *
 *     FP8      y[M,N] = scale·a_scale[m]·b_scale[n]·Σ_k a[m,k]·b[n,k]                  e4m3, one scale a row
 *     NVFP4    y[M,N] = scale·Σ_k a[m,k]·a_scale[m,k/16]·b[n,k]·b_scale[n,k/16]        e2m1, an e4m3 scale for 16 values
 *
 * A row of a tile is 128 bytes, so the bf16 GEMM's tiles and ldmatrix serve: 32 bytes of it are one mma (m16n8k32, m16n8k64).
 * NVFP4's scales are multiplied by the tensor core itself. */
#include "gemm_tile.h"
#include "lab.h"
#include "low_bit.h"

enum { QUANTIZE_THREADS = 256 };

/* Two bytes of a row count as one element of the tile's copy. */
enum { ROW_HALVES = 64, SCALES_BYTES = TILE_M * 16 /* of a tile of 256 values: 16 a row */ };

template <bool is_fp4> struct depth_of {
    static const int stages = is_fp4 ? 2 : 3;
    static const int stage_bytes = 2 * TILE_BYTES + (is_fp4 ? 2 * SCALES_BYTES : 0);
    static const int row_values = is_fp4 ? 256 : 128; /* of a tile */
};

BKL_FN void scales_copy(unsigned char *to, const uint8_t *from, int64_t pitch, int64_t row0, int64_t n_rows, int64_t at,
                        int row)
{
    const bool inside = row0 + row < n_rows && at < pitch;
    const int64_t left = pitch - at;
    copy16_async(to + 16 * row, inside ? from + (row0 + row) * pitch + at : from, inside ? (left < 16 ? (int)left : 16) : 0);
}

template <bool is_fp4>
BKL_FN void stage_copy(unsigned char *stage, const bkl_low_bit_gemm_args *a, int i, int64_t m0, int64_t n0)
{
    const int64_t halves = a->K / (is_fp4 ? 4 : 2);
    bf16 *const left = (bf16 *)stage, *const right = left + TILE_BYTES / 2;
    tile64_copy(left, (const bf16 *)a->a, halves, m0, a->M, (int64_t)i * ROW_HALVES, halves);
    tile64_copy(right, (const bf16 *)a->b, halves, n0, a->N, (int64_t)i * ROW_HALVES, halves);
    if (!is_fp4) return;
    unsigned char *const scales = stage + 2 * TILE_BYTES;
    const int row = (int)threadIdx.x % TILE_M;
    if (threadIdx.x < TILE_M)
        scales_copy(scales, a->a_block_scale, a->K / 16, m0, a->M, (int64_t)i * 16, row);
    else
        scales_copy(scales + SCALES_BYTES, a->b_block_scale, a->K / 16, n0, a->N, (int64_t)i * 16, row);
}

template <bool is_fp4> BKL_FN void stage_multiply(float sums[4][4][4], unsigned char *stage, int n_steps)
{
    bf16 *const left = (bf16 *)stage, *const right = left + TILE_BYTES / 2;
    const unsigned char *const scales = stage + 2 * TILE_BYTES;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int m0 = warp / 4 * 64, n0 = warp % 4 * 32, matrix = lane / 8, in_matrix = lane % 8;
    BKL_UNROLL
    for (int k = 0; k < 4; k++) {
        if (k >= n_steps) break;
        uint32_t a[4][4], b[2][4];
        BKL_UNROLL
        for (int i = 0; i < 4; i++)
            load_matrices(a[i], tile64_at(left, m0 + 16 * i + matrix % 2 * 8 + in_matrix, 2 * k + matrix / 2));
        BKL_UNROLL
        for (int j = 0; j < 2; j++)
            load_matrices(b[j], tile64_at(right, n0 + 16 * j + matrix / 2 * 8 + in_matrix, 2 * k + matrix % 2));
        BKL_UNROLL
        for (int i = 0; i < 4; i++) {
            uint32_t a_scales = 0; /* four of row g of an even lane, of row g + 8 of an odd one */
            if (is_fp4) a_scales = load4(scales + 16 * (m0 + 16 * i + lane / 4 + lane % 2 * 8) + 4 * k);
            BKL_UNROLL
            for (int j = 0; j < 4; j++) {
                if (is_fp4) {
                    const uint32_t b_scales = load4(scales + SCALES_BYTES + 16 * (n0 + 8 * j + lane / 4) + 4 * k);
                    mma_nvfp4(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], a_scales, b_scales);
                } else {
                    mma_fp8(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
    }
}

template <bool is_fp4>
__global__ void __launch_bounds__(TILE_THREADS) low_bit_gemm_kernel(bkl_low_bit_gemm_args a, tile_result to)
{
    BKL_DYNAMIC_SHARED(memory);
    const int stages = depth_of<is_fp4>::stages, stage_bytes = depth_of<is_fp4>::stage_bytes,
              row_values = depth_of<is_fp4>::row_values;
    const int64_t m0 = (int64_t)blockIdx.x * TILE_M, n0 = (int64_t)blockIdx.y * TILE_N;
    const int n_tiles = (int)ceil_div(a.K, row_values);
    float sums[4][4][4];
    tile_clear(sums);
    for (int i = 0; i < stages - 1; i++) {
        if (i < n_tiles) stage_copy<is_fp4>(memory + i * stage_bytes, &a, i, m0, n0);
        copy_commit();
    }
    for (int i = 0; i < n_tiles; i++) {
        copy_wait<depth_of<is_fp4>::stages - 2>();
        __syncthreads();
        if (i + stages - 1 < n_tiles)
            stage_copy<is_fp4>(memory + (i + stages - 1) % stages * stage_bytes, &a, i + stages - 1, m0, n0);
        copy_commit();
        const int64_t left = a.K - (int64_t)i * row_values;
        stage_multiply<is_fp4>(sums, memory + i % stages * stage_bytes,
                               left < row_values ? (int)ceil_div(left, row_values / 4) : 4);
    }
    copy_wait<0>();
    if (!is_fp4) {
        const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
        BKL_UNROLL
        for (int i = 0; i < 4; i++)
            BKL_UNROLL
            for (int j = 0; j < 4; j++)
                BKL_UNROLL
                for (int x = 0; x < 4; x++) {
                    const int64_t m = m0 + warp / 4 * 64 + 16 * i + lane / 4 + x / 2 * 8,
                                  n = n0 + warp % 4 * 32 + 8 * j + lane % 4 * 2 + x % 2;
                    if (m < a.M && n < a.N) sums[i][j][x] *= a.a_row_scale[m] * a.b_row_scale[n];
                }
    }
    tile_finish(&to, sums, m0, n0);
}

/* ---- quantizers -----------------------------------------------------------------------------------------------------------
 */
/* A block a row: its largest value becomes 448. */
__global__ void __launch_bounds__(QUANTIZE_THREADS) fp8_quantize_kernel(bkl_low_bit_quantize_args a)
{
    BKL_SHARED(float, partial, [WARP]);
    const int64_t row = (int64_t)blockIdx.x * a.K;
    float most = 0;
    for (int64_t k = threadIdx.x; k < a.K; k += QUANTIZE_THREADS) most = fmaxf(most, fabsf(bf16_to_f32(a.x[row + k])));
    most = block_max(most, partial);
    const float scale = most > 0 ? most / E4M3_MOST : 1.0f;
    if (threadIdx.x == 0) a.row_scale[blockIdx.x] = scale;
    for (int64_t k = threadIdx.x; k < a.K; k += QUANTIZE_THREADS)
        a.codes[row + k] = (uint8_t)f32_to_e4m3(bf16_to_f32(a.x[row + k]) / scale);
}

/* A thread 16 values: their largest becomes 6, as near as an e4m3 scale allows. Low half of a byte first. */
__global__ void __launch_bounds__(QUANTIZE_THREADS) nvfp4_quantize_kernel(bkl_low_bit_quantize_args a)
{
    const int64_t block = (int64_t)blockIdx.x * QUANTIZE_THREADS + threadIdx.x;
    if (block >= a.M * a.K / 16) return;
    float x[16], most = 0;
    load8(x, a.x + 16 * block);
    load8(x + 8, a.x + 16 * block + 8);
    BKL_UNROLL
    for (int i = 0; i < 16; i++) most = fmaxf(most, fabsf(x[i]));
    const uint32_t scale_code = f32_to_e4m3(most / E2M1_MOST / a.scale);
    const float scale = e4m3_to_f32(scale_code) * a.scale, by = scale > 0 ? 1 / scale : 0;
    uint32_t words[2] = {0, 0};
    BKL_UNROLL
    for (int i = 0; i < 16; i++) words[i / 8] |= f32_to_e2m1(x[i] * by) << (i % 8 * 4);
    a.block_scale[block] = (uint8_t)scale_code;
    store4(a.codes + 8 * block, words[0]);
    store4(a.codes + 8 * block + 4, words[1]);
}

static bkl_status check_device(bkl_stream *stream)
{
    const bkl_device_info *info = &stream->context->info;
    if (info->major == 12 && info->minor == 0) return BKL_OK;
    return bkl_fail(stream->context, BKL_E_UNSUPPORTED,
                    "%s has compute capability %d.%d; GEMMs of 8 and 4 bits are made for 12.0", info->name, info->major,
                    info->minor);
}

BKL_NO_WORKSPACE(low_bit_gemm)
bkl_status bkl_low_bit_gemm(bkl_stream *stream, const bkl_low_bit_gemm_args *a, void *, size_t)
{
    BKL_TRY(check_device(stream));
    BKL_EXPECT(stream, a->M > 0 && a->N > 0 && a->N % 8 == 0 && a->K > 0 && a->K % 64 == 0,
               "low_bit_gemm: M = %lld, N = %lld, K = %lld; N a multiple of 8, K of 64", (long long)a->M, (long long)a->N,
               (long long)a->K);
    BKL_EXPECT(stream, a->is_fp4 ? a->a_block_scale && a->b_block_scale && a->K % 256 == 0 : a->a_row_scale && a->b_row_scale,
               "low_bit_gemm: scales are missing, or K = %lld is not a multiple of 256 with 4 bits", (long long)a->K);
    const tile_result to = {a->y, nullptr, a->M, a->N, a->N, a->scale, false, false};
    const dim3 grid((unsigned)ceil_div(a->M, TILE_M), (unsigned)ceil_div(a->N, TILE_N));
    if (a->is_fp4)
        return BKL_LAUNCH(stream, low_bit_gemm_kernel<true>, grid, TILE_THREADS,
                          depth_of<true>::stages * depth_of<true>::stage_bytes, *a, to);
    return BKL_LAUNCH(stream, low_bit_gemm_kernel<false>, grid, TILE_THREADS,
                      depth_of<false>::stages * depth_of<false>::stage_bytes, *a, to);
}

BKL_NO_WORKSPACE(low_bit_quantize)
bkl_status bkl_low_bit_quantize(bkl_stream *stream, const bkl_low_bit_quantize_args *a, void *, size_t)
{
    BKL_EXPECT(stream,
               a->M > 0 && a->K > 0 && a->K % 16 == 0 && (a->is_fp4 ? a->block_scale && a->scale > 0 : a->row_scale != nullptr),
               "low_bit_quantize: M = %lld, K = %lld (a multiple of 16), or scales are missing", (long long)a->M,
               (long long)a->K);
    if (a->is_fp4)
        return BKL_LAUNCH(stream, nvfp4_quantize_kernel, (unsigned)ceil_div(a->M * a->K / 16, QUANTIZE_THREADS),
                          QUANTIZE_THREADS, 0, *a);
    return BKL_LAUNCH(stream, fp8_quantize_kernel, (unsigned)a->M, QUANTIZE_THREADS, 0, *a);
}
