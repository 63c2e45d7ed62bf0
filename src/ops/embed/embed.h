/* Token embedding: x[t] = scale · W[ids[t]], the row decoded to f32. The table is frozen, so there is no backward (grad.h has that of a
 * trained table). T may be 0.
 *
 * A LoRA pair beside the table (PEFT's lora_embedding_A [R,V], lora_embedding_B [C,R], no dropout) adds to it:
 *     x[t] += s · B·A[:,ids[t]]
 * Backward, with d = dx:      dB[c,r] += s · Σ_t d[t,c]·A[r,ids[t]]      dA[r,ids[t]] += s · Σ_c d[t,c]·B[c,r] */
#ifndef AG_EMBED_H
#define AG_EMBED_H

#include "base/status.h"
#include "ops/tensor.h"
#include "ops/weight/weight.h"

#include <stddef.h>

struct ag_backend;

typedef struct {
    ag_tensor x;        /* out [T,C] f32 */
    ag_tensor ids;      /* in [T] i32; an id outside 0..V-1 is AG_E_DATA, naming id and place */
    const ag_weight *w; /* [V,C] */
    float scale;        /* 1 usually */
} ag_embed_args;

AG_MUST_USE ag_status ag_embed(const struct ag_backend *be, const ag_embed_args *args, ag_err *err);

typedef struct {
    ag_tensor x;     /* forward: += [T,C]; backward: in, dx */
    ag_tensor ids;   /* in [T] i32, within the table (an assertion) */
    ag_tensor a, b;  /* in [R,V], [C,R] f32 */
    ag_tensor da, db; /* backward: += the same shapes */
    float scale;     /* s, times the embedding's own */
} ag_embed_lora_args;
/* Bytes of backend scratch for backward with at most T tokens. */
size_t ag_embed_lora_scratch_bytes(int64_t T, int64_t R);
AG_MUST_USE ag_status ag_embed_lora_fwd(const struct ag_backend *be, const ag_embed_lora_args *args, ag_err *err);
AG_MUST_USE ag_status ag_embed_lora_bwd(const struct ag_backend *be, const ag_embed_lora_args *args, ag_err *err);

/* NEFTune (Jain et al. 2023): x [T,C] += noise, uniform in ±magnitude. A number is a function of (key, site, its index) alone, so that
 * the same step has the same noise whenever it is taken. */
AG_MUST_USE ag_status ag_embed_noise(const struct ag_backend *be, ag_tensor x, float magnitude, uint64_t key, uint64_t site, ag_err *err);

#endif
