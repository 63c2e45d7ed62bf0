#ifndef AG_SWIGLU_SLOTS_H
#define AG_SWIGLU_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/swiglu/swiglu.h"

/* Elements [i0,i1) of an op whose arguments were checked: every element stands alone. */
typedef void ag_swiglu_fwd_fn(const ag_swiglu_fwd_args *args, int64_t i0, int64_t i1);
typedef void ag_swiglu_bwd_fn(const ag_swiglu_bwd_args *args, int64_t i0, int64_t i1);

typedef struct {
    ag_swiglu_fwd_fn *fwd;
    ag_swiglu_bwd_fn *bwd;
} ag_swiglu_slots;

void ag_swiglu_use(ag_swiglu_slots *slots, ag_cpu_level level);

ag_swiglu_fwd_fn ag_swiglu_fwd_ref, ag_swiglu_fwd_neon, ag_swiglu_fwd_avx2, ag_swiglu_fwd_avx512;
ag_swiglu_bwd_fn ag_swiglu_bwd_ref, ag_swiglu_bwd_neon, ag_swiglu_bwd_avx2, ag_swiglu_bwd_avx512;

#endif
