/* What the readers of config.json share. */
#ifndef AG_DESCRIPTION_INTERNAL_H
#define AG_DESCRIPTION_INTERNAL_H

#include "base/json.h"
#include "model/family.h"

/* What a family's config leaves out or says in its own way, as transformers' configuration_<family>.py has it. */
typedef struct {
    const char *model_type;
    double rope_theta;        /* where the config has none */
    bool has_local_rope;      /* rope_parameters by layer type, or rope_local_base_freq */
    bool may_rotate_a_part;   /* partial_rotary_factor: the first dimensions of a head */
    bool yarn_means_longrope; /* Phi-3's early name for it, and "su" */
    int64_t original_context; /* original_max_position_embeddings where the config has none; 0: its context */
} ag_rope_rules;

/* rope_parameters (transformers 5) or rope_scaling beside rope_theta (before). Sizes and context are in d already. */
AG_MUST_USE ag_status ag_config_read_rope(ag_description *d, const ag_rope_rules *rules, json_t *root, const char *name,
                                          ag_arena *arena, ag_err *err);

#endif
