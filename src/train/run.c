#define _GNU_SOURCE
#include "train/run.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "train/checkpoint.h"
#include "train/manifest.h"
#include "train/markers.h"
#include "train/metrics.h"
#include "train/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ag_train_job *job;
    const ag_run_events *events;
    const volatile sig_atomic_t *stop;
    ag_adapter adapter;    /* bound */
    ag_decoder *decoder;
    ag_stepper stepper;
    ag_run_state state;
    ag_progress progress;
    ag_metrics *metrics;
    ag_markers *markers;
    ag_decoder_batch *micro;  /* of one step; their arrays below */
    ag_batch *batches;
    int64_t n_batches;
    float *nll;               /* of one evaluation call */
    void *block;
    size_t block_bytes;
    ag_lock lock;
    char *run_dir, *resumed_from;
    ag_arena arena;
    ag_run_result *result;
    uint64_t train_ns;
    int64_t n_tokens;
} run;

/* ---- memory ---------------------------------------------------------------------------------------------------------- */
static void place(run *r, ag_layout *layout)
{
    const size_t n = r->adapter.n_params * sizeof(float);
    r->state.params = ag_layout_place(layout, n);
    r->stepper.grads = ag_layout_place(layout, n);
    r->state.exp_avg = ag_layout_place(layout, n);
    r->state.exp_avg_sq = ag_layout_place(layout, n);
    r->state.log = ag_layout_place(layout, (size_t)r->job->train.sampler->n_steps * sizeof *r->state.log);
    r->nll = ag_layout_place(layout, (size_t)r->job->decoder.max_targets * sizeof(float));
}

/* A step's micro-batches are all filled before the first is computed, for the loss is divided by the targets of all. */
static ag_status make_batches(run *r, ag_err *err)
{
    const ag_sampler *s = r->job->train.sampler;
    const ag_job_data *data = &r->job->train;
    int64_t largest = 0;
    for (int64_t step = 0; step < s->n_steps && step < s->steps_per_epoch; step++)
        if (ag_sampler_n_micro(s, step) > largest) largest = ag_sampler_n_micro(s, step);
    r->batches = ag_arena_array(&r->arena, (size_t)largest, sizeof *r->batches);
    r->micro = ag_arena_array(&r->arena, (size_t)largest, sizeof *r->micro);
    for (r->n_batches = 0; r->n_batches < largest; r->n_batches++)
        AG_TRY(ag_batch_init(&r->batches[r->n_batches], data->examples, data->is_packed ? &data->packing : NULL,
                             r->job->config->batch_size, err));
    return AG_OK;
}

static ag_status allocate(run *r, ag_err *err)
{
    const ag_train_config *c = r->job->config;
    ag_layout layout = {0};
    r->adapter = r->job->adapter;
    place(r, &layout);
    r->block_bytes = layout.bytes;
    AG_TRY(ag_pages_alloc(&r->block, layout.bytes, "the adapter and its optimizer", err));
    layout = (ag_layout){.base = r->block};
    place(r, &layout);
    ag_adapter_bind(&r->adapter, r->state.params, r->stepper.grads);
    r->state.job = r->job;
    AG_TRY(make_batches(r, err));

    ag_decoder_options decoder = r->job->decoder;
    decoder.lora = r->adapter.layers;
    AG_TRY(ag_decoder_create(&r->decoder, &decoder, err));
    r->stepper = (ag_stepper){
        .decoder = r->decoder, .backend = r->job->backend, .params = r->state.params, .grads = r->stepper.grads,
        .exp_avg = r->state.exp_avg, .exp_avg_sq = r->state.exp_avg_sq, .n_params = (int64_t)r->adapter.n_params,
        .beta1 = c->adam_beta1, .beta2 = c->adam_beta2, .eps = c->adam_epsilon, .weight_decay = c->weight_decay,
        .max_grad_norm = c->max_grad_norm};
    return AG_OK;
}

/* ---- evaluation ------------------------------------------------------------------------------------------------------- */
static ag_decoder_batch view(const ag_batch *b)
{
    return (ag_decoder_batch){.T = b->T, .ids = b->ids, .positions = b->positions, .targets = b->targets, .spans = b->span,
                              .n_spans = b->n_spans};
}

static ag_status evaluate(ag_decoder *decoder, ag_job_data *data, float *nll, double *loss, int64_t *n_targets, ag_err *err)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t step = 0; step < data->sampler->n_steps; step++) {
        ag_batch_fill(&data->batch, ag_sampler_micro(data->sampler, step, 0));
        const ag_decoder_batch batch = view(&data->batch);
        AG_TRY(ag_decoder_score(decoder, &batch, nll, NULL, err));
        for (int64_t i = 0; i < data->batch.M; i++) sum += (double)nll[i];
        n += data->batch.M;
    }
    *loss = n > 0 ? sum / (double)n : 0;
    *n_targets = n;
    return AG_OK;
}

static void mark(run *r, const char *event, const char *phase, const double *loss)
{
    ag_markers_write(r->markers, &(ag_marker){.event = event, .phase = phase, .step = r->progress.step, .n_tokens = r->n_tokens,
                                              .n_examples = -1, .has_loss = loss != NULL, .loss = loss ? *loss : 0});
}

static ag_status evaluate_now(run *r, ag_err *err)
{
    double loss;
    int64_t n;
    AG_TRY(evaluate(r->decoder, &r->job->eval, r->nll, &loss, &n, err));
    r->result->eval_loss = loss;
    mark(r, "eval_log", "eval", &loss);
    AG_TRY(ag_metrics_eval(r->metrics, r->progress.step, loss, n, err));
    if (r->events->on_eval) r->events->on_eval(r->events->user, r->progress.step, loss, n);
    return AG_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------ */
/* Micro-batches before a step: what tells dropout masks apart. Follows from the step alone, so that a resume needs nothing. */
static uint64_t micro_before(const ag_sampler *s, int64_t step)
{
    const ag_sampler_position at = ag_sampler_at(s, step);
    return (uint64_t)(at.epoch * s->n_batches + at.in_epoch * s->plan.accumulation);
}

static ag_status take_step(run *r, ag_err *err)
{
    ag_sampler *s = r->job->train.sampler;
    const int64_t step = r->progress.step, n_micro = ag_sampler_n_micro(s, step);
    const double lr = ag_schedule_rate(&r->job->schedule, step);
    mark(r, "step_begin", "train", NULL);
    const uint64_t start = ag_clock_ns();
    for (int64_t m = 0; m < n_micro; m++) {
        ag_batch_fill(&r->batches[m], ag_sampler_micro(s, step, m));
        r->micro[m] = view(&r->batches[m]);
    }
    ag_step_result done;
    AG_TRY(ag_train_step(&r->stepper, r->micro, n_micro, r->progress.n_updates + 1, lr, micro_before(s, step), &done, err));
    const uint64_t ns = ag_clock_ns() - start;
    r->progress.step++;
    if (done.is_skipped)
        ag_log(AG_LOG_WARN, "step %lld has no target in any of its rows and changed nothing", (long long)r->progress.step);
    else
        r->progress.n_updates++;
    r->train_ns += ns;
    r->n_tokens += done.n_tokens;
    r->result->n_targets += done.n_targets;
    r->result->loss = done.loss;

    const ag_run_step told = {.step = r->progress.step, .n_steps = s->n_steps, .loss = done.loss, .grad_norm = done.grad_norm, .lr = lr,
                              .tok_s = (double)done.n_tokens * 1e9 / (double)ns, .n_tokens = done.n_tokens,
                              .n_targets = done.n_targets, .is_skipped = done.is_skipped};
    r->state.log[r->state.n_log++] = (ag_log_entry){.step = told.step, .loss = done.loss, .grad_norm = done.grad_norm, .lr = lr,
                                                    .epoch = ag_sampler_at(s, told.step).epochs};
    AG_TRY(ag_metrics_step(r->metrics, &(ag_step_metrics){
        .step = told.step, .loss = told.loss, .lr = lr, .grad_norm = told.grad_norm, .n_tokens = told.n_tokens,
        .n_targets = told.n_targets, .tok_s = told.tok_s, .ms = (double)ns * 1e-6}, err));
    mark(r, "step_end", "train", &done.loss);
    if (r->events->on_step) r->events->on_step(r->events->user, &told);
    return AG_OK;
}

static ag_status save_checkpoint(run *r, ag_err *err)
{
    AG_TRY(ag_checkpoint_save(&r->state, r->progress, r->run_dir, err));
    mark(r, "checkpoint_complete", "checkpoint", NULL);
    if (r->events->on_checkpoint)
        r->events->on_checkpoint(r->events->user, r->progress.step,
                                 ag_arena_printf(&r->arena, "%s/checkpoint-%lld", r->run_dir, (long long)r->progress.step));
    return AG_OK;
}

static ag_status stopped(run *r, int signal, ag_err *err)
{
    const char *saved = "no checkpoint was written (save_on_signal: false)";
    if (r->job->config->save_on_signal) {
        AG_TRY(save_checkpoint(r, err));
        saved = "a checkpoint was written; resume_from_latest_checkpoint: true goes on from it";
    }
    return ag_fail(err, signal == SIGTERM ? AG_E_TERMINATED : AG_E_INTERRUPTED, "stopped by a signal behind step %lld: %s",
                   (long long)r->progress.step, saved);
}

static ag_status steps(run *r, ag_err *err)
{
    const ag_train_config *c = r->job->config;
    const int64_t n_steps = r->job->train.sampler->n_steps;
    mark(r, "train_start", "train", NULL);
    while (r->progress.step < n_steps) {
        AG_TRY(take_step(r, err));
        const int64_t step = r->progress.step;
        if (r->job->eval.rows && (step == n_steps || (c->eval_steps > 0 && step % c->eval_steps == 0))) AG_TRY(evaluate_now(r, err));
        const int signal = r->stop ? *r->stop : 0;
        if (signal) return stopped(r, signal, err);
        if (step == n_steps || (c->save_steps > 0 && step % c->save_steps == 0)) AG_TRY(save_checkpoint(r, err));
    }
    mark(r, "train_end", "train", NULL);
    return AG_OK;
}

/* ---- run --------------------------------------------------------------------------------------------------------------- */
static void warn_about_disk(const run *r)
{
    const ag_train_config *c = r->job->config;
    uint64_t bytes;
    ag_err ignored; /* a warning that cannot be given stops nothing */
    if (ag_disk_free(&bytes, r->run_dir, &ignored)) return;
    const double gib = (double)bytes / (1 << 30);
    if (gib < c->disk_free_warning_gb)
        ag_log(AG_LOG_WARN, "%.1f GiB are free under %s (disk_free_warning_gb: %g)", gib, r->run_dir, c->disk_free_warning_gb);
    if (gib < c->checkpoint_disk_buffer_gb)
        ag_log(AG_LOG_WARN, "%.1f GiB are left for checkpoints (checkpoint_disk_buffer_gb: %g)", gib, c->checkpoint_disk_buffer_gb);
}

static ag_status start_anew(run *r, ag_err *err)
{
    size_t n_earlier;
    AG_TRY(ag_checkpoint_count(&n_earlier, r->run_dir, err));
    if (n_earlier > 0) {
        r->state.drop_earlier = true;
        ag_log(AG_LOG_WARN, "%s: holds %zu checkpoints of an earlier run; this one starts anew and drops them when it has its own first "
               "(resume_from_latest_checkpoint: true goes on from them)", r->run_dir, n_earlier);
    }
    ag_adapter_draw(&r->adapter, (uint64_t)r->job->config->seed);
    return AG_OK;
}

static ag_status begin(run *r, ag_err *err)
{
    const ag_train_config *c = r->job->config;
    AG_TRY(ag_path_output_dir(&r->run_dir, c->run_dir, &r->arena, err));
    AG_TRY(ag_lock_take(&r->lock, ag_path_dir(&r->arena, r->run_dir), ag_arena_printf(&r->arena, ".%s.lock", c->run_name), err));
    warn_about_disk(r);
    AG_TRY(allocate(r, err));
    const char *resume;
    AG_TRY(ag_checkpoint_choose(&resume, c, r->run_dir, &r->arena, err));
    if (resume)
        AG_TRY(ag_checkpoint_load(&r->state, &r->progress, resume, err));
    else
        AG_TRY(start_anew(r, err));
    if (r->progress.step > r->job->train.sampler->n_steps)
        return ag_fail(err, AG_E_CONFIG, "%s: has %lld steps behind it, the config asks for %lld; raise num_train_epochs or max_steps",
                       resume, (long long)r->progress.step, (long long)r->job->train.sampler->n_steps);
    AG_TRY(ag_metrics_open(&r->metrics, c->logging_dir, r->progress.step, err));
    r->markers = ag_markers_open(r->job);
    if (c->completion_only_loss)
        AG_TRY(ag_examples_write_evidence(r->job->train.examples, c->max_seq_length,
                                          ag_path_join(&r->arena, r->run_dir, "completion_preprocessing.json"), err));
    if (r->events->on_begin) r->events->on_begin(r->events->user, r->job, r->progress.step, resume);
    return AG_OK;
}

static ag_status finish(run *r, ag_err *err)
{
    AG_TRY(ag_manifest_write_final(&(ag_manifest_args){.job = r->job, .adapter = &r->adapter, .run_dir = r->run_dir,
                                                       .n_steps = r->progress.step, .loss = r->result->loss}, err));
    return AG_OK;
}

static void end(run *r)
{
    ag_metrics_close(&r->metrics);
    ag_markers_close(&r->markers);
    ag_decoder_free(&r->decoder);
    for (int64_t i = 0; i < r->n_batches; i++) ag_batch_deinit(&r->batches[i]);
    ag_pages_free(r->block, r->block_bytes);
    ag_lock_release(&r->lock);
    ag_arena_free(&r->arena);
}

ag_status ag_run(const ag_train_job *job, const ag_run_events *events, const volatile sig_atomic_t *stop, ag_run_result *result,
                 ag_err *err)
{
    *result = (ag_run_result){.run_dir = job->config->run_dir, .eval_loss = NAN};
    run r = {.job = (ag_train_job *)job, .events = events, .stop = stop, .result = result, .lock = {.fd = -1}};
    ag_status status = begin(&r, err);
    if (!status) status = steps(&r, err);
    if (!status) status = finish(&r, err);
    if (status) mark(&r, "run_failed", "failed", NULL);
    result->n_steps = r.progress.step;
    result->tok_s = r.train_ns > 0 ? (double)r.n_tokens * 1e9 / (double)r.train_ns : 0;
    end(&r);
    return status;
}
