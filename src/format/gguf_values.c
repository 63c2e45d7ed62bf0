#include "format/gguf.h"

#include "format/little_endian.h"

#include <string.h>

static const char *const type_names[AG_GGUF_N_TYPES] = {
    [AG_GGUF_U8] = "u8",   [AG_GGUF_I8] = "i8",   [AG_GGUF_U16] = "u16",   [AG_GGUF_I16] = "i16",   [AG_GGUF_U32] = "u32",
    [AG_GGUF_I32] = "i32", [AG_GGUF_F32] = "f32", [AG_GGUF_BOOL] = "bool", [AG_GGUF_TEXT] = "text", [AG_GGUF_ARRAY] = "list",
    [AG_GGUF_U64] = "u64", [AG_GGUF_I64] = "i64", [AG_GGUF_F64] = "f64",
};

static ag_status wrong_type(const ag_gguf *g, const ag_gguf_pair *pair, const char *expected, ag_err *err)
{
    return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be %s, found %s%s", g->path, pair->key, expected,
                   pair->type == AG_GGUF_ARRAY ? "a list of " : "", type_names[pair->item]);
}

static ag_status missing(const ag_gguf *g, const char *key, ag_err *err)
{
    return ag_fail(err, AG_E_FORMAT, "%s: the metadata has no '%s'; the file is incomplete, convert the model again", g->path,
                   key);
}

/* The i-th value as an integer: false where the type is none, or it is a u64 above INT64_MAX. */
static bool integer_at(int64_t *out, ag_gguf_type type, const unsigned char *bytes, uint64_t i)
{
    switch (type) {
    case AG_GGUF_U8: *out = bytes[i]; return true;
    case AG_GGUF_I8: *out = (int8_t)bytes[i]; return true;
    case AG_GGUF_U16: *out = (int64_t)ag_little_read(bytes + 2 * i, 2); return true;
    case AG_GGUF_I16: *out = (int16_t)ag_little_read(bytes + 2 * i, 2); return true;
    case AG_GGUF_U32: *out = (int64_t)ag_little_read(bytes + 4 * i, 4); return true;
    case AG_GGUF_I32: *out = (int32_t)ag_little_read(bytes + 4 * i, 4); return true;
    case AG_GGUF_I64:
    case AG_GGUF_U64: *out = (int64_t)ag_little_read(bytes + 8 * i, 8); return type == AG_GGUF_I64 || *out >= 0;
    default: return false;
    }
}

ag_status ag_gguf_get_int(const ag_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, ag_err *err)
{
    const ag_gguf_pair *pair = ag_gguf_pair_of(g, key);
    int64_t value = 0;
    if (!pair) return AG_OK;
    if (!integer_at(&value, pair->type, pair->bytes, 0)) return wrong_type(g, pair, "a whole number", err);
    if (value < min || value > max)
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' is %lld, expected %lld to %lld", g->path, key, (long long)value,
                       (long long)min, (long long)max);
    *out = value;
    return AG_OK;
}

ag_status ag_gguf_need_int(const ag_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, ag_err *err)
{
    return ag_gguf_pair_of(g, key) ? ag_gguf_get_int(g, key, min, max, out, err) : missing(g, key, err);
}

ag_status ag_gguf_get_double(const ag_gguf *g, const char *key, double *out, ag_err *err)
{
    const ag_gguf_pair *pair = ag_gguf_pair_of(g, key);
    int64_t value = 0;
    if (!pair) return AG_OK;
    if (pair->type == AG_GGUF_F32) {
        float x;
        memcpy(&x, pair->bytes, sizeof x);
        *out = x;
    } else if (pair->type == AG_GGUF_F64) {
        memcpy(out, pair->bytes, sizeof *out);
    } else if (integer_at(&value, pair->type, pair->bytes, 0)) {
        *out = (double)value;
    } else {
        return wrong_type(g, pair, "a number", err);
    }
    return AG_OK;
}

ag_status ag_gguf_need_double(const ag_gguf *g, const char *key, double *out, ag_err *err)
{
    return ag_gguf_pair_of(g, key) ? ag_gguf_get_double(g, key, out, err) : missing(g, key, err);
}

ag_status ag_gguf_get_bool(const ag_gguf *g, const char *key, bool *out, ag_err *err)
{
    const ag_gguf_pair *pair = ag_gguf_pair_of(g, key);
    if (!pair) return AG_OK;
    if (pair->type != AG_GGUF_BOOL || pair->bytes[0] > 1) return wrong_type(g, pair, "a bool (0 or 1)", err);
    *out = pair->bytes[0] == 1;
    return AG_OK;
}

ag_status ag_gguf_get_text(const ag_gguf *g, const char *key, const char **out, ag_arena *arena, ag_err *err)
{
    const ag_gguf_pair *pair = ag_gguf_pair_of(g, key);
    if (!pair) return AG_OK;
    if (pair->type != AG_GGUF_TEXT) return wrong_type(g, pair, "a text", err);
    const char *text = (const char *)pair->bytes + 8;
    size_t n = (size_t)ag_little_read(pair->bytes, 8); /* held against the file when it was read */
    if (memchr(text, 0, n) || !ag_utf8_valid(text, n))
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' is not UTF-8 text; the file is damaged", g->path, key);
    *out = ag_arena_strndup(arena, text, n);
    return AG_OK;
}

ag_status ag_gguf_get_texts(const ag_gguf *g, const char *key, const ag_gguf_text **out, size_t *n, ag_arena *arena,
                            ag_err *err)
{
    const ag_gguf_pair *pair = ag_gguf_pair_of(g, key);
    *out = NULL;
    *n = 0;
    if (!pair) return AG_OK;
    if (pair->type != AG_GGUF_ARRAY || pair->item != AG_GGUF_TEXT) return wrong_type(g, pair, "a list of texts", err);
    ag_gguf_text *texts = ag_arena_array(arena, (size_t)pair->n, sizeof *texts);
    const unsigned char *at = pair->bytes;
    for (uint64_t i = 0; i < pair->n; i++) {
        texts[i] = (ag_gguf_text){(const char *)at + 8, (size_t)ag_little_read(at, 8)};
        at += 8 + texts[i].n;
    }
    *out = texts;
    *n = (size_t)pair->n;
    return AG_OK;
}

ag_status ag_gguf_get_ints(const ag_gguf *g, const char *key, const int64_t **out, size_t *n, ag_arena *arena, ag_err *err)
{
    const ag_gguf_pair *pair = ag_gguf_pair_of(g, key);
    int64_t probe;
    *out = NULL;
    *n = 0;
    if (!pair) return AG_OK;
    if (pair->type != AG_GGUF_ARRAY || pair->item == AG_GGUF_TEXT) return wrong_type(g, pair, "a list of whole numbers", err);
    int64_t *items = ag_arena_array(arena, (size_t)pair->n, sizeof *items);
    for (uint64_t i = 0; i < pair->n; i++) {
        if (!integer_at(&probe, pair->item, pair->bytes, i)) return wrong_type(g, pair, "a list of whole numbers", err);
        items[i] = probe;
    }
    *out = items;
    *n = (size_t)pair->n;
    return AG_OK;
}

ag_status ag_gguf_get_floats(const ag_gguf *g, const char *key, const float **out, size_t *n, ag_arena *arena, ag_err *err)
{
    const ag_gguf_pair *pair = ag_gguf_pair_of(g, key);
    *out = NULL;
    *n = 0;
    if (!pair) return AG_OK;
    if (pair->type != AG_GGUF_ARRAY || pair->item != AG_GGUF_F32) return wrong_type(g, pair, "a list of f32", err);
    float *items = ag_arena_array(arena, (size_t)pair->n, sizeof *items);
    if (pair->n > 0) memcpy(items, pair->bytes, (size_t)pair->n * sizeof *items);
    *out = items;
    *n = (size_t)pair->n;
    return AG_OK;
}
