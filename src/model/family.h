/* What families of models call things: the modules of a decoder layer in transformers and llama.cpp, and how their files hold
 * weights. What a family computes is in the description (description.h), as numbers and switches.
 *
 * A module is a linear layer as transformers has it. Mostly it is one projection; where a family fuses several (Phi-3's
 * qkv_proj), their rows follow each other, and an adapter has one pair for the whole:
 *
 *     int n;
 *     const ag_linear_module *modules = ag_linear_modules_of(d, &n);
 *     for (int i = 0; i < n; i++) … modules[i].path … projections [first, first + n_parts) … */
#ifndef AG_FAMILY_H
#define AG_FAMILY_H

#include "model/description.h"

enum { AG_LINEAR_MAX_PARTS = 3 };

typedef struct {
    const char *path; /* inside a layer: "self_attn.q_proj" */
    ag_projection first;
    int n_parts; /* projections whose rows it holds, one after the other */
} ag_linear_module;

typedef struct {
    const char *model_type, *architecture; /* transformers' */
    const char *gguf;                      /* llama.cpp's general.architecture */
    bool gguf_in_pairs;                    /* q's and k's rows lie in rope pairs there (weight.h) */
    bool gguf_is_fused;                    /* its modules are fused there, too */
    const ag_linear_module *modules;       /* in the order of transformers' named_modules */
    int n_modules;
    const char *const *norms;         /* [AG_N_NORMS] paths inside a layer; NULL: no such norm */
    const char *const *other_modules; /* what else a layer holds, NULL at the end: paths that a target's name may hit */
    bool norms_from_one;              /* a norm's weight is stored as w - 1 (not in GGUF files) */
} ag_family;

/* The family of a description, by its model_type; Llama where there is none (descriptions made in memory). */
const ag_family *ag_family_of(const ag_description *d);
/* By name, or NULL. */
const ag_family *ag_family_named(const char *model_type);
/* All of them, for sentences and for GGUF files. */
const ag_family *ag_families(int *n);

const ag_linear_module *ag_linear_modules_of(const ag_description *d, int *n);
/* The module that a projection's rows belong to, and how many of the module's rows come before them. */
const ag_linear_module *ag_linear_module_of(const ag_description *d, ag_projection p);
int64_t ag_linear_row_of(const ag_description *d, ag_projection p);
/* Outputs N and inputs K of a whole module. */
void ag_linear_module_size(int64_t *N, int64_t *K, const ag_description *d, const ag_linear_module *module);
/* "q_proj": the last part of a module's path. */
const char *ag_linear_leaf(const ag_linear_module *module);
/* "q_proj, k_proj … and down_proj", for sentences; at most n - 1 bytes. */
void ag_linear_modules_text(char *out, size_t n, const ag_description *d);

#endif
