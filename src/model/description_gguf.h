/* What a model is, read from GGUF metadata: general.architecture llama, granite or qwen2 with the keys that llama.cpp's
 * converter writes. Whether the head is tied, which projections have a bias and how many rows the vocabulary has is seen from
 * the tensors. */
#ifndef AG_DESCRIPTION_GGUF_H
#define AG_DESCRIPTION_GGUF_H

#include "format/gguf.h"
#include "model/description.h"

/* Errors as ag_description_from_config. Strings and rope_factors go to the arena. */
AG_MUST_USE ag_status ag_description_from_gguf(ag_description *out, const ag_gguf *g, ag_arena *arena, ag_err *err);
/* Whether this architecture's files store the rows of q and k in pairs (see weight.h, rope_pairs_head_dim). */
bool ag_gguf_rope_in_pairs(const ag_description *d);
/* The part of a projection's tensor names: "attn_q" … "ffn_down". */
const char *ag_projection_gguf_name(ag_projection p);

#endif
