#include "train/trainer_state.h"

#include "base/fs.h"
#include "base/num.h"
#include "format/torch_archive.h"
#include "ops/adamw/adamw8.h"
#include "ops/weight/weight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char FILE_NAME[] = "optimizer.pt";

/* ---- writing ---------------------------------------------------------------------------------------------------------------- */

enum { N_DEFAULT_GROUPS = 2 };
static const char BNB_STATE[] = "__bnb_optimizer_quant_state__"; /* bitsandbytes/optim/optimizer.py, Optimizer8bit.state_dict */

static int n_groups_of(const ag_optimizer_state *s) { return s->n_groups ? s->n_groups : N_DEFAULT_GROUPS; }

static ag_optimizer_group group_of(const ag_optimizer_state *s, int g)
{
    if (s->n_groups) return s->groups[g];
    return (ag_optimizer_group){.lr = s->lr, .initial_lr = s->initial_lr, .weight_decay = g == 0 ? s->weight_decay : 0};
}

static void put_torch_options(ag_arena *a, ag_torch_value *group)
{
    ag_torch_put(a, group, "amsgrad", ag_torch_bool(a, false));
    ag_torch_put(a, group, "maximize", ag_torch_bool(a, false));
    ag_torch_put(a, group, "foreach", ag_torch_none(a));
    ag_torch_put(a, group, "capturable", ag_torch_bool(a, false));
    ag_torch_put(a, group, "differentiable", ag_torch_bool(a, false));
    ag_torch_put(a, group, "fused", ag_torch_none(a));
    ag_torch_put(a, group, "decoupled_weight_decay", ag_torch_bool(a, true));
}

static void put_bnb_options(ag_arena *a, ag_torch_value *group)
{
    ag_torch_put(a, group, "alpha", ag_torch_float(a, 0));
    ag_torch_put(a, group, "t_alpha", ag_torch_none(a));
    ag_torch_put(a, group, "t_beta3", ag_torch_none(a));
}

/* One group, with the keys of torch.optim.AdamW or of bitsandbytes' AdamW8bit. */
static ag_torch_value *make_group(ag_arena *a, const ag_optimizer_state *s, int g)
{
    const ag_optimizer_group of = group_of(s, g);
    ag_torch_value *group = ag_torch_dict(a), *betas = ag_torch_tuple(a), *ids = ag_torch_list(a);
    ag_torch_push(a, betas, ag_torch_float(a, s->beta1));
    ag_torch_push(a, betas, ag_torch_float(a, s->beta2));
    for (size_t i = 0; i < s->n_params; i++)
        if (s->params[i].group == g) ag_torch_push(a, ids, ag_torch_int(a, (int64_t)i));
    ag_torch_put(a, group, "weight_decay", ag_torch_float(a, of.weight_decay));
    ag_torch_put(a, group, "lr", ag_torch_float(a, of.lr));
    ag_torch_put(a, group, "betas", betas);
    ag_torch_put(a, group, "eps", ag_torch_float(a, s->eps));
    (s->is_bnb ? put_bnb_options : put_torch_options)(a, group);
    ag_torch_put(a, group, "initial_lr", ag_torch_float(a, of.initial_lr));
    ag_torch_put(a, group, "params", ids);
    return group;
}

static size_t count(const ag_optimizer_param *p)
{
    size_t n = 1;
    for (int k = 0; k < p->rank; k++) n *= (size_t)p->dim[k];
    return n;
}

static ag_torch_value *make_bnb_entry(ag_arena *a, const ag_optimizer_state *s, const ag_optimizer_param *p)
{
    const int64_t blocks = ag_adamw8_blocks((int64_t)count(p)), n_codes = 256;
    ag_torch_value *entry = ag_torch_dict(a), *state = ag_torch_dict(a);
    ag_torch_put(a, entry, "step", ag_torch_int(a, s->n_updates));
    if (p->codes) {
        ag_torch_put(a, state, "state1", ag_torch_tensor(a, p->codes, AG_TORCH_U8, p->rank, p->dim));
        ag_torch_put(a, state, "qmap1", ag_torch_tensor(a, ag_dynamic_map_signed(), AG_TORCH_F32, 1, &n_codes));
        ag_torch_put(a, state, "state2", ag_torch_tensor(a, p->codes_sq, AG_TORCH_U8, p->rank, p->dim));
        ag_torch_put(a, state, "qmap2", ag_torch_tensor(a, ag_dynamic_map_unsigned(), AG_TORCH_F32, 1, &n_codes));
        ag_torch_put(a, state, "absmax1", ag_torch_tensor(a, p->absmax, AG_TORCH_F32, 1, &blocks));
        ag_torch_put(a, state, "absmax2", ag_torch_tensor(a, p->absmax_sq, AG_TORCH_F32, 1, &blocks));
    } else {
        ag_torch_put(a, state, "state1", ag_torch_tensor(a, p->exp_avg, AG_TORCH_F32, p->rank, p->dim));
        ag_torch_put(a, state, "state2", ag_torch_tensor(a, p->exp_avg_sq, AG_TORCH_F32, p->rank, p->dim));
    }
    ag_torch_put(a, entry, BNB_STATE, state);
    return entry;
}

static ag_torch_value *make_torch_entry(ag_arena *a, const ag_optimizer_param *p, const float *step)
{
    ag_torch_value *entry = ag_torch_dict(a);
    ag_torch_put(a, entry, "step", ag_torch_tensor(a, step, AG_TORCH_F32, 0, NULL));
    ag_torch_put(a, entry, "exp_avg", ag_torch_tensor(a, p->exp_avg, AG_TORCH_F32, p->rank, p->dim));
    ag_torch_put(a, entry, "exp_avg_sq", ag_torch_tensor(a, p->exp_avg_sq, AG_TORCH_F32, p->rank, p->dim));
    return entry;
}

static ag_torch_value *make_state(ag_arena *a, const ag_optimizer_state *s, const float *step)
{
    ag_torch_value *state = ag_torch_dict(a);
    for (size_t i = 0; s->n_updates > 0 && i < s->n_params; i++) {
        const ag_optimizer_param *p = &s->params[i];
        ag_torch_put_at(a, state, (int64_t)i, s->is_bnb ? make_bnb_entry(a, s, p) : make_torch_entry(a, p, step));
    }
    return state;
}

ag_status ag_optimizer_save(const ag_optimizer_state *s, const char *dir, ag_err *err)
{
    ag_arena a = {0};
    float step = (float)s->n_updates;
    ag_torch_value *root = ag_torch_dict(&a), *groups = ag_torch_list(&a);
    for (int g = 0; g < n_groups_of(s); g++) ag_torch_push(&a, groups, make_group(&a, s, g));
    ag_torch_put(&a, root, "state", make_state(&a, s, &step));
    ag_torch_put(&a, root, "param_groups", groups);
    ag_status status = ag_torch_save(ag_path_join(&a, dir, FILE_NAME), root, err);
    ag_arena_free(&a);
    return status;
}

/* ---- reading: groups ---------------------------------------------------------------------------------------------------------- */

static ag_status get_number(double *out, const ag_torch_value *v, double min, double max, const char *key, ag_arena *a, ag_err *err)
{
    if (ag_torch_is(v, AG_TORCH_FLOAT)) *out = v->real;
    else if (ag_torch_is(v, AG_TORCH_INT)) *out = (double)v->integer;
    else return ag_fail(err, AG_E_FORMAT, "'%s' of a parameter group must be a number, found %s", key, ag_torch_describe(a, v));
    if (*out >= min && *out <= max) return AG_OK; /* false for NaN */
    return ag_fail(err, AG_E_FORMAT, "'%s' of a parameter group is %.9g, which AdamW cannot use", key, *out);
}

static ag_status read_group_numbers(ag_optimizer_state *s, const ag_torch_value *group, ag_arena *a, ag_err *err)
{
    static const double largest = 1e30;
    const ag_torch_value *betas = ag_torch_get(group, "betas"), *initial = ag_torch_get(group, "initial_lr");
    AG_TRY(get_number(&s->lr, ag_torch_get(group, "lr"), 0, largest, "lr", a, err));
    AG_TRY(get_number(&s->eps, ag_torch_get(group, "eps"), 0, largest, "eps", a, err));
    AG_TRY(get_number(&s->weight_decay, ag_torch_get(group, "weight_decay"), 0, largest, "weight_decay", a, err));
    if ((!ag_torch_is(betas, AG_TORCH_TUPLE) && !ag_torch_is(betas, AG_TORCH_LIST)) || betas->n != 2)
        return ag_fail(err, AG_E_FORMAT, "'betas' of a parameter group must be two numbers, found %s", ag_torch_describe(a, betas));
    AG_TRY(get_number(&s->beta1, betas->items[0], 0, 1, "betas", a, err));
    AG_TRY(get_number(&s->beta2, betas->items[1], 0, 1, "betas", a, err));
    s->initial_lr = s->lr;
    if (initial) AG_TRY(get_number(&s->initial_lr, initial, 0, largest, "initial_lr", a, err));
    const ag_torch_value *amsgrad = ag_torch_get(group, "amsgrad");
    if (ag_torch_is(amsgrad, AG_TORCH_BOOLEAN) && amsgrad->boolean)
        return ag_fail(err, AG_E_UNSUPPORTED, "it was written by AdamW with amsgrad, which is not supported");
    return AG_OK;
}

static int compare_ids(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static ag_status check_unique(const int64_t *ids, size_t n, ag_arena *a, ag_err *err)
{
    int64_t *sorted = ag_arena_array(a, n, sizeof *sorted);
    if (n) memcpy(sorted, ids, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_ids);
    for (size_t i = 1; i < n; i++)
        if (sorted[i] == sorted[i - 1])
            return ag_fail(err, AG_E_FORMAT, "'params' of the groups list parameter %lld twice", (long long)sorted[i]);
    return AG_OK;
}

/* Where the run knows its groups, the file's must have as many parameters each. */
static ag_status check_group_sizes(const ag_optimizer_state *s, const ag_torch_value *groups, ag_err *err)
{
    if (s->n_groups == 0) return AG_OK;
    if (groups->n != (uint32_t)s->n_groups)
        return ag_fail(err, AG_E_SHAPE, "it has %u parameter groups, this run has %d; it belongs to another optimizer", groups->n, s->n_groups);
    for (uint32_t g = 0; g < groups->n; g++) {
        const ag_torch_value *list = ag_torch_get(groups->items[g], "params");
        size_t n = 0;
        for (size_t i = 0; i < s->n_params; i++) n += s->params[i].group == (int)g;
        if (ag_torch_is(list, AG_TORCH_LIST) && list->n != n)
            return ag_fail(err, AG_E_SHAPE, "its parameter group %u has %u parameters, this run's has %zu; it belongs to another run", g, list->n, n);
    }
    return AG_OK;
}

/* ids[i] = the key of the i-th parameter, groups one behind the other. */
static ag_status read_ids(int64_t *ids, size_t n_params, const ag_torch_value *groups, ag_arena *a, ag_err *err)
{
    size_t n = 0;
    for (uint32_t g = 0; g < groups->n; g++) {
        const ag_torch_value *list = ag_torch_get(groups->items[g], "params");
        if (!ag_torch_is(list, AG_TORCH_LIST))
            return ag_fail(err, AG_E_FORMAT, "'params' of a parameter group must be a list, found %s", ag_torch_describe(a, list));
        for (uint32_t i = 0; i < list->n; i++, n++) {
            if (!ag_torch_is(list->items[i], AG_TORCH_INT) || list->items[i]->integer < 0)
                return ag_fail(err, AG_E_FORMAT, "'params' of a parameter group must hold parameter numbers, found %s",
                               ag_torch_describe(a, list->items[i]));
            if (n < n_params) ids[n] = list->items[i]->integer;
        }
    }
    if (n == n_params) return check_unique(ids, n, a, err);
    return ag_fail(err, AG_E_SHAPE, "it has %zu parameters, this adapter has %zu; it belongs to another run", n, n_params);
}

/* ---- reading: moments --------------------------------------------------------------------------------------------------------- */

/* All three types fit a float exactly. */
static void widen(float *out, const ag_torch_view *v, size_t n)
{
    if (v->dtype == AG_TORCH_F32) {
        memcpy(out, v->data, n * sizeof *out);
        return;
    }
    const unsigned char *at = v->data;
    for (size_t i = 0; i < n; i++, at += 2) {
        uint16_t half;
        memcpy(&half, at, sizeof half);
        out[i] = v->dtype == AG_TORCH_BF16 ? ag_bf16_to_f32(half) : ag_f16_to_f32(half);
    }
}

static bool has_shape(const ag_torch_view *v, const ag_optimizer_param *p)
{
    return v->rank == p->rank && memcmp(v->dim, p->dim, (size_t)p->rank * sizeof *p->dim) == 0;
}

static ag_status read_moment(float *out, ag_torch_dtype *dtype, const ag_torch_value *v, const ag_optimizer_param *p, const char *key, ag_arena *a,
                             ag_err *err)
{
    if (!ag_torch_is(v, AG_TORCH_TENSOR))
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be a tensor, found %s; moments of other optimizers are not read", p->name, key,
                       ag_torch_describe(a, v));
    const ag_torch_view *view = v->tensor;
    *dtype = view->dtype;
    if (view->dtype != AG_TORCH_F32 && view->dtype != AG_TORCH_BF16 && view->dtype != AG_TORCH_F16)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' is %s; f32, bf16 or f16 was expected", p->name, key, ag_torch_describe(a, v));
    if (!has_shape(view, p)) {
        const ag_torch_value *expected = ag_torch_tensor(a, NULL, view->dtype, p->rank, p->dim);
        return ag_fail(err, AG_E_SHAPE, "%s: '%s' is %s, this adapter needs %s; the file belongs to another run or its order differs",
                       p->name, key, ag_torch_describe(a, v), ag_torch_describe(a, expected));
    }
    if (!ag_torch_is_contiguous(view)) return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' is not contiguous", p->name, key);
    size_t n = (size_t)ag_torch_count(view);
    bool is_square = out == p->exp_avg_sq;
    if (n) widen(out, view, n);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(out[i]) || (is_square && out[i] < 0))
            return ag_fail(err, AG_E_NUMERIC, "%s: '%s' has the value %g at element %zu, which no training leaves", p->name, key,
                           (double)out[i], i);
    return AG_OK;
}

static ag_status read_step(int64_t *step, const ag_torch_value *v, int64_t max_updates, const char *name, ag_arena *a, ag_err *err)
{
    if (!ag_torch_is(v, AG_TORCH_TENSOR) || v->tensor->rank != 0 || v->tensor->dtype != AG_TORCH_F32)
        return ag_fail(err, AG_E_FORMAT, "%s: 'step' must be a tensor of one float, found %s", name, ag_torch_describe(a, v));
    float value;
    memcpy(&value, v->tensor->data, sizeof value);
    if (!(value >= 1 && value <= (float)max_updates) || value != floorf(value))
        return ag_fail(err, AG_E_FORMAT, "%s: 'step' is %g, a whole number from 1 to %lld (the checkpoint's step) was expected", name,
                       (double)value, (long long)max_updates);
    *step = (int64_t)value;
    return AG_OK;
}

/* Entries by key, so that each is found at once; the reader made sure that none stands twice. */
static const ag_torch_value *find_entry(const ag_torch_value *state, int64_t id, size_t hint)
{
    for (size_t i = 0; i < state->n; i++) {
        size_t at = (hint + i) % state->n; /* files have them in order: the first look finds it */
        const ag_torch_value *key = state->items[2 * at];
        if (key->kind == AG_TORCH_INT && key->integer == id) return state->items[2 * at + 1];
    }
    return NULL;
}

/* ---- reading: bitsandbytes' 8-bit state ------------------------------------------------------------------------------------------ */
static ag_status read_codes(uint8_t *out, const ag_torch_value *v, const ag_optimizer_param *p, const char *key, ag_arena *a, ag_err *err)
{
    if (!ag_torch_is(v, AG_TORCH_TENSOR) || v->tensor->dtype != AG_TORCH_U8 || !has_shape(v->tensor, p) || !ag_torch_is_contiguous(v->tensor))
        return ag_fail(err, AG_E_SHAPE, "%s: '%s' is %s; codes in the tensor's shape were expected", p->name, key, ag_torch_describe(a, v));
    memcpy(out, v->tensor->data, count(p));
    return AG_OK;
}

static ag_status read_vector(float *out, const ag_torch_value *v, int64_t n, const ag_optimizer_param *p, const char *key, ag_arena *a, ag_err *err)
{
    const ag_optimizer_param shape = {.rank = 1, .dim = {n}};
    if (!ag_torch_is(v, AG_TORCH_TENSOR) || v->tensor->dtype != AG_TORCH_F32 || !has_shape(v->tensor, &shape) ||
        !ag_torch_is_contiguous(v->tensor))
        return ag_fail(err, AG_E_SHAPE, "%s: '%s' is %s; %lld f32 numbers were expected", p->name, key, ag_torch_describe(a, v), (long long)n);
    memcpy(out, v->tensor->data, (size_t)n * sizeof *out);
    return AG_OK;
}

static ag_status read_scales(float *out, const ag_torch_value *v, const ag_optimizer_param *p, const char *key, ag_arena *a, ag_err *err)
{
    const int64_t n = ag_adamw8_blocks((int64_t)count(p));
    AG_TRY(read_vector(out, v, n, p, key, a, err));
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i]) || out[i] < 0)
            return ag_fail(err, AG_E_NUMERIC, "%s: '%s' has the value %g at element %lld, which no training leaves", p->name, key, (double)out[i],
                           (long long)i);
    return AG_OK;
}

static ag_status check_map(const ag_torch_value *v, const float *map, const ag_optimizer_param *p, const char *key, ag_arena *a, ag_err *err)
{
    float found[256];
    AG_TRY(read_vector(found, v, 256, p, key, a, err));
    if (memcmp(found, map, sizeof found) == 0) return AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' is not bitsandbytes' dynamic map", p->name, key);
}

static ag_status read_bnb_entry(int64_t *step, const ag_torch_value *entry, const ag_optimizer_param *p, int64_t max_updates, ag_arena *a,
                                ag_err *err)
{
    const ag_torch_value *count_of = ag_torch_get(entry, "step"), *nested = ag_torch_get(entry, BNB_STATE);
    const ag_torch_value *state = ag_torch_is(nested, AG_TORCH_DICT) ? nested : entry; /* older versions wrote it flat */
    ag_torch_dtype first, second;
    if (!ag_torch_is(count_of, AG_TORCH_INT) || count_of->integer < 1 || count_of->integer > max_updates)
        return ag_fail(err, AG_E_FORMAT, "%s: 'step' must be a whole number from 1 to %lld (the checkpoint's step), found %s", p->name,
                       (long long)max_updates, ag_torch_describe(a, count_of));
    *step = count_of->integer;
    if (!p->codes) {
        AG_TRY(read_moment(p->exp_avg, &first, ag_torch_get(state, "state1"), p, "state1", a, err));
        return read_moment(p->exp_avg_sq, &second, ag_torch_get(state, "state2"), p, "state2", a, err);
    }
    AG_TRY(check_map(ag_torch_get(state, "qmap1"), ag_dynamic_map_signed(), p, "qmap1", a, err));
    AG_TRY(check_map(ag_torch_get(state, "qmap2"), ag_dynamic_map_unsigned(), p, "qmap2", a, err));
    AG_TRY(read_codes(p->codes, ag_torch_get(state, "state1"), p, "state1", a, err));
    AG_TRY(read_codes(p->codes_sq, ag_torch_get(state, "state2"), p, "state2", a, err));
    AG_TRY(read_scales(p->absmax, ag_torch_get(state, "absmax1"), p, "absmax1", a, err));
    return read_scales(p->absmax_sq, ag_torch_get(state, "absmax2"), p, "absmax2", a, err);
}

static ag_status read_torch_entry(int64_t *step, const ag_torch_value *entry, const ag_optimizer_param *p, int64_t max_updates, ag_arena *a,
                                  ag_err *err)
{
    ag_torch_dtype first, second;
    AG_TRY(read_step(step, ag_torch_get(entry, "step"), max_updates, p->name, a, err));
    AG_TRY(read_moment(p->exp_avg, &first, ag_torch_get(entry, "exp_avg"), p, "exp_avg", a, err));
    AG_TRY(read_moment(p->exp_avg_sq, &second, ag_torch_get(entry, "exp_avg_sq"), p, "exp_avg_sq", a, err));
    if (first != second) return ag_fail(err, AG_E_FORMAT, "%s: its two moments have different types", p->name);
    return AG_OK;
}

static ag_status read_moments(ag_optimizer_state *s, const ag_torch_value *state, const int64_t *ids, int64_t max_updates, ag_arena *a,
                              ag_err *err)
{
    if (state->n != s->n_params)
        return ag_fail(err, AG_E_SHAPE, "it has moments of %u parameters and lists %zu", state->n, s->n_params);
    for (size_t i = 0; i < s->n_params; i++) {
        const ag_optimizer_param *p = &s->params[i];
        const ag_torch_value *entry = find_entry(state, ids[i], i);
        int64_t step = 0;
        if (!ag_torch_is(entry, AG_TORCH_DICT))
            return ag_fail(err, AG_E_FORMAT, "%s: moments of parameter %lld are missing", p->name, (long long)ids[i]);
        AG_TRY((s->is_bnb ? read_bnb_entry : read_torch_entry)(&step, entry, p, max_updates, a, err));
        if (i > 0 && step != s->n_updates)
            return ag_fail(err, AG_E_FORMAT, "%s: 'step' is %lld, that of %s is %lld; all must have been updated together", p->name,
                           (long long)step, s->params[0].name, (long long)s->n_updates);
        s->n_updates = step;
    }
    return AG_OK;
}

static void clear_moments(ag_optimizer_state *s)
{
    for (size_t i = 0; i < s->n_params; i++) {
        const ag_optimizer_param *p = &s->params[i];
        const size_t n = count(p), scales = (size_t)ag_adamw8_blocks((int64_t)n) * sizeof(float);
        if (p->codes) {
            memset(p->codes, 0, n);
            memset(p->codes_sq, 0, n);
            memset(p->absmax, 0, scales);
            memset(p->absmax_sq, 0, scales);
            continue;
        }
        memset(p->exp_avg, 0, n * sizeof(float));
        memset(p->exp_avg_sq, 0, n * sizeof(float));
    }
    s->n_updates = 0;
}

static ag_status read_optimizer(ag_optimizer_state *s, const ag_torch_value *root, int64_t max_updates, ag_arena *a, ag_err *err)
{
    const ag_torch_value *groups = ag_torch_get(root, "param_groups"), *state = ag_torch_get(root, "state");
    if (!ag_torch_is(groups, AG_TORCH_LIST) || groups->n == 0)
        return ag_fail(err, AG_E_FORMAT, "'param_groups' must be a list with a group in it, found %s", ag_torch_describe(a, groups));
    if (!ag_torch_is(state, AG_TORCH_DICT))
        return ag_fail(err, AG_E_FORMAT, "'state' must be a dict, found %s", ag_torch_describe(a, state));
    AG_TRY(read_group_numbers(s, groups->items[0], a, err));
    int64_t *ids = ag_arena_array(a, s->n_params, sizeof *ids);
    AG_TRY(check_group_sizes(s, groups, err));
    AG_TRY(read_ids(ids, s->n_params, groups, a, err));
    if (state->n > 0) return read_moments(s, state, ids, max_updates, a, err);
    clear_moments(s);
    return AG_OK;
}

ag_status ag_optimizer_load(ag_optimizer_state *s, const char *dir, int64_t max_updates, ag_err *err)
{
    ag_arena a = {0};
    ag_torch_archive archive;
    const char *path = ag_path_join(&a, dir, FILE_NAME);
    ag_status status = ag_torch_open(&archive, path, 0, err);
    if (!status) {
        status = read_optimizer(s, archive.root, max_updates, &a, err);
        if (status) (void)ag_err_prefix(err, "%s", path);
        ag_torch_close(&archive);
    }
    ag_arena_free(&a);
    return status;
}
