#include "adapter/peft_io.h"

#include "base/fs.h"
#include "base/num.h"
#include "format/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ----------------------------------------------------------------------------------------------------------- */
static ag_status read_numbers(float *out, const ag_st_tensor *t, const char *path, ag_err *err)
{
    const size_t n = t->dtype == AG_ST_F32 ? t->bytes / 4 : t->bytes / 2;
    for (size_t i = 0; i < n; i++) {
        if (t->dtype == AG_ST_F32) {
            memcpy(out + i, t->data + 4 * i, sizeof *out);
        } else {
            uint16_t half;
            memcpy(&half, t->data + 2 * i, sizeof half);
            out[i] = t->dtype == AG_ST_F16 ? ag_f16_to_f32(half) : ag_bf16_to_f32(half);
        }
        if (!isfinite(out[i]))
            return ag_fail(err, AG_E_DATA, "%s: number %zu of tensor '%s' is not finite; the adapter is broken", path, i, t->name);
    }
    return AG_OK;
}

static ag_status read_tensor(float *out, bool *is_read, const ag_safetensors *st, const ag_adapter_pair *pair, char a_or_b,
                             ag_err *err)
{
    char name[AG_ADAPTER_NAME_MAX], other[AG_ADAPTER_NAME_MAX];
    ag_adapter_tensor_name(name, pair, a_or_b);
    ag_adapter_tensor_name(other, pair, a_or_b == 'A' ? 'B' : 'A');
    const ag_st_tensor *t = ag_safetensors_find(st, name);
    if (!t && ag_safetensors_find(st, other))
        return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' has no counterpart '%s'; an adapter needs both", st->path, other, name);
    if (!t)
        return ag_fail(err, AG_E_FORMAT, "%s: %s selects model.layers.%lld.%s, but there is no tensor '%s'", st->path,
                       AG_PEFT_CONFIG_FILE, (long long)pair->layer, ag_projection_path(pair->projection), name);
    if (t->dtype != AG_ST_F32 && t->dtype != AG_ST_F16 && t->dtype != AG_ST_BF16)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' is %s; adapters are read in F32, F16 and BF16", st->path, name,
                       ag_st_dtype_name(t->dtype));
    const int64_t rows = a_or_b == 'A' ? pair->R : pair->N, columns = a_or_b == 'A' ? pair->K : pair->R;
    if (t->rank != 2 || t->dim[0] != rows || t->dim[1] != columns) {
        ag_arena scratch = {0};
        const ag_status status = ag_fail(err, AG_E_SHAPE, "%s: tensor '%s' is %s, but rank %lld on this base model needs [%lld,%lld]",
                                         st->path, name, ag_st_shape_text(&scratch, t), (long long)pair->R, (long long)rows,
                                         (long long)columns);
        ag_arena_free(&scratch);
        return status;
    }
    is_read[t - st->tensors] = true;
    return read_numbers(out, t, st->path, err);
}

/* Every tensor of the file must have been read. */
static ag_status refuse_strangers(const ag_safetensors *st, const bool *is_read, ag_err *err)
{
    for (size_t i = 0; i < st->n_tensors; i++)
        if (!is_read[i])
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' belongs to no module that target_modules in %s selects", st->path,
                           st->tensors[i].name, AG_PEFT_CONFIG_FILE);
    return AG_OK;
}

static ag_status read_all(float *params, const ag_safetensors *st, const ag_adapter *adapter, ag_err *err)
{
    ag_arena scratch = {0};
    bool *is_read = ag_arena_array(&scratch, st->n_tensors, sizeof *is_read);
    ag_status status = AG_OK;
    for (size_t i = 0; i < adapter->n_pairs && !status; i++) {
        const ag_adapter_pair *p = &adapter->pairs[i];
        status = read_tensor(params + p->a, is_read, st, p, 'A', err);
        if (!status) status = read_tensor(params + p->b, is_read, st, p, 'B', err);
    }
    if (!status) status = refuse_strangers(st, is_read, err);
    ag_arena_free(&scratch);
    return status;
}

ag_status ag_peft_read_weights(float *params, const ag_adapter *adapter, const char *dir, ag_err *err)
{
    ag_arena scratch = {0};
    ag_safetensors st = {0};
    ag_status status;
    const char *path = ag_path_join(&scratch, dir, AG_PEFT_WEIGHTS_FILE);
    if (!ag_path_is_file(path)) {
        const bool pickled = ag_path_is_file(ag_path_join(&scratch, dir, "adapter_model.bin"));
        status = ag_fail(err, AG_E_NOT_FOUND, "%s has no %s%s", dir, AG_PEFT_WEIGHTS_FILE,
                         pickled ? "; adapter_model.bin can hold code and is not read, save the adapter as safetensors" : "");
        goto out;
    }
    if ((status = ag_safetensors_open(&st, path, err)) != AG_OK) goto out;
    status = read_all(params, &st, adapter, err);
out:
    ag_safetensors_close(&st);
    ag_arena_free(&scratch);
    return status;
}

static ag_status open_in(ag_peft *p, const char *dir, const ag_description *d, ag_err *err)
{
    p->path = ag_arena_strdup(&p->arena, dir);
    AG_TRY(ag_peft_config_load(&p->config, dir, &p->arena, err));
    const ag_status planned = ag_adapter_plan(&p->adapter, d, &p->config.lora, &p->arena, err);
    if (planned) {
        (void)ag_err_prefix(err, "%s/%s", dir, AG_PEFT_CONFIG_FILE);
        return planned;
    }
    void *params;
    p->params_bytes = p->adapter.n_params * sizeof(float);
    AG_TRY(ag_pages_alloc(&params, p->params_bytes, "the adapter's weights", err));
    ag_adapter_bind(&p->adapter, params, NULL);
    return ag_peft_read_weights(params, &p->adapter, dir, err);
}

ag_status ag_peft_open(ag_peft **out, const char *dir, const ag_description *d, ag_err *err)
{
    ag_peft *p = calloc(1, sizeof *p);
    if (!p) ag_out_of_memory(sizeof *p);
    const ag_status status = open_in(p, dir, d, err);
    if (status) ag_peft_close(&p);
    *out = p;
    return status;
}

void ag_peft_close(ag_peft **peft)
{
    ag_peft *p = *peft;
    if (!p) return;
    if (p->adapter.params) ag_pages_free(p->adapter.params, p->params_bytes);
    ag_arena_free(&p->arena);
    free(p);
    *peft = NULL;
}

/* ---- writing ----------------------------------------------------------------------------------------------------------- */
static ag_st_entry entry_of(const ag_adapter *adapter, const ag_adapter_pair *p, char a_or_b, ag_arena *arena)
{
    char name[AG_ADAPTER_NAME_MAX];
    ag_adapter_tensor_name(name, p, a_or_b);
    ag_st_entry e = {.name = ag_arena_strdup(arena, name), .dtype = AG_ST_F32, .rank = 2};
    e.dim[0] = a_or_b == 'A' ? p->R : p->N;
    e.dim[1] = a_or_b == 'A' ? p->K : p->R;
    e.data = adapter->params + (a_or_b == 'A' ? p->a : p->b);
    return e;
}

ag_status ag_peft_save(const ag_adapter *adapter, const char *dir, const char *base_model, const char *revision, ag_err *err)
{
    ag_arena scratch = {0};
    ag_str config = {0};
    ag_st_entry *entries = ag_arena_array(&scratch, 2 * adapter->n_pairs, sizeof *entries);
    for (size_t i = 0; i < adapter->n_pairs; i++) {
        entries[2 * i] = entry_of(adapter, &adapter->pairs[i], 'A', &scratch);
        entries[2 * i + 1] = entry_of(adapter, &adapter->pairs[i], 'B', &scratch);
    }
    static const ag_st_pair metadata[] = {{"format", "pt"}};
    ag_status status = ag_safetensors_write(ag_path_join(&scratch, dir, AG_PEFT_WEIGHTS_FILE), entries, 2 * adapter->n_pairs,
                                            AG_ST_ORDER_LIBRARY, metadata, 1, err);
    if (!status) {
        ag_peft_config_write(&config, &adapter->config, base_model, revision);
        status = ag_file_publish(ag_path_join(&scratch, dir, AG_PEFT_CONFIG_FILE), config.text, config.n, err);
    }
    ag_str_free(&config);
    ag_arena_free(&scratch);
    return status;
}
