#define _GNU_SOURCE
#include "hub/hub_store.h"

#include "base/log.h"
#include "base/str.h"
#include "hub/hub_names.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ag_status ag_hub_store_open(ag_hub_store *out, const char *cache_dir, ag_hub_kind kind, const char *id, ag_arena *arena, ag_err *err)
{
    char *root, *cwd;
    AG_TRY(ag_hub_id_check(id, err));
    AG_TRY(ag_path_check(&root, cache_dir, arena, err));
    if (root[0] != '/') {
        cwd = getcwd(NULL, 0);
        if (!cwd) return ag_fail_errno(err, errno, "the current folder is not known");
        root = ag_path_join(arena, cwd, root);
        free(cwd);
    }
    const char *slash = strchr(id, '/');
    const char *repo = ag_arena_printf(arena, "%ss--%.*s--%s", kind == AG_HUB_DATASET ? "dataset" : "model", (int)(slash - id), id, slash + 1);
    *out = (ag_hub_store){.root = root, .repo = repo, .arena = arena};
    return AG_OK;
}

ag_status ag_hub_store_make(const ag_hub_store *s, ag_err *err)
{
    static const char tag[] = "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of model files; it can be fetched again.\n"
                              "# See https://bford.info/cachedir/\n";
    AG_TRY(ag_make_dirs(s->root, err));
    const char *path = ag_path_join(s->arena, s->root, "CACHEDIR.TAG");
    return access(path, F_OK) == 0 ? AG_OK : ag_file_publish(path, tag, sizeof tag - 1, err);
}

/* <root>/<inside>, whose folders are made one by one: each must be a folder itself. */
static ag_status path_below(const char **out, const ag_hub_store *s, const char *inside, ag_err *err)
{
    char *path = ag_path_join(s->arena, s->root, inside);
    for (char *c = path + strlen(s->root) + 1; (c = strchr(c, '/')); c++) {
        struct stat info;
        ag_status status = AG_OK;
        *c = 0;
        if (lstat(path, &info) != 0)
            status = ag_make_dirs(path, err);
        else if (!S_ISDIR(info.st_mode))
            status = ag_fail(err, AG_E_VERIFY, "%s is %s; a folder was expected there, and nothing is written into the cache through it", path,
                             S_ISLNK(info.st_mode) ? "a symbolic link" : "no folder");
        *c = '/';
        AG_TRY(status);
    }
    *out = path;
    return AG_OK;
}

ag_status ag_hub_store_path(const char **out, const ag_hub_store *s, const char *inside, ag_err *err)
{
    return path_below(out, s, ag_path_join(s->arena, s->repo, inside), err);
}

const char *ag_hub_store_snapshot(const ag_hub_store *s, const char *commit)
{
    return ag_arena_printf(s->arena, "%s/%s/snapshots/%s", s->root, s->repo, commit);
}

/* ---- refs -------------------------------------------------------------------------------------------------------------------- */
ag_status ag_hub_ref_read(char commit[41], const ag_hub_store *s, const char *revision, ag_err *err)
{
    enum { MOST_BYTES = 64 };
    char *text;
    size_t n;
    AG_TRY(ag_hub_revision_check(revision, err));
    commit[0] = 0;
    const char *path = ag_arena_printf(s->arena, "%s/%s/refs/%s", s->root, s->repo, revision);
    if (ag_hub_is_commit(revision)) {
        memcpy(commit, revision, AG_HUB_COMMIT_DIGITS + 1);
        return AG_OK;
    }
    if (!ag_path_is_file(path)) return AG_OK;
    AG_TRY(ag_file_read(&text, &n, path, MOST_BYTES, s->arena, err));
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' ')) text[--n] = 0;
    if (!ag_hub_is_commit(text)) return ag_fail(err, AG_E_FORMAT, "%s holds no commit; remove it and pull again", path);
    memcpy(commit, text, AG_HUB_COMMIT_DIGITS + 1);
    return AG_OK;
}

ag_status ag_hub_ref_write(const ag_hub_store *s, const char *revision, const char *commit, ag_err *err)
{
    char old[41];
    const char *path;
    if (ag_hub_is_commit(revision)) return AG_OK;
    if (!ag_hub_ref_read(old, s, revision, NULL) && strcmp(old, commit) == 0) return AG_OK;
    AG_TRY(ag_hub_store_path(&path, s, ag_path_join(s->arena, "refs", revision), err));
    return ag_file_publish(path, commit, strlen(commit), err);
}

/* ---- snapshots ------------------------------------------------------------------------------------------------------------------- */
ag_status ag_hub_snapshot_file(const char **path, uint64_t *bytes, const ag_hub_store *s, const char *commit, const char *file, ag_err *err)
{
    char root[PATH_MAX], target[PATH_MAX];
    struct stat info;
    const char *link = ag_path_join(s->arena, ag_hub_store_snapshot(s, commit), file);
    *path = NULL;
    if (!realpath(s->root, root) || !realpath(link, target) || stat(target, &info) != 0) return AG_OK;
    const size_t n = strlen(root);
    if (strncmp(target, root, n) != 0 || target[n] != '/')
        return ag_fail(err, AG_E_VERIFY, "%s leads out of the cache, to %.300s; it is not read. Remove it and pull again", link, target);
    if (!S_ISREG(info.st_mode)) return ag_fail(err, AG_E_VERIFY, "%s is no file; remove it and pull again", link);
    *path = link;
    if (bytes) *bytes = (uint64_t)info.st_size;
    return AG_OK;
}

/* "../../blobs/" with one "../" more for each folder of the file's name. */
static const char *way_to_blobs(const ag_hub_store *s, const char *file)
{
    ag_str way = {0};
    ag_str_add(&way, "../../");
    for (const char *c = file; (c = strchr(c, '/')); c++) ag_str_add(&way, "../");
    ag_str_add(&way, "blobs/");
    const char *text = ag_arena_strdup(s->arena, way.text);
    ag_str_free(&way);
    return text;
}

void ag_hub_snapshot_blob(char etag[65], const ag_hub_store *s, const char *commit, const char *file)
{
    char target[PATH_MAX];
    const char *way = way_to_blobs(s, file);
    const ssize_t n = readlink(ag_path_join(s->arena, ag_hub_store_snapshot(s, commit), file), target, sizeof target - 1);
    etag[0] = 0;
    if (n < 0) return;
    target[n] = 0;
    const char *name = target + strlen(way);
    if (ag_str_starts(target, way) && ag_hub_is_blob_name(name)) memcpy(etag, name, strlen(name) + 1);
}

ag_status ag_hub_link(const ag_hub_store *s, const char *commit, const char *file, const char *etag, ag_err *err)
{
    char there[65];
    const char *path;
    ag_hub_snapshot_blob(there, s, commit, file);
    if (strcmp(there, etag) == 0) return AG_OK;
    AG_TRY(ag_hub_store_path(&path, s, ag_arena_printf(s->arena, "snapshots/%s/%s", commit, file), err));
    const char *target = ag_arena_printf(s->arena, "%s%s", way_to_blobs(s, file), etag);
    const char *temporary = ag_arena_printf(s->arena, "%s.%ld.tmp", path, (long)getpid());
    (void)unlink(temporary);
    if (symlink(target, temporary) != 0) return ag_fail_errno(err, errno, "the link %s cannot be made", path);
    if (rename(temporary, path) != 0) {
        const int errnum = errno;
        (void)unlink(temporary);
        return ag_fail_errno(err, errnum, "the link %s cannot be made", path);
    }
    return AG_OK;
}

bool ag_hub_is_known_missing(const ag_hub_store *s, const char *commit, const char *file)
{
    return ag_path_is_file(ag_arena_printf(s->arena, "%s/%s/.no_exist/%s/%s", s->root, s->repo, commit, file));
}

void ag_hub_mark_missing(const ag_hub_store *s, const char *commit, const char *file)
{
    const char *path;
    ag_err err;
    if (ag_hub_is_known_missing(s, commit, file)) return;
    ag_status status = ag_hub_store_path(&path, s, ag_arena_printf(s->arena, ".no_exist/%s/%s", commit, file), &err);
    if (!status) status = ag_file_publish(path, "", 0, &err);
    if (status) ag_log(AG_LOG_INFO, "%s", err.text);
}
