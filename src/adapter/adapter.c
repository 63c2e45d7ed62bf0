#include "adapter/adapter.h"

#include "ops/lora/lora.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- config ------------------------------------------------------------------------------------------------------------- */
static ag_status check_alpha(double alpha, ag_err *err)
{
    if (isfinite(alpha) && alpha > 0) return AG_OK;
    return ag_fail(err, AG_E_CONFIG, "lora_alpha is %g; give a number over 0", alpha);
}

static ag_status check_rank(double r, ag_err *err)
{
    if (r >= 1 && r <= AG_LORA_MAX_R && r == nearbyint(r)) return AG_OK;
    return ag_fail(err, AG_E_CONFIG, "the adapter's rank r is %g; give 1 to %d", r, AG_LORA_MAX_R);
}

static ag_status check_config(const ag_lora_config *c, ag_err *err)
{
    AG_TRY(check_rank((double)c->r, err));
    AG_TRY(check_alpha(c->alpha, err));
    for (size_t i = 0; i < c->n_ranks; i++) AG_TRY(check_rank(c->ranks[i].value, err));
    for (size_t i = 0; i < c->n_alphas; i++) AG_TRY(check_alpha(c->alphas[i].value, err));
    if (!(c->dropout >= 0 && c->dropout < 1))
        return ag_fail(err, AG_E_CONFIG, "lora_dropout is %g; give a number from 0 to below 1", c->dropout);
    return AG_OK;
}

static const ag_lora_override *copy_overrides(const ag_lora_override *from, size_t n, ag_arena *arena)
{
    ag_lora_override *to = ag_arena_array(arena, n, sizeof *to);
    for (size_t i = 0; i < n; i++) to[i] = (ag_lora_override){.name = ag_arena_strdup(arena, from[i].name), .value = from[i].value};
    return to;
}

static const char *const *copy_names(const char *const *from, size_t n, ag_arena *arena)
{
    const char **to = ag_arena_array(arena, n, sizeof *to);
    for (size_t i = 0; i < n; i++) to[i] = ag_arena_strdup(arena, from[i]);
    return to;
}

static ag_lora_config copy_config(const ag_lora_config *config, ag_arena *arena)
{
    ag_lora_config c = *config;
    c.pattern = config->pattern ? ag_arena_strdup(arena, config->pattern) : NULL;
    c.exclude_pattern = config->exclude_pattern ? ag_arena_strdup(arena, config->exclude_pattern) : NULL;
    c.targets = copy_names(config->targets, config->n_targets, arena);
    c.exclude = copy_names(config->exclude, config->n_exclude, arena);
    c.layers_patterns = copy_names(config->layers_patterns, config->n_layers_patterns, arena);
    c.modules_to_save = copy_names(config->modules_to_save, config->n_modules_to_save, arena);
    int64_t *layers = ag_arena_array(arena, config->n_layers, sizeof *layers);
    if (config->n_layers > 0) memcpy(layers, config->layers, config->n_layers * sizeof *layers);
    c.layers = layers;
    c.ranks = copy_overrides(config->ranks, config->n_ranks, arena);
    c.alphas = copy_overrides(config->alphas, config->n_alphas, arena);
    return c;
}

/* For each module the override's value, or `otherwise`. */
static ag_status find_values(double **values, double otherwise, const ag_lora_override *overrides, size_t n, const char *what,
                             const ag_description *d, ag_arena *arena, ag_err *err)
{
    const int64_t n_modules = ag_modules_count(d);
    const char **keys = ag_arena_array(arena, n, sizeof *keys);
    int64_t *first;
    for (size_t i = 0; i < n; i++) keys[i] = overrides[i].name;
    AG_TRY(ag_targets_first_keys(&first, keys, n, what, d, arena, err));
    *values = ag_arena_array(arena, (size_t)n_modules, sizeof **values);
    for (int64_t i = 0; i < n_modules; i++) (*values)[i] = first[i] < 0 ? otherwise : overrides[first[i]].value;
    return AG_OK;
}

/* ---- plan ----------------------------------------------------------------------------------------------------------------- */
typedef struct {
    ag_adapter *a;
    const ag_description *d;
    const double *ranks, *alphas; /* by module */
} planner;

static bool is_bias(ag_trained_kind kind)
{
    return kind == AG_TRAINED_BIAS || kind == AG_TRAINED_BASE_BIAS || kind == AG_TRAINED_COPY_BIAS;
}

static size_t add_tensor(planner *p, ag_trained_kind kind, const ag_module *m, int64_t rows, int64_t columns)
{
    ag_adapter *a = p->a;
    ag_trained *t = &a->trained[a->n_trained++];
    *t = (ag_trained){.kind = kind, .module = *m, .rank = columns > 0 ? 2 : 1, .dim = {rows, columns > 0 ? columns : 1}, .at = a->n_params,
                      .n = (size_t)(rows * (columns > 0 ? columns : 1)),
                      .decays = !is_bias(kind) && !ag_module_is_norm(m),
                      .offset = ag_module_is_norm(m) && ag_family_of(p->d)->norms_from_one ? 1 : 0};
    a->n_params += t->n;
    if (kind != AG_TRAINED_A && kind != AG_TRAINED_B && kind != AG_TRAINED_MAGNITUDE) a->is_plain = false;
    return t->at;
}

static ag_status add_pair(planner *p, int64_t i, const ag_module *m, ag_err *err)
{
    ag_adapter *a = p->a;
    const bool is_embed = m->kind == AG_MODULE_EMBED;
    if (is_embed && a->config.dora)
        return ag_fail(err, AG_E_UNSUPPORTED, "use_dora beside the embedding is not supported; take '%s' out of target_modules", m->path);
    ag_adapter_pair *pair = &a->pairs[a->n_pairs++];
    const double r = p->ranks[i], alpha = p->alphas[i];
    *pair = (ag_adapter_pair){.layer = m->layer, .linear = m->linear, .R = (int64_t)r, .is_dora = a->config.dora,
                              .scale = (float)(alpha / (a->config.rslora ? sqrt(r) : r))};
    ag_module_size(&pair->N, &pair->K, m, p->d);
    if (is_embed) pair->K = p->d->V, pair->N = p->d->C;
    if (is_embed) a->is_plain = false;
    pair->a = add_tensor(p, AG_TRAINED_A, m, pair->R, pair->K);
    pair->b = add_tensor(p, AG_TRAINED_B, m, pair->N, pair->R);
    if (pair->is_dora) pair->magnitude = add_tensor(p, AG_TRAINED_MAGNITUDE, m, pair->N, 0);
    return AG_OK;
}

static ag_status add_module(planner *p, int64_t i, bool has_pair, bool is_saved, ag_err *err)
{
    const ag_module m = ag_modules_get(p->d, i);
    const ag_bias_mode bias = p->a->config.bias;
    const bool has_bias = m.kind == AG_MODULE_LINEAR && p->d->has_bias[m.linear->first]; /* fused projections have one or none */
    int64_t N, K;
    ag_module_size(&N, &K, &m, p->d);
    if (is_saved) {
        add_tensor(p, AG_TRAINED_COPY, &m, N, K);
        if (has_bias) add_tensor(p, AG_TRAINED_COPY_BIAS, &m, N, 0);
        return AG_OK;
    }
    if (has_bias && (bias == AG_BIAS_ALL || (bias == AG_BIAS_LORA_ONLY && has_pair)))
        add_tensor(p, has_pair ? AG_TRAINED_BASE_BIAS : AG_TRAINED_BIAS, &m, N, 0);
    return has_pair ? add_pair(p, i, &m, err) : AG_OK;
}

ag_status ag_adapter_plan(ag_adapter *out, const ag_description *d, const ag_lora_config *config, ag_arena *arena, ag_err *err)
{
    AG_TRY(check_config(config, err));
    ag_target_set set;
    AG_TRY(ag_targets_select(&set, &(ag_target_rules){
        .names = config->targets, .n_names = config->n_targets, .pattern = config->pattern, .exclude = config->exclude,
        .n_exclude = config->n_exclude, .exclude_pattern = config->exclude_pattern, .layers = config->layers, .n_layers = config->n_layers,
        .layers_patterns = config->layers_patterns, .n_layers_patterns = config->n_layers_patterns, .saved = config->modules_to_save,
        .n_saved = config->n_modules_to_save}, d, arena, err));
    double *ranks, *alphas;
    AG_TRY(find_values(&ranks, (double)config->r, config->ranks, config->n_ranks, "rank_pattern", d, arena, err));
    AG_TRY(find_values(&alphas, config->alpha, config->alphas, config->n_alphas, "alpha_pattern", d, arena, err));

    enum { MOST_OF_A_MODULE = 4 }; /* bias, A, B, magnitude */
    ag_adapter a = {.config = copy_config(config, arena), .L = d->L, .is_plain = true};
    for (int p = 0; p < AG_N_PROJ; p++) {
        int64_t K;
        ag_projection_size(&a.rows[p], &K, d, (ag_projection)p);
    }
    a.layers = ag_arena_array(arena, (size_t)d->L, sizeof *a.layers);
    a.pairs = ag_arena_array(arena, (size_t)set.n_lora, sizeof *a.pairs);
    a.trained = ag_arena_array(arena, (size_t)set.n_modules * MOST_OF_A_MODULE, sizeof *a.trained);
    planner p = {&a, d, ranks, alphas};
    for (int64_t i = 0; i < set.n_modules; i++) AG_TRY(add_module(&p, i, set.lora[i], set.saved[i], err));
    a.model_grads.layers = ag_arena_array(arena, (size_t)d->L, sizeof *a.model_grads.layers);
    a.model.layers = a.is_plain ? NULL : ag_arena_array(arena, (size_t)d->L, sizeof *a.model.layers);
    *out = a;
    return AG_OK;
}

/* ---- bind and attach -------------------------------------------------------------------------------------------------------- */
/* Where views of shapes point: they say that a tensor is there, nobody reads or writes it. */
static float nowhere;

static float *place_in(float *array, size_t at) { return !array ? NULL : array == &nowhere ? &nowhere : array + at; }

/* `base` moved by n numbers. */
static float *behind(float *base, int64_t n) { return base == &nowhere || !base ? base : base + n; }

/* Views of a pair: one for each of the projections that its module holds, which share A. */
static void bind_pair(ag_adapter *adapter, const ag_adapter_pair *p, float *params, float *grads)
{
    ag_lora_view view = {
        .R = p->R, .scale = p->scale, .a = place_in(params, p->a), .b = place_in(params, p->b), .da = place_in(grads, p->a),
        .db = place_in(grads, p->b), .is_dora = p->is_dora, .magnitude = p->is_dora ? place_in(params, p->magnitude) : NULL,
        .dmagnitude = p->is_dora ? place_in(grads, p->magnitude) : NULL};
    if (!p->linear) {
        adapter->embed = view;
        return;
    }
    for (int i = 0; i < p->linear->n_parts; i++) {
        const ag_projection projection = p->linear->first + (ag_projection)i;
        adapter->layers[p->layer].pair[projection] = view;
        const int64_t n = adapter->rows[projection];
        view.b = behind((float *)view.b, n * p->R);
        view.db = behind(view.db, n * p->R);
        view.magnitude = behind((float *)view.magnitude, n);
        view.dmagnitude = behind(view.dmagnitude, n);
    }
}

/* Where gradients of the model's own tensors go. */
static void bind_gradient(ag_adapter *a, const ag_trained *t, float *gradient)
{
    ag_layer_grads *layer = t->module.layer >= 0 ? &a->model_grads.layers[t->module.layer] : NULL;
    const bool is_own_bias = is_bias(t->kind);
    if (!is_own_bias && t->kind != AG_TRAINED_COPY) return;
    switch (t->module.kind) {
    case AG_MODULE_LINEAR:
        for (int i = 0; i < t->module.linear->n_parts; i++) {
            const ag_projection p = t->module.linear->first + (ag_projection)i;
            (is_own_bias ? layer->bias : layer->proj)[p] = gradient;
            gradient = behind(gradient, a->rows[p] * (is_own_bias ? 1 : t->dim[1]));
        }
        break;
    case AG_MODULE_NORM: layer->norm[t->module.norm] = gradient; break;
    case AG_MODULE_EMBED: a->model_grads.embed = gradient; break;
    case AG_MODULE_HEAD: a->model_grads.head = gradient; break;
    case AG_MODULE_FINAL_NORM: a->model_grads.final_norm = gradient; break;
    case AG_MODULE_OTHER: break;
    }
}

void ag_adapter_bind(ag_adapter *adapter, float *params, float *grads)
{
    adapter->params = params == &nowhere ? NULL : params;
    adapter->grads = grads == &nowhere ? NULL : grads;
    for (size_t i = 0; i < adapter->n_pairs; i++) bind_pair(adapter, &adapter->pairs[i], params, grads);
    for (size_t i = 0; i < adapter->n_trained; i++)
        bind_gradient(adapter, &adapter->trained[i], place_in(grads, adapter->trained[i].at));
}

void ag_adapter_bind_shapes(ag_adapter *adapter) { ag_adapter_bind(adapter, &nowhere, &nowhere); }

static void put_linear(ag_layer *layer, const ag_trained *t, const float *numbers)
{
    for (int i = 0; i < t->module.linear->n_parts; i++) {
        const ag_projection p = t->module.linear->first + (ag_projection)i;
        const int64_t N = layer->proj[p].N, K = t->dim[1];
        if (is_bias(t->kind)) layer->bias[p] = numbers;
        else layer->proj[p] = (ag_weight){.type = AG_W_F32, .N = N, .K = K, .data = numbers};
        numbers += is_bias(t->kind) ? N : N * K;
    }
}

static void put_in_place(ag_model *m, const ag_trained *t, const float *numbers)
{
    ag_layer *layer = t->module.layer >= 0 ? &m->layers[t->module.layer] : NULL;
    const ag_weight w = {.type = AG_W_F32, .N = t->dim[0], .K = t->dim[1], .data = numbers};
    if (!is_bias(t->kind) && t->kind != AG_TRAINED_COPY) return;
    switch (t->module.kind) {
    case AG_MODULE_LINEAR: put_linear(layer, t, numbers); break;
    case AG_MODULE_NORM: layer->norm[t->module.norm] = numbers; break;
    case AG_MODULE_FINAL_NORM: m->final_norm = numbers; break;
    case AG_MODULE_EMBED:
        m->embed = w;
        m->d.tied = false;
        break;
    case AG_MODULE_HEAD:
        m->head = w;
        m->d.tied = false;
        break;
    case AG_MODULE_OTHER: break;
    }
}

void ag_adapter_attach(ag_adapter *adapter, const ag_model *base)
{
    ag_layer *layers = adapter->model.layers;
    adapter->is_attached = true;
    adapter->model = *base;
    if (adapter->is_plain) return;
    AG_ASSERT(adapter->params && layers && base->d.L == adapter->L);
    memcpy(layers, base->layers, (size_t)adapter->L * sizeof *layers);
    adapter->model.layers = layers;
    if (adapter->embed.R > 0) adapter->model.d.tied = false; /* the head stays where it is, the embedding moves */
    for (size_t i = 0; i < adapter->n_trained; i++)
        put_in_place(&adapter->model, &adapter->trained[i], adapter->params + adapter->trained[i].at);
}

void ag_adapter_use(ag_decoder_options *options, const ag_adapter *adapter)
{
    if (adapter->is_attached) options->model = &adapter->model;
    options->lora = adapter->layers;
    options->embed_lora = adapter->embed.R > 0 ? &adapter->embed : NULL;
    options->grads = adapter->is_plain ? NULL : &adapter->model_grads;
}

/* ---- names -------------------------------------------------------------------------------------------------------------------- */
void ag_adapter_trained_name(char out[AG_ADAPTER_NAME_MAX], const ag_trained *t)
{
    static const char *const of_linear[] = {[AG_TRAINED_A] = "lora_A.weight", [AG_TRAINED_B] = "lora_B.weight",
                                            [AG_TRAINED_MAGNITUDE] = "lora_magnitude_vector", [AG_TRAINED_BIAS] = "bias",
                                            [AG_TRAINED_BASE_BIAS] = "base_layer.bias",
                                            [AG_TRAINED_COPY] = "weight", [AG_TRAINED_COPY_BIAS] = "bias"};
    const char *suffix = of_linear[t->kind];
    if (t->module.kind == AG_MODULE_EMBED && t->kind == AG_TRAINED_A) suffix = "lora_embedding_A";
    if (t->module.kind == AG_MODULE_EMBED && t->kind == AG_TRAINED_B) suffix = "lora_embedding_B";
    snprintf(out, AG_ADAPTER_NAME_MAX, "base_model.model.%s.%s", t->module.path, suffix);
}

void ag_adapter_tensor_name(char out[AG_ADAPTER_NAME_MAX], const ag_adapter_pair *pair, char a_or_b)
{
    snprintf(out, AG_ADAPTER_NAME_MAX, "base_model.model.model.layers.%lld.%s.lora_%c.weight", (long long)pair->layer, pair->linear->path,
             a_or_b);
}
