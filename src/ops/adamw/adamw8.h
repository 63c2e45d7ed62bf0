/* AdamW with moments in 8 bits, as bitsandbytes holds and updates them (optim/optimizer.py, backends/cpu/ops.py): blocks of 256 numbers,
 * each a code of a dynamic map times the block's largest magnitude.
 *
 *     m = map[m8]·absmax_m        v = map'[v8]·absmax_v
 *     m ← β1·m + (1-β1)·g         v ← β2·v + (1-β2)·g²
 *     p ← p·(1 - lr·wd)           p ← p - (lr / (1-β1^t)) · m / (sqrt(v)/sqrt(1-β2^t) + eps)
 *     absmax ← max |m|, max v of the block; codes ← the nearest of m/absmax (signed map) and v/absmax (unsigned map), the lower of equals
 *
 * The vector levels round as torch does: the sums of the moments by one fused multiply-add each, blocks scaled by the reciprocal of
 * absmax, distances to codes in f32. A block of zeros has codes 0. bitsandbytes' own CPU kernel looks codes up in a table that misses the nearest here and there;
 * its generic path and its CUDA kernel take the nearest, and so does this. Codes and absmax start at 0, which reads as 0. */
#ifndef AG_ADAMW8_H
#define AG_ADAMW8_H

#include "base/status.h"
#include "ops/tensor.h"

#include <stddef.h>
#include <stdint.h>

struct ag_backend;

enum { AG_ADAMW8_BLOCK = 256, AG_ADAMW8_MIN_SIZE = 4096 /* tensors with fewer numbers keep moments in f32 */ };
static inline int64_t ag_adamw8_blocks(int64_t n) { return (n + AG_ADAMW8_BLOCK - 1) / AG_ADAMW8_BLOCK; }

typedef struct {
    ag_tensor p;                /* in and out [n] f32 */
    ag_tensor g;                /* in [n] f32 */
    uint8_t *m, *v;             /* in and out [n] */
    float *absmax_m, *absmax_v; /* in and out [ag_adamw8_blocks(n)] */
    double lr, beta1, beta2, eps, weight_decay;
    double grad_scale;          /* 1: no clipping */
    int64_t step;               /* t, counts from 1 */
} ag_adamw8_args;

/* AG_E_SHAPE where p and g differ in length; AG_E_CONFIG where step < 1 or a beta is not in [0,1). */
AG_MUST_USE ag_status ag_adamw8(const struct ag_backend *be, const ag_adamw8_args *args, ag_err *err);

#endif
