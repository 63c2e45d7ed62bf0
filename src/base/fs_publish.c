#define _GNU_SOURCE
#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the system, replaceable for tests ------------------------------------------------------------------------------------ */

static int system_open(const char *path, int flags, unsigned mode) { return open(path, flags, (mode_t)mode); }

static int system_mkdir(const char *path, unsigned mode) { return mkdir(path, (mode_t)mode); }

static int system_rename_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    /* A file system without that flag: rename never replaces a file or a directory with something in it by a directory, so that
     * looking first leaves only an empty directory made in between. */
    struct stat st;
    if (lstat(to, &st) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

const ag_fs_calls ag_fs_system_calls = {system_open, write, fsync, close, rename, system_rename_new, system_mkdir, unlinkat};
ag_fs_calls ag_fs_calls_used = {system_open, write, fsync, close, rename, system_rename_new, system_mkdir, unlinkat};

/* ---- shared pieces -------------------------------------------------------------------------------------------------------- */

enum { BUFFER_BYTES = 256 << 10, LARGEST_WRITE = 1 << 30, MOST_NAMES_TRIED = 1000, DEEPEST_TREE = 256 };

static unsigned next_number(void)
{
    static atomic_uint counter;
    return atomic_fetch_add(&counter, 1);
}

static char *text_copy(const char *text, size_t n)
{
    char *copy = malloc(n + 1);
    if (!copy) ag_out_of_memory(n + 1);
    memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

/* "<head><pid>-<n>" in its own memory. */
static char *name_with_number(const char *head)
{
    size_t room = strlen(head) + 48;
    char *name = malloc(room);
    if (!name) ag_out_of_memory(room);
    snprintf(name, room, "%s%ld-%u", head, (long)getpid(), next_number());
    return name;
}

static int open_again(const char *path, int flags, unsigned mode)
{
    int fd;
    do fd = ag_fs_calls_used.open(path, flags, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static int fsync_again(int fd)
{
    int failed;
    do failed = ag_fs_calls_used.fsync(fd);
    while (failed && errno == EINTR);
    return failed;
}

/* The directory's entries reach the disk. Some file systems have no fsync for directories and say EINVAL; there is no more to
 * be done there. */
static ag_status sync_dir(const char *dir, ag_err *err)
{
    int fd = open_again(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return ag_fail_errno(err, errno, "the directory %s cannot be opened", dir);
    int failed = fsync_again(fd), errnum = errno;
    close(fd);
    if (failed && errnum != EINVAL) return ag_fail_errno(err, errnum, "the directory %s cannot be written to disk", dir);
    return AG_OK;
}

static ag_status sync_dir_of(const char *path, ag_err *err)
{
    ag_arena arena = {0};
    ag_status status = sync_dir(ag_path_dir(&arena, path), err);
    ag_arena_free(&arena);
    return status;
}

ag_status ag_make_dirs(const char *path, ag_err *err)
{
    ag_arena arena = {0};
    ag_status status = AG_OK;
    char *part = ag_arena_strdup(&arena, path);
    size_t n = strlen(path);
    for (size_t i = 1; i <= n && !status; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        part[i] = 0;
        int errnum = 0;
        if (!ag_path_is_dir(part)) {
            if (ag_fs_calls_used.mkdir(part, 0777) == 0) status = sync_dir_of(part, err);
            else errnum = errno;
        }
        if (errnum == EEXIST && !ag_path_is_dir(part)) /* else another process made it just now */
            status = ag_fail(err, AG_E_EXISTS, "the directory %s cannot be made: there is something else of that name", part);
        else if (errnum && errnum != EEXIST) status = ag_fail_errno(err, errnum, "the directory %s cannot be made", part);
        part[i] = path[i];
    }
    ag_arena_free(&arena);
    return status;
}

/* ---- a file that appears whole or not at all ------------------------------------------------------------------------------ */

static void writer_release(ag_file_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    if (w->temp_path) unlink(w->temp_path);
    free(w->path);
    free(w->temp_path);
    free(w->buffer);
    w->fd = -1;
    w->path = w->temp_path = NULL;
    w->buffer = NULL;
    w->n_buffered = 0;
}

/* Keeps the failure for later calls, and leaves no temporary behind. */
static ag_status writer_fail(ag_file_writer *w, ag_err *err, int errnum, const char *what)
{
    ag_status status = ag_fail_errno(&w->failure, errnum, "%s cannot be %s", w->path, what);
    writer_release(w);
    if (err) *err = w->failure;
    return status;
}

ag_status ag_file_begin(ag_file_writer *w, const char *path, ag_err *err)
{
    *w = (ag_file_writer){.fd = -1};
    w->path = text_copy(path, strlen(path));
    w->buffer = malloc(BUFFER_BYTES);
    if (!w->buffer) ag_out_of_memory(BUFFER_BYTES);
    ag_arena arena = {0};
    char *head = ag_arena_printf(&arena, "%s.tmp-", path);
    for (int tried = 0; tried < MOST_NAMES_TRIED; tried++) { /* a killed process of the same number may have left one */
        char *temp = name_with_number(head);
        w->fd = open_again(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0) {
            w->temp_path = temp;
            break;
        }
        int errnum = errno;
        free(temp);
        errno = errnum;
        if (errnum != EEXIST) break;
    }
    int errnum = errno;
    ag_arena_free(&arena);
    return w->fd >= 0 ? AG_OK : writer_fail(w, err, errnum, "written");
}

static ag_status write_all(ag_file_writer *w, const unsigned char *bytes, size_t n, ag_err *err)
{
    while (n > 0) {
        ssize_t wrote = ag_fs_calls_used.write(w->fd, bytes, n < LARGEST_WRITE ? n : LARGEST_WRITE);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return writer_fail(w, err, wrote < 0 ? errno : EIO, "written");
        bytes += wrote;
        n -= (size_t)wrote;
    }
    return AG_OK;
}

static ag_status flush(ag_file_writer *w, ag_err *err)
{
    size_t n = w->n_buffered;
    w->n_buffered = 0;
    return write_all(w, w->buffer, n, err);
}

static ag_status still_good(const ag_file_writer *w, ag_err *err)
{
    if (w->failure.code && err) *err = w->failure;
    AG_ASSERT(w->failure.code || w->fd >= 0); /* a writer that was committed or aborted takes no more */
    return w->failure.code;
}

ag_status ag_file_write(ag_file_writer *w, const void *bytes, size_t n, ag_err *err)
{
    AG_TRY(still_good(w, err));
    w->n_written += n;
    if (n > BUFFER_BYTES - w->n_buffered) AG_TRY(flush(w, err));
    if (n >= BUFFER_BYTES) return write_all(w, bytes, n, err);
    if (n) memcpy(w->buffer + w->n_buffered, bytes, n);
    w->n_buffered += n;
    return AG_OK;
}

ag_status ag_file_commit(ag_file_writer *w, ag_err *err)
{
    AG_TRY(still_good(w, err));
    AG_TRY(flush(w, err));
    if (fsync_again(w->fd)) return writer_fail(w, err, errno, "written to disk");
    int failed = ag_fs_calls_used.close(w->fd);
    w->fd = -1; /* closed in every case, see close(2) */
    if (failed && errno != EINTR) return writer_fail(w, err, errno, "written to disk");
    if (ag_fs_calls_used.rename(w->temp_path, w->path)) return writer_fail(w, err, errno, "put in place");
    free(w->temp_path);
    w->temp_path = NULL;
    ag_status status = sync_dir_of(w->path, &w->failure);
    writer_release(w);
    if (status && err) *err = w->failure;
    return status;
}

void ag_file_abort(ag_file_writer *w) { writer_release(w); }

ag_status ag_file_publish(const char *path, const void *bytes, size_t n, ag_err *err)
{
    ag_file_writer w;
    AG_TRY(ag_file_begin(&w, path, err));
    AG_TRY(ag_file_write(&w, bytes, n, err));
    return ag_file_commit(&w, err);
}

/* ---- a directory that appears whole or not at all ------------------------------------------------------------------------- */

ag_status ag_dir_begin(ag_dir_writer *w, const char *path, const char *staging_prefix, ag_err *err)
{
    *w = (ag_dir_writer){0};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    w->path = text_copy(path, n);
    struct stat st;
    if (lstat(w->path, &st) == 0) {
        ag_status status = ag_fail(err, AG_E_EXISTS, "%s exists already; it is not written over", w->path);
        ag_dir_abort(w);
        return status;
    }
    ag_arena arena = {0};
    char *head = ag_path_join(&arena, ag_path_dir(&arena, w->path), staging_prefix);
    int errnum = EEXIST;
    for (int tried = 0; tried < MOST_NAMES_TRIED && errnum == EEXIST; tried++) {
        char *staging = name_with_number(head);
        errnum = ag_fs_calls_used.mkdir(staging, 0777) ? errno : 0;
        if (errnum) free(staging);
        else w->staging = staging;
    }
    ag_status status = errnum ? ag_fail_errno(err, errnum, "a directory for %s cannot be made", w->path) : AG_OK;
    ag_arena_free(&arena);
    if (status) ag_dir_abort(w);
    return status;
}

static ag_status sync_entry(int dir, const char *name, const char *path, int depth, ag_err *err);

/* Every file and directory below the directory `fd` (which it closes), then the directory itself. */
static ag_status sync_tree(int fd, const char *path, int depth, ag_err *err)
{
    DIR *stream = fdopendir(fd);
    if (!stream) {
        int errnum = errno;
        close(fd);
        return ag_fail_errno(err, errnum, "%s cannot be listed", path);
    }
    ag_status status = AG_OK;
    while (!status) {
        errno = 0;
        struct dirent *entry = readdir(stream);
        if (!entry) {
            if (errno) status = ag_fail_errno(err, errno, "%s cannot be listed", path);
            break;
        }
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) status = sync_entry(dirfd(stream), entry->d_name, path, depth, err);
    }
    if (!status && fsync_again(dirfd(stream)) && errno != EINVAL) status = ag_fail_errno(err, errno, "%s cannot be written to disk", path);
    closedir(stream);
    return status;
}

static ag_status sync_entry(int dir, const char *name, const char *path, int depth, ag_err *err)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) return ag_fail_errno(err, errno, "%s/%s cannot be looked at", path, name);
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return AG_OK; /* a link is part of its directory */
    if (depth >= DEEPEST_TREE) return ag_fail(err, AG_E_IO, "%s: directories nest deeper than %d levels", path, DEEPEST_TREE);
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ag_fail_errno(err, errno, "%s/%s cannot be opened", path, name);
    if (S_ISDIR(st.st_mode)) return sync_tree(fd, path, depth + 1, err);
    int failed = fsync_again(fd), errnum = errno;
    close(fd);
    return failed ? ag_fail_errno(err, errnum, "%s/%s cannot be written to disk", path, name) : AG_OK;
}

ag_status ag_dir_commit(ag_dir_writer *w, ag_err *err)
{
    AG_ASSERT(w->staging);
    ag_status status = AG_OK;
    int fd = open_again(w->staging, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0) status = ag_fail_errno(err, errno, "%s cannot be opened", w->staging);
    else status = sync_tree(fd, w->staging, 1, err);
    if (!status && ag_fs_calls_used.rename_new(w->staging, w->path)) {
        if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR)
            status = ag_fail(err, AG_E_EXISTS, "%s exists already; it is not written over", w->path);
        else status = ag_fail_errno(err, errno, "%s cannot be put in place", w->path);
    } else if (!status) {
        free(w->staging);
        w->staging = NULL;
        status = sync_dir_of(w->path, err);
    }
    ag_dir_abort(w);
    return status;
}

void ag_dir_abort(ag_dir_writer *w)
{
    if (w->staging) {
        ag_err ignored; /* what cannot be removed stays; the target is untouched */
        (void)!ag_remove_tree(w->staging, &ignored);
    }
    free(w->path);
    free(w->staging);
    *w = (ag_dir_writer){0};
}

ag_status ag_rename_synced(const char *from, const char *to, ag_err *err)
{
    if (ag_fs_calls_used.rename_new(from, to)) return ag_fail_errno(err, errno, "%s cannot be renamed to %s", from, to);
    return sync_dir_of(to, err);
}
