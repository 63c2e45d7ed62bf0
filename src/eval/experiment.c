#define _GNU_SOURCE
#include "eval/experiment.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "data/split.h"
#include "eval/contract.h"
#include "eval/scoring.h"
#include "seal/strict.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 16 << 20 };
#define FIELDS(table) table, sizeof table / sizeof *table

/* ---- the report of the model that is to be trained --------------------------------------------------------------- */
static const ag_strict_field report_fields[] = {
    {"schema_version", AG_STRICT_TEXT, 0},     {"model_repository", AG_STRICT_TEXT, 0},
    {"model_revision", AG_STRICT_REVISION, 0}, {"tokenizer_repository", AG_STRICT_TEXT, 0},
    {"tokenizer_revision", AG_STRICT_TEXT, 0}, {"tokenizer_sha256", AG_STRICT_DIGEST, 0},
    {"target_modules", AG_STRICT_TEXTS, 0},    {"verdict", AG_STRICT_TEXT, 0},
    {"lifecycle", AG_STRICT_TEXT, 0},          {"trust_remote_code", AG_STRICT_BOOL, 0},
};

static ag_status take_model(ag_qualification *out, const json_t *o, const char *name, ag_arena *arena, ag_err *err)
{
    const json_t *targets = json_object_get(o, "target_modules");
    const size_t n = json_array_size(targets);
    if (n < 1 || n > AG_EXPERIMENT_MAX_TARGETS)
        return ag_fail(err, AG_E_FORMAT, "%s: target_modules must name 1 to %d modules; qualify the model with its targets",
                       name, AG_EXPERIMENT_MAX_TARGETS);
    out->model_repository = ag_arena_strdup(arena, ag_strict_text(o, "model_repository"));
    out->model_revision = ag_arena_strdup(arena, ag_strict_text(o, "model_revision"));
    out->tokenizer_repository = ag_arena_strdup(arena, ag_strict_text(o, "tokenizer_repository"));
    out->tokenizer_revision = ag_arena_strdup(arena, ag_strict_text(o, "tokenizer_revision"));
    out->tokenizer_sha256 = ag_arena_strdup(arena, ag_strict_text(o, "tokenizer_sha256"));
    for (size_t i = 0; i < n; i++)
        out->target_modules[out->n_targets++] = ag_arena_strdup(arena, json_string_value(json_array_get(targets, i)));
    return AG_OK;
}

static ag_status check_report(const json_t *o, const char *path, ag_err *err)
{
    static const struct {
        const char *key, *value;
    } needed[] = {{"schema_version", "agoge.model-compatibility.v1"},
                  {"verdict", "pass"},
                  {"lifecycle", "load-train-save-reload-generate"}};
    AG_TRY(ag_strict_object(o, path, FIELDS(report_fields), err));
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (strcmp(ag_strict_text(o, needed[i].key), needed[i].value) != 0)
            return ag_fail(err, AG_E_VERIFY, "%s: %s is '%.80s', not %s; qualify the model first", path, needed[i].key,
                           ag_strict_text(o, needed[i].key), needed[i].value);
    if (json_is_true(json_object_get(o, "trust_remote_code")))
        return ag_fail(err, AG_E_VERIFY, "%s: trust_remote_code is true; an experiment runs no code that comes with a model",
                       path);
    return AG_OK;
}

ag_status ag_qualification_load(ag_qualification *out, const char *path, ag_arena *arena, ag_err *err)
{
    json_t *root;
    *out = (ag_qualification){0};
    AG_TRY(ag_json_load(&root, path, MAX_BYTES, err));
    ag_status status = check_report(root, path, err);
    if (!status) status = take_model(out, root, path, arena, err);
    ag_json_free(&root);
    return status;
}

/* ---- freezing ---------------------------------------------------------------------------------------------------- */
static json_t *budget_json(const ag_qualification *m)
{
    json_t *targets = json_array();
    for (int i = 0; i < m->n_targets; i++) json_array_append_new(targets, json_string(m->target_modules[i]));
    return json_pack("{s:s, s:f, s:i, s:i, s:i, s:i, s:i, s:s, s:b, s:b, s:s, s:i, s:i, s:f, s:o}", "budget_id",
                     AG_EXPERIMENT_BUDGET, "learning_rate", 1e-4, "num_train_epochs", 1, "batch_size", 1,
                     "gradient_accumulation_steps", 8, "seed", 42, "max_seq_length", 2048, "long_rows", "refuse",
                     "completion_only_loss", 1, "load_in_4bit", 1, "bnb_4bit_quant_type", "nf4", "lora_r", 16, "lora_alpha", 32,
                     "lora_dropout", 0.05, "target_modules", targets);
}

static json_t *evaluation_json(void)
{
    return json_pack("{s:s, s:s, s:{s:b, s:i, s:i, s:f, s:f}, s:i, s:s}", "metric", "exact-match accuracy", "scoring_version",
                     AG_SCORING_VERSION, "decoding", "do_sample", 0, "seed", AG_EXPERIMENT_SEED, "max_new_tokens",
                     AG_EXPERIMENT_NEW_TOKENS, "temperature", 0.0, "top_p", 1.0, "context_window", AG_EXPERIMENT_WINDOW,
                     "truncation_policy", "mark_unsupported");
}

static json_t *model_json(const ag_qualification *m)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "model_repository", m->model_repository, "model_revision", m->model_revision,
                     "tokenizer_repository", m->tokenizer_repository, "tokenizer_revision", m->tokenizer_revision,
                     "tokenizer_sha256", m->tokenizer_sha256);
}

static json_t *split_json(const ag_split *split, const char *dir, ag_arena *arena)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "manifest_path", ag_path_relative(arena, dir, split->path), "manifest_sha256",
                     split->manifest_sha256.hex, "train_sha256", split->part[AG_SPLIT_TRAIN].sha256.hex, "validation_sha256",
                     split->part[AG_SPLIT_VALIDATION].sha256.hex, "held_out_sha256", split->part[AG_SPLIT_HELD_OUT].sha256.hex);
}

static ag_status publish(const json_t *contract, const char *output, ag_sha256 *digest, ag_arena *arena, ag_err *err)
{
    ag_dir_writer w;
    ag_str text = {0};
    ag_json_add_canonical(&text, contract);
    ag_str_add_char(&text, '\n');
    *digest = ag_sha256_bytes(text.text, text.n);
    const char *line = ag_arena_printf(arena, "%s  " AG_EXPERIMENT_FILE "\n", digest->hex);
    ag_status status = ag_dir_begin(&w, output, ".agoge-experiment-staging-", err);
    if (!status) {
        status = ag_file_publish(ag_path_join(arena, w.staging, AG_EXPERIMENT_FILE), text.text, text.n, err);
        if (!status)
            status = ag_file_publish(ag_path_join(arena, w.staging, "experiment-contract.sha256"), line, strlen(line), err);
        if (status)
            ag_dir_abort(&w);
        else
            status = ag_dir_commit(&w, err);
    }
    ag_str_free(&text);
    return status;
}

static ag_status freeze(ag_sha256 *digest, const ag_experiment_options *o, ag_split **split, ag_arena *arena, ag_err *err)
{
    ag_qualification model;
    char *output, *report;
    ag_sha256 report_sha256;
    if (!o->experiment_id[strspn(o->experiment_id, " \t\n")])
        return ag_fail(err, AG_E_CONFIG, "--experiment-id is blank; name the experiment");
    AG_TRY(ag_path_absent_dir(&output, o->output_dir, arena, err));
    AG_TRY(ag_path_existing_file(&report, o->qualification_report, arena, err));
    AG_TRY(ag_qualification_load(&model, report, arena, err));
    AG_TRY(ag_sha256_file(&report_sha256, report, err));
    AG_TRY(ag_split_open(split, o->split_manifest, &(ag_split_check){.n_threads = o->n_threads}, err));
    json_t *contract =
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:{s:s, s:s}}", "schema_version", AG_EXPERIMENT_SCHEMA, "experiment_id",
                  o->experiment_id, "git_commit", o->git_commit, "budget", budget_json(&model), "evaluation", evaluation_json(),
                  "model", model_json(&model), "split", split_json(*split, output, arena), "qualification", "report_path",
                  ag_path_relative(arena, output, report), "report_sha256", report_sha256.hex);
    if (!contract) return ag_fail(err, AG_E_USAGE, "a name that the contract records is not UTF-8; give another");
    ag_status status = publish(contract, output, digest, arena, err);
    ag_json_free(&contract);
    return status;
}

ag_status ag_experiment_freeze(ag_sha256 *contract, const ag_experiment_options *options, ag_err *err)
{
    ag_arena arena = {0};
    ag_split *split = NULL;
    ag_status status = freeze(contract, options, &split, &arena, err);
    ag_split_close(&split);
    ag_arena_free(&arena);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static const ag_strict_field contract_fields[] = {
    {"schema_version", AG_STRICT_TEXT, 0}, {"experiment_id", AG_STRICT_TEXT, 0},   {"git_commit", AG_STRICT_REVISION, 0},
    {"budget", AG_STRICT_OBJECT, 0},       {"evaluation", AG_STRICT_OBJECT, 0},    {"model", AG_STRICT_OBJECT, 0},
    {"split", AG_STRICT_OBJECT, 0},        {"qualification", AG_STRICT_OBJECT, 0},
};
static const ag_strict_field split_fields[] = {{"manifest_path", AG_STRICT_TEXT, 0},
                                               {"manifest_sha256", AG_STRICT_DIGEST, 0},
                                               {"train_sha256", AG_STRICT_DIGEST, 0},
                                               {"validation_sha256", AG_STRICT_DIGEST, 0},
                                               {"held_out_sha256", AG_STRICT_DIGEST, 0}};
static const ag_strict_field qualification_fields[] = {{"report_path", AG_STRICT_TEXT, 0},
                                                       {"report_sha256", AG_STRICT_DIGEST, 0}};

/* "<digest>  experiment-contract.json" stands beside it. */
static ag_status check_digest(ag_experiment *e, ag_err *err)
{
    char *line;
    size_t n;
    AG_TRY(ag_sha256_file(&e->sha256, e->path, err));
    AG_TRY(ag_file_read(&line, &n, ag_path_join(&e->arena, e->dir, "experiment-contract.sha256"), 4096, &e->arena, err));
    if (n > 64 && strncmp(line, e->sha256.hex, 64) == 0 && line[64] == ' ') return AG_OK;
    return ag_fail(
        err, AG_E_VERIFY,
        "%s: its SHA-256 is %s, experiment-contract.sha256 says otherwise; the contract was changed, freeze a new one", e->path,
        e->sha256.hex);
}

/* What a contract of today's budget would say in its parts; anything else was frozen by another version. */
static ag_status check_parts(const ag_experiment *e, const json_t *root, ag_err *err)
{
    json_t *budget = budget_json(&e->model), *evaluation = evaluation_json(), *model = model_json(&e->model);
    const bool same = json_equal(budget, json_object_get(root, "budget")) &&
                      json_equal(evaluation, json_object_get(root, "evaluation")) &&
                      json_equal(model, json_object_get(root, "model"));
    json_decref(budget);
    json_decref(evaluation);
    json_decref(model);
    if (same) return AG_OK;
    return ag_fail(err, AG_E_VERIFY,
                   "%s: budget, evaluation or model are not those of " AG_EXPERIMENT_BUDGET
                   " and the qualified model; freeze a new "
                   "experiment",
                   e->path);
}

static ag_status open_split(ag_experiment *e, const json_t *o, int n_threads, ag_err *err)
{
    static const char *const keys[AG_N_SPLITS] = {"train_sha256", "validation_sha256", "held_out_sha256"};
    ag_split *split;
    /* the path in the contract may climb with ".."; it is resolved as a whole */
    char *real = realpath(ag_path_join(&e->arena, e->dir, ag_strict_text(o, "manifest_path")), NULL);
    if (!real)
        return ag_fail(err, AG_E_NOT_FOUND, "%s: the split manifest %s is not there; put it back", e->path,
                       ag_strict_text(o, "manifest_path"));
    e->split_manifest = ag_arena_strdup(&e->arena, real);
    free(real);
    AG_TRY(ag_split_open(&split, e->split_manifest, &(ag_split_check){.n_threads = n_threads}, err));
    bool same = strcmp(split->manifest_sha256.hex, ag_strict_text(o, "manifest_sha256")) == 0;
    for (int s = 0; s < AG_N_SPLITS; s++) same = same && strcmp(split->part[s].sha256.hex, ag_strict_text(o, keys[s])) == 0;
    e->train_file = ag_arena_strdup(&e->arena, split->part[AG_SPLIT_TRAIN].path);
    ag_split_close(&split);
    if (same) return AG_OK;
    return ag_fail(err, AG_E_VERIFY,
                   "%s: %s is not the split that was frozen with the experiment; put that back, or freeze a new one", e->path,
                   e->split_manifest);
}

static ag_status open_report(ag_experiment *e, const json_t *o, ag_err *err)
{
    const char *path = ag_path_join(&e->arena, e->dir, ag_strict_text(o, "report_path"));
    ag_sha256 digest;
    AG_TRY(ag_sha256_file(&digest, path, err));
    if (strcmp(digest.hex, ag_strict_text(o, "report_sha256")) != 0)
        return ag_fail(err, AG_E_VERIFY,
                       "%s: %s is not the report that was frozen with the experiment; put that back, or freeze a new one",
                       e->path, path);
    return ag_qualification_load(&e->model, path, &e->arena, err);
}

static ag_status read_contract(ag_experiment *e, const json_t *root, int n_threads, ag_err *err)
{
    const char *version = ag_strict_text(root, "schema_version");
    if (strcmp(version, AG_EXPERIMENT_SCHEMA) != 0)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: schema_version is '%.80s', this agoge runs " AG_EXPERIMENT_SCHEMA "; freeze a new experiment",
                       e->path, version);
    AG_TRY(ag_strict_object(root, e->path, FIELDS(contract_fields), err));
    AG_TRY(ag_strict_object(json_object_get(root, "split"), "split", FIELDS(split_fields), err));
    AG_TRY(ag_strict_object(json_object_get(root, "qualification"), "qualification", FIELDS(qualification_fields), err));
    e->id = ag_arena_strdup(&e->arena, ag_strict_text(root, "experiment_id"));
    e->git_commit = ag_arena_strdup(&e->arena, ag_strict_text(root, "git_commit"));
    AG_TRY(open_report(e, json_object_get(root, "qualification"), err));
    AG_TRY(check_parts(e, root, err));
    return open_split(e, json_object_get(root, "split"), n_threads, err);
}

static ag_status open_experiment(ag_experiment *e, const char *contract, int n_threads, ag_err *err)
{
    char *path;
    json_t *root;
    AG_TRY(ag_path_existing_file(&path, contract, &e->arena, err));
    e->path = path;
    e->dir = ag_path_dir(&e->arena, path);
    AG_TRY(check_digest(e, err));
    AG_TRY(ag_json_load(&root, path, MAX_BYTES, err));
    ag_status status = read_contract(e, root, n_threads, err);
    ag_json_free(&root);
    return status;
}

ag_status ag_experiment_open(ag_experiment **out, const char *contract, int n_threads, ag_err *err)
{
    ag_experiment *e = calloc(1, sizeof *e);
    if (!e) ag_out_of_memory(sizeof *e);
    ag_status status = open_experiment(e, contract, n_threads, err);
    if (status) ag_experiment_close(&e);
    *out = e;
    return status;
}

void ag_experiment_close(ag_experiment **experiment)
{
    if (!*experiment) return;
    ag_arena_free(&(*experiment)->arena);
    free(*experiment);
    *experiment = NULL;
}

/* ---- the training config ----------------------------------------------------------------------------------------- */
/* A JSON string is a YAML string. */
static void add_quoted(ag_str *out, const char *before, const char *text)
{
    ag_json_writer w = {.out = out, .indent = -1};
    ag_str_add(out, before);
    ag_jw_string(&w, NULL, text);
    ag_str_add_char(out, '\n');
}

void ag_experiment_write_config(ag_str *out, const ag_experiment *e, const char *output_dir, const char *run_name)
{
    add_quoted(out, "model_id: ", e->model.model_repository);
    add_quoted(out, "revision: ", e->model.model_revision);
    add_quoted(out, "dataset_path: ", e->train_file);
    add_quoted(out, "output_dir: ", output_dir);
    add_quoted(out, "run_name: ", run_name);
    ag_str_add(out, "learning_rate: 0.0001\nnum_train_epochs: 1\nbatch_size: 1\ngradient_accumulation_steps: 8\nseed: "
                    "42\nmax_seq_length: 2048\n"
                    "completion_only_loss: true\nload_in_4bit: true\nbnb_4bit_quant_type: nf4\nlora_r: 16\nlora_alpha: "
                    "32\nlora_dropout: 0.05\n"
                    "resume_from_latest_checkpoint: true\ntarget_modules_mode: explicit\ntarget_modules:\n");
    for (int i = 0; i < e->model.n_targets; i++) add_quoted(out, "  - ", e->model.target_modules[i]);
}
