/* For <op>_use: the functions that <op>_simd.c is compiled to, chosen by level.
 *
 *     slots->fwd = ag_swiglu_fwd_ref;
 *     AG_USE_SIMD(slots->fwd, ag_swiglu_fwd, level);
 */
#ifndef AG_SIMD_LEVELS_H
#define AG_SIMD_LEVELS_H

#include "ops/cpu_level.h"

#if defined(__x86_64__)
#define AG_USE_SIMD(slot, function, level)                    \
    do {                                                      \
        if ((level) >= AG_CPU_AVX2) (slot) = function##_avx2; \
        if ((level) >= AG_CPU_AVX512) (slot) = function##_avx512; \
    } while (0)
#elif defined(__aarch64__)
#define AG_USE_SIMD(slot, function, level) \
    do {                                   \
        if ((level) == AG_CPU_NEON) (slot) = function##_neon; \
    } while (0)
#else
#define AG_USE_SIMD(slot, function, level) ((void)(level))
#endif

#endif
