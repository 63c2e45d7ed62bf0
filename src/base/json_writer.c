#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- doubles -------------------------------------------------------------------------------------------------------------- */

enum { MAX_DIGITS = 17, SCIENTIFIC_BYTES = 32 };

/* "d.ddde±xx" with n digits; whether it reads back to the same value. */
static bool reads_back(char text[SCIENTIFIC_BYTES], double value, int n_digits)
{
    snprintf(text, SCIENTIFIC_BYTES, "%.*e", n_digits - 1, value);
    if (strtod(text, NULL) == value) return true;
    /* At a power of two the step to the next double is twice as long upward as downward, so that the nearest decimal of n digits
     * may lie outside the interval and the next one above inside. */
    int exponent;
    if (frexp(value, &exponent) != 0.5) return false;
    for (char *last = strchr(text, 'e') - 1; last >= text; last--) {
        if (*last == '.') continue;
        if (*last != '9') {
            ++*last;
            break;
        }
        *last = '0';
    }
    return strtod(text, NULL) == value;
}

/* The shortest digits of a positive value, without trailing zeros, and the place of the point: 0.d1d2d3… · 10^point. */
static int shortest_digits(char digits[MAX_DIGITS + 1], int *point, double value)
{
    char text[SCIENTIFIC_BYTES];
    /* A normal double that has a decimal of at most 15 digits shows it, padded with zeros, when 15 are asked for. */
    int n = value >= 0x1p-1022 ? 15 : 1;
    while (!reads_back(text, value, n)) n++;
    int n_digits = 0;
    const char *c = text;
    for (; *c != 'e'; c++)
        if (*c != '.') digits[n_digits++] = *c;
    *point = atoi(c + 1) + 1;
    while (n_digits > 1 && digits[n_digits - 1] == '0') n_digits--;
    digits[n_digits] = 0;
    return n_digits;
}

void ag_str_add_double(ag_str *s, double value)
{
    if (isnan(value)) {
        ag_str_add(s, "nan");
        return;
    }
    if (signbit(value)) ag_str_add_char(s, '-');
    value = fabs(value);
    if (isinf(value)) {
        ag_str_add(s, "inf");
        return;
    }
    if (value == 0) {
        ag_str_add(s, "0.0");
        return;
    }
    char digits[MAX_DIGITS + 1];
    int point, n = shortest_digits(digits, &point, value);
    if (point > 16 || point < -3) { /* Python's repr: an exponent from 1e16 up and below 1e-4 */
        ag_str_add_char(s, digits[0]);
        if (n > 1) ag_str_printf(s, ".%s", digits + 1);
        ag_str_printf(s, "e%c%02d", point > 0 ? '+' : '-', abs(point - 1));
    } else if (point <= 0) {
        ag_str_add(s, "0.");
        for (int i = point; i < 0; i++) ag_str_add_char(s, '0');
        ag_str_add(s, digits);
    } else {
        for (int i = 0; i < point; i++) ag_str_add_char(s, i < n ? digits[i] : '0');
        ag_str_add_char(s, '.');
        ag_str_add(s, n > point ? digits + point : "0");
    }
}

/* ---- strings -------------------------------------------------------------------------------------------------------------- */

static void add_escaped(ag_str *s, uint32_t c, bool ascii)
{
    switch (c) {
    case '"': ag_str_add(s, "\\\""); return;
    case '\\': ag_str_add(s, "\\\\"); return;
    case '\n': ag_str_add(s, "\\n"); return;
    case '\r': ag_str_add(s, "\\r"); return;
    case '\t': ag_str_add(s, "\\t"); return;
    case '\f': ag_str_add(s, "\\f"); return;
    case '\b': ag_str_add(s, "\\b"); return;
    default: break;
    }
    if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000)) ag_str_printf(s, "\\u%04x", (unsigned)c);
    else if (ascii && c >= 0x10000)
        ag_str_printf(s, "\\u%04x\\u%04x", 0xd800u + ((unsigned)(c - 0x10000) >> 10), 0xdc00u + ((unsigned)c & 0x3ff));
    else ag_str_add_code_point(s, c);
}

static void add_string(ag_json_writer *w, const char *text, size_t n)
{
    ag_str_add_char(w->out, '"');
    for (size_t at = 0; at < n;) {
        size_t plain = at;
        while (plain < n && text[plain] >= 0x20 && text[plain] < 0x7f && text[plain] != '"' && text[plain] != '\\') plain++;
        ag_str_add_n(w->out, text + at, plain - at);
        at = plain;
        if (at < n) add_escaped(w->out, ag_utf8_next(text, n, &at), w->ascii);
    }
    ag_str_add_char(w->out, '"');
}

/* ---- the writer ----------------------------------------------------------------------------------------------------------- */

static void new_line(ag_json_writer *w)
{
    ag_str_add_char(w->out, '\n');
    for (int i = 0; i < w->depth * w->indent; i++) ag_str_add_char(w->out, ' ');
}

/* Comma, line and key before a value. */
static void begin(ag_json_writer *w, const char *key)
{
    if (w->depth == 0) {
        AG_ASSERT(!key);
        return;
    }
    bool is_array = w->level[w->depth - 1].is_array;
    AG_ASSERT(is_array == !key);
    if (w->level[w->depth - 1].has_items) ag_str_add(w->out, w->indent == 0 ? ", " : ",");
    w->level[w->depth - 1].has_items = true;
    if (w->indent > 0) new_line(w);
    if (key) {
        add_string(w, key, strlen(key));
        ag_str_add(w->out, w->indent < 0 ? ":" : ": ");
    }
}

static void open_level(ag_json_writer *w, bool is_array)
{
    AG_ASSERT(w->depth < AG_JW_MAX_DEPTH);
    ag_str_add_char(w->out, is_array ? '[' : '{');
    w->level[w->depth].is_array = is_array;
    w->level[w->depth].has_items = false;
    w->depth++;
}

void ag_jw_object(ag_json_writer *w, const char *key)
{
    begin(w, key);
    open_level(w, false);
}

void ag_jw_array(ag_json_writer *w, const char *key)
{
    begin(w, key);
    open_level(w, true);
}

void ag_jw_end(ag_json_writer *w)
{
    AG_ASSERT(w->depth > 0);
    w->depth--;
    if (w->indent > 0 && w->level[w->depth].has_items) new_line(w);
    ag_str_add_char(w->out, w->level[w->depth].is_array ? ']' : '}');
}

void ag_jw_int(ag_json_writer *w, const char *key, int64_t value)
{
    begin(w, key);
    ag_str_printf(w->out, "%lld", (long long)value);
}

void ag_jw_uint(ag_json_writer *w, const char *key, uint64_t value)
{
    begin(w, key);
    ag_str_printf(w->out, "%llu", (unsigned long long)value);
}

static void add_double(ag_json_writer *w, double value)
{
    if (isfinite(value)) ag_str_add_double(w->out, value);
    else ag_str_add(w->out, "null");
}

void ag_jw_double(ag_json_writer *w, const char *key, double value)
{
    begin(w, key);
    add_double(w, value);
}

void ag_jw_bool(ag_json_writer *w, const char *key, bool value)
{
    begin(w, key);
    ag_str_add(w->out, value ? "true" : "false");
}

void ag_jw_null(ag_json_writer *w, const char *key)
{
    begin(w, key);
    ag_str_add(w->out, "null");
}

void ag_jw_string_n(ag_json_writer *w, const char *key, const char *text, size_t n)
{
    begin(w, key);
    if (text) add_string(w, text, n);
    else ag_str_add(w->out, "null");
}

void ag_jw_string(ag_json_writer *w, const char *key, const char *text) { ag_jw_string_n(w, key, text, text ? strlen(text) : 0); }

static void add_value(ag_json_writer *w, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        if (ag_json_big_integer(value)) {
            ag_str_add(w->out, ag_json_big_integer(value));
            break;
        }
        open_level(w, false);
        /* jansson iterates in the order of insertion; its iterators want the object mutable but leave it alone */
        for (void *it = json_object_iter((json_t *)(uintptr_t)value); it; it = json_object_iter_next((json_t *)(uintptr_t)value, it)) {
            begin(w, json_object_iter_key(it));
            add_value(w, json_object_iter_value(it));
        }
        ag_jw_end(w);
        break;
    case JSON_ARRAY:
        open_level(w, true);
        for (size_t i = 0; i < json_array_size(value); i++) {
            begin(w, NULL);
            add_value(w, json_array_get(value, i));
        }
        ag_jw_end(w);
        break;
    case JSON_STRING: add_string(w, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: ag_str_printf(w->out, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: add_double(w, json_real_value(value)); break;
    case JSON_TRUE: ag_str_add(w->out, "true"); break;
    case JSON_FALSE: ag_str_add(w->out, "false"); break;
    default: ag_str_add(w->out, "null"); break;
    }
}

void ag_jw_value(ag_json_writer *w, const char *key, const json_t *value)
{
    begin(w, key);
    add_value(w, value);
}
