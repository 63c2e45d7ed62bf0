/* A square of VF_LANES × VF_LANES floats in registers, transposed or summed: log2(VF_LANES) rounds, each of which swaps the
 * off-diagonal halves of ever smaller squares (Eklundh 1972). For files that are compiled for a level, as simd.h. */
#ifndef AG_SIMD_TRANSPOSE_H
#define AG_SIMD_TRANSPOSE_H

#include "ops/simd.h"

/* Lane l of the pair's first and second result, when squares of side s swap. */
#define AG_SWAP_A(l, s) (((l) & (s)) ? VF_LANES + (l) - (s) : (l))
#define AG_SWAP_B(l, s) (((l) & (s)) ? VF_LANES + (l) : (l) + (s))
#if defined(AG_SIMD_AVX512)
#define AG_SWAP_LANES(swap, s)                                                                                               \
    swap(0, s), swap(1, s), swap(2, s), swap(3, s), swap(4, s), swap(5, s), swap(6, s), swap(7, s), swap(8, s), swap(9, s), \
        swap(10, s), swap(11, s), swap(12, s), swap(13, s), swap(14, s), swap(15, s)
#elif defined(AG_SIMD_AVX2)
#define AG_SWAP_LANES(swap, s) swap(0, s), swap(1, s), swap(2, s), swap(3, s), swap(4, s), swap(5, s), swap(6, s), swap(7, s)
#else
#define AG_SWAP_LANES(swap, s) swap(0, s), swap(1, s), swap(2, s), swap(3, s)
#endif

#define AG_SWAP_ROUND(r, s)                                                                          \
    _Pragma("GCC unroll 16") for (int i_ = 0; i_ < VF_LANES; i_++) if (!(i_ & (s)))                  \
    {                                                                                                \
        const vf a_ = (r)[i_], b_ = (r)[i_ + (s)];                                                   \
        (r)[i_] = __builtin_shufflevector(a_, b_, AG_SWAP_LANES(AG_SWAP_A, s));                      \
        (r)[i_ + (s)] = __builtin_shufflevector(a_, b_, AG_SWAP_LANES(AG_SWAP_B, s));                \
    }

static inline __attribute__((always_inline)) void vf_transpose(vf r[VF_LANES])
{
#if defined(AG_SIMD_AVX512)
    AG_SWAP_ROUND(r, 8)
#endif
#if defined(AG_SIMD_AVX512) || defined(AG_SIMD_AVX2)
    AG_SWAP_ROUND(r, 4)
#endif
    AG_SWAP_ROUND(r, 2)
    AG_SWAP_ROUND(r, 1)
}

/* The sums of the rows, row i's in lane i: the same rounds, halving the number of rows each. Destroys r. */
#define AG_SUM_ROUND(r, s)                                                                                              \
    _Pragma("GCC unroll 8") for (int i_ = 0; i_ < (s); i_++)                                                            \
    {                                                                                                                   \
        const vf a_ = (r)[i_], b_ = (r)[i_ + (s)];                                                                      \
        (r)[i_] = __builtin_shufflevector(a_, b_, AG_SWAP_LANES(AG_SWAP_A, s)) +                                        \
                  __builtin_shufflevector(a_, b_, AG_SWAP_LANES(AG_SWAP_B, s));                                         \
    }

static inline __attribute__((always_inline)) vf vf_sum_rows(vf r[VF_LANES])
{
#if defined(AG_SIMD_AVX512)
    AG_SUM_ROUND(r, 8)
#endif
#if defined(AG_SIMD_AVX512) || defined(AG_SIMD_AVX2)
    AG_SUM_ROUND(r, 4)
#endif
    AG_SUM_ROUND(r, 2)
    AG_SUM_ROUND(r, 1)
    return r[0];
}

#endif
