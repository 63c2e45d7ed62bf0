/* Torch archives: the whole file, and, for inputs that begin as a pickle does, the pickle alone beside one storage of 64 bytes (an
 * archive's CRC keeps a fuzzer from the pickle inside). What was accepted is walked: every byte that a tensor reaches is read. */
#include "format/torch_archive.h"
#include "format/torch_pickle.h"
#include "format/torch_zip.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
static unsigned walk(const ag_torch_value *v, int depth, int *left)
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
        for (uint32_t i = 0; i < v->n; i++) sum += walk(v->items[i], depth + 1, left);
        return sum;
    case AG_TORCH_DICT:
        for (size_t i = 0; i < 2 * (size_t)v->n; i++) sum += walk(v->items[i], depth + 1, left);
        return sum;
    default: return 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static volatile unsigned sink;
    ag_err err;
    ag_torch_archive a;
    int left = 100000;
    if (ag_torch_parse(&a, data, size, "fuzz", AG_TORCH_NUMPY, &err) == AG_OK) {
        sink += walk(a.root, 1, &left);
        ag_torch_close(&a);
    }
    if (size > 0 && data[0] == 0x80) {
        static const unsigned char storage[64];
        ag_torch_member member = {.name = "x/data/0", .n_name = 8, .bytes = storage, .n = sizeof storage};
        ag_torch_zip zip = {.members = &member, .n = 1, .n_root = 2, .n_storages = 1};
        ag_arena arena = {0};
        const ag_torch_value *root;
        if (ag_torch_unpickle(&root, data, size, &zip, AG_TORCH_NUMPY, &arena, &err) == AG_OK) sink += walk(root, 1, &left);
        ag_arena_free(&arena);
    }
    return 0;
}
