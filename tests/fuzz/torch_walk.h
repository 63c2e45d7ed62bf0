/* Reads everything that a torch archive's tree holds, for its two fuzz targets. */
#ifndef AG_FUZZ_TORCH_WALK_H
#define AG_FUZZ_TORCH_WALK_H

#include "format/torch_archive.h"

#include <stdlib.h>

static unsigned read_bytes(const void *bytes, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((const unsigned char *)bytes)[i];
    return sum;
}

static unsigned read_view(const ag_torch_view *v)
{
    int64_t n = ag_torch_count(v), last = 0;
    if (n == 0) return 0;
    size_t bytes = (size_t)ag_torch_dtype_bytes(v->dtype);
    for (int i = 0; i < v->rank; i++) last += (v->dim[i] - 1) * v->stride[i];
    if (ag_torch_is_contiguous(v)) return read_bytes(v->data, (size_t)n * bytes);
    return read_bytes((const unsigned char *)v->data + (size_t)last * bytes, bytes);
}

/* `left` bounds the walk: shared values stand in many places. */
static unsigned torch_walk(const ag_torch_value *v, int depth, int *left)
{
    if (--*left < 0) return 0;
    if (depth > AG_TORCH_MAX_DEPTH) abort();
    unsigned sum = 0;
    switch (v->kind) {
    case AG_TORCH_STRING:
    case AG_TORCH_OPAQUE:
    case AG_TORCH_BYTES: return read_bytes(v->text, v->n_text + 1);
    case AG_TORCH_U32_ARRAY: return read_bytes(v->words, 4 * v->n_words);
    case AG_TORCH_TENSOR: return read_view(v->tensor);
    case AG_TORCH_LIST:
    case AG_TORCH_TUPLE:
        for (uint32_t i = 0; i < v->n; i++) sum += torch_walk(v->items[i], depth + 1, left);
        return sum;
    case AG_TORCH_DICT:
        for (size_t i = 0; i < 2 * (size_t)v->n; i++) sum += torch_walk(v->items[i], depth + 1, left);
        return sum;
    default: return 1;
    }
}

#endif
