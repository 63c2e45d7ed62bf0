#include "train/engine.h"

#include "base/clock.h"

/* ---- memory ---------------------------------------------------------------------------------------------------------- */
static void place(ag_engine *e, ag_layout *layout)
{
    const size_t n = e->adapter.n_params * sizeof(float);
    e->state.params = ag_layout_place(layout, n);
    e->stepper.grads = ag_layout_place(layout, n);
    ag_optimizer_place(&e->state.optimizer, layout);
    e->state.log = ag_layout_place(layout, (size_t)e->job->train.sampler->n_steps * sizeof *e->state.log);
    e->nll = ag_layout_place(layout, (size_t)e->job->decoder.max_targets * sizeof(float));
}

/* A step's micro-batches are all filled before the first is computed, for the loss is divided by the targets of all. */
static ag_status make_batches(ag_engine *e, ag_err *err)
{
    const ag_sampler *s = e->job->train.sampler;
    const ag_job_data *data = &e->job->train;
    int64_t largest = 0;
    for (int64_t step = 0; step < s->n_steps && step < s->steps_per_epoch; step++)
        if (ag_sampler_n_micro(s, step) > largest) largest = ag_sampler_n_micro(s, step);
    e->batches = ag_arena_array(&e->arena, (size_t)largest, sizeof *e->batches);
    e->micro = ag_arena_array(&e->arena, (size_t)largest, sizeof *e->micro);
    for (e->n_batches = 0; e->n_batches < largest; e->n_batches++)
        AG_TRY(ag_batch_init(&e->batches[e->n_batches], data->examples, data->is_packed ? &data->packing : NULL,
                             e->job->config->batch_size, err));
    return AG_OK;
}

static ag_status allocate(ag_engine *e, ag_err *err)
{
    const ag_train_config *c = e->job->config;
    ag_layout layout = {0};
    e->adapter = e->job->adapter;
    e->n_steps = e->job->train.sampler->n_steps;
    ag_optimizer_plan(&e->state.optimizer, &e->job->adapter, c, &e->arena);
    place(e, &layout);
    e->block_bytes = layout.bytes;
    AG_TRY(ag_pages_alloc(&e->block, layout.bytes, "the adapter and its optimizer", err));
    layout = (ag_layout){.base = e->block};
    place(e, &layout);
    ag_adapter_bind(&e->adapter, e->state.params, e->stepper.grads);
    e->state.job = e->job;
    AG_TRY(make_batches(e, err));

    ag_adapter_attach(&e->adapter, e->job->model);
    if (e->job->device) {
        const ag_device_trainer_options options = ag_train_job_device_options(e->job, &e->adapter, e->n_batches);
        return ag_device_trainer_create(&e->device, &options, err);
    }
    ag_decoder_options decoder = e->job->decoder;
    ag_adapter_use(&decoder, &e->adapter);
    AG_TRY(ag_decoder_create(&e->decoder, &decoder, err));
    e->stepper = (ag_stepper){
        .decoder = e->decoder, .backend = e->job->backend, .params = e->state.params, .grads = e->stepper.grads,
        .n_params = (int64_t)e->adapter.n_params, .max_grad_norm = c->max_grad_norm, .optimizer = &e->state.optimizer};
    return AG_OK;
}

ag_status ag_engine_open(ag_engine *e, const ag_train_job *job, ag_err *err)
{
    *e = (ag_engine){.job = job};
    const ag_status status = allocate(e, err);
    if (status) ag_engine_close(e);
    return status;
}

void ag_engine_close(ag_engine *e)
{
    ag_decoder_free(&e->decoder);
    ag_device_trainer_free(&e->device);
    for (int64_t i = 0; i < e->n_batches; i++) ag_batch_deinit(&e->batches[i]);
    if (e->block) ag_pages_free(e->block, e->block_bytes);
    ag_arena_free(&e->arena);
    *e = (ag_engine){0};
}

/* ---- where it starts ------------------------------------------------------------------------------------------------- */
/* The numbers have changed on the host. A device's moments are f32 and lie one after the other (adamw_torch). */
static ag_status use_state(ag_engine *e, ag_err *err)
{
    const ag_moments *all = e->state.optimizer.moments;
    if (e->device) return ag_device_trainer_put(e->device, e->state.params, all->m, all->v, err);
    ag_decoder_refresh(e->decoder);
    return AG_OK;
}

ag_status ag_engine_begin(ag_engine *e, ag_err *err)
{
    e->progress = (ag_progress){0};
    AG_TRY(ag_adapter_draw(&e->adapter, e->job->model, (uint64_t)e->job->config->seed, e->job->backend->n_threads, err));
    return use_state(e, err);
}

ag_status ag_engine_fetch(ag_engine *e, ag_err *err)
{
    const ag_moments *all = e->state.optimizer.moments;
    return e->device ? ag_device_trainer_get(e->device, e->state.params, all->m, all->v, err) : AG_OK;
}

ag_status ag_engine_resume(ag_engine *e, const char *checkpoint, ag_err *err)
{
    AG_TRY(ag_checkpoint_load(&e->state, &e->progress, checkpoint, err));
    AG_TRY(use_state(e, err));
    if (e->progress.step > e->n_steps)
        return ag_fail(err, AG_E_CONFIG, "%s: has %lld steps behind it, the config asks for %lld; raise num_train_epochs or max_steps",
                       checkpoint, (long long)e->progress.step, (long long)e->n_steps);
    return AG_OK;
}

/* ---- steps ----------------------------------------------------------------------------------------------------------- */
static ag_decoder_batch view(const ag_batch *b)
{
    return (ag_decoder_batch){.T = b->T, .ids = b->ids, .positions = b->positions, .targets = b->targets, .spans = b->span,
                              .n_spans = b->n_spans, .padded_length = b->packing ? 0 : b->longest};
}

/* Micro-batches before a step: what tells dropout masks apart. Follows from the step alone, so that a resume needs nothing. */
static uint64_t micro_before(const ag_sampler *s, int64_t step)
{
    const ag_sampler_position at = ag_sampler_at(s, step);
    return (uint64_t)(at.epoch * s->n_batches + at.in_epoch * s->plan.accumulation);
}

static ag_status take(ag_engine *e, int64_t n_micro, ag_engine_taken *taken, uint64_t micro_call, ag_err *err)
{
    const int64_t update = e->progress.n_updates + 1;
    if (!e->device) return ag_train_step(&e->stepper, e->micro, n_micro, update, taken->lr, micro_call, &taken->done, err);
    taken->done = ag_train_step_count(e->micro, n_micro);
    if (taken->done.is_skipped) return AG_OK;
    ag_device_step_result result;
    AG_TRY(ag_device_trainer_step(e->device, e->micro, n_micro, update, taken->lr, micro_call, &result, err));
    taken->done.loss = result.loss;
    taken->done.grad_norm = result.grad_norm;
    return AG_OK;
}

ag_status ag_engine_step(ag_engine *e, ag_engine_taken *taken, ag_err *err)
{
    ag_sampler *s = e->job->train.sampler;
    const int64_t step = e->progress.step, n_micro = ag_sampler_n_micro(s, step);
    AG_ASSERT(step < e->n_steps);
    *taken = (ag_engine_taken){.step = step + 1, .lr = ag_schedule_rate(&e->job->schedule, step)};
    const uint64_t start = ag_clock_ns();
    for (int64_t m = 0; m < n_micro; m++) {
        ag_batch_fill(&e->batches[m], ag_sampler_micro(s, step, m));
        e->micro[m] = view(&e->batches[m]);
        taken->n_examples += e->batches[m].n_spans;
    }
    AG_TRY(take(e, n_micro, taken, micro_before(s, step), err));
    taken->ns = ag_clock_ns() - start;
    e->progress.step++;
    if (!taken->done.is_skipped) e->progress.n_updates++;
    taken->epoch = ag_sampler_at(s, taken->step).epochs;
    e->state.log[e->state.n_log++] = (ag_log_entry){.step = taken->step, .loss = taken->done.loss, .grad_norm = taken->done.grad_norm,
                                                    .lr = taken->lr, .epoch = taken->epoch};
    return AG_OK;
}

ag_status ag_engine_evaluate(ag_engine *e, double *loss, int64_t *n_targets, ag_err *err)
{
    ag_job_data *data = (ag_job_data *)&e->job->eval; /* its batch is filled anew each time; the job is otherwise as it was */
    double sum = 0;
    int64_t n = 0;
    for (int64_t step = 0; step < data->sampler->n_steps; step++) {
        ag_batch_fill(&data->batch, ag_sampler_micro(data->sampler, step, 0));
        const ag_decoder_batch batch = view(&data->batch);
        AG_TRY(e->device ? ag_device_trainer_score(e->device, &batch, e->nll, err)
                         : ag_decoder_score(e->decoder, &batch, e->nll, NULL, err));
        for (int64_t i = 0; i < data->batch.M; i++) sum += (double)e->nll[i];
        n += data->batch.M;
    }
    *loss = n > 0 ? sum / (double)n : 0;
    *n_targets = n;
    return AG_OK;
}
