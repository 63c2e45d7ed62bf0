/* An adapter in memory, as PEFT's LoraConfig describes one: LoRA pairs A [R,K], B [N,R] beside linear modules and the embedding, DoRA's
 * magnitudes, trained biases, and full copies of modules (modules_to_save). All of them are views into one flat array of f32.
 *
 *     ag_adapter a;
 *     AG_TRY(ag_adapter_plan(&a, &model->d, &config, &arena, err));          // a.n_params is known, nothing large allocated
 *     float *params = ag_layout_place(&l, a.n_params * sizeof *params), *grads = …, *m = …, *v = …;
 *     ag_adapter_bind(&a, params, grads);
 *     ag_adapter_attach(&a, model);                                          // a.model: the base with what is trained in its place
 *     AG_TRY(ag_adapter_draw(&a, model, seed, n_threads, err));
 *     ag_decoder_options o = {.backend = …};  ag_adapter_use(&o, &a);        // .model, .lora, .embed_lora, .grads
 *
 * The arrays belong to the caller. Their order is that of PEFT's named_parameters: embedding, layer by layer the modules and norms, final
 * norm, head; within a module bias, A, B, magnitude. One position is one number, so gradients and the optimizer's two
 * moments are arrays of the same shape. The arena holds the tables and texts.
 *
 * Tied models: a copy of the embedding or of the head unties them, as in PEFT; the other keeps the base's table. A pair beside a tied
 * embedding leaves the head at the base's table, too. a.model.d.tied says so, and an export writes both. */
#ifndef AG_ADAPTER_H
#define AG_ADAPTER_H

#include "adapter/targets.h"
#include "base/arena.h"
#include "base/status.h"
#include "model/decoder.h"
#include "model/description.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A value for the modules that a key selects (ag_targets_first_keys), instead of the config's. */
typedef struct {
    const char *name;
    double value;
} ag_lora_override;

typedef enum { AG_BIAS_NONE, AG_BIAS_ALL, AG_BIAS_LORA_ONLY } ag_bias_mode;

/* Lists and patterns: ag_target_rules (targets.h), by whose names they go. */
typedef struct {
    int64_t r;               /* 1..AG_LORA_MAX_R */
    double alpha;            /* finite, over 0 */
    double dropout;          /* of the pairs' input, 0 <= p < 1 */
    bool rslora;             /* scale alpha/sqrt(r) instead of alpha/r */
    bool dora;               /* magnitudes beside projections; the embedding cannot have one */
    ag_bias_mode bias;       /* which of the base's biases are trained: none, all, those of modules with a pair */
    const char *const *targets;
    size_t n_targets;
    const char *pattern;
    const char *const *exclude;
    size_t n_exclude;
    const char *exclude_pattern;
    const int64_t *layers;
    size_t n_layers;
    const char *const *layers_patterns;
    size_t n_layers_patterns;
    const char *const *modules_to_save;
    size_t n_modules_to_save;
    const ag_lora_override *ranks, *alphas; /* rank_pattern and alpha_pattern; the first that selects a module counts */
    size_t n_ranks, n_alphas;
} ag_lora_config;

typedef struct {
    int64_t layer;                  /* -1: the embedding's */
    const ag_linear_module *linear; /* NULL: the embedding's. Fused projections have one pair: A is theirs together, B has all their rows */
    int64_t R, K, N;                /* beside the embedding K = V, N = C */
    float scale;
    bool is_dora;
    size_t a, b, magnitude; /* where A [R,K], B [N,R] and the magnitude [N] begin in the flat arrays */
} ag_adapter_pair;

typedef enum {
    AG_TRAINED_A, AG_TRAINED_B, AG_TRAINED_MAGNITUDE,
    AG_TRAINED_BIAS,                      /* the base's own, of a module that is not saved … */
    AG_TRAINED_BASE_BIAS,                 /* … and has a pair, for which PEFT names it otherwise */
    AG_TRAINED_COPY, AG_TRAINED_COPY_BIAS /* weight and bias of a module in modules_to_save */
} ag_trained_kind;

/* A trained tensor. */
typedef struct {
    ag_trained_kind kind;
    ag_module module;
    int rank;
    int64_t dim[2];
    size_t at, n; /* where it begins in the flat arrays, its numbers */
    bool decays;  /* whether transformers' Trainer applies weight decay to it: not to biases and norms */
    float offset; /* what is added to the file's numbers: 1 for norms of families that store w - 1 (Gemma); here a norm is as it multiplies */
} ag_trained;

typedef struct {
    ag_lora_config config;
    int64_t L, rows[AG_N_PROJ]; /* outputs of the projections */
    ag_adapter_pair *pairs; /* [n_pairs], in the order of the arrays */
    size_t n_pairs;
    ag_trained *trained;    /* [n_trained], in the order of the arrays, without holes */
    size_t n_trained;
    size_t n_params;        /* numbers in each of the flat arrays */
    bool is_plain;          /* nothing but pairs beside projections: needs neither model nor embed */
    float *params, *grads;  /* as bound; grads NULL where nothing is trained */

    ag_layer_lora *layers;  /* [L] views for the decoder, filled by ag_adapter_bind */
    ag_lora_view embed;     /* R = 0: no pair beside the embedding */
    ag_model_grads model_grads;
    ag_model model;         /* after ag_adapter_attach: the base, with the trained tensors in the place of its own */
    bool is_attached;
} ag_adapter;

/* AG_E_CONFIG for numbers out of range and for targets (targets.h), AG_E_UNSUPPORTED for DoRA beside the embedding. Texts are copied to
 * the arena. */
AG_MUST_USE ag_status ag_adapter_plan(ag_adapter *out, const ag_description *d, const ag_lora_config *config, ag_arena *arena,
                                      ag_err *err);
/* n_params numbers each; grads may be NULL. Copies of an adapter share the views: bind the one that is used. */
void ag_adapter_bind(ag_adapter *adapter, float *params, float *grads);
/* Views that have shapes and say what is trained, without numbers: enough for ag_decoder_plan. */
void ag_adapter_bind_shapes(ag_adapter *adapter);
/* After bind. The base must be the model that was planned for, and must outlive the adapter. */
void ag_adapter_attach(ag_adapter *adapter, const ag_model *base);
/* Sets model (where attached), lora, embed_lora and grads. */
void ag_adapter_use(ag_decoder_options *options, const ag_adapter *adapter);

/* New numbers as PEFT makes them: A uniform in ±1/sqrt(K) (kaiming_uniform with a = sqrt 5), B zero; beside the embedding A zero, B
 * normal; magnitudes the rows' lengths, biases and copies the base's. They are those that get_peft_model gives right after
 * torch.manual_seed(seed): for each pair torch draws A and B as new Linear layers, then A again (the embedding's normal numbers to the
 * last bits, for torch's vectorized logarithm and sine are its own). base may be NULL where the adapter is plain and not DoRA.
 * AG_E_NUMERIC where a row of DoRA has no length. */
AG_MUST_USE ag_status ag_adapter_draw(ag_adapter *adapter, const ag_model *base, uint64_t seed, int n_threads, ag_err *err);

/* The tensor's name in an adapter file: "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight". */
enum { AG_ADAPTER_NAME_MAX = 160 };
void ag_adapter_trained_name(char out[AG_ADAPTER_NAME_MAX], const ag_trained *t);
/* The same of a pair beside a linear module. */
void ag_adapter_tensor_name(char out[AG_ADAPTER_NAME_MAX], const ag_adapter_pair *pair, char a_or_b);

#endif
