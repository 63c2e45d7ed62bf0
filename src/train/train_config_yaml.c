#include "train/train_config_keys.h"

#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum {
    MAX_LIST = 4096, /* items of a list */
    MAX_MAP = 1024,  /* keys of a mapping of numbers */
    MAX_DEPTH = 3,   /* mappings within each other: the file, telemetry, profile_window */
    MAX_ROWS = 256
};

typedef struct {
    yaml_parser_t parser;
    ag_train_config *config;
    const char *name;            /* the file's, or "--set key" */
    bool is_override;            /* then lines mean nothing */
    size_t first_line[MAX_ROWS]; /* where a key was set, 1-based; 0: not yet */
    ag_err *err;
} reader;

/* "file.yaml:12: " or "--set key: " in front of a sentence. */
static ag_status fail_at(reader *r, size_t line, ag_status code, const char *format, ...) __attribute__((format(printf, 4, 5)));
static ag_status fail_at(reader *r, size_t line, ag_status code, const char *format, ...)
{
    va_list args;
    ag_str sentence = {0};
    char text[800];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->is_override)
        ag_str_printf(&sentence, "%s: %s", r->name, text);
    else
        ag_str_printf(&sentence, "%s:%zu: %s", r->name, line, text);
    ag_status status = ag_fail(r->err, code, "%s", sentence.text);
    ag_str_free(&sentence);
    return status;
}

static size_t line_of(const yaml_event_t *event) { return event->start_mark.line + 1; }

/* The next event; the caller deletes it. Refuses what this file has no use for. */
static ag_status next_event(reader *r, yaml_event_t *event)
{
    if (!yaml_parser_parse(&r->parser, event)) {
        const char *problem = r->parser.problem ? r->parser.problem : "not readable";
        size_t line = r->parser.problem_mark.line + 1;
        if (r->parser.error == YAML_READER_ERROR)
            return fail_at(r, line, AG_E_CONFIG, "%s at byte %zu; a config is YAML in UTF-8", problem,
                           r->parser.problem_offset);
        return fail_at(r, line, AG_E_CONFIG, "not valid YAML: %s (column %zu)", problem, r->parser.problem_mark.column + 1);
    }
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (event->type) {
    case YAML_ALIAS_EVENT: anchor = event->data.alias.anchor; break;
    case YAML_SCALAR_EVENT: anchor = event->data.scalar.anchor, tag = event->data.scalar.tag; break;
    case YAML_SEQUENCE_START_EVENT: anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag; break;
    case YAML_MAPPING_START_EVENT: anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag; break;
    default: break;
    }
    if (!anchor && !tag) return AG_OK;
    ag_status status = fail_at(r, line_of(event), AG_E_CONFIG, "%s '%.80s': a config has no use for it; write the value out",
                               tag                               ? "tag"
                               : event->type == YAML_ALIAS_EVENT ? "alias"
                                                                 : "anchor",
                               (const char *)(tag ? tag : anchor));
    yaml_event_delete(event);
    return status;
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0) return true;
    return false;
}

/* What YAML 1.1 takes a plain scalar for, as Python's loader does. */
static const char *const null_words[] = {"", "~", "null", "Null", "NULL", NULL};
static const char *const true_words[] = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", NULL};
static const char *const false_words[] = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", NULL};

typedef struct {
    const char *text;
    size_t n; /* NUL bytes inside are possible in "\0" */
    bool plain;
    size_t line;
} scalar;

static bool is_null(const scalar *s) { return s->plain && is_one_of(s->text, null_words); }
static bool is_bool(const scalar *s) { return s->plain && (is_one_of(s->text, true_words) || is_one_of(s->text, false_words)); }

static bool is_digits(const char *text, size_t *n)
{
    *n = strspn(text, "0123456789");
    return *n > 0;
}

/* [+-]digits */
static bool is_integer(const char *text)
{
    size_t n;
    if (*text == '+' || *text == '-') text++;
    return is_digits(text, &n) && text[n] == '\0';
}

/* [+-] digits [. digits] [e [+-] digits], one of the two digit groups may be missing. Also "1e-4", which YAML 1.1 takes for
 * a string and everybody means as a number. */
static bool is_number(const char *text)
{
    size_t whole, fraction = 0, exponent;
    if (*text == '+' || *text == '-') text++;
    whole = strspn(text, "0123456789");
    text += whole;
    if (*text == '.') {
        text++;
        fraction = strspn(text, "0123456789");
        text += fraction;
    }
    if (whole + fraction == 0) return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        if (*text == '+' || *text == '-') text++;
        if (!is_digits(text, &exponent)) return false;
        text += exponent;
    }
    return *text == '\0';
}

static const char *kind_of(const scalar *s)
{
    if (is_null(s)) return "null";
    if (is_bool(s)) return "the boolean";
    if (s->plain && is_number(s->text)) return "the number";
    return "the string";
}

static ag_status fail_type(reader *r, const ag_config_row *row, const scalar *s, const char *wanted)
{
    if (is_null(s)) return fail_at(r, s->line, AG_E_CONFIG, "'%s' must be %s, found null", row->key, wanted);
    return fail_at(r, s->line, AG_E_CONFIG, "'%s' must be %s, found %s '%.80s'", row->key, wanted, kind_of(s), s->text);
}

static ag_status read_text(reader *r, const ag_config_row *row, const scalar *s, const char **out)
{
    bool revision = strcmp(row->key, "revision") == 0;
    if (is_null(s) && row->nullable) {
        *out = NULL;
        return AG_OK;
    }
    if (is_null(s) || is_bool(s))
        return fail_type(r, row, s,
                         row->nullable ? "a string or null (in quotes if it is meant as text)"
                                       : "a string (in quotes if it is meant as text)");
    if (strlen(s->text) != s->n || !ag_utf8_valid(s->text, s->n))
        return fail_at(r, s->line, AG_E_CONFIG, "'%s' has a NUL or a broken UTF-8 byte in it", row->key);
    const char *from = s->text, *to = s->text + s->n;
    while (from < to && strchr(" \t\r\n", *from)) from++;
    while (to > from && strchr(" \t\r\n", to[-1])) to--;
    if (from == to && revision) {
        *out = NULL;
        return AG_OK;
    }
    if (from == to) return fail_at(r, s->line, AG_E_CONFIG, "'%s' is empty; give it a value or leave the key out", row->key);
    if (!revision) from = s->text, to = s->text + s->n;
    *out = ag_arena_strndup(&r->config->arena, from, (size_t)(to - from));
    return AG_OK;
}

static ag_status read_int(reader *r, const ag_config_row *row, const scalar *s, int64_t *out)
{
    if (is_null(s) && row->nullable) {
        *out = 0;
        return AG_OK;
    }
    const char *wanted = row->nullable ? "an integer or null" : "an integer";
    if (!s->plain || !is_integer(s->text)) return fail_type(r, row, s, wanted);
    const char *digits = s->text + (*s->text == '+' || *s->text == '-');
    if (digits[0] == '0' && digits[1] != '\0')
        return fail_at(r, s->line, AG_E_CONFIG,
                       "'%s' is '%.80s': some YAML readers take a leading 0 for octal; write it without", row->key, s->text);
    errno = 0;
    long long value = strtoll(s->text, NULL, 10);
    if (errno || value < row->min_whole || value > row->max_whole)
        return fail_at(r, s->line, AG_E_CONFIG, "'%s' must be from %lld to %lld, found %.80s", row->key,
                       (long long)row->min_whole, (long long)row->max_whole, s->text);
    *out = value;
    return AG_OK;
}

static ag_status read_real(reader *r, const ag_config_row *row, const scalar *s, double *out)
{
    if (!s->plain || !is_number(s->text)) return fail_type(r, row, s, "a number");
    double value = strtod(s->text, NULL);
    if (!isfinite(value) || value < row->min_real || value >= row->below_real)
        return fail_at(r, s->line, AG_E_CONFIG, "'%s' must be at least %g and below %g, found %.80s", row->key, row->min_real,
                       row->below_real, s->text);
    *out = value;
    return AG_OK;
}

static ag_status read_choice(reader *r, const ag_config_row *row, const scalar *s, int *out)
{
    const char *words[16], *trimmed = s->text;
    size_t n = 0, length = s->n;
    while (n < 16 && (words[n] = ag_config_word(row->text, n, &r->config->arena))) n++;
    while (length && strchr(" \t\r\n", *trimmed)) trimmed++, length--;
    while (length && strchr(" \t\r\n", trimmed[length - 1])) length--;
    for (size_t i = 0; i < n; i++)
        if (strlen(words[i]) == length && memcmp(words[i], trimmed, length) == 0) {
            *out = (int)i;
            return AG_OK;
        }
    ag_str list = {0};
    for (size_t i = 0; i < n; i++) ag_str_printf(&list, "%s'%s'", i == 0 ? "" : i + 1 == n ? " or " : ", ", words[i]);
    const char *near = ag_str_nearest(s->text, words, n);
    ag_status status = fail_at(r, s->line, AG_E_CONFIG, "'%s' must be %s, found %s '%.80s'%s%s%s", row->key, list.text,
                               kind_of(s), s->text, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    ag_str_free(&list);
    return status;
}

/* One text in the place of a list: a pattern. */
static ag_status read_pattern(reader *r, const ag_config_row *row, const scalar *s, ag_text_list *out)
{
    *out = (ag_text_list){0};
    if (is_null(s)) return AG_OK;
    const char *text;
    const ag_config_row of_item = {.key = row->key};
    AG_TRY(read_text(r, &of_item, s, &text));
    *out = (ag_text_list){.item = ag_arena_array(&r->config->arena, 1, sizeof *out->item), .n = 1, .is_pattern = true};
    out->item[0] = text;
    return AG_OK;
}

static ag_status read_index(reader *r, const ag_config_row *row, const scalar *s, int64_t *out)
{
    const ag_config_row of_item = {.key = row->key, .max_whole = INT32_MAX};
    return read_int(r, &of_item, s, out);
}

static ag_status read_one_int(reader *r, const ag_config_row *row, const scalar *s, ag_int_list *out)
{
    *out = (ag_int_list){0};
    if (is_null(s)) return AG_OK;
    *out = (ag_int_list){.item = ag_arena_array(&r->config->arena, 1, sizeof *out->item), .n = 1};
    return read_index(r, row, s, out->item);
}

static ag_status read_scalar(reader *r, const ag_config_row *row, const scalar *s)
{
    void *member = (char *)r->config + row->offset;
    switch (row->kind) {
    case AG_CONFIG_TEXT: return read_text(r, row, s, member);
    case AG_CONFIG_FLAG:
        if (!is_bool(s)) return fail_type(r, row, s, "true or false");
        *(bool *)member = is_one_of(s->text, true_words);
        return AG_OK;
    case AG_CONFIG_INT:
    case AG_CONFIG_COUNT: return read_int(r, row, s, member);
    case AG_CONFIG_REAL: return read_real(r, row, s, member);
    case AG_CONFIG_CHOICE: return read_choice(r, row, s, member);
    case AG_CONFIG_OPTION:
        if (!is_null(s)) return read_real(r, row, s, member);
        *(double *)member = 0;
        return AG_OK;
    case AG_CONFIG_LIST:
        if (!is_null(s)) return fail_type(r, row, s, "a list of strings, such as [q_proj, v_proj]");
        *(ag_text_list *)member = (ag_text_list){0};
        return AG_OK;
    case AG_CONFIG_NAMES: return read_pattern(r, row, s, member);
    case AG_CONFIG_INTS: return read_one_int(r, row, s, member);
    case AG_CONFIG_MAP:
        if (!is_null(s)) return fail_type(r, row, s, "a mapping of names to numbers, such as {q_proj: 8}");
        *(ag_lora_override_list *)member = (ag_lora_override_list){0};
        return AG_OK;
    }
    return AG_OK;
}

static scalar scalar_of(const yaml_event_t *event)
{
    return (scalar){.text = (const char *)event->data.scalar.value,
                    .n = event->data.scalar.length,
                    .plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE,
                    .line = line_of(event)};
}

typedef union {
    const char *text;
    int64_t whole;
} list_item;

static ag_status read_item(reader *r, const ag_config_row *row, const yaml_event_t *event, size_t n, list_item *out)
{
    if (event->type != YAML_SCALAR_EVENT)
        return fail_at(r, line_of(event), AG_E_CONFIG, "'%s' must be a list of %s, found something nested in it", row->key,
                       row->kind == AG_CONFIG_INTS ? "integers" : "strings");
    if (n == MAX_LIST) return fail_at(r, line_of(event), AG_E_CONFIG, "'%s' has more than %d items", row->key, MAX_LIST);
    const scalar s = scalar_of(event);
    if (row->kind == AG_CONFIG_INTS) return read_index(r, row, &s, &out->whole);
    const ag_config_row of_item = {.key = row->key};
    return read_text(r, &of_item, &s, &out->text);
}

static void keep_list(reader *r, const ag_config_row *row, const list_item *items, size_t n)
{
    void *member = (char *)r->config + row->offset;
    if (row->kind == AG_CONFIG_INTS) {
        ag_int_list *list = member;
        *list = (ag_int_list){.item = ag_arena_array(&r->config->arena, n, sizeof *list->item), .n = n};
        for (size_t i = 0; i < n; i++) list->item[i] = items[i].whole;
    } else {
        ag_text_list *list = member;
        *list = (ag_text_list){.item = ag_arena_array(&r->config->arena, n, sizeof *list->item), .n = n};
        for (size_t i = 0; i < n; i++) list->item[i] = items[i].text;
    }
}

/* The items of a sequence whose start was read, up to its end. */
static ag_status read_list(reader *r, const ag_config_row *row, size_t start_line)
{
    if (row->kind != AG_CONFIG_LIST && row->kind != AG_CONFIG_NAMES && row->kind != AG_CONFIG_INTS)
        return fail_at(r, start_line, AG_E_CONFIG, "'%s' must be one value, found a list", row->key);
    list_item items[MAX_LIST];
    for (size_t n = 0;; n++) {
        yaml_event_t event;
        AG_TRY(next_event(r, &event));
        const bool ends = event.type == YAML_SEQUENCE_END_EVENT;
        ag_status status = AG_OK;
        if (ends)
            keep_list(r, row, items, n);
        else
            status = read_item(r, row, &event, n, &items[n < MAX_LIST ? n : 0]);
        yaml_event_delete(&event);
        if (status || ends) return status;
    }
}

/* One key of a mapping of names to numbers, whose first event is given, and its value. */
static ag_status read_number_of(reader *r, const ag_config_row *row, const yaml_event_t *key_event, ag_lora_override *out)
{
    if (key_event->type != YAML_SCALAR_EVENT)
        return fail_at(r, line_of(key_event), AG_E_CONFIG, "a key of '%s' must be a word, found a list or a mapping", row->key);
    const ag_config_row of_key = {.key = row->key}, of_value = {.key = row->key, .below_real = 1e9};
    const scalar key = scalar_of(key_event);
    AG_TRY(read_text(r, &of_key, &key, &out->name));
    yaml_event_t event;
    AG_TRY(next_event(r, &event));
    ag_status status;
    if (event.type == YAML_SCALAR_EVENT) {
        const scalar value = scalar_of(&event);
        status = read_real(r, &of_value, &value, &out->value);
    } else {
        status = fail_at(r, line_of(&event), AG_E_CONFIG, "'%s' must map names to numbers, found something nested in it", row->key);
    }
    yaml_event_delete(&event);
    return status;
}

/* The pairs of a mapping whose start was read, up to its end; in the file's order, which decides. */
static ag_status read_map(reader *r, const ag_config_row *row)
{
    ag_lora_override_list *map = (ag_lora_override_list *)((char *)r->config + row->offset);
    ag_lora_override pairs[MAX_MAP];
    for (size_t n = 0;; n++) {
        yaml_event_t event;
        AG_TRY(next_event(r, &event));
        const bool ends = event.type == YAML_MAPPING_END_EVENT;
        ag_status status = AG_OK;
        if (ends) {
            *map = (ag_lora_override_list){.item = ag_arena_array(&r->config->arena, n, sizeof *map->item), .n = n};
            if (n) memcpy(map->item, pairs, n * sizeof *pairs);
        } else if (n == MAX_MAP) {
            status = fail_at(r, line_of(&event), AG_E_CONFIG, "'%s' has more than %d keys", row->key, MAX_MAP);
        } else {
            status = read_number_of(r, row, &event, &pairs[n]);
            for (size_t i = 0; i < n && !status; i++)
                if (strcmp(pairs[i].name, pairs[n].name) == 0)
                    status = fail_at(r, line_of(&event), AG_E_CONFIG, "'%s' has the key '%.80s' twice", row->key, pairs[n].name);
        }
        yaml_event_delete(&event);
        if (status || ends) return status;
    }
}

static ag_status read_mapping(reader *r, const char *prefix, int depth);

/* The value of a key, whose first event is given (and is deleted here). */
static ag_status read_value(reader *r, const ag_config_row *row, yaml_event_t *event)
{
    ag_status status;
    size_t line = line_of(event);
    if (event->type == YAML_SCALAR_EVENT) {
        scalar s = scalar_of(event);
        status = read_scalar(r, row, &s);
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        status = read_list(r, row, line);
    } else if (row->kind == AG_CONFIG_MAP && event->type == YAML_MAPPING_START_EVENT) {
        status = read_map(r, row);
    } else {
        status = fail_at(r, line, AG_E_CONFIG, "'%s' must be one value, found a mapping", row->key);
    }
    yaml_event_delete(event);
    return status;
}

static ag_status find_row(reader *r, const char *key, size_t line, const ag_config_row **row)
{
    const char *known[MAX_ROWS + 2];
    size_t n = 0;
    for (size_t i = 0; i < ag_n_config_rows; i++) {
        if (strcmp(key, ag_config_rows[i].key) == 0) {
            *row = &ag_config_rows[i];
            return AG_OK;
        }
        known[n++] = ag_config_rows[i].key;
    }
    known[n++] = "telemetry";
    known[n++] = "telemetry.profile_window";
    const char *near = ag_str_nearest(key, known, n);
    if (near) return fail_at(r, line, AG_E_CONFIG, "unknown key '%.80s'; did you mean '%s'?", key, near);
    return fail_at(r, line, AG_E_CONFIG, "unknown key '%.80s'; docs/configuration.md lists the known ones", key);
}

/* One key of a mapping, its value included. */
static ag_status read_entry(reader *r, const char *prefix, const yaml_event_t *key_event, int depth)
{
    size_t line = line_of(key_event);
    if (key_event->type != YAML_SCALAR_EVENT)
        return fail_at(r, line, AG_E_CONFIG, "a key must be a word, found a list or a mapping");
    const char *key = ag_arena_printf(&r->config->arena, "%s%.200s", prefix, (const char *)key_event->data.scalar.value);
    bool is_group = strcmp(key, "telemetry") == 0 || strcmp(key, "telemetry.profile_window") == 0;
    const ag_config_row *row = NULL;
    if (!is_group) AG_TRY(find_row(r, key, line, &row));
    /* Groups are counted behind the rows. */
    size_t at = row ? (size_t)(row - ag_config_rows) : ag_n_config_rows + (strlen(key) > strlen("telemetry"));
    if (r->first_line[at])
        return fail_at(r, line, AG_E_CONFIG, "'%s' stands here twice; the first is in line %zu", key, r->first_line[at]);
    r->first_line[at] = line;

    yaml_event_t value;
    AG_TRY(next_event(r, &value));
    if (row) return read_value(r, row, &value);
    ag_status status = AG_OK;
    if (value.type == YAML_MAPPING_START_EVENT) {
        status = read_mapping(r, ag_arena_printf(&r->config->arena, "%s.", key), depth + 1);
    } else {
        scalar s = value.type == YAML_SCALAR_EVENT ? scalar_of(&value) : (scalar){.text = ""};
        if (!is_null(&s)) status = fail_at(r, line, AG_E_CONFIG, "'%s' must be a mapping of keys to values", key);
    }
    yaml_event_delete(&value);
    return status;
}

static ag_status read_mapping(reader *r, const char *prefix, int depth)
{
    AG_ASSERT(depth <= MAX_DEPTH); /* only the two groups nest */
    for (;;) {
        yaml_event_t event;
        AG_TRY(next_event(r, &event));
        bool ends = event.type == YAML_MAPPING_END_EVENT;
        ag_status status = ends ? AG_OK : read_entry(r, prefix, &event, depth);
        yaml_event_delete(&event);
        if (status || ends) return status;
    }
}

static ag_status expect_event(reader *r, yaml_event_type_t type, const char *sentence)
{
    yaml_event_t event;
    AG_TRY(next_event(r, &event));
    ag_status status = event.type == type ? AG_OK : fail_at(r, line_of(&event), AG_E_CONFIG, "%s", sentence);
    yaml_event_delete(&event);
    return status;
}

/* The file's one document, or nothing at all (an empty file); then the end. */
static ag_status read_document(reader *r, const ag_config_row *override)
{
    yaml_event_t event;
    AG_TRY(expect_event(r, YAML_STREAM_START_EVENT, "not YAML"));
    AG_TRY(next_event(r, &event));
    bool empty = event.type == YAML_STREAM_END_EVENT;
    yaml_event_delete(&event);
    if (empty && override) return read_scalar(r, override, &(scalar){.text = "", .plain = true, .line = 1});
    if (empty) return fail_at(r, 1, AG_E_CONFIG, "the file is empty; it must be a mapping of keys to values");
    AG_TRY(next_event(r, &event));
    if (override) {
        AG_TRY(read_value(r, override, &event));
    } else {
        ag_status status = AG_OK;
        size_t line = line_of(&event);
        const char *found = event.type == YAML_SEQUENCE_START_EVENT ? "a list" : NULL;
        if (event.type == YAML_SCALAR_EVENT) {
            scalar s = scalar_of(&event);
            found = is_null(&s) ? "null" : is_bool(&s) ? "a boolean" : s.plain && is_number(s.text) ? "a number" : "a string";
        }
        if (found) status = fail_at(r, line, AG_E_CONFIG, "the file must be a mapping of keys to values, found %s", found);
        yaml_event_delete(&event);
        AG_TRY(status);
        AG_TRY(read_mapping(r, "", 1));
    }
    AG_TRY(expect_event(r, YAML_DOCUMENT_END_EVENT, "something stands behind the value"));
    return expect_event(r, YAML_STREAM_END_EVENT, "a second document begins here; a config is one document");
}

static ag_status read_stream(reader *r, const char *bytes, size_t n, const ag_config_row *override)
{
    AG_ASSERT(ag_n_config_rows + 2 <= MAX_ROWS);
    if (!yaml_parser_initialize(&r->parser)) ag_out_of_memory(sizeof r->parser);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)bytes, n);
    ag_status status = read_document(r, override);
    yaml_parser_delete(&r->parser);
    return status;
}

ag_status ag_config_read_yaml(ag_train_config *config, const char *bytes, size_t n, const char *name, ag_err *err)
{
    reader r = {.config = config, .name = name, .err = err};
    return read_stream(&r, bytes, n, NULL);
}

ag_status ag_config_read_override(ag_train_config *config, const char *set, ag_err *err)
{
    const char *equals = strchr(set, '=');
    if (!equals || equals == set)
        return ag_fail(err, AG_E_USAGE, "--set takes key=value, such as --set learning_rate=1e-4; found '%.80s'", set);
    const char *key = ag_arena_strndup(&config->arena, set, (size_t)(equals - set));
    reader r = {.config = config, .name = ag_arena_printf(&config->arena, "--set %.80s", key), .is_override = true, .err = err};
    const ag_config_row *row = NULL;
    if (find_row(&r, key, 0, &row)) return err ? (err->code = AG_E_USAGE) : AG_E_USAGE;
    AG_TRY(read_stream(&r, equals + 1, strlen(equals + 1), row));
    for (size_t i = 0; i < config->n_overrides; i++)
        if (strcmp(config->overrides[i].key, key) == 0)
            return ag_fail(err, AG_E_USAGE, "--set %s is given twice; say which value is meant", key);
    config->overrides[config->n_overrides++] =
        (ag_config_override){.key = key, .value = ag_arena_strdup(&config->arena, equals + 1)};
    return AG_OK;
}
