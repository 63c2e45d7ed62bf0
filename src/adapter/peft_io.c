#include "adapter/peft_io.h"

#include "adapter/peft_tensors.h"
#include "base/fs.h"
#include "base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ----------------------------------------------------------------------------------------------------------- */
/* What does not fit, all of it, for one sentence. */
typedef struct {
    ag_str text;
    size_t n;
    ag_status code; /* of the first */
} misfits;
enum { MOST_TOLD = 4 }; /* the rest goes to the log */

static void misfit(misfits *m, ag_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void misfit(misfits *m, ag_status code, const char *format, ...)
{
    char text[500];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (m->n++ == 0) m->code = code;
    if (m->n <= MOST_TOLD)
        ag_str_printf(&m->text, "%s%s", m->n > 1 ? "; " : "", text);
    else
        ag_log(AG_LOG_WARN, "adapter: %s", text);
}

static ag_status tell(misfits *m, const char *path, ag_err *err)
{
    ag_status status = AG_OK;
    if (m->n > MOST_TOLD)
        status = ag_fail(err, m->code, "%s: %s; and %zu more that do not fit (in the log)", path, m->text.text, m->n - MOST_TOLD);
    else if (m->n > 0)
        status = ag_fail(err, m->code, "%s: %s", path, m->text.text);
    ag_str_free(&m->text);
    return status;
}

static const char *name_of(const ag_trained *t, ag_arena *arena)
{
    char name[AG_ADAPTER_NAME_MAX];
    ag_adapter_trained_name(name, t);
    return ag_arena_strdup(arena, name);
}

static const char *bare(const char *name) { return name + strlen("base_model.model."); }

/* A trained bias of a module with a pair stood behind the module's own name once. */
static ag_peft_tensor *find(const ag_peft_tensors *file, const ag_trained *t, const char *name, ag_arena *arena)
{
    ag_peft_tensor *found = ag_peft_tensors_find(file, bare(name));
    if (found || t->kind != AG_TRAINED_BASE_BIAS) return found;
    return ag_peft_tensors_find(file, ag_arena_printf(arena, "%s.bias", t->module.path));
}

static void missing(misfits *m, const ag_peft_tensors *file, const ag_adapter *adapter, size_t i, const char *name, ag_arena *arena)
{
    const ag_trained *t = &adapter->trained[i];
    const ag_trained *other = t->kind == AG_TRAINED_A ? t + 1 : t->kind == AG_TRAINED_B ? t - 1 : NULL;
    const ag_peft_tensor *counterpart = other ? ag_peft_tensors_find(file, bare(name_of(other, arena))) : NULL;
    if (counterpart)
        misfit(m, AG_E_FORMAT, "tensor '%s' has no counterpart '%s'; an adapter needs both", counterpart->found, name);
    else
        misfit(m, AG_E_FORMAT, "%s selects %s, but there is no tensor '%s'", AG_PEFT_CONFIG_FILE, t->module.path, name);
}

static void wrong_shape(misfits *m, const ag_trained *t, const ag_peft_tensor *found, ag_arena *arena)
{
    const char *shape = ag_peft_tensor_shape(arena, found);
    if (t->kind == AG_TRAINED_A || t->kind == AG_TRAINED_B)
        misfit(m, AG_E_SHAPE, "tensor '%s' is %s, but rank %lld on this base model needs [%lld,%lld]", found->found, shape,
               (long long)(t->kind == AG_TRAINED_A ? t->dim[0] : t->dim[1]), (long long)t->dim[0], (long long)t->dim[1]);
    else if (t->rank == 2)
        misfit(m, AG_E_SHAPE, "tensor '%s' is %s, but this base model needs [%lld,%lld]", found->found, shape, (long long)t->dim[0],
               (long long)t->dim[1]);
    else
        misfit(m, AG_E_SHAPE, "tensor '%s' is %s, but this base model needs [%lld]", found->found, shape, (long long)t->dim[0]);
}

static bool has_shape(const ag_peft_tensor *found, int rank, const int64_t *dim)
{
    if (found->rank != rank) return false;
    for (int d = 0; d < rank; d++)
        if (found->dim[d] != dim[d]) return false;
    return true;
}

static ag_status read_numbers(float *out, const ag_peft_tensor *t, float offset, const char *path, ag_err *err)
{
    const size_t n = ag_peft_tensor_count(t);
    for (size_t i = 0; i < n; i++) {
        out[i] = ag_peft_tensor_number(t, i);
        if (offset != 0) out[i] += offset;
        if (!isfinite(out[i]))
            return ag_fail(err, AG_E_DATA, "%s: number %zu of tensor '%s' is not finite; the adapter is broken", path, i, t->found);
    }
    return AG_OK;
}

/* Tables that PEFT saves beside a pair of the embedding, or when the vocabulary was resized: they replace the base's when it loads. */
static const ag_weight *table_of_base(const ag_model *base, const char *name)
{
    if (!base) return NULL;
    if (strcmp(name, "model.embed_tokens.base_layer.weight") == 0 || strcmp(name, "model.embed_tokens.weight") == 0) return &base->embed;
    return strcmp(name, "lm_head.weight") == 0 || strcmp(name, "lm_head.base_layer.weight") == 0 ? &base->head : NULL;
}

static bool equals(const ag_peft_tensor *t, const ag_weight *w, ag_arena *arena)
{
    float *row = ag_arena_array(arena, (size_t)w->K, sizeof *row);
    for (int64_t n = 0; n < w->N; n++) {
        ag_weight_row(row, w, n, 0, w->K);
        for (int64_t k = 0; k < w->K; k++)
            if (ag_peft_tensor_number(t, (size_t)(n * w->K + k)) != row[k]) return false;
    }
    return true;
}

/* Every tensor of the file must have been read, but for a table that the base has as well. */
static void check_strangers(misfits *m, const ag_peft_tensors *file, const ag_model *base, ag_arena *arena)
{
    for (size_t i = 0; i < file->n; i++) {
        const ag_peft_tensor *t = &file->tensors[i];
        const ag_weight *table = table_of_base(base, t->name);
        if (t->is_read) continue;
        if (!table)
            misfit(m, AG_E_FORMAT, "tensor '%s' belongs to no module that %s selects", t->found, AG_PEFT_CONFIG_FILE);
        else if (!has_shape(t, 2, (const int64_t[]){table->N, table->K}))
            misfit(m, AG_E_SHAPE, "tensor '%s' is %s, the base's table is [%lld,%lld]: the adapter was trained on a base with another vocabulary",
                   t->found, ag_peft_tensor_shape(arena, t), (long long)table->N, (long long)table->K);
        else if (!equals(t, table, arena))
            misfit(m, AG_E_UNSUPPORTED, "tensor '%s' is not the base's own table: the adapter was trained on another base, or the table was "
                   "trained without standing in modules_to_save", t->found);
    }
}

static ag_status read_all(float *params, ag_peft_tensors *file, const ag_adapter *adapter, const ag_model *base, ag_arena *arena, ag_err *err)
{
    misfits m = {0};
    for (size_t i = 0; i < adapter->n_trained; i++) {
        const ag_trained *t = &adapter->trained[i];
        const char *name = name_of(t, arena);
        ag_peft_tensor *found = find(file, t, name, arena);
        if (found) found->is_read = true;
        if (!found)
            missing(&m, file, adapter, i, name, arena);
        else if (!has_shape(found, t->rank, t->dim))
            wrong_shape(&m, t, found, arena);
    }
    check_strangers(&m, file, base, arena);
    AG_TRY(tell(&m, file->path, err));
    for (size_t i = 0; i < adapter->n_trained; i++) {
        const ag_trained *t = &adapter->trained[i];
        AG_TRY(read_numbers(params + t->at, find(file, t, name_of(t, arena), arena), t->offset, file->path, err));
    }
    return AG_OK;
}

ag_status ag_peft_read_weights(float *params, const ag_adapter *adapter, const ag_model *base, const char *dir, const ag_peft_options *options,
                               ag_err *err)
{
    ag_arena scratch = {0};
    ag_peft_tensors file;
    AG_TRY(ag_peft_tensors_open(&file, dir, options && options->allow_pickle, err));
    const ag_status status = read_all(params, &file, adapter, base, &scratch, err);
    ag_peft_tensors_close(&file);
    ag_arena_free(&scratch);
    return status;
}

static ag_status open_in(ag_peft *p, const char *dir, const ag_description *d, const ag_model *base, const ag_peft_options *options,
                         ag_err *err)
{
    p->path = ag_arena_strdup(&p->arena, dir);
    AG_TRY(ag_peft_config_load(&p->config, dir, &p->arena, err));
    const ag_status planned = ag_adapter_plan(&p->adapter, d, &p->config.lora, &p->arena, err);
    if (planned) {
        (void)ag_err_prefix(err, "%s/%s", dir, AG_PEFT_CONFIG_FILE);
        return planned;
    }
    if (!base && !p->adapter.is_plain)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: trains more than pairs beside projections (modules_to_save, bias or the embedding), which cannot "
                       "be put beside a model that others share; merge it into a model of its own", dir);
    void *params;
    p->params_bytes = p->adapter.n_params * sizeof(float);
    AG_TRY(ag_pages_alloc(&params, p->params_bytes, "the adapter's weights", err));
    ag_adapter_bind(&p->adapter, params, NULL);
    AG_TRY(ag_peft_read_weights(params, &p->adapter, base, dir, options, err));
    if (base) ag_adapter_attach(&p->adapter, base);
    return AG_OK;
}

static ag_status open_with(ag_peft **out, const char *dir, const ag_description *d, const ag_model *base, const ag_peft_options *options,
                           ag_err *err)
{
    ag_peft *p = calloc(1, sizeof *p);
    if (!p) ag_out_of_memory(sizeof *p);
    const ag_status status = open_in(p, dir, d, base, options, err);
    if (status) ag_peft_close(&p);
    *out = p;
    return status;
}

ag_status ag_peft_open_on(ag_peft **out, const char *dir, const ag_model *base, const ag_peft_options *options, ag_err *err)
{
    return open_with(out, dir, &base->d, base, options, err);
}

ag_status ag_peft_open(ag_peft **out, const char *dir, const ag_description *d, ag_err *err)
{
    return open_with(out, dir, d, NULL, NULL, err);
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
static const float *as_stored(const ag_adapter *adapter, const ag_trained *t, ag_arena *arena)
{
    const float *numbers = adapter->params + t->at;
    if (t->offset == 0) return numbers;
    float *stored = ag_arena_array(arena, t->n, sizeof *stored);
    for (size_t i = 0; i < t->n; i++) stored[i] = numbers[i] - t->offset;
    return stored;
}

ag_status ag_peft_save(const ag_adapter *adapter, const char *dir, const char *base_model, const char *revision, ag_err *err)
{
    ag_arena scratch = {0};
    ag_str config = {0};
    ag_st_entry *entries = ag_arena_array(&scratch, adapter->n_trained, sizeof *entries);
    for (size_t i = 0; i < adapter->n_trained; i++) {
        const ag_trained *t = &adapter->trained[i];
        entries[i] = (ag_st_entry){.name = name_of(t, &scratch), .dtype = AG_ST_F32, .rank = t->rank, .data = as_stored(adapter, t, &scratch)};
        for (int k = 0; k < t->rank; k++) entries[i].dim[k] = t->dim[k];
    }
    static const ag_st_pair metadata[] = {{"format", "pt"}};
    ag_status status = ag_safetensors_write(ag_path_join(&scratch, dir, AG_PEFT_WEIGHTS_FILE), entries, adapter->n_trained,
                                            AG_ST_ORDER_LIBRARY, metadata, 1, err);
    if (!status) {
        ag_peft_config_write(&config, &adapter->config, base_model, revision);
        status = ag_file_publish(ag_path_join(&scratch, dir, AG_PEFT_CONFIG_FILE), config.text, config.n, err);
    }
    ag_str_free(&config);
    ag_arena_free(&scratch);
    return status;
}
