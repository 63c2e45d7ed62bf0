/* agoge model-metadata, inspect-lora-targets, inspect-safetensors, dataset-stats: reports that load no weights. */
#include "cli/commands.h"
#include "cli/hub_access.h"
#include "cli/session.h"

#include "base/fs.h"
#include "base/json.h"
#include "model/inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *model_id, *revision, *out, *path;
    bool trust_remote_code;
    cli_format_options format;
} options;

static const cli_option metadata_table[] = {
    CLI_STRING("model-id", options, model_id, "MODEL", "a model folder, a .gguf file, or org/name on the hub", CLI_REQUIRED),
    CLI_STRING("revision", options, revision, "REV", "told in the report", 0),
    CLI_FLAG("trust-remote-code", options, trust_remote_code, "refused: agoge runs no code of a model"),
    CLI_FORMAT(options, format),
    CLI_END,
};
static const cli_option targets_table[] = {
    CLI_STRING("model-id", options, model_id, "MODEL", "a model folder, a .gguf file, or org/name on the hub", CLI_REQUIRED),
    CLI_STRING("out", options, out, "FILE", "write the report there, too", 0),
    CLI_FLAG("trust-remote-code", options, trust_remote_code, "refused: agoge runs no code of a model"),
    CLI_FORMAT(options, format),
    CLI_END,
};
static const cli_option safetensors_table[] = {
    CLI_STRING("path", options, path, "FILE", "a .safetensors file", CLI_REQUIRED),
    CLI_FORMAT(options, format),
    CLI_END,
};
static const cli_option stats_table[] = {
    CLI_STRING("path", options, path, "FILE", "a JSONL dataset", CLI_REQUIRED),
    CLI_STRING("model-id", options, model_id, "MODEL", "whose tokenizer counts", CLI_REQUIRED),
    CLI_FLAG("trust-remote-code", options, trust_remote_code, "refused: agoge runs no code of a model"),
    CLI_FORMAT(options, format),
    CLI_END,
};

static ag_status metadata(const options *o, ag_str *report, ag_err *err)
{
    ag_arena arena = {0};
    const char *path;
    ag_status status = cli_find_model(&path, o->model_id, o->revision, &arena, err);
    if (!status) status = ag_inspect_model_metadata(report, path, o->model_id, o->revision, err);
    ag_arena_free(&arena);
    return status;
}

static ag_status targets(const options *o, ag_str *report, ag_err *err)
{
    ag_arena arena = {0};
    const char *path;
    ag_status status = cli_find_model(&path, o->model_id, NULL, &arena, err);
    if (!status) status = ag_inspect_lora_targets(report, path, o->model_id, err);
    if (!status && o->out) {
        ag_str text = {0};
        ag_str_add_n(&text, report->text, report->n);
        ag_str_add_char(&text, '\n');
        status = ag_make_dirs(ag_path_dir(&arena, o->out), err);
        if (!status) status = ag_file_publish(o->out, text.text, text.n, err);
        ag_str_free(&text);
    }
    ag_arena_free(&arena);
    return status;
}

static ag_status safetensors(const options *o, ag_str *report, ag_err *err) { return ag_inspect_safetensors(report, o->path, err); }

static ag_status count_tokens(const options *o, const ag_model_text *text, ag_str *report, ag_err *err)
{
    ag_rows *rows;
    ag_examples *x = NULL;
    ag_chat chat = {0};
    if (text->chat) AG_TRY(ag_model_text_chat(&chat, text, err));
    AG_TRY(ag_rows_open(&rows, o->path, err));
    ag_status status = ag_examples_make(&x, rows, &(ag_examples_options){
        .tokenizer = text->tokenizer, .chat = chat.render ? &chat : NULL, .text_field = "text", .max_seq_length = INT64_MAX,
        .allow_no_target = true, .n_threads = 1}, err);
    if (!status) {
        ag_json_writer w = {.out = report, .indent = 2};
        char mean[64];
        snprintf(mean, sizeof mean, "%.2f", (double)x->n_tokens / (double)x->n);
        ag_jw_object(&w, NULL);
        ag_jw_int(&w, "rows", x->n);
        ag_jw_int(&w, "max_tokens", x->longest);
        ag_jw_double(&w, "mean_tokens", strtod(mean, NULL));
        ag_jw_int(&w, "min_tokens", x->shortest);
        ag_jw_end(&w);
        if (!cli_format_is_json(&o->format)) {
            ag_str_clear(report);
            ag_str_printf(report, "rows: %lld\nmax tokens: %lld\nmean tokens: %s\nmin tokens: %lld", (long long)x->n, (long long)x->longest,
                          mean, (long long)x->shortest);
        }
    }
    ag_examples_free(&x);
    ag_rows_close(&rows);
    return status;
}

static ag_status stats(const options *o, ag_str *report, ag_err *err)
{
    ag_model_text *text = NULL;
    ag_arena arena = {0};
    const char *path;
    ag_status status = cli_find_model(&path, o->model_id, NULL, &arena, err);
    if (!status) status = ag_model_text_open(&text, path, err);
    if (!status) status = count_tokens(o, text, report, err);
    ag_model_text_close(&text);
    ag_arena_free(&arena);
    return status;
}

static int run(const cli_command *command, int argc, char **argv, ag_status (*make)(const options *, ag_str *, ag_err *))
{
    options o = {.format = CLI_FORMAT_DEFAULT};
    ag_err err;
    ag_str report = {0};
    CLI_PARSE(command, &o, argc, argv);
    ag_status status = o.trust_remote_code ? ag_fail(&err, AG_E_UNSUPPORTED, "--trust-remote-code: agoge runs no code that comes with a model")
                                           : make(&o, &report, &err);
    if (!status) printf("%s\n", report.text);
    ag_str_free(&report);
    return status ? cli_fail(&err) : 0;
}

static int run_metadata(int argc, char **argv) { return run(&cli_model_metadata, argc, argv, metadata); }
static int run_targets(int argc, char **argv) { return run(&cli_inspect_lora_targets, argc, argv, targets); }
static int run_safetensors(int argc, char **argv) { return run(&cli_inspect_safetensors, argc, argv, safetensors); }
static int run_stats(int argc, char **argv) { return run(&cli_dataset_stats, argc, argv, stats); }

const cli_command cli_model_metadata = {
    .name = "model-metadata", .summary = "what a model's config says", .options = metadata_table, .run = run_metadata};
const cli_command cli_inspect_lora_targets = {
    .name = "inspect-lora-targets", .summary = "modules that adapters can go to", .options = targets_table, .run = run_targets};
const cli_command cli_inspect_safetensors = {
    .name = "inspect-safetensors", .summary = "names, shapes and dtypes in a weights file", .options = safetensors_table, .run = run_safetensors};
const cli_command cli_dataset_stats = {
    .name = "dataset-stats", .summary = "rows of a dataset and their tokens", .options = stats_table, .run = run_stats};
