/* A Hugging Face folder: config.json, generation_config.json where there is one, and safetensors. */
#include "model/model_internal.h"

#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 4 << 20 };

typedef struct {
    ag_model *m;
    ag_arena *arena;
    ag_st_folder *folder;
    size_t n_taken; /* tensors that were found and are used, or known to be of no use */
    bool any_nf4, any_double;
} reader;

static ag_status read_description(ag_model *m, ag_err *err)
{
    ag_arena *arena = &m->owned->arena;
    const char *config_path = ag_path_join(arena, m->path, "config.json");
    const char *generation_path = ag_path_join(arena, m->path, "generation_config.json");
    char *config, *generation = NULL;
    size_t n_config, n_generation = 0;
    if (!ag_path_is_file(config_path)) {
        if (ag_path_is_file(ag_path_join(arena, m->path, "adapter_config.json")))
            return ag_fail(err, AG_E_NOT_FOUND, "%s is an adapter, not a model; name the base model that it was trained on",
                           m->path);
        return ag_fail(err, AG_E_NOT_FOUND, "%s has no config.json; name a folder with a Hugging Face model, or a .gguf file",
                       m->path);
    }
    AG_TRY(ag_file_read(&config, &n_config, config_path, MAX_CONFIG_BYTES, arena, err));
    if (ag_path_is_file(generation_path))
        AG_TRY(ag_file_read(&generation, &n_generation, generation_path, MAX_CONFIG_BYTES, arena, err));
    return ag_description_from_config(&m->d, config, n_config, config_path, generation, n_generation, arena, err);
}

static ag_status missing(const reader *r, const char *name, ag_err *err)
{
    return ag_fail(err, AG_E_NOT_FOUND,
                   "%s: there is no tensor '%s'; the weights do not belong to this config.json, or are incomplete", r->m->path,
                   name);
}

static ag_status wrong_shape(const reader *r, const char *file, const ag_st_tensor *t, int64_t N, int64_t K, ag_err *err)
{
    const char *expected = K > 0 ? ag_arena_printf(r->arena, "[%lld,%lld]", (long long)N, (long long)K)
                                 : ag_arena_printf(r->arena, "[%lld]", (long long)N);
    return ag_fail(err, AG_E_SHAPE, "%s: tensor '%s' is %s, config.json asks for %s", file, t->name,
                   ag_st_shape_text(r->arena, t), expected);
}

/* [N,K], or a vector where K is 0. */
static ag_status take(ag_found *f, reader *r, const char *name, int64_t N, int64_t K, ag_err *err)
{
    const ag_safetensors *shard = NULL;
    const ag_st_tensor *t = ag_st_folder_find(r->folder, name, &shard);
    if (!t) return missing(r, name, err);
    if (t->rank != (K > 0 ? 2 : 1) || t->dim[0] != N || (K > 0 && t->dim[1] != K))
        return wrong_shape(r, shard->path, t, N, K, err);
    *f = (ag_found){
        .file = shard->path, .name = t->name, .map = &shard->map, .w = {.N = N, .K = K > 0 ? K : 1, .data = t->data}};
    switch (t->dtype) {
    case AG_ST_F32: f->w.type = AG_W_F32; break;
    case AG_ST_F16: f->w.type = AG_W_F16; break;
    case AG_ST_BF16: f->w.type = AG_W_BF16; break;
    default:
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' is %s; F32, F16 and BF16 weights can be used", shard->path, name,
                       ag_st_dtype_name(t->dtype));
    }
    r->n_taken++;
    return AG_OK;
}

/* ---- bitsandbytes' NF4 ------------------------------------------------------------------------------------------------- */
static const ag_st_tensor *part_of(reader *r, const char *name, const char *part)
{
    const ag_st_tensor *t = ag_st_folder_find(r->folder, ag_arena_printf(r->arena, "%s.%s", name, part), NULL);
    if (t) r->n_taken++;
    return t;
}

/* Floats of a part, at a good address. */
static const float *part_floats(reader *r, const ag_st_tensor *t, int64_t n)
{
    if (!t || t->dtype != AG_ST_F32 || t->bytes != (size_t)n * sizeof(float)) return NULL;
    if ((uintptr_t)t->data % sizeof(float) == 0) return (const float *)(const void *)t->data;
    float *copy = ag_arena_array(r->arena, (size_t)n, sizeof *copy);
    memcpy(copy, t->data, t->bytes);
    return copy;
}

static bool same_floats(const float *a, const float *b, int n)
{
    for (int i = 0; a && i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 1e-6f)) return false;
    return a != NULL;
}

/* The JSON that says how the weight was quantized. */
static ag_status read_quant_state(const ag_st_tensor *state, double *nested_offset, int64_t N, int64_t K, const char *name,
                                  ag_err *err)
{
    const char *type = "";
    int64_t block = 0, nested_block = AG_NF4_NESTED_BLOCK;
    json_t *root = NULL;
    AG_TRY(ag_json_parse(&root, (const char *)state->data, state->bytes, name, err));
    ag_status status = ag_json_get_string(root, "quant_type", &type, name, err);
    if (!status) status = ag_json_need_int(root, "blocksize", 1, INT32_MAX, &block, name, err);
    if (!status) status = ag_json_get_int(root, "nested_blocksize", 1, INT32_MAX, &nested_block, name, err);
    if (!status) status = ag_json_get_double(root, "nested_offset", nested_offset, name, err);
    const json_t *shape = json_object_get(root, "shape");
    if (!status && (json_array_size(shape) != 2 || json_integer_value(json_array_get(shape, 0)) != N ||
                    json_integer_value(json_array_get(shape, 1)) != K))
        status = ag_fail(err, AG_E_SHAPE, "%s: the shape is not [%lld,%lld] as config.json asks for", name, (long long)N,
                         (long long)K);
    if (!status && (strcmp(type, "nf4") != 0 || block != AG_NF4_BLOCK || nested_block != AG_NF4_NESTED_BLOCK))
        status = ag_fail(err, AG_E_UNSUPPORTED,
                         "%s: quant_type '%.20s' in blocks of %lld (nested %lld) cannot be used; nf4 in blocks of %d "
                         "(nested %d) can",
                         name, type, (long long)block, (long long)nested_block, AG_NF4_BLOCK, AG_NF4_NESTED_BLOCK);
    ag_json_free(&root);
    return status;
}

static ag_status take_nf4(ag_found *f, reader *r, const char *name, const ag_st_tensor *state, int64_t N, int64_t K,
                          ag_err *err)
{
    const int64_t n_blocks = (N * K + AG_NF4_BLOCK - 1) / AG_NF4_BLOCK,
                  n_nested = (n_blocks + AG_NF4_NESTED_BLOCK - 1) / AG_NF4_NESTED_BLOCK;
    const ag_safetensors *shard = NULL;
    const ag_st_tensor *packed = ag_st_folder_find(r->folder, name, &shard);
    if (!packed) return missing(r, name, err);
    r->n_taken++;
    double offset = 0;
    AG_TRY(read_quant_state(state, &offset, N, K, ag_arena_printf(r->arena, "%s: '%s'", shard->path, state->name), err));
    if (packed->dtype != AG_ST_U8 || packed->bytes != (size_t)((N * K + 1) / 2))
        return ag_fail(err, AG_E_SHAPE, "%s: tensor '%s' is %s, %lld bytes of NF4 (U8) are needed", shard->path, name,
                       ag_st_shape_text(r->arena, packed), (long long)((N * K + 1) / 2));
    *f = (ag_found){.file = shard->path,
                    .name = packed->name,
                    .map = &shard->map,
                    .w = {.type = AG_W_NF4, .N = N, .K = K, .data = packed->data}};
    const ag_st_tensor *absmax = part_of(r, name, "absmax");
    bool good = same_floats(part_floats(r, part_of(r, name, "quant_map"), 16), ag_nf4_code, 16);
    if (absmax && absmax->dtype == AG_ST_U8) {
        r->any_double = true;
        good = good && same_floats(part_floats(r, part_of(r, name, "nested_quant_map"), 256), ag_dynamic_map_signed(), 256);
        f->w.absmax_q = absmax->bytes == (size_t)n_blocks ? absmax->data : NULL;
        f->w.nested_absmax = part_floats(r, part_of(r, name, "nested_absmax"), n_nested);
        f->w.offset = (float)offset;
        good = good && f->w.absmax_q && f->w.nested_absmax;
    } else {
        f->w.absmax = part_floats(r, absmax, n_blocks);
        good = good && f->w.absmax;
    }
    r->any_nf4 = true;
    if (good) return AG_OK;
    return ag_fail(err, AG_E_FORMAT,
                   "%s: the scales or code tables of '%s' are missing, of a wrong size, or not bitsandbytes' own", shard->path,
                   name);
}

static ag_status take_projection(ag_found *f, reader *r, const char *name, int64_t N, int64_t K, ag_err *err)
{
    const ag_st_tensor *state = r->m->d.is_bnb_nf4 ? part_of(r, name, "quant_state.bitsandbytes__nf4") : NULL;
    return state ? take_nf4(f, r, name, state, N, K, err) : take(f, r, name, N, K, err);
}

/* ---- all of it ----------------------------------------------------------------------------------------------------------- */
static ag_status take_layer(ag_found_layer *layer, reader *r, int64_t l, ag_err *err)
{
    const ag_description *d = &r->m->d;
    const ag_family *f = ag_family_of(d);
    const char *prefix = ag_arena_printf(r->arena, "model.layers.%lld", (long long)l);
    for (int n = 0; n < AG_N_NORMS; n++) {
        const int64_t width = ag_norm_width(d, (ag_norm)n);
        if (width > 0) AG_TRY(take(&layer->norm[n], r, ag_arena_printf(r->arena, "%s.%s.weight", prefix, f->norms[n]), width, 0, err));
    }
    for (int i = 0; i < f->n_modules; i++) {
        const ag_linear_module *module = &f->modules[i];
        int64_t N, K;
        ag_linear_module_size(&N, &K, d, module);
        AG_TRY(take_projection(&layer->module[module->first], r, ag_arena_printf(r->arena, "%s.%s.weight", prefix, module->path), N, K, err));
        if (d->has_bias[module->first])
            AG_TRY(take(&layer->bias[module->first], r, ag_arena_printf(r->arena, "%s.%s.bias", prefix, module->path), N, 0, err));
    }
    return AG_OK;
}

static bool is_useless(const reader *r, const char *name)
{
    return ag_str_ends(name, ".rotary_emb.inv_freq") || (r->m->d.tied && strcmp(name, "lm_head.weight") == 0);
}

static int by_address(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return x < y ? -1 : x > y;
}

/* Names the first tensor that nothing asked for: a model with more in it than its config says is not the model we compute. */
static ag_status refuse_left_over(reader *r, const ag_found_model *found, ag_err *err)
{
    for (size_t s = 0; s < r->folder->n_shards; s++)
        for (size_t i = 0; i < r->folder->shards[s].n_tensors; i++)
            if (is_useless(r, r->folder->shards[s].tensors[i].name)) r->n_taken++;
    if (r->n_taken == r->folder->n_tensors) return AG_OK;
    const size_t n_found = 3 + (size_t)r->m->d.L * (AG_N_NORMS + 2 * AG_N_PROJ);
    const char **names = ag_arena_array(r->arena, n_found, sizeof *names);
    size_t n = 0;
    names[n++] = found->embed.name, names[n++] = found->head.name, names[n++] = found->final_norm.name;
    for (int64_t l = 0; l < r->m->d.L; l++) {
        for (int i = 0; i < AG_N_NORMS; i++) names[n++] = found->layers[l].norm[i].name;
        for (int p = 0; p < AG_N_PROJ; p++)
            names[n++] = found->layers[l].module[p].name, names[n++] = found->layers[l].bias[p].name;
    }
    qsort(names, n, sizeof *names, by_address);
    for (size_t s = 0; s < r->folder->n_shards; s++)
        for (size_t i = 0; i < r->folder->shards[s].n_tensors; i++) {
            const ag_st_tensor *t = &r->folder->shards[s].tensors[i];
            if (is_useless(r, t->name) || bsearch(&t->name, names, n, sizeof *names, by_address) ||
                (r->m->d.is_bnb_nf4 && strstr(t->name, ".weight.")))
                continue;
            return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' (%s) has no place in a %s model as config.json describes it",
                           r->folder->shards[s].path, t->name, ag_st_shape_text(r->arena, t), r->m->d.model_type);
        }
    return ag_fail(err, AG_E_FORMAT, "%s: some parts of the quantized weights belong to no weight; the files are damaged",
                   r->m->path);
}

ag_status ag_model_find_hf(ag_model *m, ag_found_model *found, ag_err *err)
{
    reader r = {.m = m, .arena = &m->owned->arena, .folder = &m->owned->folder};
    m->source = AG_SOURCE_HF;
    AG_TRY(read_description(m, err));
    AG_TRY(ag_st_folder_open(r.folder, m->path, AG_ST_READ, err));
    const ag_description *d = &m->d;
    AG_TRY(take(&found->embed, &r, "model.embed_tokens.weight", d->V, d->C, err));
    AG_TRY(take(&found->final_norm, &r, "model.norm.weight", d->C, 0, err));
    if (!d->tied) AG_TRY(take(&found->head, &r, "lm_head.weight", d->V, d->C, err));
    found->layers = ag_arena_array(r.arena, (size_t)d->L, sizeof *found->layers);
    for (int64_t l = 0; l < d->L; l++) AG_TRY(take_layer(&found->layers[l], &r, l, err));
    m->quantization = r.any_double ? "nf4 (double)" : r.any_nf4 ? "nf4" : "none";
    return refuse_left_over(&r, found, err);
}
