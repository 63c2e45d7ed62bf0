#include "format/torch_zip.h"

#include "format/little_endian.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, LOCATOR_BYTES = 20, END64_BYTES = 56,
    LARGEST_COMMENT = 65535, MOST_MEMBERS = 65536, CRC_BLOCK_BYTES = 1 << 20, FLAG_ENCRYPTED = 1, EXTRA_ZIP64 = 1
};
static const uint64_t LARGEST_DIRECTORY = 64 << 20, LARGEST_METADATA = 64 << 20;
static const uint32_t SATURATED32 = 0xffffffffu;

/* Where the central directory lies, and how many entries it says it has. */
typedef struct {
    uint64_t offset, bytes, n;
} directory;

/* What one entry of the central directory says. */
typedef struct {
    ag_torch_member member;
    uint64_t at, stored_bytes, end; /* of the local header; of the bytes as stored; behind the member's bytes */
    const unsigned char *extra;
    size_t n_extra;
    unsigned flags, method;
} entry;

/* ---- end records ---------------------------------------------------------------------------------------------------------- */

/* The end record whose comment ends exactly at the end of the file; the last one, should a comment hold another. */
static const unsigned char *find_end(const unsigned char *bytes, size_t n)
{
    if (n < END_BYTES) return NULL;
    for (size_t comment = 0; comment <= LARGEST_COMMENT && comment + END_BYTES <= n; comment++) {
        const unsigned char *end = bytes + (n - END_BYTES - comment);
        if (memcmp(end, "PK\5\6", 4) == 0 && ag_little_read(end + 20, 2) == comment) return end;
    }
    return NULL;
}

/* The ZIP64 record in front of its locator; *d has the classic values, which it must repeat where they are not saturated. */
static ag_status read_end64(directory *d, const unsigned char *bytes, uint64_t locator, ag_err *err)
{
    uint64_t at = ag_little_read(bytes + locator + 8, 8);
    if (ag_little_read(bytes + locator + 4, 4) != 0 || ag_little_read(bytes + locator + 16, 4) != 1)
        return ag_fail(err, AG_E_FORMAT, "the archive's ZIP64 locator speaks of several disks");
    if (locator < END64_BYTES || at != locator - END64_BYTES || memcmp(bytes + at, "PK\6\6", 4) || ag_little_read(bytes + at + 4, 8) != 44)
        return ag_fail(err, AG_E_FORMAT, "the archive's ZIP64 locator does not point to the ZIP64 end record in front of it");
    const unsigned char *end = bytes + at;
    directory d64 = {.offset = ag_little_read(end + 48, 8), .bytes = ag_little_read(end + 40, 8), .n = ag_little_read(end + 32, 8)};
    if (ag_little_read(end + 16, 4) || ag_little_read(end + 20, 4) || ag_little_read(end + 24, 8) != d64.n)
        return ag_fail(err, AG_E_FORMAT, "the archive's ZIP64 end record speaks of several disks");
    if ((d->n != 0xffff && d->n != d64.n) || (d->bytes != SATURATED32 && d->bytes != d64.bytes) ||
        (d->offset != SATURATED32 && d->offset != d64.offset))
        return ag_fail(err, AG_E_FORMAT, "the archive's two end records disagree");
    *d = d64;
    return AG_OK;
}

static ag_status find_directory(directory *d, const unsigned char *bytes, size_t n, ag_err *err)
{
    const unsigned char *end = find_end(bytes, n);
    if (!end)
        return n > 1 && bytes[0] == 0x80 ? ag_fail(err, AG_E_UNSUPPORTED, "it is a torch file from before torch 1.6, which is no archive; "
                                                   "load and save it once with a newer torch")
                                         : ag_fail(err, AG_E_FORMAT, "it is no ZIP archive, or its end is missing or followed by other bytes; "
                                                   "the file is damaged");
    if (ag_little_read(end + 4, 2) || ag_little_read(end + 6, 2) || ag_little_read(end + 8, 2) != ag_little_read(end + 10, 2))
        return ag_fail(err, AG_E_FORMAT, "the archive is spread over several disks");
    *d = (directory){.n = ag_little_read(end + 10, 2), .bytes = ag_little_read(end + 12, 4), .offset = ag_little_read(end + 16, 4)};
    uint64_t at = (uint64_t)(end - bytes), directory_end = at;
    if (at >= LOCATOR_BYTES && memcmp(end - LOCATOR_BYTES, "PK\6\7", 4) == 0) {
        AG_TRY(read_end64(d, bytes, at - LOCATOR_BYTES, err));
        directory_end = at - LOCATOR_BYTES - END64_BYTES;
    } else if (d->n == 0xffff || d->bytes == SATURATED32 || d->offset == SATURATED32) {
        return ag_fail(err, AG_E_FORMAT, "the archive's ZIP64 locator is missing");
    }
    if (d->n < 1 || d->n > MOST_MEMBERS)
        return ag_fail(err, AG_E_FORMAT, "the archive has %llu members, 1 to %d are allowed", (unsigned long long)d->n, MOST_MEMBERS);
    if (d->bytes > LARGEST_DIRECTORY || d->bytes > directory_end || d->offset != directory_end - d->bytes)
        return ag_fail(err, AG_E_FORMAT, "the archive's directory (%llu bytes at %llu) does not end where its end record begins (%llu)",
                       (unsigned long long)d->bytes, (unsigned long long)d->offset, (unsigned long long)directory_end);
    if (d->n > d->bytes / CENTRAL_BYTES)
        return ag_fail(err, AG_E_FORMAT, "the archive's directory of %llu bytes has no room for %llu members",
                       (unsigned long long)d->bytes, (unsigned long long)d->n);
    return AG_OK;
}

/* ---- the central directory ------------------------------------------------------------------------------------------------ */

/* The 64-bit values of an entry whose classic ones are saturated, in the order size, stored size, offset. */
static ag_status read_extra64(entry *e, uint64_t *size, ag_err *err)
{
    uint64_t *values[3];
    int n = 0;
    if (*size == SATURATED32) values[n++] = size;
    if (e->stored_bytes == SATURATED32) values[n++] = &e->stored_bytes;
    if (e->at == SATURATED32) values[n++] = &e->at;
    if (n == 0) return AG_OK;
    for (size_t at = 0; at + 4 <= e->n_extra;) {
        size_t n_field = ag_little_read(e->extra + at + 2, 2);
        if (n_field > e->n_extra - at - 4) break;
        if (ag_little_read(e->extra + at, 2) == EXTRA_ZIP64 && n_field >= 8 * (size_t)n) {
            for (int i = 0; i < n; i++) *values[i] = ag_little_read(e->extra + at + 4 + 8 * i, 8);
            return AG_OK;
        }
        at += 4 + n_field;
    }
    return ag_fail(err, AG_E_FORMAT, "member %.*s of the archive lacks its 64-bit sizes", (int)e->member.n_name, e->member.name);
}

/* The local header: it must be there and name the same member, and the bytes must end before the directory. */
static ag_status read_local(entry *e, const unsigned char *bytes, uint64_t directory_at, ag_err *err)
{
    const char *name = e->member.name;
    int n_name = (int)e->member.n_name;
    if (e->at > directory_at || directory_at - e->at < LOCAL_BYTES || memcmp(bytes + e->at, "PK\3\4", 4))
        return ag_fail(err, AG_E_FORMAT, "member %.*s of the archive has no local header", n_name, name);
    const unsigned char *local = bytes + e->at;
    uint64_t n_local_name = ag_little_read(local + 26, 2), head = LOCAL_BYTES + n_local_name + ag_little_read(local + 28, 2);
    if (head > directory_at - e->at || e->member.n > directory_at - e->at - head)
        return ag_fail(err, AG_E_FORMAT, "member %.*s of the archive reaches over its end", n_name, name);
    if (n_local_name != e->member.n_name || memcmp(local + LOCAL_BYTES, name, n_local_name) || ag_little_read(local + 8, 2) != e->method)
        return ag_fail(err, AG_E_FORMAT, "member %.*s of the archive has another name in its local header", n_name, name);
    e->member.bytes = local + head;
    e->end = e->at + head + e->member.n;
    return AG_OK;
}

static ag_status check_name(const char *name, size_t n, ag_err *err)
{
    bool good = n > 0 && name[0] != '/' && name[n - 1] != '/';
    for (size_t i = 0; i < n && good; i++) good = (unsigned char)name[i] >= 0x20 && name[i] != '\\' && name[i] != 0x7f;
    if (good) return AG_OK;
    return ag_fail(err, AG_E_FORMAT, "the archive has a member whose name is empty, a directory, or holds control characters");
}

/* One entry at *at of the directory, which moves on. */
static ag_status read_entry(entry *e, const unsigned char *bytes, uint64_t *at, const directory *d, ag_err *err)
{
    uint64_t end = d->offset + d->bytes;
    const unsigned char *c = bytes + *at;
    if (end - *at < CENTRAL_BYTES || memcmp(c, "PK\1\2", 4))
        return ag_fail(err, AG_E_FORMAT, "the archive's directory is damaged at byte %llu", (unsigned long long)*at);
    uint64_t n_name = ag_little_read(c + 28, 2), n_extra = ag_little_read(c + 30, 2), n_comment = ag_little_read(c + 32, 2);
    if (CENTRAL_BYTES + n_name + n_extra + n_comment > end - *at)
        return ag_fail(err, AG_E_FORMAT, "the archive's directory is damaged at byte %llu", (unsigned long long)*at);
    uint64_t size = ag_little_read(c + 24, 4);
    *e = (entry){.member = {.name = (const char *)c + CENTRAL_BYTES, .n_name = n_name, .crc = (uint32_t)ag_little_read(c + 16, 4)},
                 .at = ag_little_read(c + 42, 4), .stored_bytes = ag_little_read(c + 20, 4), .extra = c + CENTRAL_BYTES + n_name,
                 .n_extra = n_extra, .flags = (unsigned)ag_little_read(c + 8, 2), .method = (unsigned)ag_little_read(c + 10, 2)};
    *at += CENTRAL_BYTES + n_name + n_extra + n_comment;
    AG_TRY(check_name(e->member.name, n_name, err));
    AG_TRY(read_extra64(e, &size, err));
    if (e->method != 0 || (e->flags & FLAG_ENCRYPTED) || e->stored_bytes != size)
        return ag_fail(err, AG_E_UNSUPPORTED, "member %.*s of the archive is compressed or encrypted; torch stores members as they are",
                       (int)n_name, e->member.name);
    if (ag_little_read(c + 34, 2)) return ag_fail(err, AG_E_FORMAT, "the archive is spread over several disks");
    e->member.n = size;
    return read_local(e, bytes, d->offset, err);
}

/* ---- all members ---------------------------------------------------------------------------------------------------------- */

static int compare_places(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int compare_names(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order ? order : n_a < n_b ? -1 : n_a > n_b;
}

static int compare_members(const void *a, const void *b)
{
    const ag_torch_member *x = a, *y = b;
    return compare_names(x->name, x->n_name, y->name, y->n_name);
}

static bool all_digits(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return n > 0;
}

/* One root for all, names unique, only storages under data/, little metadata. */
static ag_status check_members(ag_torch_zip *zip, ag_err *err)
{
    const ag_torch_member *first = zip->members;
    const char *slash = memchr(first->name, '/', first->n_name);
    if (!slash) return ag_fail(err, AG_E_FORMAT, "member %.*s of the archive lies in no directory", (int)first->n_name, first->name);
    zip->n_root = (size_t)(slash - first->name) + 1;
    uint64_t metadata = 0;
    for (size_t i = 0; i < zip->n; i++) {
        const ag_torch_member *m = &zip->members[i];
        if (m->n_name <= zip->n_root || memcmp(m->name, first->name, zip->n_root))
            return ag_fail(err, AG_E_FORMAT, "members %.*s and %.*s of the archive have different roots", (int)first->n_name, first->name,
                           (int)m->n_name, m->name);
        if (i > 0 && compare_members(m - 1, m) == 0)
            return ag_fail(err, AG_E_FORMAT, "member %.*s stands twice in the archive", (int)m->n_name, m->name);
        const char *name = m->name + zip->n_root;
        size_t n_name = m->n_name - zip->n_root;
        if (n_name >= 5 && memcmp(name, "data/", 5) == 0) {
            if (!all_digits(name + 5, n_name - 5))
                return ag_fail(err, AG_E_FORMAT, "member %.*s of the archive is no storage: its name must be a number", (int)m->n_name, m->name);
            zip->n_storages++;
        } else {
            metadata += m->n; /* each is smaller than the file: no overflow */
        }
    }
    if (metadata > LARGEST_METADATA)
        return ag_fail(err, AG_E_FORMAT, "the archive has %llu bytes besides its storages, at most %llu are read",
                       (unsigned long long)metadata, (unsigned long long)LARGEST_METADATA);
    return AG_OK;
}

static ag_status check_crc(const ag_torch_member *m, const ag_map *map, ag_err *err)
{
    uLong crc = crc32(0, NULL, 0);
    for (size_t at = 0; at < m->n;) {
        size_t n = m->n - at < CRC_BLOCK_BYTES ? m->n - at : CRC_BLOCK_BYTES;
        crc = crc32(crc, m->bytes + at, (uInt)n);
        at += n;
        if (map && m->n > CRC_BLOCK_BYTES) ag_map_forget(map, (size_t)(m->bytes - map->bytes) + at - n, n);
    }
    if (crc == m->crc) return AG_OK;
    return ag_fail(err, AG_E_FORMAT, "member %.*s of the archive is damaged: its CRC is %08lx, the directory says %08lx", (int)m->n_name,
                   m->name, (unsigned long)crc, (unsigned long)m->crc);
}

ag_status ag_torch_zip_read(ag_torch_zip *zip, const unsigned char *bytes, size_t n, const ag_map *map, ag_arena *arena, ag_err *err)
{
    *zip = (ag_torch_zip){0};
    directory d = {0};
    AG_TRY(find_directory(&d, bytes, n, err));
    entry *entries = ag_arena_array(arena, d.n, sizeof *entries); /* d.n was held against the directory's bytes */
    uint64_t at = d.offset;
    for (size_t i = 0; i < d.n; i++) AG_TRY(read_entry(&entries[i], bytes, &at, &d, err));
    if (at != d.offset + d.bytes) return ag_fail(err, AG_E_FORMAT, "the archive's directory has bytes behind its last member");

    qsort(entries, d.n, sizeof *entries, compare_places);
    zip->n = d.n;
    zip->members = ag_arena_array(arena, d.n, sizeof *zip->members);
    for (size_t i = 0; i < d.n; i++) {
        if (i > 0 && entries[i].at < entries[i - 1].end)
            return ag_fail(err, AG_E_FORMAT, "members of the archive overlap at byte %llu", (unsigned long long)entries[i].at);
        zip->members[i] = entries[i].member;
    }
    qsort(zip->members, zip->n, sizeof *zip->members, compare_members);
    AG_TRY(check_members(zip, err));
    for (size_t i = 0; i < zip->n; i++) AG_TRY(check_crc(&zip->members[i], map, err));
    return AG_OK;
}

const ag_torch_member *ag_torch_zip_find(const ag_torch_zip *zip, const char *name, size_t n_name)
{
    size_t low = 0, high = zip->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const ag_torch_member *m = &zip->members[middle];
        int order = compare_names(m->name + zip->n_root, m->n_name - zip->n_root, name, n_name);
        if (order == 0) return m;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}
