/* GGUF: typed metadata and tensors in one file, little-endian, read through a map and written as a stream.
 *
 *     "GGUF"  u32 version (2 or 3)  u64 tensors  u64 pairs
 *     pairs   key, u32 type, value;  a text is u64 length + bytes;  an array is u32 type, u64 count, values (no arrays inside)
 *     tensors name, u32 n_dims (1..4), u64 ne[n_dims] (ne[0] is the contiguous one), u32 type, u64 offset
 *     padding to general.alignment (32 unless said), then the data; offsets count from there, each tensor is padded to it, and
 *     they lie in the order of the table
 *
 * Layout facts: ggml docs/gguf.md and src/gguf.cpp. The reader checks all of it: every length against the file's, counts before
 * anything is allocated by them, names and keys that stand twice, offsets. Sentences begin with the path. Tensor types that we
 * cannot compute with are no error here: `bytes` is known for all of ggml's types, and who wants to use one refuses it.
 *
 *     ag_gguf g;
 *     AG_TRY(ag_gguf_open(&g, "model.gguf", err));
 *     int64_t layers = 0;
 *     AG_TRY(ag_gguf_need_int(&g, "llama.block_count", 1, 4096, &layers, err));
 *     const ag_gguf_tensor *t = ag_gguf_find(&g, "token_embd.weight");       // t->data points into the map
 *     ag_gguf_close(&g); */
#ifndef AG_GGUF_H
#define AG_GGUF_H

#include "base/arena.h"
#include "base/fs.h"
#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    AG_GGUF_U8,
    AG_GGUF_I8,
    AG_GGUF_U16,
    AG_GGUF_I16,
    AG_GGUF_U32,
    AG_GGUF_I32,
    AG_GGUF_F32,
    AG_GGUF_BOOL,
    AG_GGUF_TEXT,
    AG_GGUF_ARRAY,
    AG_GGUF_U64,
    AG_GGUF_I64,
    AG_GGUF_F64,
    AG_GGUF_N_TYPES
} ag_gguf_type;

/* Tensor types by ggml's number: weights and bytes of a block.
 *    name      id  weights bytes */
#define AG_GGML_TYPES(X)       \
    X(F32,      0,    1,   4)  \
    X(F16,      1,    1,   2)  \
    X(Q4_0,     2,   32,  18)  \
    X(Q4_1,     3,   32,  20)  \
    X(Q5_0,     6,   32,  22)  \
    X(Q5_1,     7,   32,  24)  \
    X(Q8_0,     8,   32,  34)  \
    X(Q8_1,     9,   32,  36)  \
    X(Q2_K,    10,  256,  84)  \
    X(Q3_K,    11,  256, 110)  \
    X(Q4_K,    12,  256, 144)  \
    X(Q5_K,    13,  256, 176)  \
    X(Q6_K,    14,  256, 210)  \
    X(Q8_K,    15,  256, 292)  \
    X(IQ2_XXS, 16,  256,  66)  \
    X(IQ2_XS,  17,  256,  74)  \
    X(IQ3_XXS, 18,  256,  98)  \
    X(IQ1_S,   19,  256,  50)  \
    X(IQ4_NL,  20,   32,  18)  \
    X(IQ3_S,   21,  256, 110)  \
    X(IQ2_S,   22,  256,  82)  \
    X(IQ4_XS,  23,  256, 136)  \
    X(I8,      24,    1,   1)  \
    X(I16,     25,    1,   2)  \
    X(I32,     26,    1,   4)  \
    X(I64,     27,    1,   8)  \
    X(F64,     28,    1,   8)  \
    X(IQ1_M,   29,  256,  56)  \
    X(BF16,    30,    1,   2)  \
    X(TQ1_0,   34,  256,  54)  \
    X(TQ2_0,   35,  256,  66)  \
    X(MXFP4,   39,   32,  17)  \
    X(NVFP4,   40,   64,  36)  \
    X(Q1_0,    41,  128,  18)

typedef enum {
#define X(name, id, weights, bytes) AG_GGML_##name = id,
    AG_GGML_TYPES(X)
#undef X
} ag_ggml_type;

const char *ag_ggml_type_name(uint32_t type); /* "Q4_K"; NULL where the number is not in the table */
/* Bytes of `n` weights in rows of `row`; 0 where the type is unknown, row is no multiple of its block, or it overflows. */
uint64_t ag_ggml_bytes(uint32_t type, uint64_t row, uint64_t n);

enum { AG_GGUF_MAX_RANK = 4 };

typedef struct {
    const char *name; /* at most 63 bytes */
    uint32_t type;    /* ggml's number; may be one that nobody here knows */
    int rank;
    int64_t ne[AG_GGUF_MAX_RANK]; /* as in the file, innermost first; 1 behind rank */
    const unsigned char *data;    /* into the map; a multiple of the alignment from the file's begin */
    size_t bytes;                 /* of an unknown type: up to the next tensor */
} ag_gguf_tensor;

typedef struct {
    const char *text; /* into the map: not NUL-terminated */
    size_t n;
} ag_gguf_text;

typedef struct {
    const char *key;
    ag_gguf_type type;          /* AG_GGUF_ARRAY for arrays */
    ag_gguf_type item;          /* of an array; else as type */
    uint64_t n;                 /* items of an array; else 1 */
    const unsigned char *bytes; /* the value in the file; of a text its length word first */
    size_t n_bytes;
} ag_gguf_pair;

typedef struct {
    const char *path; /* stands in sentences */
    uint32_t version, alignment;
    const ag_gguf_pair *pairs; /* in the file's order */
    size_t n_pairs;
    const ag_gguf_tensor *tensors; /* in the file's order */
    size_t n_tensors;
    uint64_t data_offset; /* of the tensor data in the file */
    ag_map map;
    const ag_gguf_pair **by_key; /* sorted */
    const ag_gguf_tensor **by_name;
    ag_arena arena;
} ag_gguf;

AG_MUST_USE ag_status ag_gguf_open(ag_gguf *out, const char *path, ag_err *err); /* on failure *out is closed */
/* The same over bytes in memory, which must outlive *out. */
AG_MUST_USE ag_status ag_gguf_parse(ag_gguf *out, const void *bytes, size_t n, const char *name, ag_err *err);
void ag_gguf_close(ag_gguf *g); /* and {0} again */

const ag_gguf_tensor *ag_gguf_find(const ag_gguf *g, const char *name); /* or NULL */
const ag_gguf_pair *ag_gguf_pair_of(const ag_gguf *g, const char *key); /* or NULL */
/* "Q4_K [576,49152] (innermost first)" in the arena, for sentences. */
const char *ag_gguf_shape_text(ag_arena *arena, const ag_gguf_tensor *t);

/* Getters. A missing key leaves *out as it is (set the default first); another type, or an integer outside min..max, is
 * AG_E_FORMAT with path, key, found and expected. An integer of any width is an integer; f32 is a double. Texts must be UTF-8
 * without NUL and go, terminated, to the arena. */
AG_MUST_USE ag_status ag_gguf_get_int(const ag_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, ag_err *err);
AG_MUST_USE ag_status ag_gguf_need_int(const ag_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, ag_err *err);
AG_MUST_USE ag_status ag_gguf_get_double(const ag_gguf *g, const char *key, double *out, ag_err *err);
AG_MUST_USE ag_status ag_gguf_need_double(const ag_gguf *g, const char *key, double *out, ag_err *err);
AG_MUST_USE ag_status ag_gguf_get_bool(const ag_gguf *g, const char *key, bool *out, ag_err *err);
AG_MUST_USE ag_status ag_gguf_get_text(const ag_gguf *g, const char *key, const char **out, ag_arena *arena, ag_err *err);
/* Arrays: *out NULL and *n 0 where the key is missing. Items point into the map (texts) or lie in the arena. */
AG_MUST_USE ag_status ag_gguf_get_texts(const ag_gguf *g, const char *key, const ag_gguf_text **out, size_t *n, ag_arena *arena,
                                        ag_err *err);
AG_MUST_USE ag_status ag_gguf_get_ints(const ag_gguf *g, const char *key, const int64_t **out, size_t *n, ag_arena *arena,
                                       ag_err *err);
AG_MUST_USE ag_status ag_gguf_get_floats(const ag_gguf *g, const char *key, const float **out, size_t *n, ag_arena *arena,
                                         ag_err *err);

/* ---- writing ------------------------------------------------------------------------------------------------------ */
/* Version 3. Metadata and tensor shapes are told first and kept (a tokenizer's texts are a few MB); begin writes them out; the
 * data then stream, in the order of ag_gguf_writer_tensor, and are padded to 32 bytes each. Whole or not at all.
 *
 *     ag_gguf_writer w = {0};
 *     ag_gguf_put_text(&w, "general.architecture", "llama");
 *     ag_gguf_put_u32(&w, "llama.block_count", 30);
 *     ag_gguf_writer_tensor(&w, "output_norm.weight", AG_GGML_F32, 1, (int64_t[]){576});
 *     AG_TRY(ag_gguf_writer_begin(&w, path, err));
 *     AG_TRY(ag_gguf_writer_add(&w, bytes, n, err));        // in as many pieces as you like, tensors in a row
 *     AG_TRY(ag_gguf_writer_commit(&w, err));               // a failed call has aborted
 *
 * A row that is no multiple of its block, too many or too few bytes: AG_ASSERT. No key or name may be given twice. */
typedef struct {
    ag_str pairs, infos; /* as they will stand in the file */
    uint64_t n_pairs, n_tensors, data_bytes;
    uint64_t *sizes; /* [n_tensors] */
    size_t room;
    ag_file_writer file;
    uint64_t at, n_of_current; /* tensor that is being written, and how much of it came */
    bool is_open;
} ag_gguf_writer;

void ag_gguf_put_u32(ag_gguf_writer *w, const char *key, uint32_t value);
void ag_gguf_put_i32(ag_gguf_writer *w, const char *key, int32_t value);
void ag_gguf_put_u64(ag_gguf_writer *w, const char *key, uint64_t value);
void ag_gguf_put_f32(ag_gguf_writer *w, const char *key, float value);
void ag_gguf_put_bool(ag_gguf_writer *w, const char *key, bool value);
void ag_gguf_put_text(ag_gguf_writer *w, const char *key, const char *text);
void ag_gguf_put_texts(ag_gguf_writer *w, const char *key, const ag_gguf_text *items, size_t n);
void ag_gguf_put_i32s(ag_gguf_writer *w, const char *key, const int32_t *items, size_t n);
void ag_gguf_put_f32s(ag_gguf_writer *w, const char *key, const float *items, size_t n);
void ag_gguf_put_pair(ag_gguf_writer *w, const ag_gguf_pair *pair); /* as another file has it */
void ag_gguf_writer_tensor(ag_gguf_writer *w, const char *name, uint32_t type, int rank, const int64_t *ne);
AG_MUST_USE ag_status ag_gguf_writer_begin(ag_gguf_writer *w, const char *path, ag_err *err);
AG_MUST_USE ag_status ag_gguf_writer_add(ag_gguf_writer *w, const void *bytes, size_t n, ag_err *err);
AG_MUST_USE ag_status ag_gguf_writer_commit(ag_gguf_writer *w, ag_err *err);
void ag_gguf_writer_abort(ag_gguf_writer *w); /* after commit or a failure: does nothing; before begin: frees what was told */

#endif
