/* agoge export-final-model, merge-adapter, export-gguf, quantize: a base and an adapter made into one model, as a folder or as a GGUF file. */
#define _GNU_SOURCE
#include "cli/commands.h"
#include "cli/export_seal.h"
#include "cli/hub_access.h"
#include "cli/runtime.h"
#include "cli/session.h"
#include "cli/terminal.h"

#include "adapter/export_gguf.h"
#include "adapter/export_hf.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "seal/artifact_index.h"
#include "train/run_scan.h"
#include "train/train_config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STAGING_PREFIX ".agoge-export-staging-"

typedef struct {
    const char *out_dir, *out, *run_dir, *adapter, *base, *revision, *type, *max_shard_size, *name;
    bool save_safetensors, allow_unsafe, allow_unsealed, trust_remote_code, load_in_4bit, lora_only;
    cli_compute_options compute;
    cli_format_options format;
} options;

/* ---- what is exported -------------------------------------------------------------------------------------------------------- */
typedef struct {
    const char *adapter; /* folder, or NULL: the base alone */
    const char *base, *base_path; /* as it was named; what is opened */
    const char *revision;
    ag_provenance provenance;
    bool is_sealed;
    ag_model *model, *original;
    ag_peft *peft;
    ag_backend backend;
    ag_arena arena;
} job;

static void job_close(job *j)
{
    ag_peft_close(&j->peft);
    ag_model_close(&j->original);
    ag_model_close(&j->model);
    ag_arena_free(&j->arena);
}

static bool is_adapter(job *j, const char *dir)
{
    return ag_path_is_file(ag_path_join(&j->arena, dir, AG_PEFT_CONFIG_FILE)) &&
           (ag_path_is_file(ag_path_join(&j->arena, dir, AG_PEFT_WEIGHTS_FILE)) ||
            ag_path_is_file(ag_path_join(&j->arena, dir, AG_PEFT_PICKLED_FILE)));
}

/* What run-status names as the source: the run's final adapter, else its newest valid checkpoint. */
static ag_status adapter_of_run(job *j, const char *run_dir, bool allow_unsafe, ag_err *err)
{
    char *dir;
    ag_run_scan scan;
    AG_TRY(ag_path_existing_dir(&dir, run_dir, &j->arena, err));
    AG_TRY(ag_run_scan_make(&scan, dir, allow_unsafe, &j->arena, err));
    if (scan.has_final_adapter) j->adapter = dir;
    else if (scan.latest) j->adapter = ag_path_join(&j->arena, dir, scan.latest->name);
    if (j->adapter) return AG_OK;
    if (scan.unsafe)
        return ag_fail(err, AG_E_CONFIG, "%s/%s could hold code and hides what it lies beside; move it away, or pass "
                       "--allow-unsafe-serialization", run_dir, scan.unsafe);
    return ag_fail(err, AG_E_NOT_FOUND, "%s has neither an adapter nor a whole checkpoint to export", run_dir);
}

static ag_status choose_adapter(job *j, const options *o, ag_err *err)
{
    if (!o->adapter) return o->run_dir ? adapter_of_run(j, o->run_dir, o->allow_unsafe, err) : AG_OK;
    char *dir;
    AG_TRY(ag_path_existing_dir(&dir, o->adapter, &j->arena, err));
    if (!is_adapter(j, dir))
        return ag_fail(err, AG_E_USAGE, "%s is no adapter; it needs %s and %s", o->adapter, AG_PEFT_CONFIG_FILE, AG_PEFT_WEIGHTS_FILE);
    j->adapter = dir;
    return AG_OK;
}

/* The base that was given, else the one that the adapter names; its revision belongs to the latter only. */
static ag_status choose_base(job *j, const options *o, ag_err *err)
{
    j->base = o->base;
    if (j->adapter) {
        ag_peft_config config;
        AG_TRY(ag_peft_config_load(&config, j->adapter, &j->arena, err));
        if (!j->base) {
            if (!config.base_model || !*config.base_model)
                return ag_fail(err, AG_E_CONFIG, "%s/%s names no base model; give it with --base-model", j->adapter, AG_PEFT_CONFIG_FILE);
            j->base = config.base_model;
            j->revision = config.revision;
        }
    }
    return cli_find_model(&j->base_path, j->base, j->revision ? j->revision : o->revision, &j->arena, err);
}

static ag_status open_models(job *j, const options *o, ag_err *err)
{
    AG_TRY(cli_backend(&j->backend, &o->compute, err));
    const ag_model_options as_stored = {.n_threads = j->backend.n_threads}, quantized = {
        .quantize_nf4 = true, .double_quant = true, .n_threads = j->backend.n_threads};
    AG_TRY(ag_model_open(&j->model, j->base_path, o->load_in_4bit ? &quantized : &as_stored, err));
    if (o->load_in_4bit && j->model->source == AG_SOURCE_HF) AG_TRY(ag_model_open(&j->original, j->base_path, &as_stored, err));
    if (!j->adapter) return AG_OK;
    AG_TRY(ag_peft_open_on(&j->peft, j->adapter, j->model, &(ag_peft_options){.allow_pickle = o->allow_unsafe}, err));
    if (j->model->d.tied && !j->peft->adapter.model.d.tied)
        ag_log(AG_LOG_WARN, "%s: trains the embedding or the head of a tied model, so what is exported is not tied: it has both tables", j->adapter);
    return AG_OK;
}

static ag_export_options export_options(const job *j, const options *o)
{
    ag_export_options e = {.base = j->model, .original = j->original, .n_threads = j->backend.n_threads,
                           .name = o->name || j->base_path == j->base ? o->name : ag_path_base(j->base)};
    if (!j->peft) return e;
    const ag_adapter *adapter = &j->peft->adapter;
    e.base = &adapter->model;
    e.stored = j->model;
    e.lora = adapter->layers;
    e.embed_lora = adapter->embed.R > 0 ? &adapter->embed : NULL;
    return e;
}

/* ---- the result -------------------------------------------------------------------------------------------------------------- */
static void write_deviation(ag_json_writer *w, const char *key, const ag_deviation *d)
{
    if (d->n == 0) {
        ag_jw_null(w, key);
        return;
    }
    ag_jw_object(w, key);
    ag_jw_double(w, "max", d->largest);
    ag_jw_double(w, "mean", ag_deviation_mean(d));
    ag_jw_double(w, "relative", ag_deviation_relative(d));
    ag_jw_end(w);
}

static void print_result(const job *j, const options *o, const char *out, const char *type, const ag_export_report *r)
{
    if (cli_format_is_json(&o->format)) {
        ag_str text = {0};
        ag_json_writer w = {.out = &text};
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "out", out);
        ag_jw_string(&w, "type", type);
        ag_jw_string(&w, "base_model", j->base);
        ag_jw_string(&w, "adapter", j->adapter);
        ag_jw_int(&w, "files", r->n_files);
        ag_jw_int(&w, "tensors", r->n_tensors);
        ag_jw_uint(&w, "weight_bytes", r->weight_bytes);
        write_deviation(&w, "rounding", &r->rounding);
        ag_jw_object(&w, "rounding_of");
        for (int k = 0; k < AG_EXPORT_N_KINDS; k++)
            if (r->rounding_of[k].n > 0) write_deviation(&w, ag_export_kind_name(k), &r->rounding_of[k]);
        ag_jw_end(&w);
        write_deviation(&w, "quantization", &r->quantization);
        ag_jw_end(&w);
        printf("%s\n", text.text);
        ag_str_free(&text);
        return;
    }
    printf("%s: %lld tensors, %.1f MB in %lld file%s, %s\n", out, (long long)r->n_tensors, (double)r->weight_bytes / 1e6,
           (long long)r->n_files, r->n_files == 1 ? "" : "s", type);
    printf("  rounding to %s moved weights by %.2g %% on average, %.3g at most\n", type, 100 * ag_deviation_relative(&r->rounding),
           r->rounding.largest);
    for (int k = 0; k < AG_EXPORT_N_KINDS; k++)
        if (r->rounding_of[k].n > 0)
            printf("    %-12s %.2g %% on average, %.3g at most\n", ag_export_kind_name(k), 100 * ag_deviation_relative(&r->rounding_of[k]),
                   r->rounding_of[k].largest);
    if (r->quantization.n > 0)
        printf("  merged with the NF4 weights that training saw; they are %.2g %% off the original ones on average, %.3g at most\n",
               100 * ag_deviation_relative(&r->quantization), r->quantization.largest);
}

/* ---- folders ------------------------------------------------------------------------------------------------------------------ */
static ag_status check_flags(const options *o, ag_err *err)
{
    if (!o->save_safetensors)
        return ag_fail(err, AG_E_USAGE, "--no-save-safetensors is refused: a merged model is always written as safetensors");
    if (o->trust_remote_code)
        return ag_fail(err, AG_E_UNSUPPORTED, "--trust-remote-code is refused: no code of a model is ever run");
    return AG_OK;
}

static ag_status check_seal(job *j, const options *o, ag_err *err)
{
    const cli_export_source source = {
        .adapter = j->adapter, .base = j->base, .base_path = j->base_path, .revision = o->base ? NULL : j->revision, .base_was_given = o->base != NULL,
        .allow_unsafe = o->allow_unsafe, .allow_unsealed = o->allow_unsealed,
        .n_threads = o->compute.threads > 0 ? (int)o->compute.threads : ag_physical_cores()};
    return cli_export_check_seal(&j->provenance, &j->is_sealed, &source, &j->arena, err);
}

/* An empty folder may stand there; anything else is not written over. */
static ag_status make_way(const char *out_dir, ag_err *err)
{
    if (access(out_dir, F_OK) != 0 || rmdir(out_dir) == 0) return AG_OK;
    return ag_fail(err, AG_E_EXISTS, "%s is there already; name a new folder, or remove it first", out_dir);
}

static ag_status export_folder(job *j, const options *o, ag_err *err)
{
    char *out_dir;
    ag_export_report report;
    AG_TRY(ag_path_check(&out_dir, o->out_dir, &j->arena, err));
    AG_TRY(make_way(out_dir, err));
    uint64_t max_shard_bytes;
    AG_TRY(ag_byte_size_parse(&max_shard_bytes, o->max_shard_size, err));
    AG_TRY(open_models(j, o, err));
    ag_export_options e = export_options(j, o);
    e.max_shard_bytes = max_shard_bytes;
    AG_TRY(ag_make_dirs(ag_path_dir(&j->arena, out_dir), err));
    ag_dir_writer dir;
    AG_TRY(ag_dir_begin(&dir, out_dir, STAGING_PREFIX, err));
    ag_status status = ag_export_hf(dir.staging, &e, &report, err);
    if (!status)
        status = ag_artifact_index_write(dir.staging, o->out_dir, j->is_sealed ? &j->provenance : NULL, j->backend.n_threads, err);
    if (!status) status = ag_dir_commit(&dir, err);
    if (status)
        ag_dir_abort(&dir);
    else
        print_result(j, o, o->out_dir, "bf16", &report);
    return status;
}

static ag_status export_final_model(job *j, const options *o, ag_err *err)
{
    AG_TRY(check_flags(o, err));
    if (!o->adapter && !o->run_dir) return ag_fail(err, AG_E_USAGE, "agoge export-final-model needs --run-dir or --adapter-path");
    AG_TRY(choose_adapter(j, o, err));
    AG_TRY(choose_base(j, o, err));
    AG_TRY(check_seal(j, o, err));
    return export_folder(j, o, err);
}

static ag_status merge_adapter(job *j, const options *o, ag_err *err)
{
    AG_TRY(check_flags(o, err));
    AG_TRY(choose_adapter(j, o, err));
    AG_TRY(choose_base(j, o, err));
    AG_TRY(check_seal(j, o, err));
    return export_folder(j, o, err);
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------------------------ */
static ag_status export_lora(const job *j, const options *o, const char *out, ag_weight_type type, ag_err *err)
{
    ag_export_report report;
    if (!j->peft) return ag_fail(err, AG_E_USAGE, "--lora-only needs an adapter: give --run-dir or --adapter");
    AG_TRY(ag_export_gguf_lora(out, type, &j->peft->adapter, &j->model->d, o->name ? o->name : ag_path_base(j->adapter), &report, err));
    print_result(j, o, o->out, ag_weight_type_name(type), &report);
    return AG_OK;
}

typedef struct {
    cli_progress progress;
    bool is_begun;
} bar;

static void on_progress(void *user, int64_t done, int64_t total)
{
    enum { MILLION = 1000000 };
    bar *b = user;
    if (!b->is_begun) cli_progress_begin(&b->progress, "M weights", (total + MILLION - 1) / MILLION, 0);
    b->is_begun = true;
    cli_progress_update(&b->progress, done == total ? b->progress.total : done / MILLION, "");
}

static ag_status export_gguf(job *j, const options *o, ag_err *err)
{
    ag_gguf_recipe recipe;
    ag_export_report report;
    char *out;
    if (o->run_dir && o->adapter) return ag_fail(err, AG_E_USAGE, "agoge export-gguf takes one of --run-dir and --adapter");
    if (!o->run_dir && !o->adapter && !o->base)
        return ag_fail(err, AG_E_USAGE, "agoge export-gguf needs --run-dir, --adapter or --model");
    AG_TRY(ag_gguf_recipe_parse(&recipe, o->type, err));
    AG_TRY(ag_path_check(&out, o->out, &j->arena, err));
    AG_TRY(choose_adapter(j, o, err));
    AG_TRY(choose_base(j, o, err));
    AG_TRY(open_models(j, o, err));
    ag_export_options e = export_options(j, o);
    bar b = {0};
    e.progress = on_progress;
    e.progress_user = &b;
    AG_TRY(ag_make_dirs(ag_path_dir(&j->arena, out), err));
    if (o->lora_only) return export_lora(j, o, out, ag_gguf_recipe_base(recipe), err);
    const ag_status status = ag_export_gguf(out, recipe, &e, &report, err);
    if (b.is_begun) cli_progress_end(&b.progress);
    AG_TRY(status);
    print_result(j, o, o->out, ag_gguf_recipe_name(recipe), &report);
    return AG_OK;
}

/* ---- the commands ---------------------------------------------------------------------------------------------------------------- */
static int run(const cli_command *command, ag_status (*what)(job *, const options *, ag_err *), int argc, char **argv)
{
    options o = {.save_safetensors = true, .max_shard_size = "4GB", .type = command == &cli_quantize ? "q4_k_m" : "f16",
                 .format = CLI_FORMAT_DEFAULT};
    ag_err err;
    job j = {0};
    CLI_PARSE(command, &o, argc, argv);
    const ag_status status = what(&j, &o, &err);
    job_close(&j);
    return status ? cli_fail(&err) : 0;
}

#define FOLDER_OPTIONS                                                                                                              \
    CLI_STRING("max-shard-size", options, max_shard_size, "SIZE", "largest file of weights (default: 4GB)", 0),                     \
    CLI_FLAG("save-safetensors", options, save_safetensors, "always; refused when negated"),                                        \
    CLI_FLAG("allow-unsafe-serialization", options, allow_unsafe, "go on where an adapter_model.bin lies beside the adapter"),      \
    CLI_FLAG("allow-unsealed", options, allow_unsealed, "export an adapter that nothing vouches for; the result carries no provenance"), \
    CLI_FLAG("trust-remote-code", options, trust_remote_code, "refused: no code of a model is ever run")
#define SHARED_OPTIONS                                                                                                              \
    CLI_STRING("revision", options, revision, "REV", "of a base that is on the hub", 0),                                            \
    CLI_FLAG("load-in-4bit", options, load_in_4bit, "merge with the NF4 weights that QLoRA training saw, and tell how far off they are"), \
    CLI_COMPUTE(options, compute),                                                                                                  \
    CLI_FORMAT(options, format),                                                                                                    \
    CLI_END

static const cli_option final_table[] = {
    CLI_STRING("out-dir", options, out_dir, "DIR", "the folder to make", CLI_REQUIRED),
    CLI_STRING("run-dir", options, run_dir, "DIR", "a run: its adapter, else that of its highest checkpoint", 0),
    CLI_STRING("adapter-path", options, adapter, "DIR", "an adapter; wins over --run-dir", 0),
    CLI_STRING("base-model", options, base, "MODEL", "a model folder or .gguf file (default: the one that the adapter names)", 0),
    FOLDER_OPTIONS, SHARED_OPTIONS,
};
static const cli_option merge_table[] = {
    CLI_STRING("base-model", options, base, "MODEL", "a model folder, a .gguf file, or org/name on the hub", CLI_REQUIRED),
    CLI_STRING("adapter-path", options, adapter, "DIR", "an adapter in PEFT's layout", CLI_REQUIRED),
    CLI_STRING("out-dir", options, out_dir, "DIR", "the folder to make", CLI_REQUIRED),
    FOLDER_OPTIONS, SHARED_OPTIONS,
};
static const char *const gguf_types[] = {
#define X(recipe, name, type, file_type) name,
    AG_GGUF_RECIPES(X)
#undef X
    NULL};
static const cli_option gguf_table[] = {
    CLI_STRING("out", options, out, "FILE", "the .gguf file to write", CLI_REQUIRED),
    CLI_CHOICE("type", options, type, "TYPE", "of the matrices (default: f16)", gguf_types),
    CLI_STRING("run-dir", options, run_dir, "DIR", "a run: its adapter, else that of its highest checkpoint", 0),
    CLI_STRING("adapter", options, adapter, "DIR", "an adapter in PEFT's layout", 0),
    CLI_STRING("model", options, base, "MODEL", "the base (default: the one that the adapter names); alone: exported as it is", 0),
    CLI_FLAG("lora-only", options, lora_only, "the adapter alone, as llama.cpp's --lora takes it (f16 or f32)"),
    CLI_STRING("name", options, name, "NAME", "general.name of the file (default: the base's folder)", 0),
    SHARED_OPTIONS,
};
static const cli_option quantize_table[] = {
    CLI_STRING("model", options, base, "MODEL", "a model folder, a .gguf file, or org/name on the hub", CLI_REQUIRED),
    CLI_CHOICE("type", options, type, "TYPE", "of the matrices (default: q4_k_m)", gguf_types),
    CLI_STRING("out", options, out, "FILE", "the .gguf file to write", CLI_REQUIRED),
    CLI_STRING("name", options, name, "NAME", "general.name of the file (default: the model's folder)", 0),
    SHARED_OPTIONS,
};

static int run_final(int argc, char **argv) { return run(&cli_export_final_model, export_final_model, argc, argv); }
static int run_merge(int argc, char **argv) { return run(&cli_merge_adapter, merge_adapter, argc, argv); }
static int run_gguf(int argc, char **argv) { return run(&cli_export_gguf, export_gguf, argc, argv); }
static int run_quantize(int argc, char **argv) { return run(&cli_quantize, export_gguf, argc, argv); }

const cli_command cli_export_final_model = {
    .name = "export-final-model", .summary = "a run's base and adapter merged into a model folder (bf16 safetensors)",
    .options = final_table, .run = run_final};
const cli_command cli_merge_adapter = {
    .name = "merge-adapter", .summary = "the same for any adapter and base", .options = merge_table, .run = run_merge};
const cli_command cli_export_gguf = {
    .name = "export-gguf", .summary = "a model, or base and adapter merged, as a GGUF file for llama.cpp", .options = gguf_table,
    .run = run_gguf};
const cli_command cli_quantize = {
    .name = "quantize", .summary = "a model as a quantized GGUF file for llama.cpp", .options = quantize_table, .run = run_quantize};
