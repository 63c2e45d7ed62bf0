#define _GNU_SOURCE
#include "support/adapter_golden.h"

#include "adapter/export_gguf.h"
#include "adapter/peft_io.h"
#include "base/fs.h"
#include "format/safetensors.h"
#include "ops/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 8, MAX_TOKENS = 64 };

typedef struct {
    ag_safetensors of_base, of_adapter;
    ag_model *base;
    ag_peft *peft;
    ag_adapter trained; /* the same adapter with gradients */
    ag_backend backend;
    float *params, *grads;
    int64_t n_rows, n_tokens[MAX_ROWS];
    int32_t ids[MAX_ROWS][MAX_TOKENS], targets[MAX_ROWS][MAX_TOKENS];
    ag_arena arena;
} job;

static const ag_st_tensor *find(const job *j, const char *name)
{
    const ag_st_tensor *t = ag_safetensors_find(&j->of_adapter, name);
    return t ? t : ag_safetensors_find(&j->of_base, name);
}

static int64_t integer(const ag_st_tensor *t, int64_t i)
{
    int64_t x;
    memcpy(&x, t->data + 8 * i, sizeof x);
    return x;
}

static float number(const ag_st_tensor *t, int64_t i)
{
    float x;
    memcpy(&x, t->data + 4 * i, sizeof x);
    return x;
}

static void read_rows(job *j)
{
    char name[32];
    for (;; j->n_rows++) {
        const int64_t r = j->n_rows;
        snprintf(name, sizeof name, "ids_%d", (int)r);
        const ag_st_tensor *ids = find(j, name);
        if (!ids || r == MAX_ROWS) return;
        snprintf(name, sizeof name, "labels_%d", (int)r);
        const ag_st_tensor *labels = find(j, name);
        const int64_t n = j->n_tokens[r] = ids->dim[ids->rank - 1];
        for (int64_t t = 0; t < n; t++) {
            j->ids[r][t] = (int32_t)integer(ids, t);
            const int64_t next = t + 1 < n && labels ? integer(labels, t + 1) : -100;
            j->targets[r][t] = next >= 0 ? (int32_t)next : -1;
        }
    }
}

/* Logits of every token of row r, [T,V], token by token. */
static ag_status logits_of(float *out, const job *j, const ag_model *model, const ag_adapter *adapter, int64_t r, ag_err *err)
{
    ag_decoder_options o = {.model = model, .backend = &j->backend, .max_tokens = MAX_TOKENS, .max_targets = 1, .max_positions = MAX_TOKENS};
    ag_decoder *dec;
    ag_kv_cache *cache = NULL;
    if (adapter) ag_adapter_use(&o, adapter);
    AG_TRY(ag_decoder_create(&dec, &o, err));
    ag_status status = ag_kv_cache_create(&cache, model, 1, MAX_TOKENS, err);
    if (!status) ag_kv_cache_expect(cache, 0, j->n_tokens[r]);
    for (int64_t t = 0; t < j->n_tokens[r] && !status; t++)
        status = ag_decoder_infer(dec, cache, &(ag_decoder_run){.slot = 0, .n_new = 1}, 1, &j->ids[r][t], out + t * model->d.V, err);
    ag_kv_cache_free(&cache);
    ag_decoder_free(&dec);
    return status;
}

static double distance(const float *got, const ag_st_tensor *want, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = fmax(worst, isfinite(got[i]) ? fabs((double)got[i] - (double)number(want, i)) : INFINITY);
    return worst;
}

static ag_status export_merged(ag_model **merged, const job *j, const char *scratch, ag_err *err)
{
    char path[600];
    ag_export_report report;
    snprintf(path, sizeof path, "%s/merged.gguf", scratch);
    const ag_export_options e = {.base = &j->peft->adapter.model, .stored = j->base, .lora = j->peft->adapter.layers, .n_threads = 1,
                                 .embed_lora = j->peft->adapter.embed.R > 0 ? &j->peft->adapter.embed : NULL};
    AG_TRY(ag_export_gguf(path, AG_RECIPE_F32, &e, &report, err));
    return ag_model_open(merged, path, NULL, err);
}

static ag_status compare_logits(adapter_distances *out, const job *j, const ag_model *merged, ag_err *err)
{
    const int64_t V = j->base->d.V;
    float *attached = malloc((size_t)(MAX_TOKENS * V) * sizeof *attached), *of_merged = malloc((size_t)(MAX_TOKENS * V) * sizeof *attached);
    ag_status status = AG_OK;
    for (int64_t r = 0; r < j->n_rows && !status; r++) {
        char name[32];
        const int64_t n = j->n_tokens[r] * V;
        snprintf(name, sizeof name, "logits_%d", (int)r);
        const ag_st_tensor *want = ag_safetensors_find(&j->of_adapter, name);
        snprintf(name, sizeof name, "merged_logits_%d", (int)r);
        const ag_st_tensor *want_merged = ag_safetensors_find(&j->of_adapter, name);
        status = logits_of(attached, j, j->base, &j->peft->adapter, r, err);
        if (!status && merged) status = logits_of(of_merged, j, merged, NULL, r, err);
        if (status) break;
        if (!want) status = ag_fail(err, AG_E_FORMAT, "%s: has no '%s'", j->of_adapter.path, name);
        else out->logits = fmax(out->logits, distance(attached, want, n));
        if (merged && want_merged && !out->unties) out->merged = fmax(out->merged, distance(of_merged, want_merged, n));
        for (int64_t i = 0; merged && i < n; i++) out->attached_merged = fmax(out->attached_merged, fabs((double)attached[i] - (double)of_merged[i]));
    }
    free(attached);
    free(of_merged);
    return status;
}

static ag_status make_gradients(job *j, ag_err *err)
{
    AG_TRY(ag_adapter_plan(&j->trained, &j->base->d, &j->peft->config.lora, &j->arena, err));
    const size_t n = j->trained.n_params;
    j->params = ag_arena_array(&j->arena, n, sizeof *j->params);
    j->grads = ag_arena_array(&j->arena, n, sizeof *j->grads);
    memcpy(j->params, j->peft->adapter.params, n * sizeof *j->params);
    ag_adapter_bind(&j->trained, j->params, j->grads);
    ag_adapter_attach(&j->trained, j->base);
    ag_decoder_options o = {.model = j->base, .backend = &j->backend, .train = true, .max_tokens = MAX_TOKENS, .max_positions = MAX_TOKENS};
    ag_adapter_use(&o, &j->trained);
    ag_decoder *dec;
    AG_TRY(ag_decoder_create(&dec, &o, err));
    int64_t n_targets = 0;
    for (int64_t r = 0; r < j->n_rows; r++)
        for (int64_t t = 0; t < j->n_tokens[r]; t++) n_targets += j->targets[r][t] >= 0;
    ag_status status = AG_OK;
    for (int64_t r = 0; r < j->n_rows && !status; r++) {
        int32_t positions[MAX_TOKENS];
        for (int32_t t = 0; t < MAX_TOKENS; t++) positions[t] = t;
        const ag_attention_span span = {0, j->n_tokens[r], 0, j->n_tokens[r]};
        double loss;
        int64_t n_here;
        status = ag_decoder_train(dec, &(ag_decoder_batch){.T = j->n_tokens[r], .ids = j->ids[r], .positions = positions,
                                                           .targets = j->targets[r], .spans = &span, .n_spans = 1},
                                  1.0 / (double)n_targets, 0, &loss, &n_here, err);
    }
    ag_decoder_free(&dec);
    return status;
}

static ag_status compare_gradients(adapter_distances *out, job *j, ag_err *err)
{
    out->gradient = -1;
    for (size_t i = 0; i < j->peft->adapter.n_trained; i++) {
        char name[AG_ADAPTER_NAME_MAX + 8];
        const ag_trained *t = &j->peft->adapter.trained[i];
        memcpy(name, "grad.", 5);
        ag_adapter_trained_name(name + 5, t);
        const ag_st_tensor *want = ag_safetensors_find(&j->of_adapter, name);
        if (!want) continue;
        if (out->n_gradients++ == 0) AG_TRY(make_gradients(j, err));
        double largest = 0;
        for (size_t k = 0; k < t->n; k++) largest = fmax(largest, fabs((double)number(want, (int64_t)k)));
        if (want->bytes != t->n * 4 || !(largest > 0)) return ag_fail(err, AG_E_FORMAT, "%s: '%s' is of no use", j->of_adapter.path, name);
        out->gradient = fmax(out->gradient, distance(j->grads + t->at, want, (int64_t)t->n) / largest);
    }
    return AG_OK;
}

static ag_status compare(adapter_distances *out, job *j, const char *base, const char *adapter, const char *scratch, ag_err *err)
{
    const char *beside_base = ag_path_join(&j->arena, base, "vectors.safetensors");
    AG_TRY(ag_backend_init_cpu(&j->backend, ag_cpu_best_level(), 1, err));
    AG_TRY(ag_safetensors_open(&j->of_adapter, ag_path_join(&j->arena, adapter, "vectors.safetensors"), err));
    if (ag_path_is_file(beside_base)) AG_TRY(ag_safetensors_open(&j->of_base, beside_base, err));
    read_rows(j);
    if (j->n_rows == 0) return ag_fail(err, AG_E_FORMAT, "%s: there are no ids_0", adapter);
    AG_TRY(ag_model_open(&j->base, base, NULL, err));
    AG_TRY(ag_peft_open_on(&j->peft, adapter, j->base, NULL, err));
    out->unties = j->base->d.tied && j->peft->adapter.embed.R > 0; /* PEFT merges into the shared table, and the head moves with it */
    out->n_tensors = j->peft->adapter.n_trained;
    ag_model *merged = NULL;
    ag_status status = scratch ? export_merged(&merged, j, scratch, err) : AG_OK;
    if (!status) status = compare_logits(out, j, merged, err);
    ag_model_close(&merged);
    return status ? status : compare_gradients(out, j, err);
}

ag_status adapter_golden_compare(adapter_distances *out, const char *base, const char *adapter, const char *scratch, ag_err *err)
{
    job *j = calloc(1, sizeof *j);
    if (!j) ag_out_of_memory(sizeof *j);
    *out = (adapter_distances){0};
    const ag_status status = compare(out, j, base, adapter, scratch, err);
    ag_peft_close(&j->peft);
    ag_model_close(&j->base);
    ag_safetensors_close(&j->of_adapter);
    ag_safetensors_close(&j->of_base);
    ag_arena_free(&j->arena);
    free(j);
    return status;
}
