#define _GNU_SOURCE
#include "train/run.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "train/engine.h"
#include "train/manifest.h"
#include "train/markers.h"
#include "train/metrics.h"
#include "train/profile_window.h"
#include "train/quarantine.h"
#include "train/samples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ag_train_job view;       /* the caller's job with a backend that can be profiled; nothing in it is freed */
    ag_backend backend;
    const ag_train_job *job; /* &view */
    ag_engine engine;
    const ag_run_events *events;
    const volatile sig_atomic_t *stop;
    ag_metrics *metrics;
    ag_markers *markers;
    ag_profile_window *window;
    ag_samples *samples;    /* NULL: the config names no prompts */
    ag_lock lock;
    char *run_dir;
    ag_arena arena;
    ag_run_result *result;
    uint64_t train_ns;
    int64_t n_tokens, n_examples;
} run;

/* Of the last step that was done; window_id NULL where the marker belongs to no window. */
static ag_marker marker_now(const run *r, const char *event, const char *phase, const char *window_id)
{
    return (ag_marker){.event = event,
                       .phase = phase,
                       .step = r->engine.progress.step,
                       .n_tokens = r->n_tokens,
                       .n_examples = r->n_examples,
                       .window_id = window_id};
}

static void mark(const run *r, const char *event, const char *phase)
{
    const ag_marker marker = marker_now(r, event, phase, NULL);
    ag_markers_write(r->markers, &marker);
}

static void mark_loss(const run *r, const char *event, const char *phase, const char *window_id, double loss, double tok_s)
{
    ag_marker marker = marker_now(r, event, phase, window_id);
    marker.has_loss = true;
    marker.loss = loss;
    marker.tok_s = tok_s;
    ag_markers_write(r->markers, &marker);
}

static void mark_window(run *r, const char *event, int64_t step)
{
    ag_marker marker = marker_now(r, event, "train", ag_profile_window_id_of(r->window));
    marker.step = step;
    ag_markers_write(r->markers, &marker);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------ */
static ag_status evaluate_now(run *r, ag_err *err)
{
    const int64_t step = r->engine.progress.step;
    double loss;
    int64_t n;
    AG_TRY(ag_engine_evaluate(&r->engine, &loss, &n, err));
    r->result->eval_loss = loss;
    mark_loss(r, "eval_log", "eval", NULL, loss, 0);
    AG_TRY(ag_metrics_eval(r->metrics, step, loss, n, err));
    if (r->events->on_eval) r->events->on_eval(r->events->user, step, loss, n);
    return AG_OK;
}

/* Says nothing where no prompts are asked for. */
static ag_status answer_now(run *r, ag_err *err)
{
    if (!r->samples) return AG_OK;
    AG_TRY(ag_engine_fetch(&r->engine, err));
    AG_TRY(ag_samples_answer(r->samples, err));
    return ag_metrics_samples(r->metrics, r->engine.progress.step, r->job->config->eval_prompts.item, ag_samples_texts(r->samples),
                              r->job->config->eval_prompts.n, err);
}

static ag_status take_step(run *r, ag_err *err)
{
    ag_engine_taken taken;
    const int64_t step = r->engine.progress.step + 1;
    const char *window_id = ag_profile_window_ref(r->window, step);
    if (ag_profile_window_starts(r->window, step)) mark_window(r, "profile_window_start", step);
    ag_marker begins = marker_now(r, "step_begin", "train", window_id);
    begins.step = step;
    ag_markers_write(r->markers, &begins);
    ag_profile_window_step_begin(r->window, step);
    AG_TRY(ag_engine_step(&r->engine, &taken, err));
    ag_profile_window_step_end(r->window, step, taken.ns);
    const ag_step_result *done = &taken.done;
    if (done->is_skipped)
        ag_log(AG_LOG_WARN, "step %lld has no target in any of its rows and changed nothing", (long long)taken.step);
    r->train_ns += taken.ns;
    r->n_tokens += done->n_tokens;
    r->n_examples += taken.n_examples;
    r->result->n_targets += done->n_targets;
    r->result->loss = done->loss;

    const double tok_s = (double)done->n_tokens * 1e9 / (double)taken.ns;
    AG_TRY(ag_metrics_step(r->metrics, &(ag_step_metrics){
        .step = taken.step, .loss = done->loss, .lr = taken.lr, .grad_norm = done->grad_norm, .n_tokens = done->n_tokens,
        .n_targets = done->n_targets, .tok_s = tok_s, .ms = (double)taken.ns * 1e-6,
        .cpu = ag_cpu_numerics_name(r->backend.level), .backend = r->job->device ? ag_device_backend_name(r->job->device) : NULL,
        .n_steps = r->engine.n_steps, .peak_rss_bytes = ag_process_peak_rss()}, err));
    mark_loss(r, "step_end", "train", window_id, done->loss, tok_s);
    if (ag_profile_window_ends(r->window, step)) {
        mark_window(r, "profile_window_end", step);
        ag_profile_window_publish(r->window, r->markers);
    }
    if (r->events->on_step)
        r->events->on_step(r->events->user, &(ag_run_step){
            .step = taken.step, .n_steps = r->engine.n_steps, .loss = done->loss, .grad_norm = done->grad_norm, .lr = taken.lr,
            .tok_s = tok_s, .n_tokens = done->n_tokens, .n_targets = done->n_targets, .is_skipped = done->is_skipped});
    return AG_OK;
}

static ag_status save_checkpoint(run *r, ag_err *err)
{
    AG_TRY(ag_engine_fetch(&r->engine, err));
    AG_TRY(ag_checkpoint_save(&r->engine.state, r->engine.progress, r->run_dir, err));
    mark(r, "checkpoint_complete", "checkpoint");
    if (r->events->on_checkpoint)
        r->events->on_checkpoint(r->events->user, r->engine.progress.step,
                                 ag_arena_printf(&r->arena, "%s/checkpoint-%lld", r->run_dir, (long long)r->engine.progress.step));
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
                   (long long)r->engine.progress.step, saved);
}

static ag_status steps(run *r, ag_err *err)
{
    const ag_train_config *c = r->job->config;
    const int64_t n_steps = r->engine.n_steps;
    mark(r, "train_start", "train");
    while (r->engine.progress.step < n_steps) {
        AG_TRY(take_step(r, err));
        const int64_t step = r->engine.progress.step;
        if (step == n_steps || (c->eval_steps > 0 && step % c->eval_steps == 0)) {
            if (r->job->eval.rows) AG_TRY(evaluate_now(r, err));
            AG_TRY(answer_now(r, err));
        }
        const int signal = r->stop ? *r->stop : 0;
        if (signal) return stopped(r, signal, err);
        if (step == n_steps || (c->save_steps > 0 && step % c->save_steps == 0)) AG_TRY(save_checkpoint(r, err));
    }
    mark(r, "train_end", "train");
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

/* What makes runs fail for want of memory; never fatal. */
static void warn_about_risks(const run *r)
{
    const ag_train_config *c = r->job->config;
    const double gib = (double)ag_memory_available() / (1 << 30);
    enum { LONG_ROWS = 2048 };
    static const double SMALL_MEMORY_GIB = 16.5;
    if (!c->load_in_4bit && gib <= SMALL_MEMORY_GIB)
        ag_log(AG_LOG_WARN, "load_in_4bit is false with %.1f GiB of memory: `agoge plan` tells whether the weights fit", gib);
    if (c->batch_size > 1)
        ag_log(AG_LOG_WARN,
               "batch_size %lld takes as many times the memory for activations; gradient_accumulation_steps gives the same step without",
               (long long)c->batch_size);
    if (c->max_seq_length > LONG_ROWS)
        ag_log(AG_LOG_WARN, "max_seq_length %lld is over %d: activations grow with the longest row", (long long)c->max_seq_length,
               LONG_ROWS);
}

static ag_status start_anew(run *r, ag_err *err)
{
    size_t n_earlier;
    AG_TRY(ag_checkpoint_count(&n_earlier, r->run_dir, err));
    if (n_earlier > 0) {
        r->engine.state.drop_earlier = true;
        ag_log(AG_LOG_WARN, "%s: holds %zu checkpoints of an earlier run; this one starts anew and drops them when it has its own first "
               "(resume_from_latest_checkpoint: true goes on from them)", r->run_dir, n_earlier);
    }
    return ag_engine_begin(&r->engine, err);
}

static ag_status begin(run *r, ag_err *err)
{
    const ag_train_config *c = r->job->config;
    AG_TRY(ag_path_output_dir(&r->run_dir, c->run_dir, &r->arena, err));
    AG_TRY(ag_lock_take(&r->lock, ag_path_dir(&r->arena, r->run_dir), ag_arena_printf(&r->arena, ".%s.lock", c->run_name), err));
    warn_about_risks(r);
    warn_about_disk(r);
    r->markers = ag_markers_open(r->job);
    r->window = ag_profile_window_open(r->job, r->markers);
    r->backend.profile = ag_profile_window_ops(r->window);
    AG_TRY(ag_engine_open(&r->engine, r->job, err));
    const char *resume;
    AG_TRY(ag_quarantine_sweep(r->run_dir, err));
    AG_TRY(ag_checkpoint_choose(&resume, &r->engine.state, r->run_dir, &r->arena, err));
    if (resume)
        AG_TRY(ag_engine_resume(&r->engine, resume, err));
    else
        AG_TRY(start_anew(r, err));
    AG_TRY(ag_metrics_open(&r->metrics, c->logging_dir, r->engine.progress.step, err));
    if (c->completion_only_loss)
        AG_TRY(ag_examples_write_evidence(r->job->train.examples, c->max_seq_length,
                                          ag_path_join(&r->arena, r->run_dir, "completion_preprocessing.json"), err));
    if (c->eval_prompts.n > 0) {
        AG_TRY(ag_samples_open(&r->samples, r->job, &r->engine.adapter, err));
        if (!resume) AG_TRY(answer_now(r, err));
    }
    if (r->events->on_begin) r->events->on_begin(r->events->user, r->job, r->engine.progress.step, resume);
    return AG_OK;
}

static ag_status finish(run *r, ag_err *err)
{
    ag_profile_window_publish(r->window, r->markers);
    AG_TRY(ag_engine_fetch(&r->engine, err));
    return ag_manifest_write_final(&(ag_manifest_args){
        .job = r->job, .adapter = &r->engine.adapter, .run_dir = r->run_dir, .n_steps = r->engine.progress.step, .loss = r->result->loss,
        .markers = r->markers, .window = r->window}, err);
}

static void end(run *r)
{
    ag_samples_close(&r->samples);
    ag_metrics_close(&r->metrics);
    ag_profile_window_close(&r->window);
    ag_markers_close(&r->markers);
    ag_engine_close(&r->engine);
    ag_lock_release(&r->lock);
    ag_arena_free(&r->arena);
}

ag_status ag_run(const ag_train_job *job, const ag_run_events *events, const volatile sig_atomic_t *stop, ag_run_result *result,
                 ag_err *err)
{
    *result = (ag_run_result){.run_dir = job->config->run_dir, .eval_loss = NAN};
    run r = {.view = *job, .backend = *job->backend, .events = events, .stop = stop, .result = result, .lock = {.fd = -1}};
    r.job = &r.view;
    r.view.backend = r.view.decoder.backend = &r.backend;
    ag_status status = begin(&r, err);
    if (!status) status = steps(&r, err);
    if (!status) status = finish(&r, err);
    if (status) {
        if (ag_profile_window_is_open(r.window)) {
            mark_window(&r, "profile_window_end", r.engine.progress.step);
            ag_profile_window_publish(r.window, r.markers);
        }
        mark(&r, "run_failed", "failed");
    }
    result->n_steps = r.engine.progress.step;
    result->tok_s = r.train_ns > 0 ? (double)r.n_tokens * 1e9 / (double)r.train_ns : 0;
    end(&r);
    return status;
}
