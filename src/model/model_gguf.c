/* A GGUF file: description, and tensors by llama.cpp's names. */
#include "model/model_internal.h"

#include "model/description_gguf.h"

#include <string.h>

typedef struct {
    ag_model *m;
    ag_gguf *g;
    ag_arena *arena;
    size_t n_taken;
    int64_t weights_of_type[AG_N_WEIGHT_TYPES]; /* of the matrices, for the report */
} reader;

static bool weight_type(ag_weight_type *out, uint32_t ggml_type)
{
    switch (ggml_type) {
    case AG_GGML_F32: *out = AG_W_F32; return true;
    case AG_GGML_F16: *out = AG_W_F16; return true;
    case AG_GGML_BF16: *out = AG_W_BF16; return true;
    case AG_GGML_Q4_0: *out = AG_W_Q4_0; return true;
    case AG_GGML_Q4_1: *out = AG_W_Q4_1; return true;
    case AG_GGML_Q5_0: *out = AG_W_Q5_0; return true;
    case AG_GGML_Q5_1: *out = AG_W_Q5_1; return true;
    case AG_GGML_Q8_0: *out = AG_W_Q8_0; return true;
    case AG_GGML_Q2_K: *out = AG_W_Q2_K; return true;
    case AG_GGML_Q3_K: *out = AG_W_Q3_K; return true;
    case AG_GGML_Q4_K: *out = AG_W_Q4_K; return true;
    case AG_GGML_Q5_K: *out = AG_W_Q5_K; return true;
    case AG_GGML_Q6_K: *out = AG_W_Q6_K; return true;
    default: return false;
    }
}

/* [N,K] (N rows of K, so ne is {K, N}), or a vector where K is 0. */
static ag_status take(ag_found *f, reader *r, const char *name, int64_t N, int64_t K, ag_err *err)
{
    const ag_gguf_tensor *t = ag_gguf_find(r->g, name);
    if (!t) return ag_fail(err, AG_E_NOT_FOUND, "%s: there is no tensor '%s'; the file is incomplete", r->g->path, name);
    const bool fits = K > 0 ? t->rank == 2 && t->ne[0] == K && t->ne[1] == N : t->rank == 1 && t->ne[0] == N;
    if (!fits) {
        const char *expected = K > 0 ? ag_arena_printf(r->arena, "[%lld,%lld]", (long long)K, (long long)N)
                                     : ag_arena_printf(r->arena, "[%lld]", (long long)N);
        return ag_fail(err, AG_E_SHAPE, "%s: tensor '%s' is %s, the metadata ask for %s", r->g->path, name,
                       ag_gguf_shape_text(r->arena, t), expected);
    }
    *f = (ag_found){.file = r->g->path, .name = t->name, .map = &r->g->map, .w = {.N = N, .K = K > 0 ? K : 1, .data = t->data}};
    if (!weight_type(&f->w.type, t->type))
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: tensor '%s' is %s, a type that cannot be computed with; quantize the model to q8_0 or "
                       "q4_k_m",
                       r->g->path, name, ag_gguf_shape_text(r->arena, t));
    if (K == 0 && ag_weight_block_weights(f->w.type) != 1)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' is %s; a vector must be F32, F16 or BF16", r->g->path, name,
                       ag_gguf_shape_text(r->arena, t));
    if (K > 0) r->weights_of_type[f->w.type] += N * K;
    r->n_taken++;
    return AG_OK;
}

static ag_status take_layer(ag_found_layer *layer, reader *r, int64_t l, ag_err *err)
{
    const ag_description *d = &r->m->d;
    const ag_family *f = ag_family_of(d);
    const int in_pairs = f->gguf_in_pairs ? (int)d->D : 0;
    const char *prefix = ag_arena_printf(r->arena, "blk.%lld", (long long)l);
    for (int n = 0; n < AG_N_NORMS; n++) {
        const int64_t width = ag_norm_width(d, (ag_norm)n);
        const char *part = ag_norm_gguf_name((ag_norm)n);
        if (width > 0) AG_TRY(take(&layer->norm[n], r, ag_arena_printf(r->arena, "%s.%s.weight", prefix, part), width, 0, err));
    }
    for (int i = 0; i < f->n_modules; i++) {
        const ag_linear_module *module = &f->modules[i];
        const ag_projection p = module->first;
        const char *part = ag_linear_gguf_name(module);
        int64_t N, K;
        ag_linear_module_size(&N, &K, d, module);
        AG_TRY(take(&layer->module[p], r, ag_arena_printf(r->arena, "%s.%s.weight", prefix, part), N, K, err));
        if (d->has_bias[p]) AG_TRY(take(&layer->bias[p], r, ag_arena_printf(r->arena, "%s.%s.bias", prefix, part), N, 0, err));
        if (p == AG_PROJ_Q || p == AG_PROJ_K)
            layer->module[p].w.rope_pairs_head_dim = layer->bias[p].w.rope_pairs_head_dim = in_pairs;
    }
    return AG_OK;
}

static const char *commonest_type(const reader *r)
{
    int most = 0;
    for (int i = 1; i < AG_N_WEIGHT_TYPES; i++)
        if (r->weights_of_type[i] > r->weights_of_type[most]) most = i;
    return ag_weight_type_name((ag_weight_type)most);
}

static bool is_taken(const ag_found_model *found, int64_t L, const char *name)
{
    if (name == found->embed.name || name == found->head.name || name == found->final_norm.name) return true;
    for (int64_t l = 0; l < L; l++) {
        const ag_found_layer *layer = &found->layers[l];
        for (int n = 0; n < AG_N_NORMS; n++)
            if (name == layer->norm[n].name) return true;
        for (int p = 0; p < AG_N_PROJ; p++)
            if (name == layer->module[p].name || name == layer->bias[p].name) return true;
    }
    return false;
}

static ag_status refuse_left_over(reader *r, const ag_found_model *found, ag_err *err)
{
    size_t useless = 0;
    for (size_t i = 0; i < r->g->n_tensors; i++) useless += ag_gguf_is_rope_tensor(r->g->tensors[i].name);
    if (r->n_taken + useless == r->g->n_tensors) return AG_OK;
    for (size_t i = 0; i < r->g->n_tensors; i++) {
        const ag_gguf_tensor *t = &r->g->tensors[i];
        if (ag_gguf_is_rope_tensor(t->name) || is_taken(found, r->m->d.L, t->name)) continue;
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' (%s) has no place in a %s model as the metadata describe it",
                       r->g->path, t->name, ag_gguf_shape_text(r->arena, t), r->m->d.model_type);
    }
    return AG_OK;
}

ag_status ag_model_find_gguf(ag_model *m, ag_found_model *found, ag_err *err)
{
    reader r = {.m = m, .g = &m->owned->gguf, .arena = &m->owned->arena};
    m->source = AG_SOURCE_GGUF;
    AG_TRY(ag_gguf_open(r.g, m->path, err));
    AG_TRY(ag_description_from_gguf(&m->d, r.g, r.arena, err));
    const ag_description *d = &m->d;
    AG_TRY(take(&found->embed, &r, "token_embd.weight", d->V, d->C, err));
    AG_TRY(take(&found->final_norm, &r, "output_norm.weight", d->C, 0, err));
    if (!d->tied) AG_TRY(take(&found->head, &r, "output.weight", d->V, d->C, err));
    found->layers = ag_arena_array(r.arena, (size_t)d->L, sizeof *found->layers);
    for (int64_t l = 0; l < d->L; l++) AG_TRY(take_layer(&found->layers[l], &r, l, err));
    m->quantization = commonest_type(&r);
    return refuse_left_over(&r, found, err);
}
