#include "ops/head_ce/head_ce.h"

#include "base/arena.h"
#include "ops/backend.h"

void ag_head_ce_use(ag_head_ce_slots *slots, ag_cpu_level level)
{
    (void)level;
    *slots = (ag_head_ce_slots){.row = ag_head_ce_row_ref};
}

/* ---- the reference: rows dealt to threads ------------------------------------------------------------------------- */

typedef struct {
    float *weight_row; /* C */
    double *logits;    /* V, and C more */
} row_room;

static void place_room(row_room *room, ag_layout *layout, int64_t C, int64_t V)
{
    room->weight_row = ag_layout_place(layout, (size_t)C * sizeof(float));
    room->logits = ag_layout_place(layout, (size_t)(V + C) * sizeof(double));
}

static void run_rows(const ag_backend *be, const ag_head_ce_args *a)
{
    const int64_t M = a->x.dim[0];
    row_room rooms[256];
    ag_layout layout = {.base = be->scratch.data};
    for (int i = 0; i < be->n_threads; i++) place_room(&rooms[i], &layout, a->w->K, a->w->N);
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int i = 0; i < be->n_threads; i++)
        for (int64_t m = i; m < M; m += be->n_threads) be->head_ce.row(a, m, rooms[i].weight_row, rooms[i].logits);
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

size_t ag_head_ce_scratch_bytes(const ag_backend *be, int64_t M, int64_t C, int64_t V)
{
    (void)M;
    row_room room;
    ag_layout layout = {0};
    for (int i = 0; i < be->n_threads; i++) place_room(&room, &layout, C, V);
    return layout.bytes;
}

static ag_status check(const ag_head_ce_args *a, ag_err *err)
{
    const int64_t M = a->x.dim[0], C = a->w->K, V = a->w->N;
    if (!ag_tensor_is(a->x, AG_F32, 2, M, C))
        return ag_fail(err, AG_E_SHAPE, "head: x is [%lld,%lld], must be f32 [M,C] with C = %lld, the head's columns",
                       (long long)M, (long long)a->x.dim[1], (long long)C);
    if (!ag_tensor_is(a->targets, AG_I32, 1, M, 0) || !ag_tensor_is(a->nll, AG_F32, 1, M, 0) ||
        (a->best.data && !ag_tensor_is(a->best, AG_I32, 1, M, 0)))
        return ag_fail(err, AG_E_SHAPE, "head: targets (i32), nll (f32) and best (i32) must have %lld values, one for each row of x",
                       (long long)M);
    if (a->dx.data && !ag_tensor_is(a->dx, AG_F32, 2, M, C))
        return ag_fail(err, AG_E_SHAPE, "head: dx must have the shape of x, [%lld,%lld]", (long long)M, (long long)C);
    for (int64_t m = 0; m < M; m++) {
        const int32_t target = ((const int32_t *)a->targets.data)[m];
        if (target < 0 || target >= V)
            return ag_fail(err, AG_E_DATA, "head: the target of row %lld is %d, which is not in the vocabulary 0..%lld",
                           (long long)m, target, (long long)V - 1);
    }
    return AG_OK;
}

ag_status ag_head_ce(const ag_backend *be, const ag_head_ce_args *a, ag_err *err)
{
    AG_TRY(check(a, err));
    AG_ASSERT(ag_head_ce_scratch_bytes(be, a->x.dim[0], a->w->K, a->w->N) <= be->scratch.bytes);
    run_rows(be, a);
    return AG_OK;
}
