#include "data/sampler.h"

#include "base/arena.h"
#include "base/rng.h"

#include <stdlib.h>

ag_status ag_sampler_create(ag_sampler **out, const ag_sampler_plan *plan, ag_err *err)
{
    AG_ASSERT(plan->n_rows > 0 && plan->batch_size > 0 && plan->accumulation > 0 && plan->n_epochs > 0);
    *out = NULL;
    int64_t n_batches = (plan->n_rows - 1) / plan->batch_size + 1, per_epoch = (n_batches - 1) / plan->accumulation + 1, all;
    if (__builtin_mul_overflow(per_epoch, plan->n_epochs, &all))
        return ag_fail(err, AG_E_DATA, "%lld epochs of %lld steps are more steps than can be counted; lower num_train_epochs",
                       (long long)plan->n_epochs, (long long)per_epoch);
    ag_sampler *s = calloc(1, sizeof *s);
    if (!s) ag_out_of_memory(sizeof *s);
    *s = (ag_sampler){.plan = *plan, .n_batches = n_batches, .steps_per_epoch = per_epoch, .order_epoch = -1};
    s->n_steps = plan->max_steps > 0 ? plan->max_steps : all;
    s->n_epochs = (s->n_steps - 1) / per_epoch + 1;
    s->order = malloc((size_t)plan->n_rows * sizeof *s->order); /* a row stands for bytes that are in memory */
    if (!s->order) ag_out_of_memory((size_t)plan->n_rows * sizeof *s->order);
    *out = s;
    return AG_OK;
}

void ag_sampler_free(ag_sampler **sampler)
{
    if (!*sampler) return;
    free((*sampler)->order);
    free(*sampler);
    *sampler = NULL;
}

int64_t ag_sampler_n_micro(const ag_sampler *s, int64_t step)
{
    int64_t left = s->n_batches - step % s->steps_per_epoch * s->plan.accumulation;
    return left < s->plan.accumulation ? left : s->plan.accumulation;
}

static void set_order(ag_sampler *s, int64_t epoch)
{
    if (s->plan.in_order) {
        for (int64_t i = 0; i < s->plan.n_rows; i++) s->order[i] = i;
    } else {
        ag_mt19937 mt;
        ag_mt19937_seed(&mt, s->plan.seed + (uint64_t)epoch);
        ag_mt19937_randperm(&mt, s->order, s->plan.n_rows);
    }
    s->order_epoch = epoch;
}

ag_row_span ag_sampler_micro(ag_sampler *s, int64_t step, int64_t m)
{
    AG_ASSERT(step >= 0 && step < s->n_steps && m >= 0 && m < ag_sampler_n_micro(s, step));
    int64_t epoch = step / s->steps_per_epoch;
    if (epoch != s->order_epoch) set_order(s, epoch);
    int64_t first = (step % s->steps_per_epoch * s->plan.accumulation + m) * s->plan.batch_size, left = s->plan.n_rows - first;
    return (ag_row_span){s->order + first, left < s->plan.batch_size ? left : s->plan.batch_size};
}

ag_sampler_position ag_sampler_at(const ag_sampler *s, int64_t n_steps_done)
{
    ag_sampler_position at = {.epoch = n_steps_done / s->steps_per_epoch, .in_epoch = n_steps_done % s->steps_per_epoch};
    int64_t batches = at.in_epoch * s->plan.accumulation; /* the epoch's last step is never "in" it */
    at.rows = batches * s->plan.batch_size;
    at.epochs = (double)at.epoch + (double)batches / (double)s->n_batches;
    return at;
}
