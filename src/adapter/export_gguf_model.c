/* Keys: llama.cpp's conversion/<family>.py and src/models/<architecture>.cpp. */
#include "adapter/export_gguf_model.h"

#include "base/log.h"
#include "model/description_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    char text[128];
} key_text;

static const char *key_of(key_text *k, const ag_description *d, const char *key)
{
    snprintf(k->text, sizeof k->text, "%s.%s", ag_family_of(d)->gguf, key);
    return k->text;
}

static bool is_family(const ag_description *d, const char *model_type) { return strcmp(d->model_type, model_type) == 0; }
static bool is_gemma(const ag_description *d) { return is_family(d, "gemma2") || is_family(d, "gemma3_text"); }
static bool is_granite(const ag_description *d) { return strcmp(ag_family_of(d)->gguf, "granite") == 0; }

static ag_status refuse(const ag_description *d, const char *what, ag_err *err)
{
    return ag_fail(err, AG_E_UNSUPPORTED, "llama.cpp's %s cannot compute this %s: %s; export it as a Hugging Face folder",
                   ag_family_of(d)->gguf, d->model_type, what);
}

/* ---- rope --------------------------------------------------------------------------------------------------------------- */
int ag_export_gguf_rope_tensors(ag_gguf_rope_tensor out[AG_GGUF_MAX_ROPE_TENSORS], const ag_description *d, ag_arena *arena)
{
    if (d->rope_kind == AG_ROPE_LONGROPE) {
        out[0] = (ag_gguf_rope_tensor){"rope_factors_long.weight", d->rope_long_factors};
        out[1] = (ag_gguf_rope_tensor){"rope_factors_short.weight", d->rope_factors};
        return 2;
    }
    out[0] = (ag_gguf_rope_tensor){"rope_freqs.weight", d->rope_factors};
    if (d->rope_kind == AG_ROPE_FACTORS) return 1;
    if (d->rope_kind != AG_ROPE_LLAMA3) return 0;
    const size_t n = (size_t)ag_rope_dims(d) / 2;
    ag_description plain = *d;
    plain.rope_kind = AG_ROPE_DEFAULT;
    double *scaled = ag_arena_array(arena, n, sizeof *scaled), *unscaled = ag_arena_array(arena, n, sizeof *unscaled), mscale;
    float *divisors = ag_arena_array(arena, n, sizeof *divisors);
    ag_description_rope(scaled, &mscale, d, 0);
    ag_description_rope(unscaled, &mscale, &plain, 0);
    for (size_t i = 0; i < n; i++) divisors[i] = (float)(unscaled[i] / scaled[i]);
    out[0].factors = divisors;
    return 1;
}

static ag_status put_yarn(ag_gguf_writer *w, const ag_description *d, ag_err *err)
{
    key_text k;
    if (d->rope_keeps_fractions) return refuse(d, "its YaRN scaling keeps fractions of dimensions (truncate: false)", err);
    const double usual = d->rope_factor > 1 ? 0.1 * log(d->rope_factor) + 1 : 1;
    ag_gguf_put_text(w, key_of(&k, d, "rope.scaling.type"), "yarn");
    ag_gguf_put_f32(w, key_of(&k, d, "rope.scaling.factor"), (float)d->rope_factor);
    ag_gguf_put_u32(w, key_of(&k, d, "rope.scaling.original_context_length"), (uint32_t)d->rope_original_context);
    if (d->rope_beta_fast != 32) ag_gguf_put_f32(w, key_of(&k, d, "rope.scaling.yarn_beta_fast"), (float)d->rope_beta_fast);
    if (d->rope_beta_slow != 1) ag_gguf_put_f32(w, key_of(&k, d, "rope.scaling.yarn_beta_slow"), (float)d->rope_beta_slow);
    /* Beside the usual factor, which llama.cpp takes anyway. */
    if (fabs(d->rope_attention_factor - usual) > 1e-9)
        ag_gguf_put_f32(w, key_of(&k, d, "rope.scaling.attn_factor"), (float)(d->rope_attention_factor / usual));
    return AG_OK;
}

static ag_status put_rope(ag_gguf_writer *w, const ag_description *d, ag_err *err)
{
    key_text k;
    const char *gguf = ag_family_of(d)->gguf;
    ag_gguf_put_f32(w, key_of(&k, d, "rope.freq_base"), (float)d->rope_theta);
    ag_gguf_put_u32(w, key_of(&k, d, "rope.dimension_count"), (uint32_t)ag_rope_dims(d));
    switch (d->rope_kind) {
    case AG_ROPE_DEFAULT:
    case AG_ROPE_LLAMA3:
    case AG_ROPE_FACTORS: break;
    case AG_ROPE_LINEAR:
        ag_gguf_put_text(w, key_of(&k, d, "rope.scaling.type"), "linear");
        ag_gguf_put_f32(w, key_of(&k, d, "rope.scaling.factor"), (float)d->rope_factor);
        break;
    case AG_ROPE_DYNAMIC: return refuse(d, "its rope scaling is dynamic", err);
    case AG_ROPE_YARN: AG_TRY(put_yarn(w, d, err)); break;
    case AG_ROPE_LONGROPE:
        if (strcmp(gguf, "phi3") != 0 && strcmp(gguf, "minicpm") != 0 && strcmp(gguf, "llama") != 0 &&
            strcmp(gguf, "granite") != 0)
            return refuse(d, "its rope scaling is longrope", err);
        ag_gguf_put_text(w, key_of(&k, d, "rope.scaling.type"), "longrope");
        ag_gguf_put_u32(w, key_of(&k, d, "rope.scaling.original_context_length"), (uint32_t)d->rope_original_context);
        ag_gguf_put_f32(w, key_of(&k, d, "rope.scaling.attn_factor"), (float)d->rope_attention_factor);
        break;
    }
    return AG_OK;
}

/* Layers without rope, as far as llama.cpp knows them. */
static ag_status put_rotates(ag_gguf_writer *w, const ag_description *d, ag_err *err)
{
    key_text k;
    bool any = false, all = true, as_smollm3 = true;
    for (int64_t l = 0; l < d->L; l++) {
        const bool rotates = ag_layer_rotates(d, l);
        any |= rotates;
        all &= rotates;
        as_smollm3 &= rotates == ((l + 1) % AG_GGUF_SMOLLM3_PERIOD != 0);
    }
    if (is_family(d, "smollm3"))
        return as_smollm3 ? AG_OK : refuse(d, "it has layers without rope at other places than every fourth", err);
    if (is_granite(d) && !any)
        ag_gguf_put_bool(w, key_of(&k, d, "rope.scaling.finetuned"), false); /* Granite's way to say it */
    else if (!all)
        return refuse(d, "some of its layers have no rope", err);
    return AG_OK;
}

/* ---- window ------------------------------------------------------------------------------------------------------------- */
static ag_status put_gemma_window(ag_gguf_writer *w, const ag_description *d, ag_err *err)
{
    key_text k;
    const int64_t usual = is_family(d, "gemma2") ? AG_GGUF_GEMMA2_PERIOD : AG_GGUF_GEMMA3_PERIOD;
    int64_t period = 1;
    bool any = false, is_periodic = true;
    while (period <= d->L && d->slides && d->slides[period - 1]) period++;
    for (int64_t l = 0; l < d->L; l++) {
        const bool slides = ag_layer_window(d, l) > 0;
        any |= slides;
        is_periodic &= slides == ((l + 1) % period != 0);
    }
    if (!any && is_family(d, "gemma2")) return refuse(d, "none of its layers has a window", err);
    if (!any) return AG_OK;
    if (!is_periodic) return refuse(d, "its layers with a window follow no period", err);
    ag_gguf_put_u32(w, key_of(&k, d, "attention.sliding_window"), (uint32_t)d->sliding_window);
    if (period != usual && !(period > d->L && usual > d->L))
        ag_gguf_put_u32(w, key_of(&k, d, "attention.sliding_window_pattern"), (uint32_t)period);
    if (d->rope_local_theta > 0 && d->rope_local_theta != 10000)
        ag_gguf_put_f32(w, key_of(&k, d, "rope.freq_base_swa"), (float)d->rope_local_theta);
    return AG_OK;
}

static ag_status put_window(ag_gguf_writer *w, const ag_description *d, ag_err *err)
{
    key_text k;
    if (is_gemma(d)) return put_gemma_window(w, d, err);
    const bool matters = d->sliding_window > 0 && d->sliding_window < d->context_length;
    if (is_family(d, "phi3")) {
        ag_gguf_put_u32(w, key_of(&k, d, "attention.sliding_window"), (uint32_t)d->sliding_window);
        if (matters)
            ag_log(
                AG_LOG_WARN,
                "the model's attention has a window of %lld tokens, which llama.cpp does not apply to a phi3: it will compute "
                "something else beyond them",
                (long long)d->sliding_window);
        return AG_OK;
    }
    if (matters)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "the model's attention has a window of %lld tokens, which llama.cpp does not apply to a "
                       "%s; it would compute something else beyond them",
                       (long long)d->sliding_window, d->model_type);
    return AG_OK;
}

/* ---- multipliers and softcaps ----------------------------------------------------------------------------------------------
 */
static ag_status put_gemma(ag_gguf_writer *w, const ag_description *d, ag_err *err)
{
    key_text k;
    const bool is_gemma2 = is_family(d, "gemma2");
    if (fabs((double)d->attention_scale / ag_gguf_gemma_attention_scale(d) - 1) > 1e-6)
        return refuse(d, "its query_pre_attn_scalar is not the one that llama.cpp takes", err);
    if (is_gemma2 && !d->tied) return refuse(d, "its head is not its embedding", err);
    if (is_gemma2 ? d->attention_softcap == 0 || d->logit_softcap == 0 : d->attention_softcap > 0)
        return refuse(d, is_gemma2 ? "it has no softcaps" : "it has a softcap on attention", err);
    if (is_gemma2) ag_gguf_put_f32(w, key_of(&k, d, "attn_logit_softcapping"), d->attention_softcap);
    if (d->logit_softcap > 0) ag_gguf_put_f32(w, key_of(&k, d, "final_logit_softcapping"), d->logit_softcap);
    return AG_OK;
}

static ag_status put_scales(ag_gguf_writer *w, const ag_description *d, ag_err *err)
{
    key_text k;
    if (is_gemma(d)) return put_gemma(w, d, err);
    if (is_granite(d)) ag_gguf_put_f32(w, key_of(&k, d, "attention.scale"), d->attention_scale);
    if (!is_granite(d) && !is_family(d, "minicpm")) return AG_OK;
    ag_gguf_put_f32(w, key_of(&k, d, "embedding_scale"), d->embedding_scale);
    ag_gguf_put_f32(w, key_of(&k, d, "residual_scale"), d->residual_scale);
    ag_gguf_put_f32(w, key_of(&k, d, "logit_scale"), 1 / d->logit_scale); /* stored as the divisor */
    return AG_OK;
}

ag_status ag_export_gguf_put_model(ag_gguf_writer *w, const ag_description *d, ag_err *err)
{
    key_text k;
    ag_gguf_put_u32(w, key_of(&k, d, "block_count"), (uint32_t)d->L);
    ag_gguf_put_u32(w, key_of(&k, d, "context_length"), (uint32_t)d->context_length);
    ag_gguf_put_u32(w, key_of(&k, d, "embedding_length"), (uint32_t)d->C);
    ag_gguf_put_u32(w, key_of(&k, d, "feed_forward_length"), (uint32_t)d->F);
    ag_gguf_put_u32(w, key_of(&k, d, "attention.head_count"), (uint32_t)d->H);
    ag_gguf_put_u32(w, key_of(&k, d, "attention.head_count_kv"), (uint32_t)d->G);
    AG_TRY(put_rope(w, d, err));
    ag_gguf_put_f32(w, key_of(&k, d, "attention.layer_norm_rms_epsilon"), d->rms_eps);
    ag_gguf_put_u32(w, key_of(&k, d, "attention.key_length"), (uint32_t)d->D);
    ag_gguf_put_u32(w, key_of(&k, d, "attention.value_length"), (uint32_t)d->D);
    ag_gguf_put_u32(w, key_of(&k, d, "vocab_size"), (uint32_t)d->V);
    AG_TRY(put_rotates(w, d, err));
    AG_TRY(put_window(w, d, err));
    return put_scales(w, d, err);
}
