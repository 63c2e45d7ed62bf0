/* y = x·Wᵀ for at most eight tokens (decoding): reading the weight is all that takes time, so a warp reads one row of it, 1,024
 * codes a turn, and multiplies what its lanes hold with every token's values. The numbers are those of the GEMM: weights
 * rounded to bf16, sums in f32. */
#include "nf4_few.h"

#include "lab.h"
#include "nf4_code.h"

enum { THREADS = 256, ROWS = THREADS / WARP, OF_LANE = 32 };

template <int T_MAX> __global__ void __launch_bounds__(THREADS) nf4_few_kernel(bkl_nf4_fwd_args a)
{
    BKL_SHARED(float, code, [16]);
    if (threadIdx.x < 16) code[threadIdx.x] = nf4_codes[threadIdx.x];
    __syncthreads();
    const int lane = (int)threadIdx.x % WARP;
    const int64_t n = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, K = a.w.K;
    if (n >= a.w.N) return; /* whole warps */
    float sums[T_MAX];
    BKL_UNROLL
    for (int t = 0; t < T_MAX; t++) sums[t] = 0;
    for (int64_t k = OF_LANE * lane; k < K; k += OF_LANE * WARP) {
        const uint4 codes = load16(a.w.packed + (n * K + k) / 2);
        const float scale = nf4_scale(&a.w, (n * K + k) / 64);
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        BKL_UNROLL
        for (int i = 0; i < 4; i++) {
            const uint4 pairs = nf4_dequantize8(words[i], scale, code);
            const float w[8] = {bf16_low(pairs.x), bf16_high(pairs.x), bf16_low(pairs.y), bf16_high(pairs.y),
                                bf16_low(pairs.z), bf16_high(pairs.z), bf16_low(pairs.w), bf16_high(pairs.w)};
            BKL_UNROLL
            for (int t = 0; t < T_MAX; t++) {
                if (t >= a.T) break;
                float x[8];
                load8(x, a.x + t * a.x_pitch + k + 8 * i);
                BKL_UNROLL
                for (int j = 0; j < 8; j++) sums[t] += x[j] * w[j];
            }
        }
    }
    if (a.lora_h)
        for (int64_t r = lane; r < a.R; r += WARP) {
            const float b = bf16_to_f32(a.lora_b[n * a.R + r]);
            BKL_UNROLL
            for (int t = 0; t < T_MAX; t++)
                if (t < a.T) sums[t] += bf16_to_f32(a.lora_h[t * a.R + r]) * b;
        }
    BKL_UNROLL
    for (int t = 0; t < T_MAX; t++) {
        float y = warp_sum(sums[t]) * a.scale;
        if (lane != 0 || t >= a.T) continue;
        if (a.bias) y += a.bias[n];
        bf16 *const to = a.y + t * a.y_pitch + n;
        *to = f32_to_bf16(a.accumulate ? bf16_to_f32(*to) + y : y);
    }
}

bkl_status bkl_nf4_few(bkl_stream *stream, const bkl_nf4_fwd_args *a)
{
    const unsigned blocks = (unsigned)ceil_div(a->w.N, ROWS);
    if (a->T == 1) return BKL_LAUNCH(stream, nf4_few_kernel<1>, blocks, THREADS, 0, *a);
    if (a->T <= 4) return BKL_LAUNCH(stream, nf4_few_kernel<4>, blocks, THREADS, 0, *a);
    return BKL_LAUNCH(stream, nf4_few_kernel<8>, blocks, THREADS, 0, *a);
}
