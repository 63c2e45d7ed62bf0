#include "model/family.h"

#include <stdio.h>
#include <string.h>

static const ag_linear_module plain_modules[] = {
    {"self_attn.q_proj", AG_PROJ_Q, 1}, {"self_attn.k_proj", AG_PROJ_K, 1}, {"self_attn.v_proj", AG_PROJ_V, 1},
    {"self_attn.o_proj", AG_PROJ_O, 1}, {"mlp.gate_proj", AG_PROJ_GATE, 1}, {"mlp.up_proj", AG_PROJ_UP, 1},
    {"mlp.down_proj", AG_PROJ_DOWN, 1},
};
static const ag_linear_module phi3_modules[] = {
    {"self_attn.o_proj", AG_PROJ_O, 1},
    {"self_attn.qkv_proj", AG_PROJ_Q, 3},
    {"mlp.gate_up_proj", AG_PROJ_GATE, 2},
    {"mlp.down_proj", AG_PROJ_DOWN, 1},
};
static const ag_linear_module granite_hybrid_modules[] = {
    {"shared_mlp.input_linear", AG_PROJ_GATE, 2}, {"shared_mlp.output_linear", AG_PROJ_DOWN, 1},
    {"self_attn.q_proj", AG_PROJ_Q, 1},           {"self_attn.k_proj", AG_PROJ_K, 1},
    {"self_attn.v_proj", AG_PROJ_V, 1},           {"self_attn.o_proj", AG_PROJ_O, 1},
};
#define MODULES(list) .modules = list, .n_modules = sizeof list / sizeof *list

static const char *const plain_norms[AG_N_NORMS] = {
    [AG_NORM_ATTN] = "input_layernorm",
    [AG_NORM_FFN] = "post_attention_layernorm",
    [AG_NORM_Q] = "self_attn.q_norm",
    [AG_NORM_K] = "self_attn.k_norm",
};
static const char *const sandwich_norms[AG_N_NORMS] = {
    [AG_NORM_ATTN] = "input_layernorm",
    [AG_NORM_ATTN_POST] = "post_attention_layernorm",
    [AG_NORM_FFN] = "pre_feedforward_layernorm",
    [AG_NORM_FFN_POST] = "post_feedforward_layernorm",
    [AG_NORM_Q] = "self_attn.q_norm",
    [AG_NORM_K] = "self_attn.k_norm",
};

static const char *const plain_others[] = {"",  "self_attn", "mlp", "mlp.act_fn", "input_layernorm", "post_attention_layernorm",
                                           NULL};
static const char *const qwen3_others[] = {"",    "self_attn",  "self_attn.q_norm", "self_attn.k_norm",
                                           "mlp", "mlp.act_fn", "input_layernorm",  "post_attention_layernorm",
                                           NULL};
static const char *const phi3_others[] = {"",
                                          "self_attn",
                                          "mlp",
                                          "mlp.activation_fn",
                                          "input_layernorm",
                                          "post_attention_layernorm",
                                          "resid_attn_dropout",
                                          "resid_mlp_dropout",
                                          NULL};
static const char *const granite_hybrid_others[] = {
    "", "self_attn", "shared_mlp", "shared_mlp.activation", "input_layernorm", "post_attention_layernorm", NULL};
#define GEMMA_OTHERS                                                                                                  \
    "", "self_attn", "mlp", "mlp.act_fn", "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", \
        "post_feedforward_layernorm"
static const char *const gemma2_others[] = {GEMMA_OTHERS, NULL};
static const char *const gemma3_others[] = {GEMMA_OTHERS, "self_attn.q_norm", "self_attn.k_norm", NULL};
#define PLAIN MODULES(plain_modules), .norms = plain_norms, .other_modules = plain_others
#define GEMMA MODULES(plain_modules), .norms = sandwich_norms, .norms_from_one = true

/* llama.cpp has no architecture of its own for Mistral and for Granite 4's dense form; where several families share one, a GGUF
 * file is read as the first. */
static const ag_family families[] = {
    {.model_type = "llama", .architecture = "LlamaForCausalLM", .gguf = "llama", .gguf_in_pairs = true, PLAIN},
    {.model_type = "mistral", .architecture = "MistralForCausalLM", .gguf = "llama", .gguf_in_pairs = true, PLAIN},
    {.model_type = "smollm3", .architecture = "SmolLM3ForCausalLM", .gguf = "smollm3", .gguf_in_pairs = true, PLAIN},
    {.model_type = "minicpm", .architecture = "MiniCPMForCausalLM", .gguf = "minicpm", .gguf_in_pairs = true, PLAIN},
    {.model_type = "granite", .architecture = "GraniteForCausalLM", .gguf = "granite", .gguf_in_pairs = true, PLAIN},
    {.model_type = "granitemoehybrid",
     .architecture = "GraniteMoeHybridForCausalLM",
     .gguf = "granite",
     .gguf_in_pairs = true,
     MODULES(granite_hybrid_modules),
     .norms = plain_norms,
     .other_modules = granite_hybrid_others},
    {.model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .gguf = "qwen2", PLAIN},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .gguf = "qwen3",
     MODULES(plain_modules),
     .norms = plain_norms,
     .other_modules = qwen3_others},
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .gguf = "phi3",
     .gguf_is_fused = true,
     MODULES(phi3_modules),
     .norms = plain_norms,
     .other_modules = phi3_others},
    {.model_type = "gemma2", .architecture = "Gemma2ForCausalLM", .gguf = "gemma2", .other_modules = gemma2_others, GEMMA},
    {.model_type = "gemma3_text", .architecture = "Gemma3ForCausalLM", .gguf = "gemma3", .other_modules = gemma3_others, GEMMA},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

const char *ag_projection_path(ag_projection p) { return plain_modules[p].path; }
const char *ag_projection_name(ag_projection p) { return ag_linear_leaf(&plain_modules[p]); }

const ag_family *ag_families(int *n)
{
    *n = N_FAMILIES;
    return families;
}

const ag_family *ag_family_named(const char *model_type)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].model_type, model_type) == 0) return &families[i];
    return NULL;
}

const ag_family *ag_family_of(const ag_description *d)
{
    const ag_family *f = d->model_type ? ag_family_named(d->model_type) : NULL;
    return f ? f : &families[0];
}

const ag_linear_module *ag_linear_modules_of(const ag_description *d, int *n)
{
    const ag_family *f = ag_family_of(d);
    *n = f->n_modules;
    return f->modules;
}

const ag_linear_module *ag_linear_module_of(const ag_description *d, ag_projection p)
{
    const ag_family *f = ag_family_of(d);
    const ag_linear_module *m = f->modules;
    while (p < m->first || p >= m->first + m->n_parts) m++;
    return m;
}

int64_t ag_linear_row_of(const ag_description *d, ag_projection p)
{
    int64_t row = 0, N, K;
    for (ag_projection before = ag_linear_module_of(d, p)->first; before < p; before++) {
        ag_projection_size(&N, &K, d, before);
        row += N;
    }
    return row;
}

void ag_linear_module_size(int64_t *N, int64_t *K, const ag_description *d, const ag_linear_module *module)
{
    int64_t rows = 0;
    for (int i = 0; i < module->n_parts; i++) {
        ag_projection_size(N, K, d, module->first + (ag_projection)i);
        rows += *N;
    }
    *N = rows;
}

const char *ag_linear_leaf(const ag_linear_module *module) { return strrchr(module->path, '.') + 1; }

void ag_linear_modules_text(char *out, size_t n, const ag_description *d)
{
    int n_modules;
    const ag_linear_module *modules = ag_linear_modules_of(d, &n_modules);
    size_t at = 0;
    for (int i = 0; i < n_modules && at < n; i++) {
        const char *between = i == 0 ? "" : i + 1 < n_modules ? ", " : " and ";
        at += (size_t)snprintf(out + at, n - at, "%s%s", between, ag_linear_leaf(&modules[i]));
    }
}
