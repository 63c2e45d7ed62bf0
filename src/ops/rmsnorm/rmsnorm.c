#include "ops/rmsnorm/rmsnorm.h"

#include "ops/backend.h"
#include "ops/profile.h"
#include "ops/simd_levels.h"

/* Rows a thread takes at a time: enough work to hide the hand-over, few enough to balance. */
enum { ROWS_PER_BLOCK = 16 };

void ag_rmsnorm_use(ag_rmsnorm_slots *slots, ag_cpu_level level)
{
    *slots = (ag_rmsnorm_slots){.fwd = ag_rmsnorm_fwd_ref, .bwd = ag_rmsnorm_bwd_ref};
    AG_USE_SIMD(slots->fwd, ag_rmsnorm_fwd, level);
    AG_USE_SIMD(slots->bwd, ag_rmsnorm_bwd, level);
}

static ag_status check(ag_tensor x, ag_tensor w, ag_tensor r, ag_tensor other, const char *other_name, ag_err *err)
{
    int64_t T = x.dim[0], C = x.dim[1];
    if (!ag_tensor_is(x, AG_F32, 2, T, C) || C < 1)
        return ag_fail(err, AG_E_SHAPE, "rmsnorm: x must be a [T,C] f32 matrix");
    if (!ag_tensor_is(w, AG_F32, 1, C, 0))
        return ag_fail(err, AG_E_SHAPE, "rmsnorm: w has %lld values, x has %lld columns", (long long)w.dim[0], (long long)C);
    if (!ag_tensor_is(r, AG_F32, 1, T, 0))
        return ag_fail(err, AG_E_SHAPE, "rmsnorm: r has %lld values, x has %lld rows", (long long)r.dim[0], (long long)T);
    if (!ag_tensor_is(other, AG_F32, 2, T, C))
        return ag_fail(err, AG_E_SHAPE, "rmsnorm: %s must have the shape of x", other_name);
    return AG_OK;
}

ag_status ag_rmsnorm_fwd(const ag_backend *be, const ag_rmsnorm_fwd_args *a, ag_err *err)
{
    AG_TRY(check(a->x, a->w, a->r, a->y, "y", err));
    int64_t T = a->x.dim[0];
    AG_PROFILE(be, AG_PROFILE_RMSNORM_FWD, 4.0 * (double)(T * a->x.dim[1]), 8.0 * (double)(T * a->x.dim[1]));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t t = 0; t < T; t += ROWS_PER_BLOCK)
        be->rmsnorm.fwd(a, t, t + ROWS_PER_BLOCK < T ? t + ROWS_PER_BLOCK : T);
    return AG_OK;
}

ag_status ag_rmsnorm_bwd(const ag_backend *be, const ag_rmsnorm_bwd_args *a, ag_err *err)
{
    AG_TRY(check(a->x, a->w, a->r, a->dy, "dy", err));
    AG_TRY(check(a->x, a->w, a->r, a->dx, "dx", err));
    int64_t T = a->x.dim[0];
    AG_PROFILE(be, AG_PROFILE_RMSNORM_BWD, 10.0 * (double)(T * a->x.dim[1]), 16.0 * (double)(T * a->x.dim[1]));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t t = 0; t < T; t += ROWS_PER_BLOCK)
        be->rmsnorm.bwd(a, t, t + ROWS_PER_BLOCK < T ? t + ROWS_PER_BLOCK : T);
    return AG_OK;
}
