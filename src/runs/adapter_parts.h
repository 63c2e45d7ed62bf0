/* Between adapter_check.c and its parts: the config as a checked struct, the base's modules, the tensors of a weights file. */
#ifndef AG_ADAPTER_PARTS_H
#define AG_ADAPTER_PARTS_H

#include "base/arena.h"
#include "base/status.h"
#include "model/description.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- adapter_config.json (lora_config_check.c) ------------------------------------------------------------------------- */
typedef struct {
    const char *name;
    int64_t r;
} ag_rank_override;

typedef struct {
    const char *base_model, *revision;
    int64_t r;
    bool use_dora;
    const char *pattern;          /* target_modules as a text, or … */
    const char **targets;         /* … as a list */
    size_t n_targets;
    const char *excluded_pattern; /* exclude_modules, likewise */
    const char **excluded;
    size_t n_excluded;
    int64_t *layers;              /* layers_to_transform */
    size_t n_layers;
    ag_rank_override *ranks;      /* rank_pattern, in the file's order */
    size_t n_ranks;
} ag_lora_facts;

/* Fills base_model and revision as far as they can be read, whatever it returns. */
AG_MUST_USE ag_status ag_lora_facts_load(ag_lora_facts *out, const char *dir, const char *shown, ag_arena *arena, ag_err *err);

/* ---- modules of the base (base_modules.c) -------------------------------------------------------------------------------- */
typedef struct {
    char *name;       /* "model.layers.0.self_attn.q_proj" */
    int64_t in, out;
    int64_t layer;    /* -1: in none */
    bool is_embedding; /* the input embedding, whose pair is lora_embedding_A and _B */
    bool is_edge;     /* the embedding or the head: its base_layer.weight may lie beside the pair */
} ag_base_module;

/* Those that target_modules selects, in the base's order. AG_E_CONFIG where a name or pattern selects nothing, or something that can
 * carry no adapter. */
AG_MUST_USE ag_status ag_base_modules_select(ag_base_module **out, size_t *n, const ag_lora_facts *facts, const ag_description *d,
                                             ag_arena *arena, ag_err *err);
int64_t ag_lora_rank_of(const ag_lora_facts *facts, const char *module);

/* ---- tensors of a weights file (adapter_check.c) --------------------------------------------------------------------------- */
typedef struct {
    const char *name;
    bool is_floating, is_taken;
    int rank;
    int64_t dim[8];
} ag_adapter_tensor;

#endif
