/* RMSNorm with the residual addition before it; one block a row, the row kept in registers between its two passes.
 *
 * Backward, with g = dy·w, s what was normalized, r = (mean s² + eps)^(-1/2):
 *     ∂r/∂s_j = -r³·s_j/C        ds_j = r·g_j - s_j·r³·mean(g·s)
 * and what came along the residual stream is added. */
#include "device.h"
#include "lab.h"

enum { THREADS = 256, CHUNKS = 4 /* of 8 values a thread: rows of at most 8,192 */ };

__global__ void __launch_bounds__(THREADS) rmsnorm_fwd_kernel(bkl_rmsnorm_fwd_args a)
{
    BKL_SHARED(float, partial, [WARP]);
    const int64_t row = (int64_t)blockIdx.x * a.C;
    float s[CHUNKS][8], squares = 0;
    BKL_UNROLL
    for (int i = 0; i < CHUNKS; i++) {
        const int64_t c = 8 * ((int64_t)i * THREADS + threadIdx.x);
        if (c >= a.C) continue;
        load8(s[i], a.x + row + c);
        if (a.residual) {
            float residual[8];
            load8(residual, a.residual + row + c);
            for (int j = 0; j < 8; j++) s[i][j] = bf16_to_f32(f32_to_bf16(s[i][j] + residual[j])); /* what backward will read */
        }
        if (a.sum) store8(a.sum + row + c, s[i]);
        for (int j = 0; j < 8; j++) squares += s[i][j] * s[i][j];
    }
    const float r = 1 / sqrtf(block_sum(squares, partial) / (float)a.C + a.eps);
    if (threadIdx.x == 0) a.r[blockIdx.x] = r;
    BKL_UNROLL
    for (int i = 0; i < CHUNKS; i++) {
        const int64_t c = 8 * ((int64_t)i * THREADS + threadIdx.x);
        if (c >= a.C) continue;
        for (int j = 0; j < 8; j++) s[i][j] *= r * a.w[c + j];
        store8(a.y + row + c, s[i]);
    }
}

__global__ void __launch_bounds__(THREADS) rmsnorm_bwd_kernel(bkl_rmsnorm_bwd_args a)
{
    BKL_SHARED(float, partial, [WARP]);
    const int64_t row = (int64_t)blockIdx.x * a.C;
    const float r = a.r[blockIdx.x];
    float s[CHUNKS][8], g[CHUNKS][8], gs = 0;
    BKL_UNROLL
    for (int i = 0; i < CHUNKS; i++) {
        const int64_t c = 8 * ((int64_t)i * THREADS + threadIdx.x);
        if (c >= a.C) continue;
        load8(s[i], a.x + row + c);
        load8(g[i], a.dy + row + c);
        for (int j = 0; j < 8; j++) g[i][j] *= a.w[c + j], gs += g[i][j] * s[i][j];
    }
    const float shrink = r * r * r * (block_sum(gs, partial) / (float)a.C);
    BKL_UNROLL
    for (int i = 0; i < CHUNKS; i++) {
        const int64_t c = 8 * ((int64_t)i * THREADS + threadIdx.x);
        if (c >= a.C) continue;
        float before[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (a.dresidual) load8(before, a.dresidual + row + c);
        for (int j = 0; j < 8; j++) g[i][j] = before[j] + (r * g[i][j] - s[i][j] * shrink);
        store8(a.dx + row + c, g[i]);
    }
}

static bkl_status check(bkl_stream *stream, int64_t T, int64_t C)
{
    BKL_EXPECT(stream, T > 0 && C > 0 && C % 8 == 0, "rmsnorm: T = %lld, C = %lld; both positive, C a multiple of 8",
               (long long)T, (long long)C);
    if (C > 8 * CHUNKS * THREADS)
        return bkl_fail(stream->context, BKL_E_UNSUPPORTED, "rmsnorm: rows of %lld values; %d at most", (long long)C,
                        8 * CHUNKS * THREADS);
    return BKL_OK;
}

BKL_NO_WORKSPACE(rmsnorm_fwd)
bkl_status bkl_rmsnorm_fwd(bkl_stream *stream, const bkl_rmsnorm_fwd_args *a, void *, size_t)
{
    BKL_TRY(check(stream, a->T, a->C));
    return BKL_LAUNCH(stream, rmsnorm_fwd_kernel, (unsigned)a->T, THREADS, 0, *a);
}

BKL_NO_WORKSPACE(rmsnorm_bwd)
bkl_status bkl_rmsnorm_bwd(bkl_stream *stream, const bkl_rmsnorm_bwd_args *a, void *, size_t)
{
    BKL_TRY(check(stream, a->T, a->C));
    return BKL_LAUNCH(stream, rmsnorm_bwd_kernel, (unsigned)a->T, THREADS, 0, *a);
}
