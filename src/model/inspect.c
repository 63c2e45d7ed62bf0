#define _GNU_SOURCE
#include "model/inspect.h"

#include "base/json.h"
#include "format/safetensors.h"
#include "model/description_gguf.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 4 << 20 };
static const char unknown[] = "unknown";

/* ---- inspect-safetensors ------------------------------------------------------------------------------------------------ */
ag_status ag_inspect_safetensors(ag_str *json, const char *path, ag_err *err)
{
    ag_safetensors st;
    AG_TRY(ag_safetensors_open(&st, path, err));
    ag_json_writer w = {.out = json, .indent = 2};
    ag_jw_object(&w, NULL);
    if (st.metadata) {
        ag_jw_object(&w, "metadata");
        for (size_t i = 0; i < st.n_metadata; i++) ag_jw_string(&w, st.metadata[i].key, st.metadata[i].value);
        ag_jw_end(&w);
    } else {
        ag_jw_null(&w, "metadata");
    }
    ag_jw_object(&w, "tensors");
    for (size_t i = 0; i < st.n_tensors; i++) {
        const ag_st_tensor *t = st.by_name[i];
        ag_jw_object(&w, t->name);
        ag_jw_array(&w, "shape");
        for (int d = 0; d < t->rank; d++) ag_jw_int(&w, NULL, t->dim[d]);
        ag_jw_end(&w);
        ag_jw_string(&w, "dtype", ag_st_dtype_name(t->dtype));
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_end(&w);
    ag_safetensors_close(&st);
    return AG_OK;
}

/* ---- model-metadata ----------------------------------------------------------------------------------------------------- */
static ag_status load_config(json_t **root, const char *dir, ag_arena *arena, ag_err *err)
{
    const char *path = ag_path_join(arena, dir, "config.json");
    if (!ag_path_is_file(path))
        return ag_fail(err, AG_E_NOT_FOUND, "%s has no config.json; name a folder with a Hugging Face model", dir);
    AG_TRY(ag_json_load(root, path, MAX_CONFIG_BYTES, err));
    if (json_is_object(*root)) return AG_OK;
    ag_json_free(root);
    return ag_fail(err, AG_E_FORMAT, "%s: the config must be an object", path);
}

static void put_text(ag_json_writer *w, const char *key, const json_t *value)
{
    ag_jw_string(w, key, json_is_string(value) ? json_string_value(value) : unknown);
}

static void put_architectures(ag_json_writer *w, const json_t *config)
{
    const json_t *list = json_object_get(config, "architectures");
    ag_jw_array(w, "architectures");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i))) ag_jw_string(w, NULL, json_string_value(json_array_get(list, i)));
    ag_jw_end(w);
}

static void put_files(ag_json_writer *w, char **names, size_t n)
{
    bool safetensors = false, bin = false, code = false;
    for (size_t i = 0; i < n; i++) {
        safetensors |= ag_str_ends(names[i], ".safetensors");
        bin |= ag_str_ends(names[i], ".bin");
        code |= ag_str_ends(names[i], ".py");
    }
    ag_jw_bool(w, "has_safetensors", safetensors);
    ag_jw_bool(w, "has_bin", bin);
    ag_jw_bool(w, "has_custom_code", code);
}

static const char *const size_keys[] = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"};
enum { N_SIZES = sizeof size_keys / sizeof *size_keys };

static ag_status metadata_of_folder(ag_json_writer *w, const char *path, ag_arena *arena, ag_err *err)
{
    json_t *config = NULL;
    char **names;
    size_t n;
    AG_TRY(ag_dir_list(&names, &n, path, arena, err));
    AG_TRY(load_config(&config, path, arena, err));
    const json_t *dtype = json_object_get(config, "dtype");
    put_text(w, "model_type", json_object_get(config, "model_type"));
    put_architectures(w, config);
    put_text(w, "torch_dtype", dtype ? dtype : json_object_get(config, "torch_dtype"));
    for (int i = 0; i < N_SIZES; i++) {
        const json_t *value = json_object_get(config, size_keys[i]);
        if (json_is_integer(value))
            ag_jw_int(w, size_keys[i], json_integer_value(value));
        else
            ag_jw_string(w, size_keys[i], unknown);
    }
    put_files(w, names, n);
    ag_json_free(&config);
    return AG_OK;
}

static ag_status metadata_of_gguf(ag_json_writer *w, const char *path, ag_arena *arena, ag_err *err)
{
    ag_gguf g;
    ag_description d;
    AG_TRY(ag_gguf_open(&g, path, err));
    ag_status status = ag_description_from_gguf(&d, &g, arena, err);
    ag_gguf_close(&g);
    if (status) return status;
    const int64_t sizes[N_SIZES] = {d.V, d.C, d.L, d.H};
    ag_jw_string(w, "model_type", d.model_type);
    ag_jw_array(w, "architectures");
    ag_jw_string(w, NULL, d.architecture);
    ag_jw_end(w);
    ag_jw_string(w, "torch_dtype", unknown);
    for (int i = 0; i < N_SIZES; i++) ag_jw_int(w, size_keys[i], sizes[i]);
    put_files(w, NULL, 0);
    return AG_OK;
}

ag_status ag_inspect_model_metadata(ag_str *json, const char *path, const char *model_id, const char *revision, ag_err *err)
{
    ag_arena arena = {0};
    ag_str report = {0};
    ag_json_writer w = {.out = &report, .indent = 2};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "model_id", model_id);
    ag_jw_string(&w, "revision", revision);
    ag_status status =
        ag_path_is_dir(path) ? metadata_of_folder(&w, path, &arena, err) : metadata_of_gguf(&w, path, &arena, err);
    if (!status) {
        ag_jw_end(&w);
        ag_str_add_n(json, report.text, report.n);
    }
    ag_str_free(&report);
    ag_arena_free(&arena);
    return status;
}

/* ---- inspect-lora-targets ------------------------------------------------------------------------------------------------ */
static const char *const known_parts[] = {"q_proj",    "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                          "down_proj", "linear", "gka",    "kalman", "ssm"};
enum { N_KNOWN = sizeof known_parts / sizeof *known_parts, N_COMMON = AG_N_PROJ };
/* What some families have in place of common ones (family.h). */
static const char *const fused_parts[] = {"qkv_proj", "gate_up_proj", "input_linear", "output_linear"};
enum { N_FUSED = sizeof fused_parts / sizeof *fused_parts };

typedef struct {
    const char *name; /* "model.layers.0.self_attn.q_proj" */
    bool is_embedding;
} module;

typedef struct {
    const char *leaf;
    int64_t n_linear, n_embedding;
} leaf_count;

static int known_index(const char *path)
{
    for (int i = 0; i < N_KNOWN; i++)
        if (strcasestr(path, known_parts[i])) return i;
    return N_KNOWN;
}

static bool is_one_of(const char *leaf, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(leaf, names[i]) == 0) return true;
    return false;
}

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* In the order in which a model lists its modules: by layer number, inside a layer attention before the feed-forward part, the
 * head last. */
static int by_place(const void *a, const void *b)
{
    const module *x = a, *y = b;
    const bool x_head = strcmp(x->name, "lm_head") == 0, y_head = strcmp(y->name, "lm_head") == 0;
    if (x_head != y_head) return x_head ? 1 : -1;
    const char *p = strstr(x->name, "layers."), *q = strstr(y->name, "layers.");
    const long i = p ? strtol(p + 7, NULL, 10) : -1, j = q ? strtol(q + 7, NULL, 10) : -1;
    if (i != j) return i < j ? -1 : 1;
    const int k = known_index(x->name), l = known_index(y->name);
    return k != l ? k - l : strcmp(x->name, y->name);
}

static ag_status modules_of_folder(module **out, size_t *n_out, const json_t *config, const char *path, ag_arena *arena,
                                   ag_err *err)
{
    static const char end[] = ".weight";
    ag_st_folder folder;
    AG_TRY(ag_st_folder_open(&folder, path, AG_ST_READ, err));
    module *modules = ag_arena_array(arena, folder.n_tensors + 1, sizeof *modules);
    size_t n = 0;
    bool has_head = false;
    for (size_t s = 0; s < folder.n_shards; s++)
        for (size_t i = 0; i < folder.shards[s].n_tensors; i++) {
            const ag_st_tensor *t = &folder.shards[s].tensors[i];
            if (t->rank != 2 || !ag_str_ends(t->name, end)) continue;
            const char *name = ag_arena_strndup(arena, t->name, strlen(t->name) - strlen(end));
            modules[n++] = (module){name, strstr(leaf_of(name), "embed") != NULL || strcmp(leaf_of(name), "wte") == 0};
            has_head |= strcmp(name, "lm_head") == 0;
        }
    ag_st_folder_close(&folder);
    if (!has_head && json_is_true(json_object_get(config, "tie_word_embeddings"))) modules[n++] = (module){"lm_head", false};
    qsort(modules, n, sizeof *modules, by_place);
    *out = modules;
    *n_out = n;
    return AG_OK;
}

static void put_targets(ag_json_writer *w, const module *modules, size_t n, ag_arena *arena)
{
    leaf_count *leaves = ag_arena_array(arena, n, sizeof *leaves);
    size_t n_leaves = 0;
    int64_t n_matches = 0;
    for (size_t i = 0; i < n; i++) {
        if (modules[i].is_embedding && known_index(modules[i].name) == N_KNOWN) continue;
        size_t at = 0;
        while (at < n_leaves && strcmp(leaves[at].leaf, leaf_of(modules[i].name)) != 0) at++;
        if (at == n_leaves) leaves[n_leaves++].leaf = leaf_of(modules[i].name);
        *(modules[i].is_embedding ? &leaves[at].n_embedding : &leaves[at].n_linear) += 1;
        n_matches++;
    }
    ag_jw_object(w, "candidate_leaf_names");
    for (size_t i = 0; i < n_leaves; i++) {
        ag_jw_object(w, leaves[i].leaf);
        ag_jw_int(w, "count", leaves[i].n_linear + leaves[i].n_embedding);
        ag_jw_array(w, "types");
        if (leaves[i].n_linear > 0) ag_jw_string(w, NULL, "Linear");
        if (leaves[i].n_embedding > 0) ag_jw_string(w, NULL, "Embedding");
        ag_jw_end(w);
        ag_jw_end(w);
    }
    ag_jw_end(w);
    ag_jw_int(w, "full_module_matches_count", n_matches);
    ag_jw_array(w, "recommended_common_targets");
    for (size_t i = 0; i < n_leaves; i++)
        if (is_one_of(leaves[i].leaf, known_parts, N_COMMON) || is_one_of(leaves[i].leaf, fused_parts, N_FUSED))
            ag_jw_string(w, NULL, leaves[i].leaf);
    ag_jw_end(w);
    ag_jw_array(w, "custom_architecture_warnings");
    ag_jw_string(
        w, NULL,
        "Modules named gka, kalman or ssm belong to custom architectures: look at what they compute before you train them.");
    ag_jw_end(w);
}

static ag_status targets_of_folder(ag_json_writer *w, const char *path, ag_arena *arena, ag_err *err)
{
    json_t *config = NULL;
    module *modules;
    size_t n;
    AG_TRY(load_config(&config, path, arena, err));
    ag_status status = modules_of_folder(&modules, &n, config, path, arena, err);
    if (!status) {
        put_architectures(w, config);
        put_targets(w, modules, n, arena);
    }
    ag_json_free(&config);
    return status;
}

/* A GGUF file's modules under the names they have in a Hugging Face model, for these are what an adapter is told. */
static ag_status targets_of_gguf(ag_json_writer *w, const char *path, ag_arena *arena, ag_err *err)
{
    ag_gguf g;
    ag_description d;
    AG_TRY(ag_gguf_open(&g, path, err));
    ag_status status = ag_description_from_gguf(&d, &g, arena, err);
    ag_gguf_close(&g);
    if (status) return status;
    int n_in_layer;
    const ag_linear_module *in_layer = ag_linear_modules_of(&d, &n_in_layer);
    module *modules = ag_arena_array(arena, (size_t)(d.L * n_in_layer) + 1, sizeof *modules);
    size_t n = 0;
    for (int64_t l = 0; l < d.L; l++)
        for (int i = 0; i < n_in_layer; i++)
            modules[n++].name = ag_arena_printf(arena, "model.layers.%lld.%s", (long long)l, in_layer[i].path);
    modules[n++].name = "lm_head";
    ag_jw_array(w, "architectures");
    ag_jw_string(w, NULL, d.architecture);
    ag_jw_end(w);
    put_targets(w, modules, n, arena);
    return AG_OK;
}

ag_status ag_inspect_lora_targets(ag_str *json, const char *path, const char *model_id, ag_err *err)
{
    ag_arena arena = {0};
    ag_str report = {0};
    ag_json_writer w = {.out = &report, .indent = 2};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "model_id", model_id);
    ag_status status = ag_path_is_dir(path) ? targets_of_folder(&w, path, &arena, err) : targets_of_gguf(&w, path, &arena, err);
    if (!status) {
        ag_jw_end(&w);
        ag_str_add_n(json, report.text, report.n);
    }
    ag_str_free(&report);
    ag_arena_free(&arena);
    return status;
}
