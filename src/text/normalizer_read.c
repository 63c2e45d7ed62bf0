/* Reading normalizers, and what all readers of rules share. */
#include "text/normalizer.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

const char *ag_rule_type(const json_t *rule)
{
    const char *type = json_string_value(json_object_get(rule, "type"));
    return type ? type : "";
}

ag_status ag_rule_text(char **out, size_t *n, const json_t *rule, const char *key, const char *name, ag_err *err)
{
    const json_t *value = json_object_get(rule, key);
    if (!json_is_string(value))
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' of the rule %s must be a string", name, key, ag_rule_type(rule));
    *n = json_string_length(value);
    *out = malloc(*n + 1);
    if (!*out) ag_out_of_memory(*n + 1);
    memcpy(*out, json_string_value(value), *n + 1);
    return AG_OK;
}

ag_status ag_rule_pattern(ag_pattern *out, const json_t *rule, const char *key, const char *name, ag_err *err)
{
    const json_t *pattern = json_object_get(rule, key);
    const json_t *text = json_is_string(pattern) ? pattern : json_object_get(pattern, "String"),
                 *regex = json_object_get(pattern, "Regex");
    const json_t *value = regex ? regex : text;
    if (!json_is_string(value))
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' of the rule %s must be {\"String\": …} or {\"Regex\": …}", name, key,
                       ag_rule_type(rule));
    return ag_pattern_init(out, json_string_value(value), json_string_length(value), regex != NULL, false, name, err);
}

ag_status ag_rule_list(size_t *n, const json_t *rule, const char *list_key, const char *name, ag_err *err)
{
    *n = 0;
    if (!rule || json_is_null(rule)) return AG_OK;
    if (!json_is_object(rule)) return ag_fail(err, AG_E_FORMAT, "%s: a rule must be an object with a 'type'", name);
    *n = 1;
    if (strcmp(ag_rule_type(rule), "Sequence") != 0) return AG_OK;
    const json_t *list = json_object_get(rule, list_key);
    if (!json_is_array(list)) return ag_fail(err, AG_E_FORMAT, "%s: a Sequence needs a list '%s'", name, list_key);
    *n = json_array_size(list);
    return AG_OK;
}

const json_t *ag_rule_at(const json_t *rule, const char *list_key, size_t i)
{
    return strcmp(ag_rule_type(rule), "Sequence") == 0 ? json_array_get(json_object_get(rule, list_key), i) : rule;
}

/* Rules under `value`, Sequences inside Sequences flattened. Depth is bounded by the JSON reader. */
static size_t count_rules(const json_t *value)
{
    if (!json_is_object(value)) return 0;
    if (strcmp(ag_rule_type(value), "Sequence") != 0) return 1;
    const json_t *list = json_object_get(value, "normalizers");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) n += count_rules(json_array_get(list, i));
    return n;
}

static ag_status read_bert(ag_norm_rule *r, const json_t *value, const char *name, ag_err *err)
{
    r->kind = AG_NORM_BERT;
    r->clean_text = r->chinese = r->lowercase = true;
    AG_TRY(ag_json_get_bool(value, "clean_text", &r->clean_text, name, err));
    AG_TRY(ag_json_get_bool(value, "handle_chinese_chars", &r->chinese, name, err));
    AG_TRY(ag_json_get_bool(value, "lowercase", &r->lowercase, name, err));
    r->strip_accents = r->lowercase;
    return ag_json_get_bool(value, "strip_accents", &r->strip_accents, name, err);
}

static ag_status read_rule(ag_norm_rule *r, const json_t *value, const char *name, ag_err *err)
{
    static const struct {
        const char *type;
        ag_norm_kind kind;
    } plain[] = {{"NFC", AG_NORM_NFC},
                 {"NFD", AG_NORM_NFD},
                 {"NFKC", AG_NORM_NFKC},
                 {"NFKD", AG_NORM_NFKD},
                 {"Nmt", AG_NORM_NMT},
                 {"Lowercase", AG_NORM_LOWERCASE},
                 {"StripAccents", AG_NORM_STRIP_ACCENTS},
                 {"ByteLevel", AG_NORM_BYTE_LEVEL}};
    const char *type = ag_rule_type(value);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(type, plain[i].type) == 0) return r->kind = plain[i].kind, AG_OK;
    if (strcmp(type, "BertNormalizer") == 0) return read_bert(r, value, name, err);
    if (strcmp(type, "Strip") == 0) {
        r->kind = AG_NORM_STRIP;
        r->left = r->right = true;
        AG_TRY(ag_json_get_bool(value, "strip_left", &r->left, name, err));
        return ag_json_get_bool(value, "strip_right", &r->right, name, err);
    }
    if (strcmp(type, "Prepend") == 0) {
        r->kind = AG_NORM_PREPEND;
        return ag_rule_text(&r->text, &r->n_text, value, "prepend", name, err);
    }
    if (strcmp(type, "Replace") == 0) {
        r->kind = AG_NORM_REPLACE;
        AG_TRY(ag_rule_text(&r->text, &r->n_text, value, "content", name, err));
        return ag_rule_pattern(&r->pattern, value, "pattern", name, err);
    }
    if (strcmp(type, "Precompiled") == 0) {
        const json_t *map = json_object_get(value, "precompiled_charsmap");
        r->kind = AG_NORM_PRECOMPILED;
        return ag_charsmap_create(&r->charsmap, json_is_string(map) ? json_string_value(map) : "", json_string_length(map),
                                  name, err);
    }
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "%s: the normalizer '%s' is not known; known are NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
                   "StripAccents, Prepend, Replace, BertNormalizer, Nmt, Precompiled, ByteLevel and Sequence",
                   name, type);
}

static ag_status read_rules(ag_normalizer *z, const json_t *value, const char *name, ag_err *err)
{
    size_t n;
    AG_TRY(ag_rule_list(&n, value, "normalizers", name, err));
    if (strcmp(ag_rule_type(value), "Sequence") != 0) return n ? read_rule(&z->rules[z->n++], value, name, err) : AG_OK;
    for (size_t i = 0; i < n; i++) AG_TRY(read_rules(z, ag_rule_at(value, "normalizers", i), name, err));
    return AG_OK;
}

ag_status ag_normalizer_init(ag_normalizer *z, const json_t *value, const char *name, ag_err *err)
{
    *z = (ag_normalizer){0};
    z->rules = calloc(count_rules(value) + 1, sizeof *z->rules);
    if (!z->rules) ag_out_of_memory(sizeof *z->rules);
    ag_status status = read_rules(z, value, name, err);
    if (status) ag_normalizer_deinit(z);
    return status;
}

void ag_normalizer_deinit(ag_normalizer *z)
{
    for (size_t i = 0; i < z->n; i++) {
        ag_pattern_deinit(&z->rules[i].pattern);
        free(z->rules[i].text);
        ag_charsmap_free(&z->rules[i].charsmap);
    }
    free(z->rules);
    *z = (ag_normalizer){0};
}
