#include "format/torch_archive.h"

#include "format/torch_node.h"
#include "format/torch_pickle.h"
#include "format/torch_zip.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *storage;
    int bytes;
    const char *name;
} dtypes[] = {
#define X(dtype, storage, bytes, name) [dtype] = {storage, bytes, name},
    AG_TORCH_DTYPES(X)
#undef X
};

int ag_torch_dtype_bytes(ag_torch_dtype dtype) { return dtypes[dtype].bytes; }

const char *ag_torch_dtype_storage(ag_torch_dtype dtype) { return dtypes[dtype].storage; }

const char *ag_torch_dtype_name(ag_torch_dtype dtype) { return dtypes[dtype].name; }

/* ---- reading ---------------------------------------------------------------------------------------------------------------- */

static ag_status find_member(const ag_torch_member **m, const ag_torch_zip *zip, const char *name, ag_err *err)
{
    *m = ag_torch_zip_find(zip, name, strlen(name));
    return *m ? AG_OK : ag_fail(err, AG_E_FORMAT, "the archive has no member <root>/%s, which every file of torch has", name);
}

static ag_status check_records(const ag_torch_zip *zip, ag_err *err)
{
    const ag_torch_member *m;
    AG_TRY(find_member(&m, zip, ".data/serialization_id", err));
    AG_TRY(find_member(&m, zip, "version", err));
    if (m->n < 1 || m->bytes[0] < '1' || m->bytes[0] > '9')
        return ag_fail(err, AG_E_UNSUPPORTED, "the archive's member <root>/version holds no version of the format");
    m = ag_torch_zip_find(zip, "byteorder", strlen("byteorder"));
    if (m && (m->n != 6 || memcmp(m->bytes, "little", 6)))
        return ag_fail(err, AG_E_UNSUPPORTED, "the archive was written on a big-endian machine");
    return AG_OK;
}

static ag_status check_root(const ag_torch_value *root, ag_arena *arena, ag_err *err)
{
    if (root->kind != AG_TORCH_DICT)
        return ag_fail(err, AG_E_FORMAT, "a dict was expected at the top of data.pkl, found %s", ag_torch_describe(arena, root));
    for (uint32_t i = 0; i < root->n; i++)
        if (root->items[2 * i]->kind != AG_TORCH_STRING)
            return ag_fail(err, AG_E_FORMAT, "the dict at the top of data.pkl has a key that is no string");
    return AG_OK;
}

static ag_status read_archive(ag_torch_archive *a, const unsigned char *bytes, size_t n, const ag_map *map, unsigned flags, ag_err *err)
{
    ag_torch_zip zip;
    const ag_torch_member *pickle;
    AG_TRY(ag_torch_zip_read(&zip, bytes, n, map, &a->arena, err));
    AG_TRY(find_member(&pickle, &zip, "data.pkl", err));
    AG_TRY(check_records(&zip, err));
    AG_TRY(ag_torch_unpickle(&a->root, pickle->bytes, pickle->n, &zip, flags, &a->arena, err));
    if ((flags & AG_TORCH_NEEDS_STORAGE) && zip.n_storages == 0) return ag_fail(err, AG_E_FORMAT, "the archive has no tensor in it");
    return check_root(a->root, &a->arena, err);
}

static ag_status parse(ag_torch_archive *out, const void *bytes, size_t n, const ag_map *map, const char *name, unsigned flags, ag_err *err)
{
    *out = (ag_torch_archive){0};
    ag_status status = read_archive(out, bytes, n, map, flags, err);
    if (!status) return AG_OK;
    (void)ag_err_prefix(err, "%s", name);
    ag_torch_close(out);
    return status;
}

ag_status ag_torch_parse(ag_torch_archive *out, const void *bytes, size_t n, const char *name, unsigned flags, ag_err *err)
{
    return parse(out, bytes, n, NULL, name, flags, err);
}

ag_status ag_torch_open(ag_torch_archive *out, const char *path, unsigned flags, ag_err *err)
{
    *out = (ag_torch_archive){0};
    ag_map map;
    AG_TRY(ag_map_open_no_link(&map, path, err));
    ag_status status = parse(out, map.bytes, map.n, &map, path, flags, err);
    if (status) ag_map_close(&map);
    else out->map = map;
    return status;
}

void ag_torch_close(ag_torch_archive *a)
{
    ag_map_close(&a->map);
    ag_arena_free(&a->arena);
    *a = (ag_torch_archive){0};
}

const ag_torch_value *ag_torch_get(const ag_torch_value *dict, const char *key)
{
    if (!ag_torch_is(dict, AG_TORCH_DICT)) return NULL;
    size_t n = strlen(key);
    for (uint32_t i = 0; i < dict->n; i++) {
        const ag_torch_value *k = dict->items[2 * i];
        if (k->kind == AG_TORCH_STRING && k->n_text == n && memcmp(k->text, key, n) == 0) return dict->items[2 * i + 1];
    }
    return NULL;
}

bool ag_torch_is(const ag_torch_value *value, ag_torch_kind kind) { return value && value->kind == kind; }

const char *ag_torch_describe(ag_arena *arena, const ag_torch_value *value)
{
    if (!value) return "nothing";
    switch (value->kind) {
    case AG_TORCH_NONE: return "None";
    case AG_TORCH_BOOLEAN: return value->boolean ? "True" : "False";
    case AG_TORCH_INT: return ag_arena_printf(arena, "the integer %lld", (long long)value->integer);
    case AG_TORCH_FLOAT: return ag_arena_printf(arena, "the number %.9g", value->real);
    case AG_TORCH_STRING: return ag_arena_printf(arena, "the text '%.40s'", value->text);
    case AG_TORCH_BYTES: return "bytes";
    case AG_TORCH_LIST: return ag_arena_printf(arena, "a list of %u", value->n);
    case AG_TORCH_TUPLE: return ag_arena_printf(arena, "a tuple of %u", value->n);
    case AG_TORCH_DICT: return ag_arena_printf(arena, "a dict of %u", value->n);
    case AG_TORCH_U32_ARRAY: return ag_arena_printf(arena, "an array of %zu words", value->n_words);
    case AG_TORCH_OPAQUE: return ag_arena_printf(arena, "a %.40s", value->text);
    case AG_TORCH_TENSOR: break;
    }
    const ag_torch_view *v = value->tensor;
    ag_str text = {0};
    for (int i = 0; i < v->rank; i++) ag_str_printf(&text, "%s%lld", i ? "," : "", (long long)v->dim[i]);
    char *described = ag_arena_printf(arena, "a tensor %s [%s]", ag_torch_dtype_storage(v->dtype) ? ag_torch_dtype_storage(v->dtype)
                                                                                               : ag_torch_dtype_name(v->dtype), text.text ? text.text : "");
    ag_str_free(&text);
    return described;
}

bool ag_torch_is_contiguous(const ag_torch_view *view)
{
    int64_t expected = 1;
    for (int i = 0; i < view->rank; i++)
        if (view->dim[i] == 0) return true;
    for (int i = view->rank - 1; i >= 0; i--) {
        if (view->dim[i] != 1 && view->stride[i] != expected) return false;
        expected *= view->dim[i]; /* the reader and the builder made sure that this fits */
    }
    return true;
}

int64_t ag_torch_count(const ag_torch_view *view)
{
    int64_t n = 1;
    for (int i = 0; i < view->rank; i++)
        if (view->dim[i] == 0) return 0; /* the other dimensions may then be of any size */
    for (int i = 0; i < view->rank; i++) n *= view->dim[i];
    return n;
}

/* ---- building --------------------------------------------------------------------------------------------------------------- */

static ag_torch_value *create(ag_arena *arena, ag_torch_kind kind)
{
    ag_torch_value *value = ag_arena_alloc(arena, sizeof *value);
    value->kind = kind;
    return value;
}

ag_torch_value *ag_torch_none(ag_arena *arena) { return create(arena, AG_TORCH_NONE); }

ag_torch_value *ag_torch_bool(ag_arena *arena, bool boolean)
{
    ag_torch_value *value = create(arena, AG_TORCH_BOOLEAN);
    value->boolean = boolean;
    return value;
}

ag_torch_value *ag_torch_int(ag_arena *arena, int64_t integer)
{
    ag_torch_value *value = create(arena, AG_TORCH_INT);
    value->integer = integer;
    return value;
}

ag_torch_value *ag_torch_float(ag_arena *arena, double real)
{
    ag_torch_value *value = create(arena, AG_TORCH_FLOAT);
    value->real = real;
    return value;
}

ag_torch_value *ag_torch_string(ag_arena *arena, const char *text)
{
    ag_torch_value *value = create(arena, AG_TORCH_STRING);
    value->n_text = strlen(text);
    value->text = ag_arena_strndup(arena, text, value->n_text);
    return value;
}

ag_torch_value *ag_torch_list(ag_arena *arena) { return create(arena, AG_TORCH_LIST); }

ag_torch_value *ag_torch_tuple(ag_arena *arena) { return create(arena, AG_TORCH_TUPLE); }

ag_torch_value *ag_torch_dict(ag_arena *arena) { return create(arena, AG_TORCH_DICT); }

void ag_torch_push(ag_arena *arena, ag_torch_value *list_or_tuple, ag_torch_value *item)
{
    AG_ASSERT(list_or_tuple->kind == AG_TORCH_LIST || list_or_tuple->kind == AG_TORCH_TUPLE);
    torch_items_push(arena, list_or_tuple, list_or_tuple->n, item, true);
}

static void put_pair(ag_arena *arena, ag_torch_value *dict, ag_torch_value *key, ag_torch_value *value)
{
    AG_ASSERT(dict->kind == AG_TORCH_DICT);
    torch_items_push(arena, dict, 2 * (size_t)dict->n, key, false);
    torch_items_push(arena, dict, 2 * (size_t)dict->n + 1, value, true);
}

void ag_torch_put(ag_arena *arena, ag_torch_value *dict, const char *key, ag_torch_value *value)
{
    put_pair(arena, dict, ag_torch_string(arena, key), value);
}

void ag_torch_put_at(ag_arena *arena, ag_torch_value *dict, int64_t key, ag_torch_value *value)
{
    put_pair(arena, dict, ag_torch_int(arena, key), value);
}

ag_torch_value *ag_torch_tensor(ag_arena *arena, const void *data, ag_torch_dtype dtype, int rank, const int64_t *dim)
{
    AG_ASSERT(rank >= 0 && rank <= AG_TORCH_MAX_RANK);
    ag_torch_view *view = ag_arena_alloc(arena, sizeof *view);
    *view = (ag_torch_view){.dtype = dtype, .rank = rank, .data = data};
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        AG_ASSERT(dim[i] >= 0);
        view->dim[i] = dim[i];
        view->stride[i] = stride;
        AG_ASSERT(!__builtin_mul_overflow(stride, dim[i] ? dim[i] : 1, &stride));
    }
    ag_torch_value *value = create(arena, AG_TORCH_TENSOR);
    value->tensor = view;
    return value;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------- */

static ag_status add_text(ag_torch_zip_writer *zip, const char *name, const char *text, ag_err *err)
{
    return ag_torch_zip_add(zip, name, text, strlen(text), err);
}

static ag_status write_members(ag_torch_zip_writer *zip, const ag_str *pickle, const ag_torch_views *views, ag_err *err)
{
    AG_TRY(ag_torch_zip_add(zip, "data.pkl", pickle->text, pickle->n, err));
    AG_TRY(add_text(zip, ".format_version", "1", err));
    AG_TRY(add_text(zip, ".storage_alignment", "64", err));
    AG_TRY(add_text(zip, "byteorder", "little", err));
    for (size_t i = 0; i < views->n; i++) {
        const ag_torch_view *v = views->views[i];
        char name[32];
        snprintf(name, sizeof name, "data/%zu", i);
        AG_TRY(ag_torch_zip_add(zip, name, v->data, (size_t)ag_torch_count(v) * (size_t)dtypes[v->dtype].bytes, err));
    }
    AG_TRY(add_text(zip, "version", "3\n", err));
    char id[48];
    snprintf(id, sizeof id, "%020llu%020llu", (unsigned long long)zip->id[0], (unsigned long long)zip->id[1]);
    return add_text(zip, ".data/serialization_id", id, err);
}

ag_status ag_torch_save(const char *path, const ag_torch_value *root, ag_err *err)
{
    ag_arena arena = {0};
    ag_torch_views views = {.arena = &arena};
    ag_str pickle = {0};
    ag_torch_pickle(&pickle, root, &views);
    const char *base = ag_path_base(path), *dot = strrchr(base, '.');
    const char *stem = ag_arena_strndup(&arena, base, dot && dot > base ? (size_t)(dot - base) : strlen(base));
    ag_torch_zip_writer zip;
    ag_status status = ag_torch_zip_begin(&zip, path, stem, err);
    if (!status) status = write_members(&zip, &pickle, &views, err);
    if (!status) status = ag_torch_zip_commit(&zip, err);
    ag_str_free(&pickle);
    ag_arena_free(&arena);
    return status;
}
