/* The modules of a model by transformers' names: what an adapter can name.
 *
 *     for (int64_t i = 0; i < ag_modules_count(d); i++) { const ag_module m = ag_modules_get(d, i); … m.path … }
 *
 * A path is transformers' own, "model.layers.3.self_attn.q_proj"; the order that of its named_modules, which is that of PEFT's parameters. */
#ifndef AG_MODULES_H
#define AG_MODULES_H

#include "model/family.h"

typedef enum {
    AG_MODULE_LINEAR, AG_MODULE_EMBED, AG_MODULE_HEAD, AG_MODULE_NORM, AG_MODULE_FINAL_NORM,
    AG_MODULE_OTHER /* what has no weights of its own: containers, activations */
} ag_module_kind;

enum { AG_MODULE_PATH_MAX = 96 };
typedef struct {
    ag_module_kind kind;
    int64_t layer;                  /* -1: in none */
    const ag_linear_module *linear; /* of AG_MODULE_LINEAR: one projection, or several that are fused */
    ag_norm norm;                   /* of AG_MODULE_NORM */
    char path[AG_MODULE_PATH_MAX];
} ag_module;

int64_t ag_modules_count(const ag_description *d);
ag_module ag_modules_get(const ag_description *d, int64_t i);

/* Rows N and columns K of the module's weight; K is 0 for a vector of N (a norm). */
void ag_module_size(int64_t *N, int64_t *K, const ag_module *m, const ag_description *d);
static inline bool ag_module_is_norm(const ag_module *m) { return m->kind == AG_MODULE_NORM || m->kind == AG_MODULE_FINAL_NORM; }

#endif
