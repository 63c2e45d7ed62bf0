/* Keys and names: llama.cpp's convert_lora_to_gguf.py and src/llama-adapter.cpp. */
#include "adapter/export_gguf.h"

#include "adapter/export_gguf_metadata.h"
#include "model/description_gguf.h"

typedef struct {
    ag_gguf_writer writer;
    ag_weight_type type;
    ag_export_report *report;
    ag_arena arena;
} job;

/* llama.cpp multiplies with alpha over the rank. */
static float alpha_of(const ag_adapter_pair *p) { return p->scale * (float)p->R; }

static void put_metadata(ag_gguf_writer *w, const ag_adapter *adapter, const ag_description *d, const char *name)
{
    ag_gguf_put_text(w, "general.architecture", ag_export_gguf_architecture(d));
    ag_gguf_put_text(w, "general.type", "adapter");
    ag_gguf_put_text(w, "general.name", name);
    ag_gguf_put_text(w, "adapter.type", "lora");
    ag_gguf_put_f32(w, "adapter.lora.alpha", alpha_of(&adapter->pairs[0]));
}

static void tell(job *j, const char *of, int64_t layer, const char *which, int64_t rows, int64_t columns)
{
    const char *name = ag_arena_printf(&j->arena, "blk.%lld.%s.weight.lora_%s", (long long)layer, of, which);
    ag_gguf_writer_tensor(&j->writer, name, j->type == AG_W_F16 ? AG_GGML_F16 : AG_GGML_F32, 2, (int64_t[]){columns, rows});
    j->report->n_tensors++;
    j->report->weight_bytes += (uint64_t)(rows * ag_weight_row_bytes(j->type, columns));
}

/* A pair is one in the file as well, or one for each of its projections, where the file's tensors are not fused. */
static int parts_of(const ag_adapter_pair *p, const ag_description *d) { return ag_family_of(d)->gguf_is_fused ? 1 : p->linear->n_parts; }

/* Rows in the file's order: row `stored` of B belongs to output n where n is stored there. */
static ag_status add_rows(job *j, const float *from, int64_t rows, int64_t columns, int pairs_head_dim, ag_err *err)
{
    const ag_weight order = {.rope_pairs_head_dim = pairs_head_dim};
    const int64_t row_bytes = ag_weight_row_bytes(j->type, columns);
    unsigned char *to = ag_arena_alloc(&j->arena, (size_t)(rows * row_bytes));
    float *decoded = ag_arena_array(&j->arena, (size_t)columns, sizeof *decoded);
    for (int64_t n = 0; n < rows; n++) {
        const ag_weight one = {.type = j->type, .N = 1, .K = columns, .data = to + ag_weight_stored_row(&order, n) * row_bytes};
        AG_TRY(ag_weight_quantize_row((void *)one.data, j->type, from + n * columns, columns, err));
        ag_weight_row(decoded, &one, 0, 0, columns);
        ag_deviation_add(&j->report->rounding, decoded, from + n * columns, columns);
    }
    return ag_gguf_writer_add(&j->writer, to, (size_t)(rows * row_bytes), err);
}

static ag_status write_all(job *j, const char *path, const ag_adapter *adapter, const ag_description *d, const char *name, ag_err *err)
{
    put_metadata(&j->writer, adapter, d, name);
    for (size_t i = 0; i < adapter->n_pairs; i++) {
        const ag_adapter_pair *p = &adapter->pairs[i];
        const int n_parts = parts_of(p, d);
        for (int k = 0; k < n_parts; k++) {
            const ag_projection projection = p->linear->first + (ag_projection)k;
            const char *of = n_parts == 1 ? ag_linear_gguf_name(p->linear) : ag_projection_gguf_name(projection);
            tell(j, of, p->layer, "a", p->R, p->K);
            tell(j, of, p->layer, "b", n_parts == 1 ? p->N : adapter->rows[projection], p->R);
        }
    }
    AG_TRY(ag_gguf_writer_begin(&j->writer, path, err));
    for (size_t i = 0; i < adapter->n_pairs; i++) {
        const ag_adapter_pair *p = &adapter->pairs[i];
        const int n_parts = parts_of(p, d);
        const float *b = adapter->params + p->b;
        for (int k = 0; k < n_parts; k++) {
            const ag_projection projection = p->linear->first + (ag_projection)k;
            const bool is_rotated = p->linear->n_parts == 1 && (projection == AG_PROJ_Q || projection == AG_PROJ_K);
            const int64_t rows = n_parts == 1 ? p->N : adapter->rows[projection];
            AG_TRY(add_rows(j, adapter->params + p->a, p->R, p->K, 0, err));
            AG_TRY(add_rows(j, b, rows, p->R, is_rotated ? ag_export_gguf_rope_pairs(d) : 0, err));
            b += rows * p->R;
        }
    }
    return ag_gguf_writer_commit(&j->writer, err);
}

ag_status ag_export_gguf_lora(const char *path, ag_weight_type type, const ag_adapter *adapter, const ag_description *d, const char *name,
                              ag_export_report *report, ag_err *err)
{
    *report = (ag_export_report){.n_files = 1};
    if (type != AG_W_F32 && type != AG_W_F16)
        return ag_fail(err, AG_E_UNSUPPORTED, "an adapter cannot be written as %s; f32 and f16 can", ag_weight_type_name(type));
    if (!adapter->is_plain)
        return ag_fail(err, AG_E_UNSUPPORTED, "the adapter trains more than LoRA pairs beside projections (modules_to_save, bias or the embedding), "
                       "which a GGUF adapter cannot hold; export the merged model");
    for (size_t i = 0; i < adapter->n_pairs; i++)
        if (adapter->pairs[i].is_dora)
            return ag_fail(err, AG_E_UNSUPPORTED, "the adapter is DoRA (use_dora), which a GGUF adapter cannot hold; export the merged model");
    for (size_t i = 0; i < adapter->n_pairs; i++)
        if (alpha_of(&adapter->pairs[i]) != alpha_of(&adapter->pairs[0]))
            return ag_fail(err, AG_E_UNSUPPORTED, "the adapter scales its modules differently (rank_pattern, alpha_pattern), and a GGUF adapter "
                           "has one alpha for all; export the merged model");
    job j = {.type = type, .report = report};
    const ag_status status = write_all(&j, path, adapter, d, name, err);
    ag_gguf_writer_abort(&j.writer);
    ag_arena_free(&j.arena);
    return status;
}
