#include "runs/lora_config_check.h"

#include "base/fs.h"
#include "base/json.h"
#include "base/str.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CONFIG_BYTES = 4 << 20 };

/* The fields of PEFT's LoraConfig (0.21); it refuses any other. */
static const char *const known_keys[] = {"alora_invocation_tokens",
                                         "alpha_pattern",
                                         "arrow_config",
                                         "auto_mapping",
                                         "base_model_name_or_path",
                                         "bias",
                                         "corda_config",
                                         "ensure_weight_tying",
                                         "eva_config",
                                         "exclude_modules",
                                         "fan_in_fan_out",
                                         "inference_mode",
                                         "init_lora_weights",
                                         "kasa_config",
                                         "layer_replication",
                                         "layers_pattern",
                                         "layers_to_transform",
                                         "loftq_config",
                                         "lora_alpha",
                                         "lora_bias",
                                         "lora_dropout",
                                         "lora_ga_config",
                                         "megatron_config",
                                         "megatron_core",
                                         "modules_to_save",
                                         "monteclora_config",
                                         "peft_type",
                                         "peft_version",
                                         "qalora_group_size",
                                         "r",
                                         "rank_pattern",
                                         "revision",
                                         "runtime_config",
                                         "target_modules",
                                         "target_parameters",
                                         "task_type",
                                         "trainable_token_indices",
                                         "use_bdlora",
                                         "use_dora",
                                         "use_qalora",
                                         "use_rslora",
                                         "velora_config"};

static ag_status check_keys(const json_t *root, const char *name, ag_err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys && !found; i++) found = strcmp(key, known_keys[i]) == 0;
        if (!found)
            return ag_fail(err, AG_E_FORMAT, "%s: PEFT knows no key '%.60s' of a LoRA config and would refuse the file", name,
                           key);
    }
    return AG_OK;
}

static bool is_blank(const char *text) { return text[strspn(text, " \t\n\r\v\f")] == 0; }

/* A number becomes its decimal text; white space around goes; what is left must be something. *usable false: a bool or another
 * kind. */
static const char *read_revision(const json_t *root, bool *usable, ag_arena *arena)
{
    const json_t *value = json_object_get(root, "revision");
    *usable = true;
    if (!value || json_is_null(value)) return NULL;
    if (json_is_integer(value)) return ag_arena_printf(arena, "%lld", (long long)json_integer_value(value));
    *usable = json_is_string(value) && !is_blank(json_string_value(value));
    if (!*usable) return NULL;
    const char *text = json_string_value(value);
    text += strspn(text, " \t\n\r\v\f");
    size_t n = strlen(text);
    while (n > 0 && isspace((unsigned char)text[n - 1])) n--;
    return ag_arena_strndup(arena, text, n);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
static ag_status check_rank(const json_t *root, const char *name, ag_err *err)
{
    const json_t *r = json_object_get(root, "r");
    if (!r || (json_is_integer(r) && json_integer_value(r) > 0)) return AG_OK; /* PEFT's default is 8 */
    return ag_fail(err, AG_E_FORMAT, "%s: 'r' must be a whole number over 0", name);
}

static ag_status check_number(const json_t *root, const char *key, double min, double max, const char *name, ag_err *err)
{
    const json_t *value = json_object_get(root, key);
    if (!value) return AG_OK;
    const double number = json_number_value(value);
    if (json_is_number(value) && number >= min && number <= max) return AG_OK;
    return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be a number from %g to %g", name, key, min, max);
}

static bool is_dotted_path(const char *key)
{
    if (!*key || *key == '.' || key[strlen(key) - 1] == '.' || strstr(key, "..")) return false;
    for (const char *c = key; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_' && *c != '.') return false;
    return true;
}

static ag_status check_patterns(const json_t *root, const char *name, ag_err *err)
{
    json_t *ranks = json_object_get(root, "rank_pattern"), *alphas = json_object_get(root, "alpha_pattern"), *value;
    const char *key;
    if ((ranks && !json_is_object(ranks)) || (alphas && !json_is_object(alphas)))
        return ag_fail(err, AG_E_FORMAT, "%s: 'rank_pattern' and 'alpha_pattern' must be objects", name);
    json_object_foreach(ranks, key, value) if (!is_dotted_path(key) || !json_is_integer(value) ||
                                               json_integer_value(value) <=
                                                   0) return ag_fail(err, AG_E_FORMAT,
                                                                     "%s: 'rank_pattern' must give dotted names of modules "
                                                                     "whole numbers over 0; see '%.60s'",
                                                                     name, key);
    json_object_foreach(
        alphas, key,
        value) if (!is_dotted_path(key) || !json_is_number(value) ||
                   !isfinite(json_number_value(
                       value))) return ag_fail(err, AG_E_FORMAT,
                                               "%s: 'alpha_pattern' must give dotted names of modules numbers; see '%.60s'",
                                               name, key);
    return AG_OK;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */
static ag_status read_facts(ag_lora_facts *f, json_t *root, const char *name, ag_arena *arena, ag_err *err)
{
    bool revision_usable;
    if (!json_is_object(root)) return ag_fail(err, AG_E_FORMAT, "%s: a JSON object was expected", name);
    const char *base = json_string_value(json_object_get(root, "base_model_name_or_path"));
    if (base && !is_blank(base)) f->base_model = ag_arena_strdup(arena, base);
    f->revision = read_revision(root, &revision_usable, arena);
    if (!f->base_model) return ag_fail(err, AG_E_FORMAT, "%s: 'base_model_name_or_path' names no base model", name);
    if (!revision_usable) return ag_fail(err, AG_E_FORMAT, "%s: 'revision' must be a text or null", name);
    const char *type = json_string_value(json_object_get(root, "peft_type"));
    if (!type || strcmp(type, "LORA") != 0) return ag_fail(err, AG_E_UNSUPPORTED, "%s: 'peft_type' is not 'LORA'", name);
    AG_TRY(check_keys(root, name, err));
    AG_TRY(check_rank(root, name, err));
    AG_TRY(check_number(root, "lora_alpha", -1e308, 1e308, name, err));
    AG_TRY(check_number(root, "lora_dropout", 0, 1, name, err));
    return check_patterns(root, name, err);
}

/* JSON may write half of a surrogate pair, which is no text; it goes on as the six characters that stand for it. */
static void keep_lone_surrogates(ag_str *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned first, second;
        if (text[i] != '\\' || i + 1 == n) {
            ag_str_add_char(out, text[i]);
            continue;
        }
        const bool is_half = i + 6 <= n && sscanf(text + i, "\\u%4x", &first) == 1 && first >= 0xd800 && first < 0xe000;
        const bool is_pair = is_half && first < 0xdc00 && i + 12 <= n && sscanf(text + i + 6, "\\u%4x", &second) == 1 &&
                             second >= 0xdc00 && second < 0xe000;
        const size_t n_whole = is_pair ? 12 : is_half ? 6 : 2;
        if (is_half && !is_pair) ag_str_add_char(out, '\\');
        ag_str_add_n(out, text + i, n_whole);
        i += n_whole - 1;
    }
}

/* A revision that is a number is PEFT's to refuse; here it has become text. */
static ag_status parse_config(ag_peft_config *out, json_t *root, const char *name, ag_arena *arena, ag_err *err)
{
    char *text;
    if (json_is_integer(json_object_get(root, "revision"))) json_object_set_new(root, "revision", json_null());
    text = json_dumps(root, 0);
    if (!text) return ag_fail(err, AG_E_FORMAT, "%s: cannot be written as JSON again", name);
    const ag_status status = ag_peft_config_parse(out, text, strlen(text), name, arena, err);
    free(text);
    return status;
}

ag_status ag_lora_facts_load(ag_lora_facts *out, const char *dir, const char *shown, ag_arena *arena, ag_err *err)
{
    *out = (ag_lora_facts){.follows = AG_E_FORMAT};
    const char *name = ag_path_join(arena, shown, AG_PEFT_CONFIG_FILE);
    ag_map map;
    json_t *root = NULL;
    ag_str text = {0};
    AG_TRY(ag_map_open_no_link(&map, ag_path_join(arena, dir, AG_PEFT_CONFIG_FILE), err));
    ag_status status = AG_OK;
    if (map.n > MOST_CONFIG_BYTES) {
        status = ag_fail(err, AG_E_FORMAT, "%s has %zu bytes; at most %d are read", name, map.n, MOST_CONFIG_BYTES);
    } else {
        keep_lone_surrogates(&text, (const char *)map.bytes, map.n);
        status = ag_json_parse_nan(&root, text.text ? text.text : "", text.n, name, err);
    }
    ag_map_close(&map);
    ag_str_free(&text);
    if (!status) status = read_facts(out, root, name, arena, err);
    if (!status) out->follows = parse_config(&out->config, root, name, arena, &out->why);
    ag_json_free(&root);
    return status;
}
