/* agoge freeze-granite-first-sft and run-granite-first-sft: an experiment that is fixed before it runs, and its run.
 *
 * Beside the contract: g0-contract.json, g0-base/ (before anything is trained), training/ (the run), evaluation-contract.json,
 * g1-sft/, comparison.json, regressions.jsonl, statistics.json, training-results.json, report.md, reproduction.md. Each stage
 * is a process of its own, so that the adapter that is judged is the one on disk. What a stage has finished is not done again:
 * a run that was stopped goes on. */
#define _GNU_SOURCE
#include "cli/commands.h"
#include "cli/run_facts.h"
#include "cli/runtime.h"
#include "cli/stages.h"

#include "base/canonical_json.h"
#include "base/clock.h"
#include "base/fs.h"
#include "eval/experiment.h"
#include "eval/scoring.h"
#include "seal/artifact_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ag_experiment_options freeze;
    const char *contract, *cpu;
    int64_t threads;
    cli_format_options format;
} options;

static const cli_option freeze_table[] = {
    CLI_STRING("experiment-id", options, freeze.experiment_id, "ID", "names the experiment", CLI_REQUIRED),
    CLI_STRING("output-dir", options, freeze.output_dir, "DIR", "where the contract appears; must not exist", CLI_REQUIRED),
    CLI_STRING("split-manifest", options, freeze.split_manifest, "FILE", "split_manifest.json of a frozen split", CLI_REQUIRED),
    CLI_STRING("qualification-report", options, freeze.qualification_report, "FILE",
               "agoge.model-compatibility.v1 of the model, passed", CLI_REQUIRED),
    CLI_FORMAT(options, format),
    CLI_END,
};
static const cli_option run_table[] = {
    CLI_STRING("contract", options, contract, "FILE", "experiment-contract.json", CLI_REQUIRED),
    CLI_INT("threads", options, threads, "N", "threads to use (default: the physical cores of this process)", 1, 256),
    CLI_STRING("cpu", options, cpu, "LEVEL", "ref, neon, avx2, avx512 or amx (default: the best of this machine)", 0),
    CLI_FORMAT(options, format),
    CLI_END,
};

/* ---- freeze ------------------------------------------------------------------------------------------------------ */
static ag_status freeze(options *o, ag_sha256 *digest, ag_arena *arena, ag_err *err)
{
    ag_run_record facts = {0};
    cli_run_facts(&facts, arena);
    if (!facts.git.is_known)
        return ag_fail(
            err, AG_E_CONFIG,
            "the working directory is in no git work tree, or git cannot be asked; an experiment is frozen from a known "
            "commit, go to its repository");
    if (facts.git.dirty)
        return ag_fail(err, AG_E_CONFIG, "the git work tree differs from commit %s; commit or undo the changes, then freeze",
                       facts.git.commit);
    o->freeze.git_commit = facts.git.commit;
    o->freeze.n_threads = ag_physical_cores();
    return ag_experiment_freeze(digest, &o->freeze, err);
}

static int run_freeze(int argc, char **argv)
{
    options o = {.format = CLI_FORMAT_DEFAULT};
    ag_err err;
    ag_arena arena = {0};
    ag_sha256 digest;
    CLI_PARSE(&cli_freeze_granite_first_sft, &o, argc, argv);
    ag_status status = freeze(&o, &digest, &arena, &err);
    if (!status) printf("%s  %s/" AG_EXPERIMENT_FILE "\n", digest.hex, o.freeze.output_dir);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

/* ---- run --------------------------------------------------------------------------------------------------------- */
typedef struct {
    const options *o;
    ag_experiment *e;
    ag_arena arena;
    const char *stage; /* the running one, for comparison.json of a run that failed */
    const char *adapter, *threads;
    bool g0_agrees;
} experiment_run;

static const char *in(experiment_run *r, const char *name) { return ag_path_join(&r->arena, r->e->dir, name); }

static bool is_there(experiment_run *r, const char *name) { return ag_path_is_file(in(r, name)); }

/* Words that every stage gets at its end. */
static void add_compute(experiment_run *r, const char **words, int n)
{
    words[n++] = "--threads";
    words[n++] = r->threads;
    if (r->o->cpu) {
        words[n++] = "--cpu";
        words[n++] = r->o->cpu;
    }
    words[n] = NULL;
}

#define NUMBER(arena, n) ag_arena_printf(arena, "%d", (int)(n))

static ag_status score_base(experiment_run *r, ag_err *err)
{
    const ag_qualification *m = &r->e->model;
    const char *output = in(r, ".stage-g0");
    const char *words[48] = {"g0-held-out-eval",
                             "--experiment-id",
                             r->e->id,
                             "--split-manifest",
                             r->e->split_manifest,
                             "--base-model-id",
                             m->model_repository,
                             "--base-revision",
                             m->model_revision,
                             "--context-window",
                             NUMBER(&r->arena, AG_EXPERIMENT_WINDOW),
                             "--max-new-tokens",
                             NUMBER(&r->arena, AG_EXPERIMENT_NEW_TOKENS),
                             "--seed",
                             NUMBER(&r->arena, AG_EXPERIMENT_SEED),
                             "--output-dir",
                             output};
    r->stage = "g0-base";
    if (is_there(r, "g0-base/metrics.json")) return AG_OK;
    add_compute(r, words, 17);
    if (!ag_path_is_dir(output)) AG_TRY(cli_stage_run(words, in(r, ".stage-output"), "scoring the base", err));
    if (!is_there(r, "g0-contract.json"))
        AG_TRY(ag_rename_synced(in(r, ".stage-g0/g0-contract.json"), in(r, "g0-contract.json"), err));
    AG_TRY(ag_rename_synced(in(r, ".stage-g0/g0-base"), in(r, "g0-base"), err));
    return ag_remove_tree(output, err);
}

/* The last line of the trainer's output: its result. */
static ag_status keep_training_result(experiment_run *r, ag_err *err)
{
    json_t *result;
    AG_TRY(ag_json_load(&result, in(r, ".stage-output"), 1 << 20, err));
    json_t *root = json_pack("{s:s, s:s, s:s, s:O}", "status", "trained", "experiment_id", r->e->id,
                             "experiment_contract_sha256", r->e->sha256.hex, "result", result);
    ag_str text = {0};
    ag_json_add_canonical(&text, root);
    ag_str_add_char(&text, '\n');
    ag_status status = ag_file_publish(in(r, "training-results.json"), text.text, text.n, err);
    ag_str_free(&text);
    json_decref(root);
    ag_json_free(&result);
    return status;
}

static ag_status train(experiment_run *r, ag_err *err)
{
    ag_str config = {0};
    const char *path = in(r, "training.yaml");
    const char *words[16] = {"train-qlora", "--config", path, "--format", "json"};
    r->stage = "training";
    r->adapter = in(r, "training/sft");
    if (is_there(r, "training-results.json") && is_there(r, "training/sft/" AG_ARTIFACT_INDEX_FILE)) return AG_OK;
    ag_experiment_write_config(&config, r->e, in(r, "training"), "sft");
    ag_str_printf(&config, "logging_dir: \"%s\"\n", in(r, "training/logs"));
    ag_status status = ag_file_publish(path, config.text, config.n, err);
    ag_str_free(&config);
    if (status) return status;
    add_compute(r, words, 5);
    AG_TRY(cli_stage_run(words, in(r, ".stage-output"), "training", err));
    return keep_training_result(r, err);
}

static ag_status score_adapter(experiment_run *r, ag_err *err)
{
    const ag_qualification *m = &r->e->model;
    const char *output = in(r, ".stage-g1");
    const char *words[48] = {"held-out-eval",
                             "--split-manifest",
                             r->e->split_manifest,
                             "--sft-artifact",
                             r->adapter,
                             "--base-model-id",
                             m->model_repository,
                             "--base-revision",
                             m->model_revision,
                             "--tokenizer-id",
                             m->tokenizer_repository,
                             "--tokenizer-revision",
                             m->tokenizer_revision,
                             "--context-window",
                             NUMBER(&r->arena, AG_EXPERIMENT_WINDOW),
                             "--max-new-tokens",
                             NUMBER(&r->arena, AG_EXPERIMENT_NEW_TOKENS),
                             "--seed",
                             NUMBER(&r->arena, AG_EXPERIMENT_SEED),
                             "--output-dir",
                             output};
    r->stage = "g1-sft";
    add_compute(r, words, 21);
    if (ag_path_is_dir(output)) return AG_OK;
    return cli_stage_run(words, in(r, ".stage-output"), "scoring the adapter", err);
}

/* comparison.json as an experiment has it: the comparison, and that it was made. */
static ag_status publish_comparison(experiment_run *r, ag_err *err)
{
    json_t *root;
    AG_TRY(ag_json_load(&root, in(r, ".stage-g1/comparison.json"), 1 << 30, err));
    json_object_set_new(root, "status", json_string("scored"));
    ag_str text = {0};
    ag_json_add_canonical(&text, root);
    ag_str_add_char(&text, '\n');
    ag_status status = ag_file_publish(in(r, "comparison.json"), text.text, text.n, err);
    ag_str_free(&text);
    ag_json_free(&root);
    return status;
}

static ag_status publish_reproduction(experiment_run *r, ag_err *err)
{
    ag_str text = {0};
    ag_str_printf(&text, "# How to run this again\n\nExperiment `%s`, contract SHA-256 `%s`, frozen from commit `%s`.\n\n",
                  r->e->id, r->e->sha256.hex, r->e->git_commit);
    ag_str_printf(&text, "    git checkout %s\n    agoge run-granite-first-sft --contract " AG_EXPERIMENT_FILE "\n\n",
                  r->e->git_commit);
    ag_str_add(&text, "in a folder that holds the contract, its .sha256, the frozen split and the qualification report at the "
                      "same places. The bundle does\n"
                      "not depend on the number of threads; it does on the processor level, which training/ records.\n\n");
    ag_str_printf(&text, "The base was scored before training (g0-base/) and again with the adapter: the two %s.\n",
                  r->g0_agrees ? "agree to the byte" : "differ");
    ag_status status = ag_file_publish(in(r, "reproduction.md"), text.text, text.n, err);
    ag_str_free(&text);
    return status;
}

static ag_status publish(experiment_run *r, ag_err *err)
{
    static const char *const files[][2] = {{".stage-g1/contract.json", "evaluation-contract.json"},
                                           {".stage-g1/regressions.jsonl", "regressions.jsonl"},
                                           {".stage-g1/statistics.json", "statistics.json"},
                                           {".stage-g1/report.md", "report.md"}};
    ag_sha256 before, after;
    if (!is_there(r, "g1-sft/metrics.json")) AG_TRY(ag_rename_synced(in(r, ".stage-g1/sft"), in(r, "g1-sft"), err));
    AG_TRY(ag_sha256_file(&before, in(r, "g0-base/generations.jsonl"), err));
    AG_TRY(ag_sha256_file(&after, in(r, ".stage-g1/base/generations.jsonl"), err));
    r->g0_agrees = strcmp(before.hex, after.hex) == 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *text;
        size_t n;
        AG_TRY(ag_file_read(&text, &n, in(r, files[i][0]), (size_t)1 << 30, &r->arena, err));
        AG_TRY(ag_file_publish(in(r, files[i][1]), text, n, err));
    }
    AG_TRY(publish_reproduction(r, err));
    AG_TRY(publish_comparison(r, err)); /* last: where it says scored, everything is there */
    AG_TRY(ag_remove_tree(in(r, ".stage-output"), err));
    return ag_remove_tree(in(r, ".stage-g1"), err);
}

/* A run that failed says so, and concludes nothing. */
static void record_failure(experiment_run *r, const ag_err *why)
{
    json_t *root = json_pack("{s:s, s:s, s:s, s:s}", "schema_version", AG_COMPARISON_SCHEMA, "status", "not_run",
                             "failed_stage", r->stage, "reason", why->text);
    ag_str text = {0};
    ag_err ignored; /* the first failure is the one that is told */
    if (!root) return;
    ag_json_add_canonical(&text, root);
    ag_str_add_char(&text, '\n');
    (void)!ag_file_publish(in(r, "comparison.json"), text.text, text.n, &ignored);
    ag_str_free(&text);
    json_decref(root);
}

static ag_status refuse_finished(experiment_run *r, ag_err *err)
{
    json_t *root;
    if (!is_there(r, "comparison.json")) return AG_OK;
    AG_TRY(ag_json_load(&root, in(r, "comparison.json"), 1 << 30, err));
    const char *status = json_string_value(json_object_get(root, "status"));
    const bool is_scored = status && strcmp(status, "scored") == 0;
    ag_json_free(&root);
    if (!is_scored) return AG_OK;
    return ag_fail(err, AG_E_EXISTS,
                   "%s: the experiment was run, its comparison stands beside it; freeze a new one to run again", r->e->path);
}

static ag_status run_stages(experiment_run *r, ag_err *err)
{
    ag_lock lock;
    AG_TRY(refuse_finished(r, err));
    AG_TRY(ag_lock_take(&lock, r->e->dir, ".experiment.lock", err));
    ag_status status = score_base(r, err);
    if (!status) status = train(r, err);
    if (!status) status = score_adapter(r, err);
    if (!status) status = publish(r, err);
    if (status && err->code != AG_E_INTERRUPTED && err->code != AG_E_TERMINATED) record_failure(r, err);
    ag_lock_release(&lock);
    return status;
}

static int run_experiment(int argc, char **argv)
{
    options o = {.format = CLI_FORMAT_DEFAULT};
    ag_err err;
    experiment_run r = {.o = &o};
    CLI_PARSE(&cli_run_granite_first_sft, &o, argc, argv);
    r.threads = NUMBER(&r.arena, o.threads > 0 ? (int)o.threads : ag_physical_cores());
    ag_status status = ag_experiment_open(&r.e, o.contract, atoi(r.threads), &err);
    if (!status) status = run_stages(&r, &err);
    if (!status && cli_format_is_json(&o.format))
        printf("{\"status\": \"scored\"}\n");
    else if (!status)
        printf("scored; %s\n", in(&r, "report.md"));
    ag_experiment_close(&r.e);
    ag_arena_free(&r.arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_freeze_granite_first_sft = {.name = "freeze-granite-first-sft",
                                                  .summary =
                                                      "fix an experiment before it runs: split, model, budget, judgement",
                                                  .options = freeze_table,
                                                  .run = run_freeze};
const cli_command cli_run_granite_first_sft = {.name = "run-granite-first-sft",
                                               .summary =
                                                   "score the base, train, and score the adapter, as a frozen experiment says",
                                               .options = run_table,
                                               .run = run_experiment};
