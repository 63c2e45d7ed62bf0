#include "train/schedule.h"

#include <math.h>

ag_schedule ag_schedule_plan(const ag_train_config *config, int64_t n_steps)
{
    int64_t n_warmup = config->warmup_steps;
    if (n_warmup == 0) n_warmup = (int64_t)ceil((double)n_steps * config->warmup_ratio);
    return (ag_schedule){
        .kind = config->lr_scheduler_type, .peak = config->learning_rate, .n_warmup = n_warmup, .n_steps = n_steps};
}

/* The order of operations is Python's, so that the bits are, too. */
static double factor(const ag_schedule *s, int64_t step)
{
    if (s->kind == AG_LR_SCHEDULE_CONSTANT) return 1.0;
    if (step < s->n_warmup) return (double)step / (double)s->n_warmup;
    double n_after = s->n_steps - s->n_warmup > 1 ? (double)(s->n_steps - s->n_warmup) : 1.0;
    switch (s->kind) {
    case AG_LR_SCHEDULE_LINEAR: return fmax(0.0, (double)(s->n_steps - step) / n_after);
    case AG_LR_SCHEDULE_COSINE: {
        double progress = (double)(step - s->n_warmup) / n_after;
        return fmax(0.0, 0.5 * (1.0 + cos(3.14159265358979323846 * 0.5 * 2.0 * progress)));
    }
    default: return 1.0;
    }
}

double ag_schedule_rate(const ag_schedule *schedule, int64_t step) { return schedule->peak * factor(schedule, step); }
