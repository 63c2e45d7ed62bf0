#include "train/manifest.h"

#include "adapter/peft_io.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "seal/artifact_index.h"

static void write_git(ag_json_writer *w, const ag_run_record *record)
{
    ag_jw_object(w, "git");
    if (record && record->git.is_known) {
        ag_jw_string(w, "commit", record->git.commit);
        ag_jw_string(w, "branch", record->git.branch);
        ag_jw_bool(w, "dirty", record->git.dirty);
    }
    ag_jw_end(w);
}

/* The first three are the forge's fields; here they say that there is no such thing. */
static void write_environment(ag_json_writer *w, const ag_run_record *record)
{
    ag_jw_object(w, "environment");
    ag_jw_string(w, "python_version", "None");
    ag_jw_string(w, "torch_version", "None");
    ag_jw_string(w, "cuda_version", "None");
    if (record) {
        ag_jw_string(w, "agoge_version", record->version);
        ag_jw_string(w, "agoge_commit", record->commit);
        ag_jw_string(w, "compiler", record->compiler);
        ag_jw_string(w, "system", record->system);
        ag_jw_object(w, "libraries");
        for (size_t i = 0; i < record->n_libraries; i++) ag_jw_string(w, record->libraries[i].name, record->libraries[i].version);
        ag_jw_end(w);
    }
    ag_jw_end(w);
}

static void write_telemetry(ag_json_writer *w, const ag_manifest_args *a)
{
    ag_arena arena = {0};
    const char *dir = ag_markers_dir(a->markers), *request = dir ? ag_path_join(&arena, dir, "profile-window-request.json") : NULL;
    ag_jw_object(w, "telemetry");
    ag_jw_string(w, "agoge_run_id", ag_markers_run_id(a->job));
    ag_jw_string(w, "markers", ag_markers_path(a->markers));
    ag_jw_string(w, "profile_window_request", request && ag_path_is_file(request) ? request : NULL);
    ag_jw_string(w, "profile_window", ag_profile_window_path(a->window));
    ag_jw_string(w, "profile_window_id", ag_profile_window_id_of(a->window));
    ag_jw_end(w);
    ag_arena_free(&arena);
}

/* GiB; what is allocated is what was planned, all of it before the first step. */
static void write_gpu(ag_json_writer *w, const ag_train_job *job)
{
    static const double gib = 1 << 30;
    ag_train_plan plan;
    ag_err ignored;
    if (!job->device || ag_train_job_plan_device(&plan, job, &ignored)) {
        ag_jw_double(w, "max_vram_gb", 0);
        ag_jw_null(w, "gpu_report");
        return;
    }
    const bkl_device_info *info = &job->device->info;
    ag_jw_double(w, "max_vram_gb", (double)plan.total / gib);
    ag_jw_object(w, "gpu_report");
    ag_jw_string(w, "device_name", info->name);
    ag_jw_array(w, "compute_capability");
    ag_jw_int(w, NULL, info->major);
    ag_jw_int(w, NULL, info->minor);
    ag_jw_end(w);
    ag_jw_double(w, "total_vram_gb", (double)info->memory_total / gib);
    ag_jw_double(w, "allocated_vram_gb", (double)plan.total / gib);
    ag_jw_bool(w, "bf16_supported", true);
    ag_jw_string(w, "backend", ag_device_backend_name(job->device));
    ag_jw_end(w);
}

static void write_metrics(ag_json_writer *w, const ag_manifest_args *a, const char *index)
{
    ag_train_plan plan;
    ag_train_job_plan(&plan, a->job);
    ag_jw_object(w, "metrics");
    write_gpu(w, a->job);
    ag_jw_object(w, "cpu_report");
    ag_jw_string(w, "processor", ag_cpu_name());
    ag_jw_string(w, "level", ag_cpu_level_name(a->job->backend->level));
    ag_jw_string(w, "numerics", ag_cpu_numerics_name(a->job->backend->level));
    ag_jw_int(w, "threads", a->job->backend->n_threads);
    ag_jw_uint(w, "peak_rss_bytes", ag_process_peak_rss());
    ag_jw_uint(w, "planned_bytes", plan.total); /* what `plan` foretold */
    ag_jw_end(w);
    ag_jw_string(w, "artifact_index", index);
    ag_jw_int(w, "steps", a->n_steps);
    ag_jw_double(w, "loss", a->loss);
    write_telemetry(w, a);
    ag_jw_end(w);
}

/* ---- what went in ---------------------------------------------------------------------------------------------------------------- */
typedef struct {
    const char *path, *name;
    ag_sha256 digest;
} input_file;

static bool is_part_of_model(const char *name)
{
    return ag_str_ends(name, ".safetensors") || ag_str_ends(name, ".json") || ag_str_ends(name, ".model");
}

static ag_status list_model(input_file **out, size_t *n, const char *path, ag_arena *arena, ag_err *err)
{
    char **names;
    size_t n_names;
    *n = 0;
    if (!ag_path_is_dir(path)) {
        *out = ag_arena_array(arena, 1, sizeof **out);
        (*out)[(*n)++] = (input_file){.path = path, .name = ag_path_base(path)};
        return AG_OK;
    }
    AG_TRY(ag_dir_list(&names, &n_names, path, arena, err));
    *out = ag_arena_array(arena, n_names, sizeof **out);
    for (size_t i = 0; i < n_names; i++) {
        const char *file = ag_path_join(arena, path, names[i]);
        if (is_part_of_model(names[i]) && ag_path_is_file(file)) (*out)[(*n)++] = (input_file){.path = file, .name = names[i]};
    }
    return AG_OK;
}

/* The bytes of the base: a folder on this machine has no revision that says which they are. */
static ag_status digest_model(input_file **files, size_t *n, const ag_train_job *job, ag_arena *arena, ag_err *err)
{
    ag_status failed = AG_OK;
    AG_TRY(list_model(files, n, job->config->model_path, arena, err));
#pragma omp parallel for schedule(dynamic, 1) num_threads(job->backend->n_threads)
    for (size_t i = 0; i < *n; i++) {
        ag_err own;
        const ag_status status = ag_sha256_file(&(*files)[i].digest, (*files)[i].path, &own);
        if (!status) continue;
#pragma omp critical(ag_manifest)
        {
            failed = status;
            if (err) *err = own;
        }
    }
    return failed;
}

static void write_model(ag_json_writer *w, const ag_manifest_args *a, const input_file *files, size_t n)
{
    const ag_train_job *job = a->job;
    ag_jw_object(w, "model_metadata");
    ag_jw_string(w, "dtype", job->model->quantization);
    ag_jw_int(w, "parameters", ag_description_parameters(&job->model->d));
    ag_jw_int(w, "trained_parameters", (int64_t)a->adapter->n_params);
    ag_jw_object(w, "files_sha256");
    for (size_t i = 0; i < n; i++) ag_jw_string(w, files[i].name, files[i].digest.hex);
    ag_jw_end(w);
    ag_jw_end(w);
}

static ag_status write_manifest(ag_str *out, const ag_manifest_args *a, const char *index, ag_arena *arena, ag_err *err)
{
    const ag_train_job *job = a->job;
    char now[32];
    input_file *files;
    size_t n_files;
    ag_sha256 dataset;
    AG_TRY(digest_model(&files, &n_files, job, arena, err));
    AG_TRY(ag_sha256_file(&dataset, job->config->dataset_file, err));
    ag_clock_utc(now);
    ag_json_writer w = {.out = out, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "timestamp", now);
    write_git(&w, job->record);
    ag_train_config_write(job->config, &w, "config");
    ag_train_config_write_overrides(job->config, &w, "overrides");
    write_metrics(&w, a, index);
    write_environment(&w, job->record);
    write_model(&w, a, files, n_files);
    ag_jw_object(&w, "tokenizer");
    ag_jw_string(&w, "name_or_path", job->config->model_id);
    ag_jw_int(&w, "vocab_size", ag_tokenizer_vocab_size(job->text->tokenizer));
    ag_jw_end(&w);
    ag_jw_object(&w, "dataset");
    ag_jw_int(&w, "num_rows", job->train.examples->n);
    ag_jw_string(&w, "sha256", dataset.hex);
    ag_jw_end(&w);
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
    return AG_OK;
}

ag_status ag_manifest_write_final(const ag_manifest_args *a, ag_err *err)
{
    const ag_train_config *c = a->job->config;
    AG_TRY(ag_peft_save(a->adapter, a->run_dir, c->model_id, c->revision, err));
    AG_TRY(ag_model_text_save(a->job->text, c->model_path, a->run_dir, err));
    if (!a->job->provenance)
        ag_log(AG_LOG_INFO, "the dataset is not a frozen split, so this run has no sealed provenance; export-final-model takes it with "
               "--allow-unsealed");
    AG_TRY(ag_artifact_index_write(a->run_dir, c->run_dir, a->job->provenance, a->job->backend->n_threads, err));

    ag_arena arena = {0};
    ag_str text = {0};
    const char *dir = ag_arena_printf(&arena, "runs/%s", c->run_name);
    ag_status status = write_manifest(&text, a, ag_path_join(&arena, a->run_dir, AG_ARTIFACT_INDEX_FILE), &arena, err);
    if (!status) status = ag_make_dirs(dir, err);
    if (!status) status = ag_file_publish(ag_path_join(&arena, dir, "manifest.json"), text.text, text.n, err);
    ag_str_free(&text);
    ag_arena_free(&arena);
    return status;
}
