/* The one header between kernels and what runs them. With nvcc it is CUDA and PTX; with a C++ compiler it is the emulator of
 * emu/.
 *
 * A kernel file uses CUDA's own words where a compiler can be taught them (__global__, __launch_bounds__, threadIdx, blockIdx,
 * __syncthreads, __syncwarp) and, for everything that is an instruction, the wrappers below. Blocks are one-dimensional and a
 * multiple of 32 threads; operations of a warp take all 32 lanes.
 *
 *     BKL_FN float f(float x)                  a function on the device
 *     BKL_TABLE(float, codes, [16]) = {…};     constants
 *     BKL_SHARED(float, partial, [32]);        static shared memory
 *     BKL_DYNAMIC_SHARED(memory);              dynamic shared memory, bytes, 128-byte aligned
 *     BKL_LAUNCH(stream, kernel, grid, threads, shared_bytes, arguments…)      a bkl_status
 *
 * bf16 is 16 bits in memory and float in registers. */
#ifndef BKL_DEVICE_H
#define BKL_DEVICE_H

#include "bkl.h"

typedef bkl_bf16 bf16;

#ifdef __CUDACC__
#include "ptx.h"
#else
#include "emu.h"
#endif

/* ---- what both sides share ---------------------------------------------------------------------------------------------- */
enum { WARP = 32 };

BKL_FN float bf16_to_f32(bf16 x) { return __uint_as_float((uint32_t)x << 16); }
BKL_FN float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
BKL_FN float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

BKL_FN float warp_sum(float x)
{
    for (int lanes = WARP / 2; lanes; lanes /= 2) x += shuffle_xor(x, lanes);
    return x;
}

BKL_FN float warp_max(float x)
{
    for (int lanes = WARP / 2; lanes; lanes /= 2) x = fmaxf(x, shuffle_xor(x, lanes));
    return x;
}

/* Sum over a block in an order that depends on its size alone; every thread gets it. `partial` holds 32 floats of shared memory
 * and may be used again after the next barrier. */
BKL_FN float block_sum(float x, float *partial)
{
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    const unsigned lane = threadIdx.x % WARP;
    return warp_sum(lane < blockDim.x / WARP ? partial[lane] : 0.0f);
}

BKL_FN float block_max(float x, float *partial)
{
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    const unsigned lane = threadIdx.x % WARP;
    return warp_max(lane < blockDim.x / WARP ? partial[lane] : -INFINITY);
}

/* Eight bf16, 16 bytes aligned, as floats and back. */
BKL_FN void load8(float x[8], const bf16 *from)
{
    const uint4 v = load16(from);
    x[0] = bf16_low(v.x), x[1] = bf16_high(v.x), x[2] = bf16_low(v.y), x[3] = bf16_high(v.y);
    x[4] = bf16_low(v.z), x[5] = bf16_high(v.z), x[6] = bf16_low(v.w), x[7] = bf16_high(v.w);
}

BKL_FN void store8(bf16 *to, const float x[8])
{
    uint4 v;
    v.x = bf16_pair(x[0], x[1]), v.y = bf16_pair(x[2], x[3]), v.z = bf16_pair(x[4], x[5]), v.w = bf16_pair(x[6], x[7]);
    store16(to, v);
}

static inline __host__ __device__ int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif
