/* agoge train-qlora and train-lora: one YAML file in, an adapter out. */
#define _GNU_SOURCE
#include "cli/commands.h"
#include "cli/device_access.h"
#include "cli/hub_access.h"
#include "cli/run_facts.h"
#include "cli/runtime.h"
#include "cli/session.h"
#include "cli/terminal.h"

#include "base/clock.h"
#include "base/json.h"
#include "train/profile_request.h"
#include "train/provenance.h"
#include "train/run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *config, *run_id, *profile_window;
    cli_list sets;
    cli_compute_options compute;
    cli_format_options format;
} options;

static const cli_option table[] = {
    CLI_STRING("config", options, config, "YAML", "what to train on what, and how (docs/configuration.md)", CLI_REQUIRED),
    CLI_REPEATED("set", options, sets, "KEY=VALUE", "override one key of the file"),
    CLI_STRING("run-id", options, run_id, "ID", "correlation id of the run's telemetry", 0),
    CLI_STRING("profile-window", options, profile_window, "PHASE:A-B", "profile the steps A to B (docs/run-telemetry.md)", 0),
    CLI_COMPUTE(options, compute),
    CLI_FORMAT(options, format),
    CLI_END,
};

/* ---- signals -------------------------------------------------------------------------------------------------------- */
static volatile sig_atomic_t stop_signal;

/* The first asks for an orderly end; the second ends at once: the last checkpoint is whole, because it was published whole. */
static void on_signal(int signal)
{
    if (stop_signal) _exit(128 + signal);
    stop_signal = signal;
    static const char text[] = "\nstopping behind this step; once more ends at once\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) return;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- progress ------------------------------------------------------------------------------------------------------- */
typedef struct {
    cli_progress progress;
} view;

static void on_begin(void *user, const ag_train_job *job, int64_t first_step, const char *resumed_from)
{
    view *v = user;
    ag_train_plan plan;
    ag_train_job_plan(&plan, job);
    fprintf(stderr, "base       %s, %.1f M parameters, weights %s, %s in memory\n", job->config->model_id,
            (double)ag_description_parameters(&job->model->d) * 1e-6, job->model->quantization, cli_bytes(plan.weights));
    fprintf(stderr, "adapter    r %lld, %zu tensors, %.2f M parameters\n", (long long)job->config->lora_r, job->adapter.n_trained,
            (double)job->adapter.n_params * 1e-6);
    fprintf(stderr, "data       %lld rows, %lld tokens, %lld supervised%s\n", (long long)job->train.examples->n,
            (long long)job->train.examples->n_tokens, (long long)job->train.examples->n_targets,
            job->train.is_packed ? ", packed" : "");
    ag_err ignored;
    if (job->device && ag_train_job_plan_device(&plan, job, &ignored) == AG_OK)
        fprintf(stderr, "compute    %s (%s), operands bf16; planned memory on it %s\n", job->device->info.name,
                ag_device_backend_name(job->device), cli_bytes(plan.total));
    else
        fprintf(stderr, "compute    %s, %d threads, operands %s; planned memory %s\n", ag_cpu_level_name(job->backend->level),
            job->backend->n_threads, job->decoder.compute == AG_COMPUTE_BF16 ? "bf16" : "f32", cli_bytes(plan.total));
    if (resumed_from) fprintf(stderr, "resuming   %s\n", resumed_from);
    cli_progress_begin(&v->progress, "step", job->train.sampler->n_steps, first_step);
}

static void on_step(void *user, const ag_run_step *s)
{
    view *v = user;
    char text[160];
    snprintf(text, sizeof text, "loss %.4f  norm %.3g  lr %.2e  %.0f tok/s", s->loss, s->grad_norm, s->lr, s->tok_s);
    cli_progress_update(&v->progress, s->step, text);
}

static void on_eval(void *user, int64_t step, double loss, int64_t n_targets)
{
    (void)user;
    fprintf(stderr, "%sheld-out   step %lld: loss %.4f over %lld tokens\n", cli_stderr_is_terminal() ? "\r\033[K" : "", (long long)step,
            loss, (long long)n_targets);
}

/* ---- result --------------------------------------------------------------------------------------------------------- */
static void print_result(const options *o, const ag_run_result *r)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "run_dir", r->run_dir);
    ag_jw_int(&w, "steps", r->n_steps);
    ag_jw_double(&w, "loss", r->loss);
    ag_jw_double(&w, "tok_s", r->tok_s);
    ag_jw_uint(&w, "peak_rss_bytes", ag_process_peak_rss());
    ag_jw_int(&w, "supervised_tokens", r->n_targets);
    if (isfinite(r->eval_loss)) ag_jw_double(&w, "eval_loss", r->eval_loss);
    ag_jw_end(&w);
    if (cli_format_is_json(&o->format))
        printf("%s\n", out.text);
    else
        printf("adapter in %s: %lld steps, last loss %.4f, %.0f tok/s, peak memory %s\n", r->run_dir, (long long)r->n_steps, r->loss,
               r->tok_s, cli_bytes(ag_process_peak_rss()));
    ag_str_free(&out);
}

/* ---- what the command line and the environment change in the file ----------------------------------------------------------------- */
typedef struct {
    const char *items[CLI_LIST_MAX + 16];
    size_t n;
    ag_arena arena;
} overrides;

/* What --set says of a key goes before the other ways to say it. */
static void add_override(overrides *all, const options *o, const char *key, const char *value)
{
    const size_t n = strlen(key);
    for (int i = 0; i < o->sets.n; i++)
        if (strncmp(o->sets.items[i], key, n) == 0 && o->sets.items[i][n] == '=') return;
    all->items[all->n++] = ag_arena_printf(&all->arena, "%s=%s", key, value);
}

static const char *from_environment(const char *name)
{
    const char *value = getenv(name);
    return value && value[strspn(value, " \t\n\r")] ? value : NULL;
}

/* Command line before environment before file. A window on the command line brings its own backend, and the environment's is not read. */
static ag_status add_window(overrides *all, const options *o, ag_err *err)
{
    static const char option[] = "--profile-window", variable[] = "AGOGE_PROFILE_WINDOW";
    const bool is_asked = o->profile_window && o->profile_window[strspn(o->profile_window, " \t\n\r")];
    const char *text = is_asked ? o->profile_window : from_environment(variable);
    const char *backend = is_asked ? NULL : from_environment("AGOGE_PROFILE_BACKEND");
    if (text) {
        ag_profile_request r;
        AG_TRY(ag_profile_request_parse(&r, text, is_asked ? option : variable, err));
        add_override(all, o, "telemetry.profile_window.enabled", r.enabled ? "true" : "false");
        add_override(all, o, "telemetry.profile_window.start_step", ag_arena_printf(&all->arena, "%lld", (long long)r.start_step));
        add_override(all, o, "telemetry.profile_window.end_step", ag_arena_printf(&all->arena, "%lld", (long long)r.end_step));
        if (!backend) backend = ag_arena_strdup(&all->arena, r.backend);
    }
    if (backend) add_override(all, o, "telemetry.profile_window.backend", ag_arena_printf(&all->arena, "\"%s\"", backend));
    return AG_OK;
}

static ag_status gather_overrides(overrides *all, const options *o, bool quantize, ag_err *err)
{
    const bool has_id = o->run_id && o->run_id[strspn(o->run_id, " \t\n\r")];
    const char *id = has_id ? o->run_id : from_environment("AGOGE_RUN_ID");
    if (id) add_override(all, o, "telemetry.run_id", id);
    AG_TRY(add_window(all, o, err));
    for (int i = 0; i < o->sets.n; i++) all->items[all->n++] = o->sets.items[i];
    if (!quantize) all->items[all->n++] = "load_in_4bit=false";
    return AG_OK;
}

static ag_status open_config(ag_train_config **config, const options *o, bool quantize, ag_err *err)
{
    overrides all = {0};
    ag_status status = gather_overrides(&all, o, quantize, err);
    if (!status) status = ag_train_config_load(config, o->config, all.items, all.n, err);
    ag_arena_free(&all.arena);
    return status;
}

static ag_status train(const options *o, bool quantize, ag_run_result *result, ag_err *err)
{
    ag_backend backend;
    ag_train_config *config = NULL;
    ag_train_job *job = NULL;
    ag_train_provenance provenance;
    ag_run_record record;
    ag_arena arena = {0};
    view v = {0};
    const ag_run_events events = {.user = &v, .on_begin = on_begin, .on_step = on_step, .on_eval = on_eval};
    ag_device *device = NULL;
    AG_TRY(cli_backend_beside_device(&backend, &o->compute, err));
    AG_TRY(open_config(&config, o, quantize, err));
    ag_status status = cli_find_model(&config->model_path, config->model_id, config->revision, &arena, err);
    cli_run_facts(&record, &arena);
    if (!status) status = cli_device_open(&device, o->compute.device, err);
    if (!status) status = ag_train_provenance_derive(&provenance, config, backend.n_threads, err);
    if (!status)
        status = ag_train_job_open(&job, config, &backend, &(ag_train_job_options){
            .record = &record, .device = device, .provenance = provenance.is_sealed ? &provenance.provenance : NULL}, err);
    if (!status) {
        cli_tell_cache_size();
        catch_signals();
        status = ag_run(job, &events, &stop_signal, result, err);
        cli_progress_end(&v.progress);
    }
    ag_train_job_close(&job);
    ag_device_close(&device);
    if (!status) print_result(o, result);
    ag_train_config_free(&config);
    ag_arena_free(&arena);
    return status;
}

static int run(const cli_command *command, int argc, char **argv, bool quantize)
{
    options o = {.format = CLI_FORMAT_DEFAULT};
    ag_err err;
    ag_run_result result;
    CLI_PARSE(command, &o, argc, argv);
    if (!quantize) fprintf(stderr, "warning: train-lora does not quantize: load_in_4bit is false\n");
    return train(&o, quantize, &result, &err) ? cli_fail(&err) : 0;
}

static int run_qlora(int argc, char **argv) { return run(&cli_train_qlora, argc, argv, true); }
static int run_lora(int argc, char **argv) { return run(&cli_train_lora, argc, argv, false); }

const cli_command cli_train_qlora = {.name = "train-qlora",
                                     .summary = "fine-tune an adapter on a (quantized) base, as one YAML file says",
                                     .options = table,
                                     .run = run_qlora};
const cli_command cli_train_lora = {
    .name = "train-lora", .summary = "the same without quantizing the base", .options = table, .run = run_lora};
