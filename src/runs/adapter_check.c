#include "runs/adapter_check.h"

#include "adapter/adapter.h"
#include "adapter/peft_io.h"
#include "base/fs.h"
#include "base/str.h"
#include "format/safetensors.h"
#include "format/torch_archive.h"
#include "runs/base_check.h"
#include "runs/lora_config_check.h"
#include "train/run_scan.h"
#include "train/optimizer.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    bool is_floating, is_taken;
    int rank;
    int64_t dim[8];
} adapter_tensor;

/* The tensors of either kind of file, sorted by name. */
typedef struct {
    adapter_tensor *tensors;
    size_t n;
    const char *path; /* as shown */
} tensor_list;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const adapter_tensor *)a)->name, ((const adapter_tensor *)b)->name);
}

static adapter_tensor *find(const tensor_list *list, const char *name)
{
    const adapter_tensor key = {.name = name};
    return list->n ? bsearch(&key, list->tensors, list->n, sizeof key, by_name) : NULL;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static ag_status read_safetensors(tensor_list *list, const char *path, ag_arena *arena, ag_err *err)
{
    ag_map map;
    ag_safetensors st;
    AG_TRY(ag_map_open_no_link(&map, path, err));
    const ag_status status = ag_safetensors_parse(&st, map.bytes, map.n, list->path, err);
    if (!status) {
        list->tensors = ag_arena_array(arena, st.n_tensors + 1, sizeof *list->tensors);
        for (size_t i = 0; i < st.n_tensors; i++) {
            const ag_st_tensor *t = &st.tensors[i];
            const char *dtype = ag_st_dtype_name(t->dtype);
            adapter_tensor *to = &list->tensors[list->n++];
            *to = (adapter_tensor){.name = ag_arena_strdup(arena, t->name),
                                   .rank = t->rank,
                                   .is_floating = dtype[0] == 'F' || t->dtype == AG_ST_BF16};
            memcpy(to->dim, t->dim, sizeof to->dim);
        }
        ag_safetensors_close(&st);
    }
    ag_map_close(&map);
    return status;
}

static bool is_floating(ag_torch_dtype dtype)
{
    return dtype == AG_TORCH_F64 || dtype == AG_TORCH_F32 || dtype == AG_TORCH_F16 || dtype == AG_TORCH_BF16;
}

static ag_status read_archive(tensor_list *list, const char *path, ag_arena *arena, ag_err *err)
{
    ag_torch_archive archive;
    AG_TRY(ag_torch_open(&archive, path, AG_TORCH_NEEDS_STORAGE, err));
    ag_status status = AG_OK;
    list->tensors = ag_arena_array(arena, archive.root->n + (size_t)1, sizeof *list->tensors);
    for (uint32_t i = 0; i < archive.root->n && !status; i++) {
        const ag_torch_value *key = archive.root->items[2 * i], *value = archive.root->items[2 * i + 1];
        if (!ag_torch_is(value, AG_TORCH_TENSOR)) {
            status = ag_fail(err, AG_E_FORMAT, "%s: '%.60s' is %s, a tensor was expected", list->path, key->text,
                             ag_torch_describe(arena, value));
            break;
        }
        adapter_tensor *to = &list->tensors[list->n++];
        *to = (adapter_tensor){.name = ag_arena_strdup(arena, key->text), .rank = value->tensor->rank,
                                  .is_floating = is_floating(value->tensor->dtype)};
        memcpy(to->dim, value->tensor->dim, sizeof to->dim);
    }
    ag_torch_close(&archive);
    return status;
}

static ag_status read_tensors(tensor_list *list, const char *dir, const char *shown, bool allow_unsafe, ag_arena *arena,
                              ag_err *err)
{
    const char *path = ag_path_join(arena, dir, AG_PEFT_WEIGHTS_FILE);
    *list = (tensor_list){.path = ag_path_join(arena, shown, AG_PEFT_WEIGHTS_FILE)};
    if (allow_unsafe && !ag_path_is_file(path)) {
        list->path = ag_path_join(arena, shown, AG_ADAPTER_BIN_FILE);
        AG_TRY(read_archive(list, ag_path_join(arena, dir, AG_ADAPTER_BIN_FILE), arena, err));
    } else {
        AG_TRY(read_safetensors(list, path, arena, err));
    }
    if (list->n == 0) return ag_fail(err, AG_E_FORMAT, "%s: there is no tensor in it", list->path);
    qsort(list->tensors, list->n, sizeof *list->tensors, by_name);
    for (size_t i = 0; i < list->n; i++)
        if (!list->tensors[i].is_floating)
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' is no floating-point tensor", list->path, list->tensors[i].name);
    return AG_OK;
}

/* ---- tensors against what the config trains ---------------------------------------------------------------------- */
static ag_status check_plain(const ag_lora_config *lora, ag_err *err)
{
    const char *patterns[] = {lora->pattern, lora->exclude_pattern};
    for (int i = 0; i < 2; i++)
        if (patterns[i] && !ag_targets_pattern_is_plain(patterns[i]))
            return ag_fail(err, AG_E_CONFIG,
                           "the pattern '%.60s' is more than literals and '.*'; such patterns are not vouched for, list the "
                           "modules' names instead",
                           patterns[i]);
    return AG_OK;
}

static ag_status take_trained(tensor_list *list, const ag_trained *t, ag_err *err)
{
    char name[AG_ADAPTER_NAME_MAX];
    ag_adapter_trained_name(name, t);
    adapter_tensor *found = find(list, name);
    if (!found)
        return ag_fail(err, AG_E_FORMAT, "%s: there is no tensor '%s', which adapter_config.json asks for", list->path, name);
    if (found->rank != t->rank || found->dim[0] != t->dim[0] || (t->rank == 2 && found->dim[1] != t->dim[1]))
        return ag_fail(err, AG_E_SHAPE, "%s: tensor '%s' has another shape than [%lld%s%.0lld], which config and base ask for",
                       list->path, name, (long long)t->dim[0], t->rank == 2 ? "," : "",
                       t->rank == 2 ? (long long)t->dim[1] : 0);
    found->is_taken = true;
    return AG_OK;
}

/* PEFT saves the embedding's own weight beside its pair. */
static void take_base_layers(tensor_list *list, const ag_description *d)
{
    static const char *const names[] = {"base_model.model.model.embed_tokens.base_layer.weight",
                                        "base_model.model.lm_head.base_layer.weight"};
    for (int i = 0; i < 2; i++) {
        adapter_tensor *t = find(list, names[i]);
        if (t && t->rank == 2 && t->dim[0] == d->V && t->dim[1] == d->C) t->is_taken = true;
    }
}

static ag_status take_all(ag_adapter_report *out, tensor_list *list, const ag_adapter *adapter, const ag_description *d,
                          ag_arena *arena, ag_err *err)
{
    ag_trained_shape *shapes = ag_arena_array(arena, adapter->n_trained, sizeof *shapes);
    for (size_t i = 0; i < adapter->n_trained; i++) {
        const ag_trained *t = &adapter->trained[i];
        AG_TRY(take_trained(list, t, err));
        shapes[i] = (ag_trained_shape){.rank = t->rank, .dim = {t->dim[0], t->dim[1]}, .group = ag_optimizer_group_of(t, false),
                                        .plus_group = ag_optimizer_group_of(t, true)};
    }
    for (size_t i = 0; i < adapter->n_pairs; i++)
        if (!adapter->pairs[i].linear) take_base_layers(list, d);
    for (size_t i = 0; i < list->n; i++)
        if (!list->tensors[i].is_taken)
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%.100s' belongs to no module that target_modules selects", list->path,
                           list->tensors[i].name);
    out->shapes = shapes;
    out->n_shapes = adapter->n_trained;
    return AG_OK;
}

static ag_status check_weights(ag_adapter_report *out, const ag_lora_facts *f, const char *dir, const char *shown,
                               const ag_adapter_check_options *options, ag_arena *arena, ag_err *err)
{
    ag_description d;
    ag_adapter adapter;
    tensor_list list;
    if (f->follows) {
        if (err) *err = f->why;
        return f->follows;
    }
    AG_TRY(read_tensors(&list, dir, shown, options->allow_unsafe, arena, err));
    AG_TRY(ag_base_check(&d, f->base_model, f->revision, options->hub_cache, arena, err));
    AG_TRY(check_plain(&f->config.lora, err));
    AG_TRY(ag_adapter_plan(&adapter, &d, &f->config.lora, arena, err));
    return take_all(out, &list, &adapter, &d, arena, err);
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */
void ag_adapter_check(ag_adapter_report *out, const char *dir, const char *shown, const ag_adapter_check_options *options,
                      ag_arena *arena)
{
    ag_lora_facts facts;
    *out = (ag_adapter_report){0};
    out->config_usable = ag_lora_facts_load(&facts, dir, shown, arena, &out->why) == AG_OK;
    out->base_model = facts.base_model;
    out->revision = facts.revision;
    if (out->config_usable) out->weights_usable = check_weights(out, &facts, dir, shown, options, arena, &out->why) == AG_OK;
}

void ag_adapter_check_names(ag_adapter_report *out, const char *dir, const char *shown, ag_arena *arena)
{
    ag_lora_facts facts;
    *out = (ag_adapter_report){0};
    out->config_usable = ag_lora_facts_load(&facts, dir, shown, arena, &out->why) == AG_OK;
    out->base_model = facts.base_model;
    out->revision = facts.revision;
}

/* "….lora_A.weight" needs "….lora_B.weight", and the reverse; likewise the embeddings' pairs. */
static bool has_counterpart(const tensor_list *list, const char *name, ag_arena *arena)
{
    static const char *const pairs[][2] = {{".lora_A.", ".lora_B."},
                                           {".lora_B.", ".lora_A."},
                                           {".lora_embedding_A", ".lora_embedding_B"},
                                           {".lora_embedding_B", ".lora_embedding_A"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *at = strstr(name, pairs[i][0]);
        if (at)
            return find(list, ag_arena_printf(arena, "%.*s%s%s", (int)(at - name), name, pairs[i][1],
                                              at + strlen(pairs[i][0]))) != NULL;
    }
    return true;
}

bool ag_adapter_is_sound(const char *dir, const char *shown, const ag_adapter_check_options *options, ag_arena *arena)
{
    ag_lora_facts facts;
    tensor_list list;
    ag_err ignored;
    if (ag_lora_facts_load(&facts, dir, shown, arena, &ignored)) return false;
    if (read_tensors(&list, dir, shown, options->allow_unsafe, arena, &ignored)) return false;
    for (size_t i = 0; i < list.n; i++)
        if (!has_counterpart(&list, list.tensors[i].name, arena)) return false;
    return true;
}
