/* What torch.save writes: a ZIP of one pickled value and the bytes of its tensors.
 *
 *     <root>/data.pkl                  pickle, protocol 2; a tensor is a call of torch._utils._rebuild_tensor_v2 on a storage's key
 *     <root>/data/<digits>             a storage's bytes, stored uncompressed, 64-byte aligned by padding in the local header
 *     <root>/version                   "3\n"
 *     <root>/byteorder                 "little"
 *     <root>/.data/serialization_id    40 digits
 *
 * Reading runs nothing. The pickle is walked by an interpreter of our own that knows what torch.load(weights_only=True) allows: plain
 * containers and scalars, tensors of every dtype, the ordered dict, dtypes and devices, and (only where asked) NumPy's arrays of uint32;
 * any other name or opcode is refused. Every size is checked against
 * the file before it is used, every member's CRC is checked, and what is built is bounded in nodes, depth and memory. Stricter than
 * torch.load in this: no compressed member, no duplicate, no trailing bytes, no wrong CRC, no second root.
 *
 *     ag_torch_archive a;
 *     AG_TRY(ag_torch_open(&a, "optimizer.pt", AG_TORCH_NEEDS_STORAGE, err));
 *     const ag_torch_value *groups = ag_torch_get(a.root, "param_groups");     // NULL where missing
 *     …
 *     ag_torch_close(&a);
 *
 * Writing takes a tree of values whose tensors point to the caller's memory and streams them out:
 *
 *     ag_torch_value *root = ag_torch_dict(&arena);
 *     ag_torch_put(&arena, root, "step", ag_torch_int(&arena, 7));
 *     ag_torch_put(&arena, root, "w", ag_torch_tensor(&arena, w, AG_TORCH_F32, 2, (int64_t[]){R, C}));
 *     AG_TRY(ag_torch_save("x.pt", root, err));                              // root in the archive: "x" */
#ifndef AG_TORCH_ARCHIVE_H
#define AG_TORCH_ARCHIVE_H

#include "base/arena.h"
#include "base/fs.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*    dtype                   storage's name           bytes  torch's name       NULL: stored untyped, as bytes */
#define AG_TORCH_DTYPES(X)                                                      \
    X(AG_TORCH_F64,           "DoubleStorage",         8, "float64")            \
    X(AG_TORCH_F32,           "FloatStorage",          4, "float32")            \
    X(AG_TORCH_F16,           "HalfStorage",           2, "float16")            \
    X(AG_TORCH_BF16,          "BFloat16Storage",       2, "bfloat16")           \
    X(AG_TORCH_I64,           "LongStorage",           8, "int64")              \
    X(AG_TORCH_I32,           "IntStorage",            4, "int32")              \
    X(AG_TORCH_I16,           "ShortStorage",          2, "int16")              \
    X(AG_TORCH_I8,            "CharStorage",           1, "int8")               \
    X(AG_TORCH_U8,            "ByteStorage",           1, "uint8")              \
    X(AG_TORCH_BOOL,          "BoolStorage",           1, "bool")               \
    X(AG_TORCH_C64,           "ComplexFloatStorage",   8, "complex64")          \
    X(AG_TORCH_C128,          "ComplexDoubleStorage", 16, "complex128")         \
    X(AG_TORCH_QI8,           "QInt8Storage",          1, "qint8")              \
    X(AG_TORCH_QU8,           "QUInt8Storage",         1, "quint8")             \
    X(AG_TORCH_QI32,          "QInt32Storage",         4, "qint32")             \
    X(AG_TORCH_QU4X2,         "QUInt4x2Storage",       1, "quint4x2")           \
    X(AG_TORCH_QU2X4,         "QUInt2x4Storage",       1, "quint2x4")           \
    X(AG_TORCH_U16,           NULL,                    2, "uint16")             \
    X(AG_TORCH_U32,           NULL,                    4, "uint32")             \
    X(AG_TORCH_U64,           NULL,                    8, "uint64")             \
    X(AG_TORCH_C32,           NULL,                    4, "complex32")          \
    X(AG_TORCH_F8_E4M3,       NULL,                    1, "float8_e4m3fn")      \
    X(AG_TORCH_F8_E5M2,       NULL,                    1, "float8_e5m2")        \
    X(AG_TORCH_F8_E4M3FNUZ,   NULL,                    1, "float8_e4m3fnuz")    \
    X(AG_TORCH_F8_E5M2FNUZ,   NULL,                    1, "float8_e5m2fnuz")    \
    X(AG_TORCH_F8_E8M0,       NULL,                    1, "float8_e8m0fnu")     \
    X(AG_TORCH_F4X2,          NULL,                    1, "float4_e2m1fn_x2")

typedef enum {
#define X(dtype, storage, bytes, name) dtype,
    AG_TORCH_DTYPES(X)
#undef X
    AG_TORCH_N_DTYPES
} ag_torch_dtype;
int ag_torch_dtype_bytes(ag_torch_dtype dtype);

typedef enum {
    AG_TORCH_NONE, AG_TORCH_BOOLEAN, AG_TORCH_INT, AG_TORCH_FLOAT, AG_TORCH_STRING, AG_TORCH_BYTES,
    AG_TORCH_LIST, AG_TORCH_TUPLE, AG_TORCH_DICT, AG_TORCH_TENSOR,
    AG_TORCH_U32_ARRAY, /* a one-dimensional NumPy array of uint32, only read */
    AG_TORCH_OPAQUE     /* what torch.load accepts and nothing here needs: a dtype, a device, a set, a sparse tensor …; only read */
} ag_torch_kind;

enum { AG_TORCH_MAX_RANK = 8, AG_TORCH_MAX_DEPTH = 64 };

typedef struct {
    ag_torch_dtype dtype;
    int rank; /* 0: a single number */
    int64_t dim[AG_TORCH_MAX_RANK], stride[AG_TORCH_MAX_RANK]; /* in elements */
    const void *data; /* the first element, at any address; all that the strides reach is inside the file */
} ag_torch_view;

typedef struct ag_torch_value ag_torch_value;
struct ag_torch_value {
    ag_torch_kind kind;
    uint32_t n; /* items of a list or tuple, pairs of a dict */
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct {
            const char *text; /* n_text bytes and a NUL; of BYTES, raw ones; of OPAQUE, what it is */
            size_t n_text;
        };
        struct {
            ag_torch_value **items; /* of a dict: key, value, key, value, …; keys are strings or ints, none twice */
            size_t room;            /* pointers that `items` has room for */
        };
        const ag_torch_view *tensor;
        struct {
            const unsigned char *words; /* n_words little-endian words of 4 bytes, at any address */
            size_t n_words;
        };
    };
};

/* ---- reading ------------------------------------------------------------------------------------------------------ */
enum {
    AG_TORCH_NEEDS_STORAGE = 1, /* an archive without a single storage is refused */
    AG_TORCH_NUMPY = 2          /* NumPy's names are allowed: for rng_state.pth alone */
};
typedef struct {
    const ag_torch_value *root; /* a dict with string keys */
    ag_map map;
    ag_arena arena; /* values lie here, tensors point into the map */
} ag_torch_archive;

/* A symbolic link is refused. On failure *out is closed. Sentences begin with the path. AG_E_FORMAT for what is malformed,
 * AG_E_UNSUPPORTED for what is well-formed but not read (the format before torch 1.6, compressed members, names not allowed). */
AG_MUST_USE ag_status ag_torch_open(ag_torch_archive *out, const char *path, unsigned flags, ag_err *err);
/* The same over bytes in memory, which must outlive *out. */
AG_MUST_USE ag_status ag_torch_parse(ag_torch_archive *out, const void *bytes, size_t n, const char *name, unsigned flags, ag_err *err);
void ag_torch_close(ag_torch_archive *a); /* and {0} again */

/* The value of a string key, or NULL where there is none or `dict` is NULL or no dict. */
const ag_torch_value *ag_torch_get(const ag_torch_value *dict, const char *key);
/* Whether a value is there and of this kind; NULL is not. */
bool ag_torch_is(const ag_torch_value *value, ag_torch_kind kind);
/* "a list of 3", "a tensor FloatStorage [4,32]", "nothing" (NULL), …: for sentences. In the arena. */
const char *ag_torch_describe(ag_arena *arena, const ag_torch_value *value);
/* Row-major without gaps (dimensions of size 1 may have any stride). */
bool ag_torch_is_contiguous(const ag_torch_view *view);
int64_t ag_torch_count(const ag_torch_view *view); /* elements */

/* ---- building and writing ------------------------------------------------------------------------------------------ */
ag_torch_value *ag_torch_none(ag_arena *arena);
ag_torch_value *ag_torch_bool(ag_arena *arena, bool value);
ag_torch_value *ag_torch_int(ag_arena *arena, int64_t value);
ag_torch_value *ag_torch_float(ag_arena *arena, double value);
ag_torch_value *ag_torch_string(ag_arena *arena, const char *text); /* copied */
ag_torch_value *ag_torch_list(ag_arena *arena);
ag_torch_value *ag_torch_tuple(ag_arena *arena);
ag_torch_value *ag_torch_dict(ag_arena *arena);
void ag_torch_push(ag_arena *arena, ag_torch_value *list_or_tuple, ag_torch_value *item);
void ag_torch_put(ag_arena *arena, ag_torch_value *dict, const char *key, ag_torch_value *value);
void ag_torch_put_at(ag_arena *arena, ag_torch_value *dict, int64_t key, ag_torch_value *value);
/* Contiguous; data is borrowed until the archive is written. rank 0: a single number, dim may be NULL. */
ag_torch_value *ag_torch_tensor(ag_arena *arena, const void *data, ag_torch_dtype dtype, int rank, const int64_t *dim);

/* Publishes the file (whole or not at all). torch.load(weights_only=True) reads it. Same value, same bytes. Tensors go from where
 * they lie to the file, read twice (once for the CRC), never copied. */
AG_MUST_USE ag_status ag_torch_save(const char *path, const ag_torch_value *root, ag_err *err);

#endif
