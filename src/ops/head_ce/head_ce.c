#include "ops/head_ce/head_ce.h"

#include "base/arena.h"
#include "base/num.h"
#include "ops/backend.h"
#include "ops/profile.h"
#include "ops/simd_levels.h"

#include <math.h>

/* A block of logits is BLOCK_ROWS by BLOCK_IDS at most. More ids a block: fewer passes over dx, a longer product for backward;
 * fewer: logits that stay in a nearer cache between the product that makes them and the one that uses them. */
enum { BLOCK_ROWS = 1024, BLOCK_IDS = 2048 };

void ag_head_ce_use(ag_head_ce_slots *slots, ag_cpu_level level)
{
    *slots = (ag_head_ce_slots){.row = ag_head_ce_row_ref};
    AG_USE_SIMD(slots->block, ag_head_ce_block, level);
    AG_USE_SIMD(slots->finish, ag_head_ce_finish, level);
    if (slots->block) slots->row = NULL;
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

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

/* ---- the vector levels: blocks of rows, blocks of the vocabulary -------------------------------------------------- */

typedef struct {
    ag_head_ce_row *rows; /* BLOCK_ROWS */
    float *logits;        /* BLOCK_ROWS × BLOCK_IDS */
    float *weight_rows;   /* n_threads × C */
    void *linear;         /* the rest, for the products */
    size_t linear_bytes;
} block_room;

static void place_block_room(block_room *room, ag_layout *layout, const ag_backend *be, int64_t M, int64_t C, int64_t V)
{
    const int64_t n_rows = min64(M, BLOCK_ROWS), n_ids = min64(V, BLOCK_IDS);
    room->rows = ag_layout_place(layout, (size_t)n_rows * sizeof(ag_head_ce_row));
    room->logits = ag_layout_place(layout, (size_t)(n_rows * n_ids) * sizeof(float));
    room->weight_rows = ag_layout_place(layout, (size_t)(be->n_threads * C) * sizeof(float));
    room->linear_bytes = ag_linear_scratch_bytes(be, n_rows, C, n_ids);
    room->linear = ag_layout_place(layout, room->linear_bytes);
}

/* Logits of ids [v0,v0+n), their share of the rows' sums, and of dx, which is not yet divided by them. */
static ag_status run_block(const ag_backend *be, const ag_backend *inner, const ag_head_ce_args *a, const block_room *room,
                           int64_t m0, int64_t n_rows, int64_t v0, int64_t n, ag_err *err)
{
    const int64_t C = a->w->K;
    const ag_weight w = ag_weight_rows(a->w, v0, v0 + n);
    const ag_tensor logits = ag_mat_f32(room->logits, n_rows, n);
    const int32_t *targets = (const int32_t *)a->targets.data + m0;
    float *dx = a->dx.data ? (float *)a->dx.data + m0 * C : NULL;
    AG_TRY(ag_linear_fwd(inner, &(ag_linear_fwd_args){
        .y = {logits}, .w = {&w}, .n = 1, .scale = a->logit_scale, .x = ag_mat_f32((float *)a->x.data + m0 * C, n_rows, C),
        .compute = a->compute}, err));
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t m = 0; m < n_rows; m++)
        be->head_ce.block(&room->rows[m], room->logits + m * n, v0, n, targets[m], a->best.data != NULL, dx ? dx + m * C : NULL, C,
                          a->softcap);
    if (!dx) return AG_OK;
    return ag_linear_bwd(inner, &(ag_linear_bwd_args){
        .dx = ag_mat_f32(dx, n_rows, C), .dy = {logits}, .w = {&w}, .n = 1, .accumulate = v0 > 0, .scale = 1,
        .compute = a->compute}, err);
}

static void finish_row(const ag_backend *be, const ag_head_ce_args *a, int64_t m, const ag_head_ce_row *row, float *weight_row)
{
    const int64_t C = a->w->K;
    const double all = row->others + exp((double)row->target_logit - row->largest);
    ((float *)a->nll.data)[m] = (float)(log(all) + row->largest - row->target_logit);
    if (a->best.data) ((int32_t *)a->best.data)[m] = row->best;
    if (!a->dx.data) return;
    const double scale = (double)a->dloss * a->logit_scale / all;
    ag_weight_row(weight_row, a->w, ((const int32_t *)a->targets.data)[m], 0, C);
    if (a->compute == AG_COMPUTE_BF16)
        for (int64_t c = 0; c < C; c++) weight_row[c] = ag_round_bf16(weight_row[c]);
    const double t = a->softcap > 0 ? (double)row->target_logit / (double)a->softcap : 0;
    be->head_ce.finish((float *)a->dx.data + m * C, (float)scale, (float)(-scale * row->others * (1 - t * t)), weight_row, C);
}

static ag_status run_blocks(const ag_backend *be, const ag_head_ce_args *a, ag_err *err)
{
    const int64_t M = a->x.dim[0], C = a->w->K, V = a->w->N;
    const int n_threads = be->n_threads;
    block_room room;
    ag_layout layout = {.base = be->scratch.data};
    place_block_room(&room, &layout, be, M, C, V);
    ag_backend inner = *be;
    inner.scratch.data = room.linear;
    inner.scratch.bytes = room.linear_bytes;
    for (int64_t m0 = 0; m0 < M; m0 += BLOCK_ROWS) {
        const int64_t n_rows = min64(M - m0, BLOCK_ROWS);
        for (int64_t m = 0; m < n_rows; m++) room.rows[m] = (ag_head_ce_row){.largest = -INFINITY};
        for (int64_t v0 = 0; v0 < V; v0 += BLOCK_IDS)
            AG_TRY(run_block(be, &inner, a, &room, m0, n_rows, v0, min64(V - v0, BLOCK_IDS), err));
#pragma omp parallel for schedule(static) num_threads(n_threads)
        for (int i = 0; i < n_threads; i++)
            for (int64_t m = i; m < n_rows; m += n_threads) finish_row(be, a, m0 + m, &room.rows[m], room.weight_rows + i * C);
    }
    return AG_OK;
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

size_t ag_head_ce_scratch_bytes(const ag_backend *be, int64_t M, int64_t C, int64_t V)
{
    row_room row;
    block_room block;
    ag_layout layout = {0};
    if (be->head_ce.row)
        for (int i = 0; i < be->n_threads; i++) place_room(&row, &layout, C, V);
    else
        place_block_room(&block, &layout, be, M, C, V);
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
    AG_PROFILE(be, AG_PROFILE_HEAD_CE, (a->dx.data ? 4.0 : 2.0) * (double)a->x.dim[0] * (double)a->w->K * (double)a->w->N,
               (double)ag_weight_bytes(a->w) + (a->dx.data ? 8.0 : 4.0) * (double)(a->x.dim[0] * a->w->K));
    if (!be->head_ce.row) return run_blocks(be, a, err);
    run_rows(be, a);
    return AG_OK;
}
