#include "train/manifest.h"

#include "adapter/peft_io.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "seal/artifact_index.h"

static void write_metrics(ag_json_writer *w, const ag_manifest_args *a, const char *index)
{
    ag_jw_object(w, "metrics");
    ag_jw_double(w, "max_vram_gb", 0);
    ag_jw_object(w, "cpu_report");
    ag_jw_string(w, "processor", ag_cpu_name());
    ag_jw_string(w, "level", ag_cpu_level_name(a->job->backend->level));
    ag_jw_bool(w, "avx512_bf16", ag_cpu_has_avx512_bf16());
    ag_jw_int(w, "threads", a->job->backend->n_threads);
    ag_jw_uint(w, "peak_rss_bytes", ag_process_peak_rss());
    ag_jw_end(w);
    ag_jw_string(w, "artifact_index", index);
    ag_jw_int(w, "steps", a->n_steps);
    ag_jw_double(w, "loss", a->loss);
    ag_jw_end(w);
}

static void write_manifest(ag_str *out, const ag_manifest_args *a, const char *index)
{
    const ag_train_job *job = a->job;
    char now[32];
    ag_clock_utc(now);
    ag_json_writer w = {.out = out, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "timestamp", now);
    ag_train_config_write(job->config, &w, "config");
    ag_train_config_write_overrides(job->config, &w, "overrides");
    write_metrics(&w, a, index);
    ag_jw_object(&w, "model_metadata");
    ag_jw_string(&w, "dtype", job->model->quantization);
    ag_jw_int(&w, "parameters", ag_description_parameters(&job->model->d));
    ag_jw_int(&w, "trained_parameters", (int64_t)a->adapter->n_params);
    ag_jw_end(&w);
    ag_jw_object(&w, "tokenizer");
    ag_jw_string(&w, "name_or_path", job->config->model_id);
    ag_jw_int(&w, "vocab_size", ag_tokenizer_vocab_size(job->text->tokenizer));
    ag_jw_end(&w);
    ag_jw_object(&w, "dataset");
    ag_jw_int(&w, "num_rows", job->train.examples->n);
    ag_jw_end(&w);
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
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
    write_manifest(&text, a, ag_path_join(&arena, a->run_dir, AG_ARTIFACT_INDEX_FILE));
    ag_status status = ag_make_dirs(dir, err);
    if (!status) status = ag_file_publish(ag_path_join(&arena, dir, "manifest.json"), text.text, text.n, err);
    ag_str_free(&text);
    ag_arena_free(&arena);
    return status;
}
