/* agoge held-out-eval and g0-held-out-eval: base against fine-tuned on rows that neither was trained on; and the base alone,
 * beforehand. */
#define _GNU_SOURCE
#include "cli/commands.h"
#include "cli/hub_access.h"
#include "cli/runtime.h"
#include "cli/session.h"
#include "cli/terminal.h"

#include "base/json.h"
#include "eval/held_out.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    ag_held_out_options eval;
    const char *experiment_id, *truncation, *dtype, *device_map;
    int64_t batch;
    bool trust_remote_code;
    cli_compute_options compute;
    cli_format_options format;
} options;

static const char *const truncations[] = {"mark_unsupported", "reject", NULL};
static const char *const device_maps[] = {"auto", "cpu", NULL};

#define SHARED                                                                                                                 \
    CLI_STRING("split-manifest", options, eval.split_manifest, "FILE", "split_manifest.json of a frozen split", CLI_REQUIRED), \
        CLI_STRING("output-dir", options, eval.output_dir, "DIR", "where the bundle appears; must not exist", CLI_REQUIRED),   \
        CLI_STRING("base-model-id", options, eval.base_id, "MODEL", "as the artifact names its base", CLI_REQUIRED),           \
        CLI_STRING("base-revision", options, eval.base_revision, "COMMIT", "40 to 64 hexadecimal digits", CLI_REQUIRED),       \
        CLI_INT_REQUIRED("context-window", options, eval.context_window, "N", "prompt and new tokens together", 2, 1 << 24),   \
        CLI_INT("max-new-tokens", options, eval.max_new_tokens, "N", "of each answer (default: 128)", 1, 1 << 20),             \
        CLI_INT("seed", options, eval.seed, "N", "recorded; greedy answers do not draw (default: 17)", INT64_MIN, INT64_MAX),  \
        CLI_CHOICE("truncation-policy", options, truncation, "POLICY", "what a prompt over the window becomes", truncations),  \
        CLI_CHOICE("device-map", options, device_map, "MAP", "auto is the CPU here", device_maps),                             \
        CLI_INT("batch", options, batch, "N", "rows side by side (default: 8); changes no token", 1, AG_LINEAR_FEW),           \
        CLI_FLAG("restart", options, eval.restart, "throw away what an unfinished evaluation of this output left"),            \
        CLI_CHOICE("compute", options, dtype, "TYPE", "operands of the matrix products", cli_compute_dtypes),                  \
        CLI_COMPUTE(options, compute), CLI_FORMAT(options, format), CLI_END

static const cli_option table[] = {
    CLI_STRING("sft-artifact", options, eval.sft_artifact, "DIR", "an adapter or merged model with its artifact_index.json",
               CLI_REQUIRED),
    CLI_STRING("tokenizer-id", options, eval.tokenizer_id, "MODEL", "default: the base", 0),
    CLI_STRING("tokenizer-revision", options, eval.tokenizer_revision, "COMMIT", "default: the base's", 0),
    CLI_FLAG("trust-remote-code", options, trust_remote_code, "refused: agoge runs no code of a model"),
    SHARED,
};
static const cli_option g0_table[] = {
    CLI_STRING("experiment-id", options, experiment_id, "ID", "told in the result", CLI_REQUIRED),
    SHARED,
};

/* ---- while it runs ----------------------------------------------------------------------------------------------- */
static volatile sig_atomic_t stop_signal;

static void on_signal(int signal)
{
    if (stop_signal) _exit(128 + signal);
    stop_signal = signal;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

typedef struct {
    cli_progress bar;
    const char *arm;
} view;

static void on_progress(void *user, const char *arm, int64_t done, int64_t total)
{
    view *v = user;
    if (v->arm != arm) {
        if (v->arm) cli_progress_end(&v->bar);
        v->arm = arm;
        cli_progress_begin(&v->bar, arm, total, done);
    }
    cli_progress_update(&v->bar, done, "");
}

/* ---- results ----------------------------------------------------------------------------------------------------- */
static void json_arm(ag_json_writer *w, const char *key, const ag_arm_counts *c)
{
    ag_jw_object(w, key);
    ag_jw_int(w, "tasks", c->n);
    ag_jw_int(w, "scored", c->correct + c->incorrect);
    ag_jw_int(w, "correct", c->correct);
    if (c->correct + c->incorrect > 0)
        ag_jw_double(w, "accuracy", (double)c->correct / (double)(c->correct + c->incorrect));
    else
        ag_jw_null(w, "accuracy");
    ag_jw_end(w);
}

static void print_json(const options *o, const ag_held_out_result *r)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "output_dir", o->eval.output_dir);
    if (o->experiment_id) ag_jw_string(&w, "experiment_id", o->experiment_id);
    if (o->eval.sft_artifact) ag_jw_string(&w, "conclusion", r->comparison.conclusion);
    json_arm(&w, "base", &r->base);
    if (o->eval.sft_artifact) {
        json_arm(&w, "sft", &r->sft);
        ag_jw_int(&w, "improved", r->comparison.improved);
        ag_jw_int(&w, "regressed", r->comparison.regressed);
        ag_jw_int(&w, "tied", r->comparison.tied);
        ag_jw_int(&w, "invalid", r->comparison.invalid);
    }
    ag_jw_end(&w);
    printf("%s\n", out.text);
    ag_str_free(&out);
}

static void print_arm(const char *name, const ag_arm_counts *c)
{
    printf("%-5s %lld of %lld scored tasks correct, %lld not scored\n", name, (long long)c->correct,
           (long long)(c->correct + c->incorrect), (long long)c->invalid);
}

static void print_text(const options *o, const ag_held_out_result *r)
{
    print_arm("base", &r->base);
    if (o->eval.sft_artifact) {
        print_arm("sft", &r->sft);
        printf("%s: %lld improved, %lld regressed, %lld tied, %lld invalid\n", r->comparison.conclusion,
               (long long)r->comparison.improved, (long long)r->comparison.regressed, (long long)r->comparison.tied,
               (long long)r->comparison.invalid);
    }
    printf("bundle in %s\n", o->eval.output_dir);
}

/* ---- run --------------------------------------------------------------------------------------------------------- */
static ag_status evaluate(options *o, ag_held_out_result *result, ag_arena *arena, ag_err *err)
{
    ag_held_out_options *e = &o->eval;
    ag_backend backend;
    view v = {0};
    if (o->trust_remote_code)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "--trust-remote-code: agoge runs no code that comes with a model; leave the option out");
    AG_TRY(cli_backend(&backend, &o->compute, err));
    if (!e->tokenizer_id) e->tokenizer_id = e->base_id;
    if (!e->tokenizer_revision) e->tokenizer_revision = e->base_revision;
    AG_TRY(cli_find_model(&e->base_path, e->base_id, e->base_revision, arena, err));
    AG_TRY(cli_find_model(&e->tokenizer_path, e->tokenizer_id, e->tokenizer_revision, arena, err));
    e->policy = strcmp(o->truncation, "reject") == 0 ? AG_TRUNCATION_REJECT : AG_TRUNCATION_MARK;
    e->compute = strcmp(o->dtype, "bf16") == 0 ? AG_COMPUTE_BF16 : AG_COMPUTE_F32;
    e->batch = (int)o->batch;
    e->backend = &backend;
    e->user = &v;
    e->on_progress = on_progress;
    e->stop = &stop_signal;
    catch_signals();
    ag_status status = ag_held_out_run(result, e, err);
    if (v.arm) cli_progress_end(&v.bar);
    return status;
}

static int run(const cli_command *command, int argc, char **argv)
{
    options o = {.eval = {.max_new_tokens = 128, .seed = 17},
                 .truncation = "mark_unsupported",
                 .dtype = "f32",
                 .device_map = "auto",
                 .batch = AG_LINEAR_FEW,
                 .format = CLI_FORMAT_DEFAULT};
    ag_err err;
    ag_arena arena = {0};
    ag_held_out_result result;
    CLI_PARSE(command, &o, argc, argv);
    ag_status status = evaluate(&o, &result, &arena, &err);
    if (!status && cli_format_is_json(&o.format))
        print_json(&o, &result);
    else if (!status)
        print_text(&o, &result);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

static int run_both(int argc, char **argv) { return run(&cli_held_out_eval, argc, argv); }
static int run_base(int argc, char **argv) { return run(&cli_g0_held_out_eval, argc, argv); }

const cli_command cli_held_out_eval = {
    .name = "held-out-eval",
    .summary = "base against fine-tuned on the held-out rows of a frozen split",
    .details =
        "Greedy, the same prompts for both. Stopped or killed, the same command goes on where it was. docs/evaluation.md",
    .options = table,
    .run = run_both};
const cli_command cli_g0_held_out_eval = {.name = "g0-held-out-eval",
                                          .summary = "the base alone on the held-out rows, before anything is trained",
                                          .options = g0_table,
                                          .run = run_base};
