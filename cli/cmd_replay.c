/* agoge replay: takes steps of a recorded run once more and holds them against the record, to the bit. */
#define _GNU_SOURCE
#include "cli/commands.h"
#include "cli/hub_access.h"
#include "cli/run_facts.h"
#include "cli/runtime.h"
#include "cli/terminal.h"

#include "base/fs.h"
#include "base/json.h"
#include "seal/bundle.h"
#include "seal/split_reader.h"
#include "train/config_record.h"
#include "train/replay.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *bundle, *run_dir, *manifest, *metrics, *dataset, *model, *from;
    int64_t steps;
    cli_compute_options compute;
    cli_format_options format;
} options;

static const cli_option table[] = {
    CLI_STRING("bundle", options, bundle, "DIR", "a sealed bundle; it is verified first", 0),
    CLI_STRING("run-dir", options, run_dir, "DIR", "or a run's folder on this machine, adapters/<run_name>", 0),
    CLI_STRING("from", options, from, "CHECKPOINT", "checkpoint-<step>, or start", CLI_REQUIRED),
    CLI_INT("steps", options, steps, "K", "how many steps to take", 1, 1000000000),
    CLI_STRING("model", options, model, "MODEL", "where the base is on this machine (default: what the config names)", 0),
    CLI_STRING("run-manifest", options, manifest, "FILE", "with --run-dir: the manifest (default: runs/<run_name>/manifest.json)", 0),
    CLI_STRING("metrics", options, metrics, "FILE", "with --run-dir: metrics.jsonl (default: the one in the config's logging_dir)", 0),
    CLI_STRING("dataset", options, dataset, "FILE", "with --run-dir: where the dataset is now (default: what the config names)", 0),
    CLI_COMPUTE(options, compute),
    CLI_FORMAT(options, format),
    CLI_END,
};

/* ---- where the record lies ------------------------------------------------------------------------------------------- */
typedef struct {
    ag_replay_files files;
    const char *dataset; /* NULL: as the config says */
    ag_arena arena;
} place;

static ag_status verified(const char *dir, int n_threads, ag_err *err)
{
    ag_bundle_report report;
    AG_TRY(ag_bundle_verify(&report, dir, &(ag_bundle_verify_options){.n_threads = n_threads}, err));
    const size_t n = report.n;
    ag_bundle_report_free(&report);
    if (n == 0) return AG_OK;
    return ag_fail(err, AG_E_VERIFY, "%s: does not verify (%zu failure%s), so its record proves nothing; see agoge verify-bundle %s", dir,
                   n, n == 1 ? "" : "s", dir);
}

/* The bundle was verified, so its inventory and split manifest can be read by name. */
static ag_status find_in_bundle(place *p, const options *o, int n_threads, ag_err *err)
{
    char *dir;
    json_t *inventory;
    ag_split_reader *split;
    AG_TRY(verified(o->bundle, n_threads, err));
    AG_TRY(ag_path_existing_dir(&dir, o->bundle, &p->arena, err));
    AG_TRY(ag_json_load(&inventory, ag_path_join(&p->arena, dir, AG_BUNDLE_INVENTORY_FILE), 64 << 20, err));
    const char *manifest = ag_path_join(&p->arena, dir, json_string_value(json_object_get(inventory, "run_manifest_path")));
    const char *adapter = ag_path_join(&p->arena, dir, json_string_value(json_object_get(inventory, "adapter_artifact_index_path")));
    const char *split_manifest = ag_path_join(&p->arena, dir, json_string_value(json_object_get(inventory, "split_manifest_path")));
    ag_json_free(&inventory);
    AG_TRY(ag_split_reader_load(&split, split_manifest, err));
    const char *train = json_string_value(json_object_get(json_object_get(json_object_get(split->root, "splits"), "train"), "path"));
    p->dataset = ag_path_join(&p->arena, ag_path_dir(&p->arena, split_manifest), train);
    ag_split_reader_free(&split);
    p->files = (ag_replay_files){.manifest = manifest, .checkpoints = ag_path_dir(&p->arena, adapter),
                                 .metrics = ag_path_join(&p->arena, ag_path_dir(&p->arena, manifest), "metrics.jsonl")};
    if (ag_path_is_file(p->files.metrics)) return AG_OK;
    return ag_fail(err, AG_E_NOT_FOUND,
                   "%s: the bundle holds no metrics.jsonl beside its manifest, so there is nothing to compare with; seal with --metrics",
                   o->bundle);
}

static ag_status find_run(place *p, const options *o, ag_err *err)
{
    char *dir, *manifest;
    json_t *root;
    AG_TRY(ag_path_existing_dir(&dir, o->run_dir, &p->arena, err));
    const char *usual = ag_arena_printf(&p->arena, "runs/%s/manifest.json", ag_path_base(dir));
    if (ag_path_existing_file(&manifest, o->manifest ? o->manifest : usual, &p->arena, err))
        return o->manifest ? err->code
                           : ag_fail(err, AG_E_NOT_FOUND,
                                     "%s is not there: the run has not ended, or lies elsewhere; name it with --run-manifest", usual);
    const char *metrics = o->metrics;
    AG_TRY(ag_json_load(&root, manifest, 16 << 20, err));
    if (!metrics) {
        const char *logging =
            json_string_value(json_object_get(json_object_get(json_object_get(root, "config"), "runtime"), "logging_dir"));
        metrics = ag_path_join(&p->arena, logging ? logging : ag_path_dir(&p->arena, manifest), "metrics.jsonl");
    }
    ag_json_free(&root);
    p->files = (ag_replay_files){.manifest = manifest, .metrics = metrics, .checkpoints = dir};
    p->dataset = o->dataset;
    return AG_OK;
}

/* ---- the replay ------------------------------------------------------------------------------------------------------ */
static void on_step(void *user, const ag_replay_step *s)
{
    char text[96];
    snprintf(text, sizeof text, "loss %.4f  norm %.3g  %s", s->loss, s->grad_norm,
             !s->is_recorded ? "not recorded"
             : s->is_same    ? "same bits"
                             : "differs");
    cli_progress_update(user, s->step, text);
}

static const char *number(ag_arena *arena, double value)
{
    ag_str text = {0};
    ag_str_add_double(&text, value);
    const char *copy = ag_arena_strdup(arena, text.text);
    ag_str_free(&text);
    return copy;
}

/* The two values that differ first. */
static void first_values(ag_replay_result *r, const char **recorded, const char **here)
{
    const ag_replay_step *s = r->first;
    const bool is_loss = strcmp(r->first_what, "loss") == 0;
    *recorded = s->recorded_adapter.hex;
    *here = s->adapter.hex;
    if (strcmp(r->first_what, "adapter") == 0) return;
    *recorded = number(&r->arena, is_loss ? s->recorded_loss : s->recorded_grad_norm);
    *here = number(&r->arena, is_loss ? s->loss : s->grad_norm);
}

static void write_steps(ag_json_writer *w, const ag_replay_result *r)
{
    ag_jw_array(w, "steps");
    for (size_t i = 0; i < r->n; i++) {
        const ag_replay_step *s = &r->steps[i];
        ag_jw_object(w, NULL);
        ag_jw_int(w, "step", s->step);
        ag_jw_double(w, "loss", s->loss);
        ag_jw_double(w, "grad_norm", s->grad_norm);
        if (s->is_recorded) ag_jw_bool(w, "same", s->is_same);
        else ag_jw_null(w, "same");
        ag_jw_string(w, "adapter_sha256", s->has_checkpoint ? s->adapter.hex : NULL);
        if (s->has_checkpoint) ag_jw_bool(w, "same_adapter", s->is_same_adapter);
        else ag_jw_null(w, "same_adapter");
        ag_jw_end(w);
    }
    ag_jw_end(w);
}

static void print_json(ag_replay_result *r, const options *o)
{
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "verdict", r->first ? "differs" : "same");
    ag_jw_string(&w, "from", o->from);
    ag_jw_uint(&w, "steps_compared", r->n_compared);
    ag_jw_uint(&w, "adapters_compared", r->n_checkpoints);
    if (r->first) {
        const char *recorded, *here;
        first_values(r, &recorded, &here);
        ag_jw_object(&w, "first_difference");
        ag_jw_int(&w, "step", r->first->step);
        ag_jw_string(&w, "what", r->first_what);
        ag_jw_string(&w, "recorded", recorded);
        ag_jw_string(&w, "replayed", here);
        ag_jw_end(&w);
    } else {
        ag_jw_null(&w, "first_difference");
    }
    write_steps(&w, r);
    ag_jw_array(&w, "environment");
    for (size_t i = 0; i < r->n_differences; i++) {
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "what", r->differences[i].what);
        ag_jw_string(&w, "recorded", r->differences[i].recorded);
        ag_jw_string(&w, "here", r->differences[i].here);
        ag_jw_bool(&w, "can_matter", r->differences[i].can_matter);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_end(&w);
    printf("%s\n", text.text);
    ag_str_free(&text);
}

static void print_text(ag_replay_result *r, const options *o)
{
    if (r->first) {
        const char *recorded, *here;
        first_values(r, &recorded, &here);
        printf("differs: step %lld, %s: recorded %s, replayed %s\n", (long long)r->first->step, r->first_what, recorded, here);
    } else {
        printf("same bits: %zu steps from %s (loss and gradient norm), %zu adapters\n", r->n_compared, o->from, r->n_checkpoints);
    }
    for (size_t i = 0; i < r->n_differences; i++)
        printf("  %-24s recorded %s, here %s%s\n", r->differences[i].what, r->differences[i].recorded, r->differences[i].here,
               r->differences[i].can_matter ? "" : " (does not matter)");
    if (r->first && r->n_differences == 0) printf("  the environment is the recorded one\n");
}

static ag_status replay_job(const options *o, const ag_replay_record *record, ag_train_config *config, const ag_backend *backend,
                            int64_t from, bool *same, ag_arena *arena, ag_err *err)
{
    ag_run_record me;
    ag_train_job *job;
    ag_replay_result result;
    cli_progress bar;
    cli_run_facts(&me, arena);
    AG_TRY(cli_find_model(&config->model_path, o->model ? o->model : config->model_id, config->revision, arena, err));
    AG_TRY(ag_train_job_open(&job, config, backend, &(ag_train_job_options){.record = &me}, err));
    cli_progress_begin(&bar, "step", from + o->steps, from);
    ag_status status = ag_replay_run(&result, record, job, from, o->steps, on_step, &bar, err);
    cli_progress_end(&bar);
    if (!status) {
        *same = result.first == NULL;
        if (cli_format_is_json(&o->format)) print_json(&result, o);
        else print_text(&result, o);
    }
    ag_replay_result_free(&result);
    ag_train_job_close(&job);
    return status;
}

static ag_status replay_record(const options *o, const place *p, const ag_replay_record *record, bool *same, ag_arena *arena, ag_err *err)
{
    ag_backend backend;
    ag_train_config *config;
    int64_t from;
    ag_cpu_level level;
    cli_compute_options compute = o->compute;
    AG_TRY(ag_replay_from(&from, record, o->from, err));
    if (!compute.cpu) {
        AG_TRY(ag_replay_level(&level, record, from, o->steps, err));
        compute.cpu = ag_cpu_level_name(level);
    }
    AG_TRY(cli_backend(&backend, &compute, err));
    AG_TRY(ag_train_config_from_record(&config, record->config, record->files.manifest, err));
    char *dataset;
    ag_status status = ag_path_existing_file(&dataset, p->dataset ? p->dataset : config->dataset_path, arena, err);
    if (status && !p->dataset) (void)ag_err_prefix(err, "the dataset that the config names (say where it is now with --dataset)");
    config->dataset_file = dataset;
    if (!status) status = replay_job(o, record, config, &backend, from, same, arena, err);
    ag_train_config_free(&config);
    return status;
}

static ag_status replay(const options *o, bool *same, ag_err *err)
{
    place p = {0};
    ag_replay_record record;
    if (!o->bundle == !o->run_dir) return ag_fail(err, AG_E_USAGE, "agoge replay takes one of --bundle and --run-dir");
    ag_status status = o->bundle ? find_in_bundle(&p, o, o->compute.threads > 0 ? (int)o->compute.threads : 1, err) : find_run(&p, o, err);
    if (!status) status = ag_replay_record_open(&record, &p.files, err);
    if (!status) {
        status = replay_record(o, &p, &record, same, &p.arena, err);
        ag_replay_record_close(&record);
    }
    ag_arena_free(&p.arena);
    return status;
}

static int run(int argc, char **argv)
{
    options o = {.steps = 1, .format = CLI_FORMAT_DEFAULT};
    ag_err err;
    bool same = false;
    CLI_PARSE(&cli_replay, &o, argc, argv);
    if (replay(&o, &same, &err)) return cli_fail(&err);
    return same ? 0 : 1;
}

const cli_command cli_replay = {.name = "replay",
                                .summary = "take steps of a recorded run once more and compare them to the bit",
                                .details = "Exit code 0 where loss, gradient norm and adapter are the recorded ones to the bit, 1 where "
                                           "they are not. The CPU level is the record's.",
                                .options = table,
                                .run = run};
