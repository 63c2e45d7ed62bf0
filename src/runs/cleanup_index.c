#define _GNU_SOURCE
#include "runs/cleanup.h"

#include "base/digest.h"
#include "base/fs.h"
#include "base/str.h"
#include "seal/artifact_index.h"

#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 64 };

static bool is_of_checkpoint(const char *file, ag_arena *arena)
{
    return ag_checkpoint_number(ag_arena_strndup(arena, file, strcspn(file, "/"))) >= 0 && strchr(file, '/');
}

static ag_status differs(const char *shown, const char *file, const char *how, ag_err *err)
{
    return ag_fail(err, AG_E_VERIFY,
                   "%s/%s %s; the index's provenance cannot vouch for the run any more, so that it was left as it was. Restore "
                   "the file, or remove the index and seal the run anew",
                   shown, file, how);
}

/* ---- what the index lists ---------------------------------------------------------------------------------------- */
typedef struct {
    const ag_artifact_index *index;
    const char *access, *shown;
} survivors;

static ag_status check_listed(const survivors *s, const ag_artifact_entry *entry, ag_arena *arena, ag_err *err)
{
    struct stat st;
    ag_sha256 digest;
    const char *path = ag_path_join(arena, s->access, entry->file);
    if (lstat(path, &st)) {
        if (errno != ENOENT && errno != ENOTDIR)
            return ag_fail_errno(err, errno, "%s/%s cannot be looked at", s->shown, entry->file);
        return is_of_checkpoint(entry->file, arena) ? AG_OK : differs(s->shown, entry->file, "is listed, but gone", err);
    }
    if (!S_ISREG(st.st_mode)) return differs(s->shown, entry->file, "is no regular file any more", err);
    if ((uint64_t)st.st_size != entry->size_bytes)
        return differs(s->shown, entry->file, "has another size than the index says", err);
    AG_TRY(ag_sha256_file(&digest, path, err));
    return strcmp(digest.hex, entry->sha256) == 0
               ? AG_OK
               : differs(s->shown, entry->file, "has another content than the index says", err);
}

static ag_status check_all_listed(const survivors *s, int n_threads, ag_err *err)
{
    ag_status failed = AG_OK;
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
    for (size_t i = 0; i < s->index->n; i++) {
        ag_arena arena = {0};
        ag_err own;
        const ag_status status = check_listed(s, &s->index->artifacts[i], &arena, &own);
        ag_arena_free(&arena);
        if (!status) continue;
#pragma omp critical(ag_cleanup_index)
        {
            failed = status;
            if (err) *err = own;
        }
    }
    return failed;
}

/* ---- what it does not list --------------------------------------------------------------------------------------- */
static int by_file(const void *a, const void *b)
{
    return strcmp(((const ag_artifact_entry *)a)->file, ((const ag_artifact_entry *)b)->file);
}

static bool is_listed(const survivors *s, const char *file)
{
    const ag_artifact_entry key = {.file = file};
    return s->index->n && bsearch(&key, s->index->artifacts, s->index->n, sizeof key, by_file);
}

static ag_status check_unlisted(const survivors *s, const char *prefix, int depth, ag_arena *arena, ag_err *err)
{
    char **names;
    size_t n;
    const char *dir = *prefix ? ag_path_join(arena, s->access, prefix) : s->access;
    if (depth > DEEPEST) return differs(s->shown, prefix, "lies too deep", err);
    AG_TRY(ag_dir_list(&names, &n, dir, arena, err));
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        const char *file = *prefix ? ag_path_join(arena, prefix, names[i]) : names[i];
        if (!*prefix && (strcmp(names[i], AG_ARTIFACT_INDEX_FILE) == 0 || ag_checkpoint_number(names[i]) >= 0)) continue;
        if (lstat(ag_path_join(arena, s->access, file), &st))
            return ag_fail_errno(err, errno, "%s/%s cannot be looked at", s->shown, file);
        if (S_ISDIR(st.st_mode)) AG_TRY(check_unlisted(s, file, depth + 1, arena, err));
        else if (!is_listed(s, file)) return differs(s->shown, file, "is there, but the index does not list it", err);
    }
    return AG_OK;
}

/* What a process that was killed while it published the index has left: nobody's file, and the index could not list it. */
static ag_status remove_temporaries(const char *access, ag_arena *arena, ag_err *err)
{
    static const char prefix[] = AG_ARTIFACT_INDEX_FILE ".tmp-";
    char **names;
    size_t n;
    AG_TRY(ag_dir_list(&names, &n, access, arena, err));
    for (size_t i = 0; i < n; i++) {
        const char *rest = names[i] + sizeof prefix - 1;
        if (!ag_str_starts(names[i], prefix) || rest[strspn(rest, "0123456789-")] != 0) continue;
        if (unlink(ag_path_join(arena, access, names[i])) && errno != ENOENT)
            return ag_fail_errno(err, errno, "%s cannot be removed", names[i]);
    }
    return AG_OK;
}

/* ---- rewriting --------------------------------------------------------------------------------------------------- */
static ag_status rewrite(const char *access, const char *shown, int n_threads, ag_arena *arena, ag_err *err)
{
    ag_artifact_index old = {0};
    ag_provenance provenance;
    bool sealed = false;
    AG_TRY(remove_temporaries(access, arena, err));
    ag_err ignored; /* an index that cannot be read vouches for nothing: a new one takes its place */
    if (ag_artifact_index_provenance(&provenance, &sealed, access, arena, &ignored)) sealed = false;
    const ag_status readable = ag_artifact_index_load(&old, access, arena, sealed ? err : &ignored);
    if (sealed) {
        AG_TRY(readable);
        const survivors s = {&old, access, shown};
        AG_TRY(check_all_listed(&s, n_threads, err));
        AG_TRY(check_unlisted(&s, "", 0, arena, err));
    }
    const char *output_dir = readable == AG_OK && old.output_dir ? old.output_dir : shown;
    return ag_artifact_index_write(access, output_dir, sealed ? &provenance : NULL, n_threads, err);
}

ag_status ag_cleanup_index(bool *rewritten, const char *access, const char *shown, int n_threads, ag_err *err)
{
    ag_arena arena = {0};
    struct stat st;
    ag_status status = AG_OK;
    *rewritten = false;
    const char *path = ag_path_join(&arena, access, AG_ARTIFACT_INDEX_FILE);
    if (lstat(path, &st) == 0) {
        status = S_ISREG(st.st_mode)
                     ? rewrite(access, shown, n_threads, &arena, err)
                     : ag_fail(err, AG_E_IO, "%s/%s is no regular file; it was left as it was", shown, AG_ARTIFACT_INDEX_FILE);
        *rewritten = status == AG_OK;
    }
    ag_arena_free(&arena);
    return status;
}
