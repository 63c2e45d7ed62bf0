/* y = silu(gate)·up, eight elements a thread. Backward, with σ = 1/(1 + e^-gate):
 *     dgate = dy·up·σ·(1 + gate·(1 - σ))        dup = dy·gate·σ */
#include "device.h"
#include "lab.h"

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS) swiglu_fwd_kernel(bkl_swiglu_fwd_args a)
{
    const int64_t i = 8 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (i >= a.n) return;
    float gate[8], up[8];
    load8(gate, a.gate + i);
    load8(up, a.up + i);
    BKL_UNROLL
    for (int j = 0; j < 8; j++) up[j] *= gate[j] / (1 + expf(-gate[j]));
    store8(a.y + i, up);
}

__global__ void __launch_bounds__(THREADS) swiglu_bwd_kernel(bkl_swiglu_bwd_args a)
{
    const int64_t i = 8 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (i >= a.n) return;
    float gate[8], up[8], dy[8], y[8];
    load8(gate, a.gate + i);
    load8(up, a.up + i);
    load8(dy, a.dy + i);
    BKL_UNROLL
    for (int j = 0; j < 8; j++) {
        const float sigma = 1 / (1 + expf(-gate[j])), silu = gate[j] * sigma;
        y[j] = silu * up[j];
        gate[j] = dy[j] * up[j] * sigma * (1 + gate[j] * (1 - sigma));
        up[j] = dy[j] * silu;
    }
    store8(a.dgate + i, gate);
    store8(a.dup + i, up);
    if (a.y) store8(a.y + i, y);
}

BKL_NO_WORKSPACE(swiglu_fwd)
bkl_status bkl_swiglu_fwd(bkl_stream *stream, const bkl_swiglu_fwd_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->n > 0 && a->n % 8 == 0, "swiglu: %lld elements; a positive multiple of 8", (long long)a->n);
    return BKL_LAUNCH(stream, swiglu_fwd_kernel, (unsigned)ceil_div(a->n, 8 * THREADS), THREADS, 0, *a);
}

BKL_NO_WORKSPACE(swiglu_bwd)
bkl_status bkl_swiglu_bwd(bkl_stream *stream, const bkl_swiglu_bwd_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->n > 0 && a->n % 8 == 0, "swiglu: %lld elements; a positive multiple of 8", (long long)a->n);
    return BKL_LAUNCH(stream, swiglu_bwd_kernel, (unsigned)ceil_div(a->n, 8 * THREADS), THREADS, 0, *a);
}
