#include "adapter/adapter.h"

#include "base/rng.h"
#include "ops/lora/lora.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static ag_status check_config(const ag_lora_config *c, ag_err *err)
{
    if (c->r < 1 || c->r > AG_LORA_MAX_R)
        return ag_fail(err, AG_E_CONFIG, "the adapter's rank r is %lld; give 1 to %d", (long long)c->r, AG_LORA_MAX_R);
    if (!isfinite(c->alpha) || c->alpha <= 0)
        return ag_fail(err, AG_E_CONFIG, "lora_alpha is %g; give a number over 0", c->alpha);
    if (!(c->dropout >= 0 && c->dropout < 1))
        return ag_fail(err, AG_E_CONFIG, "lora_dropout is %g; give a number from 0 to below 1", c->dropout);
    return AG_OK;
}

ag_status ag_adapter_plan(ag_adapter *out, const ag_description *d, const ag_lora_config *config, ag_arena *arena, ag_err *err)
{
    AG_TRY(check_config(config, err));
    ag_target_set set;
    if (config->pattern)
        AG_TRY(ag_targets_of_pattern(&set, config->pattern, d, arena, err));
    else
        AG_TRY(ag_targets_of_names(&set, config->targets, config->n_targets, d, arena, err));

    ag_adapter a = {.config = *config, .L = d->L};
    a.config.pattern = config->pattern ? ag_arena_strdup(arena, config->pattern) : NULL;
    const char **names = ag_arena_array(arena, config->n_targets, sizeof *names);
    for (size_t i = 0; i < config->n_targets; i++) names[i] = ag_arena_strdup(arena, config->targets[i]);
    a.config.targets = names;

    a.layers = ag_arena_array(arena, (size_t)d->L, sizeof *a.layers);
    a.pairs = ag_arena_array(arena, (size_t)set.n, sizeof *a.pairs);
    for (int64_t i = 0; i < d->L * AG_N_PROJ; i++) {
        if (!set.on[i]) continue;
        ag_adapter_pair pair = {.layer = i / AG_N_PROJ, .projection = (ag_projection)(i % AG_N_PROJ), .R = config->r};
        ag_projection_size(&pair.N, &pair.K, d, pair.projection);
        pair.scale = (float)(config->alpha / (config->rslora ? sqrt((double)pair.R) : (double)pair.R));
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
