/* x[t] = scale·W[ids[t]], eight values a thread. */
#include "device.h"
#include "lab.h"

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS) embed_kernel(bkl_embed_args a)
{
    const int64_t chunks = a.C / 8, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.T * chunks) return;
    const int64_t t = i / chunks, c = i % chunks * 8;
    float x[8];
    load8(x, a.w + (int64_t)a.ids[t] * a.C + c);
    BKL_UNROLL
    for (int j = 0; j < 8; j++) x[j] *= a.scale;
    store8(a.x + t * a.C + c, x);
}

BKL_NO_WORKSPACE(embed)
bkl_status bkl_embed(bkl_stream *stream, const bkl_embed_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->T > 0 && a->C > 0 && a->C % 8 == 0, "embed: T = %lld, C = %lld; C a multiple of 8", (long long)a->T,
               (long long)a->C);
    return BKL_LAUNCH(stream, embed_kernel, (unsigned)ceil_div(a->T * a->C / 8, THREADS), THREADS, 0, *a);
}
