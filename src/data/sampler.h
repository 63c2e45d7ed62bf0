/* In which order rows are trained on, and how they fall into micro-batches and optimizer steps: as Hugging Face's Trainer
 * does it, so that a run can change over from one program to the other in the middle.
 *
 * Each epoch e is shuffled anew: torch.randperm(n) of a generator seeded with seed + e (accelerate's SeedableRandomSampler). It
 * is cut into micro-batches of batch_size, the last one may be smaller; accumulation many of them make a step, and the last
 * step of an epoch takes what is left. Epochs never share a step.
 *
 *     ag_sampler *s;
 *     AG_TRY(ag_sampler_create(&s, &(ag_sampler_plan){.n_rows = n, .batch_size = 2, .accumulation = 4, .n_epochs = 3,
 *                              .max_steps = -1, .seed = 42}, err));
 *     for (int64_t step = 0; step < s->n_steps; step++)
 *         for (int64_t m = 0; m < ag_sampler_n_micro(s, step); m++) {
 *             ag_row_span rows = ag_sampler_micro(s, step, m);   // rows.row[0 … rows.n)
 *         }
 *     ag_sampler_free(&s);
 *
 * There is no state to save: the number of steps done says everything (ag_sampler_at). Rows are packed rows where the data
 * is packed. */
#ifndef AG_SAMPLER_H
#define AG_SAMPLER_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t n_rows, batch_size, accumulation; /* all at least 1 */
    int64_t n_epochs;                         /* at least 1 */
    int64_t max_steps;                        /* > 0: so many steps, whatever the epochs; else the epochs decide */
    uint64_t seed;
    bool in_order; /* no shuffle: evaluation */
} ag_sampler_plan;

typedef struct {
    ag_sampler_plan plan;
    int64_t n_batches; /* micro-batches of an epoch */
    int64_t steps_per_epoch;
    int64_t n_steps;     /* of the whole run */
    int64_t n_epochs;    /* begun in it */
    int64_t *order;      /* of order_epoch */
    int64_t order_epoch; /* -1: none yet */
} ag_sampler;

typedef struct {
    const int64_t *row;
    int64_t n;
} ag_row_span;

/* Where a run stands after `step` steps. */
typedef struct {
    int64_t epoch;    /* from 0 */
    int64_t in_epoch; /* steps done in it */
    int64_t rows;     /* rows used up in it: agoge_resume.json's sampler_position */
    double epochs;    /* trainer_state.json's "epoch": micro-batches done, in epochs */
} ag_sampler_position;

/* Allocates the order of one epoch; nothing afterwards. AG_E_DATA where counts overflow. */
AG_MUST_USE ag_status ag_sampler_create(ag_sampler **out, const ag_sampler_plan *plan, ag_err *err);
void ag_sampler_free(ag_sampler **sampler);

/* Micro-batches of a step, counted from 0 over the whole run. */
int64_t ag_sampler_n_micro(const ag_sampler *s, int64_t step);
/* Rows of micro-batch m of the step; valid until a step of another epoch is asked for. */
ag_row_span ag_sampler_micro(ag_sampler *s, int64_t step, int64_t m);
ag_sampler_position ag_sampler_at(const ag_sampler *s, int64_t n_steps_done);

#endif
