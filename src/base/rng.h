/* Random numbers that can be repeated to the bit.
 *
 * Philox 4x32-10 (Salmon et al. 2011): counter-based, so any number of a stream is computed from its address alone. (Dropout
 * works the same way with a cheaper mixer: ops/lora/dropout_hash.h.)
 *
 * MT19937 as torch's CPU generator runs it: seeding, randperm and uniform as torch does them, so that the same seed gives
 * HF Trainer's data order and PEFT's initial weights; the state is saved as torch saves it. */
#ifndef AG_RNG_H
#define AG_RNG_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t word[4];
} ag_philox4;
ag_philox4 ag_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

enum { AG_MT19937_WORDS = 624, AG_MT19937_SAVED_BYTES = 5056 };
typedef struct {
    uint64_t seed;      /* what manual_seed was given */
    uint32_t state[AG_MT19937_WORDS];
    int32_t left, next; /* torch's own bookkeeping: words left before the next twist, index of the next word */
    int32_t has_normal, has_float_normal; /* cached second normals of torch's Box-Muller, kept so that a state read from */
    double cached_normal;                 /* torch is written back whole; we draw no normals ourselves */
    float cached_float_normal;
} ag_mt19937;
void ag_mt19937_seed(ag_mt19937 *mt, uint64_t seed); /* torch.manual_seed */
uint32_t ag_mt19937_u32(ag_mt19937 *mt);
uint64_t ag_mt19937_u64(ag_mt19937 *mt);             /* torch's random64: two words, first one high */
/* [0,1), 24 bits, as torch's uniform_real_distribution<float>; tensor.uniform_(a, b) is value*(b-a)+a, all in float. */
float ag_mt19937_uniform_f32(ag_mt19937 *mt);
void ag_mt19937_randperm(ag_mt19937 *mt, int64_t *out, int64_t n); /* torch.randperm(n, generator=…) on the CPU */

/* The state as torch.get_rng_state() gives it (little-endian), and back. Loading refuses what no generator of torch could
 * have saved; the sentence does not know the file's name, put it in front with ag_err_prefix. */
void ag_mt19937_save(const ag_mt19937 *mt, unsigned char out[AG_MT19937_SAVED_BYTES]);
AG_MUST_USE ag_status ag_mt19937_load(ag_mt19937 *mt, const unsigned char *bytes, size_t n, ag_err *err);

#endif
