#define _GNU_SOURCE
#include "base/json.h"
#include "base/log.h"
#include "model/description.h"

#include <math.h>
#include <string.h>

/* What families differ in, apart from the numbers. */
typedef struct {
    const char *model_type, *architecture;
    bool needs_kv_heads; /* transformers' default is not the number of heads */
    bool has_granite_scales;
    bool has_qkv_bias; /* always; else attention_bias says so for q, k, v and o */
    bool reads_window;
} family;

static const family families[] = {
    {.model_type = "llama", .architecture = "LlamaForCausalLM"},
    {.model_type = "mistral", .architecture = "MistralForCausalLM", .needs_kv_heads = true, .reads_window = true},
    {.model_type = "granite", .architecture = "GraniteForCausalLM", .has_granite_scales = true},
    {.model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .needs_kv_heads = true, .has_qkv_bias = true},
};
enum { N_FAMILIES = sizeof families / sizeof *families };
static const char family_names[] = "llama, mistral, granite and qwen2";

static ag_status find_family(const family **out, json_t *root, const char *name, ag_err *err)
{
    const char *model_type = NULL, *architecture = NULL;
    AG_TRY(ag_json_get_string(root, "model_type", &model_type, name, err));
    json_t *list = json_object_get(root, "architectures");
    if (list && !json_is_null(list)) {
        architecture = json_string_value(json_array_get(list, 0));
        if (!architecture) return ag_fail(err, AG_E_FORMAT, "%s: 'architectures' must be a list of texts", name);
    }
    if (!model_type) return ag_fail(err, AG_E_FORMAT, "%s: there is no 'model_type'; this is not a model's config", name);
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].model_type, model_type) == 0 &&
            (!architecture || strcmp(families[i].architecture, architecture) == 0)) {
            *out = &families[i];
            return AG_OK;
        }
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "%s: model_type '%.60s'%s%.60s%s is not supported; %s for causal language modelling are", name, model_type,
                   architecture ? " (" : "", architecture ? architecture : "", architecture ? ")" : "", family_names);
}

static ag_status read_sizes(ag_description *d, const family *f, json_t *root, const char *name, ag_err *err)
{
    AG_TRY(ag_json_need_int(root, "hidden_size", 1, INT32_MAX, &d->C, name, err));
    AG_TRY(ag_json_need_int(root, "num_hidden_layers", 1, INT32_MAX, &d->L, name, err));
    AG_TRY(ag_json_need_int(root, "num_attention_heads", 1, INT32_MAX, &d->H, name, err));
    d->G = d->H;
    if (f->needs_kv_heads && !json_object_get(root, "num_key_value_heads"))
        return ag_fail(err, AG_E_FORMAT, "%s: there is no 'num_key_value_heads'", name);
    AG_TRY(ag_json_get_int(root, "num_key_value_heads", 1, INT32_MAX, &d->G, name, err));
    AG_TRY(ag_json_get_int(root, "head_dim", 1, INT32_MAX, &d->D, name, err));
    if (d->D == 0) {
        if (d->C % d->H != 0)
            return ag_fail(err, AG_E_FORMAT, "%s: there is no 'head_dim', and hidden_size %lld is no multiple of %lld heads",
                           name, (long long)d->C, (long long)d->H);
        d->D = d->C / d->H;
    }
    AG_TRY(ag_json_need_int(root, "intermediate_size", 1, INT32_MAX, &d->F, name, err));
    AG_TRY(ag_json_need_int(root, "vocab_size", 1, INT32_MAX, &d->V, name, err));
    AG_TRY(ag_json_need_int(root, "max_position_embeddings", 1, INT32_MAX, &d->context_length, name, err));
    double eps = 1e-6; /* transformers' default for all of these families */
    AG_TRY(ag_json_get_double(root, "rms_norm_eps", &eps, name, err));
    d->rms_eps = (float)eps;
    return ag_json_get_bool(root, "tie_word_embeddings", &d->tied, name, err);
}

/* rope_parameters (transformers 5) or rope_scaling beside rope_theta (before). */
static ag_status read_rope(ag_description *d, json_t *root, const char *name, ag_err *err)
{
    const char *type = NULL, *key = "rope_parameters";
    json_t *rope = json_object_get(root, key);
    if (!rope || json_is_null(rope)) rope = json_object_get(root, key = "rope_scaling");
    d->rope_theta = 10000;
    AG_TRY(ag_json_get_double(root, "rope_theta", &d->rope_theta, name, err));
    double partial = 1;
    AG_TRY(ag_json_get_double(root, "partial_rotary_factor", &partial, name, err));
    if (rope && !json_is_null(rope)) {
        if (!json_is_object(rope)) return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be an object", name, key);
        AG_TRY(ag_json_get_double(rope, "rope_theta", &d->rope_theta, name, err));
        AG_TRY(ag_json_get_double(rope, "partial_rotary_factor", &partial, name, err));
        AG_TRY(ag_json_get_string(rope, "type", &type, name, err));
        AG_TRY(ag_json_get_string(rope, "rope_type", &type, name, err));
        AG_TRY(ag_json_get_double(rope, "factor", &d->rope_factor, name, err));
        AG_TRY(ag_json_get_double(rope, "low_freq_factor", &d->rope_low_freq_factor, name, err));
        AG_TRY(ag_json_get_double(rope, "high_freq_factor", &d->rope_high_freq_factor, name, err));
    }
    if (partial != 1)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: partial_rotary_factor %g; only models that rotate whole heads are supported",
                       name, partial);
    if (!type || strcmp(type, "default") == 0) return AG_OK;
    if (strcmp(type, "linear") == 0) {
        d->rope_kind = AG_ROPE_LINEAR;
    } else if (strcmp(type, "llama3") == 0) {
        d->rope_kind = AG_ROPE_LLAMA3;
        return ag_json_need_int(rope, "original_max_position_embeddings", 1, INT32_MAX, &d->rope_original_context, name, err);
    } else {
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: rope scaling '%.60s' is not supported; default, linear and llama3 are", name,
                       type);
    }
    return AG_OK;
}

static ag_status read_window(ag_description *d, const family *f, json_t *root, const char *name, ag_err *err)
{
    if (f->reads_window) AG_TRY(ag_json_get_int(root, "sliding_window", 1, INT32_MAX, &d->sliding_window, name, err));
    if (!f->has_qkv_bias) return AG_OK;
    /* Qwen2 may mix layers with and without a window. */
    bool uses_window = false;
    AG_TRY(ag_json_get_bool(root, "use_sliding_window", &uses_window, name, err));
    const json_t *types = json_object_get(root, "layer_types");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        uses_window |= !type || strcmp(type, "full_attention") != 0;
    }
    if (uses_window)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: layers with a sliding window (use_sliding_window, layer_types) are not supported for %s", name,
                       f->model_type);
    return AG_OK;
}

/* Scales, biases, window, and options that would change what is computed. */
static ag_status read_options(ag_description *d, const family *f, json_t *root, const char *name, ag_err *err)
{
    const char *activation = "silu";
    bool attention_bias = false, mlp_bias = false;
    double embedding = 1, residual = 1, attention = 1 / sqrt((double)d->D), logits = 1, dropout = 0;
    AG_TRY(ag_json_get_string(root, "hidden_act", &activation, name, err));
    if (strcmp(activation, "silu") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: hidden_act '%.60s' is not supported; silu is", name, activation);
    AG_TRY(ag_json_get_bool(root, "attention_bias", &attention_bias, name, err));
    AG_TRY(ag_json_get_bool(root, "mlp_bias", &mlp_bias, name, err));
    if (f->reads_window || f->has_qkv_bias) attention_bias = mlp_bias = false; /* Mistral and Qwen2 do not look at them */
    for (int p = 0; p < AG_N_PROJ; p++)
        d->has_bias[p] = p <= AG_PROJ_V ? attention_bias || f->has_qkv_bias : p == AG_PROJ_O ? attention_bias : mlp_bias;
    if (f->has_granite_scales) {
        attention = 1;
        AG_TRY(ag_json_get_double(root, "embedding_multiplier", &embedding, name, err));
        AG_TRY(ag_json_get_double(root, "residual_multiplier", &residual, name, err));
        AG_TRY(ag_json_get_double(root, "attention_multiplier", &attention, name, err));
        AG_TRY(ag_json_get_double(root, "logits_scaling", &logits, name, err));
        if (!(logits > 0))
            return ag_fail(err, AG_E_FORMAT, "%s: logits_scaling is %g, expected a positive number", name, logits);
    }
    d->embedding_scale = (float)embedding;
    d->residual_scale = (float)residual;
    d->attention_scale = (float)attention;
    d->logit_scale = (float)(1 / logits);
    AG_TRY(ag_json_get_double(root, "attention_dropout", &dropout, name, err));
    if (dropout != 0) ag_log(AG_LOG_WARN, "%s: attention_dropout %g is not applied", name, dropout);
    return read_window(d, f, root, name, err);
}

static ag_status read_quantization(ag_description *d, json_t *root, const char *name, ag_err *err)
{
    json_t *q = json_object_get(root, "quantization_config");
    if (!q || json_is_null(q)) return AG_OK;
    if (!json_is_object(q)) return ag_fail(err, AG_E_FORMAT, "%s: 'quantization_config' must be an object", name);
    const char *method = "none", *type = "fp4", *storage = "uint8"; /* the last two are bitsandbytes' defaults */
    bool is_4bit = false;
    AG_TRY(ag_json_get_string(q, "quant_method", &method, name, err));
    if (strcmp(method, "bitsandbytes") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: the weights are quantized with '%.60s'; unquantized ones and bitsandbytes nf4 can be used", name,
                       method);
    AG_TRY(ag_json_get_bool(q, "load_in_4bit", &is_4bit, name, err));
    AG_TRY(ag_json_get_string(q, "bnb_4bit_quant_type", &type, name, err));
    AG_TRY(ag_json_get_string(q, "bnb_4bit_quant_storage", &storage, name, err));
    if (!is_4bit || strcmp(type, "nf4") != 0 || strcmp(storage, "uint8") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: bitsandbytes weights in %s (type '%.60s', storage '%.60s') cannot be used; 4-bit nf4 in uint8 can",
                       name, is_4bit ? "4 bits" : "8 bits", type, storage);
    d->is_bnb_nf4 = true;
    return AG_OK;
}

static void add_eos(ag_description *d, int64_t id)
{
    for (int i = 0; i < d->n_eos_ids; i++)
        if (d->eos_ids[i] == id) return;
    d->eos_ids[d->n_eos_ids++] = (int32_t)id;
}

/* One id, a list of ids, null or nothing. */
static ag_status read_eos(ag_description *d, json_t *root, const char *name, ag_err *err)
{
    const json_t *value = json_object_get(root, "eos_token_id");
    const size_t n = json_is_array(value) ? json_array_size(value) : value && !json_is_null(value) ? 1 : 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        const int64_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < -1 || id > INT32_MAX)
            return ag_fail(err, AG_E_FORMAT, "%s: 'eos_token_id' must be a token id or a list of them", name);
        if (d->n_eos_ids == (int)(sizeof d->eos_ids / sizeof *d->eos_ids))
            return ag_fail(err, AG_E_UNSUPPORTED, "%s: 'eos_token_id' lists more than %d ids", name, d->n_eos_ids);
        if (id >= 0) add_eos(d, id); /* -1 is an old way to say none */
    }
    return AG_OK;
}

static ag_status read_ids(ag_description *d, json_t *root, json_t *generation, const char *name, ag_err *err)
{
    int64_t bos = -1, pad = -1;
    AG_TRY(ag_json_get_int(root, "bos_token_id", -1, INT32_MAX, &bos, name, err));
    AG_TRY(ag_json_get_int(root, "pad_token_id", -1, INT32_MAX, &pad, name, err));
    if (generation) AG_TRY(read_eos(d, generation, "generation_config.json", err));
    AG_TRY(read_eos(d, root, name, err));
    d->bos_id = (int32_t)bos;
    d->pad_id = (int32_t)pad;
    d->eos_id = d->n_eos_ids > 0 ? d->eos_ids[0] : -1;
    return AG_OK;
}

static ag_status read_all(ag_description *d, json_t *root, json_t *generation, const char *name, ag_arena *arena, ag_err *err)
{
    const family *f = NULL;
    if (!json_is_object(root)) return ag_fail(err, AG_E_FORMAT, "%s: the config must be an object", name);
    if (generation && !json_is_object(generation))
        return ag_fail(err, AG_E_FORMAT, "generation_config.json beside %s must be an object", name);
    AG_TRY(find_family(&f, root, name, err));
    d->model_type = ag_arena_strdup(arena, f->model_type);
    d->architecture = ag_arena_strdup(arena, f->architecture);
    AG_TRY(read_sizes(d, f, root, name, err));
    AG_TRY(read_rope(d, root, name, err));
    AG_TRY(read_options(d, f, root, name, err));
    AG_TRY(read_quantization(d, root, name, err));
    AG_TRY(read_ids(d, root, generation, name, err));
    return ag_description_check(d, name, err);
}

ag_status ag_description_from_config(ag_description *out, const char *config, size_t n_config, const char *name,
                                     const char *generation_config, size_t n_generation, ag_arena *arena, ag_err *err)
{
    json_t *root = NULL, *generation = NULL;
    *out = (ag_description){0};
    AG_TRY(ag_json_parse(&root, config, n_config, name, err));
    ag_status status = AG_OK;
    if (generation_config) status = ag_json_parse(&generation, generation_config, n_generation, "generation_config.json", err);
    if (!status) status = read_all(out, root, generation, name, arena, err);
    ag_json_free(&generation);
    ag_json_free(&root);
    return status;
}
