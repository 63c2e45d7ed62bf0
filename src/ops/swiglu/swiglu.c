#include "ops/swiglu/swiglu.h"

#include "ops/backend.h"
#include "ops/profile.h"
#include "ops/simd_levels.h"

/* Elements a thread takes at a time: a multiple of every vector's lanes, enough work to hide the hand-over. */
enum { ELEMENTS_PER_BLOCK = 8192 };

void ag_swiglu_use(ag_swiglu_slots *slots, ag_cpu_level level)
{
    *slots = (ag_swiglu_slots){.fwd = ag_swiglu_fwd_ref, .bwd = ag_swiglu_bwd_ref};
    AG_USE_SIMD(slots->fwd, ag_swiglu_fwd, level);
    AG_USE_SIMD(slots->bwd, ag_swiglu_bwd, level);
}

static ag_status check(ag_tensor gate, ag_tensor other, const char *other_name, ag_err *err)
{
    if (!ag_tensor_is(gate, AG_F32, 2, gate.dim[0], gate.dim[1]))
        return ag_fail(err, AG_E_SHAPE, "swiglu: gate must be a [T,F] f32 matrix");
    if (!ag_tensor_is(other, AG_F32, 2, gate.dim[0], gate.dim[1]))
        return ag_fail(err, AG_E_SHAPE, "swiglu: %s is [%lld,%lld], gate is [%lld,%lld]; they must be f32 of the same shape",
                       other_name, (long long)other.dim[0], (long long)other.dim[1], (long long)gate.dim[0],
                       (long long)gate.dim[1]);
    return AG_OK;
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

ag_status ag_swiglu_fwd(const ag_backend *be, const ag_swiglu_fwd_args *a, ag_err *err)
{
    AG_TRY(check(a->gate, a->up, "up", err));
    AG_TRY(check(a->gate, a->y, "y", err));
    const int64_t n = a->gate.dim[0] * a->gate.dim[1];
    AG_PROFILE(be, AG_PROFILE_SWIGLU_FWD, 5.0 * (double)n, 12.0 * (double)n);
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t i = 0; i < n; i += ELEMENTS_PER_BLOCK)
        be->swiglu.fwd(a, i, min64(i + ELEMENTS_PER_BLOCK, n));
    return AG_OK;
}

ag_status ag_swiglu_bwd(const ag_backend *be, const ag_swiglu_bwd_args *a, ag_err *err)
{
    AG_TRY(check(a->gate, a->up, "up", err));
    AG_TRY(check(a->gate, a->dy, "dy", err));
    AG_TRY(check(a->gate, a->dgate, "dgate", err));
    AG_TRY(check(a->gate, a->dup, "dup", err));
    const int64_t n = a->gate.dim[0] * a->gate.dim[1];
    AG_PROFILE(be, AG_PROFILE_SWIGLU_BWD, 11.0 * (double)n, 20.0 * (double)n);
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t i = 0; i < n; i += ELEMENTS_PER_BLOCK)
        be->swiglu.bwd(a, i, min64(i + ELEMENTS_PER_BLOCK, n));
    return AG_OK;
}
