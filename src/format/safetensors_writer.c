#define _GNU_SOURCE
#include "base/json.h"
#include "format/little_endian.h"
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_ALIGNMENT = 8 };

static const int dtype_bits[AG_ST_N_DTYPES] = {
#define X(dtype, text, bits) [dtype] = bits,
    AG_ST_DTYPES(X)
#undef X
};

static uint64_t entry_bytes(const ag_st_entry *e)
{
    uint64_t bits = (uint64_t)dtype_bits[e->dtype];
    AG_ASSERT(e->rank >= 0 && e->rank <= AG_ST_MAX_RANK);
    for (int i = 0; i < e->rank; i++) AG_ASSERT(e->dim[i] >= 0 && !__builtin_mul_overflow(bits, (uint64_t)e->dim[i], &bits));
    AG_ASSERT(bits % 8 == 0);
    return bits / 8;
}

static int wide_dtypes_first(const void *a, const void *b, void *user)
{
    const ag_st_entry *entries = user, *x = &entries[*(const size_t *)a], *y = &entries[*(const size_t *)b];
    if (x->dtype != y->dtype) return x->dtype > y->dtype ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b, void *user)
{
    const ag_st_entry *entries = user;
    return strcmp(entries[*(const size_t *)a].name, entries[*(const size_t *)b].name);
}

/* The order of the data; names are held against each other on the way. */
static void place(ag_st_writer *w, const ag_st_entry *entries, ag_st_order order)
{
    w->order = ag_arena_array(&w->arena, w->n, sizeof *w->order);
    w->bytes = ag_arena_array(&w->arena, w->n, sizeof *w->bytes);
    for (size_t i = 0; i < w->n; i++) w->order[i] = i, w->bytes[i] = entry_bytes(&entries[i]);
    qsort_r(w->order, w->n, sizeof *w->order, by_name, (void *)entries);
    for (size_t k = 1; k < w->n; k++) AG_ASSERT(strcmp(entries[w->order[k - 1]].name, entries[w->order[k]].name) != 0);
    if (order == AG_ST_ORDER_LIBRARY)
        qsort_r(w->order, w->n, sizeof *w->order, wide_dtypes_first, (void *)entries);
    else
        for (size_t i = 0; i < w->n; i++) w->order[i] = i;
}

static void write_header(ag_str *s, const ag_st_writer *w, const ag_st_entry *entries, const ag_st_pair *metadata,
                         size_t n_metadata)
{
    ag_json_writer json = {.out = s, .indent = -1};
    uint64_t at = 0;
    ag_jw_object(&json, NULL);
    if (n_metadata > 0) {
        ag_jw_object(&json, "__metadata__");
        for (size_t i = 0; i < n_metadata; i++) ag_jw_string(&json, metadata[i].key, metadata[i].value);
        ag_jw_end(&json);
    }
    for (size_t k = 0; k < w->n; k++) {
        const ag_st_entry *e = &entries[w->order[k]];
        ag_jw_object(&json, e->name);
        ag_jw_string(&json, "dtype", ag_st_dtype_name(e->dtype));
        ag_jw_array(&json, "shape");
        for (int i = 0; i < e->rank; i++) ag_jw_int(&json, NULL, e->dim[i]);
        ag_jw_end(&json);
        ag_jw_array(&json, "data_offsets");
        ag_jw_uint(&json, NULL, at);
        ag_jw_uint(&json, NULL, at += w->bytes[w->order[k]]);
        ag_jw_end(&json);
        ag_jw_end(&json);
    }
    ag_jw_end(&json);
    while (s->n % HEADER_ALIGNMENT != 0) ag_str_add_char(s, ' ');
}

static void forget(ag_st_writer *w)
{
    ag_arena_free(&w->arena);
    w->order = NULL;
    w->bytes = NULL;
    w->n = w->at = 0;
    w->is_open = false;
}

/* Moves on over what is complete, so that an empty tensor needs no call. */
static void next(ag_st_writer *w)
{
    while (w->at < w->n && w->n_of_current == w->bytes[w->order[w->at]]) w->at++, w->n_of_current = 0;
}

ag_status ag_st_writer_begin(ag_st_writer *w, const char *path, const ag_st_entry *entries, size_t n, ag_st_order order,
                             const ag_st_pair *metadata, size_t n_metadata, ag_err *err)
{
    *w = (ag_st_writer){.n = n};
    ag_status status = ag_file_begin(&w->file, path, err);
    if (status) return status;
    w->is_open = true;
    place(w, entries, order);
    ag_str header = {0};
    write_header(&header, w, entries, metadata, n_metadata);
    unsigned char length[8];
    ag_little_write(length, header.n, 8);
    status = ag_file_write(&w->file, length, sizeof length, err);
    if (!status) status = ag_file_write(&w->file, header.text, header.n, err);
    ag_str_free(&header);
    if (status)
        ag_st_writer_abort(w);
    else
        next(w);
    return status;
}

ag_status ag_st_writer_add(ag_st_writer *w, size_t entry, const void *bytes, size_t n, ag_err *err)
{
    if (n == 0) return AG_OK;
    AG_ASSERT(w->at < w->n && w->order[w->at] == entry && n <= w->bytes[entry] - w->n_of_current);
    ag_status status = ag_file_write(&w->file, bytes, n, err);
    if (status) {
        ag_st_writer_abort(w);
        return status;
    }
    w->n_of_current += n;
    next(w);
    return AG_OK;
}

ag_status ag_st_writer_commit(ag_st_writer *w, ag_err *err)
{
    AG_ASSERT(w->at == w->n);
    forget(w);
    return ag_file_commit(&w->file, err);
}

void ag_st_writer_abort(ag_st_writer *w)
{
    if (w->is_open) ag_file_abort(&w->file);
    forget(w);
}

ag_status ag_safetensors_write(const char *path, const ag_st_entry *entries, size_t n, ag_st_order order,
                               const ag_st_pair *metadata, size_t n_metadata, ag_err *err)
{
    ag_st_writer w;
    AG_TRY(ag_st_writer_begin(&w, path, entries, n, order, metadata, n_metadata, err));
    for (size_t k = 0; k < n; k++) {
        size_t i = w.order[k];
        AG_TRY(ag_st_writer_add(&w, i, entries[i].data, (size_t)w.bytes[i], err));
    }
    return ag_st_writer_commit(&w, err);
}
