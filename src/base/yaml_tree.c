#include "base/yaml_tree.h"

#include "base/arena.h"
#include "base/fs.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_DEPTH = 32 };

typedef struct {
    yaml_parser_t parser;
    const char *name;
    ag_err *err;
    int depth;
} reader;

static ag_status next(reader *r, yaml_event_t *event)
{
    if (yaml_parser_parse(&r->parser, event)) return AG_OK;
    return ag_fail(r->err, AG_E_FORMAT, "%s: line %zu: %s", r->name, r->parser.problem_mark.line + 1, r->parser.problem ? r->parser.problem : "no YAML");
}

static ag_status refuse(const reader *r, const yaml_event_t *event, const char *what)
{
    return ag_fail(r->err, AG_E_FORMAT, "%s: line %zu: %s", r->name, event->start_mark.line + 1, what);
}

/* Plain scalars by YAML 1.2's core schema. */
static json_t *plain(const char *text)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL", "true", "True", "TRUE", "false", "False", "FALSE"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i]) == 0) return i < 5 ? json_null() : i < 8 ? json_true() : json_false();
    const char *digits = text + (*text == '-' || *text == '+');
    if (*digits && strspn(digits, "0123456789") == strlen(digits)) {
        errno = 0;
        const long long value = strtoll(text, NULL, 10);
        if (!errno) return json_integer(value);
    }
    if (*digits && strspn(digits, "0123456789.eE+-") == strlen(digits) && strpbrk(digits, "0123456789")) {
        char *end;
        const double value = strtod(text, &end);
        if (!*end && isfinite(value)) return json_real(value);
    }
    return json_string(text);
}

static ag_status read_value(reader *r, const yaml_event_t *event, json_t **out);

static ag_status read_list(reader *r, json_t **out)
{
    *out = json_array();
    for (;;) {
        yaml_event_t event;
        AG_TRY(next(r, &event));
        if (event.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&event);
            return AG_OK;
        }
        json_t *item = NULL;
        const ag_status status = read_value(r, &event, &item);
        yaml_event_delete(&event);
        if (item) json_array_append_new(*out, item);
        if (status) return status;
    }
}

static ag_status read_pair(reader *r, json_t *object, const yaml_event_t *key)
{
    if (key->type != YAML_SCALAR_EVENT) return refuse(r, key, "a key must be a word");
    const char *name = (const char *)key->data.scalar.value;
    if (json_object_get(object, name)) return refuse(r, key, "this key stands twice");
    yaml_event_t event;
    AG_TRY(next(r, &event));
    json_t *value = NULL;
    const ag_status status = read_value(r, &event, &value);
    yaml_event_delete(&event);
    if (value && json_object_set_new(object, name, value)) return refuse(r, key, "this key is no UTF-8");
    return status;
}

static ag_status read_mapping(reader *r, json_t **out)
{
    *out = json_object();
    for (;;) {
        yaml_event_t key;
        AG_TRY(next(r, &key));
        const bool is_end = key.type == YAML_MAPPING_END_EVENT;
        const ag_status status = is_end ? AG_OK : read_pair(r, *out, &key);
        yaml_event_delete(&key);
        if (is_end || status) return status;
    }
}

static ag_status read_scalar(reader *r, const yaml_event_t *event, json_t **out)
{
    const char *text = (const char *)event->data.scalar.value;
    if (event->data.scalar.anchor || event->data.scalar.tag) return refuse(r, event, "anchors and tags are not taken");
    if (strlen(text) != event->data.scalar.length) return refuse(r, event, "a text with NUL inside is not taken");
    *out = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? plain(text) : json_string(text);
    return *out ? AG_OK : refuse(r, event, "this text is no UTF-8");
}

/* *out may be set on failure, too; it then belongs to the caller. */
static ag_status read_value(reader *r, const yaml_event_t *event, json_t **out)
{
    if (event->type == YAML_SCALAR_EVENT) return read_scalar(r, event, out);
    const bool is_list = event->type == YAML_SEQUENCE_START_EVENT;
    if (!is_list && event->type != YAML_MAPPING_START_EVENT) return refuse(r, event, "aliases are not taken");
    if (is_list ? event->data.sequence_start.anchor || event->data.sequence_start.tag : event->data.mapping_start.anchor || event->data.mapping_start.tag)
        return refuse(r, event, "anchors and tags are not taken");
    if (r->depth == MAX_DEPTH) return refuse(r, event, "this nests too deep");
    r->depth++;
    const ag_status status = is_list ? read_list(r, out) : read_mapping(r, out);
    r->depth--;
    return status;
}

static ag_status read_stream(reader *r, json_t **root)
{
    for (bool has_document = false;;) {
        yaml_event_t event;
        AG_TRY(next(r, &event));
        ag_status status = AG_OK;
        const yaml_event_type_t type = event.type;
        if (type == YAML_DOCUMENT_START_EVENT && has_document) status = refuse(r, &event, "a second document is not taken");
        else if (type == YAML_DOCUMENT_START_EVENT) has_document = true;
        else if (type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT && type != YAML_DOCUMENT_END_EVENT) status = read_value(r, &event, root);
        yaml_event_delete(&event);
        if (status || type == YAML_STREAM_END_EVENT) return status;
    }
}

ag_status ag_yaml_parse(json_t **root, const char *bytes, size_t n, const char *name, ag_err *err)
{
    *root = NULL;
    reader r = {.name = name, .err = err};
    if (!yaml_parser_initialize(&r.parser)) ag_out_of_memory(n);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)bytes, n);
    const ag_status status = read_stream(&r, root);
    yaml_parser_delete(&r.parser);
    if (status) ag_json_free(root);
    else if (!*root) *root = json_null();
    return status;
}

ag_status ag_yaml_load(json_t **root, const char *path, size_t max_bytes, ag_err *err)
{
    *root = NULL;
    ag_arena arena = {0};
    char *bytes;
    size_t n;
    ag_status status = ag_file_read(&bytes, &n, path, max_bytes, &arena, err);
    if (!status) status = ag_yaml_parse(root, bytes, n, path, err);
    ag_arena_free(&arena);
    return status;
}
