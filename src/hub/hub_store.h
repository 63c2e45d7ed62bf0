/* huggingface_hub's cache on disk: where things lie, and how they get there safely.
 *
 *     <root>/models--<org>--<name>/blobs/<etag>                     the content; <etag>.incomplete while it comes
 *                                  snapshots/<commit>/<file>        a relative link to ../../blobs/<etag> (one .. more per folder)
 *                                  refs/<revision>                  the commit, without a line end
 *                                  .no_exist/<commit>/<file>        empty: the file is known not to be there
 *     <root>/.locks/models--<org>--<name>/<etag>.lock               flock, while a blob comes
 *     <root>/CACHEDIR.TAG                                           tells backup programs to pass by
 *
 * Only the root may be reached through a symbolic link. Folders below it that are links are refused, and so is a file whose link ends
 * outside the root (inside it may end elsewhere: huggingface_hub shares blobs between repositories). */
#ifndef AG_HUB_STORE_H
#define AG_HUB_STORE_H

#include "base/fs.h"
#include "hub/hub.h"

typedef struct {
    const char *root;  /* as the user names it, absolute */
    const char *repo;  /* "models--org--name" */
    ag_arena *arena;
} ag_hub_store;
/* Makes nothing. */
AG_MUST_USE ag_status ag_hub_store_open(ag_hub_store *out, const char *cache_dir, ag_hub_kind kind, const char *id, ag_arena *arena, ag_err *err);

/* A path inside the repository's folder, with its folders made (each a folder, none a link). */
AG_MUST_USE ag_status ag_hub_store_path(const char **out, const ag_hub_store *s, const char *inside, ag_err *err);
const char *ag_hub_store_snapshot(const ag_hub_store *s, const char *commit); /* its folder, which may be missing */

/* The commit that a revision was last seen at; "" where it was never. A commit is its own. */
AG_MUST_USE ag_status ag_hub_ref_read(char commit[41], const ag_hub_store *s, const char *revision, ag_err *err);
AG_MUST_USE ag_status ag_hub_ref_write(const ag_hub_store *s, const char *revision, const char *commit, ag_err *err);

/* A file of a snapshot: *path NULL where it is missing (or its blob is). AG_E_VERIFY where a link leads out of the cache. */
AG_MUST_USE ag_status ag_hub_snapshot_file(const char **path, uint64_t *bytes, const ag_hub_store *s, const char *commit, const char *file,
                                           ag_err *err);
/* The blob that a snapshot's file links to, by name; "" where the file is no such link. */
void ag_hub_snapshot_blob(char etag[65], const ag_hub_store *s, const char *commit, const char *file);
AG_MUST_USE ag_status ag_hub_link(const ag_hub_store *s, const char *commit, const char *file, const char *etag, ag_err *err);

bool ag_hub_is_known_missing(const ag_hub_store *s, const char *commit, const char *file);
/* Knowledge that saves a question; a cache that cannot be written goes without. */
void ag_hub_mark_missing(const ag_hub_store *s, const char *commit, const char *file);

/* Whether a blob of that size lies there, with the right digest where `verify`; one that is wrong is removed, with a warning. */
AG_MUST_USE ag_status ag_hub_blob_check(bool *is_there, const ag_hub_store *s, const char *etag, uint64_t bytes, bool verify, ag_err *err);

/* Taking a blob's content in. The file is gone on with where an .incomplete lies there; the lock must be held. */
typedef struct {
    const ag_hub_store *store;
    char etag[65];
    uint64_t bytes;             /* that it must have in the end */
    const char *incomplete, *path;
    int fd;
    uint64_t at;                /* bytes that are there and in the digest */
    struct ag_sha256_state *sha256; /* one of both */
    struct ag_git_id_state *git_id;
} ag_hub_blob;
/* *at tells how much is there already; more than the whole is thrown away. */
AG_MUST_USE ag_status ag_hub_blob_open(ag_hub_blob *b, const ag_hub_store *s, const char *etag, uint64_t bytes, ag_err *err);
AG_MUST_USE ag_status ag_hub_blob_restart(ag_hub_blob *b, ag_err *err);
AG_MUST_USE ag_status ag_hub_blob_write(ag_hub_blob *b, const void *bytes, size_t n, ag_err *err);
/* Size and digest, then fsync and the blob's own name. AG_E_VERIFY where they are wrong: what came is then thrown away. */
AG_MUST_USE ag_status ag_hub_blob_commit(ag_hub_blob *b, ag_err *err);
void ag_hub_blob_close(ag_hub_blob *b); /* leaves what came for the next time */

/* For one blob; AG_E_BUSY where another process fetches it. */
AG_MUST_USE ag_status ag_hub_blob_lock(ag_lock *lock, const ag_hub_store *s, const char *etag, ag_err *err);
/* Makes the root, and its tag. */
AG_MUST_USE ag_status ag_hub_store_make(const ag_hub_store *s, ag_err *err);

#endif
