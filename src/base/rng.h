/* Random numbers that can be repeated to the bit.
 *
 * Philox 4x32-10 (Salmon et al. 2011): counter-based, so any element's number is computed from its address alone. Dropout
 * uses it: the same (seed, step, micro-batch, layer, site, element) gives the same decision in forward, in recomputation,
 * after a resume and for any number of threads.
 *
 * MT19937 as torch's CPU generator runs it: seeding, randperm and uniform as torch does them, so that the same seed gives
 * HF Trainer's data order and PEFT's initial weights; the state is saved as torch saves it. */
#ifndef AG_RNG_H
#define AG_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t word[4];
} ag_philox4;
ag_philox4 ag_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

typedef struct {
    uint64_t seed;      /* what manual_seed was given */
    uint32_t state[624];
    int32_t left, next; /* torch's own bookkeeping: words left before the next twist, index of the next word */
    int32_t has_normal; /* a cached second normal, as torch keeps it */
    double cached_normal;
} ag_mt19937;
void ag_mt19937_seed(ag_mt19937 *mt, uint64_t seed); /* torch.manual_seed */
uint32_t ag_mt19937_u32(ag_mt19937 *mt);
uint64_t ag_mt19937_u64(ag_mt19937 *mt);             /* torch's random64: two words, first one high */
float ag_mt19937_uniform_f32(ag_mt19937 *mt);        /* [0,1), 24 bits, as torch's uniform_real_distribution<float> */
void ag_mt19937_randperm(ag_mt19937 *mt, int64_t *out, int64_t n); /* torch.randperm(n, generator=…) on the CPU */

#endif
