/* NF4 to and from bf16, as bitsandbytes does it: blocks of 64, the nearest code by f32 midpoints with ties to the lower, scaled
 * by the f32 reciprocal of the block's largest value. Eight threads a block of 64, eight values a thread. */
#include "device.h"
#include "lab.h"
#include "nf4_code.h"

enum { THREADS = 256, OF_BLOCK = THREADS * 8 };

#define SMALLEST 1e-38f /* a block's largest value counts as at least this much, so that zeros get their code */

/* (code[i] + code[i+1]) / 2, rounded to f32 as torch computes it. */
BKL_TABLE(float, midpoints, [15]) = {
    -0.8480963706970215f,  -0.6106328964233398f,   -0.4599952697753906f, -0.33967941999435425f, -0.23460739850997925f,
    -0.13791173696517944f, -0.045525018125772476f, 0.03979014977812767f, 0.120255246758461f,    0.2035212516784668f,
    0.2920137643814087f,   0.3893125355243683f,    0.5016634464263916f,  0.6427869200706482f,   0.8614784479141235f};
BKL_FN int nearest_code(float x)
{
    int code = 0;
    BKL_UNROLL
    for (int i = 0; i < 15; i++) code += x > midpoints[i];
    return code;
}

__global__ void __launch_bounds__(THREADS) nf4_quantize_kernel(bkl_nf4_quantize_args a)
{
    const int64_t i = (int64_t)blockIdx.x * OF_BLOCK + 8 * (int64_t)threadIdx.x;
    float x[8], most = 0;
    BKL_UNROLL
    for (int j = 0; j < 8; j++) x[j] = 0;
    if (i < a.n) load8(x, a.x + i);
    BKL_UNROLL
    for (int j = 0; j < 8; j++) most = fmaxf(most, fabsf(x[j]));
    BKL_UNROLL
    for (int lanes = 4; lanes; lanes /= 2) most = fmaxf(most, shuffle_xor(most, lanes)); /* eight lanes hold a block */
    if (i >= a.n) return;
    const float scale = 1 / fmaxf(most, SMALLEST);
    uint32_t word = 0;
    BKL_UNROLL
    for (int j = 0; j < 8; j++) word |= (uint32_t)nearest_code(x[j] * scale) << (j / 2 * 8 + (j % 2 ? 0 : 4));
    store4(a.packed + i / 2, word);
    if (threadIdx.x % 8 == 0) a.absmax[i / 64] = most;
}

__global__ void __launch_bounds__(THREADS) nf4_dequantize_kernel(bkl_nf4_dequantize_args a)
{
    BKL_SHARED(float, code, [16]);
    if (threadIdx.x < 16) code[threadIdx.x] = nf4_codes[threadIdx.x];
    __syncthreads();
    const int64_t i = (int64_t)blockIdx.x * OF_BLOCK + 8 * (int64_t)threadIdx.x;
    if (i >= a.w.N * a.w.K) return;
    store16(a.y + i, nf4_dequantize8(load4(a.w.packed + i / 2), nf4_scale(&a.w, i / 64), code));
}

BKL_NO_WORKSPACE(nf4_quantize)
bkl_status bkl_nf4_quantize(bkl_stream *stream, const bkl_nf4_quantize_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->n > 0 && a->n % 64 == 0, "nf4_quantize: %lld values; a multiple of 64", (long long)a->n);
    return BKL_LAUNCH(stream, nf4_quantize_kernel, (unsigned)ceil_div(a->n, OF_BLOCK), THREADS, 0, *a);
}

BKL_NO_WORKSPACE(nf4_dequantize)
bkl_status bkl_nf4_dequantize(bkl_stream *stream, const bkl_nf4_dequantize_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->w.N > 0 && a->w.K > 0 && a->w.K % 64 == 0,
               "nf4_dequantize: a weight of %lld rows of %lld; their length a multiple of 64", (long long)a->w.N,
               (long long)a->w.K);
    return BKL_LAUNCH(stream, nf4_dequantize_kernel, (unsigned)ceil_div(a->w.N * a->w.K, OF_BLOCK), THREADS, 0, *a);
}
