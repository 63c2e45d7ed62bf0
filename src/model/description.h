/* What a model is, as data: read from config.json or from GGUF metadata, never guessed from a name. One forward and one backward
 * serve every family that this can describe; what it cannot describe is refused, by name, before anything is loaded. */
#ifndef AG_DESCRIPTION_H
#define AG_DESCRIPTION_H

#include "base/arena.h"
#include "base/status.h"
#include "ops/swiglu/swiglu.h"

#include <stdbool.h>
#include <stdint.h>

/* The seven projections, in the order of the modules in a decoder layer. */
typedef enum { AG_PROJ_Q, AG_PROJ_K, AG_PROJ_V, AG_PROJ_O, AG_PROJ_GATE, AG_PROJ_UP, AG_PROJ_DOWN, AG_N_PROJ } ag_projection;

/* A layer's RMSNorms: before attention and before the feed-forward part, in some families also behind each (before the result
 * joins the stream), and of every head's q and k. */
typedef enum {
    AG_NORM_ATTN, AG_NORM_ATTN_POST, AG_NORM_FFN, AG_NORM_FFN_POST, /* [C] */
    AG_NORM_Q, AG_NORM_K,                                           /* [D] */
    AG_N_NORMS
} ag_norm;

/* How frequencies are scaled for contexts longer than what was trained on, as transformers' modeling_rope_utils.py does it.
 * AG_ROPE_FACTORS: a divisor for each frequency, as GGUF files store llama3's scaling. DYNAMIC and LONGROPE depend on the length
 * of the sequence. */
typedef enum {
    AG_ROPE_DEFAULT, AG_ROPE_LINEAR, AG_ROPE_LLAMA3, AG_ROPE_FACTORS, AG_ROPE_DYNAMIC, AG_ROPE_YARN, AG_ROPE_LONGROPE
} ag_rope_kind;

typedef struct {
    const char *model_type;     /* config.json's, or GGUF's general.architecture as transformers calls it: "llama" … */
    const char *architecture;   /* "LlamaForCausalLM" … */
    int64_t C;                  /* width */
    int64_t L;                  /* layers */
    int64_t H, G, D;            /* query heads, key/value heads, head dim (not always C/H) */
    int64_t F;                  /* feed-forward width */
    int64_t V;                  /* rows of the embedding */
    int64_t context_length;     /* max_position_embeddings */
    bool tied;                  /* the head is the embedding */
    float rms_eps;

    ag_rope_kind rope_kind;
    double rope_theta;
    double rope_factor;         /* linear, llama3, dynamic, yarn */
    double rope_low_freq_factor, rope_high_freq_factor; /* llama3 */
    int64_t rope_original_context;                      /* llama3, dynamic, yarn, longrope */
    double rope_beta_fast, rope_beta_slow;              /* yarn */
    bool rope_keeps_fractions;                          /* yarn: its range is not rounded to whole dimensions */
    double rope_attention_factor;                       /* yarn, longrope: on cos and sin */
    const float *rope_factors;                          /* [D/2], factors; longrope: up to the original context */
    const float *rope_long_factors;                     /* [D/2], longrope: beyond it */
    double rope_local_theta;    /* over 0: sliding layers have this theta, unscaled */
    int64_t rope_dims;          /* of a head, its first, that rotate, even; 0: all. "D" is this number in what is said of rope above */
    const bool *rotates;        /* [L]: layers with rotary positions; NULL: all */

    /* What families add to the plain Llama; the values that change nothing are given. */
    float embedding_scale;      /* 1 */
    float residual_scale;       /* 1: of what a sublayer adds to the stream */
    float attention_scale;      /* 1/sqrt(D) */
    float logit_scale;          /* 1: of the head's product */
    float attention_softcap;    /* c: scores s become c·tanh(s/c); 0: none */
    float logit_softcap;        /* the same of the logits, behind logit_scale */
    ag_gate gate;               /* AG_GATE_SILU */
    bool has_post_norms;        /* AG_NORM_ATTN_POST and AG_NORM_FFN_POST */
    bool has_qk_norm;           /* AG_NORM_Q and AG_NORM_K, before rope */
    int64_t sliding_window;     /* keys that a query sees, itself included; 0: all */
    const bool *slides;         /* [L]: layers with that window; NULL: all */
    bool has_bias[AG_N_PROJ];   /* which projections have one */

    bool is_bnb_nf4;            /* the checkpoint's projections are NF4 already (bitsandbytes) */

    int32_t bos_id, eos_id, pad_id; /* -1: none; eos_id is the first of eos_ids */
    int32_t eos_ids[16];            /* every id that ends an answer: generation_config's, then config's */
    int n_eos_ids;
} ag_description;

/* "q_proj" …; and "self_attn.q_proj" …, the path inside a layer, where no projections are fused (family.h). */
const char *ag_projection_name(ag_projection p);
const char *ag_projection_path(ag_projection p);
/* Outputs N and inputs K of a projection. */
void ag_projection_size(int64_t *N, int64_t *K, const ag_description *d, ag_projection p);

/* Values of a norm's weight, 0 where the model has no such norm. */
int64_t ag_norm_width(const ag_description *d, ag_norm norm);
/* What differs from layer to layer. */
int64_t ag_layer_window(const ag_description *d, int64_t layer);
static inline bool ag_layer_rotates(const ag_description *d, int64_t layer) { return !d->rotates || d->rotates[layer]; }
static inline bool ag_layer_is_local(const ag_description *d, int64_t layer)
{
    return d->rope_local_theta > 0 && d->slides && d->slides[layer];
}

/* Parameters of the base model, counted from the shapes (a tied head once). */
int64_t ag_description_parameters(const ag_description *d);

/* From the text of a config.json (generation_config may be NULL). AG_E_UNSUPPORTED names an architecture, rope scaling or
 * option that is not there; AG_E_FORMAT a value that is missing or makes no sense. Strings go to the arena. */
AG_MUST_USE ag_status ag_description_from_config(ag_description *out, const char *config, size_t n_config, const char *name,
                                                 const char *generation_config, size_t n_generation, ag_arena *arena, ag_err *err);
/* Checks what holds between the numbers of any source (used by the readers): D even, H a multiple of G, sizes in bounds. */
AG_MUST_USE ag_status ag_description_check(const ag_description *d, const char *name, ag_err *err);

static inline int64_t ag_rope_dims(const ag_description *d) { return d->rope_dims > 0 ? d->rope_dims : d->D; }
/* Inverse frequencies [ag_rope_dims/2] for the rope table, with the scaling applied as transformers does it (modeling_rope_utils.py), in
 * double; and the factor on cos and sin. Of a sequence of `length` tokens, which matters to dynamic and longrope beyond
 * rope_original_context; 0 is a short one. */
void ag_description_rope(double *freq, double *mscale, const ag_description *d, int64_t length);
/* The same of the local layers (rope_local_theta). */
void ag_description_rope_local(double *freq, const ag_description *d);
/* Sequences of equal ages have equal frequencies: 0 up to the original context or where length does not matter; 1 beyond it
 * (longrope); the length itself (dynamic). */
int64_t ag_rope_age(const ag_description *d, int64_t length);

#endif
