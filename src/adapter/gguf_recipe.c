#include "adapter/gguf_recipe.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    ag_weight_type type;
    uint32_t file_type;
} recipes[AG_N_GGUF_RECIPES] = {
#define X(recipe, name_, type_, file_type_) [recipe] = {.name = name_, .type = type_, .file_type = file_type_},
    AG_GGUF_RECIPES(X)
#undef X
};

const char *ag_gguf_recipe_name(ag_gguf_recipe recipe) { return recipes[recipe].name; }
uint32_t ag_gguf_recipe_file_type(ag_gguf_recipe recipe) { return recipes[recipe].file_type; }
ag_weight_type ag_gguf_recipe_base(ag_gguf_recipe recipe) { return recipes[recipe].type; }

ag_status ag_gguf_recipe_parse(ag_gguf_recipe *out, const char *name, ag_err *err)
{
    for (int i = 0; i < AG_N_GGUF_RECIPES; i++)
        if (strcmp(name, recipes[i].name) == 0) {
            *out = (ag_gguf_recipe)i;
            return AG_OK;
        }
    return ag_fail(err, AG_E_USAGE, "'%s' is no type of a GGUF file; there are"
#define X(recipe, name_, type, file_type) " " name_
                   AG_GGUF_RECIPES(X)
#undef X
                   , name);
}

/* The layers in which the mixes spend more bits. */
static bool is_sensitive_layer(int64_t layer, int64_t n_layers)
{
    return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

/* What llama.cpp takes for a 70B model, whose small attn_v serves eight query heads: never below q5_k. */
static bool is_llama_70b(const ag_description *d) { return d->L == 80 && d->H != d->G; }

static ag_weight_type in_layer(ag_gguf_recipe recipe, const char *name, const ag_description *d)
{
    const ag_weight_type base = recipes[recipe].type;
    const char *part = strchr(name + strlen("blk."), '.');
    int layer = 0;
    if ((recipe != AG_RECIPE_Q4_K_M && recipe != AG_RECIPE_Q5_K_M) || !part || sscanf(name, "blk.%d.", &layer) != 1) return base;
    const bool is_v = ag_str_starts(part, ".attn_v.") || ag_str_starts(part, ".attn_qkv.");
    if ((is_v || ag_str_starts(part, ".ffn_down.")) && is_sensitive_layer(layer, d->L)) return AG_W_Q6_K;
    return is_v && base == AG_W_Q4_K && is_llama_70b(d) ? AG_W_Q5_K : base;
}

static bool fits(ag_weight_type type, int64_t K) { return K % ag_weight_block_weights(type) == 0; }

ag_weight_type ag_gguf_recipe_type(ag_gguf_recipe recipe, const char *name, int64_t K, const ag_description *d)
{
    ag_weight_type type = recipes[recipe].type;
    const bool is_head = strcmp(name, "output.weight") == 0 || (d->tied && strcmp(name, "token_embd.weight") == 0);
    if (type == AG_W_F32 || type == AG_W_F16 || type == AG_W_BF16) return type;
    if (is_head)
        type = !fits(type, K) ? AG_W_Q8_0 : type == AG_W_Q8_0 ? type : AG_W_Q6_K;
    else if (ag_str_starts(name, "blk."))
        type = in_layer(recipe, name, d);
    if (fits(type, K)) return type;
    type = type == AG_W_Q4_K ? AG_W_Q5_0 : type == AG_W_Q5_K ? AG_W_Q5_1 : type == AG_W_Q6_K ? AG_W_Q8_0 : type;
    return fits(type, K) ? type : AG_W_F16;
}
