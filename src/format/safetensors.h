/* safetensors: tensors by name in one file, read through a map and written as a stream.
 *
 *     offset 0   u64, little-endian: N, the header's length, at most 100,000,000
 *     8          N bytes of UTF-8 JSON, beginning with '{', spaces at the end allowed:
 *                {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2,3], "data_offsets": [begin, end]}, …}
 *     8 + N      data; offsets count from here. Sorted by offset the tensors cover it without hole or overlap, to the last byte.
 *
 * Checked as the format's own library does (huggingface/safetensors, tensor.rs): every rule above, sizes against shapes with
 * overflow, names that stand twice. Over that library: at most AG_ST_MAX_RANK dimensions, each at most INT64_MAX.
 *
 *     ag_safetensors st;
 *     AG_TRY(ag_safetensors_open(&st, "model.safetensors", err));
 *     const ag_st_tensor *t = ag_safetensors_find(&st, "model.norm.weight");    // t->data points into the map
 *     …
 *     ag_safetensors_close(&st);
 *
 * A folder (one file, or shards with an index) reads the same way through ag_st_folder. Data is not aligned: F32 of a foreign
 * file may begin at any byte, the caller looks at the address before it casts. */
#ifndef AG_SAFETENSORS_H
#define AG_SAFETENSORS_H

#include "base/arena.h"
#include "base/fs.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*    dtype           name          bits     in the format's own order; files are written with the last first */
#define AG_ST_DTYPES(X)                    \
    X(AG_ST_BOOL,        "BOOL",         8) \
    X(AG_ST_F4,          "F4",           4) \
    X(AG_ST_F6_E2M3,     "F6_E2M3",      6) \
    X(AG_ST_F6_E3M2,     "F6_E3M2",      6) \
    X(AG_ST_U8,          "U8",           8) \
    X(AG_ST_I8,          "I8",           8) \
    X(AG_ST_F8_E5M2,     "F8_E5M2",      8) \
    X(AG_ST_F8_E4M3,     "F8_E4M3",      8) \
    X(AG_ST_F8_E8M0,     "F8_E8M0",      8) \
    X(AG_ST_F8_E4M3FNUZ, "F8_E4M3FNUZ",  8) \
    X(AG_ST_F8_E5M2FNUZ, "F8_E5M2FNUZ",  8) \
    X(AG_ST_I16,         "I16",         16) \
    X(AG_ST_U16,         "U16",         16) \
    X(AG_ST_F16,         "F16",         16) \
    X(AG_ST_BF16,        "BF16",        16) \
    X(AG_ST_I32,         "I32",         32) \
    X(AG_ST_U32,         "U32",         32) \
    X(AG_ST_F32,         "F32",         32) \
    X(AG_ST_C64,         "C64",         64) \
    X(AG_ST_F64,         "F64",         64) \
    X(AG_ST_I64,         "I64",         64) \
    X(AG_ST_U64,         "U64",         64)

typedef enum {
#define X(dtype, name, bits) dtype,
    AG_ST_DTYPES(X)
#undef X
    AG_ST_N_DTYPES
} ag_st_dtype;

enum { AG_ST_MAX_RANK = 8 };

const char *ag_st_dtype_name(ag_st_dtype dtype);

typedef struct {
    const char *name;
    ag_st_dtype dtype;
    int rank; /* 0: a single number */
    int64_t dim[AG_ST_MAX_RANK];
    const unsigned char *data; /* into the map; never NULL */
    size_t bytes;
} ag_st_tensor;

typedef struct {
    const char *key, *value;
} ag_st_pair;

/* ---- reading one file -------------------------------------------------------------------------------------------- */
typedef struct {
    const char *path;            /* stands in sentences */
    const ag_st_tensor *tensors; /* in the order in which their data lie */
    size_t n_tensors;
    const ag_st_pair *metadata; /* in the file's order; NULL where there is no __metadata__ at all */
    size_t n_metadata;
    ag_map map;
    const ag_st_tensor **by_name; /* sorted */
    ag_arena arena;
} ag_safetensors;

/* Maps and checks; only the header is read. On failure *out is closed. Sentences begin with the path. */
AG_MUST_USE ag_status ag_safetensors_open(ag_safetensors *out, const char *path, ag_err *err);
/* The same over bytes in memory, which must outlive *out. */
AG_MUST_USE ag_status ag_safetensors_parse(ag_safetensors *out, const void *bytes, size_t n, const char *name, ag_err *err);
void ag_safetensors_close(ag_safetensors *st); /* and {0} again; pointers into it are then dead */
const ag_st_tensor *ag_safetensors_find(const ag_safetensors *st, const char *name); /* or NULL */
const char *ag_safetensors_meta(const ag_safetensors *st, const char *key);          /* or NULL */
/* "F32 [307,48]" in the arena, for sentences. */
const char *ag_st_shape_text(ag_arena *arena, const ag_st_tensor *t);

/* ---- reading a folder -------------------------------------------------------------------------------------------- */
/* Either model.safetensors, or model.safetensors.index.json (at most 4 MiB) and the shards that it names: bare files of the
 * folder; names model-<i>-of-<n> are complete; each shard holds exactly the tensors that the index gives it.
 *
 * AG_ST_READ is for who wants the weights. AG_ST_VERIFY is for who vouches for the folder; it also asks that no other
 * *.safetensors lie there (adapter_model.safetensors aside), and that a symbolic link end in the blobs folder of the hub cache
 * that the folder belongs to (<repo>/snapshots/<commit> and <repo>/blobs). */
typedef enum { AG_ST_READ, AG_ST_VERIFY } ag_st_folder_use;

typedef struct {
    const char *dir;
    ag_safetensors *shards;
    size_t n_shards;
    size_t n_tensors; /* over all shards */
    bool sharded;     /* there is an index */
    ag_st_folder_use use;
    ag_arena arena;
} ag_st_folder;

AG_MUST_USE ag_status ag_st_folder_open(ag_st_folder *out, const char *dir, ag_st_folder_use use, ag_err *err);
void ag_st_folder_close(ag_st_folder *folder);
/* The tensor and (shard may be NULL) the file it lies in; NULL where there is none. */
const ag_st_tensor *ag_st_folder_find(const ag_st_folder *folder, const char *name, const ag_safetensors **shard);

/* ---- writing ------------------------------------------------------------------------------------------------------ */
typedef struct {
    const char *name;
    ag_st_dtype dtype;
    int rank;
    int64_t dim[AG_ST_MAX_RANK];
    const void *data; /* only for ag_safetensors_write */
} ag_st_entry;

typedef enum {
    AG_ST_ORDER_LIBRARY, /* wide dtypes first, then by name: the bytes that the format's own library writes */
    AG_ST_ORDER_GIVEN    /* as the caller lists them; data then begins where the dtype's size need not divide */
} ag_st_order;

/* A file appears whole or not at all (ag_file_writer). The header goes out at begin, the data as they come:
 *
 *     ag_st_writer w;
 *     AG_TRY(ag_st_writer_begin(&w, path, entries, n, AG_ST_ORDER_LIBRARY, metadata, n_metadata, err));
 *     for (size_t k = 0; k < n; k++) {
 *         size_t i = w.order[k];                                    // the entry that comes k-th in the file
 *         AG_TRY(ag_st_writer_add(&w, i, bytes, n_bytes, err));     // in as many pieces as you like
 *     }
 *     AG_TRY(ag_st_writer_commit(&w, err));
 *
 * The entries must stay until begin returned. A failed call has aborted. Wrong order or a wrong number of bytes is an AG_ASSERT;
 * two entries of one name, too. */
typedef struct {
    ag_file_writer file;
    size_t *order;         /* [n] */
    size_t n, at;          /* entries; position in `order` that is being written */
    uint64_t *bytes;       /* [n] by entry */
    uint64_t n_of_current; /* bytes that the current one has */
    bool is_open;
    ag_arena arena;
} ag_st_writer;
AG_MUST_USE ag_status ag_st_writer_begin(ag_st_writer *w, const char *path, const ag_st_entry *entries, size_t n, ag_st_order order,
                                         const ag_st_pair *metadata, size_t n_metadata, ag_err *err);
AG_MUST_USE ag_status ag_st_writer_add(ag_st_writer *w, size_t entry, const void *bytes, size_t n, ag_err *err);
AG_MUST_USE ag_status ag_st_writer_commit(ag_st_writer *w, ag_err *err);
void ag_st_writer_abort(ag_st_writer *w); /* after commit or a failure: does nothing */
/* All of it from memory: begin, add every entry's data, commit. */
AG_MUST_USE ag_status ag_safetensors_write(const char *path, const ag_st_entry *entries, size_t n, ag_st_order order,
                                           const ag_st_pair *metadata, size_t n_metadata, ag_err *err);

#endif
