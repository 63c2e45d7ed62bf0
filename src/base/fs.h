/* Files and folders: safe paths, mapped reading, and publishing that is whole or not at all.
 *
 * Path rules are those of docs/paths.md: an empty path and a component ".." are refused (AG_E_CONFIG), "~" is
 * expanded, what is missing is AG_E_NOT_FOUND, and a file where a directory is needed (or the reverse) is AG_E_IO. */
#ifndef AG_FS_H
#define AG_FS_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- paths ---------------------------------------------------------------------------------------------------- */
/* An existing file or directory as an absolute real path, in the arena. */
AG_MUST_USE ag_status ag_path_existing_file(char **out, const char *path, ag_arena *arena, ag_err *err);
AG_MUST_USE ag_status ag_path_existing_dir(char **out, const char *path, ag_arena *arena, ag_err *err);
/* Checked by the same rules, then created with its parents. */
AG_MUST_USE ag_status ag_path_output_dir(char **out, const char *path, ag_arena *arena, ag_err *err);
/* Checked by the same rules; its parent is made, it itself must not be there (AG_E_EXISTS). */
AG_MUST_USE ag_status ag_path_absent_dir(char **out, const char *path, ag_arena *arena, ag_err *err);
/* A path inside a repository as manifests record it (docs/paths.md): relative, canonical, POSIX. AG_E_CONFIG says what is wrong with it. */
AG_MUST_USE ag_status ag_path_check_repository_relative(const char *path, ag_err *err);
/* Refuses empty paths and "..", expands "~"; does not touch the file system. */
AG_MUST_USE ag_status ag_path_check(char **out, const char *path, ag_arena *arena, ag_err *err);
/* What "~" stands for, said once by the program (from $HOME, which the library does not read) before it starts threads; the
 * text must stay. Without it, or with NULL, it is the home of the user database. */
void ag_path_set_home(const char *home);
char *ag_path_join(ag_arena *arena, const char *dir, const char *name); /* name itself where it is absolute */
const char *ag_path_base(const char *path);                            /* behind the last '/' */
char *ag_path_dir(ag_arena *arena, const char *path);                   /* "." where there is none */

bool ag_path_is_file(const char *path); /* follows links */
bool ag_path_is_dir(const char *path);
/* With its parents; what is there already is AG_OK. A new directory's entry is fsynced in its parent. */
AG_MUST_USE ag_status ag_make_dirs(const char *path, ag_err *err);
/* Names in a directory (without . and ..), sorted bytewise, NULL-terminated, in the arena. */
AG_MUST_USE ag_status ag_dir_list(char ***names, size_t *n, const char *dir, ag_arena *arena, ag_err *err);
AG_MUST_USE ag_status ag_remove_tree(const char *path, ag_err *err); /* follows no link; a missing path is AG_OK */
AG_MUST_USE ag_status ag_disk_free(uint64_t *bytes, const char *path, ag_err *err);

/* ---- reading --------------------------------------------------------------------------------------------------- */
/* A read-only map of a regular file. Stays valid after the file is renamed or unlinked. An empty file maps to n = 0. */
typedef struct {
    const unsigned char *bytes;
    size_t n;
} ag_map;
AG_MUST_USE ag_status ag_map_open(ag_map *map, const char *path, ag_err *err);
AG_MUST_USE ag_status ag_map_open_no_link(ag_map *map, const char *path, ag_err *err); /* a symbolic link is refused */
void ag_map_close(ag_map *map); /* and {0} again */
/* Tells the system that [offset, offset+n) is not needed for now, so that it does not count as resident memory. */
void ag_map_forget(const ag_map *map, size_t offset, size_t n);

/* A whole small file, NUL-terminated, in the arena; larger than max_bytes is refused. */
AG_MUST_USE ag_status ag_file_read(char **text, size_t *n, const char *path, size_t max_bytes, ag_arena *arena, ag_err *err);

/* ---- writing --------------------------------------------------------------------------------------------------- */
/* A file that appears whole or not at all: bytes go to "<path>.tmp-<pid>-<n>" beside it; commit flushes, fsyncs, renames over
 * the target and fsyncs the directory; abort (or a failed commit) leaves the old file as it was and no temporary.
 *
 *     ag_file_writer w;
 *     AG_TRY(ag_file_begin(&w, path, err));
 *     AG_TRY(ag_file_write(&w, bytes, n, err));   // a failed write aborts by itself
 *     AG_TRY(ag_file_commit(&w, err));
 *
 * Writing is buffered and keeps count of the bytes; a failure sticks, and commit reports it. Only a failed fsync of the
 * directory, commit's last step, is reported with the new file in place (whole, but a power cut may bring the old one back).
 * A killed process leaves its temporary. */
typedef struct {
    int fd;
    char *path, *temp_path;
    unsigned char *buffer;
    size_t n_buffered;
    uint64_t n_written; /* bytes so far, buffered ones included */
    ag_err failure;     /* the first one; code AG_OK while all is well */
} ag_file_writer;
AG_MUST_USE ag_status ag_file_begin(ag_file_writer *w, const char *path, ag_err *err);
AG_MUST_USE ag_status ag_file_write(ag_file_writer *w, const void *bytes, size_t n, ag_err *err);
AG_MUST_USE ag_status ag_file_commit(ag_file_writer *w, ag_err *err);
void ag_file_abort(ag_file_writer *w); /* after commit or a failure: does nothing */
/* begin + write + commit. */
AG_MUST_USE ag_status ag_file_publish(const char *path, const void *bytes, size_t n, ag_err *err);

/* A directory that appears whole or not at all: fill the staging directory (same parent's file system, name
 * "<prefix><pid>-<n>"), then commit fsyncs what is in it and renames it to the target, which must not exist (renameat2
 * RENAME_NOREPLACE). abort, or a failed commit, removes the staging tree; both free the writer. After commit or abort, abort
 * does nothing. The parent directory must be there. */
typedef struct {
    char *path, *staging; /* staging is where the caller writes */
} ag_dir_writer;
AG_MUST_USE ag_status ag_dir_begin(ag_dir_writer *w, const char *path, const char *staging_prefix, ag_err *err);
AG_MUST_USE ag_status ag_dir_commit(ag_dir_writer *w, ag_err *err);
void ag_dir_abort(ag_dir_writer *w);

/* Renames a file or directory to a name that is free, and fsyncs the directory that both lie in. */
AG_MUST_USE ag_status ag_rename_synced(const char *from, const char *to, ag_err *err);

/* An exclusive lock on "<dir>/<name>" for this process (flock on an open file; gone when the process ends, however it
 * ends). AG_E_BUSY where another process has it; the sentence names that process when the file tells. */
typedef struct {
    int fd;
} ag_lock;
AG_MUST_USE ag_status ag_lock_take(ag_lock *lock, const char *dir, const char *name, ag_err *err);
void ag_lock_release(ag_lock *lock);

/* ---- faults, for tests ------------------------------------------------------------------------------------------- */
/* The writers and ag_make_dirs reach the system through this table. A test replaces members by functions that fail (or end
 * the process) at the n-th call, and proves for every n that the old file or the new file stands there, whole:
 *
 *     ag_fs_calls_used.fsync = failing_fsync; … ; ag_fs_calls_used = ag_fs_system_calls;
 *
 * Cleaning up after a failure does not go through it. Nothing but tests may write to it. */
typedef struct {
    int (*open)(const char *path, int flags, unsigned mode);
    ssize_t (*write)(int fd, const void *bytes, size_t n);
    int (*fsync)(int fd);
    int (*close)(int fd);
    int (*rename)(const char *from, const char *to);     /* replaces `to` */
    int (*rename_new)(const char *from, const char *to); /* EEXIST where `to` is there */
    int (*mkdir)(const char *path, unsigned mode);
    int (*unlink_at)(int dir, const char *name, int flags); /* of cleanups that are asked for, not of those after a failure */
} ag_fs_calls;
extern const ag_fs_calls ag_fs_system_calls;
extern ag_fs_calls ag_fs_calls_used;

#endif
