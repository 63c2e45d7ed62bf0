#ifndef AG_HEAD_CE_SLOTS_H
#define AG_HEAD_CE_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/head_ce/head_ce.h"

/* The reference takes one row as a whole: row m, with room for C floats and V + C doubles. */
typedef void ag_head_ce_row_fn(const ag_head_ce_args *args, int64_t m, float *weight_row, double *logits);

/* What a row remembers from block to block. */
typedef struct {
    float largest;       /* logit so far */
    float target_logit;
    int32_t best;        /* the first id with it */
    double others;       /* Σ exp(logit - largest) without the target */
} ag_head_ce_row;

/* One row's logits of a block of the vocabulary, ids [v0,v0+n), before the softcap: takes them into `row`, and for backward puts
 * exp(logit - largest), times the cap's slope, in their place, 0 at the target, and shrinks dx (C values that earlier blocks summed)
 * by what `largest` grew. */
typedef void ag_head_ce_block_fn(ag_head_ce_row *row, float *logits, int64_t v0, int64_t n, int32_t target, bool want_best,
                                 float *dx, int64_t C, float softcap);
/* dx = from_others·dx + from_target·w */
typedef void ag_head_ce_finish_fn(float *dx, float from_others, float from_target, const float *w, int64_t C);

/* Either `row` alone, or the other two beside ag_linear_fwd and ag_linear_bwd. */
typedef struct {
    ag_head_ce_row_fn *row;
    ag_head_ce_block_fn *block;
    ag_head_ce_finish_fn *finish;
} ag_head_ce_slots;

void ag_head_ce_use(ag_head_ce_slots *slots, ag_cpu_level level);

ag_head_ce_row_fn ag_head_ce_row_ref;
ag_head_ce_block_fn ag_head_ce_block_neon, ag_head_ce_block_avx2, ag_head_ce_block_avx512;
ag_head_ce_finish_fn ag_head_ce_finish_neon, ag_head_ce_finish_avx2, ag_head_ce_finish_avx512;

#endif
