#ifndef AG_LINEAR_SLOTS_H
#define AG_LINEAR_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/linear/linear.h"

/* Outputs [n0,n1) of weight i for all tokens; columns [k0,k1) of dx for all tokens. Arguments were checked. */
typedef void ag_linear_fwd_fn(const ag_linear_fwd_args *args, int i, int64_t n0, int64_t n1);
typedef void ag_linear_bwd_fn(const ag_linear_bwd_args *args, int64_t k0, int64_t k1);

struct ag_linear_kernel;

typedef struct {
    ag_linear_fwd_fn *fwd;                    /* the reference, which needs no scratch */
    ag_linear_bwd_fn *bwd;
    const struct ag_linear_kernel *kernel[2]; /* by ag_compute (linear_kernel.h); NULL: the reference does it */
} ag_linear_slots;

void ag_linear_use(ag_linear_slots *slots, ag_cpu_level level);

ag_linear_fwd_fn ag_linear_fwd_ref;
ag_linear_bwd_fn ag_linear_bwd_ref;

#endif
