/* qualify: the release's protocol on both models. With --evidence it judges numbers that were taken; with --plan it takes them first:
 *
 *     {"models": [{"name", "loss_tolerance", "reference": ARM, "candidate": ARM}, …2]}
 *     ARM = {"backend", "command": [argv…], "metrics": "runs/x/metrics.jsonl"}
 *
 * A command is run as it stands, once a pair; it must write its metrics anew (a line per step with "ms" and "loss", and the backend that
 * ran it in "backend"). While it runs, free memory of GPU 0 is watched. */
#define _GNU_SOURCE
#include "kernels/tools/bkl_command.h"
#include "kernels/tools/bkl_process.h"

#include "base/fs.h"
#include "lab/nvml.h"
#include "lab/qualification.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RUN_LIMIT_S = 6 * 3600, MAX_ARGS = 64, WATCH_MS = 100 };

typedef struct {
    const char *evidence, *plan, *out;
} qualify_options;

/* ---- watching free memory -------------------------------------------------------------------------------------------------------- */
typedef struct {
    ag_nvml *nvml;
    atomic_bool stop;
    double min_free_mib; /* < 0: never read */
    bool missed;         /* a look failed, so nobody knows */
} watch;

static void *watch_memory(void *argument)
{
    watch *w = argument;
    while (!atomic_load(&w->stop)) {
        uint64_t total, left, used;
        if (w->nvml->memory_bytes(w->nvml, &total, &left, &used) == AG_NVML_SUCCESS) {
            const double mib = (double)(left >> 20);
            if (w->min_free_mib < 0 || mib < w->min_free_mib) w->min_free_mib = mib;
        } else {
            w->missed = true;
        }
        nanosleep(&(struct timespec){0, WATCH_MS * 1000000}, NULL);
    }
    return NULL;
}

/* ---- one run ------------------------------------------------------------------------------------------------------------------------ */
static ag_status read_metrics(json_t *run, const char *path, ag_err *err)
{
    ag_f0_line *lines;
    size_t n;
    AG_TRY(ag_f0_lines_load(&lines, &n, path, err));
    json_t *times = json_array(), *losses = json_array();
    const json_t *backend = NULL;
    for (size_t i = 0; i < n; i++) {
        const json_t *ms = json_object_get(lines[i].json, "ms"), *loss = json_object_get(lines[i].json, "loss");
        if (json_object_get(lines[i].json, "backend")) backend = json_object_get(lines[i].json, "backend");
        if (!json_is_number(ms) || !json_is_number(loss)) continue; /* an evaluation's line */
        json_array_append(times, (json_t *)(uintptr_t)ms);
        json_array_append(losses, (json_t *)(uintptr_t)loss);
    }
    json_object_set_new(run, "step_ms", times);
    json_object_set_new(run, "loss", losses);
    json_object_set_new(run, "backend", json_is_string(backend) ? json_copy((json_t *)(uintptr_t)backend) : json_null());
    ag_f0_lines_free(&lines, n);
    return AG_OK;
}

static ag_status run_arm(json_t **out, const json_t *arm, const char *log, ag_nvml *nvml, ag_err *err)
{
    const json_t *command = json_object_get(arm, "command"), *word;
    const char *metrics = json_string_value(json_object_get(arm, "metrics")), *argv[MAX_ARGS + 1] = {0};
    size_t i;
    if (!metrics || json_array_size(command) == 0 || json_array_size(command) > MAX_ARGS) return ag_fail(err, AG_E_FORMAT, "an arm needs 'metrics' and a 'command' of 1 to %d words", MAX_ARGS);
    json_array_foreach(command, i, word)
        if (!(argv[i] = json_string_value(word))) return ag_fail(err, AG_E_FORMAT, "word %zu of a command is no text", i + 1);
    unlink(metrics); /* what is read afterwards was written by this run */
    watch w = {.nvml = nvml, .min_free_mib = -1};
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch_memory, &w) != 0) return ag_fail(err, AG_E_MEMORY, "no thread to watch the memory with");
    bkl_exit how;
    ag_status status = bkl_process_run(&how, NULL, argv, log, RUN_LIMIT_S, err);
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    AG_TRY(status);
    if (how.exit_code) return ag_fail(err, AG_E_IO, "%s ended with %d; its output is in %s", argv[0], how.exit_code, log);
    json_t *run = json_object();
    status = read_metrics(run, metrics, err);
    json_object_set_new(run, "min_free_mib", w.missed || w.min_free_mib < 0 ? json_null() : json_real(w.min_free_mib));
    *out = run;
    if (status) json_decref(run);
    return status;
}

static ag_status measure_model(json_t *result, const json_t *model, const char *folder, ag_nvml *nvml, ag_arena *arena, ag_err *err)
{
    static const char *const arms[] = {"reference", "candidate"};
    const char *name = json_string_value(json_object_get(model, "name"));
    if (!name || strchr(name, '/') == name) return ag_fail(err, AG_E_FORMAT, "a model of the plan has no name");
    json_t *pairs = json_array();
    json_object_set(result, "name", json_object_get(model, "name"));
    json_object_set(result, "loss_tolerance", json_object_get(model, "loss_tolerance"));
    json_object_set_new(result, "pairs", pairs);
    for (int p = 0; p < AG_QUALIFICATION_PAIRS; p++) {
        json_t *pair = json_object();
        json_array_append_new(pairs, pair);
        json_object_set_new(pair, "order", json_string(p % 2 ? "candidate_first" : "reference_first"));
        for (int k = 0; k < 2; k++) {
            const char *arm = arms[(k + p) % 2];
            char *log = ag_arena_printf(arena, "%s/%s-%d-%s.log", folder, name, p + 1, arm);
            for (char *c = log + strlen(folder) + 1; *c; c++)
                if (*c == '/') *c = '_';
            json_t *run = NULL;
            fprintf(stderr, "%s, pair %d of %d: %s\n", name, p + 1, AG_QUALIFICATION_PAIRS, arm);
            if (run_arm(&run, json_object_get(model, arm), log, nvml, err)) return ag_err_prefix(err, "%s, pair %d, %s", name, p + 1, arm);
            json_object_set_new(pair, arm, run);
        }
    }
    return AG_OK;
}

static ag_status measure(json_t **evidence, const qualify_options *o, ag_arena *arena, ag_err *err)
{
    ag_nvml nvml;
    ag_nvml_open(&nvml, getenv("BKL_NVML_LIBRARY"));
    unsigned gpus = 0;
    const int code = nvml.gpu_count(&nvml, &gpus);
    json_t *plan = NULL, *models = json_array();
    const json_t *model;
    ag_status status = AG_OK;
    if (code || gpus == 0)
        status = ag_fail(err, AG_E_UNSUPPORTED, "qualification needs a GPU and there is none (%s)", code ? ag_nvml_code_name(code) : "no device");
    if (!status) status = bkl_json_load(&plan, o->plan, err);
    if (!status) status = ag_make_dirs(o->out, err);
    size_t i;
    json_array_foreach(json_object_get(plan, "models"), i, model) {
        json_t *result = json_object();
        json_array_append_new(models, result);
        if (!status) status = measure_model(result, model, o->out, &nvml, arena, err);
    }
    *evidence = json_pack("{ss so}", "schema", AG_QUALIFICATION_SCHEMA, "models", models);
    ag_json_free(&plan);
    ag_nvml_close(&nvml);
    if (!status) status = bkl_json_publish(ag_arena_printf(arena, "%s/evidence.json", o->out), *evidence, err);
    if (status) ag_json_free(evidence);
    return status;
}

static ag_status qualify(const qualify_options *o, ag_arena *arena, bool *passed, ag_err *err)
{
    if (!o->evidence == !o->plan) return ag_fail(err, AG_E_USAGE, "give either --plan (to measure) or --evidence (to judge)");
    if (o->plan && !o->out) return ag_fail(err, AG_E_USAGE, "--plan needs --out: the folder for logs, evidence and verdict");
    json_t *evidence, *verdict;
    AG_TRY(o->plan ? measure(&evidence, o, arena, err) : bkl_json_load(&evidence, o->evidence, err));
    ag_status status = ag_qualification_judge(&verdict, evidence, err);
    if (!status) {
        *passed = strcmp(json_string_value(json_object_get(verdict, "verdict")), "pass") == 0;
        if (o->out) status = bkl_json_publish(ag_arena_printf(arena, "%s/verdict.json", o->out), verdict, err);
        bkl_json_print(verdict);
        json_decref(verdict);
    }
    ag_json_free(&evidence);
    return status;
}

static int run(int argc, char **argv)
{
    qualify_options o = {0};
    CLI_PARSE(&bkl_qualify, &o, argc, argv);
    ag_arena arena = {0};
    ag_err err;
    bool passed = false;
    ag_status status = qualify(&o, &arena, &passed, &err);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : passed ? 0 : 1;
}

static const cli_option table[] = {
    CLI_STRING("plan", qualify_options, plan, "F", "measure: what to run on both models, JSON", 0),
    CLI_STRING("evidence", qualify_options, evidence, "F", "judge numbers that were taken, JSON", 0),
    CLI_STRING("out", qualify_options, out, "DIR", "logs, evidence.json and verdict.json go there", 0),
    CLI_END};
const cli_command bkl_qualify = {"qualify", NULL, "the release's verdict: faster on both models, in every pair, and still right",
                                 "Exit 0: pass. Exit 1: fail, invalid, or no GPU.", table, run};
