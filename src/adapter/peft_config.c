/* adapter_config.json: which keys are followed, which change nothing at inference, and which must be empty. */
#include "adapter/peft_io.h"

#include "base/fs.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CONFIG_MAX_BYTES = 1 << 20, MAX_NAMES = 8192, MAX_OVERRIDES = 1024 /* each is tried on every module */ };

/* Keys that are read, and keys that only say how the adapter came to be or how PEFT should behave. */
static const char *const known_keys[] = {
    "peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "base_model_name_or_path", "revision",
    "bias", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "use_dora", "modules_to_save",
    "exclude_modules", "auto_mapping", "corda_config", "eva_config", "inference_mode", "loftq_config", "lora_ga_config", "megatron_config",
    "megatron_core", "peft_version", "qalora_group_size", "runtime_config",
};

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++)
        if (strcmp(known_keys[i], key) == 0) return true;
    return false;
}

static bool is_empty(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

/* Every other key, of PEFT's or not, may only stand there without effect. */
static ag_status refuse_what_is_not_followed(const json_t *root, const char *name, ag_err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
        if (!is_known(key) && !is_empty(value))
            return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' is set, which this version cannot follow; the adapter would compute "
                           "something else without it", name, key);
    return AG_OK;
}

/* The ways of initializing that leave the base model as it is; PiSSA, OLoRA, CorDA and LoftQ change it. */
static ag_status check_init(const json_t *root, const char *name, ag_err *err)
{
    const json_t *init = json_object_get(root, "init_lora_weights");
    if (!init || json_is_null(init) || json_is_boolean(init)) return AG_OK;
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
    const char *text = json_is_string(init) ? json_string_value(init) : "";
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(text, harmless[i]) == 0) return AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED, "%s: 'init_lora_weights' is '%s', which changes the base model's own weights; save the adapter "
                   "as a plain LoRA first", name, text);
}

static ag_status check_word(const json_t *root, const char *key, const char *expected, bool needed, const char *name, ag_err *err)
{
    const char *text = NULL;
    AG_TRY(ag_json_get_string(root, key, &text, name, err));
    if (text ? strcmp(text, expected) == 0 : !needed) return AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' is '%s'; only '%s' is supported", name, key, text ? text : "missing", expected);
}

/* A list of texts; null and a missing key are an empty one. */
static ag_status read_names(const char *const **out, size_t *n_out, const json_t *list, const char *key, const char *name, ag_arena *arena,
                            ag_err *err)
{
    *n_out = 0;
    if (!list || json_is_null(list)) return AG_OK;
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || n > MAX_NAMES) return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be a list of module names", name, key);
    const char **names = ag_arena_array(arena, n, sizeof *names);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item) || json_string_length(item) == 0)
            return ag_fail(err, AG_E_FORMAT, "%s: item %zu of '%s' is not a module's name", name, i, key);
        names[i] = ag_arena_strdup(arena, json_string_value(item));
    }
    *out = names;
    *n_out = n;
    return AG_OK;
}

/* A pattern, or a list of names. */
static ag_status read_names_or_pattern(const char **pattern, const char *const **names, size_t *n_names, const json_t *root, const char *key,
                                       const char *name, ag_arena *arena, ag_err *err)
{
    const json_t *value = json_object_get(root, key);
    if (!json_is_string(value)) return read_names(names, n_names, value, key, name, arena, err);
    if (json_string_length(value) > 0) *pattern = ag_arena_strdup(arena, json_string_value(value));
    return AG_OK;
}

static ag_status read_targets(ag_lora_config *lora, const json_t *root, const char *name, ag_arena *arena, ag_err *err)
{
    const json_t *targets = json_object_get(root, "target_modules");
    if (!json_is_string(targets) && !json_is_array(targets))
        return ag_fail(err, AG_E_FORMAT, "%s: 'target_modules' must be a list of module names or a pattern", name);
    AG_TRY(read_names_or_pattern(&lora->pattern, &lora->targets, &lora->n_targets, root, "target_modules", name, arena, err));
    if (!lora->pattern && lora->n_targets == 0)
        return ag_fail(err, AG_E_FORMAT, "%s: 'target_modules' must be a list of module names or a pattern, it is empty", name);
    /* PEFT takes the word in any case */
    if (lora->pattern && strcasecmp(lora->pattern, "all-linear") == 0) lora->pattern = "all-linear";
    return read_names_or_pattern(&lora->exclude_pattern, &lora->exclude, &lora->n_exclude, root, "exclude_modules", name, arena, err);
}

static ag_status read_bias(ag_lora_config *lora, const json_t *root, const char *name, ag_err *err)
{
    static const char *const words[] = {[AG_BIAS_NONE] = "none", [AG_BIAS_ALL] = "all", [AG_BIAS_LORA_ONLY] = "lora_only"};
    const char *text = NULL;
    AG_TRY(ag_json_get_string(root, "bias", &text, name, err));
    for (int i = 0; text && i < 3; i++)
        if (strcmp(text, words[i]) == 0) {
            lora->bias = (ag_bias_mode)i;
            return AG_OK;
        }
    if (!text) return AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED, "%s: 'bias' is '%s'; 'none', 'all' and 'lora_only' are supported", name, text);
}

static ag_status read_overrides(const ag_lora_override **out, size_t *n, const json_t *root, const char *key, const char *name,
                                ag_arena *arena, ag_err *err)
{
    json_t *object = json_object_get(root, key), *value;
    if (!object || json_is_null(object)) return AG_OK;
    if (!json_is_object(object)) return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be an object", name, key);
    if (json_object_size(object) > MAX_OVERRIDES)
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' has %zu keys, at most %d are allowed", name, key, json_object_size(object), MAX_OVERRIDES);
    ag_lora_override *list = ag_arena_array(arena, json_object_size(object), sizeof *list);
    const char *module;
    json_object_foreach(object, module, value)
    {
        if (!json_is_number(value)) return ag_fail(err, AG_E_FORMAT, "%s: '%s' of '%s' must be a number", name, module, key);
        list[(*n)++] = (ag_lora_override){.name = ag_arena_strdup(arena, module), .value = json_number_value(value)};
    }
    *out = list;
    return AG_OK;
}

/* An index or a list of them, and the name of the list whose indices they are. */
static ag_status read_layers(ag_lora_config *lora, const json_t *root, const char *name, ag_arena *arena, ag_err *err)
{
    const json_t *layers = json_object_get(root, "layers_to_transform");
    if (!layers || json_is_null(layers)) return AG_OK; /* layers_pattern alone has no effect in PEFT */
    const size_t n = json_is_array(layers) ? json_array_size(layers) : 1;
    if (n > MAX_NAMES) return ag_fail(err, AG_E_FORMAT, "%s: 'layers_to_transform' has %zu items, at most %d are allowed", name, n, MAX_NAMES);
    int64_t *list = ag_arena_array(arena, n, sizeof *list);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(layers) ? json_array_get(layers, i) : layers;
        if (!json_is_integer(item)) return ag_fail(err, AG_E_FORMAT, "%s: 'layers_to_transform' must be a layer's index or a list of them", name);
        list[i] = json_integer_value(item);
    }
    lora->layers = list;
    lora->n_layers = n;
    if (n == 0) return AG_OK;
    const char *pattern = NULL;
    AG_TRY(read_names_or_pattern(&pattern, &lora->layers_patterns, &lora->n_layers_patterns, root, "layers_pattern", name, arena, err));
    if (!pattern) return AG_OK;
    const char **one = ag_arena_array(arena, 1, sizeof *one);
    one[0] = pattern;
    lora->layers_patterns = one;
    lora->n_layers_patterns = 1;
    return AG_OK;
}

static ag_status read_config(ag_peft_config *out, const json_t *root, const char *name, ag_arena *arena, ag_err *err)
{
    if (!json_is_object(root)) return ag_fail(err, AG_E_FORMAT, "%s: the file must hold a JSON object", name);
    ag_peft_config c = {.lora = {.r = 8, .alpha = 8}}; /* PEFT's defaults */
    AG_TRY(check_word(root, "peft_type", "LORA", true, name, err));
    AG_TRY(check_word(root, "task_type", "CAUSAL_LM", false, name, err));
    AG_TRY(read_bias(&c.lora, root, name, err));
    AG_TRY(check_init(root, name, err));
    AG_TRY(refuse_what_is_not_followed(root, name, err));
    AG_TRY(ag_json_get_int(root, "r", 1, INT32_MAX, &c.lora.r, name, err));
    AG_TRY(ag_json_get_double(root, "lora_alpha", &c.lora.alpha, name, err));
    AG_TRY(ag_json_get_double(root, "lora_dropout", &c.lora.dropout, name, err));
    AG_TRY(ag_json_get_bool(root, "use_rslora", &c.lora.rslora, name, err));
    AG_TRY(ag_json_get_bool(root, "use_dora", &c.lora.dora, name, err));
    AG_TRY(read_names(&c.lora.modules_to_save, &c.lora.n_modules_to_save, json_object_get(root, "modules_to_save"), "modules_to_save", name,
                      arena, err));
    AG_TRY(read_targets(&c.lora, root, name, arena, err));
    AG_TRY(read_layers(&c.lora, root, name, arena, err));
    AG_TRY(read_overrides(&c.lora.ranks, &c.lora.n_ranks, root, "rank_pattern", name, arena, err));
    AG_TRY(read_overrides(&c.lora.alphas, &c.lora.n_alphas, root, "alpha_pattern", name, arena, err));
    AG_TRY(ag_json_get_string(root, "base_model_name_or_path", &c.base_model, name, err));
    AG_TRY(ag_json_get_string(root, "revision", &c.revision, name, err));
    if (c.base_model) c.base_model = ag_arena_strdup(arena, c.base_model);
    if (c.revision) c.revision = ag_arena_strdup(arena, c.revision);
    *out = c;
    return AG_OK;
}

ag_status ag_peft_config_parse(ag_peft_config *out, const char *bytes, size_t n, const char *name, ag_arena *arena, ag_err *err)
{
    json_t *root;
    AG_TRY(ag_json_parse(&root, bytes, n, name, err));
    const ag_status status = read_config(out, root, name, arena, err);
    ag_json_free(&root);
    return status;
}

ag_status ag_peft_config_load(ag_peft_config *out, const char *dir, ag_arena *arena, ag_err *err)
{
    const char *path = ag_path_join(arena, dir, AG_PEFT_CONFIG_FILE);
    if (!ag_path_is_file(path))
        return ag_fail(err, AG_E_NOT_FOUND, "%s is no adapter: it has no %s", dir, AG_PEFT_CONFIG_FILE);
    char *text;
    size_t n;
    AG_TRY(ag_file_read(&text, &n, path, CONFIG_MAX_BYTES, arena, err));
    return ag_peft_config_parse(out, text, n, path, arena, err);
}

static int bytewise(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static void write_number(ag_json_writer *w, const char *key, double value)
{
    if (value == nearbyint(value) && fabs(value) < 0x1p53)
        ag_jw_int(w, key, (int64_t)value);
    else
        ag_jw_double(w, key, value);
}

/* In the order given, which decides; PEFT reads it so, though it writes the keys sorted. */
static void write_overrides(ag_json_writer *w, const char *key, const ag_lora_override *overrides, size_t n)
{
    ag_jw_object(w, key);
    for (size_t i = 0; i < n; i++) write_number(w, overrides[i].name, overrides[i].value);
    ag_jw_end(w);
}

static void write_names(ag_json_writer *w, const char *key, const char *const *names, size_t n)
{
    ag_jw_array(w, key);
    for (size_t i = 0; i < n; i++) ag_jw_string(w, NULL, names[i]);
    ag_jw_end(w);
}

/* Sorted, each once: PEFT holds them as a set. */
static void write_name_set(ag_json_writer *w, const char *key, const char *const *names, size_t n)
{
    ag_arena scratch = {0};
    const char **sorted = ag_arena_array(&scratch, n, sizeof *sorted);
    size_t n_sorted = 0;
    for (size_t i = 0; i < n; i++) sorted[i] = names[i];
    qsort(sorted, n, sizeof *sorted, bytewise);
    for (size_t i = 0; i < n; i++)
        if (n_sorted == 0 || strcmp(sorted[i], sorted[n_sorted - 1]) != 0) sorted[n_sorted++] = sorted[i];
    write_names(w, key, sorted, n_sorted);
    ag_arena_free(&scratch);
}

/* Keys as PEFT has written them since 0.8; an older or newer one warns of none. */
void ag_peft_config_write(ag_str *out, const ag_lora_config *lora, const char *base_model, const char *revision)
{
    ag_json_writer w = {.out = out, .indent = 2};
    ag_jw_object(&w, NULL);
    write_overrides(&w, "alpha_pattern", lora->alphas, lora->n_alphas);
    ag_jw_null(&w, "auto_mapping");
    ag_jw_string(&w, "base_model_name_or_path", base_model);
    ag_jw_string(&w, "bias", lora->bias == AG_BIAS_ALL ? "all" : lora->bias == AG_BIAS_LORA_ONLY ? "lora_only" : "none");
    if (lora->exclude_pattern)
        ag_jw_string(&w, "exclude_modules", lora->exclude_pattern);
    else if (lora->n_exclude > 0)
        write_name_set(&w, "exclude_modules", lora->exclude, lora->n_exclude);
    ag_jw_bool(&w, "fan_in_fan_out", false);
    ag_jw_bool(&w, "inference_mode", true);
    ag_jw_bool(&w, "init_lora_weights", true);
    if (lora->n_layers_patterns > 0)
        write_names(&w, "layers_pattern", lora->layers_patterns, lora->n_layers_patterns);
    else
        ag_jw_null(&w, "layers_pattern");
    if (lora->n_layers > 0) {
        ag_jw_array(&w, "layers_to_transform");
        for (size_t i = 0; i < lora->n_layers; i++) ag_jw_int(&w, NULL, lora->layers[i]);
        ag_jw_end(&w);
    } else {
        ag_jw_null(&w, "layers_to_transform");
    }
    write_number(&w, "lora_alpha", lora->alpha);
    ag_jw_double(&w, "lora_dropout", lora->dropout);
    if (lora->n_modules_to_save > 0)
        write_names(&w, "modules_to_save", lora->modules_to_save, lora->n_modules_to_save);
    else
        ag_jw_null(&w, "modules_to_save");
    ag_jw_string(&w, "peft_type", "LORA");
    ag_jw_int(&w, "r", lora->r);
    write_overrides(&w, "rank_pattern", lora->ranks, lora->n_ranks);
    ag_jw_string(&w, "revision", revision);
    if (lora->pattern)
        ag_jw_string(&w, "target_modules", lora->pattern);
    else
        write_name_set(&w, "target_modules", lora->targets, lora->n_targets);
    ag_jw_string(&w, "task_type", "CAUSAL_LM");
    ag_jw_bool(&w, "use_dora", lora->dora);
    ag_jw_bool(&w, "use_rslora", lora->rslora);
    ag_jw_end(&w);
}
