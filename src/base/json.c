#include "base/json.h"

#include "base/arena.h"
#include "base/fs.h"

#include <stdlib.h>
#include <string.h>

/* ---- before the parser ---------------------------------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_part_of_double(char c) { return c == '.' || c == 'e' || c == 'E'; }

/* Whether the digits are an integer that no int64 holds. */
static bool is_too_big(const char *digits, size_t n, bool negative)
{
    if (n != 19) return n > 19;
    return memcmp(digits, negative ? "9223372036854775808" : "9223372036854775807", 19) > 0;
}

/* The end of the digit run at bytes[start]; *is_integer unless the run is a piece of a double. */
static size_t digits_end(const char *bytes, size_t n, size_t start, bool *negative, bool *is_integer)
{
    size_t end = start;
    while (end < n && is_digit(bytes[end])) end++;
    bool has_sign = start > 0 && (bytes[start - 1] == '-' || bytes[start - 1] == '+');
    size_t before = start - has_sign;
    *negative = has_sign && bytes[start - 1] == '-';
    *is_integer = !(end < n && is_part_of_double(bytes[end])) && !(before > 0 && is_part_of_double(bytes[before - 1]));
    return end;
}

/* The length of a literal that Python's json writes for a number that is none; 0 where there is none at `text`. */
static size_t not_a_number(const char *text, size_t n)
{
    static const char *const literals[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++) {
        size_t n_literal = strlen(literals[i]);
        if (n >= n_literal && memcmp(text, literals[i], n_literal) == 0) return n_literal;
    }
    return 0;
}

/* A key that no file has: it begins with a control character. */
#define BIG_INTEGER_KEY "\x01integer"

enum { PYTHON_NAN = 1, BIG_INTEGERS = 2 }; /* what a reader wants kept */

/* One walk over the text outside strings: how deep it nests, and where integers stand that no int64 holds
 * (tokenizer_config.json files say 1000000000000000019884624838656 for "no limit"). Such an integer gets ".0" in the copy
 * `rewritten`, or with BIG_INTEGERS an object around its digits; the copy stays empty where there is none. With PYTHON_NAN a NaN or
 * Infinity becomes null there. False where it nests too deep. */
static bool scan(const char *bytes, size_t n, unsigned keep, ag_str *rewritten)
{
    int depth = 0;
    size_t copied = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = bytes[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > AG_JSON_MAX_DEPTH) return false;
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (is_digit(c)) {
            bool negative, is_integer;
            size_t end = digits_end(bytes, n, i, &negative, &is_integer);
            if (is_integer && is_too_big(bytes + i, end - i, negative)) {
                size_t start = keep & BIG_INTEGERS ? i - negative : end;
                ag_str_add_n(rewritten, bytes + copied, start - copied);
                if (keep & BIG_INTEGERS) ag_str_printf(rewritten, "{\"\\u0001integer\":\"%.*s\"}", (int)(end - start), bytes + start);
                else ag_str_add(rewritten, ".0");
                copied = end;
            }
            i = end - 1;
        } else if (keep & PYTHON_NAN && not_a_number(bytes + i, n - i)) {
            ag_str_add_n(rewritten, bytes + copied, i - copied);
            ag_str_add(rewritten, "null");
            i += not_a_number(bytes + i, n - i) - 1;
            copied = i + 1;
        }
    }
    if (copied) ag_str_add_n(rewritten, bytes + copied, n - copied);
    return true;
}

/* ---- parse and load ------------------------------------------------------------------------------------------------------- */

static ag_status parse(json_t **root, const char *bytes, size_t n, unsigned keep, const char *name, ag_err *err)
{
    *root = NULL;
    ag_str rewritten = {0};
    if (!scan(bytes, n, keep, &rewritten)) {
        ag_str_free(&rewritten);
        return ag_fail(err, AG_E_FORMAT, "%s: JSON nests deeper than %d levels", name, AG_JSON_MAX_DEPTH);
    }
    json_error_t error;
    if (rewritten.n)
        *root = json_loadb(rewritten.text, rewritten.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    else
        *root = json_loadb(n ? bytes : "", n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    ag_str_free(&rewritten);
    if (*root) return AG_OK;
    return ag_fail(err, AG_E_FORMAT, "%s: not valid JSON at line %d, column %d: %s", name, error.line, error.column, error.text);
}

ag_status ag_json_parse(json_t **root, const char *bytes, size_t n, const char *name, ag_err *err)
{
    return parse(root, bytes, n, 0, name, err);
}

ag_status ag_json_parse_nan(json_t **root, const char *bytes, size_t n, const char *name, ag_err *err)
{
    return parse(root, bytes, n, PYTHON_NAN, name, err);
}

ag_status ag_json_parse_exact(json_t **root, const char *bytes, size_t n, const char *name, ag_err *err)
{
    return parse(root, bytes, n, BIG_INTEGERS, name, err);
}

const char *ag_json_big_integer(const json_t *value)
{
    return json_object_size(value) == 1 ? json_string_value(json_object_get(value, BIG_INTEGER_KEY)) : NULL;
}

ag_status ag_json_load(json_t **root, const char *path, size_t max_bytes, ag_err *err)
{
    *root = NULL;
    ag_arena arena = {0};
    char *text;
    size_t n;
    ag_status status = ag_file_read(&text, &n, path, max_bytes, &arena, err);
    if (!status) status = ag_json_parse(root, text, n, path, err);
    ag_arena_free(&arena);
    return status;
}

void ag_json_free(json_t **root)
{
    json_decref(*root);
    *root = NULL;
}

/* ---- getters -------------------------------------------------------------------------------------------------------------- */

static const char *kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction or beyond 64 bits";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
    }
}

static ag_status wrong_kind(const json_t *value, const char *key, const char *wanted, const char *name, ag_err *err)
{
    return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be %s, found %s", name, key, wanted, kind_of(value));
}

/* *value is NULL for a missing key or null. */
static ag_status lookup(const json_t **value, const json_t *object, const char *key, const char *name, ag_err *err)
{
    *value = NULL;
    if (!json_is_object(object))
        return ag_fail(err, AG_E_FORMAT, "%s: must be an object with '%s', found %s", name, key, object ? kind_of(object) : "nothing");
    const json_t *found = json_object_get(object, key);
    if (found && !json_is_null(found)) *value = found;
    return AG_OK;
}

ag_status ag_json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out, const char *name,
                          ag_err *err)
{
    const json_t *value;
    AG_TRY(lookup(&value, object, key, name, err));
    if (!value) return AG_OK;
    if (!json_is_integer(value)) return wrong_kind(value, key, "an integer", name, err);
    int64_t found = json_integer_value(value);
    if (found < min || found > max)
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be between %lld and %lld, found %lld", name, key, (long long)min,
                       (long long)max, (long long)found);
    *out = found;
    return AG_OK;
}

ag_status ag_json_get_double(const json_t *object, const char *key, double *out, const char *name, ag_err *err)
{
    const json_t *value;
    AG_TRY(lookup(&value, object, key, name, err));
    if (!value) return AG_OK;
    if (!json_is_number(value)) return wrong_kind(value, key, "a number", name, err);
    *out = json_number_value(value);
    return AG_OK;
}

ag_status ag_json_get_bool(const json_t *object, const char *key, bool *out, const char *name, ag_err *err)
{
    const json_t *value;
    AG_TRY(lookup(&value, object, key, name, err));
    if (!value) return AG_OK;
    if (!json_is_boolean(value)) return wrong_kind(value, key, "true or false", name, err);
    *out = json_is_true(value);
    return AG_OK;
}

ag_status ag_json_get_string(const json_t *object, const char *key, const char **out, const char *name, ag_err *err)
{
    const json_t *value;
    AG_TRY(lookup(&value, object, key, name, err));
    if (!value) return AG_OK;
    if (!json_is_string(value)) return wrong_kind(value, key, "a string", name, err);
    if (strlen(json_string_value(value)) != json_string_length(value))
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be a string without NUL characters", name, key);
    *out = json_string_value(value);
    return AG_OK;
}

ag_status ag_json_need_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out, const char *name,
                           ag_err *err)
{
    const json_t *value;
    AG_TRY(lookup(&value, object, key, name, err));
    if (!value) return ag_fail(err, AG_E_FORMAT, "%s: '%s' is missing; it must be an integer", name, key);
    return ag_json_get_int(object, key, min, max, out, name, err);
}
