/* agoge export-final-model, merge-adapter and export-gguf: a base and an adapter become one model. */
#include "cli/commands.h"
#include "cli/session.h"
#include "cli/terminal.h"

#include "adapter/export_gguf.h"
#include "adapter/export_hf.h"
#include "base/fs.h"
#include "base/json.h"
#include "seal/artifact_index.h"
#include "train/checkpoint.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *run_dir, *adapter, *base, *out, *max_shard_size, *type;
    bool allow_unsealed, allow_unsafe, trust_remote_code, save_safetensors, lora_only;
    cli_compute_options compute;
    cli_format_options format;
} options;

#define COMMON                                                                                                              \
    CLI_FLAG("allow-unsealed", options, allow_unsealed, "take a run that was not made on a frozen split"),                    \
    CLI_FLAG("allow-unsafe-serialization", options, allow_unsafe, "do not check the adapter's index"),                       \
    CLI_FLAG("trust-remote-code", options, trust_remote_code, "refused: agoge runs no code of a model"),                      \
    CLI_INT("threads", options, compute.threads, "N", "threads to use", 1, 256), CLI_FORMAT(options, format), CLI_END

static const cli_option final_table[] = {
    CLI_STRING("out-dir", options, out, "DIR", "folder to make; must not be there", CLI_REQUIRED),
    CLI_STRING("run-dir", options, run_dir, "DIR", "a run: its adapter, else its newest checkpoint", 0),
    CLI_STRING("adapter-path", options, adapter, "DIR", "an adapter; goes before --run-dir", 0),
    CLI_STRING("base-model", options, base, "MODEL", "the base (default: the one the adapter names)", 0),
    CLI_STRING("max-shard-size", options, max_shard_size, "SIZE", "largest file, like 500MB or 4GB (default 4GB)", 0),
    CLI_FLAG("save-safetensors", options, save_safetensors, "always on: agoge writes nothing else"),
    COMMON,
};
static const cli_option merge_table[] = {
    CLI_STRING("out-dir", options, out, "DIR", "folder to make; must not be there", CLI_REQUIRED),
    CLI_STRING("adapter-path", options, adapter, "DIR", "an adapter in PEFT's layout", CLI_REQUIRED),
    CLI_STRING("base-model", options, base, "MODEL", "its base: a model folder or .gguf file", CLI_REQUIRED),
    CLI_STRING("max-shard-size", options, max_shard_size, "SIZE", "largest file, like 500MB or 4GB (default 4GB)", 0),
    COMMON,
};
static const char *const gguf_types[] = {"f32", "f16", "bf16", "q8_0", NULL};
static const cli_option gguf_table[] = {
    CLI_STRING("out", options, out, "FILE", "the .gguf file to write", CLI_REQUIRED),
    CLI_CHOICE("type", options, type, "TYPE", "of the matrices (default f16)", gguf_types),
    CLI_STRING("run-dir", options, run_dir, "DIR", "a run: its adapter, else its newest checkpoint", 0),
    CLI_STRING("adapter", options, adapter, "DIR", "an adapter; goes before --run-dir", 0),
    CLI_STRING("model", options, base, "MODEL", "a model (default: the base that the adapter names)", 0),
    CLI_FLAG("lora-only", options, lora_only, "refused in this version: a GGUF of the adapter alone"),
    COMMON,
};

/* ---- where the adapter comes from --------------------------------------------------------------------------------------- */
static bool is_adapter(const char *dir, ag_arena *arena)
{
    return ag_path_is_file(ag_path_join(arena, dir, AG_PEFT_CONFIG_FILE)) && ag_path_is_file(ag_path_join(arena, dir, AG_PEFT_WEIGHTS_FILE));
}

static ag_status newest_checkpoint(const char **out, const char *run_dir, ag_arena *arena, ag_err *err)
{
    char **names;
    size_t n;
    int64_t newest = -1;
    AG_TRY(ag_dir_list(&names, &n, run_dir, arena, err));
    for (size_t i = 0; i < n; i++) {
        const int64_t step = ag_checkpoint_step(run_dir, names[i]);
        if (step <= newest) continue;
        newest = step;
        *out = ag_path_join(arena, run_dir, names[i]);
    }
    if (newest < 0)
        return ag_fail(err, AG_E_NOT_FOUND, "%s: has neither an adapter nor a whole checkpoint; train first, or give --adapter-path", run_dir);
    return AG_OK;
}

static ag_status find_source(const char **out, const options *o, ag_arena *arena, ag_err *err)
{
    char *dir;
    *out = NULL;
    if (o->adapter) {
        AG_TRY(ag_path_existing_dir(&dir, o->adapter, arena, err));
        if (!is_adapter(dir, arena))
            return ag_fail(err, AG_E_FORMAT, "%s: is no adapter: %s and %s must be in it", dir, AG_PEFT_CONFIG_FILE, AG_PEFT_WEIGHTS_FILE);
        *out = dir;
        return AG_OK;
    }
    if (!o->run_dir) return AG_OK;
    AG_TRY(ag_path_existing_dir(&dir, o->run_dir, arena, err));
    *out = dir;
    return is_adapter(dir, arena) ? AG_OK : newest_checkpoint(out, dir, arena, err);
}

/* Sealed provenance binds an adapter to the split it was trained on. A run without it can be exported only by saying so. */
static ag_status check_seal(ag_provenance *provenance, bool *sealed, const char *source, const options *o, ag_arena *arena, ag_err *err)
{
    AG_TRY(ag_artifact_index_provenance(provenance, sealed, source, arena, err));
    if (*sealed) return AG_OK;
    if (!o->allow_unsealed)
        return ag_fail(err, AG_E_VERIFY, "%s: its %s has no producer_provenance, so nobody can tell which rows it was trained on; "
                       "--allow-unsealed exports it all the same, without provenance", source, AG_ARTIFACT_INDEX_FILE);
    fprintf(stderr, "unsealed: the result carries no proof of what it was trained on, and no evaluation can be bound to it\n");
    return AG_OK;
}

/* ---- export ------------------------------------------------------------------------------------------------------------- */
typedef struct {
    const char *source, *base;
    ag_provenance provenance;
    bool sealed;
    ag_model *model;
    ag_peft *peft;
    int n_threads;
    ag_arena arena;
} job;

static ag_status open_job(job *j, const options *o, bool needs_seal, ag_err *err)
{
    ag_backend be;
    if (o->trust_remote_code) return ag_fail(err, AG_E_UNSUPPORTED, "--trust-remote-code: agoge runs no code that comes with a model");
    AG_TRY(cli_backend(&be, &o->compute, err));
    j->n_threads = be.n_threads;
    AG_TRY(find_source(&j->source, o, &j->arena, err));
    if (!j->source && !o->base) return ag_fail(err, AG_E_USAGE, "give --run-dir or an adapter; see --help");
    if (j->source && needs_seal) AG_TRY(check_seal(&j->provenance, &j->sealed, j->source, o, &j->arena, err));
    j->base = o->base;
    if (!j->base) {
        ag_peft_config config;
        AG_TRY(ag_peft_config_load(&config, j->source, &j->arena, err));
        if (!config.base_model || !*config.base_model)
            return ag_fail(err, AG_E_FORMAT, "%s: %s names no base_model_name_or_path; give the base", j->source, AG_PEFT_CONFIG_FILE);
        j->base = config.base_model;
    }
    AG_TRY(cli_check_model(j->base, err));
    AG_TRY(ag_model_open(&j->model, j->base, &(ag_model_options){.n_threads = be.n_threads}, err));
    return j->source ? ag_peft_open(&j->peft, j->source, &j->model->d, err) : AG_OK;
}

static void close_job(job *j)
{
    ag_peft_close(&j->peft);
    ag_model_close(&j->model);
    ag_arena_free(&j->arena);
}

static ag_export_options export_options(const job *j, uint64_t max_shard_bytes)
{
    return (ag_export_options){.base = j->model, .lora = j->peft ? j->peft->adapter.layers : NULL, .n_threads = j->n_threads,
                               .max_shard_bytes = max_shard_bytes};
}

static void print_report(const options *o, const ag_export_report *r)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "out", o->out);
    ag_jw_int(&w, "tensors", r->n_tensors);
    ag_jw_int(&w, "files", r->n_files);
    ag_jw_uint(&w, "weight_bytes", r->weight_bytes);
    ag_jw_double(&w, "rounding_max", r->rounding.largest);
    ag_jw_double(&w, "rounding_relative", ag_deviation_relative(&r->rounding));
    ag_jw_end(&w);
    if (cli_format_is_json(&o->format))
        printf("%s\n", out.text);
    else
        printf("%s: %lld tensors, %s in %lld file%s; writing the weights changed them by %.2g of their size (largest %.3g)\n", o->out,
               (long long)r->n_tensors, cli_bytes(r->weight_bytes), (long long)r->n_files, r->n_files == 1 ? "" : "s",
               ag_deviation_relative(&r->rounding), r->rounding.largest);
    ag_str_free(&out);
}

static ag_status fill_folder(const job *j, const char *staging, const options *o, uint64_t max_shard_bytes, ag_export_report *report, ag_err *err)
{
    const ag_export_options export = export_options(j, max_shard_bytes);
    AG_TRY(ag_export_hf(staging, &export, report, err));
    return ag_artifact_index_write(staging, o->out, j->sealed ? &j->provenance : NULL, j->n_threads, err);
}

static ag_status export_folder(job *j, const options *o, ag_err *err)
{
    uint64_t max_shard_bytes;
    ag_dir_writer dir;
    char *out;
    ag_export_report report;
    AG_TRY(ag_byte_size_parse(&max_shard_bytes, o->max_shard_size, err));
    AG_TRY(open_job(j, o, true, err));
    AG_TRY(ag_path_check(&out, o->out, &j->arena, err));
    AG_TRY(ag_make_dirs(ag_path_dir(&j->arena, out), err));
    AG_TRY(ag_dir_begin(&dir, out, ".agoge-export-staging-", err));
    ag_status status = fill_folder(j, dir.staging, o, max_shard_bytes, &report, err);
    if (status) {
        ag_dir_abort(&dir);
        return status;
    }
    AG_TRY(ag_dir_commit(&dir, err));
    print_report(o, &report);
    return AG_OK;
}

static ag_status export_file(job *j, const options *o, ag_err *err)
{
    ag_weight_type type;
    ag_export_report report;
    if (o->lora_only) return ag_fail(err, AG_E_UNSUPPORTED, "--lora-only is not there in this version; export the merged model");
    AG_TRY(ag_weight_type_parse(&type, o->type, err));
    AG_TRY(open_job(j, o, false, err));
    const ag_export_options export = export_options(j, 0);
    AG_TRY(ag_make_dirs(ag_path_dir(&j->arena, o->out), err));
    AG_TRY(ag_export_gguf(o->out, type, &export, &report, err));
    print_report(o, &report);
    return AG_OK;
}

static int run(const cli_command *command, int argc, char **argv, ag_status (*export)(job *, const options *, ag_err *))
{
    options o = {.max_shard_size = "4GB", .type = "f16", .save_safetensors = true, .format = CLI_FORMAT_DEFAULT};
    ag_err err;
    job j = {0};
    CLI_PARSE(command, &o, argc, argv);
    if (!o.save_safetensors) {
        ag_fail(&err, AG_E_UNSUPPORTED, "--no-save-safetensors: agoge writes merged models as safetensors only");
        return cli_fail(&err);
    }
    const ag_status status = export(&j, &o, &err);
    close_job(&j);
    return status ? cli_fail(&err) : 0;
}

static int run_final(int argc, char **argv) { return run(&cli_export_final_model, argc, argv, export_folder); }
static int run_merge(int argc, char **argv) { return run(&cli_merge_adapter, argc, argv, export_folder); }
static int run_gguf(int argc, char **argv) { return run(&cli_export_gguf, argc, argv, export_file); }

const cli_command cli_export_final_model = {.name = "export-final-model", .options = final_table, .run = run_final,
    .summary = "base and adapter merged into a model folder (bf16 safetensors)"};
const cli_command cli_merge_adapter = {.name = "merge-adapter", .options = merge_table, .run = run_merge,
    .summary = "the same for any adapter and a base that is named"};
const cli_command cli_export_gguf = {.name = "export-gguf", .options = gguf_table, .run = run_gguf,
    .summary = "a model, merged with an adapter, as one .gguf file for llama.cpp"};
