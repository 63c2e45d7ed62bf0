/* What a model is, read from GGUF metadata: a general.architecture of family.h with the keys that llama.cpp's converter writes.
 * Whether the head is tied, which projections have a bias and how many rows the vocabulary has is seen from the tensors. */
#ifndef AG_DESCRIPTION_GGUF_H
#define AG_DESCRIPTION_GGUF_H

#include "format/gguf.h"
#include "model/family.h"

/* Patterns of layers that llama.cpp knows by the architecture alone: every so many layers SmolLM3's have no rotary positions,
 * and Gemma's see all keys. */
enum { AG_GGUF_SMOLLM3_PERIOD = 4, AG_GGUF_GEMMA2_PERIOD = 2, AG_GGUF_GEMMA3_PERIOD = 6 };

/* Errors as ag_description_from_config. Strings and rope_factors go to the arena. */
AG_MUST_USE ag_status ag_description_from_gguf(ag_description *out, const ag_gguf *g, ag_arena *arena, ag_err *err);
/* The part of tensor names in a layer: "attn_q" … "ffn_down"; "attn_qkv" and "ffn_up" of fused modules; "attn_norm" …. */
const char *ag_projection_gguf_name(ag_projection p);
const char *ag_linear_gguf_name(const ag_linear_module *module);
const char *ag_norm_gguf_name(ag_norm norm);
/* Tensors that the description takes in: "rope_freqs.weight", "rope_factors_long.weight" and "rope_factors_short.weight". */
bool ag_gguf_is_rope_tensor(const char *name);
/* llama.cpp's rule for the scale of attention in Gemma 2 and 3, which no key tells. */
double ag_gguf_gemma_attention_scale(const ag_description *d);

#endif
