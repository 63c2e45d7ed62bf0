#include "ops/rope/rope.h"

#include "ops/backend.h"
#include "ops/profile.h"
#include "ops/simd_levels.h"

#include <math.h>

/* Rows a thread takes at a time: enough work to hide the hand-over, few enough to balance. */
enum { ROWS_PER_BLOCK = 16 };

void ag_rope_use(ag_rope_slots *slots, ag_cpu_level level)
{
    *slots = (ag_rope_slots){.rotate = ag_rope_rotate_ref};
    AG_USE_SIMD(slots->rotate, ag_rope_rotate, level);
}

static ag_status check(const ag_rope_args *a, ag_err *err)
{
    int64_t T = a->x.dim[0], H = a->x.dim[1], D = a->x.dim[2];
    if (!ag_tensor_is_cube(a->x, T, H, D) || T < 0 || H < 1 || D < 2 || D % 2)
        return ag_fail(err, AG_E_SHAPE, "rope: x must be a [T,H,D] f32 tensor with an even D");
    if (a->n_rotated < 0 || a->n_rotated > D || a->n_rotated % 2)
        return ag_fail(err, AG_E_SHAPE, "rope: %lld dimensions of a head of %lld cannot rotate; an even number can", (long long)a->n_rotated,
                       (long long)D);
    if (!ag_tensor_is(a->positions, AG_I32, 1, T, 0))
        return ag_fail(err, AG_E_SHAPE, "rope: positions must be %lld i32 values, one for each row of x", (long long)T);
    if (!a->cos || !a->sin) return ag_fail(err, AG_E_SHAPE, "rope: there is no table of cos and sin");
    const int32_t *p = a->positions.data;
    for (int64_t t = 0; t < T; t++)
        if (p[t] < 0 || p[t] >= a->n_positions)
            return ag_fail(err, AG_E_DATA, "rope: row %lld has position %d, the table has positions 0 to %lld", (long long)t, p[t],
                           (long long)a->n_positions - 1);
    return AG_OK;
}

ag_status ag_rope(const ag_backend *be, const ag_rope_args *a, ag_err *err)
{
    AG_TRY(check(a, err));
    int64_t T = a->x.dim[0];
    AG_PROFILE(be, AG_PROFILE_ROPE, 3.0 * (double)(T * a->x.dim[1] * a->x.dim[2]), 8.0 * (double)(T * a->x.dim[1] * a->x.dim[2]));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t t = 0; t < T; t += ROWS_PER_BLOCK)
        be->rope.rotate(a, t, t + ROWS_PER_BLOCK < T ? t + ROWS_PER_BLOCK : T);
    return AG_OK;
}

void ag_rope_table(float *cos_out, float *sin_out, const double *freq, int64_t n_positions, int64_t D, double mscale)
{
    for (int64_t p = 0; p < n_positions; p++)
        for (int64_t i = 0; i < D / 2; i++) {
            cos_out[p * (D / 2) + i] = (float)(mscale * cos((double)p * freq[i]));
            sin_out[p * (D / 2) + i] = (float)(mscale * sin((double)p * freq[i]));
        }
}
