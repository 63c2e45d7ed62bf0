/* The bits behind a dropout mask: a counter goes through a keyed 32-bit mixer, and one hash decides two elements.
 *
 *     element index i, group g = i / 32, place j = i mod 32
 *     counter = 16·g + (j mod 16)       hash = mix(counter's low word, key words of (key, site, counter's high word))
 *     the element's 16 bits are the low half of the hash for j < 16, the high half for j ≥ 16; kept if bits ≥ drop
 *
 * So sixteen lanes hash sixteen counters and have the decisions of 32 neighbouring elements without moving a lane. The mixer: the
 * counter times an odd number near 2^32 divided by the golden ratio, plus a key word (in vectors an addition, because counters are
 * consecutive); then two rounds of shift and multiply whose constants are from C. Wellons' search for low bias, a second key word
 * in between, so that sites differ by more than a shift of one sequence. Without the first multiplication elements a row apart
 * are visibly correlated, whatever the two rounds are. */
#ifndef AG_DROPOUT_HASH_H
#define AG_DROPOUT_HASH_H

#include "ops/lora/lora.h"

#define DROPOUT_STEP 0x9e3779b1u
#define DROPOUT_MIX1 0x21f0aaadu
#define DROPOUT_MIX2 0xd35a2d97u

typedef struct {
    uint32_t drop;        /* elements whose 16 bits are below are dropped; 0: no dropout */
    float scale;
    uint64_t key, site;
} dropout_plan;

static inline dropout_plan dropout_plan_make(const ag_dropout *d)
{
    uint32_t drop = (uint32_t)((double)d->p * 65536 + 0.5);
    if (drop > 65535) drop = 65535;
    return (dropout_plan){drop, (float)(65536.0 / (65536 - drop)), d->key, d->site};
}

/* The finalizer of splitmix64 (Stafford's variant 13). */
static inline uint64_t mix64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Two key words, the first in the low half. */
static inline uint64_t dropout_key_words(const dropout_plan *d, uint32_t counter_high)
{
    const uint64_t odd = 0x9e3779b97f4a7c15u; /* splitmix64's increment: keeps key 0, site 0 from hashing to 0 */
    return mix64(mix64(mix64(d->key + odd) + d->site + odd) + counter_high);
}

static inline uint32_t dropout_mix(uint32_t counter, uint64_t words)
{
    uint32_t x = counter * DROPOUT_STEP + (uint32_t)words;
    x = (x ^ x >> 16) * DROPOUT_MIX1;
    x = ((x ^ x >> 15) + (uint32_t)(words >> 32)) * DROPOUT_MIX2;
    return x ^ x >> 15;
}

static inline bool dropout_keeps(const dropout_plan *d, uint64_t index)
{
    const uint64_t counter = index / 32 * 16 + index % 16;
    const uint32_t hash = dropout_mix((uint32_t)counter, dropout_key_words(d, (uint32_t)(counter >> 32)));
    return (index % 32 < 16 ? hash & 0xffff : hash >> 16) >= d->drop;
}

#endif
