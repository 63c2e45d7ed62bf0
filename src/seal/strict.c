#include "seal/strict.h"

#include <ctype.h>
#include <string.h>

static bool is_hex(const char *text, size_t min, size_t max)
{
    const size_t n = strspn(text, "0123456789abcdef");
    return text[n] == 0 && n >= min && n <= max;
}

bool ag_is_digest(const char *text) { return is_hex(text, 64, 64); }
bool ag_is_immutable_revision(const char *text) { return is_hex(text, 40, 64); }

/* Moves *at over `n` digits whose value is lo … hi. */
static bool digits(const char **at, int n, int lo, int hi)
{
    int value = 0;
    for (int i = 0; i < n; i++) {
        if (!isdigit((unsigned char)**at)) return false;
        value = value * 10 + (*(*at)++ - '0');
    }
    return value >= lo && value <= hi;
}

static bool one_of(const char **at, const char *set)
{
    if (!**at || !strchr(set, **at)) return false;
    (*at)++;
    return true;
}

bool ag_is_iso_timestamp(const char *text)
{
    const char *at = text;
    if (!digits(&at, 4, 1, 9999) || !one_of(&at, "-") || !digits(&at, 2, 1, 12) || !one_of(&at, "-") || !digits(&at, 2, 1, 31))
        return false;
    if (!one_of(&at, "T ") || !digits(&at, 2, 0, 23) || !one_of(&at, ":") || !digits(&at, 2, 0, 59) || !one_of(&at, ":") ||
        !digits(&at, 2, 0, 59))
        return false;
    if (one_of(&at, ".")) {
        const size_t n = strspn(at, "0123456789");
        if (n == 0 || n > 9) return false;
        at += n;
    }
    if (one_of(&at, "Z") || *at == 0) return *at == 0;
    return one_of(&at, "+-") && digits(&at, 2, 0, 23) && one_of(&at, ":") && digits(&at, 2, 0, 59) && *at == 0;
}

/* ---- objects --------------------------------------------------------------------------------------------------------- */
static bool is_text(const json_t *value)
{
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value);
}

static bool is_kind(const json_t *value, ag_strict_kind kind)
{
    switch (kind) {
    case AG_STRICT_STRING: return is_text(value);
    case AG_STRICT_TEXT: return is_text(value) && json_string_value(value)[strspn(json_string_value(value), " \t\n\r\v\f")] != 0;
    case AG_STRICT_DIGEST: return is_text(value) && ag_is_digest(json_string_value(value));
    case AG_STRICT_REVISION: return is_text(value) && ag_is_immutable_revision(json_string_value(value));
    case AG_STRICT_COUNT: return json_is_integer(value) && json_integer_value(value) >= 0;
    case AG_STRICT_POSITIVE: return json_is_integer(value) && json_integer_value(value) >= 1;
    case AG_STRICT_INTEGER: return json_is_integer(value);
    case AG_STRICT_NUMBER: return json_is_number(value);
    case AG_STRICT_BOOL: return json_is_boolean(value);
    case AG_STRICT_OBJECT: return json_is_object(value);
    case AG_STRICT_LIST: return json_is_array(value);
    case AG_STRICT_TEXTS: break;
    }
    if (!json_is_array(value)) return false;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!is_text(json_array_get(value, i))) return false;
    return true;
}

static const char *kind_name(ag_strict_kind kind)
{
    static const char *const names[] = {
        [AG_STRICT_STRING] = "a string",
        [AG_STRICT_TEXT] = "a non-blank string",
        [AG_STRICT_DIGEST] = "a SHA-256 of 64 lowercase hex digits",
        [AG_STRICT_REVISION] = "an immutable revision of 40 to 64 lowercase hex digits",
        [AG_STRICT_COUNT] = "an integer >= 0",
        [AG_STRICT_POSITIVE] = "an integer >= 1",
        [AG_STRICT_INTEGER] = "an integer",
        [AG_STRICT_NUMBER] = "a number",
        [AG_STRICT_BOOL] = "true or false",
        [AG_STRICT_OBJECT] = "an object",
        [AG_STRICT_LIST] = "a list",
        [AG_STRICT_TEXTS] = "a list of strings",
    };
    return names[kind];
}

ag_status ag_strict_subset(const json_t *object, const char *where, const ag_strict_field *fields, size_t n, ag_err *err)
{
    if (!json_is_object(object)) return ag_fail(err, AG_E_FORMAT, "%s must be an object", where);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(object, fields[i].key);
        if (!value && fields[i].flags & AG_STRICT_OPTIONAL) continue;
        if (json_is_null(value) && fields[i].flags & AG_STRICT_NULLABLE) continue;
        if (!value) return ag_fail(err, AG_E_FORMAT, "%s lacks the key '%s'", where, fields[i].key);
        if (!is_kind(value, fields[i].kind))
            return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be %s%s", where, fields[i].key, kind_name(fields[i].kind),
                           fields[i].flags & AG_STRICT_NULLABLE ? " or null" : "");
    }
    return AG_OK;
}

ag_status ag_strict_object(const json_t *object, const char *where, const ag_strict_field *fields, size_t n, ag_err *err)
{
    AG_TRY(ag_strict_subset(object, where, fields, n, err));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;
        while (i < n && strcmp(fields[i].key, key) != 0) i++;
        if (i == n) return ag_fail(err, AG_E_FORMAT, "%s has the unknown key '%.80s'", where, key);
    }
    return AG_OK;
}

const char *ag_strict_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}
