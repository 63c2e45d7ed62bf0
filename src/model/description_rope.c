/* The rope scaling of a config.json, checked and defaulted as transformers' modeling_rope_utils.py and the families'
 * configuration classes do it. */
#include "model/description_internal.h"

#include <math.h>
#include <string.h>

typedef struct {
    ag_description *d;
    const ag_rope_rules *rules;
    json_t *rope; /* the object that tells the scaling */
    const char *name;
    ag_arena *arena;
} reader;

static bool is_number(const reader *r, const char *key) { return json_is_number(json_object_get(r->rope, key)); }

/* A number for each frequency. */
static ag_status read_list(const float **out, const reader *r, const char *key, ag_err *err)
{
    const json_t *list = json_object_get(r->rope, key);
    const size_t n = (size_t)ag_rope_dims(r->d) / 2;
    if (!json_is_array(list) || json_array_size(list) != n)
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' of the rope scaling must be a list of %zu numbers", r->name, key, n);
    float *numbers = ag_arena_array(r->arena, n, sizeof *numbers);
    for (size_t i = 0; i < n; i++) {
        if (!json_is_number(json_array_get(list, i)))
            return ag_fail(err, AG_E_FORMAT, "%s: '%s' of the rope scaling must be a list of %zu numbers", r->name, key, n);
        numbers[i] = (float)json_number_value(json_array_get(list, i));
    }
    *out = numbers;
    return AG_OK;
}

static double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1; }

static ag_status read_yarn(const reader *r, ag_err *err)
{
    ag_description *d = r->d;
    double mscale = 0, mscale_all_dim = 0;
    bool truncate = true;
    d->rope_kind = AG_ROPE_YARN;
    if (!is_number(r, "factor")) d->rope_factor = (double)d->context_length / (double)d->rope_original_context;
    AG_TRY(ag_json_get_double(r->rope, "mscale", &mscale, r->name, err));
    AG_TRY(ag_json_get_double(r->rope, "mscale_all_dim", &mscale_all_dim, r->name, err));
    AG_TRY(ag_json_get_double(r->rope, "beta_fast", &d->rope_beta_fast, r->name, err));
    AG_TRY(ag_json_get_double(r->rope, "beta_slow", &d->rope_beta_slow, r->name, err));
    AG_TRY(ag_json_get_bool(r->rope, "truncate", &truncate, r->name, err));
    if (d->rope_beta_fast == 0) d->rope_beta_fast = 32;
    if (d->rope_beta_slow == 0) d->rope_beta_slow = 1;
    d->rope_keeps_fractions = !truncate;
    d->rope_attention_factor = yarn_mscale(d->rope_factor, 1);
    if (mscale != 0 && mscale_all_dim != 0)
        d->rope_attention_factor = yarn_mscale(d->rope_factor, mscale) / yarn_mscale(d->rope_factor, mscale_all_dim);
    return ag_json_get_double(r->rope, "attention_factor", &d->rope_attention_factor, r->name, err);
}

static ag_status read_longrope(const reader *r, ag_err *err)
{
    ag_description *d = r->d;
    const double original = (double)d->rope_original_context;
    d->rope_kind = AG_ROPE_LONGROPE;
    AG_TRY(read_list(&d->rope_factors, r, "short_factor", err));
    AG_TRY(read_list(&d->rope_long_factors, r, "long_factor", err));
    const double factor = is_number(r, "factor") ? d->rope_factor : (double)d->context_length / original;
    d->rope_attention_factor = factor > 1 ? sqrt(1 + log(factor) / log(original)) : 1;
    return ag_json_get_double(r->rope, "attention_factor", &d->rope_attention_factor, r->name, err);
}

/* Phi-3 says it beside the scaling, which then counts; others inside. */
static ag_status read_original_context(const reader *r, json_t *root, ag_err *err)
{
    static const char key[] = "original_max_position_embeddings";
    ag_description *d = r->d;
    d->rope_original_context = r->rules->original_context;
    if (d->rope_original_context == 0)
        AG_TRY(ag_json_get_int(r->rope, key, 1, INT32_MAX, &d->rope_original_context, r->name, err));
    AG_TRY(ag_json_get_int(root, key, 1, INT32_MAX, &d->rope_original_context, r->name, err));
    if (d->rope_original_context == 0) d->rope_original_context = d->context_length;
    return AG_OK;
}

static ag_status read_scaling(const reader *r, json_t *root, ag_err *err)
{
    ag_description *d = r->d;
    const char *type = "default";
    AG_TRY(ag_json_get_string(r->rope, "type", &type, r->name, err));
    AG_TRY(ag_json_get_string(r->rope, "rope_type", &type, r->name, err));
    if (r->rules->yarn_means_longrope && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0)) type = "longrope";
    if (strcmp(type, "default") == 0) return AG_OK;
    AG_TRY(ag_json_get_double(r->rope, "factor", &d->rope_factor, r->name, err));
    AG_TRY(ag_json_get_double(r->rope, "low_freq_factor", &d->rope_low_freq_factor, r->name, err));
    AG_TRY(ag_json_get_double(r->rope, "high_freq_factor", &d->rope_high_freq_factor, r->name, err));
    AG_TRY(read_original_context(r, root, err));
    if (strcmp(type, "linear") == 0) {
        d->rope_kind = AG_ROPE_LINEAR;
        return AG_OK;
    }
    if (strcmp(type, "dynamic") == 0) {
        d->rope_kind = AG_ROPE_DYNAMIC;
        d->rope_original_context = d->context_length;
        return AG_OK;
    }
    if (strcmp(type, "llama3") == 0) {
        d->rope_kind = AG_ROPE_LLAMA3;
        return ag_json_need_int(r->rope, "original_max_position_embeddings", 1, INT32_MAX, &d->rope_original_context, r->name,
                                err);
    }
    if (strcmp(type, "yarn") == 0) return read_yarn(r, err);
    if (strcmp(type, "longrope") == 0) return read_longrope(r, err);
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "%s: rope scaling '%.60s' is not supported; default, linear, dynamic, yarn, llama3 and longrope are",
                   r->name, type);
}

/* Gemma 3's sliding layers: a theta of their own, no scaling. */
static ag_status read_local(const reader *r, json_t *root, const json_t *by_type, ag_err *err)
{
    const char *type = "default";
    r->d->rope_local_theta = 10000;
    AG_TRY(ag_json_get_double(root, "rope_local_base_freq", &r->d->rope_local_theta, r->name, err));
    const json_t *local = json_object_get(by_type, "sliding_attention");
    if (!json_is_object(local)) return AG_OK;
    AG_TRY(ag_json_get_double(local, "rope_theta", &r->d->rope_local_theta, r->name, err));
    AG_TRY(ag_json_get_string(local, "rope_type", &type, r->name, err));
    if (strcmp(type, "default") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: rope scaling '%.60s' of sliding layers is not supported; only full layers scale", r->name, type);
    return AG_OK;
}

/* Before the lists, whose length it decides. */
static ag_status read_partial(const reader *r, json_t *root, ag_err *err)
{
    double partial = 1;
    AG_TRY(ag_json_get_double(root, "partial_rotary_factor", &partial, r->name, err));
    if (r->rope && json_is_object(r->rope))
        AG_TRY(ag_json_get_double(r->rope, "partial_rotary_factor", &partial, r->name, err));
    if (partial == 1) return AG_OK;
    if (!r->rules->may_rotate_a_part)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: partial_rotary_factor %g of a %s; only models that rotate whole heads, and Phi-3, are supported",
                       r->name, partial, r->rules->model_type);
    if (!(partial > 0 && partial < 1))
        return ag_fail(err, AG_E_FORMAT, "%s: partial_rotary_factor is %g, expected over 0 and at most 1", r->name, partial);
    r->d->rope_dims = (int64_t)((double)r->d->D * partial);
    if (r->d->rope_dims < 2)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: with partial_rotary_factor %g no dimension rotates", r->name, partial);
    return AG_OK;
}

ag_status ag_config_read_rope(ag_description *d, const ag_rope_rules *rules, json_t *root, const char *name, ag_arena *arena,
                              ag_err *err)
{
    const char *key = "rope_parameters";
    json_t *rope = json_object_get(root, key);
    if (!rope || json_is_null(rope)) rope = json_object_get(root, key = "rope_scaling");
    if (rope && !json_is_null(rope) && !json_is_object(rope))
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be an object", name, key);
    json_t *by_type = json_object_get(rope, "full_attention") || json_object_get(rope, "sliding_attention") ? rope : NULL;
    if (by_type && !rules->has_local_rope)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' for each layer type is not supported for %s", name, key,
                       rules->model_type);
    reader r = {
        .d = d, .rules = rules, .rope = by_type ? json_object_get(rope, "full_attention") : rope, .name = name, .arena = arena};

    d->rope_theta = rules->rope_theta;
    AG_TRY(ag_json_get_double(root, "rope_theta", &d->rope_theta, name, err));
    AG_TRY(read_partial(&r, root, err));
    if (rules->has_local_rope) AG_TRY(read_local(&r, root, by_type, err));
    if (r.rope && json_is_object(r.rope)) {
        AG_TRY(ag_json_get_double(r.rope, "rope_theta", &d->rope_theta, name, err));
        AG_TRY(read_scaling(&r, root, err));
    }
    return AG_OK;
}
