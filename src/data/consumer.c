#include "data/consumer.h"

#include "base/canonical_json.h"
#include "data/rows.h"

#include <math.h>
#include <string.h>

#define PARSER "agoge.rows.v1"

/* ---- times ------------------------------------------------------------------------------------------------------- */
static bool digits(int64_t *out, const char **at, int n)
{
    *out = 0;
    for (int i = 0; i < n; i++, (*at)++) {
        if (**at < '0' || **at > '9') return false;
        *out = *out * 10 + (**at - '0');
    }
    return true;
}

static bool take(const char **at, char c)
{
    if (**at != c) return false;
    ++*at;
    return true;
}

/* Days since 1970-01-01 of a date of the Gregorian calendar (Howard Hinnant, days_from_civil). */
static int64_t days_of(int64_t y, int64_t m, int64_t d)
{
    y -= m <= 2;
    const int64_t era = y / 400, of_era = y - era * 400, day = (153 * (m > 2 ? m - 3 : m + 9) + 2) / 5 + d - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + day - 719468;
}

static bool read_date(int64_t *days, const char **at)
{
    static const int64_t lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t y, m, d;
    if (!digits(&y, at, 4) || !take(at, '-') || !digits(&m, at, 2) || !take(at, '-') || !digits(&d, at, 2)) return false;
    if (m < 1 || m > 12 || y < 1) return false;
    const bool is_leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    if (d < 1 || d > lengths[m - 1] + (m == 2 && is_leap)) return false;
    *days = days_of(y, m, d);
    return true;
}

static bool read_clock(int64_t *ns, const char **at)
{
    int64_t h, m, s = 0, fraction = 0;
    if (!digits(&h, at, 2) || !take(at, ':') || !digits(&m, at, 2)) return false;
    if (take(at, ':') && !digits(&s, at, 2)) return false;
    if (h > 23 || m > 59 || s > 59) return false;
    if (**at == '.' || **at == ',') {
        int64_t unit = 100000000;
        ++*at;
        if (**at < '0' || **at > '9') return false;
        for (; **at >= '0' && **at <= '9'; ++*at, unit /= 10) fraction += (**at - '0') * unit;
    }
    *ns = ((h * 60 + m) * 60 + s) * 1000000000 + fraction;
    return true;
}

static bool read_offset(int64_t *ns, const char **at)
{
    int64_t h, m = 0;
    *ns = 0;
    if (**at == 0 || take(at, 'Z') || take(at, 'z')) return true;
    const bool is_west = **at == '-';
    if (**at != '+' && **at != '-') return false;
    ++*at;
    if (!digits(&h, at, 2)) return false;
    if (take(at, ':') || **at) {
        if (!digits(&m, at, 2)) return false;
    }
    if (h > 23 || m > 59) return false;
    *ns = (h * 60 + m) * 60 * 1000000000 * (is_west ? -1 : 1);
    return true;
}

static bool read_text(int64_t *ns, const char *text)
{
    int64_t days, of_day = 0, offset = 0;
    const char *at = text;
    if (!read_date(&days, &at)) return false;
    if (*at &&
        (!(take(&at, 'T') || take(&at, 't') || take(&at, ' ')) || !read_clock(&of_day, &at) || !read_offset(&offset, &at)))
        return false;
    return *at == 0 && !__builtin_mul_overflow(days, (int64_t)86400 * 1000000000, ns) &&
           !__builtin_add_overflow(*ns, of_day - offset, ns);
}

bool ag_event_time_parse(int64_t *ns, const json_t *value)
{
    if (json_is_string(value))
        return strlen(json_string_value(value)) == json_string_length(value) && read_text(ns, json_string_value(value));
    if (json_is_integer(value)) return !__builtin_mul_overflow((int64_t)json_integer_value(value), (int64_t)1000000000, ns);
    if (!json_is_real(value) || fabs(json_real_value(value)) > 9e9) return false;
    *ns = (int64_t)(json_real_value(value) * 1e9);
    return true;
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */
typedef struct {
    json_t *rows, *errors;
} findings;

static void add_error(findings *f, size_t line, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add_error(findings *f, size_t line, const char *format, ...)
{
    char text[900], whole[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(whole, sizeof whole, "line %zu: %s", line, text);
    json_t *error = json_string(whole);
    json_array_append_new(f->errors, error ? error : json_sprintf("line %zu: holds text that is not UTF-8", line));
}

/* Whether the times of a list do not go back; `key` is that of its members where they are objects. */
static bool check_times(findings *f, size_t line, const json_t *list, const char *name, const char *key)
{
    int64_t before = INT64_MIN;
    if (!list || json_is_null(list)) return true;
    if (!json_is_array(list)) {
        add_error(f, line, "_prometheus.%s must be a list", name);
        return false;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        int64_t now;
        if (key) item = json_object_get(item, key);
        if (key && !item) continue; /* an event without a time says nothing of it */
        if (!ag_event_time_parse(&now, item)) {
            add_error(f, line, "_prometheus.%s[%zu]%s%s is no time (ISO 8601, or seconds since 1970)", name, i, key ? "." : "",
                      key ? key : "");
            return false;
        }
        if (now < before) {
            add_error(f, line,
                      "_prometheus.%s[%zu]%s%s is earlier than the one before: an event of the future stands in the past", name,
                      i, key ? "." : "", key ? key : "");
            return false;
        }
        before = now;
    }
    return true;
}

/* The row without its metadata, and whether that is in order. */
static bool strip(findings *f, size_t line, json_t *root)
{
    const json_t *metadata = json_object_get(root, "_prometheus");
    bool ok = true;
    if (metadata && !json_is_object(metadata)) {
        add_error(f, line, "_prometheus must be an object");
        ok = false;
    } else if (metadata) {
        ok = check_times(f, line, json_object_get(metadata, "event_timestamps"), "event_timestamps", NULL) &&
             check_times(f, line, json_object_get(metadata, "events"), "events", "timestamp");
    }
    json_object_del(root, "_prometheus");
    return ok;
}

static void add_row(findings *f, size_t line, const ag_row *row)
{
    static const char *const forms[] = {"text", "messages", "instruction"};
    ag_str plain = {0};
    if (row->form == AG_ROW_MESSAGES)
        ag_messages_write_plain(row->messages, &plain);
    else
        ag_str_add_n(&plain, row->text, row->n_text);
    json_array_append_new(f->rows, json_pack("{s:I, s:s, s:s}", "line", (json_int_t)line, "format", forms[row->form],
                                             "text_sha256", ag_sha256_bytes(plain.text, plain.n).hex));
    ag_str_free(&plain);
}

/* Behind "<name>: line 1: ", which ag_row_read puts before what it says. */
static const char *without_place(const char *text)
{
    const char *at = strstr(text, "line 1: ");
    return at ? at + strlen("line 1: ") : text;
}

static void check_row(findings *f, const ag_rows *rows, size_t i)
{
    const ag_row_line *line = &rows->line[i];
    json_t *root;
    ag_err err;
    if (ag_json_parse_exact(&root, rows->bytes + line->start, line->n, "the row", &err)) {
        add_error(f, line->number, "%s", err.text);
        return;
    }
    if (!json_is_object(root) || ag_json_big_integer(root)) {
        add_error(f, line->number, "the row must be a JSON object");
    } else if (strip(f, line->number, root)) {
        ag_str text = {0};
        ag_rows *one;
        ag_row row = {0};
        ag_json_add_canonical(&text, root);
        if (ag_rows_over(&one, text.text, text.n, "the row", &err)) {
            add_error(f, line->number, "%s", err.text);
        } else {
            if (ag_row_read(&row, one, 0, &(ag_row_rules){.text_field = "text"}, &err))
                add_error(f, line->number, "%s", without_place(err.text));
            else
                add_row(f, line->number, &row);
            ag_row_clear(&row);
            ag_rows_close(&one);
        }
        ag_str_free(&text);
    }
    ag_json_free(&root);
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */
ag_status ag_consumer_check(ag_consumer_result *out, const char *path, ag_err *err)
{
    ag_rows *rows;
    ag_map map;
    findings f = {json_array(), json_array()};
    *out = (ag_consumer_result){0};
    ag_status status = ag_map_open(&map, path, err);
    if (!status) {
        const ag_sha256 digest = ag_sha256_bytes(map.bytes, map.n);
        ag_err own;
        if (ag_rows_over(&rows, (const char *)map.bytes, map.n, ag_path_base(path), &own)) {
            json_array_append_new(f.errors, json_string(own.text));
        } else {
            for (size_t i = 0; i < rows->n; i++) check_row(&f, rows, i);
            out->n_rows = rows->n;
            ag_rows_close(&rows);
        }
        ag_map_close(&map);
        out->n_errors = json_array_size(f.errors);
        out->ok = out->n_errors == 0;
        json_t *root = json_pack("{s:s, s:s, s:s, s:s, s:I, s:O, s:O, s:b}", "schema_version", AG_CONSUMER_SCHEMA,
                                 "source_path", ag_path_base(path), "source_sha256", digest.hex, "parser", PARSER, "row_count",
                                 (json_int_t)out->n_rows, "rows", f.rows, "errors", f.errors, "ok", out->ok);
        if (root)
            ag_json_add_canonical(&out->sidecar, root);
        else
            status = ag_fail(err, AG_E_DATA, "%s: the file's name is not UTF-8; rename it", path);
        ag_str_add_char(&out->sidecar, '\n');
        json_decref(root);
    }
    json_decref(f.rows);
    json_decref(f.errors);
    return status;
}

void ag_consumer_result_free(ag_consumer_result *result) { ag_str_free(&result->sidecar); }
