/* The learning rate of every step, as transformers' schedulers compute it (optimization.py): the peak rate times a factor of
 * the step's number, in double.
 *
 *     warm-up, step < W:  step / W                                     (so the first step's rate is 0)
 *     linear:             max(0, (S - step) / max(1, S - W))
 *     cosine:             max(0, (1 + cos(π · (step - W) / max(1, S - W))) / 2)
 *     constant_with_warmup, and constant, which has no warm-up: 1
 *
 * with S steps in all, W of them warm-up. Steps count from 0 here: step k is taken with the rate of k. */
#ifndef AG_SCHEDULE_H
#define AG_SCHEDULE_H

#include "train/train_config.h"

#include <stdint.h>

typedef struct {
    ag_lr_schedule kind;
    double peak;
    int64_t n_warmup, n_steps;
} ag_schedule;

/* warmup_steps goes before warmup_ratio, which is a share of n_steps, rounded up, as in transformers. */
ag_schedule ag_schedule_plan(const ag_train_config *config, int64_t n_steps);
double ag_schedule_rate(const ag_schedule *schedule, int64_t step);

#endif
