/* Rotary embedding as Hugging Face writes it: element i of a head turns with element i + D/2. A thread turns eight pairs. */
#include "device.h"
#include "lab.h"

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS) rope_kernel(bkl_rope_args a)
{
    const int64_t half = a.D / 2, chunks = half / 8, n = a.T * a.H * chunks;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    const int64_t chunk = i % chunks, h = i / chunks % a.H, t = i / chunks / a.H;
    bf16 *lower = a.x + t * a.pitch + h * a.D + 8 * chunk, *upper = lower + half;
    const int64_t at = a.positions[t] * half + 8 * chunk;
    float x[8], y[8];
    load8(x, lower);
    load8(y, upper);
    BKL_UNROLL
    for (int j = 0; j < 8; j++) {
        const float c = a.cos[at + j], s = a.backward ? -a.sin[at + j] : a.sin[at + j], low = x[j], high = y[j];
        x[j] = low * c - high * s;
        y[j] = high * c + low * s;
    }
    store8(lower, x);
    store8(upper, y);
}

BKL_NO_WORKSPACE(rope)
bkl_status bkl_rope(bkl_stream *stream, const bkl_rope_args *a, void *, size_t)
{
    BKL_EXPECT(
        stream, a->T > 0 && a->H > 0 && a->D > 0 && a->D % 16 == 0 && a->pitch >= a->H * a->D && a->pitch % 8 == 0,
        "rope: T = %lld, H = %lld, D = %lld, pitch = %lld; D a multiple of 16, the pitch at least H·D and a multiple of 8",
        (long long)a->T, (long long)a->H, (long long)a->D, (long long)a->pitch);
    return BKL_LAUNCH(stream, rope_kernel, (unsigned)ceil_div(a->T * a->H * a->D / 16, THREADS), THREADS, 0, *a);
}
