/* Which type each tensor of a GGUF file gets: llama.cpp's recipes (llama-quant.cpp, facts only), so that files are as large and as good as
 * those that its own quantizer makes.
 *
 * Vectors stay f32. In quantized files the head, and an embedding that is the head, get q6_k. In q4_k_m and q5_k_m attn_v and ffn_down
 * get q6_k in the first and last eighth of the layers and in every third between. Where a row is no multiple of the type's block:
 * q4_k becomes q5_0, q5_k q5_1, q6_k q8_0, and where that does not fit either (no multiple of 32), f16. */
#ifndef AG_GGUF_RECIPE_H
#define AG_GGUF_RECIPE_H

#include "model/description.h"
#include "ops/weight/weight.h"

/*    recipe              name      most weights  general.file_type */
#define AG_GGUF_RECIPES(X)                        \
    X(AG_RECIPE_F32,      "f32",    AG_W_F32,   0) \
    X(AG_RECIPE_F16,      "f16",    AG_W_F16,   1) \
    X(AG_RECIPE_BF16,     "bf16",   AG_W_BF16, 32) \
    X(AG_RECIPE_Q8_0,     "q8_0",   AG_W_Q8_0,  7) \
    X(AG_RECIPE_Q4_0,     "q4_0",   AG_W_Q4_0,  2) \
    X(AG_RECIPE_Q4_K_M,   "q4_k_m", AG_W_Q4_K, 15) \
    X(AG_RECIPE_Q5_K_M,   "q5_k_m", AG_W_Q5_K, 17) \
    X(AG_RECIPE_Q6_K,     "q6_k",   AG_W_Q6_K, 18)

typedef enum {
#define X(recipe, name, type, file_type) recipe,
    AG_GGUF_RECIPES(X)
#undef X
    AG_N_GGUF_RECIPES
} ag_gguf_recipe;

const char *ag_gguf_recipe_name(ag_gguf_recipe recipe);
AG_MUST_USE ag_status ag_gguf_recipe_parse(ag_gguf_recipe *out, const char *name, ag_err *err);
uint32_t ag_gguf_recipe_file_type(ag_gguf_recipe recipe);
ag_weight_type ag_gguf_recipe_base(ag_gguf_recipe recipe); /* that most weights have */
/* The type of a matrix by its name in the file ("blk.3.attn_v.weight"), with rows of K weights. */
ag_weight_type ag_gguf_recipe_type(ag_gguf_recipe recipe, const char *name, int64_t K, const ag_description *d);

#endif
