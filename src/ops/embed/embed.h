/* Token embedding: x[t] = scale · W[ids[t]], the row decoded to f32. The table is frozen, so there is no backward. T may be 0. */
#ifndef AG_EMBED_H
#define AG_EMBED_H

#include "base/status.h"
#include "ops/tensor.h"
#include "ops/weight/weight.h"

struct ag_backend;

typedef struct {
    ag_tensor x;        /* out [T,C] f32 */
    ag_tensor ids;      /* in [T] i32; an id outside 0..V-1 is AG_E_DATA, naming id and place */
    const ag_weight *w; /* [V,C] */
    float scale;        /* 1 usually */
} ag_embed_args;

AG_MUST_USE ag_status ag_embed(const struct ag_backend *be, const ag_embed_args *args, ag_err *err);

#endif
