#define _GNU_SOURCE
#include "model/description_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const projection_names[AG_N_PROJ] = {
    [AG_PROJ_Q] = "attn_q",      [AG_PROJ_K] = "attn_k",  [AG_PROJ_V] = "attn_v",      [AG_PROJ_O] = "attn_output",
    [AG_PROJ_GATE] = "ffn_gate", [AG_PROJ_UP] = "ffn_up", [AG_PROJ_DOWN] = "ffn_down",
};

const char *ag_projection_gguf_name(ag_projection p) { return projection_names[p]; }

const char *ag_linear_gguf_name(const ag_linear_module *module)
{
    if (module->n_parts == 1) return projection_names[module->first];
    return module->first == AG_PROJ_Q ? "attn_qkv" : "ffn_up"; /* as phi3 has them */
}

const char *ag_norm_gguf_name(ag_norm norm)
{
    static const char *const names[AG_N_NORMS] = {
        [AG_NORM_ATTN] = "attn_norm", [AG_NORM_ATTN_POST] = "post_attention_norm",
        [AG_NORM_FFN] = "ffn_norm",   [AG_NORM_FFN_POST] = "post_ffw_norm",
        [AG_NORM_Q] = "attn_q_norm",  [AG_NORM_K] = "attn_k_norm",
    };
    return names[norm];
}

static const char freqs_name[] = "rope_freqs.weight", long_name[] = "rope_factors_long.weight",
                  short_name[] = "rope_factors_short.weight";

bool ag_gguf_is_rope_tensor(const char *name)
{
    return strcmp(name, freqs_name) == 0 || strcmp(name, long_name) == 0 || strcmp(name, short_name) == 0;
}

static bool is_family(const ag_description *d, const char *model_type) { return strcmp(d->model_type, model_type) == 0; }
static bool is_gemma(const ag_description *d) { return is_family(d, "gemma2") || is_family(d, "gemma3_text"); }

/* The largest of each generation, which llama.cpp knows by its layers, divides by width over heads. */
double ag_gguf_gemma_attention_scale(const ag_description *d)
{
    const bool is_27b = (is_family(d, "gemma2") && d->L == 46) || (is_family(d, "gemma3_text") && d->L == 62);
    return 1 / sqrt((double)(is_27b ? d->C / d->H : d->D));
}

/* "<architecture>.<key>", good until the next call with the same buffer. */
typedef struct {
    char text[128];
} key_text;

static const char *key_of(key_text *k, const ag_description *d, const char *key)
{
    snprintf(k->text, sizeof k->text, "%s.%s", ag_family_of(d)->gguf, key);
    return k->text;
}

/* One number, or one for each layer (Granite 4), which must then be the same: 0 is a layer without attention. */
static ag_status read_kv_heads(ag_description *d, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    key_text k;
    const int64_t *list;
    size_t n;
    const ag_gguf_pair *pair = ag_gguf_pair_of(g, key_of(&k, d, "attention.head_count_kv"));
    d->G = d->H;
    if (!pair || pair->type != AG_GGUF_ARRAY) return ag_gguf_get_int(g, k.text, 1, INT32_MAX, &d->G, err);
    AG_TRY(ag_gguf_get_ints(g, k.text, &list, &n, arena, err));
    if (n < (uint64_t)d->L)
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' has %zu numbers for %lld layers", g->path, k.text, n, (long long)d->L);
    d->G = list[0];
    for (int64_t l = 0; l < d->L; l++)
        if (list[l] != d->G || list[l] < 1)
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "%s: layer %lld has %lld key/value heads, layer 0 has %lld; only models whose layers are alike "
                           "and have attention are supported",
                           g->path, (long long)l, (long long)list[l], (long long)d->G);
    return AG_OK;
}

static ag_status read_sizes(ag_description *d, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    key_text k;
    int64_t value_length, rope_dims, n_experts = 0, vocabulary;
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "embedding_length"), 1, INT32_MAX, &d->C, err));
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "block_count"), 1, INT32_MAX, &d->L, err));
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "attention.head_count"), 1, INT32_MAX, &d->H, err));
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "feed_forward_length"), 1, INT32_MAX, &d->F, err));
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "context_length"), 1, INT32_MAX, &d->context_length, err));
    AG_TRY(read_kv_heads(d, g, arena, err));
    d->D = d->C / d->H;
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "attention.key_length"), 1, INT32_MAX, &d->D, err));
    value_length = rope_dims = d->D;
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "attention.value_length"), 1, INT32_MAX, &value_length, err));
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "rope.dimension_count"), 1, INT32_MAX, &rope_dims, err));
    const bool may_rotate_a_part = is_family(d, "phi3") && rope_dims >= 2 && rope_dims < d->D;
    if (may_rotate_a_part) d->rope_dims = rope_dims;
    if (value_length != d->D || (rope_dims != d->D && !may_rotate_a_part))
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: keys of %lld, values of %lld and %lld rotated dimensions; only models where these are one "
                       "number are supported",
                       g->path, (long long)d->D, (long long)value_length, (long long)rope_dims);
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "expert_count"), 0, INT32_MAX, &n_experts, err));
    if (n_experts > 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: a mixture of %lld experts is not supported", g->path, (long long)n_experts);
    double eps = 0;
    AG_TRY(ag_gguf_need_double(g, key_of(&k, d, "attention.layer_norm_rms_epsilon"), &eps, err));
    d->rms_eps = (float)eps;
    const ag_gguf_tensor *embed = ag_gguf_find(g, "token_embd.weight");
    if (!embed)
        return ag_fail(err, AG_E_NOT_FOUND, "%s: there is no tensor 'token_embd.weight'; this file has no model in it",
                       g->path);
    d->V = vocabulary = embed->ne[1];
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "vocab_size"), 1, INT32_MAX, &vocabulary, err));
    if (vocabulary != d->V)
        return ag_fail(err, AG_E_FORMAT, "%s: vocab_size is %lld, token_embd.weight has %lld rows", g->path,
                       (long long)vocabulary, (long long)d->V);
    d->tied = !ag_gguf_find(g, "output.weight");
    return AG_OK;
}

/* ---- rope ------------------------------------------------------------------------------------------------------------- */
/* A number for each frequency, *out NULL where it is not there. */
static ag_status read_factors(const float **out, const ag_description *d, const ag_gguf *g, const char *name, ag_arena *arena,
                              ag_err *err)
{
    const ag_gguf_tensor *t = ag_gguf_find(g, name);
    *out = NULL;
    if (!t) return AG_OK;
    if (t->type != AG_GGML_F32 || t->rank != 1 || t->ne[0] != ag_rope_dims(d) / 2)
        return ag_fail(err, AG_E_SHAPE, "%s: tensor '%s' is %s, expected F32 [%lld]", g->path, name,
                       ag_gguf_shape_text(arena, t), (long long)(ag_rope_dims(d) / 2));
    float *factors = ag_arena_array(arena, (size_t)t->ne[0], sizeof *factors);
    memcpy(factors, t->data, t->bytes);
    for (int64_t i = 0; i < t->ne[0]; i++)
        if (!(factors[i] > 0) || !isfinite(factors[i]))
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' holds %g, expected positive numbers", g->path, name,
                           (double)factors[i]);
    *out = factors;
    return AG_OK;
}

/* llama3's scaling is stored as a divisor for each frequency, longrope's as two. */
static ag_status read_rope_factors(ag_description *d, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    const float *one, *beyond, *within;
    AG_TRY(read_factors(&one, d, g, freqs_name, arena, err));
    AG_TRY(read_factors(&beyond, d, g, long_name, arena, err));
    AG_TRY(read_factors(&within, d, g, short_name, arena, err));
    if (!beyond != !within)
        return ag_fail(err, AG_E_FORMAT, "%s: of '%s' and '%s' only one is there", g->path, long_name, short_name);
    if (!one && !beyond)
        return d->rope_kind != AG_ROPE_LONGROPE
                   ? AG_OK
                   : ag_fail(err, AG_E_FORMAT, "%s: longrope needs the tensors '%s' and '%s'", g->path, long_name, short_name);
    if (one && beyond)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' and '%s' together are not supported", g->path, freqs_name, long_name);
    if (d->rope_kind != AG_ROPE_DEFAULT && !(beyond && d->rope_kind == AG_ROPE_LONGROPE))
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: a rope scaling and '%s' together are not supported", g->path,
                       one ? freqs_name : long_name);
    d->rope_kind = one ? AG_ROPE_FACTORS : AG_ROPE_LONGROPE;
    d->rope_factors = one ? one : within;
    d->rope_long_factors = beyond;
    return AG_OK;
}

/* The extra factor, attn_factor, stands beside YaRN's own; converters put a whole attention factor of a config into
 * yarn_attn_factor. */
static ag_status read_yarn(ag_description *d, const ag_gguf *g, ag_err *err)
{
    key_text k;
    double extrapolation = 1, extra = 1;
    d->rope_kind = AG_ROPE_YARN;
    d->rope_beta_fast = 32;
    d->rope_beta_slow = 1;
    AG_TRY(ag_gguf_need_double(g, key_of(&k, d, "rope.scaling.factor"), &d->rope_factor, err));
    AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "rope.scaling.yarn_beta_fast"), &d->rope_beta_fast, err));
    AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "rope.scaling.yarn_beta_slow"), &d->rope_beta_slow, err));
    AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "rope.scaling.yarn_ext_factor"), &extrapolation, err));
    if (extrapolation != 1)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' %g is not supported; 1 is", g->path, k.text, extrapolation);
    d->rope_attention_factor = d->rope_factor > 1 ? 0.1 * log(d->rope_factor) + 1 : 1;
    AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "rope.scaling.yarn_attn_factor"), &d->rope_attention_factor, err));
    AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "rope.scaling.attn_factor"), &extra, err));
    d->rope_attention_factor *= extra;
    return AG_OK;
}

static ag_status read_scaling(ag_description *d, const ag_gguf *g, ag_err *err)
{
    key_text k;
    ag_arena texts = {0};
    const char *type = "none";
    ag_status status = ag_gguf_get_text(g, key_of(&k, d, "rope.scaling.type"), &type, &texts, err);
    if (status) goto out;
    d->rope_original_context = d->context_length;
    status =
        ag_gguf_get_int(g, key_of(&k, d, "rope.scaling.original_context_length"), 1, INT32_MAX, &d->rope_original_context, err);
    if (status) goto out;
    if (strcmp(type, "linear") == 0) {
        d->rope_kind = AG_ROPE_LINEAR;
        status = ag_gguf_need_double(g, key_of(&k, d, "rope.scaling.factor"), &d->rope_factor, err);
    } else if (strcmp(type, "yarn") == 0) {
        status = read_yarn(d, g, err);
    } else if (strcmp(type, "longrope") == 0) {
        d->rope_kind = AG_ROPE_LONGROPE;
    } else if (strcmp(type, "none") != 0) {
        status = ag_fail(
            err, AG_E_UNSUPPORTED,
            "%s: rope scaling '%.60s' is not supported; none, linear, yarn, longrope and llama3 (rope_freqs.weight) are",
            g->path, type);
    } else if (ag_gguf_pair_of(g, key_of(&k, d, "rope.scale_linear"))) { /* before there was scaling.type */
        status = ag_gguf_get_double(g, k.text, &d->rope_factor, err);
        if (d->rope_factor != 1) d->rope_kind = AG_ROPE_LINEAR;
    }
out:
    ag_arena_free(&texts);
    return status;
}

static ag_status read_rope(ag_description *d, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    key_text k;
    bool finetuned = true;
    d->rope_theta = 10000; /* llama.cpp's default */
    AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "rope.freq_base"), &d->rope_theta, err));
    AG_TRY(read_scaling(d, g, err));
    AG_TRY(read_rope_factors(d, g, arena, err));
    if (d->rope_kind == AG_ROPE_LONGROPE) {
        d->rope_attention_factor = 1;
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "rope.scaling.attn_factor"), &d->rope_attention_factor, err));
    } else if (d->rope_kind != AG_ROPE_YARN) {
        d->rope_original_context = 0;
    }
    bool *rotates = ag_arena_array(arena, (size_t)d->L, sizeof *rotates);
    if (is_family(d, "smollm3")) { /* llama.cpp knows this pattern alone */
        for (int64_t l = 0; l < d->L; l++) rotates[l] = (l + 1) % AG_GGUF_SMOLLM3_PERIOD != 0;
        d->rotates = rotates;
    }
    if (is_family(d, "granite")) { /* where this key switches rope off */
        AG_TRY(ag_gguf_get_bool(g, key_of(&k, d, "rope.scaling.finetuned"), &finetuned, err));
        if (!finetuned) d->rotates = rotates;
    }
    return AG_OK;
}

/* ---- window ------------------------------------------------------------------------------------------------------------ */
/* Gemma's sliding layers: a list, or one that sees all every so many layers. */
static ag_status read_slides(ag_description *d, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    key_text k;
    int64_t period = is_family(d, "gemma2") ? AG_GGUF_GEMMA2_PERIOD : AG_GGUF_GEMMA3_PERIOD;
    bool *slides = ag_arena_array(arena, (size_t)d->L, sizeof *slides);
    const ag_gguf_pair *pattern = ag_gguf_pair_of(g, key_of(&k, d, "attention.sliding_window_pattern"));
    const bool is_list = pattern && pattern->type == AG_GGUF_ARRAY;
    if (is_list && (pattern->item != AG_GGUF_BOOL || pattern->n < (uint64_t)d->L))
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be a list of %lld booleans", g->path, k.text, (long long)d->L);
    if (!is_list) AG_TRY(ag_gguf_get_int(g, k.text, 1, INT32_MAX, &period, err));
    for (int64_t l = 0; l < d->L; l++) slides[l] = is_list ? pattern->bytes[l] != 0 : (l + 1) % period != 0;
    d->slides = slides;
    return AG_OK;
}

static ag_status read_window(ag_description *d, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    key_text k;
    int64_t window = is_family(d, "gemma2") ? 4096 : 0; /* llama.cpp's default */
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "attention.sliding_window"), 0, INT32_MAX, &window, err));
    if (window == 0) return AG_OK;
    if (!is_gemma(d) && !is_family(d, "phi3"))
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' %lld is not supported in GGUF files of this architecture", g->path,
                       k.text, (long long)window);
    d->sliding_window = window;
    if (is_gemma(d)) AG_TRY(read_slides(d, g, arena, err));
    if (is_family(d, "gemma3_text")) {
        d->rope_local_theta = 10000; /* llama.cpp's default */
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "rope.freq_base_swa"), &d->rope_local_theta, err));
    }
    return AG_OK;
}

/* ---- multipliers --------------------------------------------------------------------------------------------------------- */
static ag_status read_scales(ag_description *d, const ag_gguf *g, ag_err *err)
{
    key_text k;
    double embedding = 1, residual = 1, attention = 1 / sqrt((double)d->D), divisor = 1;
    const bool is_minicpm = is_family(d, "minicpm");
    if (is_minicpm) { /* what files without the keys were made for */
        embedding = 12;
        residual = 1.4 / sqrt((double)d->L);
        divisor = (double)d->C / 256;
    }
    if (is_minicpm || is_family(d, "granite")) {
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "embedding_scale"), &embedding, err));
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "residual_scale"), &residual, err));
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "attention.scale"), &attention, err));
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "logit_scale"), &divisor, err));
        if (!(divisor > 0))
            return ag_fail(err, AG_E_FORMAT, "%s: '%s' is %g, expected a positive number", g->path, k.text, divisor);
    }
    if (is_gemma(d)) {
        double cap = is_family(d, "gemma2") ? 50 : 0, logit_cap = is_family(d, "gemma2") ? 30 : 0;
        embedding = sqrt((double)d->C);
        attention = ag_gguf_gemma_attention_scale(d);
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "attn_logit_softcapping"), &cap, err));
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "final_logit_softcapping"), &logit_cap, err));
        d->attention_softcap = (float)cap;
        d->logit_softcap = (float)logit_cap;
        d->gate = AG_GATE_GELU_TANH;
    }
    d->embedding_scale = (float)embedding;
    d->residual_scale = (float)residual;
    d->attention_scale = (float)attention;
    d->logit_scale = (float)(1 / divisor);
    return AG_OK;
}

static void read_biases(ag_description *d, const ag_gguf *g)
{
    char name[64];
    for (int p = 0; p < AG_N_PROJ; p++) {
        snprintf(name, sizeof name, "blk.0.%s.bias", projection_names[p]);
        d->has_bias[p] = ag_gguf_find(g, name) != NULL;
    }
}

static ag_status read_ids(ag_description *d, const ag_gguf *g, ag_err *err)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t bos = -1, pad = -1;
    AG_TRY(ag_gguf_get_int(g, "tokenizer.ggml.bos_token_id", 0, UINT32_MAX, &bos, err));
    AG_TRY(ag_gguf_get_int(g, "tokenizer.ggml.padding_token_id", 0, UINT32_MAX, &pad, err));
    d->bos_id = bos < d->V ? (int32_t)bos : -1; /* 0xffffffff is a way to say none */
    d->pad_id = pad < d->V ? (int32_t)pad : -1;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int64_t id = -1;
        AG_TRY(ag_gguf_get_int(g, ends[i], 0, UINT32_MAX, &id, err));
        bool is_new = id >= 0 && id < d->V;
        for (int j = 0; j < d->n_eos_ids; j++) is_new &= d->eos_ids[j] != id;
        if (is_new) d->eos_ids[d->n_eos_ids++] = (int32_t)id;
    }
    d->eos_id = d->n_eos_ids > 0 ? d->eos_ids[0] : -1;
    return AG_OK;
}

static ag_status find_family(ag_description *d, const char *architecture, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    int n;
    const ag_family *all = ag_families(&n);
    char names[256];
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(all[i].gguf, architecture) == 0) {
            d->model_type = ag_arena_strdup(arena, all[i].model_type);
            d->architecture = ag_arena_strdup(arena, all[i].architecture);
            return AG_OK;
        }
        bool is_new = true;
        for (int j = 0; j < i; j++) is_new &= strcmp(all[j].gguf, all[i].gguf) != 0;
        if (is_new && at < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s",
                                   i == 0      ? ""
                                   : i + 1 < n ? ", "
                                               : " and ",
                                   all[i].gguf);
    }
    key_text k;
    int64_t n_experts = 0;
    char kind[64] = "";
    snprintf(k.text, sizeof k.text, "%.60s.expert_count", architecture);
    AG_TRY(ag_gguf_get_int(g, k.text, 0, INT32_MAX, &n_experts, err));
    if (n_experts > 0) snprintf(kind, sizeof kind, " (a mixture of %lld experts)", (long long)n_experts);
    snprintf(k.text, sizeof k.text, "%.60s.ssm.state_size", architecture);
    if (n_experts == 0 && ag_gguf_pair_of(g, k.text)) snprintf(kind, sizeof kind, " (a state-space model)");
    return ag_fail(err, AG_E_UNSUPPORTED, "%s: architecture '%.60s' is not supported%s; %s are", g->path, architecture, kind,
                   names);
}

ag_status ag_description_from_gguf(ag_description *out, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    const char *architecture = NULL, *type = "model";
    *out = (ag_description){0};
    AG_TRY(ag_gguf_get_text(g, "general.architecture", &architecture, arena, err));
    AG_TRY(ag_gguf_get_text(g, "general.type", &type, arena, err));
    if (strcmp(type, "model") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: general.type is '%.60s', not a model", g->path, type);
    if (!architecture) return ag_fail(err, AG_E_FORMAT, "%s: there is no 'general.architecture'; this is not a model", g->path);
    AG_TRY(find_family(out, architecture, g, arena, err));
    AG_TRY(read_sizes(out, g, arena, err));
    AG_TRY(ag_description_check(&(ag_description){.C = out->C,
                                                  .L = out->L,
                                                  .H = out->H,
                                                  .G = out->G,
                                                  .D = out->D,
                                                  .F = out->F,
                                                  .V = out->V,
                                                  .context_length = out->context_length,
                                                  .rms_eps = out->rms_eps,
                                                  .rope_theta = 1},
                                g->path, err));
    out->has_qk_norm = is_family(out, "qwen3") || is_family(out, "gemma3_text");
    out->has_post_norms = is_gemma(out);
    AG_TRY(read_rope(out, g, arena, err));
    AG_TRY(read_window(out, g, arena, err));
    AG_TRY(read_scales(out, g, err));
    read_biases(out, g);
    AG_TRY(read_ids(out, g, err));
    return ag_description_check(out, g->path, err);
}
