#include "format/safetensors.h"

#include "base/json.h"
#include "format/little_endian.h"

#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000 };

static const struct {
    const char *name;
    int bits;
} dtype_facts[AG_ST_N_DTYPES] = {
#define X(dtype, text, n_bits) [dtype] = {text, n_bits},
    AG_ST_DTYPES(X)
#undef X
};

const char *ag_st_dtype_name(ag_st_dtype dtype) { return dtype_facts[dtype].name; }

/* Bytes that a shape needs. */
static ag_status shape_bytes(uint64_t *out, const ag_st_tensor *t, const char *path, ag_err *err)
{
    uint64_t bits = 1;
    bool overflow = false;
    for (int i = 0; i < t->rank; i++) overflow |= __builtin_mul_overflow(bits, (uint64_t)t->dim[i], &bits);
    overflow |= __builtin_mul_overflow(bits, (uint64_t)dtype_facts[t->dtype].bits, &bits);
    if (overflow)
        return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' has a shape whose size overflows 64 bits; the file is damaged", path,
                       t->name);
    if (bits % 8 != 0)
        return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' (%s) ends inside a byte; the file is damaged", path, t->name,
                       dtype_facts[t->dtype].name);
    *out = bits / 8;
    return AG_OK;
}

static ag_status entry_dtype(ag_st_tensor *t, const json_t *entry, const char *path, ag_err *err)
{
    const json_t *value = json_object_get(entry, "dtype");
    if (!json_is_string(value)) return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' has no 'dtype' text", path, t->name);
    for (int i = 0; i < AG_ST_N_DTYPES; i++)
        if (strcmp(json_string_value(value), dtype_facts[i].name) == 0) {
            t->dtype = (ag_st_dtype)i;
            return AG_OK;
        }
    return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' has dtype '%.40s', which the format does not know", path, t->name,
                   json_string_value(value));
}

static ag_status entry_shape(ag_st_tensor *t, const json_t *entry, const char *path, ag_err *err)
{
    const json_t *value = json_object_get(entry, "shape");
    if (!json_is_array(value)) return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' has no 'shape' list", path, t->name);
    if (json_array_size(value) > AG_ST_MAX_RANK)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' has %zu dimensions, at most %d can be read", path, t->name,
                       json_array_size(value), AG_ST_MAX_RANK);
    t->rank = (int)json_array_size(value);
    for (int i = 0; i < t->rank; i++) {
        const json_t *dim = json_array_get(value, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s': dimension %d of 'shape' must be a whole number from 0 on", path,
                           t->name, i);
        t->dim[i] = json_integer_value(dim);
    }
    return AG_OK;
}

/* Leaves begin in *begin and the end's distance from it in t->bytes. */
static ag_status entry_offsets(ag_st_tensor *t, uint64_t *begin, const json_t *entry, uint64_t data_bytes, const char *path,
                               ag_err *err)
{
    const json_t *value = json_object_get(entry, "data_offsets");
    const json_t *from = json_array_get(value, 0), *to = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(from) || !json_is_integer(to) || json_integer_value(from) < 0 ||
        json_integer_value(to) < json_integer_value(from))
        return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s': 'data_offsets' must be two ascending whole numbers", path, t->name);
    uint64_t needed = 0, end = (uint64_t)json_integer_value(to);
    *begin = (uint64_t)json_integer_value(from);
    if (end > data_bytes)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: tensor '%s' ends at byte %llu of %llu bytes of data; the file is cut short or damaged, "
                       "fetch it again",
                       path, t->name, (unsigned long long)end, (unsigned long long)data_bytes);
    AG_TRY(shape_bytes(&needed, t, path, err));
    if (end - *begin != needed)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: tensor '%s' has %llu bytes, its shape needs %llu; the file is damaged, fetch it again", path,
                       t->name, (unsigned long long)(end - *begin), (unsigned long long)needed);
    t->bytes = needed;
    return AG_OK;
}

static ag_status read_metadata(ag_safetensors *st, const json_t *root, ag_err *err)
{
    json_t *object = json_object_get(root, "__metadata__");
    if (!object || json_is_null(object)) return AG_OK;
    if (!json_is_object(object)) return ag_fail(err, AG_E_FORMAT, "%s: '__metadata__' must be an object of texts", st->path);
    ag_st_pair *pairs = ag_arena_array(&st->arena, json_object_size(object), sizeof *pairs);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return ag_fail(err, AG_E_FORMAT, "%s: '__metadata__' entry '%.100s' must be a text", st->path, key);
        pairs[st->n_metadata++] =
            (ag_st_pair){ag_arena_strdup(&st->arena, key), ag_arena_strdup(&st->arena, json_string_value(value))};
    }
    st->metadata = pairs;
    return AG_OK;
}

static int by_place(const void *a, const void *b)
{
    const ag_st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const ag_st_tensor *const *)a)->name, (*(const ag_st_tensor *const *)b)->name);
}

static ag_status read_tensors(ag_safetensors *st, const json_t *root, const unsigned char *data, uint64_t data_bytes,
                              ag_err *err)
{
    ag_st_tensor *tensors = ag_arena_array(&st->arena, json_object_size(root), sizeof *tensors);
    const char *key;
    json_t *entry;
    json_object_foreach((json_t *)root, key, entry)
    {
        if (strcmp(key, "__metadata__") == 0) continue;
        ag_st_tensor *t = &tensors[st->n_tensors++];
        uint64_t begin = 0;
        t->name = ag_arena_strdup(&st->arena, key);
        if (!json_is_object(entry))
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' must be described by an object", st->path, t->name);
        AG_TRY(entry_dtype(t, entry, st->path, err));
        AG_TRY(entry_shape(t, entry, st->path, err));
        AG_TRY(entry_offsets(t, &begin, entry, data_bytes, st->path, err));
        t->data = data + begin;
    }
    qsort(tensors, st->n_tensors, sizeof *tensors, by_place);
    uint64_t at = 0;
    for (size_t i = 0; i < st->n_tensors; i++) {
        if (tensors[i].data != data + at)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: tensor '%s' begins at byte %llu of the data where %llu was expected (a hole or an "
                           "overlap); the file is damaged",
                           st->path, tensors[i].name, (unsigned long long)(tensors[i].data - data), (unsigned long long)at);
        at += tensors[i].bytes;
    }
    if (at != data_bytes)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: the tensors take %llu bytes, the file has %llu bytes of data; it is damaged, fetch it again",
                       st->path, (unsigned long long)at, (unsigned long long)data_bytes);
    st->tensors = tensors;
    st->by_name = ag_arena_array(&st->arena, st->n_tensors, sizeof *st->by_name);
    for (size_t i = 0; i < st->n_tensors; i++) st->by_name[i] = &tensors[i];
    qsort(st->by_name, st->n_tensors, sizeof *st->by_name, by_name);
    return AG_OK;
}

static ag_status parse(ag_safetensors *st, const unsigned char *bytes, size_t n, ag_err *err)
{
    if (n < LENGTH_BYTES)
        return ag_fail(err, AG_E_FORMAT, "%s: %zu bytes are no safetensors file, which begins with an 8-byte length", st->path,
                       n);
    uint64_t header = ag_little_read(bytes, LENGTH_BYTES);
    if (header > MAX_HEADER_BYTES)
        return ag_fail(err, AG_E_FORMAT, "%s: the header claims %llu bytes, the format allows %d; this is no safetensors file",
                       st->path, (unsigned long long)header, MAX_HEADER_BYTES);
    if (header > n - LENGTH_BYTES)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: the header claims %llu bytes, %zu are there; the file is cut short, fetch it again", st->path,
                       (unsigned long long)header, n - LENGTH_BYTES);
    if (header == 0 || bytes[LENGTH_BYTES] != '{')
        return ag_fail(err, AG_E_FORMAT, "%s: the header does not begin with '{'; this is no safetensors file", st->path);
    json_t *root = NULL;
    AG_TRY(ag_json_parse(&root, (const char *)bytes + LENGTH_BYTES, (size_t)header, st->path, err));
    ag_status status = AG_OK;
    if (!json_is_object(root)) status = ag_fail(err, AG_E_FORMAT, "%s: the header is not an object", st->path);
    if (!status) status = read_metadata(st, root, err);
    if (!status) status = read_tensors(st, root, bytes + LENGTH_BYTES + header, n - LENGTH_BYTES - header, err);
    ag_json_free(&root);
    return status;
}

ag_status ag_safetensors_parse(ag_safetensors *out, const void *bytes, size_t n, const char *name, ag_err *err)
{
    *out = (ag_safetensors){0};
    out->path = ag_arena_strdup(&out->arena, name);
    ag_status status = parse(out, bytes, n, err);
    if (status) ag_safetensors_close(out);
    return status;
}

ag_status ag_safetensors_open(ag_safetensors *out, const char *path, ag_err *err)
{
    ag_map map;
    *out = (ag_safetensors){0};
    AG_TRY(ag_map_open(&map, path, err));
    ag_status status = ag_safetensors_parse(out, map.bytes, map.n, path, err);
    if (status)
        ag_map_close(&map);
    else
        out->map = map;
    return status;
}

void ag_safetensors_close(ag_safetensors *st)
{
    ag_map_close(&st->map);
    ag_arena_free(&st->arena);
    *st = (ag_safetensors){0};
}

const ag_st_tensor *ag_safetensors_find(const ag_safetensors *st, const char *name)
{
    const ag_st_tensor key = {.name = name}, *wanted = &key;
    if (st->n_tensors == 0) return NULL;
    const ag_st_tensor **found = bsearch(&wanted, st->by_name, st->n_tensors, sizeof *st->by_name, by_name);
    return found ? *found : NULL;
}

const char *ag_safetensors_meta(const ag_safetensors *st, const char *key)
{
    for (size_t i = 0; i < st->n_metadata; i++)
        if (strcmp(st->metadata[i].key, key) == 0) return st->metadata[i].value;
    return NULL;
}

const char *ag_st_shape_text(ag_arena *arena, const ag_st_tensor *t)
{
    const char *text = ag_arena_printf(arena, "%s [", dtype_facts[t->dtype].name);
    for (int i = 0; i < t->rank; i++) text = ag_arena_printf(arena, i ? "%s,%lld" : "%s%lld", text, (long long)t->dim[i]);
    return ag_arena_printf(arena, "%s]", text);
}
