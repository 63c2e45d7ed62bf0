/* JSON in and out. Reading is jansson with our bounds and our sentences; writing is a small streaming writer, so that
 * key order is the caller's and every double reads back to the same bits.
 *
 * Reading rejects duplicate keys, invalid UTF-8, NaN and Infinity, and anything behind the value. A value borrows from the
 * root; ag_json_free frees the root. Getters name the file and key when something is missing or of the wrong kind.
 * An integer that no int64 holds reads as a double (configs say 10^30 for "no limit"), so a getter for integers refuses it. */
#ifndef AG_JSON_H
#define AG_JSON_H

#include "base/status.h"
#include "base/str.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AG_JSON_MAX_DEPTH = 512 };
/* `name` stands in sentences: a file's path, or "config.json of …". Any kind of value may stand at the top. The caller frees *root
 * with ag_json_free. */
AG_MUST_USE ag_status ag_json_parse(json_t **root, const char *bytes, size_t n, const char *name, ag_err *err);
/* The same, but NaN, Infinity and -Infinity, which Python's json writes into trainer_state.json, read as null. */
AG_MUST_USE ag_status ag_json_parse_nan(json_t **root, const char *bytes, size_t n, const char *name, ag_err *err);
/* The same, but an integer that no int64 holds keeps its digits: it reads as a value that ag_json_big_integer knows (an object, for
 * whoever does not ask) and that the writer writes as those digits. For what is only handed on: conversations, tools, documents. */
AG_MUST_USE ag_status ag_json_parse_exact(json_t **root, const char *bytes, size_t n, const char *name, ag_err *err);
const char *ag_json_big_integer(const json_t *value); /* the digits, with a sign where it is negative; NULL: it is no such integer */
/* Reads a whole file of at most max_bytes; a larger one is refused before it is read. */
AG_MUST_USE ag_status ag_json_load(json_t **root, const char *path, size_t max_bytes, ag_err *err);
void ag_json_free(json_t **root);

/* Getters on an object. A missing key or null leaves *out as it is (set the default first); another kind is AG_E_FORMAT
 * "<name>: '<key>' must be …, found …". bool is never a number. An integer may be given where a double is asked. A string with NUL inside is refused
 * (read such a value with json_string_value and json_string_length). */
AG_MUST_USE ag_status ag_json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out,
                                      const char *name, ag_err *err);
AG_MUST_USE ag_status ag_json_get_double(const json_t *object, const char *key, double *out, const char *name, ag_err *err);
AG_MUST_USE ag_status ag_json_get_bool(const json_t *object, const char *key, bool *out, const char *name, ag_err *err);
AG_MUST_USE ag_status ag_json_get_string(const json_t *object, const char *key, const char **out, const char *name, ag_err *err);
/* As above, but the key must be there and not null. */
AG_MUST_USE ag_status ag_json_need_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out,
                                       const char *name, ag_err *err);

/* Writer. With indent > 0 one value a line and `indent` spaces a level, as Python's json.dump(indent=…); with indent 0
 * separators are ", " and ": " (Python's default); with indent < 0 there is no space at all. Keys go out in call order.
 *
 *     ag_json_writer w = {.out = &s, .indent = 2};
 *     ag_jw_object(&w, NULL); ag_jw_int(&w, "rows", n); ag_jw_array(&w, "ids"); … ag_jw_end(&w); ag_jw_end(&w);
 *
 * `key` is NULL inside arrays and at the top. Wrong nesting is an AG_ASSERT. */
enum { AG_JW_MAX_DEPTH = AG_JSON_MAX_DEPTH + 64 }; /* what was read can be written inside something of ours */
typedef struct {
    ag_str *out;
    int indent;
    bool ascii; /* non-ASCII as \uXXXX */
    int depth;
    struct {
        bool is_array, has_items;
    } level[AG_JW_MAX_DEPTH];
} ag_json_writer;
void ag_jw_object(ag_json_writer *w, const char *key);
void ag_jw_array(ag_json_writer *w, const char *key);
void ag_jw_end(ag_json_writer *w); /* of the innermost object or array */
void ag_jw_int(ag_json_writer *w, const char *key, int64_t value);
void ag_jw_uint(ag_json_writer *w, const char *key, uint64_t value);
void ag_jw_double(ag_json_writer *w, const char *key, double value); /* shortest that reads back; NaN and inf as null */
void ag_jw_bool(ag_json_writer *w, const char *key, bool value);
void ag_jw_null(ag_json_writer *w, const char *key);
void ag_jw_string(ag_json_writer *w, const char *key, const char *text); /* NULL writes null */
void ag_jw_string_n(ag_json_writer *w, const char *key, const char *text, size_t n);
void ag_jw_value(ag_json_writer *w, const char *key, const json_t *value); /* a whole jansson value, its own key order */

/* Shortest decimal that strtod reads back to the same double, with a '.', 'e' or ".0" so that it stays a float, as Python's
 * repr writes it ("nan", "inf" and "-inf" for what is no number). */
void ag_str_add_double(ag_str *s, double value);

#endif
