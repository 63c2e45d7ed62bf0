/* A LoRA adapter in memory: for each targeted projection a pair A [R,K], B [N,R], all of them views into one flat array of f32.
 *
 *     ag_adapter a;
 *     AG_TRY(ag_adapter_plan(&a, &model->d, &config, &arena, err));          // a.n_params is known, nothing large allocated
 *     float *params = ag_layout_place(&l, a.n_params * sizeof *params), *grads = …, *m = …, *v = …;
 *     ag_adapter_bind(&a, params, grads);                                    // a.layers now is what ag_decoder takes
 *     ag_adapter_draw(&a, seed);
 *
 * The arrays belong to the caller. Their order is that of PEFT's named_parameters: layer by layer, q k v o gate up down, A before
 * B; one position is one number, so gradients and the optimizer's two moments are arrays of the same shape. The arena holds the
 * tables and texts. */
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

/* A value for the modules that a name selects (targets.h), instead of the config's. */
typedef struct {
    const char *name;
    double value;
} ag_lora_override;

typedef struct {
    int64_t r;               /* 1..AG_LORA_MAX_R */
    double alpha;            /* finite, over 0 */
    double dropout;          /* of the pairs' input, 0 <= p < 1 */
    bool rslora;             /* scale alpha/sqrt(r) instead of alpha/r */
    const char *const *targets; /* names as ag_targets_of_names takes them … */
    size_t n_targets;
    const char *pattern;     /* … or, where not NULL, a pattern as ag_targets_of_pattern takes it */
    const int64_t *layers;   /* names select in these layers only (layers_to_transform) … */
    size_t n_layers;         /* … 0: in all */
    const ag_lora_override *ranks, *alphas; /* rank_pattern and alpha_pattern; the first that selects a module counts */
    size_t n_ranks, n_alphas;
} ag_lora_config;

typedef struct {
    int64_t layer;
    ag_projection projection;
    int64_t R, K, N;
    float scale;
    size_t a, b; /* where A [R,K] and B [N,R] begin in the flat arrays */
} ag_adapter_pair;

typedef struct {
    ag_lora_config config;
    int64_t L;
    ag_adapter_pair *pairs; /* [n_pairs], in the order of the arrays */
    size_t n_pairs;
    size_t n_params;        /* numbers in each of the flat arrays */
    float *params, *grads;  /* as bound; grads NULL where nothing is trained */
    ag_layer_lora *layers;  /* [L] views for the decoder, filled by ag_adapter_bind */
} ag_adapter;

/* AG_E_CONFIG for numbers out of range and for targets (targets.h). Texts are copied to the arena. */
AG_MUST_USE ag_status ag_adapter_plan(ag_adapter *out, const ag_description *d, const ag_lora_config *config, ag_arena *arena,
                                      ag_err *err);
/* n_params numbers each; grads may be NULL. */
void ag_adapter_bind(ag_adapter *adapter, float *params, float *grads);

/* New pairs as PEFT makes them: A uniform in ±1/sqrt(K) (kaiming_uniform with a = sqrt 5), B zero. The numbers are those that
 * get_peft_model gives right after torch.manual_seed(seed): for each pair torch draws A and B as new Linear layers, then A
 * again. */
void ag_adapter_draw(ag_adapter *adapter, uint64_t seed);

/* Names of a pair's tensors in an adapter file: "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight". */
enum { AG_ADAPTER_NAME_MAX = 128 };
void ag_adapter_tensor_name(char out[AG_ADAPTER_NAME_MAX], const ag_adapter_pair *pair, char a_or_b);

#endif
