/* JSON Schema to the graph of a grammar. */
#include "serve/grammar_internal.h"

#include "base/arena.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 48, MAX_REFS = 256, MAX_COUNT = 1 << 14 };

typedef struct {
    ag_grammar *g;
    const json_t *root;
    struct {
        const json_t *schema;
        int32_t rule;
    } refs[MAX_REFS];
    int n_refs, depth;
    ag_status status;
    ag_err *err;
} maker;

static const char *const annotations[] = {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$schema",
                                          "$id", "$comment", "$defs", "definitions", "strict", "name"};
static const char *const keywords[] = {"type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "enum",
                                       "const", "anyOf", "oneOf", "allOf", "minLength", "maxLength", "$ref"};
#define N_OF(list) (sizeof list / sizeof *list)

static int32_t compile(maker *m, const json_t *schema, int32_t next);

#define FAIL(m, code, ...) ((m)->status ? -1 : ((m)->status = ag_fail((m)->err, code, __VA_ARGS__), -1))

static bool is_in(const char *word, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], word) == 0) return true;
    return false;
}

/* Counts the keywords that say something. */
static int check_keywords(maker *m, const json_t *schema)
{
    int n = 0;
    for (void *it = json_object_iter((json_t *)(uintptr_t)schema); it; it = json_object_iter_next((json_t *)(uintptr_t)schema, it)) {
        const char *key = json_object_iter_key(it);
        if (is_in(key, annotations, N_OF(annotations))) continue;
        if (!is_in(key, keywords, N_OF(keywords)))
            return FAIL(m, AG_E_UNSUPPORTED, "the schema's keyword '%.64s' is not supported; supported are type, properties, required, "
                        "additionalProperties, items, prefixItems, minItems, maxItems, enum, const, anyOf, oneOf, allOf of one, minLength, maxLength, "
                        "and $ref inside the schema", key);
        n++;
    }
    return n;
}

static int64_t count_of(maker *m, const json_t *schema, const char *key, int64_t missing)
{
    const json_t *value = json_object_get(schema, key);
    if (!value) return missing;
    if (json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= MAX_COUNT) return json_integer_value(value);
    FAIL(m, AG_E_FORMAT, "the schema's '%s' must be a whole number from 0 to %d", key, MAX_COUNT);
    return missing;
}

static int32_t end_of_rule(ag_grammar *g) { return ag_grammar_add(g, (ag_state){AG_STATE_RETURN, 0, 0, -1, -1}); }

/* The schema as a rule of its own, so that several places share its states. */
static int32_t rule_of(maker *m, const json_t *schema)
{
    const int32_t rule = ag_grammar_rule(m->g);
    const int32_t entry = compile(m, schema, end_of_rule(m->g));
    m->g->rules[rule] = entry;
    return entry < 0 ? -1 : rule;
}

static int32_t json_literal(maker *m, const json_t *value, int32_t next)
{
    ag_str text = {0};
    ag_json_writer w = {.out = &text};
    ag_jw_value(&w, NULL, value);
    const int32_t state = ag_grammar_literal(m->g, text.text, text.n, next);
    ag_str_free(&text);
    return state;
}

/* n_min items at least, n_max at most (-1: any number), each `rule`, behind `between` but the first. `last` follows. */
static int32_t repeat_chars(maker *m, int64_t n_min, int64_t n_max, int32_t last)
{
    ag_grammar *g = m->g;
    int32_t at = last;
    if (n_max < 0) {
        at = ag_grammar_add(g, (ag_state){AG_STATE_SPLIT, 0, 0, last, -1});
        const int32_t more = ag_grammar_call(g, AG_RULE_CHAR, at);
        g->states[at].b = more;
    }
    for (int64_t i = n_max < 0 ? 0 : n_max - n_min; i > 0 && n_max >= 0; i--) at = ag_grammar_either(g, last, ag_grammar_call(g, AG_RULE_CHAR, at));
    for (int64_t i = 0; i < n_min; i++) at = ag_grammar_call(g, AG_RULE_CHAR, at);
    return at;
}

static int32_t compile_string(maker *m, const json_t *schema, int32_t next)
{
    const int64_t n_min = count_of(m, schema, "minLength", 0), n_max = count_of(m, schema, "maxLength", -1);
    if (m->status) return -1;
    if (n_min == 0 && n_max < 0) return ag_grammar_call(m->g, AG_RULE_STRING, next);
    if (n_max >= 0 && n_max < n_min) return FAIL(m, AG_E_FORMAT, "the schema's maxLength is below its minLength: no text fits");
    return ag_grammar_bytes(m->g, '"', '"', repeat_chars(m, n_min, n_max, ag_grammar_bytes(m->g, '"', '"', next)));
}

/* ---- lists ------------------------------------------------------------------------------------------------------------------------ */
static int32_t comma(ag_grammar *g, int32_t next) { return ag_grammar_bytes(g, ',', ',', ag_grammar_call(g, AG_RULE_SPACE, next)); }

static int32_t compile_array(maker *m, const json_t *schema, int32_t next)
{
    ag_grammar *g = m->g;
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems");
    const int64_t n_prefix = (int64_t)json_array_size(prefix), n_min = count_of(m, schema, "minItems", 0);
    int64_t n_max = count_of(m, schema, "maxItems", -1);
    if (items && json_is_false(items)) n_max = n_max < 0 || n_max > n_prefix ? n_prefix : n_max;
    if (m->status) return -1;
    if (n_max >= 0 && n_max < n_min) return FAIL(m, AG_E_FORMAT, "the schema's maxItems is below its minItems: no list fits");
    const bool has_rest = n_max < 0 || n_max > n_prefix;
    const int32_t rest = !has_rest ? -1 : items && !json_is_true(items) ? rule_of(m, items) : AG_RULE_VALUE;
    if (m->status) return -1;
    const int32_t close = ag_grammar_bytes(g, ']', ']', next), closing = ag_grammar_call(g, AG_RULE_SPACE, close);

    /* after[i]: i items are there. Built from the back; position 0 has no comma in front of its item. */
    const int64_t n_fixed = n_max >= 0 ? n_max : n_min > n_prefix ? n_min : n_prefix;
    int32_t after = closing;
    if (n_max < 0) {
        after = ag_grammar_add(g, (ag_state){AG_STATE_SPLIT, 0, 0, closing, -1});
        const int32_t more = comma(g, ag_grammar_call(g, rest, after));
        g->states[after].b = more;
    }
    int32_t first = -1;
    for (int64_t i = n_fixed - 1; i >= 0 && !g->too_large; i--) {
        const int32_t rule = i < n_prefix ? rule_of(m, json_array_get(prefix, (size_t)i)) : rest;
        if (m->status) return -1;
        first = ag_grammar_call(g, rule, after);
        if (i > 0) after = i >= n_min ? ag_grammar_either(g, closing, comma(g, first)) : comma(g, first);
    }
    if (n_fixed == 0 && n_max < 0) first = ag_grammar_call(g, rest, after);
    const int32_t inside = n_min > 0 ? first : ag_grammar_either(g, first, close);
    return ag_grammar_bytes(g, '[', '[', ag_grammar_call(g, AG_RULE_SPACE, inside));
}

/* ---- objects ------------------------------------------------------------------------------------------------------------------------ */
static int32_t key_and_value(maker *m, const char *key, const json_t *schema, int32_t next)
{
    const int32_t value = compile(m, schema, next);
    if (value < 0) return -1;
    json_t *text = json_string(key);
    const int32_t state = json_literal(m, text, ag_grammar_bytes(m->g, ':', ':', ag_grammar_call(m->g, AG_RULE_SPACE, value)));
    json_decref(text);
    return state;
}

static bool is_required(const json_t *required, const char *key)
{
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (name && strcmp(name, key) == 0) return true;
    }
    return false;
}

static int32_t compile_properties(maker *m, const json_t *properties, const json_t *required, int32_t next)
{
    ag_grammar *g = m->g;
    const size_t n = json_object_size(properties);
    const char **keys = calloc(n + 1, sizeof *keys);
    if (!keys) ag_out_of_memory(n * sizeof *keys);
    size_t k = 0;
    for (void *it = json_object_iter((json_t *)(uintptr_t)properties); it; it = json_object_iter_next((json_t *)(uintptr_t)properties, it))
        keys[k++] = json_object_iter_key(it);
    const int32_t close = ag_grammar_bytes(g, '}', '}', next);
    int32_t none_yet = close, some = ag_grammar_call(g, AG_RULE_SPACE, close);
    while (k-- > 0 && !m->status) {
        const int32_t pair = key_and_value(m, keys[k], json_object_get(properties, keys[k]), some), behind = comma(g, pair);
        const bool must = is_required(required, keys[k]);
        none_yet = must ? pair : ag_grammar_either(g, pair, none_yet);
        some = must ? behind : ag_grammar_either(g, behind, some);
    }
    free(keys);
    return m->status ? -1 : ag_grammar_bytes(g, '{', '{', ag_grammar_call(g, AG_RULE_SPACE, none_yet));
}

static int32_t compile_map(maker *m, const json_t *values, int32_t next)
{
    ag_grammar *g = m->g;
    const int32_t rule = !values || json_is_true(values) ? AG_RULE_VALUE : rule_of(m, values);
    if (rule < 0) return -1;
    const int32_t close = ag_grammar_bytes(g, '}', '}', next);
    const int32_t after = ag_grammar_add(g, (ag_state){AG_STATE_SPLIT, 0, 0, ag_grammar_call(g, AG_RULE_SPACE, close), -1});
    const int32_t item = ag_grammar_call(g, AG_RULE_STRING,
                                         ag_grammar_bytes(g, ':', ':', ag_grammar_call(g, AG_RULE_SPACE, ag_grammar_call(g, rule, after))));
    const int32_t more = comma(g, item);
    g->states[after].b = more;
    return ag_grammar_bytes(g, '{', '{', ag_grammar_call(g, AG_RULE_SPACE, ag_grammar_either(g, item, close)));
}

static int32_t compile_object(maker *m, const json_t *schema, int32_t next)
{
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required"),
                 *others = json_object_get(schema, "additionalProperties");
    if (properties && !json_is_object(properties)) return FAIL(m, AG_E_FORMAT, "the schema's 'properties' must be an object");
    if (required && !json_is_array(required)) return FAIL(m, AG_E_FORMAT, "the schema's 'required' must be a list of names");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name || !json_object_get(properties, name))
            return FAIL(m, AG_E_UNSUPPORTED, "the schema requires '%.64s', which is not among its properties", name ? name : "?");
    }
    if (json_object_size(properties) > 0) return compile_properties(m, properties, required, next);
    if (others && json_is_false(others))
        return ag_grammar_bytes(m->g, '{', '{', ag_grammar_call(m->g, AG_RULE_SPACE, ag_grammar_bytes(m->g, '}', '}', next)));
    return compile_map(m, others, next);
}

/* ---- schemas ------------------------------------------------------------------------------------------------------------------------ */
/* "#/$defs/Name", each part an object's key (JSON Pointer without escapes but ~0 and ~1). */
static const json_t *resolve(maker *m, const char *ref)
{
    const json_t *at = m->root;
    if (ref[0] != '#') return NULL;
    for (ref++; *ref == '/' && at;) {
        char key[256];
        size_t n = 0;
        for (ref++; *ref && *ref != '/' && n < sizeof key - 1; ref++) {
            if (*ref == '~' && (ref[1] == '0' || ref[1] == '1')) key[n++] = *++ref == '0' ? '~' : '/';
            else key[n++] = *ref;
        }
        key[n] = 0;
        at = json_object_get(at, key);
    }
    return *ref ? NULL : at;
}

static int32_t compile_ref(maker *m, const char *ref, int32_t next)
{
    const json_t *target = ref ? resolve(m, ref) : NULL;
    if (!target) return FAIL(m, AG_E_UNSUPPORTED, "the schema's $ref '%.128s' points to nothing inside it", ref ? ref : "?");
    for (int i = 0; i < m->n_refs; i++)
        if (m->refs[i].schema == target) return ag_grammar_call(m->g, m->refs[i].rule, next);
    if (m->n_refs == MAX_REFS) return FAIL(m, AG_E_UNSUPPORTED, "the schema has more than %d definitions", MAX_REFS);
    const int32_t rule = ag_grammar_rule(m->g);
    m->refs[m->n_refs].schema = target;
    m->refs[m->n_refs++].rule = rule;
    const int32_t entry = compile(m, target, end_of_rule(m->g));
    m->g->rules[rule] = entry;
    return entry < 0 ? -1 : ag_grammar_call(m->g, rule, next);
}

static int32_t compile_any(maker *m, const json_t *schemas, const char *key, int32_t next)
{
    if (!json_is_array(schemas) || json_array_size(schemas) == 0) return FAIL(m, AG_E_FORMAT, "the schema's '%s' must be a list of schemas", key);
    if (strcmp(key, "allOf") == 0 && json_array_size(schemas) > 1) return FAIL(m, AG_E_UNSUPPORTED, "the schema's 'allOf' has several schemas; one is supported");
    int32_t all = -1;
    for (size_t i = 0; i < json_array_size(schemas) && !m->status; i++) {
        const int32_t one = compile(m, json_array_get(schemas, i), next);
        if (one >= 0) all = ag_grammar_either(m->g, one, all);
    }
    return m->status ? -1 : all;
}

static int32_t compile_type(maker *m, const json_t *schema, const char *type, int32_t next)
{
    ag_grammar *g = m->g;
    if (strcmp(type, "object") == 0) return compile_object(m, schema, next);
    if (strcmp(type, "array") == 0) return compile_array(m, schema, next);
    if (strcmp(type, "string") == 0) return compile_string(m, schema, next);
    if (strcmp(type, "integer") == 0) return ag_grammar_call(g, AG_RULE_INTEGER, next);
    if (strcmp(type, "number") == 0) return ag_grammar_call(g, AG_RULE_NUMBER, next);
    if (strcmp(type, "null") == 0) return ag_grammar_literal(g, "null", 4, next);
    if (strcmp(type, "boolean") == 0)
        return ag_grammar_either(g, ag_grammar_literal(g, "true", 4, next), ag_grammar_literal(g, "false", 5, next));
    return FAIL(m, AG_E_FORMAT, "the schema's type '%.32s' is none", type);
}

static int32_t compile_types(maker *m, const json_t *schema, int32_t next)
{
    const json_t *type = json_object_get(schema, "type");
    if (json_is_string(type)) return compile_type(m, schema, json_string_value(type), next);
    if (json_is_array(type) && json_array_size(type) > 0) {
        int32_t all = -1;
        for (size_t i = 0; i < json_array_size(type) && !m->status; i++) {
            const char *one = json_string_value(json_array_get(type, i));
            if (!one) return FAIL(m, AG_E_FORMAT, "the schema's 'type' must be a name or a list of names");
            all = ag_grammar_either(m->g, compile_type(m, schema, one, next), all);
        }
        return m->status ? -1 : all;
    }
    if (type) return FAIL(m, AG_E_FORMAT, "the schema's 'type' must be a name or a list of names");
    if (json_object_get(schema, "properties") || json_object_get(schema, "additionalProperties")) return compile_object(m, schema, next);
    if (json_object_get(schema, "items") || json_object_get(schema, "prefixItems")) return compile_array(m, schema, next);
    if (json_object_get(schema, "minLength") || json_object_get(schema, "maxLength")) return compile_string(m, schema, next);
    return ag_grammar_call(m->g, AG_RULE_VALUE, next);
}

static int32_t compile_keywords(maker *m, const json_t *schema, int32_t next)
{
    static const char *const alone[] = {"$ref", "anyOf", "oneOf", "allOf"};
    const int n = check_keywords(m, schema);
    if (m->status) return -1;
    for (size_t i = 0; i < N_OF(alone); i++) {
        const json_t *value = json_object_get(schema, alone[i]);
        if (!value) continue;
        if (n > 1) return FAIL(m, AG_E_UNSUPPORTED, "the schema's '%s' stands beside other keywords; it is supported alone", alone[i]);
        return i == 0 ? compile_ref(m, json_string_value(value), next) : compile_any(m, value, alone[i], next);
    }
    const json_t *constant = json_object_get(schema, "const"), *choices = json_object_get(schema, "enum");
    if (constant) return json_literal(m, constant, next);
    if (!choices) return compile_types(m, schema, next);
    if (!json_is_array(choices) || json_array_size(choices) == 0) return FAIL(m, AG_E_FORMAT, "the schema's 'enum' must be a list of values");
    int32_t all = -1;
    for (size_t i = 0; i < json_array_size(choices); i++) all = ag_grammar_either(m->g, json_literal(m, json_array_get(choices, i), next), all);
    return all;
}

static int32_t compile(maker *m, const json_t *schema, int32_t next)
{
    if (m->status) return -1;
    if (json_is_true(schema)) return ag_grammar_call(m->g, AG_RULE_VALUE, next);
    if (!json_is_object(schema)) return FAIL(m, AG_E_FORMAT, "a schema must be an object");
    if (m->depth == MAX_NESTING) return FAIL(m, AG_E_UNSUPPORTED, "the schema nests deeper than %d", MAX_NESTING);
    m->depth++;
    const int32_t state = compile_keywords(m, schema, next);
    m->depth--;
    if (m->g->too_large) return FAIL(m, AG_E_UNSUPPORTED, "the schema needs more than %d states; shorten its lists, lengths or enums", AG_GRAMMAR_MAX_STATES);
    return state;
}

static ag_status finish(ag_grammar **out, maker *m, int32_t start)
{
    m->g->start = start;
    if (!m->status && start >= 0 && !ag_grammar_allows_nothing(m->g)) {
        *out = m->g;
        return AG_OK;
    }
    ag_grammar_free(&m->g);
    return m->status ? m->status : ag_fail(m->err, AG_E_FORMAT, "the schema allows nothing");
}

ag_status ag_grammar_of_schema(ag_grammar **out, const json_t *schema, ag_err *err)
{
    *out = NULL;
    maker m = {.g = ag_grammar_create(), .root = schema, .err = err};
    return finish(out, &m, compile(&m, schema, end_of_rule(m.g)));
}

ag_status ag_grammar_of_any_object(ag_grammar **out, ag_err *err)
{
    *out = NULL;
    maker m = {.g = ag_grammar_create(), .err = err};
    return finish(out, &m, m.g->rules[AG_RULE_OBJECT]);
}

ag_status ag_grammar_of_call(ag_grammar **out, const json_t *tools, const char *name, ag_call_style style, ag_err *err)
{
    *out = NULL;
    maker m = {.g = ag_grammar_create(), .err = err};
    ag_grammar *g = m.g;
    const char *prefix, *arguments_key, *suffix;
    ag_call_frame(style, &prefix, &arguments_key, &suffix);
    int32_t all = -1;
    const int32_t end = ag_grammar_bytes(g, '}', '}', ag_grammar_literal(g, suffix, strlen(suffix), end_of_rule(g)));
    for (size_t i = 0; i < json_array_size(tools) && !m.status; i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function"), *label = json_object_get(function, "name");
        if (name && strcmp(json_string_value(label), name) != 0) continue;
        const json_t *parameters = json_object_get(function, "parameters");
        m.root = parameters;
        const int32_t arguments = parameters && json_object_size(parameters) > 0 ? compile(&m, parameters, end) : ag_grammar_call(g, AG_RULE_OBJECT, end);
        if (arguments < 0) break;
        ag_str text = {0};
        ag_json_writer w = {.out = &text};
        ag_str_printf(&text, "%s{\"name\": ", prefix);
        ag_jw_value(&w, NULL, label);
        ag_str_printf(&text, ", \"%s\": ", arguments_key);
        all = ag_grammar_either(g, ag_grammar_literal(g, text.text, text.n, arguments), all);
        ag_str_free(&text);
    }
    return finish(out, &m, all);
}
