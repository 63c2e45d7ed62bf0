#include "ops/adamw/adamw8.h"

#include "ops/adamw/adamw_slots.h"
#include "ops/backend.h"
#include "ops/weight/weight.h"

#include <math.h>
#include <pthread.h>

static ag_adamw8_maps maps;
static pthread_once_t maps_once = PTHREAD_ONCE_INIT;

/* Codes above bound i are i+1 at least: the midpoints of neighbours, in f32. */
static void make_bounds(float *bounds, const float *map)
{
    for (int i = 0; i + 1 < 256; i++) bounds[i] = (map[i] + map[i + 1]) / 2;
    bounds[255] = INFINITY;
}

static void make_maps(void)
{
    maps.m = ag_dynamic_map_signed();
    maps.v = ag_dynamic_map_unsigned();
    make_bounds(maps.m_bounds, maps.m);
    make_bounds(maps.v_bounds, maps.v);
}

ag_status ag_adamw8(const ag_backend *be, const ag_adamw8_args *a, ag_err *err)
{
    const int64_t n = a->p.dim[0];
    if (!ag_tensor_is(a->p, AG_F32, 1, n, 0) || !ag_tensor_is(a->g, AG_F32, 1, n, 0))
        return ag_fail(err, AG_E_SHAPE, "adamw8: p and g must be f32 vectors of one length");
    ag_adamw_coefficients c;
    AG_TRY(ag_adamw_make_coefficients(&c, a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, a->grad_scale, a->step, err));
    pthread_once(&maps_once, make_maps);
    float *p = a->p.data;
    const float *g = a->g.data;
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t b = 0; b < ag_adamw8_blocks(n); b++) {
        const int64_t at = b * AG_ADAMW8_BLOCK, n_here = n - at < AG_ADAMW8_BLOCK ? n - at : AG_ADAMW8_BLOCK;
        be->adamw.step8(&(ag_adamw8_block){.p = p + at, .g = g + at, .m = a->m + at, .v = a->v + at, .absmax_m = a->absmax_m + b,
                                           .absmax_v = a->absmax_v + b, .n = n_here}, &c, &maps);
    }
    return AG_OK;
}
