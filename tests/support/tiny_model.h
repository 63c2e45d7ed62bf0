/* A tiny model made in memory from a seed, with every projection wide enough to show a wrong transpose (no two sizes alike), and
 * adapters beside some of its projections. */
#ifndef AG_TEST_TINY_MODEL_H
#define AG_TEST_TINY_MODEL_H

#include "base/arena.h"
#include "model/decoder.h"

typedef struct {
    ag_arena arena;
    ag_model model;
    ag_layer_lora *lora; /* [L] */
    float *params, *grads; /* all A and B, flat, in module order */
    int64_t n_params;
} tiny_model;

/* residual_scale and the other scalars are away from 1, so that a forgotten one shows. R = 0: no adapter. */
tiny_model tiny_model_create(uint32_t seed, int64_t L, int64_t R);
/* Wide enough for what narrow sums hide: many rows at once and few have different last bits, and so have queries of a block's end. */
tiny_model tiny_model_create_wide(uint32_t seed, int64_t L, int64_t R);
/* The same with what further families have: norms of heads and behind sublayers, GELU, softcaps, layers with a window and a rope of their
 * own, a layer without rope. Needs L = 3. */
tiny_model tiny_model_create_with_everything(uint32_t seed, int64_t R);
void tiny_model_free(tiny_model *tiny);

#endif
