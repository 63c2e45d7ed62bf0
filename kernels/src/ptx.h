/* The device's side of device.h: each wrapper is one PTX instruction (or a few). emu/emu.h has the same list in software. */
#ifndef BKL_PTX_H
#define BKL_PTX_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#define BKL_FN static __device__ __forceinline__
#define BKL_SHARED(type, name, extent) __shared__ __align__(16) type name extent
#define BKL_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define BKL_TABLE(type, name, extent) static __constant__ const type name extent
#define BKL_UNROLL _Pragma("unroll")

/* A launch, with leave for more dynamic shared memory than 48 KiB where it wants it. */
#define BKL_LAUNCH(stream, kernel, grid, threads, shared_bytes, ...)                                                        \
    ([&]() -> bkl_status {                                                                                                  \
        if ((shared_bytes) > 48 * 1024)                                                                                     \
            cudaFuncSetAttribute((const void *)(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(shared_bytes)); \
        (kernel)<<<(grid), (threads), (shared_bytes), (cudaStream_t)bkl_stream_native(stream)>>>(__VA_ARGS__);              \
        return bkl_launched(stream, #kernel);                                                                               \
    }())

/* ---- numbers ------------------------------------------------------------------------------------------------------------ */
BKL_FN bf16 f32_to_bf16(float x)
{
    uint16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
/* low in the low half: the order in memory */
BKL_FN uint32_t bf16_pair(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* a·b + c rounded twice, as a CPU without fused instructions has it */
BKL_FN float mul_add_unfused(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

BKL_FN int bits_set(uint32_t x) { return __popc(x); }

/* A value that the compiler must not compute earlier. */
BKL_FN int64_t opaque(int64_t x)
{
    asm volatile("" : "+l"(x));
    return x;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------- */
BKL_FN uint4 load16(const void *from) { return *(const uint4 *)from; }
BKL_FN void store16(void *to, uint4 value) { *(uint4 *)to = value; }
BKL_FN uint32_t load4(const void *from) { return *(const uint32_t *)from; }
BKL_FN void store4(void *to, uint32_t value) { *(uint32_t *)to = value; }

BKL_FN uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* 16 bytes from global to shared memory, in the background; n_valid bytes (0..16) are read and the rest is zero. */
BKL_FN void copy16_async(void *shared, const void *global, int n_valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(n_valid)
                 : "memory");
}
BKL_FN void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until at most n of the newest groups are on their way. */
template <int n> BKL_FN void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory"); }

BKL_FN float atomic_add(float *p, float x) { return atomicAdd(p, x); }
BKL_FN int atomic_add(int *p, int x) { return atomicAdd(p, x); }
BKL_FN uint64_t atomic_add(uint64_t *p, uint64_t x) { return atomicAdd((unsigned long long *)p, (unsigned long long)x); }
BKL_FN int atomic_max(int *p, int x) { return atomicMax(p, x); }

/* ---- a warp ------------------------------------------------------------------------------------------------------------- */
BKL_FN float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
BKL_FN int shuffle_xor(int x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
BKL_FN float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
BKL_FN int shuffle(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
BKL_FN uint32_t vote_ballot(bool x) { return __ballot_sync(0xffffffffu, x); }
BKL_FN bool vote_any(bool x) { return __any_sync(0xffffffffu, x); }
BKL_FN bool vote_all(bool x) { return __all_sync(0xffffffffu, x); }

/* ---- matrices ----------------------------------------------------------------------------------------------------------- */
/* Four 8×8 matrices of 16-bit values; lane l gives the address of row l%8 of matrix l/8 and gets of matrix i the pair
 * (row l/4, columns 2(l%4) and +1) in r[i]; transposed: (rows 2(l%4) and +1, column l/4). */
BKL_FN void load_matrices(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
BKL_FN void load_matrices_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

/* c[16,8] += a[16,16]·b[16,8], bf16 times bf16 into f32. With g = lane/4, t = lane%4:
 * a[0] (row g, columns 2t..), a[1] (row g+8), a[2] (row g, columns 2t+8..), a[3] (row g+8, columns 2t+8..);
 * b0 (rows 2t.., column g), b1 (rows 2t+8.., column g); c[0..1] (row g, columns 2t..), c[2..3] (row g+8). */
BKL_FN void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same of 8-bit (e4m3) operands, c[16,8] += a[16,32]·b[32,8]: four neighbours where bf16 has two. sm_120a alone. */
BKL_FN void mma_fp8(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
#ifdef __CUDA_ARCH_FEAT_SM120_ALL
    asm volatile(
        "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    (void)c, (void)a, (void)b0, (void)b1;
    __trap();
#endif
}

/* And of 4-bit (e2m1) operands with a scale (e4m3) for 16 neighbours, c[16,8] += a[16,64]·b[64,8]. a_scales: the row's four, of
 * row g in even lanes and of row g+8 in odd ones; b_scales: column g's four. sm_120a alone. */
BKL_FN void mma_nvfp4(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, uint32_t a_scales, uint32_t b_scales)
{
#ifdef __CUDA_ARCH_FEAT_SM120_ALL
    const uint16_t zero = 0;
    asm volatile("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%12,%12}, {%11}, {%12,%12};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(a_scales), "r"(b_scales), "h"(zero));
#else
    (void)c, (void)a, (void)b0, (void)b1, (void)a_scales, (void)b_scales;
    __trap();
#endif
}

#endif
