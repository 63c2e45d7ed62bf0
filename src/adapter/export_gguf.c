#include "adapter/export_gguf.h"

#include "adapter/export_gguf_metadata.h"
#include "adapter/export_gguf_model.h"
#include "base/log.h"

static uint32_t ggml_type(ag_weight_type type)
{
    switch (type) {
    case AG_W_F32: return AG_GGML_F32;
    case AG_W_F16: return AG_GGML_F16;
    case AG_W_BF16: return AG_GGML_BF16;
    case AG_W_Q4_0: return AG_GGML_Q4_0;
    case AG_W_Q5_0: return AG_GGML_Q5_0;
    case AG_W_Q5_1: return AG_GGML_Q5_1;
    case AG_W_Q4_K: return AG_GGML_Q4_K;
    case AG_W_Q5_K: return AG_GGML_Q5_K;
    case AG_W_Q6_K: return AG_GGML_Q6_K;
    default: AG_ASSERT(type == AG_W_Q8_0); return AG_GGML_Q8_0;
    }
}

static ag_status add_bytes(void *user, const void *bytes, size_t n, ag_err *err) { return ag_gguf_writer_add(user, bytes, n, err); }

typedef struct {
    ag_gguf_recipe recipe;
    const ag_export_options *options;
    ag_export_report *report;
    ag_export_tensor *tensors;
    int64_t n;
    ag_gguf_rope_tensor rope[AG_GGUF_MAX_ROPE_TENSORS];
    int n_rope;
    ag_gguf_writer writer;
    ag_export_buffer buffer;
    ag_arena arena;
} job;

static ag_weight_type type_of(const job *j, const ag_export_tensor *t)
{
    return t->is_vector ? AG_W_F32 : ag_gguf_recipe_type(j->recipe, t->gguf_name, t->w.K, &j->options->base->d);
}

static void tell_tensors(job *j)
{
    const ag_description *d = &j->options->base->d;
    j->n_rope = ag_export_gguf_rope_tensors(j->rope, d, &j->arena);
    for (int i = 0; i < j->n_rope; i++) ag_gguf_writer_tensor(&j->writer, j->rope[i].name, AG_GGML_F32, 1, (int64_t[]){ag_rope_dims(d) / 2});
    for (int64_t i = 0; i < j->n; i++) {
        const ag_export_tensor *t = &j->tensors[i];
        const ag_weight_type type = type_of(j, t);
        const int64_t ne[2] = {t->is_vector ? t->w.N : t->w.K, t->w.N};
        ag_gguf_writer_tensor(&j->writer, t->gguf_name, ggml_type(type), t->is_vector ? 1 : 2, ne);
        j->report->weight_bytes += (uint64_t)(t->w.N * ag_weight_row_bytes(type, t->w.K));
    }
    j->report->n_tensors = j->n + j->n_rope;
    j->report->n_files = 1;
}

static ag_status write_all(job *j, const char *path, ag_err *err)
{
    const ag_description *d = &j->options->base->d;
    const int in_pairs = ag_export_gguf_rope_pairs(d);
    AG_TRY(ag_export_gguf_metadata(&j->writer, j->recipe, j->options, &j->arena, err));
    ag_export_tensors(&j->tensors, &j->n, j->options, AG_EXPORT_AS_GGUF, &j->arena);
    tell_tensors(j);
    AG_TRY(ag_export_buffer_create(&j->buffer, j->tensors, j->n, d->D, err));
    AG_TRY(ag_gguf_writer_begin(&j->writer, path, err));
    for (int i = 0; i < j->n_rope; i++) AG_TRY(ag_gguf_writer_add(&j->writer, j->rope[i].factors, (size_t)(ag_rope_dims(d) / 2) * sizeof(float), err));
    int64_t n_weights = 0, n_done = 0;
    for (int64_t i = 0; i < j->n; i++) n_weights += j->tensors[i].w.N * j->tensors[i].w.K;
    for (int64_t i = 0; i < j->n; i++) {
        AG_TRY(ag_export_tensor_write(&j->tensors[i], type_of(j, &j->tensors[i]), in_pairs, &j->buffer, j->options->n_threads,
                                      add_bytes, &j->writer, j->report, err));
        n_done += j->tensors[i].w.N * j->tensors[i].w.K;
        if (j->options->progress) j->options->progress(j->options->progress_user, n_done, n_weights);
    }
    return ag_gguf_writer_commit(&j->writer, err);
}

static bool is_quantized(ag_weight_type type) { return type != AG_W_F32 && type != AG_W_F16 && type != AG_W_BF16; }

ag_status ag_export_gguf(const char *path, ag_gguf_recipe recipe, const ag_export_options *options, ag_export_report *report, ag_err *err)
{
    *report = (ag_export_report){0};
    const ag_model *base = options->base;
    if (base->source == AG_SOURCE_GGUF && is_quantized(base->layers[0].proj[0].type) && is_quantized(ag_gguf_recipe_base(recipe)) &&
        recipe != AG_RECIPE_Q8_0) /* eight bits lose next to nothing */
        ag_log(AG_LOG_WARN, "%s is quantized already (%s): what that lost stays lost, and this adds to it; quantize the original where there is one",
               base->path, base->quantization);
    job j = {.recipe = recipe, .options = options, .report = report};
    ag_status status = write_all(&j, path, err);
    if (!status) status = ag_export_measure_quantization(report, options, err);
    ag_gguf_writer_abort(&j.writer);
    ag_export_buffer_free(&j.buffer);
    ag_arena_free(&j.arena);
    return status;
}
