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

static const struct {
    const char *model_type, *architecture;
    bool in_pairs;
} families[] = {
    {"llama", "LlamaForCausalLM", true},
    {"granite", "GraniteForCausalLM", true},
    {"qwen2", "Qwen2ForCausalLM", false},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

bool ag_gguf_rope_in_pairs(const ag_description *d)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].model_type, d->model_type) == 0) return families[i].in_pairs;
    return false;
}

/* "<architecture>.<key>", good until the next call with the same buffer. */
typedef struct {
    char text[128];
} key_text;

static const char *key_of(key_text *k, const ag_description *d, const char *key)
{
    snprintf(k->text, sizeof k->text, "%s.%s", d->model_type, key);
    return k->text;
}

static ag_status read_sizes(ag_description *d, const ag_gguf *g, ag_err *err)
{
    key_text k;
    int64_t value_length, rope_dims, n_experts = 0, vocabulary;
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "embedding_length"), 1, INT32_MAX, &d->C, err));
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "block_count"), 1, INT32_MAX, &d->L, err));
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "attention.head_count"), 1, INT32_MAX, &d->H, err));
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "feed_forward_length"), 1, INT32_MAX, &d->F, err));
    AG_TRY(ag_gguf_need_int(g, key_of(&k, d, "context_length"), 1, INT32_MAX, &d->context_length, err));
    d->G = d->H;
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "attention.head_count_kv"), 1, INT32_MAX, &d->G, err));
    d->D = d->C / d->H;
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "attention.key_length"), 1, INT32_MAX, &d->D, err));
    value_length = rope_dims = d->D;
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "attention.value_length"), 1, INT32_MAX, &value_length, err));
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "rope.dimension_count"), 1, INT32_MAX, &rope_dims, err));
    if (value_length != d->D || rope_dims != d->D)
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

/* llama3's scaling is stored as a divisor for each frequency. */
static ag_status read_rope_factors(ag_description *d, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    const ag_gguf_tensor *t = ag_gguf_find(g, "rope_freqs.weight");
    if (!t) return AG_OK;
    if (t->type != AG_GGML_F32 || t->rank != 1 || t->ne[0] != d->D / 2)
        return ag_fail(err, AG_E_SHAPE, "%s: tensor 'rope_freqs.weight' is %s, expected F32 [%lld]", g->path,
                       ag_gguf_shape_text(arena, t), (long long)(d->D / 2));
    float *factors = ag_arena_array(arena, (size_t)t->ne[0], sizeof *factors);
    memcpy(factors, t->data, t->bytes);
    for (int64_t i = 0; i < t->ne[0]; i++)
        if (!(factors[i] > 0) || !isfinite(factors[i]))
            return ag_fail(err, AG_E_FORMAT, "%s: tensor 'rope_freqs.weight' holds %g, expected positive numbers", g->path,
                           (double)factors[i]);
    if (d->rope_kind != AG_ROPE_DEFAULT)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: linear rope scaling and 'rope_freqs.weight' together are not supported",
                       g->path);
    d->rope_kind = AG_ROPE_FACTORS;
    d->rope_factors = factors;
    return AG_OK;
}

static ag_status read_rope(ag_description *d, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    key_text k;
    const char *type = "none";
    int64_t window = 0;
    d->rope_theta = 10000; /* llama.cpp's default */
    AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "rope.freq_base"), &d->rope_theta, err));
    AG_TRY(ag_gguf_get_text(g, key_of(&k, d, "rope.scaling.type"), &type, arena, err));
    if (strcmp(type, "linear") == 0) {
        d->rope_kind = AG_ROPE_LINEAR;
        AG_TRY(ag_gguf_need_double(g, key_of(&k, d, "rope.scaling.factor"), &d->rope_factor, err));
    } else if (strcmp(type, "none") != 0) {
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: rope scaling '%.60s' is not supported; none, linear and llama3 (rope_freqs.weight) are", g->path,
                       type);
    } else if (ag_gguf_pair_of(g, key_of(&k, d, "rope.scale_linear"))) { /* before there was scaling.type */
        AG_TRY(ag_gguf_get_double(g, k.text, &d->rope_factor, err));
        if (d->rope_factor != 1) d->rope_kind = AG_ROPE_LINEAR;
    }
    AG_TRY(ag_gguf_get_int(g, key_of(&k, d, "attention.sliding_window"), 0, INT32_MAX, &window, err));
    if (window > 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' %lld is not supported in GGUF files", g->path, k.text,
                       (long long)window);
    return read_rope_factors(d, g, arena, err);
}

static ag_status read_scales(ag_description *d, const ag_gguf *g, ag_err *err)
{
    key_text k;
    double embedding = 1, residual = 1, attention = 1 / sqrt((double)d->D), logits = 1;
    if (strcmp(d->model_type, "granite") == 0) {
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "embedding_scale"), &embedding, err));
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "residual_scale"), &residual, err));
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "attention.scale"), &attention, err));
        AG_TRY(ag_gguf_get_double(g, key_of(&k, d, "logit_scale"), &logits, err)); /* the divisor */
        if (!(logits > 0))
            return ag_fail(err, AG_E_FORMAT, "%s: '%s' is %g, expected a positive number", g->path, k.text, logits);
    }
    d->embedding_scale = (float)embedding;
    d->residual_scale = (float)residual;
    d->attention_scale = (float)attention;
    d->logit_scale = (float)(1 / logits);
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

ag_status ag_description_from_gguf(ag_description *out, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    const char *architecture = NULL, *type = "model";
    *out = (ag_description){0};
    AG_TRY(ag_gguf_get_text(g, "general.architecture", &architecture, arena, err));
    AG_TRY(ag_gguf_get_text(g, "general.type", &type, arena, err));
    if (strcmp(type, "model") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: general.type is '%.60s', not a model", g->path, type);
    if (!architecture) return ag_fail(err, AG_E_FORMAT, "%s: there is no 'general.architecture'; this is not a model", g->path);
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].model_type, architecture) == 0) {
            out->model_type = ag_arena_strdup(arena, families[i].model_type);
            out->architecture = ag_arena_strdup(arena, families[i].architecture);
        }
    if (!out->model_type)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: architecture '%.60s' is not supported; llama, granite and qwen2 are",
                       g->path, architecture);
    AG_TRY(read_sizes(out, g, err));
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
    AG_TRY(read_rope(out, g, arena, err));
    AG_TRY(read_scales(out, g, err));
    read_biases(out, g);
    AG_TRY(read_ids(out, g, err));
    return ag_description_check(out, g->path, err);
}
