#define _GNU_SOURCE
#include "base/log.h"
#include "model/description_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Whose multipliers a config has. */
typedef enum { SCALES_NONE, SCALES_GRANITE, SCALES_MINICPM, SCALES_GEMMA } scales;
/* Which projections have a bias: "attention_bias" q, k, v and o; "mlp_bias" the others; or q, k and v always. */
typedef enum { BIAS_NEVER, BIAS_ATTENTION, BIAS_BOTH, BIAS_QKV_ALWAYS } biases;
/* Which layers have the window. */
typedef enum { WINDOW_NONE, WINDOW_ALL, WINDOW_QWEN, WINDOW_SMOLLM3, WINDOW_GEMMA } windows;

/* What families differ in, apart from the numbers: transformers' configuration and modeling files. */
typedef struct {
    ag_rope_rules rope;
    scales scales;
    biases biases;
    windows windows;
    bool needs_kv_heads; /* the default is not the number of heads */
    int64_t head_dim;    /* where the config has none; 0: width / heads */
    bool is_tied;        /* where the config does not say */
    double rms_eps;      /* where the config has none */
    bool has_qk_norm, has_post_norms, has_gelu;
    int64_t slide_period;          /* every so many layers one that sees all */
    double softcap, logit_softcap; /* where the config has none */
} rules;

static const rules all_rules[] = {
    {.rope = {"llama", .rope_theta = 1e4}, .biases = BIAS_BOTH, .rms_eps = 1e-6},
    {.rope = {"mistral", .rope_theta = 1e4}, .windows = WINDOW_ALL, .needs_kv_heads = true, .rms_eps = 1e-6},
    {.rope = {"smollm3", .rope_theta = 2e6},
     .biases = BIAS_BOTH,
     .windows = WINDOW_SMOLLM3,
     .needs_kv_heads = true,
     .is_tied = true,
     .rms_eps = 1e-6},
    {.rope = {"minicpm", .rope_theta = 1e4},
     .scales = SCALES_MINICPM,
     .biases = BIAS_ATTENTION,
     .is_tied = true,
     .rms_eps = 1e-6},
    {.rope = {"granite", .rope_theta = 1e4}, .scales = SCALES_GRANITE, .biases = BIAS_BOTH, .rms_eps = 1e-6},
    {.rope = {"granitemoehybrid", .rope_theta = 1e4}, .scales = SCALES_GRANITE, .biases = BIAS_ATTENTION, .rms_eps = 1e-6},
    {.rope = {"qwen2", .rope_theta = 1e4},
     .biases = BIAS_QKV_ALWAYS,
     .windows = WINDOW_QWEN,
     .needs_kv_heads = true,
     .rms_eps = 1e-6},
    {.rope = {"qwen3", .rope_theta = 1e4},
     .biases = BIAS_ATTENTION,
     .windows = WINDOW_QWEN,
     .needs_kv_heads = true,
     .head_dim = 128,
     .rms_eps = 1e-6,
     .has_qk_norm = true},
    {.rope = {"phi3", .rope_theta = 1e4, .may_rotate_a_part = true, .yarn_means_longrope = true, .original_context = 4096},
     .windows = WINDOW_ALL,
     .rms_eps = 1e-5},
    {.rope = {"gemma2", .rope_theta = 1e4},
     .scales = SCALES_GEMMA,
     .biases = BIAS_ATTENTION,
     .windows = WINDOW_GEMMA,
     .needs_kv_heads = true,
     .head_dim = 256,
     .is_tied = true,
     .rms_eps = 1e-6,
     .has_post_norms = true,
     .has_gelu = true,
     .slide_period = 2,
     .softcap = 50,
     .logit_softcap = 30},
    {.rope = {"gemma3_text", .rope_theta = 1e6, .has_local_rope = true},
     .scales = SCALES_GEMMA,
     .biases = BIAS_ATTENTION,
     .windows = WINDOW_GEMMA,
     .needs_kv_heads = true,
     .head_dim = 256,
     .is_tied = true,
     .rms_eps = 1e-6,
     .has_qk_norm = true,
     .has_post_norms = true,
     .has_gelu = true,
     .slide_period = 6},
};
enum { N_RULES = sizeof all_rules / sizeof *all_rules };

static const rules *rules_of(const char *model_type)
{
    for (int i = 0; i < N_RULES; i++)
        if (strcmp(all_rules[i].rope.model_type, model_type) == 0) return &all_rules[i];
    return NULL;
}

/* ---- the family -------------------------------------------------------------------------------------------------------- */
/* Experts, by the names that families give to their number. */
static int64_t n_experts(const json_t *root)
{
    static const char *const keys[] = {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts",
                                       "num_moe_experts"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(root, keys[i]);
        if (json_is_integer(value) && json_integer_value(value) > 0) return json_integer_value(value);
    }
    return 0;
}

static bool has_state_space(const json_t *root)
{
    static const char *const keys[] = {"ssm_cfg",     "state_size",     "mamba_d_state",
                                       "mamba_d_ssm", "ssm_state_size", "linear_num_key_heads"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(root, keys[i])) return true;
    return false;
}

static ag_status unknown_family(json_t *root, const char *model_type, const char *architecture, const char *name, ag_err *err)
{
    char kind[64] = "";
    if (n_experts(root) > 0)
        snprintf(kind, sizeof kind, " (a mixture of %lld experts)", (long long)n_experts(root));
    else if (has_state_space(root))
        snprintf(kind, sizeof kind, " (a state-space model)");
    char names[256];
    size_t at = 0;
    for (int i = 0; i < N_RULES && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s",
                               i == 0            ? ""
                               : i + 1 < N_RULES ? ", "
                                                 : " and ",
                               all_rules[i].rope.model_type);
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "%s: model_type '%.60s'%s%.60s%s is not supported%s; %s for causal language modelling are", name, model_type,
                   architecture ? " (" : "", architecture ? architecture : "", architecture ? ")" : "", kind, names);
}

static ag_status find_family(const ag_family **out, json_t *root, const char *name, ag_err *err)
{
    const char *model_type = NULL, *architecture = NULL;
    AG_TRY(ag_json_get_string(root, "model_type", &model_type, name, err));
    json_t *list = json_object_get(root, "architectures");
    if (list && !json_is_null(list)) {
        architecture = json_string_value(json_array_get(list, 0));
        if (!architecture) return ag_fail(err, AG_E_FORMAT, "%s: 'architectures' must be a list of texts", name);
    }
    if (!model_type) return ag_fail(err, AG_E_FORMAT, "%s: there is no 'model_type'; this is not a model's config", name);
    *out = ag_family_named(model_type);
    if (!*out || (architecture && strcmp((*out)->architecture, architecture) != 0))
        return unknown_family(root, model_type, architecture, name, err);
    if (n_experts(root) > 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: this %s model is a mixture of %lld experts, which is not supported", name,
                       model_type, (long long)n_experts(root));
    return AG_OK;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------- */
static ag_status read_sizes(ag_description *d, const rules *r, json_t *root, const char *name, ag_err *err)
{
    AG_TRY(ag_json_need_int(root, "hidden_size", 1, INT32_MAX, &d->C, name, err));
    AG_TRY(ag_json_need_int(root, "num_hidden_layers", 1, INT32_MAX, &d->L, name, err));
    AG_TRY(ag_json_need_int(root, "num_attention_heads", 1, INT32_MAX, &d->H, name, err));
    d->G = d->H;
    if (r->needs_kv_heads && !json_object_get(root, "num_key_value_heads"))
        return ag_fail(err, AG_E_FORMAT, "%s: there is no 'num_key_value_heads'", name);
    AG_TRY(ag_json_get_int(root, "num_key_value_heads", 1, INT32_MAX, &d->G, name, err));
    d->D = r->head_dim;
    AG_TRY(ag_json_get_int(root, "head_dim", 1, INT32_MAX, &d->D, name, err));
    if (d->D == 0) {
        if (d->C % d->H != 0)
            return ag_fail(err, AG_E_FORMAT, "%s: there is no 'head_dim', and hidden_size %lld is no multiple of %lld heads",
                           name, (long long)d->C, (long long)d->H);
        d->D = d->C / d->H;
    }
    /* Granite 4's dense form has its feed-forward part where its siblings have the experts that all tokens share. */
    const bool is_shared = strcmp(r->rope.model_type, "granitemoehybrid") == 0;
    AG_TRY(
        ag_json_need_int(root, is_shared ? "shared_intermediate_size" : "intermediate_size", 1, INT32_MAX, &d->F, name, err));
    AG_TRY(ag_json_need_int(root, "vocab_size", 1, INT32_MAX, &d->V, name, err));
    AG_TRY(ag_json_need_int(root, "max_position_embeddings", 1, INT32_MAX, &d->context_length, name, err));
    double eps = r->rms_eps;
    AG_TRY(ag_json_get_double(root, "rms_norm_eps", &eps, name, err));
    d->rms_eps = (float)eps;
    d->tied = r->is_tied;
    d->has_qk_norm = r->has_qk_norm;
    d->has_post_norms = r->has_post_norms;
    /* One bound for everything that is made per layer or per dimension. */
    return ag_description_check(&(ag_description){.C = d->C,
                                                  .L = d->L,
                                                  .H = d->H,
                                                  .G = d->G,
                                                  .D = d->D,
                                                  .F = d->F,
                                                  .V = d->V,
                                                  .context_length = d->context_length,
                                                  .rms_eps = d->rms_eps,
                                                  .rope_theta = 1},
                                name, err);
}

/* ---- layers that differ ------------------------------------------------------------------------------------------------- */
static bool is_state_space(const char *type) { return strcmp(type, "mamba") == 0 || strcmp(type, "linear_attention") == 0; }

static ag_status read_layer_types(bool *slides, bool *found, const ag_description *d, json_t *root, const char *name,
                                  ag_err *err)
{
    const json_t *types = json_object_get(root, "layer_types");
    *found = types && !json_is_null(types);
    if (!*found) return AG_OK;
    if (!json_is_array(types) || json_array_size(types) != (size_t)d->L)
        return ag_fail(err, AG_E_FORMAT, "%s: 'layer_types' must be a list of %lld texts", name, (long long)d->L);
    for (int64_t l = 0; l < d->L; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        if (!type) return ag_fail(err, AG_E_FORMAT, "%s: 'layer_types' must be a list of %lld texts", name, (long long)d->L);
        slides[l] = strcmp(type, "sliding_attention") == 0;
        if (!slides[l] && strcmp(type, "full_attention") != 0 && strcmp(type, "attention") != 0)
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "%s: layer %lld is of the type '%.60s'%s, which is not supported; layers of attention are", name,
                           (long long)l, type, is_state_space(type) ? " (state-space)" : "");
    }
    return AG_OK;
}

/* Without layer_types: Qwen's layers slide from max_window_layers on, SmolLM3's where they have no rotary positions, Gemma's
 * but for every so many. */
static ag_status read_slides(bool *slides, const ag_description *d, const rules *r, json_t *root, const char *name, ag_err *err)
{
    int64_t first = 28, period = r->slide_period; /* Qwen's default */
    AG_TRY(ag_json_get_int(root, "max_window_layers", 0, INT32_MAX, &first, name, err));
    if (r->rope.has_local_rope) AG_TRY(ag_json_get_int(root, "sliding_window_pattern", 1, INT32_MAX, &period, name, err));
    for (int64_t l = 0; l < d->L; l++)
        slides[l] = r->windows == WINDOW_QWEN      ? l >= first
                    : r->windows == WINDOW_SMOLLM3 ? !ag_layer_rotates(d, l)
                                                   : (l + 1) % period != 0;
    return AG_OK;
}

static ag_status read_window(ag_description *d, const rules *r, json_t *root, const char *name, ag_arena *arena, ag_err *err)
{
    bool uses_window = r->windows != WINDOW_NONE, found = false;
    bool *slides = ag_arena_array(arena, (size_t)d->L, sizeof *slides);
    if (r->windows == WINDOW_QWEN || r->windows == WINDOW_SMOLLM3) {
        uses_window = false;
        AG_TRY(ag_json_get_bool(root, "use_sliding_window", &uses_window, name, err));
    }
    if (r->windows == WINDOW_GEMMA) d->sliding_window = 4096; /* where the config has none */
    if (uses_window) AG_TRY(ag_json_get_int(root, "sliding_window", 1, INT32_MAX, &d->sliding_window, name, err));
    if (r->windows == WINDOW_ALL) return AG_OK;
    AG_TRY(read_layer_types(slides, &found, d, root, name, err));
    if (!found && strcmp(r->rope.model_type, "granitemoehybrid") == 0)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: there are no 'layer_types', so all layers are state-space ones (mamba), which are not "
                       "supported",
                       name);
    if (!found && uses_window) AG_TRY(read_slides(slides, d, r, root, name, err));
    bool any = false;
    for (int64_t l = 0; l < d->L; l++) any |= slides[l];
    if (any && d->sliding_window == 0)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: 'layer_types' has layers with a sliding window, but there is no 'sliding_window' in use", name);
    if (!any) d->sliding_window = 0;
    d->slides = any ? slides : NULL;
    return AG_OK;
}

/* SmolLM3's no_rope_layers has 1 where a layer does rotate; Granite's position_embedding_type. */
static ag_status read_rotates(ag_description *d, const rules *r, json_t *root, const char *name, ag_arena *arena, ag_err *err)
{
    const bool is_smollm3 = r->windows == WINDOW_SMOLLM3;
    const char *kind = NULL;
    bool *rotates = ag_arena_array(arena, (size_t)d->L, sizeof *rotates);
    if (strcmp(r->rope.model_type, "granitemoehybrid") == 0) {
        AG_TRY(ag_json_get_string(root, "position_embedding_type", &kind, name, err));
        if (!kind || strcmp(kind, "rope") != 0) d->rotates = rotates; /* none does */
        return AG_OK;
    }
    if (!is_smollm3) return AG_OK;
    const json_t *list = json_object_get(root, "no_rope_layers");
    int64_t period = 4;
    AG_TRY(ag_json_get_int(root, "no_rope_layer_interval", 1, INT32_MAX, &period, name, err));
    const bool given = list && !json_is_null(list);
    if (given && (!json_is_array(list) || json_array_size(list) != (size_t)d->L))
        return ag_fail(err, AG_E_FORMAT, "%s: 'no_rope_layers' must be a list of %lld times 0 or 1", name, (long long)d->L);
    for (int64_t l = 0; l < d->L; l++) {
        const json_t *item = json_array_get(list, (size_t)l);
        if (given && !json_is_integer(item))
            return ag_fail(err, AG_E_FORMAT, "%s: 'no_rope_layers' must be a list of %lld times 0 or 1", name, (long long)d->L);
        rotates[l] = given ? json_integer_value(item) != 0 : (l + 1) % period != 0;
    }
    d->rotates = rotates;
    return AG_OK;
}

/* ---- multipliers and options ----------------------------------------------------------------------------------------------
 */
static ag_status read_scales(ag_description *d, const rules *r, json_t *root, const char *name, ag_err *err)
{
    double embedding = 1, residual = 1, attention = 1 / sqrt((double)d->D), divisor = 1;
    switch (r->scales) {
    case SCALES_NONE: break;
    case SCALES_GRANITE:
        attention = 1;
        AG_TRY(ag_json_get_double(root, "embedding_multiplier", &embedding, name, err));
        AG_TRY(ag_json_get_double(root, "residual_multiplier", &residual, name, err));
        AG_TRY(ag_json_get_double(root, "attention_multiplier", &attention, name, err));
        AG_TRY(ag_json_get_double(root, "logits_scaling", &divisor, name, err));
        if (!(divisor > 0))
            return ag_fail(err, AG_E_FORMAT, "%s: logits_scaling is %g, expected a positive number", name, divisor);
        break;
    case SCALES_MINICPM: { /* modeling_minicpm.py of openbmb's repositories */
        double depth = 1, base = 1;
        AG_TRY(ag_json_get_double(root, "scale_emb", &embedding, name, err));
        AG_TRY(ag_json_get_double(root, "scale_depth", &depth, name, err));
        AG_TRY(ag_json_get_double(root, "dim_model_base", &base, name, err));
        if (!(base > 0)) return ag_fail(err, AG_E_FORMAT, "%s: dim_model_base is %g, expected a positive number", name, base);
        residual = depth / sqrt((double)d->L);
        divisor = (double)d->C / base;
        break;
    }
    case SCALES_GEMMA: {
        double scalar = 256;
        AG_TRY(ag_json_get_double(root, "query_pre_attn_scalar", &scalar, name, err));
        if (!(scalar > 0))
            return ag_fail(err, AG_E_FORMAT, "%s: query_pre_attn_scalar is %g, expected a positive number", name, scalar);
        embedding = sqrt((double)d->C);
        attention = 1 / sqrt(scalar);
        break;
    }
    }
    d->embedding_scale = (float)embedding;
    d->residual_scale = (float)residual;
    d->attention_scale = (float)attention;
    d->logit_scale = (float)(1 / divisor);
    return AG_OK;
}

/* null is none, a missing key the family's default. */
static ag_status read_softcap(float *out, double otherwise, json_t *root, const char *key, const char *name, ag_err *err)
{
    double cap = json_object_get(root, key) ? 0 : otherwise;
    AG_TRY(ag_json_get_double(root, key, &cap, name, err));
    *out = (float)cap;
    return AG_OK;
}

static ag_status read_activation(ag_description *d, const rules *r, json_t *root, const char *name, ag_err *err)
{
    const char *key = r->has_gelu ? "hidden_activation" : "hidden_act", *wanted = r->has_gelu ? "gelu_pytorch_tanh" : "silu";
    const char *activation = wanted;
    AG_TRY(ag_json_get_string(root, key, &activation, name, err));
    if (strcmp(activation, wanted) != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: %s '%.60s' is not supported; %s is", name, key, activation, wanted);
    d->gate = r->has_gelu ? AG_GATE_GELU_TANH : AG_GATE_SILU;
    return AG_OK;
}

/* Biases, and options that would change what is computed. */
static ag_status read_options(ag_description *d, const rules *r, json_t *root, const char *name, ag_err *err)
{
    bool attention_bias = false, mlp_bias = false, both_ways = false;
    AG_TRY(ag_json_get_bool(root, "attention_bias", &attention_bias, name, err));
    AG_TRY(ag_json_get_bool(root, "mlp_bias", &mlp_bias, name, err));
    attention_bias &= r->biases == BIAS_ATTENTION || r->biases == BIAS_BOTH; /* others do not look at them */
    mlp_bias &= r->biases == BIAS_BOTH;
    for (int p = 0; p < AG_N_PROJ; p++)
        d->has_bias[p] = p <= AG_PROJ_V   ? attention_bias || r->biases == BIAS_QKV_ALWAYS
                         : p == AG_PROJ_O ? attention_bias
                                          : mlp_bias;
    AG_TRY(ag_json_get_bool(root, "tie_word_embeddings", &d->tied, name, err));
    AG_TRY(ag_json_get_bool(root, "use_bidirectional_attention", &both_ways, name, err));
    if (both_ways)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: use_bidirectional_attention is not supported; causal attention is", name);
    if (r->scales == SCALES_GEMMA) {
        AG_TRY(read_softcap(&d->attention_softcap, r->softcap, root, "attn_logit_softcapping", name, err));
        AG_TRY(read_softcap(&d->logit_softcap, r->logit_softcap, root, "final_logit_softcapping", name, err));
    }
    static const char *const dropouts[] = {"attention_dropout", "resid_pdrop", "embd_pdrop"};
    for (size_t i = 0; i < sizeof dropouts / sizeof *dropouts; i++) {
        double dropout = 0;
        AG_TRY(ag_json_get_double(root, dropouts[i], &dropout, name, err));
        if (dropout != 0) ag_log(AG_LOG_WARN, "%s: %s %g is not applied", name, dropouts[i], dropout);
    }
    return read_activation(d, r, root, name, err);
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
    const ag_family *f = NULL;
    if (!json_is_object(root)) return ag_fail(err, AG_E_FORMAT, "%s: the config must be an object", name);
    if (generation && !json_is_object(generation))
        return ag_fail(err, AG_E_FORMAT, "generation_config.json beside %s must be an object", name);
    AG_TRY(find_family(&f, root, name, err));
    const rules *r = rules_of(f->model_type);
    d->model_type = ag_arena_strdup(arena, f->model_type);
    d->architecture = ag_arena_strdup(arena, f->architecture);
    AG_TRY(read_sizes(d, r, root, name, err));
    AG_TRY(ag_config_read_rope(d, &r->rope, root, name, arena, err));
    AG_TRY(read_rotates(d, r, root, name, arena, err));
    AG_TRY(read_window(d, r, root, name, arena, err));
    AG_TRY(read_scales(d, r, root, name, err));
    AG_TRY(read_options(d, r, root, name, err));
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
