#include "format/gguf.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32, VERSION = 3 };

static void put(ag_str *s, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) ag_str_add_char(s, (char)(value >> 8 * i));
}

static void put_text(ag_str *s, const char *text, size_t n)
{
    put(s, n, 8);
    ag_str_add_n(s, text, n);
}

static void put_key(ag_gguf_writer *w, const char *key, ag_gguf_type type)
{
    w->n_pairs++;
    put_text(&w->pairs, key, strlen(key));
    put(&w->pairs, type, 4);
}

static void put_list(ag_gguf_writer *w, const char *key, ag_gguf_type item, size_t n)
{
    put_key(w, key, AG_GGUF_ARRAY);
    put(&w->pairs, item, 4);
    put(&w->pairs, n, 8);
}

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void ag_gguf_put_u32(ag_gguf_writer *w, const char *key, uint32_t value)
{
    put_key(w, key, AG_GGUF_U32);
    put(&w->pairs, value, 4);
}

void ag_gguf_put_i32(ag_gguf_writer *w, const char *key, int32_t value)
{
    put_key(w, key, AG_GGUF_I32);
    put(&w->pairs, (uint32_t)value, 4);
}

void ag_gguf_put_u64(ag_gguf_writer *w, const char *key, uint64_t value)
{
    put_key(w, key, AG_GGUF_U64);
    put(&w->pairs, value, 8);
}

void ag_gguf_put_f32(ag_gguf_writer *w, const char *key, float value)
{
    put_key(w, key, AG_GGUF_F32);
    put(&w->pairs, float_bits(value), 4);
}

void ag_gguf_put_bool(ag_gguf_writer *w, const char *key, bool value)
{
    put_key(w, key, AG_GGUF_BOOL);
    put(&w->pairs, value, 1);
}

void ag_gguf_put_text(ag_gguf_writer *w, const char *key, const char *text)
{
    put_key(w, key, AG_GGUF_TEXT);
    put_text(&w->pairs, text, strlen(text));
}

void ag_gguf_put_texts(ag_gguf_writer *w, const char *key, const ag_gguf_text *items, size_t n)
{
    put_list(w, key, AG_GGUF_TEXT, n);
    for (size_t i = 0; i < n; i++) put_text(&w->pairs, items[i].text, items[i].n);
}

void ag_gguf_put_i32s(ag_gguf_writer *w, const char *key, const int32_t *items, size_t n)
{
    put_list(w, key, AG_GGUF_I32, n);
    for (size_t i = 0; i < n; i++) put(&w->pairs, (uint32_t)items[i], 4);
}

void ag_gguf_put_f32s(ag_gguf_writer *w, const char *key, const float *items, size_t n)
{
    put_list(w, key, AG_GGUF_F32, n);
    for (size_t i = 0; i < n; i++) put(&w->pairs, float_bits(items[i]), 4);
}

void ag_gguf_put_pair(ag_gguf_writer *w, const ag_gguf_pair *pair)
{
    if (pair->type == AG_GGUF_ARRAY)
        put_list(w, pair->key, pair->item, (size_t)pair->n);
    else
        put_key(w, pair->key, pair->type);
    ag_str_add_n(&w->pairs, (const char *)pair->bytes, pair->n_bytes);
}

void ag_gguf_writer_tensor(ag_gguf_writer *w, const char *name, uint32_t type, int rank, const int64_t *ne)
{
    uint64_t n_weights = 1;
    AG_ASSERT(rank >= 1 && rank <= AG_GGUF_MAX_RANK && strlen(name) < 64 && ag_ggml_type_name(type));
    put_text(&w->infos, name, strlen(name));
    put(&w->infos, (uint64_t)rank, 4);
    for (int i = 0; i < rank; i++) {
        AG_ASSERT(ne[i] > 0 && !__builtin_mul_overflow(n_weights, (uint64_t)ne[i], &n_weights));
        put(&w->infos, (uint64_t)ne[i], 8);
    }
    put(&w->infos, type, 4);
    put(&w->infos, w->data_bytes, 8);
    uint64_t bytes = ag_ggml_bytes(type, (uint64_t)ne[0], n_weights);
    AG_ASSERT(bytes > 0);
    if (w->n_tensors == w->room) {
        w->room = w->room ? 2 * w->room : 64;
        w->sizes = realloc(w->sizes, w->room * sizeof *w->sizes);
        if (!w->sizes) ag_out_of_memory(w->room * sizeof *w->sizes);
    }
    w->sizes[w->n_tensors++] = bytes;
    w->data_bytes += (bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
}

static void forget(ag_gguf_writer *w)
{
    ag_str_free(&w->pairs);
    ag_str_free(&w->infos);
    free(w->sizes);
    w->sizes = NULL;
    w->n_pairs = w->n_tensors = w->data_bytes = w->at = w->n_of_current = 0;
    w->room = 0;
    w->is_open = false;
}

static ag_status pad(ag_gguf_writer *w, ag_err *err)
{
    static const unsigned char zeros[ALIGNMENT];
    return ag_file_write(&w->file, zeros, (size_t)(-w->file.n_written & (ALIGNMENT - 1)), err);
}

ag_status ag_gguf_writer_begin(ag_gguf_writer *w, const char *path, ag_err *err)
{
    ag_str head = {0};
    ag_str_add(&head, "GGUF");
    put(&head, VERSION, 4);
    put(&head, w->n_tensors, 8);
    put(&head, w->n_pairs, 8);
    ag_status status = ag_file_begin(&w->file, path, err);
    w->is_open = !status;
    if (!status) status = ag_file_write(&w->file, head.text, head.n, err);
    if (!status) status = ag_file_write(&w->file, w->pairs.text, w->pairs.n, err);
    if (!status) status = ag_file_write(&w->file, w->infos.text, w->infos.n, err);
    if (!status) status = pad(w, err);
    ag_str_free(&head);
    ag_str_free(&w->pairs);
    ag_str_free(&w->infos);
    if (status) ag_gguf_writer_abort(w);
    return status;
}

ag_status ag_gguf_writer_add(ag_gguf_writer *w, const void *bytes, size_t n, ag_err *err)
{
    if (n == 0) return AG_OK;
    AG_ASSERT(w->at < w->n_tensors && n <= w->sizes[w->at] - w->n_of_current);
    ag_status status = ag_file_write(&w->file, bytes, n, err);
    w->n_of_current += n;
    if (!status && w->n_of_current == w->sizes[w->at]) {
        w->at++;
        w->n_of_current = 0;
        status = pad(w, err);
    }
    if (status) ag_gguf_writer_abort(w);
    return status;
}

ag_status ag_gguf_writer_commit(ag_gguf_writer *w, ag_err *err)
{
    AG_ASSERT(w->at == w->n_tensors);
    forget(w);
    return ag_file_commit(&w->file, err);
}

void ag_gguf_writer_abort(ag_gguf_writer *w)
{
    if (w->is_open) ag_file_abort(&w->file);
    forget(w);
}
