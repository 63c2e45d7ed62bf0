/* The ZIP around a torch archive: a bounded reader over bytes, and a writer that streams. For torch_archive.c.
 *
 *     local header (30 bytes + name + extra), member's bytes   once a member
 *     central directory: 46 bytes + name + extra + comment     once a member
 *     ZIP64 end record (56 bytes) and its locator (20)         torch always writes them; we do where sizes need them
 *     end record (22 bytes + comment)                          ends exactly at the end of the file
 *
 * Members are stored, never compressed. Local headers of torch have no sizes (a data descriptor follows the bytes), so sizes and
 * CRCs come from the central directory. */
#ifndef AG_TORCH_ZIP_H
#define AG_TORCH_ZIP_H

#include "base/arena.h"
#include "base/fs.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- reading ------------------------------------------------------------------------------------------------------ */
typedef struct {
    const char *name; /* n_name bytes in the file, no NUL behind them */
    size_t n_name;
    const unsigned char *bytes;
    size_t n;
    uint32_t crc;
} ag_torch_member;

typedef struct {
    ag_torch_member *members; /* sorted by name, all of one root */
    size_t n;
    size_t n_root;     /* length of "<root>/" */
    size_t n_storages; /* members <root>/data/<digits> */
} ag_torch_zip;

/* Checks everything that forge.md 4.9 (rules 2 to 6) asks of the container: one disk, limits, names, storages, layout without
 * overlap, and every member's CRC. `map` is what the bytes are mapped by, whose pages are given back as they are summed; NULL: they lie in
 * memory. */
AG_MUST_USE ag_status ag_torch_zip_read(ag_torch_zip *zip, const unsigned char *bytes, size_t n, const ag_map *map, ag_arena *arena,
                                        ag_err *err);
/* The member "<root>/<name>", or NULL. */
const ag_torch_member *ag_torch_zip_find(const ag_torch_zip *zip, const char *name, size_t n_name);

/* ---- writing ------------------------------------------------------------------------------------------------------ */
typedef struct ag_torch_zip_entry ag_torch_zip_entry;
typedef struct {
    ag_file_writer file;
    const char *root;
    ag_torch_zip_entry *entries;
    size_t n, room;
    uint64_t id[2]; /* digests of names and of contents, for serialization_id */
    ag_arena arena;
} ag_torch_zip_writer;
/* `root` must stay until the end. A failed call has aborted. */
AG_MUST_USE ag_status ag_torch_zip_begin(ag_torch_zip_writer *w, const char *path, const char *root, ag_err *err);
/* "<root>/<name>" with these bytes, which begin at a multiple of 64 in the file. */
AG_MUST_USE ag_status ag_torch_zip_add(ag_torch_zip_writer *w, const char *name, const void *bytes, size_t n, ag_err *err);
AG_MUST_USE ag_status ag_torch_zip_commit(ag_torch_zip_writer *w, ag_err *err);
void ag_torch_zip_abort(ag_torch_zip_writer *w);

#endif
