/* Dropout's decisions for a row of a panel, in vectors: a factor for each element, 0 or the scale. For files named for a level. */
#ifndef AG_DROPOUT_FACTORS_H
#define AG_DROPOUT_FACTORS_H

#include "ops/lora/dropout_hash.h"
#include "ops/simd.h"

/* Factors of 32 elements whose first has `counter` (a multiple of 16). */
static inline void dropout_factors_of_group(float *factor, const dropout_plan *d, uint64_t counter, uint64_t words)
{
    vu steps;
    for (int l = 0; l < VF_LANES; l++) steps[l] = (uint32_t)l * DROPOUT_STEP;
    const vi drop = (vi){0} + (int32_t)d->drop, scale = (vi)vf_set1(d->scale);
#pragma GCC unroll 4
    for (int part = 0; part < 16; part += VF_LANES) {
        vu x = steps + (((uint32_t)counter + (uint32_t)part) * DROPOUT_STEP + (uint32_t)words);
        x = (x ^ x >> 16) * DROPOUT_MIX1;
        x = ((x ^ x >> 15) + (uint32_t)(words >> 32)) * DROPOUT_MIX2;
        x = x ^ x >> 15;
        vf_store(factor + part, (vf)(((vi)(x & 0xffffu) >= drop) & scale));
        vf_store(factor + part + 16, (vf)(((vi)(x >> 16) >= drop) & scale));
    }
}

/* Factors of n elements from `index`; n a multiple of 32. */
static inline void dropout_factors(float *factor, const dropout_plan *d, uint64_t index, int n)
{
    uint64_t counter = index / 32 * 16;
    const uint64_t words = dropout_key_words(d, (uint32_t)(counter >> 32));
    if (index % 32 == 0 && (uint32_t)counter <= UINT32_MAX - (uint32_t)n) {
        for (int i = 0; i < n; i += 32, counter += 16) dropout_factors_of_group(factor + i, d, counter, words);
        return;
    }
    for (int i = 0; i < n; i++) factor[i] = dropout_keeps(d, index + (uint64_t)i) ? d->scale : 0;
}

#endif
