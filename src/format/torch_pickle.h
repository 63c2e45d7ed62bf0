/* The pickle inside a torch archive: protocol 2, to and from a tree of values. For torch_archive.c. */
#ifndef AG_TORCH_PICKLE_H
#define AG_TORCH_PICKLE_H

#include "base/str.h"
#include "format/torch_archive.h"
#include "format/torch_zip.h"

/* Walks the pickle with a stack machine of our own; nothing is imported or called. Values lie in the arena; tensors point into the
 * zip's members. Opcodes: PROTO STOP MARK, NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE, EMPTY_LIST APPEND
 * APPENDS EMPTY_TUPLE TUPLE TUPLE1-3 EMPTY_DICT SETITEM SETITEMS EMPTY_SET SHORT_BINSTRING, BINPUT LONG_BINPUT BINGET LONG_BINGET, GLOBAL REDUCE
 * NEWOBJ BUILD BINPERSID. */
AG_MUST_USE ag_status ag_torch_unpickle(const ag_torch_value **root, const unsigned char *bytes, size_t n, const ag_torch_zip *zip,
                                        unsigned flags, ag_arena *arena, ag_err *err);

/* Appends the pickle of a value. Tensors become storages "0", "1", … in the order in which they stand in *views, which grows. */
typedef struct {
    const ag_torch_view **views;
    size_t n, room;
    ag_arena *arena;
} ag_torch_views;
void ag_torch_pickle(ag_str *out, const ag_torch_value *value, ag_torch_views *views);

const char *ag_torch_dtype_storage(ag_torch_dtype dtype); /* "FloatStorage"; NULL: none of its own */
const char *ag_torch_dtype_name(ag_torch_dtype dtype);    /* "float32" */

#endif
