#include "runs/adapter_check.h"

#include "adapter/peft_io.h"
#include "base/fs.h"
#include "base/str.h"
#include "format/safetensors.h"
#include "format/torch_archive.h"
#include "runs/adapter_parts.h"
#include "runs/base_check.h"
#include "train/run_scan.h"

#include <stdlib.h>
#include <string.h>

static const char PREFIX[] = "base_model.model.";

/* The tensors of either kind of file, sorted by name. */
typedef struct {
    ag_adapter_tensor *tensors;
    size_t n;
    const char *path; /* as shown */
} tensor_list;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ag_adapter_tensor *)a)->name, ((const ag_adapter_tensor *)b)->name);
}

static ag_adapter_tensor *find(const tensor_list *list, const char *name)
{
    const ag_adapter_tensor key = {.name = name};
    return list->n ? bsearch(&key, list->tensors, list->n, sizeof key, by_name) : NULL;
}

/* ---- files ---------------------------------------------------------------------------------------------------------------------- */
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
            ag_adapter_tensor *to = &list->tensors[list->n++];
            *to = (ag_adapter_tensor){.name = ag_arena_strdup(arena, t->name), .rank = t->rank, .is_floating = dtype[0] == 'F' || t->dtype == AG_ST_BF16};
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
            status = ag_fail(err, AG_E_FORMAT, "%s: '%.60s' is %s, a tensor was expected", list->path, key->text, ag_torch_describe(arena, value));
            break;
        }
        ag_adapter_tensor *to = &list->tensors[list->n++];
        *to = (ag_adapter_tensor){.name = ag_arena_strdup(arena, key->text), .rank = value->tensor->rank,
                                  .is_floating = is_floating(value->tensor->dtype)};
        memcpy(to->dim, value->tensor->dim, sizeof to->dim);
    }
    ag_torch_close(&archive);
    return status;
}

static ag_status read_tensors(tensor_list *list, const char *dir, const char *shown, bool allow_unsafe, ag_arena *arena, ag_err *err)
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

/* ---- pairs against modules --------------------------------------------------------------------------------------------------------- */
typedef struct {
    tensor_list list;
    ag_trained_shape *shapes;
    size_t n_shapes, n_taken;
    ag_arena *arena;
} taker;

/* columns 0: a vector of `rows`. */
static ag_status take(taker *t, const char *module, const char *part, int64_t rows, int64_t columns, ag_err *err)
{
    const char *name = ag_arena_printf(t->arena, "%s%s.%s", PREFIX, module, part);
    ag_adapter_tensor *found = find(&t->list, name);
    const int rank = columns ? 2 : 1;
    if (!found) return ag_fail(err, AG_E_FORMAT, "%s: there is no tensor '%s', which adapter_config.json asks for", t->list.path, name);
    if (found->rank != rank || found->dim[0] != rows || (columns && found->dim[1] != columns))
        return ag_fail(err, AG_E_SHAPE, "%s: tensor '%s' has another shape than [%lld%s%.0lld], which config and base ask for", t->list.path,
                       name, (long long)rows, columns ? "," : "", (long long)columns);
    found->is_taken = true;
    t->n_taken++;
    t->shapes[t->n_shapes++] = (ag_trained_shape){.rank = rank, .dim = {rows, columns}};
    return AG_OK;
}

static ag_status take_module(taker *t, const ag_lora_facts *f, const ag_base_module *m, ag_err *err)
{
    const int64_t r = ag_lora_rank_of(f, m->name);
    AG_TRY(take(t, m->name, m->is_embedding ? "lora_embedding_A" : "lora_A.weight", r, m->in, err));
    AG_TRY(take(t, m->name, m->is_embedding ? "lora_embedding_B" : "lora_B.weight", m->out, r, err));
    if (f->use_dora) AG_TRY(take(t, m->name, "lora_magnitude_vector", m->out, 0, err));
    if (!m->is_edge) return AG_OK;
    ag_adapter_tensor *base = find(&t->list, ag_arena_printf(t->arena, "%s%s.base_layer.weight", PREFIX, m->name));
    const int64_t rows = m->is_embedding ? m->in : m->out, columns = m->is_embedding ? m->out : m->in;
    if (!base) return AG_OK;
    if (base->rank != 2 || base->dim[0] != rows || base->dim[1] != columns)
        return ag_fail(err, AG_E_SHAPE, "%s: tensor '%s' has not the shape of the base's own", t->list.path, base->name);
    base->is_taken = true;
    t->n_taken++;
    return AG_OK;
}

static ag_status take_all(taker *t, const ag_lora_facts *f, const ag_description *d, ag_err *err)
{
    ag_base_module *modules;
    size_t n;
    AG_TRY(ag_base_modules_select(&modules, &n, f, d, t->arena, err));
    t->shapes = ag_arena_array(t->arena, 3 * n, sizeof *t->shapes);
    for (size_t i = 0; i < n; i++) AG_TRY(take_module(t, f, &modules[i], err));
    for (size_t i = 0; i < t->list.n && t->n_taken < t->list.n; i++)
        if (!t->list.tensors[i].is_taken)
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%.100s' belongs to no module that target_modules selects", t->list.path,
                           t->list.tensors[i].name);
    return AG_OK;
}

static ag_status check_weights(ag_adapter_report *out, const ag_lora_facts *f, const char *dir, const char *shown,
                               const ag_adapter_check_options *options, ag_arena *arena, ag_err *err)
{
    ag_description d;
    taker t = {.arena = arena};
    AG_TRY(read_tensors(&t.list, dir, shown, options->allow_unsafe, arena, err));
    AG_TRY(ag_base_check(&d, f->base_model, f->revision, options->hub_cache, arena, err));
    AG_TRY(take_all(&t, f, &d, err));
    out->shapes = t.shapes;
    out->n_shapes = t.n_shapes;
    return AG_OK;
}

/* ---- reports -------------------------------------------------------------------------------------------------------------------------- */
void ag_adapter_check(ag_adapter_report *out, const char *dir, const char *shown, const ag_adapter_check_options *options, ag_arena *arena)
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
    static const char *const pairs[][2] = {{".lora_A.", ".lora_B."}, {".lora_B.", ".lora_A."},
                                           {".lora_embedding_A", ".lora_embedding_B"}, {".lora_embedding_B", ".lora_embedding_A"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *at = strstr(name, pairs[i][0]);
        if (at) return find(list, ag_arena_printf(arena, "%.*s%s%s", (int)(at - name), name, pairs[i][1], at + strlen(pairs[i][0]))) != NULL;
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
