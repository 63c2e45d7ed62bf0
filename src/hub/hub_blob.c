/* Blobs of the cache: taken in piece by piece, and given their name only when they are what the name says. */
#define _GNU_SOURCE
#include "base/digest.h"
#include "base/log.h"
#include "hub/hub_names.h"
#include "hub/hub_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20, SHA256_DIGITS = 64 };

ag_status ag_hub_blob_lock(ag_lock *lock, const ag_hub_store *s, const char *etag, ag_err *err)
{
    const char *path;
    /* A store of its own, beside the repositories. */
    const ag_hub_store locks = {.root = s->root, .repo = ".locks", .arena = s->arena};
    AG_TRY(ag_hub_store_path(&path, &locks, ag_arena_printf(s->arena, "%s/%s.lock", s->repo, etag), err));
    return ag_lock_take(lock, ag_path_dir(s->arena, path), ag_path_base(path), err);
}

/* ---- digests -------------------------------------------------------------------------------------------------------------------- */
static void digest_end(ag_hub_blob *b, char hex[65])
{
    char unused[65];
    char *out = hex ? hex : unused;
    out[0] = 0;
    if (b->sha256) memcpy(out, ag_sha256_end(b->sha256).hex, 65);
    if (b->git_id) memcpy(out, ag_git_id_end(b->git_id).hex, 41);
    b->sha256 = NULL;
    b->git_id = NULL;
    b->at = 0;
}

static void digest_begin(ag_hub_blob *b)
{
    digest_end(b, NULL);
    if (strlen(b->etag) == SHA256_DIGITS)
        b->sha256 = ag_sha256_begin();
    else
        b->git_id = ag_git_id_begin(b->bytes);
}

static void digest_add(ag_hub_blob *b, const void *bytes, size_t n)
{
    if (b->sha256) ag_sha256_add(b->sha256, bytes, n);
    if (b->git_id) ag_git_id_add(b->git_id, bytes, n);
    b->at += n;
}

/* What lies in the file, from its begin, into the digest. */
static ag_status digest_file(ag_hub_blob *b, const char *path, ag_err *err)
{
    unsigned char *block = malloc(READ_BYTES);
    if (!block) ag_out_of_memory(READ_BYTES);
    ssize_t got;
    while ((got = pread(b->fd, block, READ_BYTES, (off_t)b->at)) > 0 || (got < 0 && errno == EINTR))
        if (got > 0) digest_add(b, block, (size_t)got);
    const int errnum = errno;
    free(block);
    return got < 0 ? ag_fail_errno(err, errnum, "%s cannot be read", path) : AG_OK;
}

/* ---- what is there -------------------------------------------------------------------------------------------------------------- */
static const char *blob_path(const ag_hub_store *s, const char *etag)
{
    return ag_arena_printf(s->arena, "%s/%s/blobs/%s", s->root, s->repo, etag);
}

ag_status ag_hub_blob_check(bool *is_there, const ag_hub_store *s, const char *etag, uint64_t bytes, bool verify, ag_err *err)
{
    struct stat info;
    const char *path = blob_path(s, etag);
    char digest[65] = "";
    *is_there = false;
    if (stat(path, &info) != 0) return AG_OK;
    *is_there = S_ISREG(info.st_mode) && (uint64_t)info.st_size == bytes;
    if (*is_there && verify) {
        ag_hub_blob b = {.store = s, .bytes = bytes, .fd = open(path, O_RDONLY | O_CLOEXEC)};
        if (b.fd < 0) return ag_fail_errno(err, errno, "%s cannot be opened", path);
        memcpy(b.etag, etag, strlen(etag) + 1);
        digest_begin(&b);
        const ag_status status = digest_file(&b, path, err);
        close(b.fd);
        digest_end(&b, digest);
        AG_TRY(status);
        *is_there = strcmp(digest, etag) == 0;
    }
    if (*is_there) return AG_OK;
    ag_log(AG_LOG_WARN, "%s is damaged (%s); it is fetched again", path, digest[0] ? "its digest is another" : "its size is another");
    return unlink(path) == 0 ? AG_OK : ag_fail_errno(err, errno, "the damaged %s cannot be removed", path);
}

/* ---- taking one in ----------------------------------------------------------------------------------------------------------------- */
ag_status ag_hub_blob_open(ag_hub_blob *b, const ag_hub_store *s, const char *etag, uint64_t bytes, ag_err *err)
{
    struct stat info;
    AG_ASSERT(ag_hub_is_blob_name(etag));
    *b = (ag_hub_blob){.store = s, .bytes = bytes, .fd = -1};
    memcpy(b->etag, etag, strlen(etag) + 1);
    AG_TRY(ag_hub_store_path(&b->path, s, ag_path_join(s->arena, "blobs", etag), err));
    b->incomplete = ag_arena_printf(s->arena, "%s.incomplete", b->path);
    b->fd = open(b->incomplete, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (b->fd < 0) return ag_fail_errno(err, errno, "%s cannot be opened", b->incomplete);
    ag_status status = AG_OK;
    digest_begin(b);
    if (fstat(b->fd, &info) != 0 || !S_ISREG(info.st_mode))
        status = ag_fail(err, AG_E_VERIFY, "%s is no file; remove it and pull again", b->incomplete);
    else if ((uint64_t)info.st_size > bytes)
        status = ag_hub_blob_restart(b, err);
    else
        status = digest_file(b, b->incomplete, err);
    if (status) ag_hub_blob_close(b);
    return status;
}

ag_status ag_hub_blob_restart(ag_hub_blob *b, ag_err *err)
{
    digest_begin(b);
    return ftruncate(b->fd, 0) == 0 ? AG_OK : ag_fail_errno(err, errno, "%s cannot be emptied", b->incomplete);
}

ag_status ag_hub_blob_write(ag_hub_blob *b, const void *bytes, size_t n, ag_err *err)
{
    const char *from = bytes;
    while (n > 0) {
        const ssize_t put = pwrite(b->fd, from, n, (off_t)b->at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return ag_fail_errno(err, put < 0 ? errno : ENOSPC, "%s cannot be written", b->incomplete);
        digest_add(b, from, (size_t)put);
        from += put;
        n -= (size_t)put;
    }
    return AG_OK;
}

ag_status ag_hub_blob_commit(ag_hub_blob *b, ag_err *err)
{
    char digest[65];
    const uint64_t n = b->at;
    digest_end(b, digest);
    if (n != b->bytes || strcmp(digest, b->etag) != 0) {
        ag_hub_blob_close(b); /* with nothing in its digest it is removed */
        return ag_fail(err, AG_E_VERIFY, "what came for the blob %s has another %s: it was thrown away", b->etag, n != b->bytes ? "size" : "digest");
    }
    if (fsync(b->fd) != 0) return ag_fail_errno(err, errno, "%s cannot be written to disk", b->incomplete);
    close(b->fd);
    b->fd = -1;
    const ag_status status = ag_rename_synced(b->incomplete, b->path, err);
    if (status != AG_E_EXISTS) return status;
    (void)unlink(b->incomplete); /* someone without a lock was faster; the content is the same */
    return AG_OK;
}

void ag_hub_blob_close(ag_hub_blob *b)
{
    if (b->fd >= 0 && b->at == 0) (void)unlink(b->incomplete); /* nothing came */
    digest_end(b, NULL);
    if (b->fd >= 0) close(b->fd);
    b->fd = -1;
}
