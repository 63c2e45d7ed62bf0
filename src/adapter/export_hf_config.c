/* config.json and generation_config.json of an exported folder. */
#define _GNU_SOURCE
#include "adapter/export_hf.h"

#include "base/json.h"
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- carried over ---------------------------------------------------------------------------------------------------------
 */
static bool set_dtype(json_t *root, const char *key)
{
    const char *dtype = json_string_value(json_object_get(root, key));
    if (!json_object_get(root, key) || (dtype && strcmp(dtype, "bfloat16") == 0)) return false;
    json_object_set_new(root, key, json_string("bfloat16"));
    return true;
}

ag_status ag_hf_config_carry_over(ag_str *out, const char *config, size_t n, const char *name, bool untie, ag_err *err)
{
    json_t *root;
    AG_TRY(ag_json_parse(&root, config, n, name, err));
    bool changed = set_dtype(root, "torch_dtype"); /* transformers before 5 */
    changed |= set_dtype(root, "dtype");
    changed |= json_object_del(root, "quantization_config") == 0;
    if (untie) changed |= json_object_set_new(root, "tie_word_embeddings", json_false()) == 0;
    if (changed) {
        ag_json_writer w = {.out = out, .indent = 2};
        ag_jw_value(&w, NULL, root);
        ag_str_add_char(out, '\n');
    } else {
        ag_str_add_n(out, config, n);
    }
    ag_json_free(&root);
    return AG_OK;
}

/* ---- written from a description --------------------------------------------------------------------------------------------
 */
/* The double nearest to the shortest decimal that gives this float: 1e-05, not 9.999999747378752e-06. */
static double shortest(float x)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) break;
    }
    return strtod(text, NULL);
}

static double plain_frequency(const ag_description *d, int64_t i) { return pow(d->rope_theta, -2 * (double)i / (double)d->D); }

/* llama3's numbers out of the divisors that a GGUF stores, if they are llama3's: low_freq_factor 1 and high_freq_factor 4, as
 * in every model that was published with it. A divisor between 1 and the factor tells the original context. */
static bool find_llama3(ag_description *found, const ag_description *d)
{
    *found = *d;
    found->rope_kind = AG_ROPE_LLAMA3;
    found->rope_low_freq_factor = 1;
    found->rope_high_freq_factor = 4;
    found->rope_factor = 1;
    for (int64_t i = 0; i < d->D / 2; i++) found->rope_factor = fmax(found->rope_factor, (double)d->rope_factors[i]);
    found->rope_factor = shortest((float)found->rope_factor);
    for (int64_t i = 0; i < d->D / 2 && found->rope_original_context == 0; i++) {
        const double smooth = (1 / (double)d->rope_factors[i] - 1 / found->rope_factor) / (1 - 1 / found->rope_factor);
        if (smooth > 1e-3 && smooth < 1 - 1e-3)
            found->rope_original_context = llround((1 + 3 * smooth) * 2 * M_PI / plain_frequency(d, i));
    }
    if (found->rope_original_context <= 0) return false;
    double *want = calloc((size_t)d->D, sizeof *want), *got = want + d->D / 2, mscale;
    if (!want) ag_out_of_memory((size_t)d->D * sizeof *want);
    ag_description_rope(want, &mscale, d, 0);
    ag_description_rope(got, &mscale, found, 0);
    bool same = true;
    for (int64_t i = 0; i < d->D / 2; i++) same &= fabs(got[i] - want[i]) <= 1e-5 * want[i];
    free(want);
    return same;
}

static void write_factors(ag_json_writer *w, const char *key, const float *factors, int64_t n)
{
    ag_jw_array(w, key);
    for (int64_t i = 0; i < n; i++) ag_jw_double(w, NULL, shortest(factors[i]));
    ag_jw_end(w);
}

/* As transformers before 5 spelt it, which both read. */
static void write_rope_scaling(ag_json_writer *w, const ag_description *d)
{
    static const char *const names[] = {[AG_ROPE_LINEAR] = "linear",
                                        [AG_ROPE_LLAMA3] = "llama3",
                                        [AG_ROPE_DYNAMIC] = "dynamic",
                                        [AG_ROPE_YARN] = "yarn",
                                        [AG_ROPE_LONGROPE] = "longrope"};
    if (d->rope_kind == AG_ROPE_DEFAULT) {
        ag_jw_null(w, "rope_scaling");
        return;
    }
    ag_jw_object(w, "rope_scaling");
    if (d->rope_kind == AG_ROPE_YARN || d->rope_kind == AG_ROPE_LONGROPE)
        ag_jw_double(w, "attention_factor", shortest((float)d->rope_attention_factor));
    if (d->rope_kind == AG_ROPE_YARN) {
        ag_jw_double(w, "beta_fast", d->rope_beta_fast);
        ag_jw_double(w, "beta_slow", d->rope_beta_slow);
    }
    if (d->rope_kind != AG_ROPE_LONGROPE) ag_jw_double(w, "factor", shortest((float)d->rope_factor));
    if (d->rope_kind == AG_ROPE_LLAMA3) {
        ag_jw_double(w, "high_freq_factor", d->rope_high_freq_factor);
        ag_jw_double(w, "low_freq_factor", d->rope_low_freq_factor);
    }
    if (d->rope_kind == AG_ROPE_LONGROPE) {
        write_factors(w, "long_factor", d->rope_long_factors, ag_rope_dims(d) / 2);
        write_factors(w, "short_factor", d->rope_factors, ag_rope_dims(d) / 2);
    }
    if (d->rope_kind != AG_ROPE_LINEAR && d->rope_kind != AG_ROPE_DYNAMIC)
        ag_jw_int(w, "original_max_position_embeddings", d->rope_original_context);
    ag_jw_string(w, "rope_type", names[d->rope_kind]);
    ag_jw_end(w);
}

/* ---- what families add
 * ---------------------------------------------------------------------------------------------------------- */
static bool is_family(const ag_description *d, const char *model_type) { return strcmp(d->model_type, model_type) == 0; }

static void write_layer_types(ag_json_writer *w, const ag_description *d)
{
    ag_jw_array(w, "layer_types");
    for (int64_t l = 0; l < d->L; l++)
        ag_jw_string(w, NULL, ag_layer_window(d, l) > 0 ? "sliding_attention" : "full_attention");
    ag_jw_end(w);
}

static void write_gemma(ag_json_writer *w, const ag_description *d)
{
    if (d->attention_softcap > 0)
        ag_jw_double(w, "attn_logit_softcapping", shortest(d->attention_softcap));
    else
        ag_jw_null(w, "attn_logit_softcapping");
    if (d->logit_softcap > 0)
        ag_jw_double(w, "final_logit_softcapping", shortest(d->logit_softcap));
    else
        ag_jw_null(w, "final_logit_softcapping");
    write_layer_types(w, d);
    ag_jw_int(w, "query_pre_attn_scalar", llround(1 / ((double)d->attention_scale * (double)d->attention_scale)));
    if (is_family(d, "gemma3_text"))
        ag_jw_double(w, "rope_local_base_freq", d->rope_local_theta > 0 ? d->rope_local_theta : 10000);
}

static void write_family(ag_json_writer *w, const ag_description *d)
{
    if (is_family(d, "granite")) {
        ag_jw_double(w, "attention_multiplier", shortest(d->attention_scale));
        ag_jw_double(w, "embedding_multiplier", shortest(d->embedding_scale));
        ag_jw_double(w, "residual_multiplier", shortest(d->residual_scale));
        ag_jw_double(w, "logits_scaling", shortest(1 / d->logit_scale));
    }
    if (is_family(d, "minicpm")) {
        ag_jw_double(w, "dim_model_base", shortest((float)((double)d->C * (double)d->logit_scale)));
        ag_jw_double(w, "scale_depth", shortest((float)((double)d->residual_scale * sqrt((double)d->L))));
        ag_jw_double(w, "scale_emb", shortest(d->embedding_scale));
    }
    if (is_family(d, "smollm3")) {
        ag_jw_array(w, "no_rope_layers");
        for (int64_t l = 0; l < d->L; l++) ag_jw_int(w, NULL, ag_layer_rotates(d, l));
        ag_jw_end(w);
    }
    if (is_family(d, "smollm3") || is_family(d, "qwen2") || is_family(d, "qwen3"))
        ag_jw_bool(w, "use_sliding_window", d->sliding_window > 0);
    if (d->rope_dims > 0) ag_jw_double(w, "partial_rotary_factor", (double)d->rope_dims / (double)d->D);
    if (is_family(d, "phi3"))
        ag_jw_int(w, "original_max_position_embeddings",
                  d->rope_original_context > 0 ? d->rope_original_context : d->context_length);
    if (ag_family_of(d)->norms_from_one) write_gemma(w, d);
}

/* A Granite without rope can only be told of in Granite 4's config, whose tensors have other names. */
static ag_status check_rope(const ag_description *d, ag_err *err)
{
    if (is_family(d, "smollm3") || !d->rotates) return AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "layers of the model have no rope, which transformers' %s cannot have; export it as GGUF", d->architecture);
}

static void write_eos(ag_json_writer *w, const ag_description *d)
{
    if (d->n_eos_ids > 1) {
        ag_jw_array(w, "eos_token_id");
        for (int i = 0; i < d->n_eos_ids; i++) ag_jw_int(w, NULL, d->eos_ids[i]);
        ag_jw_end(w);
    } else if (d->n_eos_ids == 1) {
        ag_jw_int(w, "eos_token_id", d->eos_ids[0]);
    }
}

static bool has_mlp_bias(const ag_description *d)
{
    return is_family(d, "llama") || is_family(d, "granite") || is_family(d, "smollm3");
}

/* What transformers' class for this family cannot say. */
static ag_status check_biases(const ag_description *d, ag_err *err)
{
    const bool *b = d->has_bias, is_qwen2 = is_family(d, "qwen2");
    const bool attention = b[AG_PROJ_Q] && b[AG_PROJ_K] && b[AG_PROJ_V] && b[AG_PROJ_O] == !is_qwen2;
    const bool no_attention = !b[AG_PROJ_Q] && !b[AG_PROJ_K] && !b[AG_PROJ_V] && !b[AG_PROJ_O] && !is_qwen2;
    const bool mlp_alike =
        b[AG_PROJ_GATE] == b[AG_PROJ_UP] && b[AG_PROJ_UP] == b[AG_PROJ_DOWN] && (has_mlp_bias(d) || !b[AG_PROJ_UP]);
    if ((attention || no_attention) && mlp_alike) return AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "the model has biases on some of its projections, in a way that transformers' %s cannot have; "
                   "export it as GGUF",
                   d->architecture);
}

ag_status ag_hf_config_write(ag_str *out, const ag_description *d, ag_err *err)
{
    ag_description with_llama3;
    AG_TRY(check_biases(d, err));
    AG_TRY(check_rope(d, err));
    if (d->rope_kind == AG_ROPE_FACTORS) {
        if (!find_llama3(&with_llama3, d))
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "the rope divisors of this model are not llama3's, and no config.json can say them; "
                           "export it as GGUF");
        d = &with_llama3;
    }
    ag_json_writer w = {.out = out, .indent = 2};
    ag_jw_object(&w, NULL);
    ag_jw_array(&w, "architectures");
    ag_jw_string(&w, NULL, d->architecture);
    ag_jw_end(&w);
    if (!is_family(d, "qwen2") && !is_family(d, "phi3")) ag_jw_bool(&w, "attention_bias", d->has_bias[AG_PROJ_Q]);
    if (has_mlp_bias(d)) ag_jw_bool(&w, "mlp_bias", d->has_bias[AG_PROJ_UP]);
    ag_jw_double(&w, "attention_dropout", 0);
    write_family(&w, d);
    if (d->bos_id >= 0) ag_jw_int(&w, "bos_token_id", d->bos_id);
    write_eos(&w, d);
    ag_jw_int(&w, "head_dim", d->D);
    ag_jw_string(&w, d->gate == AG_GATE_SILU ? "hidden_act" : "hidden_activation",
                 d->gate == AG_GATE_SILU ? "silu" : "gelu_pytorch_tanh");
    ag_jw_int(&w, "hidden_size", d->C);
    ag_jw_int(&w, "intermediate_size", d->F);
    ag_jw_int(&w, "max_position_embeddings", d->context_length);
    ag_jw_string(&w, "model_type", d->model_type);
    ag_jw_int(&w, "num_attention_heads", d->H);
    ag_jw_int(&w, "num_hidden_layers", d->L);
    ag_jw_int(&w, "num_key_value_heads", d->G);
    if (d->pad_id >= 0) ag_jw_int(&w, "pad_token_id", d->pad_id);
    ag_jw_double(&w, "rms_norm_eps", shortest(d->rms_eps));
    write_rope_scaling(&w, d);
    ag_jw_double(&w, "rope_theta", d->rope_theta);
    if (d->sliding_window > 0) ag_jw_int(&w, "sliding_window", d->sliding_window);
    ag_jw_bool(&w, "tie_word_embeddings", d->tied);
    ag_jw_string(&w, "torch_dtype", "bfloat16");
    ag_jw_bool(&w, "use_cache", true);
    ag_jw_int(&w, "vocab_size", d->V);
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
    return AG_OK;
}

void ag_hf_generation_config_write(ag_str *out, const ag_description *d)
{
    ag_json_writer w = {.out = out, .indent = 2};
    ag_jw_object(&w, NULL);
    ag_jw_bool(&w, "_from_model_config", true);
    if (d->bos_id >= 0) ag_jw_int(&w, "bos_token_id", d->bos_id);
    write_eos(&w, d);
    if (d->pad_id >= 0) ag_jw_int(&w, "pad_token_id", d->pad_id);
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
}
