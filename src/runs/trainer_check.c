#include "runs/trainer_check.h"

#include "base/fs.h"
#include "base/json.h"
#include "base/num.h"
#include "format/torch_archive.h"
#include "train/trainer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_GROUPS = 2, N_PLUS_GROUPS = 4, MOST_SIDECAR_BYTES = 4 << 20 };

typedef struct {
    const char *dir, *shown;
    int64_t step;
    const ag_trained_shape *shapes;
    size_t n_shapes;
    int n_groups; /* of the optimizer */
    ag_arena *arena;
} checkpoint;

/* ---- optimizer.pt: groups ---------------------------------------------------------------------------------------- */
static int compare_ids(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int group_of(const checkpoint *c, const ag_trained_shape *shape)
{
    return c->n_groups == N_GROUPS ? shape->group : shape->plus_group;
}

/* The optimizer's order is that of its groups, not of the modules: two, the second without decay, or the four of LoRA+. */
static ag_status order_by_group(checkpoint *c, const size_t n_of_group[N_PLUS_GROUPS], ag_err *err)
{
    ag_trained_shape *ordered = ag_arena_array(c->arena, c->n_shapes, sizeof *ordered);
    size_t n = 0;
    for (int g = 0; g < c->n_groups; g++) {
        const size_t before = n;
        for (size_t i = 0; i < c->n_shapes; i++)
            if (group_of(c, &c->shapes[i]) == g) ordered[n++] = c->shapes[i];
        if (n - before != n_of_group[g])
            return ag_fail(
                err, AG_E_SHAPE,
                "its group %d has %zu parameters, of the adapter's tensors %zu belong there; it belongs to another run", g,
                n_of_group[g], n - before);
    }
    c->shapes = ordered;
    return AG_OK;
}

/* ids[i] = the key of the i-th trained tensor; in *n_of_group how many each group has. */
static ag_status read_groups(int64_t *ids, size_t n_of_group[N_PLUS_GROUPS], checkpoint *c, const ag_torch_value *groups,
                             ag_err *err)
{
    size_t n = 0;
    if (!ag_torch_is(groups, AG_TORCH_LIST) || (groups->n != N_GROUPS && groups->n != N_PLUS_GROUPS))
        return ag_fail(err, AG_E_FORMAT,
                       "'param_groups' must be a list of %d groups (with and without weight decay), or of LoRA+'s %d, found %s",
                       N_GROUPS, N_PLUS_GROUPS, ag_torch_describe(c->arena, groups));
    c->n_groups = (int)groups->n;
    for (uint32_t g = 0; g < groups->n; g++) {
        const ag_torch_value *params = ag_torch_get(groups->items[g], "params");
        if (!ag_torch_is(params, AG_TORCH_LIST))
            return ag_fail(err, AG_E_FORMAT, "'params' of a group must be a list, found %s",
                           ag_torch_describe(c->arena, params));
        n_of_group[g] = params->n;
        for (uint32_t i = 0; i < params->n; i++, n++) {
            if (!ag_torch_is(params->items[i], AG_TORCH_INT))
                return ag_fail(err, AG_E_FORMAT, "'params' of a group must hold numbers of parameters, found %s",
                               ag_torch_describe(c->arena, params->items[i]));
            if (n < c->n_shapes) ids[n] = params->items[i]->integer;
        }
    }
    if (n == c->n_shapes) AG_TRY(order_by_group(c, n_of_group, err));
    if (n != c->n_shapes)
        return ag_fail(err, AG_E_SHAPE, "it has %zu parameters, the adapter trains %zu tensors; it belongs to another run", n,
                       c->n_shapes);
    int64_t *sorted = ag_arena_array(c->arena, n + 1, sizeof *sorted);
    memcpy(sorted, ids, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_ids);
    for (size_t i = 1; i < n; i++)
        if (sorted[i] == sorted[i - 1])
            return ag_fail(err, AG_E_FORMAT, "'params' lists parameter %lld twice", (long long)sorted[i]);
    return AG_OK;
}

/* ---- optimizer.pt: moments --------------------------------------------------------------------------------------- */
static bool is_floating(ag_torch_dtype dtype)
{
    return dtype == AG_TORCH_F64 || dtype == AG_TORCH_F32 || dtype == AG_TORCH_F16 || dtype == AG_TORCH_BF16;
}

static double scalar(const ag_torch_view *v)
{
    double wide;
    float single;
    uint16_t half;
    if (v->dtype == AG_TORCH_F64) return memcpy(&wide, v->data, sizeof wide), wide;
    if (v->dtype == AG_TORCH_F32) return memcpy(&single, v->data, sizeof single), (double)single;
    memcpy(&half, v->data, sizeof half);
    return (double)(v->dtype == AG_TORCH_F16 ? ag_f16_to_f32(half) : ag_bf16_to_f32(half));
}

static bool is_step(const checkpoint *c, double step) { return step > 0 && step <= (double)c->step && step == floor(step); }

static ag_status check_step(const checkpoint *c, const ag_torch_value *v, size_t i, ag_err *err)
{
    if (!ag_torch_is(v, AG_TORCH_TENSOR) || v->tensor->rank != 0 || !is_floating(v->tensor->dtype))
        return ag_fail(err, AG_E_FORMAT, "'step' of parameter %zu must be a tensor of one number, found %s", i,
                       ag_torch_describe(c->arena, v));
    if (is_step(c, scalar(v->tensor))) return AG_OK;
    return ag_fail(err, AG_E_FORMAT, "'step' of parameter %zu is %g, a whole number from 1 to %lld was expected", i,
                   scalar(v->tensor), (long long)c->step);
}

static bool has_shape(const ag_torch_view *v, const ag_trained_shape *shape)
{
    bool same = v->rank == shape->rank;
    for (int k = 0; k < shape->rank && same; k++) same = v->dim[k] == shape->dim[k];
    return same && ag_torch_count(v) > 0 && ag_torch_is_contiguous(v);
}

static ag_status check_moment(const checkpoint *c, const ag_torch_value *v, const char *key, size_t i, ag_err *err)
{
    if (ag_torch_is(v, AG_TORCH_TENSOR) && is_floating(v->tensor->dtype) && has_shape(v->tensor, &c->shapes[i])) return AG_OK;
    const ag_torch_value *wanted = ag_torch_tensor(c->arena, NULL, AG_TORCH_F32, c->shapes[i].rank, c->shapes[i].dim);
    return ag_fail(err, AG_E_SHAPE,
                   "'%s' of parameter %zu is %s; %s (contiguous) was expected, so that the file belongs to another adapter or "
                   "its order differs",
                   key, i, ag_torch_describe(c->arena, v), ag_torch_describe(c->arena, wanted));
}

static bool is_u8_of(const ag_torch_value *v, const ag_trained_shape *shape)
{
    return ag_torch_is(v, AG_TORCH_TENSOR) && v->tensor->dtype == AG_TORCH_U8 && has_shape(v->tensor, shape);
}

static bool is_f32_of(const ag_torch_value *v, int64_t n)
{
    return ag_torch_is(v, AG_TORCH_TENSOR) && v->tensor->dtype == AG_TORCH_F32 &&
           has_shape(v->tensor, &(ag_trained_shape){.rank = 1, .dim = {n}});
}

/* bitsandbytes: numbers in f32, or codes in the tensor's shape, a table of 256 values each, a scale for every 256 codes. */
static ag_status check_8bit(const checkpoint *c, const ag_torch_value *entry, const ag_torch_value *q, size_t i, ag_err *err)
{
    enum { BLOCK = 256 };
    const ag_trained_shape *shape = &c->shapes[i];
    const int64_t n = shape->dim[0] * (shape->rank == 2 ? shape->dim[1] : 1), n_blocks = (n + BLOCK - 1) / BLOCK;
    const ag_torch_value *step = ag_torch_get(entry, "step"), *first = ag_torch_get(q, "state1");
    const bool has_step = ag_torch_is(step, AG_TORCH_INT) && is_step(c, (double)step->integer);
    if (has_step && ag_torch_is(first, AG_TORCH_TENSOR) &&
        first->tensor->dtype == AG_TORCH_F32) { /* few numbers, or an embedding's */
        AG_TRY(check_moment(c, first, "state1", i, err));
        return check_moment(c, ag_torch_get(q, "state2"), "state2", i, err);
    }
    const bool good = is_u8_of(ag_torch_get(q, "state1"), shape) && is_u8_of(ag_torch_get(q, "state2"), shape) &&
                      is_f32_of(ag_torch_get(q, "qmap1"), BLOCK) && is_f32_of(ag_torch_get(q, "qmap2"), BLOCK) &&
                      is_f32_of(ag_torch_get(q, "absmax1"), n_blocks) && is_f32_of(ag_torch_get(q, "absmax2"), n_blocks) &&
                      has_step;
    if (good) return AG_OK;
    return ag_fail(err, AG_E_SHAPE,
                   "the 8-bit state of parameter %zu does not fit the adapter's tensor, or its step is not from 1 to %lld", i,
                   (long long)c->step);
}

static ag_status check_entry(const checkpoint *c, const ag_torch_value *entry, size_t i, ag_err *err)
{
    const ag_torch_value *q = ag_torch_get(entry, "__bnb_optimizer_quant_state__");
    if (ag_torch_is(q, AG_TORCH_DICT)) return check_8bit(c, entry, q, i, err);
    AG_TRY(check_step(c, ag_torch_get(entry, "step"), i, err));
    const ag_torch_value *first = ag_torch_get(entry, "exp_avg"), *second = ag_torch_get(entry, "exp_avg_sq");
    AG_TRY(check_moment(c, first, "exp_avg", i, err));
    AG_TRY(check_moment(c, second, "exp_avg_sq", i, err));
    if (first->tensor->dtype != second->tensor->dtype)
        return ag_fail(err, AG_E_FORMAT, "the two moments of parameter %zu have different types", i);
    return AG_OK;
}

/* The entry of a key; files have them in order, so that the first look finds it. */
static const ag_torch_value *find_entry(const ag_torch_value *state, int64_t id, size_t hint)
{
    for (size_t i = 0; i < state->n; i++) {
        const size_t at = (hint + i) % state->n;
        if (ag_torch_is(state->items[2 * at], AG_TORCH_INT) && state->items[2 * at]->integer == id)
            return state->items[2 * at + 1];
    }
    return NULL;
}

static ag_status check_state(const checkpoint *c, const ag_torch_value *state, const int64_t *ids, ag_err *err)
{
    if (!ag_torch_is(state, AG_TORCH_DICT) || state->n != c->n_shapes)
        return ag_fail(err, AG_E_FORMAT, "'state' must hold the moments of %zu parameters, found %s", c->n_shapes,
                       ag_torch_describe(c->arena, state));
    for (size_t i = 0; i < c->n_shapes; i++) {
        const ag_torch_value *entry = find_entry(state, ids[i], i);
        if (!ag_torch_is(entry, AG_TORCH_DICT))
            return ag_fail(err, AG_E_FORMAT, "'state' has nothing of parameter %lld", (long long)ids[i]);
        AG_TRY(check_entry(c, entry, i, err));
    }
    return AG_OK;
}

/* ---- agoge_resume.json ------------------------------------------------------------------------------------------- */
static bool is_shape(const json_t *value, const ag_trained_shape *shape)
{
    if (!json_is_array(value) || (int)json_array_size(value) != shape->rank) return false;
    for (int k = 0; k < shape->rank; k++) {
        const json_t *n = json_array_get(value, (size_t)k);
        if (!json_is_integer(n) || json_integer_value(n) != shape->dim[k]) return false;
    }
    return true;
}

static bool are_shapes(const checkpoint *c, const json_t *groups, const size_t n_of_group[N_PLUS_GROUPS])
{
    size_t n = 0;
    if (!json_is_array(groups) || json_array_size(groups) != (size_t)c->n_groups) return false;
    for (size_t g = 0; g < (size_t)c->n_groups; g++) {
        const json_t *group = json_array_get(groups, g);
        if (!json_is_array(group) || json_array_size(group) != n_of_group[g]) return false;
        for (size_t i = 0; i < n_of_group[g]; i++)
            if (!is_shape(json_array_get(group, i), &c->shapes[n++])) return false;
    }
    return true;
}

static ag_status check_sidecar(const checkpoint *c, const size_t n_of_group[N_PLUS_GROUPS], ag_err *err)
{
    static const char file[] = "agoge_resume.json";
    const char *path = ag_path_join(c->arena, c->dir, file);
    if (!ag_path_is_file(path)) return AG_OK;
    ag_map map;
    json_t *root = NULL;
    int64_t ignored = 0;
    AG_TRY(ag_map_open_no_link(&map, path, err));
    ag_status status = map.n <= MOST_SIDECAR_BYTES ? ag_json_parse(&root, (const char *)map.bytes, map.n, file, err)
                                                   : ag_fail(err, AG_E_FORMAT, "%s has %zu bytes; at most %d are read", file,
                                                             map.n, MOST_SIDECAR_BYTES);
    ag_map_close(&map);
    if (!status) status = ag_json_need_int(root, "global_step", c->step, c->step, &ignored, file, err);
    if (!status) status = ag_json_need_int(root, "sampler_position", 0, INT64_MAX, &ignored, file, err);
    if (!status && !are_shapes(c, json_object_get(root, "optimizer_shapes"), n_of_group))
        status = ag_fail(err, AG_E_SHAPE, "%s: 'optimizer_shapes' are not those of the optimizer and the adapter", file);
    ag_json_free(&root);
    return status;
}

static ag_status check_optimizer(checkpoint *c, ag_err *err)
{
    ag_torch_archive archive;
    size_t n_of_group[N_PLUS_GROUPS] = {0};
    int64_t *ids = ag_arena_array(c->arena, c->n_shapes + 1, sizeof *ids);
    AG_TRY(ag_torch_open(&archive, ag_path_join(c->arena, c->dir, "optimizer.pt"), AG_TORCH_NEEDS_STORAGE, err));
    ag_status status = read_groups(ids, n_of_group, c, ag_torch_get(archive.root, "param_groups"), err);
    if (!status) status = check_state(c, ag_torch_get(archive.root, "state"), ids, err);
    if (status) (void)ag_err_prefix(err, "%s/optimizer.pt", c->shown);
    ag_torch_close(&archive);
    return status ? status : check_sidecar(c, n_of_group, err);
}

/* ---- scheduler.pt ------------------------------------------------------------------------------------------------ */
static ag_status check_count(const checkpoint *c, const ag_torch_value *root, const char *key, int64_t wanted, ag_err *err)
{
    const ag_torch_value *v = ag_torch_get(root, key);
    if (ag_torch_is(v, AG_TORCH_INT) && v->integer == wanted) return AG_OK;
    return ag_fail(err, AG_E_FORMAT, "'%s' is %s; %lld was expected", key, ag_torch_describe(c->arena, v), (long long)wanted);
}

static ag_status check_lists(const checkpoint *c, const ag_torch_value *root, ag_err *err)
{
    static const char *const keys[] = {"base_lrs", "_last_lr", "lr_lambdas"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const ag_torch_value *v = ag_torch_get(root, keys[k]);
        if (v && (!ag_torch_is(v, AG_TORCH_LIST) || v->n != (uint32_t)c->n_groups))
            return ag_fail(err, AG_E_FORMAT,
                           "'%s' is %s; a list with one value for each of the optimizer's %d groups was expected", keys[k],
                           ag_torch_describe(c->arena, v), c->n_groups);
        for (uint32_t i = 0; v && k < 2 && i < v->n; i++) {
            const ag_torch_value *lr = v->items[i];
            const bool is_rate = ag_torch_is(lr, AG_TORCH_INT) || (ag_torch_is(lr, AG_TORCH_FLOAT) && isfinite(lr->real));
            if (!is_rate)
                return ag_fail(err, AG_E_FORMAT, "'%s' holds %s; a rate was expected", keys[k],
                               ag_torch_describe(c->arena, lr));
        }
    }
    return AG_OK;
}

static ag_status check_scheduler(const checkpoint *c, ag_err *err)
{
    ag_torch_archive archive;
    AG_TRY(ag_torch_open(&archive, ag_path_join(c->arena, c->dir, "scheduler.pt"), 0, err));
    ag_status status = check_count(c, archive.root, "last_epoch", c->step, err);
    if (!status) status = check_count(c, archive.root, "_step_count", c->step + 1, err);
    if (!status) status = check_lists(c, archive.root, err);
    if (status) (void)ag_err_prefix(err, "%s/scheduler.pt", c->shown);
    ag_torch_close(&archive);
    return status;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */
static ag_status check_all(checkpoint *c, ag_err *err)
{
    ag_trainer_state state;
    ag_trainer_rng rng;
    AG_TRY(ag_trainer_state_load(&state, c->dir, c->arena, err));
    if (state.global_step != c->step)
        return ag_fail(err, AG_E_FORMAT, "%s/trainer_state.json: 'global_step' is %lld, the folder's name says %lld", c->shown,
                       (long long)state.global_step, (long long)c->step);
    AG_TRY(check_optimizer(c, err));
    AG_TRY(check_scheduler(c, err));
    return ag_trainer_rng_load(&rng, c->dir, err);
}

ag_status ag_trainer_check(const char *dir, const char *shown, int64_t step, const ag_trained_shape *shapes, size_t n_shapes,
                           ag_err *err)
{
    ag_arena arena = {0};
    const ag_status status = check_all(
        &(checkpoint){.dir = dir, .shown = shown, .step = step, .shapes = shapes, .n_shapes = n_shapes, .arena = &arena}, err);
    ag_arena_free(&arena);
    return status;
}
