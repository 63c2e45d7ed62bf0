#define _GNU_SOURCE
#include "data/rows.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lines -------------------------------------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* The next line that is not blank, from *at on; *number counts all lines passed. False at the end. */
static bool next_line(const char *bytes, size_t n, size_t *at, size_t *number, ag_row_line *line)
{
    while (*at < n) {
        const char *newline = memchr(bytes + *at, '\n', n - *at);
        size_t start = *at, end = newline ? (size_t)(newline - bytes) : n;
        *at = newline ? end + 1 : n;
        ++*number;
        while (start < end && is_space(bytes[start])) start++;
        while (end > start && is_space(bytes[end - 1])) end--;
        if (start == end) continue;
        *line = (ag_row_line){start, end - start, *number};
        return true;
    }
    return false;
}

ag_status ag_rows_over(ag_rows **out, const char *bytes, size_t n, const char *name, ag_err *err)
{
    size_t first = n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0, at = first, number = 0, count = 0;
    ag_row_line line;
    *out = NULL;
    while (next_line(bytes, n, &at, &number, &line)) count++;
    if (count == 0)
        return ag_fail(err, AG_E_DATA, "%s: the dataset is %s; it must have one JSON object a line", name,
                       n ? "blank" : "empty");
    ag_rows *rows = calloc(1, sizeof *rows);
    if (!rows) ag_out_of_memory(sizeof *rows);
    rows->path = strdup(name);
    rows->line = malloc(count * sizeof *rows->line); /* at most one line for each byte that was mapped */
    if (!rows->path || !rows->line) ag_out_of_memory(count * sizeof *rows->line);
    rows->bytes = bytes;
    at = first, number = 0;
    while (next_line(bytes, n, &at, &number, &rows->line[rows->n])) rows->n++;
    *out = rows;
    return AG_OK;
}

ag_status ag_rows_open(ag_rows **out, const char *path, ag_err *err)
{
    ag_map map;
    *out = NULL;
    AG_TRY(ag_map_open(&map, path, err));
    ag_status status = ag_rows_over(out, (const char *)map.bytes, map.n, path, err);
    if (status)
        ag_map_close(&map);
    else
        (*out)->map = map;
    return status;
}

void ag_rows_close(ag_rows **rows)
{
    if (!*rows) return;
    ag_map_close(&(*rows)->map);
    free((char *)(*rows)->path);
    free((*rows)->line);
    free(*rows);
    *rows = NULL;
}

/* ---- one row ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const char *path;
    size_t number;
    ag_err *err;
} place;

static ag_status wrong(const place *at, const char *format, ...) __attribute__((format(printf, 2, 3)));
static ag_status wrong(const place *at, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return ag_fail(at->err, AG_E_DATA, "%s: line %zu: %s", at->path, at->number, text);
}

static const char *kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return ag_json_big_integer(value) ? "a number" : "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

/* Strings may hold NUL bytes: lengths are compared, too. */
static bool is_word(const json_t *value, const char *word)
{
    return json_string_length(value) == strlen(word) && memcmp(json_string_value(value), word, strlen(word)) == 0;
}

static ag_status check_messages(const json_t *messages, const place *at)
{
    static const char *const roles[] = {"user", "assistant", "system", "tool"};
    if (!json_is_array(messages)) return wrong(at, "'messages' must be a list, found %s", kind_of(messages));
    size_t n = json_array_size(messages);
    if (n == 0) return wrong(at, "'messages' is an empty list");
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        if (!json_is_object(message)) return wrong(at, "message %zu must be an object, found %s", i + 1, kind_of(message));
        const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
        if (!role) return wrong(at, "message %zu has no 'role'", i + 1);
        if (!json_is_string(role)) return wrong(at, "message %zu: 'role' must be a string, found %s", i + 1, kind_of(role));
        bool known = false;
        for (size_t r = 0; r < sizeof roles / sizeof roles[0]; r++) known = known || is_word(role, roles[r]);
        if (!known)
            return wrong(at, "message %zu: 'role' must be user, assistant, system or tool, found '%.60s'", i + 1,
                         json_string_value(role));
        if (!content) return wrong(at, "message %zu has no 'content'", i + 1);
        if (!json_is_string(content))
            return wrong(at, "message %zu: 'content' must be a string, found %s", i + 1, kind_of(content));
    }
    return AG_OK;
}

/* Python's truth: what an absent, null, empty or zero value is not. */
static bool is_truthy(const json_t *value)
{
    if (!value) return false;
    switch (json_typeof(value)) {
    case JSON_OBJECT: return json_object_size(value) > 0;
    case JSON_ARRAY: return json_array_size(value) > 0;
    case JSON_STRING: return json_string_length(value) > 0;
    case JSON_INTEGER: return json_integer_value(value) != 0;
    case JSON_REAL: return json_real_value(value) != 0;
    case JSON_TRUE: return true;
    default: return false;
    }
}

static ag_status add_part(ag_str *out, const char *title, const json_t *root, const char *key, bool when_empty, const char *end,
                          const place *at)
{
    const json_t *value = json_object_get(root, key);
    bool given = is_truthy(value);
    if (given && !json_is_string(value)) return wrong(at, "'%s' must be a string, found %s", key, kind_of(value));
    if (!given && !when_empty) return AG_OK;
    ag_str_add(out, title);
    if (given) ag_str_add_n(out, json_string_value(value), json_string_length(value));
    ag_str_add(out, end);
    return AG_OK;
}

static ag_status read_instruction(ag_row *row, const place *at)
{
    const json_t *instruction = json_object_get(row->root, "instruction");
    if (!json_is_string(instruction)) return wrong(at, "'instruction' must be a string, found %s", kind_of(instruction));
    AG_TRY(add_part(&row->made, "Instruction: ", row->root, "instruction", true, "\n", at));
    AG_TRY(add_part(&row->made, "Input: ", row->root, "input", false, "\n", at));
    AG_TRY(add_part(&row->made, "Output: ", row->root, "output", true, "", at));
    row->form = AG_ROW_INSTRUCTION;
    row->text = row->made.text;
    row->n_text = row->made.n;
    return AG_OK;
}

static ag_status take_text(ag_row *row, const char *key, const json_t *value, const place *at)
{
    if (!json_is_string(value)) return wrong(at, "'%.60s' must be a string, found %s", key, kind_of(value));
    row->form = AG_ROW_TEXT;
    row->text = json_string_value(value);
    row->n_text = json_string_length(value);
    return AG_OK;
}

static ag_status read_messages(ag_row *row, const place *at)
{
    row->form = AG_ROW_MESSAGES;
    row->messages = json_object_get(row->root, "messages");
    AG_TRY(check_messages(row->messages, at));
    const json_t *tools = json_object_get(row->root, "tools");
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return wrong(at, "'tools' must be a list, found %s", kind_of(tools));
    row->tools = json_is_array(tools) ? tools : NULL;
    return AG_OK;
}

static ag_status read_form(ag_row *row, const char *field, const place *at)
{
    bool other_field = strcmp(field, "text") != 0;
    const json_t *text = json_object_get(row->root, "text"), *column = json_object_get(row->root, field);
    if (text) AG_TRY(take_text(row, "text", text, at));
    if (other_field && column) return take_text(row, field, column, at);
    if (text && !other_field) return AG_OK;
    if (!text && !other_field) {
        if (json_object_get(row->root, "messages")) return read_messages(row, at);
        if (json_object_get(row->root, "instruction")) return read_instruction(row, at);
        return wrong(
            at, "the row has none of the forms that are known: 'text' (a string), 'messages' (a list of role and content), or "
                "'instruction' with 'input' and 'output'");
    }
    return wrong(at, "the row has no column '%.60s', which 'dataset_text_field' asks for", field);
}

/* ---- completion-only rows ------------------------------------------------------------------------------------------- */

/* What Python's str.strip() takes for white space. */
static bool is_blank(const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        uint32_t c = ag_utf8_next(text, n, &at);
        bool space = c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f) || c == 0x85 || c == 0xa0 ||
                     c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
                     c == 0x3000;
        if (!space) return false;
    }
    return true;
}

static ag_status read_completion(ag_row *row, const place *at)
{
    static const char *const reserved[] = {"labels", "assistant_masks", "seq_lengths"};
    if (row->form != AG_ROW_TEXT)
        return wrong(at,
                     "'completion_only_loss' needs rows with 'text' and 'completion_start_char', and this row has no 'text'");
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++)
        if (json_object_get(row->root, reserved[i]))
            return wrong(
                at,
                "the column '%s' is reserved: with 'completion_only_loss' the loss follows from 'completion_start_char' "
                "alone; remove the column",
                reserved[i]);
    const json_t *start = json_object_get(row->root, "completion_start_char");
    if (!start) return wrong(at, "'completion_only_loss' needs 'completion_start_char' in every row, and it is missing here");
    if (!json_is_integer(start)) return wrong(at, "'completion_start_char' must be an integer, found %s", kind_of(start));
    size_t n_chars = ag_utf8_count(row->text, row->n_text), byte = 0;
    json_int_t value = json_integer_value(start);
    if (value < 0 || (uint64_t)value >= n_chars)
        return wrong(at, "'completion_start_char' must be from 0 to below %zu, the code points of 'text', found %lld", n_chars,
                     (long long)value);
    row->completion_start = (size_t)value;
    for (json_int_t i = 0; i < value; i++) ag_utf8_next(row->text, row->n_text, &byte);
    if (is_blank(row->text + byte, row->n_text - byte))
        return wrong(at, "the completion (from code point %lld on) is blank", (long long)value);
    return AG_OK;
}

ag_status ag_row_read(ag_row *row, const ag_rows *rows, size_t i, const ag_row_rules *rules, ag_err *err)
{
    const ag_row_line *line = &rows->line[i];
    place at = {.path = rows->path, .number = line->number, .err = err};
    *row = (ag_row){.number = line->number};
    if (line->n > AG_ROW_MAX_BYTES)
        return wrong(&at, "the line has %zu bytes, more than the %zu that a row may have", line->n, AG_ROW_MAX_BYTES);
    ag_str name = {0};
    ag_str_printf(&name, "%.400s: line %zu", rows->path, line->number);
    ag_status status = ag_json_parse_exact(&row->root, rows->bytes + line->start, line->n, name.text, err);
    ag_str_free(&name);
    if (status) return status;
    if (!json_is_object(row->root)) {
        status = wrong(&at, "a row must be an object, found %s", kind_of(row->root));
        if (err) err->code = AG_E_FORMAT;
        status = AG_E_FORMAT;
    }
    if (!status) status = read_form(row, rules->text_field, &at);
    if (!status && rules->completion_only) status = read_completion(row, &at);
    if (!status && rules->assistant_only && row->form != AG_ROW_MESSAGES)
        status = wrong(&at, "'assistant_only_loss' needs rows with 'messages', and this row has none");
    if (status) ag_row_clear(row);
    return status;
}

void ag_row_clear(ag_row *row)
{
    if (row->root) ag_json_free(&row->root);
    ag_str_free(&row->made);
    *row = (ag_row){0};
}

void ag_messages_write_plain(const json_t *messages, ag_str *out)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        const json_t *content = json_object_get(message, "content");
        if (i) ag_str_add_char(out, '\n');
        ag_str_add_char(out, (char)(role[0] - 'a' + 'A')); /* the roles were checked */
        ag_str_printf(out, "%s: ", role + 1);
        ag_str_add_n(out, json_string_value(content), json_string_length(content));
    }
}
