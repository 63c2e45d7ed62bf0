#include "format/torch_zip.h"

#include "format/little_endian.h"

#include <string.h>
#include <zlib.h>

enum { ALIGNMENT = 64, VERSION = 20, VERSION_ZIP64 = 45, DATE_1980 = 0x21, EXTRA_ZIP64 = 1, EXTRA_PADDING = 0x4246, CRC_BLOCK_BYTES = 1 << 20 };
static const uint32_t SATURATED32 = 0xffffffffu;

struct ag_torch_zip_entry {
    const char *name;
    uint64_t at, n; /* of the local header; the member's bytes */
    uint32_t crc;
};

/* Fields of a header, put one behind the other. */
typedef struct {
    unsigned char bytes[160];
    size_t n;
} header;

static void put(header *h, uint64_t value, int n_bytes)
{
    AG_ASSERT(h->n + (size_t)n_bytes <= sizeof h->bytes);
    ag_little_write(h->bytes + h->n, value, n_bytes);
    h->n += (size_t)n_bytes;
}

static uint32_t clipped(uint64_t value) { return value >= SATURATED32 ? SATURATED32 : (uint32_t)value; }

/* What a local header and an entry of the directory have in common: version needed … length of the name. */
static void put_common(header *h, const ag_torch_zip_entry *e, bool wide)
{
    put(h, wide ? VERSION_ZIP64 : VERSION, 2);
    put(h, 0, 2); /* flags */
    put(h, 0, 2); /* method: stored */
    put(h, 0, 2); /* time: none, so that the same value gives the same bytes */
    put(h, DATE_1980, 2);
    put(h, e->crc, 4);
    put(h, clipped(e->n), 4);
    put(h, clipped(e->n), 4);
    put(h, strlen(e->name), 2);
}

ag_status ag_torch_zip_begin(ag_torch_zip_writer *w, const char *path, const char *root, ag_err *err)
{
    static const uint64_t fnv_offset = 0xcbf29ce484222325u;
    *w = (ag_torch_zip_writer){.root = root, .id = {fnv_offset, fnv_offset}};
    return ag_file_begin(&w->file, path, err);
}

static uint64_t fnv1a(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ b[i]) * 0x100000001b3u;
    return hash;
}

static uint32_t crc_of(const unsigned char *bytes, size_t n)
{
    uLong crc = crc32(0, NULL, 0);
    for (size_t at = 0; at < n;) {
        size_t n_block = n - at < CRC_BLOCK_BYTES ? n - at : CRC_BLOCK_BYTES;
        crc = crc32(crc, bytes + at, (uInt)n_block);
        at += n_block;
    }
    return (uint32_t)crc;
}

static ag_torch_zip_entry *new_entry(ag_torch_zip_writer *w)
{
    if (w->n == w->room) {
        size_t room = w->room ? 2 * w->room : 64;
        ag_torch_zip_entry *entries = ag_arena_array(&w->arena, room, sizeof *entries);
        if (w->n) memcpy(entries, w->entries, w->n * sizeof *entries);
        w->entries = entries;
        w->room = room;
    }
    return &w->entries[w->n++];
}

static ag_status write_member(ag_torch_zip_writer *w, const char *name, const void *bytes, size_t n, ag_err *err)
{
    ag_torch_zip_entry *e = new_entry(w);
    *e = (ag_torch_zip_entry){.name = ag_arena_printf(&w->arena, "%s/%s", w->root, name), .at = w->file.n_written, .n = n,
                              .crc = crc_of(bytes, n)};
    w->id[0] = fnv1a(w->id[0], e->name, strlen(e->name));
    w->id[1] = fnv1a(w->id[1], &e->crc, sizeof e->crc);
    bool wide = e->n >= SATURATED32;
    size_t n_extra = (wide ? 20 : 0) + 4, n_name = strlen(e->name);
    AG_ASSERT(n_name <= UINT16_MAX);
    size_t n_padding = (ALIGNMENT - (e->at + 30 + n_name + n_extra) % ALIGNMENT) % ALIGNMENT;
    header h = {.n = 0};
    put(&h, 0x04034b50, 4);
    put_common(&h, e, wide);
    put(&h, n_extra + n_padding, 2);
    AG_TRY(ag_file_write(&w->file, h.bytes, h.n, err));
    AG_TRY(ag_file_write(&w->file, e->name, n_name, err));
    h.n = 0;
    if (wide) {
        put(&h, EXTRA_ZIP64, 2);
        put(&h, 16, 2);
        put(&h, e->n, 8);
        put(&h, e->n, 8);
    }
    put(&h, EXTRA_PADDING, 2);
    put(&h, n_padding, 2);
    for (size_t i = 0; i < n_padding; i++) put(&h, 'Z', 1);
    AG_TRY(ag_file_write(&w->file, h.bytes, h.n, err));
    return ag_file_write(&w->file, bytes, n, err);
}

ag_status ag_torch_zip_add(ag_torch_zip_writer *w, const char *name, const void *bytes, size_t n, ag_err *err)
{
    ag_status status = write_member(w, name, bytes, n, err);
    if (status) ag_torch_zip_abort(w);
    return status;
}

static ag_status write_directory_entry(ag_torch_zip_writer *w, const ag_torch_zip_entry *e, ag_err *err)
{
    bool wide_size = e->n >= SATURATED32, wide_at = e->at >= SATURATED32;
    size_t n_wide = (wide_size ? 16u : 0u) + (wide_at ? 8u : 0u);
    header h = {.n = 0};
    put(&h, 0x02014b50, 4);
    put(&h, VERSION_ZIP64, 2); /* made by */
    put_common(&h, e, n_wide > 0);
    put(&h, n_wide ? n_wide + 4 : 0, 2);
    put(&h, 0, 2); /* comment */
    put(&h, 0, 2); /* disk */
    put(&h, 0, 2); /* attributes inside and outside */
    put(&h, 0, 4);
    put(&h, clipped(e->at), 4);
    AG_TRY(ag_file_write(&w->file, h.bytes, h.n, err));
    AG_TRY(ag_file_write(&w->file, e->name, strlen(e->name), err));
    h.n = 0;
    if (n_wide) {
        put(&h, EXTRA_ZIP64, 2);
        put(&h, n_wide, 2);
    }
    if (wide_size) {
        put(&h, e->n, 8);
        put(&h, e->n, 8);
    }
    if (wide_at) put(&h, e->at, 8);
    return ag_file_write(&w->file, h.bytes, h.n, err);
}

static ag_status write_end(ag_torch_zip_writer *w, ag_err *err)
{
    uint64_t at = w->file.n_written;
    for (size_t i = 0; i < w->n; i++) AG_TRY(write_directory_entry(w, &w->entries[i], err));
    uint64_t end = w->file.n_written, n_bytes = end - at;
    header h = {.n = 0};
    put(&h, 0x06064b50, 4); /* the ZIP64 records go out always, as torch's do */
    put(&h, 44, 8);
    put(&h, VERSION_ZIP64, 2);
    put(&h, VERSION_ZIP64, 2);
    put(&h, 0, 4);
    put(&h, 0, 4);
    put(&h, w->n, 8);
    put(&h, w->n, 8);
    put(&h, n_bytes, 8);
    put(&h, at, 8);
    put(&h, 0x07064b50, 4);
    put(&h, 0, 4);
    put(&h, end, 8);
    put(&h, 1, 4);
    put(&h, 0x06054b50, 4);
    put(&h, 0, 2);
    put(&h, 0, 2);
    uint64_t n_clipped = w->n < 0xffff ? w->n : 0xffff;
    put(&h, n_clipped, 2);
    put(&h, n_clipped, 2);
    put(&h, clipped(n_bytes), 4);
    put(&h, clipped(at), 4);
    put(&h, 0, 2);
    return ag_file_write(&w->file, h.bytes, h.n, err);
}

ag_status ag_torch_zip_commit(ag_torch_zip_writer *w, ag_err *err)
{
    ag_status status = write_end(w, err);
    if (!status) status = ag_file_commit(&w->file, err);
    ag_torch_zip_abort(w);
    return status;
}

void ag_torch_zip_abort(ag_torch_zip_writer *w)
{
    ag_file_abort(&w->file);
    ag_arena_free(&w->arena);
}
