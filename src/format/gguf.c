#include "format/gguf.h"

#include "format/little_endian.h"

#include <stdlib.h>
#include <string.h>

/* Bounds of ggml's own loader, beyond what the file's size already says. */
enum { MAX_TEXT = 1 << 30, MAX_NAME = 63, MIN_ALIGNMENT = 8, DEFAULT_ALIGNMENT = 32, HEADER_BYTES = 24 };
/* The least that an entry can take in the file: what its count is held against before anything is allocated. */
enum { MIN_PAIR_BYTES = 8 + 4 + 1, MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8 };

static const int value_bytes[AG_GGUF_N_TYPES] = {
    [AG_GGUF_U8] = 1,  [AG_GGUF_I8] = 1,   [AG_GGUF_U16] = 2, [AG_GGUF_I16] = 2, [AG_GGUF_U32] = 4, [AG_GGUF_I32] = 4,
    [AG_GGUF_F32] = 4, [AG_GGUF_BOOL] = 1, [AG_GGUF_U64] = 8, [AG_GGUF_I64] = 8, [AG_GGUF_F64] = 8,
};

static const struct {
    const char *name;
    uint32_t id, weights, bytes;
} ggml_types[] = {
#define X(name, id, weights, bytes) {#name, id, weights, bytes},
    AG_GGML_TYPES(X)
#undef X
};
enum { N_GGML_TYPES = sizeof ggml_types / sizeof *ggml_types };

const char *ag_ggml_type_name(uint32_t type)
{
    for (int i = 0; i < N_GGML_TYPES; i++)
        if (ggml_types[i].id == type) return ggml_types[i].name;
    return NULL;
}

uint64_t ag_ggml_bytes(uint32_t type, uint64_t row, uint64_t n)
{
    for (int i = 0; i < N_GGML_TYPES; i++) {
        if (ggml_types[i].id != type) continue;
        uint64_t bytes;
        if (row % ggml_types[i].weights != 0 ||
            __builtin_mul_overflow(n / ggml_types[i].weights, (uint64_t)ggml_types[i].bytes, &bytes))
            return 0;
        return bytes;
    }
    return 0;
}

/* What is left to read; every take is held against it. */
typedef struct {
    const unsigned char *at, *end;
} cursor;

static size_t left(const cursor *c) { return (size_t)(c->end - c->at); }

static bool take(cursor *c, uint64_t *value, int n)
{
    if (left(c) < (size_t)n) return false;
    *value = ag_little_read(c->at, n);
    c->at += n;
    return true;
}

static bool take_text(cursor *c, ag_gguf_text *text)
{
    uint64_t n;
    if (!take(c, &n, 8) || n > MAX_TEXT || n > left(c)) return false;
    *text = (ag_gguf_text){(const char *)c->at, (size_t)n};
    c->at += n;
    return true;
}

static ag_status cut_short(const ag_gguf *g, const char *where, ag_err *err)
{
    return ag_fail(err, AG_E_FORMAT,
                   "%s: the file ends inside %s, or a length there is wrong; it is cut short or damaged, fetch it again",
                   g->path, where);
}

/* A name as a C text: UTF-8 without NUL. */
static ag_status take_name(const char **out, ag_gguf *g, cursor *c, const char *where, ag_err *err)
{
    ag_gguf_text text;
    if (!take_text(c, &text)) return cut_short(g, where, err);
    if (memchr(text.text, 0, text.n) || !ag_utf8_valid(text.text, text.n))
        return ag_fail(err, AG_E_FORMAT, "%s: a name in %s is not UTF-8 text; the file is damaged", g->path, where);
    *out = ag_arena_strndup(&g->arena, text.text, text.n);
    return AG_OK;
}

static ag_status skip_array(const ag_gguf *g, ag_gguf_pair *pair, cursor *c, ag_err *err)
{
    uint64_t item, bytes;
    if (!take(c, &item, 4) || !take(c, &pair->n, 8)) return cut_short(g, pair->key, err);
    if (item >= AG_GGUF_N_TYPES || item == AG_GGUF_ARRAY)
        return ag_fail(err, AG_E_FORMAT, "%s: '%s' is a list of type %llu, which a list cannot hold", g->path, pair->key,
                       (unsigned long long)item);
    pair->item = (ag_gguf_type)item;
    pair->bytes = c->at;
    if (pair->item == AG_GGUF_TEXT) {
        ag_gguf_text text;
        if (pair->n > left(c) / 8) return cut_short(g, pair->key, err);
        for (uint64_t i = 0; i < pair->n; i++)
            if (!take_text(c, &text)) return cut_short(g, pair->key, err);
        return AG_OK;
    }
    if (__builtin_mul_overflow(pair->n, (uint64_t)value_bytes[pair->item], &bytes) || bytes > left(c))
        return cut_short(g, pair->key, err);
    c->at += bytes;
    return AG_OK;
}

static ag_status read_value(ag_gguf *g, ag_gguf_pair *pair, cursor *c, ag_err *err)
{
    uint64_t type;
    if (!take(c, &type, 4)) return cut_short(g, pair->key, err);
    if (type >= AG_GGUF_N_TYPES)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: '%s' has type %llu, which GGUF does not know; the file is damaged or of a newer version", g->path,
                       pair->key, (unsigned long long)type);
    pair->type = pair->item = (ag_gguf_type)type;
    pair->n = 1;
    pair->bytes = c->at;
    if (pair->type == AG_GGUF_ARRAY) return skip_array(g, pair, c, err);
    if (pair->type == AG_GGUF_TEXT) {
        ag_gguf_text text;
        return take_text(c, &text) ? AG_OK : cut_short(g, pair->key, err);
    }
    if (left(c) < (size_t)value_bytes[type]) return cut_short(g, pair->key, err);
    c->at += value_bytes[type];
    return AG_OK;
}

static ag_status read_pair(ag_gguf *g, ag_gguf_pair *pair, cursor *c, ag_err *err)
{
    AG_TRY(take_name(&pair->key, g, c, "the metadata", err));
    AG_TRY(read_value(g, pair, c, err));
    pair->n_bytes = (size_t)(c->at - pair->bytes);
    return AG_OK;
}

static ag_status read_tensor(ag_gguf *g, ag_gguf_tensor *t, uint64_t *offset, cursor *c, ag_err *err)
{
    uint64_t rank, type, n_weights = 1;
    AG_TRY(take_name(&t->name, g, c, "the table of tensors", err));
    if (strlen(t->name) > MAX_NAME)
        return ag_fail(err, AG_E_FORMAT, "%s: tensor name '%.70s' is longer than %d bytes", g->path, t->name, MAX_NAME);
    if (!take(c, &rank, 4)) return cut_short(g, "the table of tensors", err);
    if (rank < 1 || rank > AG_GGUF_MAX_RANK)
        return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' has %llu dimensions, 1 to %d are allowed", g->path, t->name,
                       (unsigned long long)rank, AG_GGUF_MAX_RANK);
    t->rank = (int)rank;
    for (int i = 0; i < AG_GGUF_MAX_RANK; i++) {
        uint64_t ne = 1;
        if (i < t->rank && !take(c, &ne, 8)) return cut_short(g, "the table of tensors", err);
        if (ne > INT64_MAX || __builtin_mul_overflow(n_weights, ne, &n_weights) || n_weights > INT64_MAX)
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' has a shape whose size overflows 63 bits; the file is damaged",
                           g->path, t->name);
        t->ne[i] = (int64_t)ne;
    }
    if (!take(c, &type, 4) || !take(c, offset, 8)) return cut_short(g, "the table of tensors", err);
    t->type = (uint32_t)type;
    if (!ag_ggml_type_name(t->type)) return AG_OK; /* its size is known when the next one's place is */
    uint64_t bytes = ag_ggml_bytes(t->type, (uint64_t)t->ne[0], n_weights);
    if (bytes == 0 && n_weights != 0)
        return ag_fail(
            err, AG_E_FORMAT,
            "%s: tensor '%s' (%s) has rows of %lld weights, which are no whole blocks, or too many rows; the file is damaged",
            g->path, t->name, ag_ggml_type_name(t->type), (long long)t->ne[0]);
    t->bytes = (size_t)bytes;
    return AG_OK;
}

/* Tensors must lie one after the other, each padded to the alignment, as ggml's own loader demands. */
static ag_status place_tensors(ag_gguf *g, ag_gguf_tensor *tensors, const uint64_t *offsets, const unsigned char *file,
                               size_t n, ag_err *err)
{
    const uint64_t data_bytes = n - g->data_offset, mask = g->alignment - 1;
    uint64_t expected = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        ag_gguf_tensor *t = &tensors[i];
        const bool known = ag_ggml_type_name(t->type) != NULL;
        if (offsets[i] != expected)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: tensor '%s' lies at offset %llu of the data where %llu was expected; the file is damaged",
                           g->path, t->name, (unsigned long long)offsets[i], (unsigned long long)expected);
        if (!known) {
            uint64_t next = i + 1 < g->n_tensors ? offsets[i + 1] : data_bytes;
            t->bytes = next < expected ? 0 : (size_t)(next - expected);
        }
        if (expected > data_bytes || t->bytes > data_bytes - expected)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: tensor '%s' needs bytes %llu to %llu of the data, the file has %llu; it is cut short, "
                           "fetch it again",
                           g->path, t->name, (unsigned long long)expected, (unsigned long long)(expected + t->bytes),
                           (unsigned long long)data_bytes);
        t->data = file + g->data_offset + expected;
        expected = (expected + t->bytes + mask) & ~mask;
    }
    return AG_OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const ag_gguf_pair *const *)a)->key, (*(const ag_gguf_pair *const *)b)->key);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const ag_gguf_tensor *const *)a)->name, (*(const ag_gguf_tensor *const *)b)->name);
}

static ag_status read_pairs(ag_gguf *g, cursor *c, ag_err *err)
{
    ag_gguf_pair *pairs = ag_arena_array(&g->arena, g->n_pairs, sizeof *pairs);
    for (size_t i = 0; i < g->n_pairs; i++) AG_TRY(read_pair(g, &pairs[i], c, err));
    g->pairs = pairs;
    g->by_key = ag_arena_array(&g->arena, g->n_pairs, sizeof *g->by_key);
    for (size_t i = 0; i < g->n_pairs; i++) g->by_key[i] = &pairs[i];
    qsort(g->by_key, g->n_pairs, sizeof *g->by_key, by_key);
    for (size_t i = 1; i < g->n_pairs; i++)
        if (strcmp(g->by_key[i - 1]->key, g->by_key[i]->key) == 0)
            return ag_fail(err, AG_E_FORMAT, "%s: the key '%s' stands twice; the file is damaged", g->path, g->by_key[i]->key);
    int64_t alignment = DEFAULT_ALIGNMENT;
    AG_TRY(ag_gguf_get_int(g, "general.alignment", MIN_ALIGNMENT, 1 << 30, &alignment, err));
    if ((alignment & (alignment - 1)) != 0)
        return ag_fail(err, AG_E_FORMAT, "%s: 'general.alignment' is %lld, it must be a power of two", g->path,
                       (long long)alignment);
    g->alignment = (uint32_t)alignment;
    return AG_OK;
}

static ag_status read_tensors(ag_gguf *g, cursor *c, const unsigned char *file, size_t n, ag_err *err)
{
    ag_gguf_tensor *tensors = ag_arena_array(&g->arena, g->n_tensors, sizeof *tensors);
    uint64_t *offsets = ag_arena_array(&g->arena, g->n_tensors, sizeof *offsets);
    for (size_t i = 0; i < g->n_tensors; i++) AG_TRY(read_tensor(g, &tensors[i], &offsets[i], c, err));
    const uint64_t mask = g->alignment - 1;
    g->data_offset = ((uint64_t)(c->at - file) + mask) & ~mask;
    if (g->data_offset > n) {
        if (g->n_tensors > 0) return cut_short(g, "the padding before the tensor data", err);
        g->data_offset = n; /* a file of metadata alone need not be padded */
    }
    AG_TRY(place_tensors(g, tensors, offsets, file, n, err));
    g->tensors = tensors;
    g->by_name = ag_arena_array(&g->arena, g->n_tensors, sizeof *g->by_name);
    for (size_t i = 0; i < g->n_tensors; i++) g->by_name[i] = &tensors[i];
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (strcmp(g->by_name[i - 1]->name, g->by_name[i]->name) == 0)
            return ag_fail(err, AG_E_FORMAT, "%s: the tensor '%s' stands twice; the file is damaged", g->path,
                           g->by_name[i]->name);
    return AG_OK;
}

static ag_status parse(ag_gguf *g, const unsigned char *bytes, size_t n, ag_err *err)
{
    cursor c = {bytes, bytes + n};
    uint64_t version, n_tensors, n_pairs;
    if (n < HEADER_BYTES || memcmp(bytes, "GGUF", 4) != 0)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: this is no GGUF file, which begins with the letters GGUF and has at least %d bytes", g->path,
                       HEADER_BYTES);
    c.at += 4;
    if (!take(&c, &version, 4) || !take(&c, &n_tensors, 8) || !take(&c, &n_pairs, 8)) return cut_short(g, "the header", err);
    if (version >> 16 != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: a big-endian GGUF file; only little-endian ones can be read", g->path);
    if (version < 2 || version > 3)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: GGUF version %llu; versions 2 and 3 can be read, convert the model again",
                       g->path, (unsigned long long)version);
    if (n_pairs > left(&c) / MIN_PAIR_BYTES || n_tensors > left(&c) / MIN_TENSOR_BYTES)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: the header claims %llu metadata pairs and %llu tensors, which %zu bytes cannot hold; the file is "
                       "cut short or damaged",
                       g->path, (unsigned long long)n_pairs, (unsigned long long)n_tensors, n);
    g->version = (uint32_t)version;
    g->n_pairs = (size_t)n_pairs;
    g->n_tensors = (size_t)n_tensors;
    AG_TRY(read_pairs(g, &c, err));
    return read_tensors(g, &c, bytes, n, err);
}

ag_status ag_gguf_parse(ag_gguf *out, const void *bytes, size_t n, const char *name, ag_err *err)
{
    *out = (ag_gguf){0};
    out->path = ag_arena_strdup(&out->arena, name);
    ag_status status = parse(out, bytes, n, err);
    if (status) ag_gguf_close(out);
    return status;
}

ag_status ag_gguf_open(ag_gguf *out, const char *path, ag_err *err)
{
    ag_map map;
    *out = (ag_gguf){0};
    AG_TRY(ag_map_open(&map, path, err));
    ag_status status = ag_gguf_parse(out, map.bytes, map.n, path, err);
    if (status)
        ag_map_close(&map);
    else
        out->map = map;
    return status;
}

void ag_gguf_close(ag_gguf *g)
{
    ag_map_close(&g->map);
    ag_arena_free(&g->arena);
    *g = (ag_gguf){0};
}

const ag_gguf_tensor *ag_gguf_find(const ag_gguf *g, const char *name)
{
    const ag_gguf_tensor key = {.name = name}, *wanted = &key;
    if (g->n_tensors == 0) return NULL;
    const ag_gguf_tensor **found = bsearch(&wanted, g->by_name, g->n_tensors, sizeof *g->by_name, by_name);
    return found ? *found : NULL;
}

const ag_gguf_pair *ag_gguf_pair_of(const ag_gguf *g, const char *key)
{
    const ag_gguf_pair pair = {.key = key}, *wanted = &pair;
    if (g->n_pairs == 0) return NULL;
    const ag_gguf_pair **found = bsearch(&wanted, g->by_key, g->n_pairs, sizeof *g->by_key, by_key);
    return found ? *found : NULL;
}

const char *ag_gguf_shape_text(ag_arena *arena, const ag_gguf_tensor *t)
{
    const char *type = ag_ggml_type_name(t->type);
    const char *text = type ? ag_arena_printf(arena, "%s [", type) : ag_arena_printf(arena, "type %u [", t->type);
    for (int i = 0; i < t->rank; i++) text = ag_arena_printf(arena, i ? "%s,%lld" : "%s%lld", text, (long long)t->ne[i]);
    return ag_arena_printf(arena, "%s] (innermost first)", text);
}
