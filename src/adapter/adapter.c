#include "adapter/adapter.h"

#include "base/rng.h"
#include "ops/lora/lora.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

static ag_lora_config copy_config(const ag_lora_config *config, ag_arena *arena)
{
    ag_lora_config c = *config;
    c.pattern = config->pattern ? ag_arena_strdup(arena, config->pattern) : NULL;
    const char **names = ag_arena_array(arena, config->n_targets, sizeof *names);
    for (size_t i = 0; i < config->n_targets; i++) names[i] = ag_arena_strdup(arena, config->targets[i]);
    c.targets = names;
    int64_t *layers = ag_arena_array(arena, config->n_layers, sizeof *layers);
    if (config->n_layers > 0) memcpy(layers, config->layers, config->n_layers * sizeof *layers);
    c.layers = layers;
    c.ranks = copy_overrides(config->ranks, config->n_ranks, arena);
    c.alphas = copy_overrides(config->alphas, config->n_alphas, arena);
    return c;
}

static double value_for(const char *path, double otherwise, const ag_lora_override *overrides, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ag_targets_name_selects(overrides[i].name, path)) return overrides[i].value;
    return otherwise;
}

static ag_adapter_pair make_pair(const ag_lora_config *c, const ag_description *d, int64_t layer, ag_projection projection)
{
    char path[AG_ADAPTER_NAME_MAX];
    snprintf(path, sizeof path, "model.layers.%lld.%s", (long long)layer, ag_projection_path(projection));
    ag_adapter_pair pair = {.layer = layer, .projection = projection};
    ag_projection_size(&pair.N, &pair.K, d, projection);
    const double r = value_for(path, (double)c->r, c->ranks, c->n_ranks), alpha = value_for(path, c->alpha, c->alphas, c->n_alphas);
    pair.R = (int64_t)r;
    pair.scale = (float)(alpha / (c->rslora ? sqrt(r) : r));
    return pair;
}

ag_status ag_adapter_plan(ag_adapter *out, const ag_description *d, const ag_lora_config *config, ag_arena *arena, ag_err *err)
{
    AG_TRY(check_config(config, err));
    ag_target_set set;
    if (config->pattern)
        AG_TRY(ag_targets_of_pattern(&set, config->pattern, d, arena, err));
    else
        AG_TRY(ag_targets_of_names(&set, config->targets, config->n_targets, config->layers, config->n_layers, d, arena, err));

    ag_adapter a = {.config = copy_config(config, arena), .L = d->L};
    a.layers = ag_arena_array(arena, (size_t)d->L, sizeof *a.layers);
    a.pairs = ag_arena_array(arena, (size_t)set.n, sizeof *a.pairs);
    for (int64_t i = 0; i < d->L * AG_N_PROJ; i++) {
        if (!set.on[i]) continue;
        ag_adapter_pair pair = make_pair(&a.config, d, i / AG_N_PROJ, (ag_projection)(i % AG_N_PROJ));
        pair.a = a.n_params;
        pair.b = pair.a + (size_t)(pair.R * pair.K);
        a.n_params = pair.b + (size_t)(pair.N * pair.R);
        a.pairs[a.n_pairs++] = pair;
    }
    *out = a;
    return AG_OK;
}

void ag_adapter_bind(ag_adapter *adapter, float *params, float *grads)
{
    adapter->params = params;
    adapter->grads = grads;
    for (size_t i = 0; i < adapter->n_pairs; i++) {
        const ag_adapter_pair *p = &adapter->pairs[i];
        adapter->layers[p->layer].pair[p->projection] = (ag_lora_view){
            .R = p->R, .scale = p->scale, .a = params + p->a, .b = params + p->b,
            .da = grads ? grads + p->a : NULL, .db = grads ? grads + p->b : NULL};
    }
}

void ag_adapter_draw(ag_adapter *adapter, uint64_t seed)
{
    ag_mt19937 mt;
    ag_mt19937_seed(&mt, seed);
    for (size_t i = 0; i < adapter->n_pairs; i++) {
        const ag_adapter_pair *p = &adapter->pairs[i];
        const int64_t n_a = p->R * p->K, n_b = p->N * p->R;
        for (int64_t k = 0; k < n_a + n_b; k++) ag_mt19937_u32(&mt);
        /* torch: gain sqrt(2/(1+5)) over sqrt(fan_in), times sqrt 3, in double; then from + u·(to - from) in float,
         * which torch's build contracts to one FMA */
        const double bound = sqrt(3.0) * (sqrt(2.0 / (1 + 5.0)) / sqrt((double)p->K));
        const float from = (float)-bound, to = (float)bound;
        float *a = adapter->params + p->a;
        for (int64_t k = 0; k < n_a; k++) a[k] = fmaf(ag_mt19937_uniform_f32(&mt), to - from, from);
        memset(adapter->params + p->b, 0, (size_t)n_b * sizeof(float));
    }
}

void ag_adapter_tensor_name(char out[AG_ADAPTER_NAME_MAX], const ag_adapter_pair *pair, char a_or_b)
{
    snprintf(out, AG_ADAPTER_NAME_MAX, "base_model.model.model.layers.%lld.%s.lora_%c.weight", (long long)pair->layer,
             ag_projection_path(pair->projection), a_or_b);
}
