/* LoRA's dropout on the device, bit for bit the mask of agoge's ops/lora/dropout_hash.h. */
#ifndef BKL_DROPOUT_H
#define BKL_DROPOUT_H

#include "device.h"

BKL_FN bool dropout_keeps(const bkl_dropout *d, int64_t index)
{
    const uint32_t counter = (uint32_t)((uint64_t)index / 32 * 16 + (uint64_t)index % 16);
    uint32_t x = counter * 0x9e3779b1u + (uint32_t)d->words;
    x = (x ^ x >> 16) * 0x21f0aaadu;
    x = ((x ^ x >> 15) + (uint32_t)(d->words >> 32)) * 0xd35a2d97u;
    x ^= x >> 15;
    return (index % 32 < 16 ? x & 0xffffu : x >> 16) >= d->drop;
}

BKL_FN uint32_t dropout_pair(const bkl_dropout *d, int64_t index, uint32_t pair)
{
    return bf16_pair(dropout_keeps(d, index) ? bf16_low(pair) * d->scale : 0,
                     dropout_keeps(d, index + 1) ? bf16_high(pair) * d->scale : 0);
}

/* Eight neighbours from `index` on. */
BKL_FN uint4 dropout8(const bkl_dropout *d, int64_t index, uint4 v)
{
    v.x = dropout_pair(d, index, v.x), v.y = dropout_pair(d, index + 2, v.y), v.z = dropout_pair(d, index + 4, v.z),
    v.w = dropout_pair(d, index + 6, v.w);
    return v;
}

#endif
