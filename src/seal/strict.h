/* Schemas of contract files as tables: which keys an object has, of what kind, and that it has no other.
 *
 *     static const ag_strict_field fields[] = {{"path", AG_STRICT_TEXT, 0}, {"sha256", AG_STRICT_DIGEST, 0}};
 *     AG_TRY(ag_strict_object(object, "splits.train", fields, 2, err));          // then json_object_get is safe
 */
#ifndef AG_STRICT_H
#define AG_STRICT_H

#include "base/json.h"
#include "base/status.h"

typedef enum {
    AG_STRICT_STRING,   /* any */
    AG_STRICT_TEXT,     /* a string with more than white space in it */
    AG_STRICT_DIGEST,   /* 64 lowercase hex digits */
    AG_STRICT_REVISION, /* immutable: 40 to 64 lowercase hex digits */
    AG_STRICT_COUNT,    /* an integer >= 0 */
    AG_STRICT_POSITIVE, /* an integer >= 1 */
    AG_STRICT_INTEGER,
    AG_STRICT_NUMBER,   /* an integer or a float; NaN no reader of ours lets in */
    AG_STRICT_BOOL,
    AG_STRICT_OBJECT,
    AG_STRICT_LIST,
    AG_STRICT_TEXTS     /* a list of strings */
} ag_strict_kind;

enum { AG_STRICT_OPTIONAL = 1, AG_STRICT_NULLABLE = 2 };

typedef struct {
    const char *key;
    ag_strict_kind kind;
    int flags;
} ag_strict_field;

/* `where` stands in sentences. AG_E_FORMAT: no object, a key that is missing, unknown, or of another kind. */
AG_MUST_USE ag_status ag_strict_object(const json_t *object, const char *where, const ag_strict_field *fields, size_t n, ag_err *err);
/* The same, but keys that are not in the table may be there. */
AG_MUST_USE ag_status ag_strict_subset(const json_t *object, const char *where, const ag_strict_field *fields, size_t n, ag_err *err);

bool ag_is_digest(const char *text);             /* 64 lowercase hex digits */
bool ag_is_immutable_revision(const char *text); /* 40 to 64 */
/* "2030-01-02T03:04:05", with fractions and "Z" or an offset behind it or not: what Python's fromisoformat takes of a date and a time. */
bool ag_is_iso_timestamp(const char *text);

/* json_object_get(object, key) as text; "" where it is none (which a checked schema excludes). */
const char *ag_strict_text(const json_t *object, const char *key);

#endif
