#ifndef AG_ROPE_SLOTS_H
#define AG_ROPE_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/rope/rope.h"

/* Rows [t0,t1) of an op whose arguments were checked. */
typedef void ag_rope_fn(const ag_rope_args *args, int64_t t0, int64_t t1);

typedef struct {
    ag_rope_fn *rotate;
} ag_rope_slots;

void ag_rope_use(ag_rope_slots *slots, ag_cpu_level level);

ag_rope_fn ag_rope_rotate_ref, ag_rope_rotate_neon, ag_rope_rotate_avx2, ag_rope_rotate_avx512;

#endif
