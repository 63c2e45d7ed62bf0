#ifndef AG_RMSNORM_SLOTS_H
#define AG_RMSNORM_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/rmsnorm/rmsnorm.h"

/* Rows [t0,t1) of an op whose arguments were checked. */
typedef void ag_rmsnorm_fwd_fn(const ag_rmsnorm_fwd_args *args, int64_t t0, int64_t t1);
typedef void ag_rmsnorm_bwd_fn(const ag_rmsnorm_bwd_args *args, int64_t t0, int64_t t1);

typedef struct {
    ag_rmsnorm_fwd_fn *fwd;
    ag_rmsnorm_bwd_fn *bwd;
} ag_rmsnorm_slots;

void ag_rmsnorm_use(ag_rmsnorm_slots *slots, ag_cpu_level level);

ag_rmsnorm_fwd_fn ag_rmsnorm_fwd_ref, ag_rmsnorm_fwd_neon, ag_rmsnorm_fwd_avx2, ag_rmsnorm_fwd_avx512;
ag_rmsnorm_bwd_fn ag_rmsnorm_bwd_ref, ag_rmsnorm_bwd_neon, ag_rmsnorm_bwd_avx2, ag_rmsnorm_bwd_avx512;

#endif
