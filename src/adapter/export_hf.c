#include "adapter/export_hf.h"

#include "base/fs.h"
#include "base/json.h"
#include "data/model_text.h"
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 4 << 20, TOKENIZER_FILE_MAX_BYTES = 64 << 20, BYTES_PER_WEIGHT = 2 };

/* ---- weights ------------------------------------------------------------------------------------------------------------- */
int64_t ag_hf_shards(int64_t *shard, const uint64_t *bytes, int64_t n, uint64_t max_bytes)
{
    int64_t n_shards = 0;
    uint64_t in_shard = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || (max_bytes > 0 && (in_shard > max_bytes || bytes[i] > max_bytes - in_shard))) {
            n_shards++;
            in_shard = 0;
        }
        shard[i] = n_shards - 1;
        in_shard += bytes[i];
    }
    return n_shards;
}

typedef struct {
    const char *dir;
    const ag_export_options *options;
    ag_export_report *report;
    const ag_export_tensor *tensors;
    int64_t n, n_shards;
    int64_t *shard; /* [n] */
    ag_export_buffer buffer;
    ag_arena arena;
} job;

static const char *shard_name(job *j, int64_t shard)
{
    if (j->n_shards == 1) return "model.safetensors";
    return ag_arena_printf(&j->arena, "model-%05lld-of-%05lld.safetensors", (long long)shard + 1, (long long)j->n_shards);
}

static ag_st_entry entry_of(const ag_export_tensor *t)
{
    ag_st_entry e = {.name = t->hf_name, .dtype = AG_ST_BF16, .rank = t->is_vector ? 1 : 2, .dim = {t->w.N, t->w.K}};
    if (t->is_vector) e.dim[1] = 0;
    return e;
}

typedef struct {
    ag_st_writer *writer;
    size_t entry;
} destination;

static ag_status add_bytes(void *user, const void *bytes, size_t n, ag_err *err)
{
    const destination *to = user;
    return ag_st_writer_add(to->writer, to->entry, bytes, n, err);
}

static ag_status write_shard(job *j, int64_t shard, ag_err *err)
{
    int64_t first = 0, n = 0;
    while (j->shard[first] != shard) first++;
    while (first + n < j->n && j->shard[first + n] == shard) n++;
    ag_st_entry *entries = ag_arena_array(&j->arena, (size_t)n, sizeof *entries);
    for (int64_t i = 0; i < n; i++) entries[i] = entry_of(&j->tensors[first + i]);

    static const ag_st_pair metadata[] = {{"format", "pt"}};
    ag_st_writer w;
    AG_TRY(ag_st_writer_begin(&w, ag_path_join(&j->arena, j->dir, shard_name(j, shard)), entries, (size_t)n, AG_ST_ORDER_LIBRARY,
                              metadata, 1, err));
    for (int64_t k = 0; k < n; k++) {
        destination to = {.writer = &w, .entry = w.order[k]};
        const ag_status status = ag_export_tensor_write(&j->tensors[first + (int64_t)to.entry], AG_W_BF16, 0, &j->buffer,
                                                        j->options->n_threads, add_bytes, &to, j->report, err);
        if (status) {
            ag_st_writer_abort(&w);
            return status;
        }
    }
    return ag_st_writer_commit(&w, err);
}

static int by_name(const void *a, const void *b) { return strcmp((*(const ag_export_tensor *const *)a)->hf_name, (*(const ag_export_tensor *const *)b)->hf_name); }

static ag_status write_index(job *j, ag_err *err)
{
    const ag_export_tensor **sorted = ag_arena_array(&j->arena, (size_t)j->n, sizeof *sorted);
    for (int64_t i = 0; i < j->n; i++) sorted[i] = &j->tensors[i];
    qsort(sorted, (size_t)j->n, sizeof *sorted, by_name);
    ag_str json = {0};
    ag_json_writer w = {.out = &json, .indent = 2};
    ag_jw_object(&w, NULL);
    ag_jw_object(&w, "metadata");
    ag_jw_uint(&w, "total_size", j->report->weight_bytes);
    ag_jw_end(&w);
    ag_jw_object(&w, "weight_map");
    for (int64_t i = 0; i < j->n; i++) ag_jw_string(&w, sorted[i]->hf_name, shard_name(j, j->shard[sorted[i] - j->tensors]));
    ag_jw_end(&w);
    ag_jw_end(&w);
    ag_str_add_char(&json, '\n');
    const ag_status status = ag_file_publish(ag_path_join(&j->arena, j->dir, "model.safetensors.index.json"), json.text, json.n, err);
    ag_str_free(&json);
    return status;
}

static ag_status write_weights(job *j, ag_err *err)
{
    ag_export_tensor *tensors;
    ag_export_tensors(&tensors, &j->n, j->options, AG_EXPORT_AS_HF, &j->arena);
    j->tensors = tensors;
    uint64_t *bytes = ag_arena_array(&j->arena, (size_t)j->n, sizeof *bytes);
    j->shard = ag_arena_array(&j->arena, (size_t)j->n, sizeof *j->shard);
    for (int64_t i = 0; i < j->n; i++) {
        bytes[i] = (uint64_t)(tensors[i].w.N * tensors[i].w.K) * BYTES_PER_WEIGHT;
        j->report->weight_bytes += bytes[i];
    }
    j->n_shards = ag_hf_shards(j->shard, bytes, j->n, j->options->max_shard_bytes);
    j->report->n_tensors = j->n;
    j->report->n_files = j->n_shards;
    AG_TRY(ag_export_buffer_create(&j->buffer, tensors, j->n, j->options->base->d.D, err));
    for (int64_t s = 0; s < j->n_shards; s++) AG_TRY(write_shard(j, s, err));
    return j->n_shards > 1 ? write_index(j, err) : AG_OK;
}

/* ---- configs and tokenizer -------------------------------------------------------------------------------------------------- */
static ag_status publish(job *j, const char *name, const char *text, size_t n, ag_err *err)
{
    return ag_file_publish(ag_path_join(&j->arena, j->dir, name), text, n, err);
}

/* The file's model is tied, what is written is not. */
static bool is_untied(const ag_export_options *options) { return options->stored && options->stored->d.tied && !options->base->d.tied; }

static ag_status write_configs(job *j, ag_err *err)
{
    const ag_model *base = j->options->base;
    ag_str config = {0}, generation = {0};
    ag_status status;
    char *text;
    size_t n;
    if (base->source == AG_SOURCE_HF) {
        const char *path = ag_path_join(&j->arena, base->path, "config.json");
        status = ag_file_read(&text, &n, path, CONFIG_MAX_BYTES, &j->arena, err);
        if (!status) status = ag_hf_config_carry_over(&config, text, n, path, is_untied(j->options), err);
    } else {
        status = ag_hf_config_write(&config, &base->d, err);
    }
    if (!status) status = publish(j, "config.json", config.text, config.n, err);

    const char *generation_path = ag_path_join(&j->arena, base->path, "generation_config.json");
    if (!status && base->source == AG_SOURCE_HF && ag_path_is_file(generation_path)) {
        status = ag_file_read(&text, &n, generation_path, CONFIG_MAX_BYTES, &j->arena, err);
        if (!status) ag_str_add_n(&generation, text, n);
    } else if (!status) {
        ag_hf_generation_config_write(&generation, &base->d);
    }
    if (!status) status = publish(j, "generation_config.json", generation.text, generation.n, err);
    ag_str_free(&config);
    ag_str_free(&generation);
    return status;
}

/* What transformers reads a tokenizer from; nothing else of the folder is copied. */
static const char *const tokenizer_files[] = {
    "tokenizer.json",  "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",  "vocab.json", "merges.txt",
    "tokenizer.model", "vocab.txt",             "chat_template.jinja",     "chat_template.json",
};

static ag_status copy_tokenizer(job *j, const char *from, ag_err *err)
{
    if (!ag_path_is_file(ag_path_join(&j->arena, from, "tokenizer.json")) &&
        !ag_path_is_file(ag_path_join(&j->arena, from, "tokenizer.model")))
        return ag_fail(err, AG_E_NOT_FOUND, "%s has no tokenizer.json to carry over; a model without its tokenizer cannot be used", from);
    for (size_t i = 0; i < sizeof tokenizer_files / sizeof *tokenizer_files; i++) {
        const char *path = ag_path_join(&j->arena, from, tokenizer_files[i]);
        if (!ag_path_is_file(path)) continue;
        ag_map map;
        AG_TRY(ag_map_open(&map, path, err));
        ag_status status = AG_OK;
        if (map.n > TOKENIZER_FILE_MAX_BYTES)
            status = ag_fail(err, AG_E_DATA, "%s has %zu bytes; a tokenizer's file has at most %d", path, map.n, TOKENIZER_FILE_MAX_BYTES);
        if (!status) status = publish(j, tokenizer_files[i], (const char *)map.bytes, map.n, err);
        ag_map_close(&map);
        if (status) return status;
    }
    return AG_OK;
}

static ag_status write_tokenizer(job *j, const char *gguf_path, ag_err *err)
{
    ag_model_text *text = NULL;
    ag_str tokenizer = {0}, config = {0}, specials = {0};
    ag_status status = ag_model_text_open(&text, gguf_path, err);
    if (!status) status = ag_tokenizer_write_json(text->tokenizer, &tokenizer, err);
    if (!status) {
        ag_tokenizer_write_config(text->tokenizer, text->chat_source, j->options->base->d.context_length, &config, &specials);
        status = publish(j, "tokenizer.json", tokenizer.text, tokenizer.n, err);
    }
    if (!status) status = publish(j, "tokenizer_config.json", config.text, config.n, err);
    if (!status) status = publish(j, "special_tokens_map.json", specials.text, specials.n, err);
    ag_str_free(&tokenizer);
    ag_str_free(&config);
    ag_str_free(&specials);
    ag_model_text_close(&text);
    return status;
}

ag_status ag_export_hf(const char *dir, const ag_export_options *options, ag_export_report *report, ag_err *err)
{
    *report = (ag_export_report){0};
    job j = {.dir = dir, .options = options, .report = report};
    const char *text_path = options->text_path ? options->text_path : options->base->path;
    ag_status status = write_configs(&j, err);
    if (!status && !ag_export_has_no_tokenizer(options, &j.arena))
        status = ag_path_is_dir(text_path) ? copy_tokenizer(&j, text_path, err) : write_tokenizer(&j, text_path, err);
    if (!status) status = write_weights(&j, err);
    if (!status) status = ag_export_measure_quantization(report, options, err);
    ag_export_buffer_free(&j.buffer);
    ag_arena_free(&j.arena);
    return status;
}
