#define _GNU_SOURCE
#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- paths ---------------------------------------------------------------------------------------------------------------- */

static const char *home_of_user; /* what the program said; the user database's home where it said nothing */

void ag_path_set_home(const char *home) { home_of_user = home; }

/* The home directory of the n bytes `user`, or of this process's user where n is 0; NULL where there is none. */
static char *home_find(const char *user, size_t n, ag_arena *arena)
{
    if (n == 0 && home_of_user && *home_of_user) return ag_arena_strdup(arena, home_of_user);
    enum { ENTRY_BYTES = 16384 };
    char *text = ag_arena_alloc(arena, ENTRY_BYTES);
    struct passwd entry, *found = NULL;
    int failed = n ? getpwnam_r(ag_arena_strndup(arena, user, n), &entry, text, ENTRY_BYTES, &found)
                   : getpwuid_r(getuid(), &entry, text, ENTRY_BYTES, &found);
    return !failed && found && found->pw_dir && *found->pw_dir ? ag_arena_strdup(arena, found->pw_dir) : NULL;
}

static bool is_blank(const char *text) { return text[strspn(text, " \t\n\r\v\f")] == 0; }

static bool has_dotdot(const char *path)
{
    for (const char *part = path; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == 0)) return true;
    return false;
}

ag_status ag_path_check(char **out, const char *path, ag_arena *arena, ag_err *err)
{
    *out = NULL;
    if (!path || is_blank(path)) return ag_fail(err, AG_E_CONFIG, "the path is empty; give the path of a file or a directory");
    if (has_dotdot(path))
        return ag_fail(err, AG_E_CONFIG, "%s: a path may not hold the component '..'; write the path without it", path);
    if (path[0] != '~') {
        *out = ag_arena_strdup(arena, path);
        return AG_OK;
    }
    size_t n_user = strcspn(path + 1, "/");
    const char *home = home_find(path + 1, n_user, arena);
    if (!home)
        return ag_fail(err, AG_E_NOT_FOUND, "%s: '%.*s' names no home directory; write the path in full", path, (int)(n_user + 1), path);
    *out = ag_arena_printf(arena, "%s%s", home, path + 1 + n_user);
    return AG_OK;
}

static ag_status existing_path(char **out, struct stat *st, const char *path, ag_arena *arena, ag_err *err)
{
    char *checked, real[PATH_MAX];
    AG_TRY(ag_path_check(&checked, path, arena, err));
    if (!realpath(checked, real) || stat(real, st)) {
        if (errno == ENOENT || errno == ENOTDIR) return ag_fail(err, AG_E_NOT_FOUND, "%s does not exist", path);
        return ag_fail_errno(err, errno, "%s cannot be used", path);
    }
    *out = ag_arena_strdup(arena, real);
    return AG_OK;
}

ag_status ag_path_existing_file(char **out, const char *path, ag_arena *arena, ag_err *err)
{
    struct stat st;
    AG_TRY(existing_path(out, &st, path, arena, err));
    if (S_ISREG(st.st_mode)) return AG_OK;
    return ag_fail(err, AG_E_IO, "%s is %s; a file was expected", path, S_ISDIR(st.st_mode) ? "a directory" : "no regular file");
}

ag_status ag_path_existing_dir(char **out, const char *path, ag_arena *arena, ag_err *err)
{
    struct stat st;
    AG_TRY(existing_path(out, &st, path, arena, err));
    if (S_ISDIR(st.st_mode)) return AG_OK;
    return ag_fail(err, AG_E_IO, "%s is a file; a directory was expected", path);
}

ag_status ag_path_output_dir(char **out, const char *path, ag_arena *arena, ag_err *err)
{
    char *checked;
    AG_TRY(ag_path_check(&checked, path, arena, err));
    AG_TRY(ag_make_dirs(checked, err));
    return ag_path_existing_dir(out, checked, arena, err);
}

ag_status ag_path_absent_dir(char **out, const char *path, ag_arena *arena, ag_err *err)
{
    struct stat st;
    char *checked, *parent;
    AG_TRY(ag_path_check(&checked, path, arena, err));
    size_t n = strlen(checked);
    while (n > 1 && checked[n - 1] == '/') checked[--n] = 0;
    const char *name = ag_path_base(checked);
    if (strcmp(name, ".") == 0 || *name == 0)
        return ag_fail(err, AG_E_EXISTS, "%s: is a directory that exists; name a new one", path);
    if (lstat(checked, &st) == 0)
        return ag_fail(err, AG_E_EXISTS, "%s exists already; it is not written over, give another place or remove it first", path);
    AG_TRY(ag_path_output_dir(&parent, ag_path_dir(arena, checked), arena, err));
    *out = ag_path_join(arena, parent, name);
    return AG_OK;
}

static const char *fault_of_relative(const char *path)
{
    if (!path || is_blank(path)) return "is blank";
    for (const char *c = path; *c; c++) {
        if ((unsigned char)*c < 0x20) return "holds a control character";
        if (*c == '\\') return "holds a backslash";
    }
    const size_t n = strlen(path);
    if (strchr(" \t", path[0]) || strchr(" \t", path[n - 1])) return "has white space around it";
    if (path[0] == '/') return "is absolute";
    if (((path[0] | 0x20) >= 'a' && (path[0] | 0x20) <= 'z') && path[1] == ':') return "has a drive";
    if (has_dotdot(path)) return "leaves its repository with '..'";
    for (const char *part = path; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
        if (part[0] == 0 || part[0] == '/' || (part[0] == '.' && (part[1] == '/' || part[1] == 0))) return "is not in its shortest form";
    return NULL;
}

ag_status ag_path_check_repository_relative(const char *path, ag_err *err)
{
    const char *fault = fault_of_relative(path);
    if (!fault) return AG_OK;
    return ag_fail(err, AG_E_CONFIG, "the path '%s' %s; give it relative to its repository, as in data/rows.jsonl", path ? path : "", fault);
}

char *ag_path_join(ag_arena *arena, const char *dir, const char *name)
{
    if (name[0] == '/' || dir[0] == 0) return ag_arena_strdup(arena, name);
    return ag_arena_printf(arena, "%s%s%s", dir, dir[strlen(dir) - 1] == '/' ? "" : "/", name);
}

const char *ag_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *ag_path_dir(ag_arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return ag_arena_strdup(arena, ".");
    while (slash > path && slash[-1] == '/') slash--;
    return slash == path ? ag_arena_strdup(arena, "/") : ag_arena_strndup(arena, path, (size_t)(slash - path));
}

bool ag_path_is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool ag_path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- directories ---------------------------------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool is_dot_or_dotdot(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

ag_status ag_dir_list(char ***names, size_t *n, const char *dir, ag_arena *arena, ag_err *err)
{
    *names = NULL;
    *n = 0;
    DIR *stream = opendir(dir);
    if (!stream) return ag_fail_errno(err, errno, "%s cannot be listed", dir);
    char **list = NULL;
    size_t room = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(stream);
        if (!entry) break;
        if (is_dot_or_dotdot(entry->d_name)) continue;
        if (*n == room) {
            room = room ? 2 * room : 64;
            list = realloc(list, room * sizeof *list);
            if (!list) ag_out_of_memory(room * sizeof *list);
        }
        list[(*n)++] = ag_arena_strdup(arena, entry->d_name);
    }
    int errnum = errno;
    closedir(stream);
    if (!errnum) {
        *names = ag_arena_array(arena, *n + 1, sizeof **names);
        if (*n) {
            qsort(list, *n, sizeof *list, compare_names);
            memcpy(*names, list, *n * sizeof *list);
        }
    }
    free(list);
    if (errnum) {
        *n = 0;
        return ag_fail_errno(err, errnum, "%s cannot be listed", dir);
    }
    return AG_OK;
}

enum { DEEPEST_TREE = 256 }; /* one open descriptor a level */

/* Empties the directory `fd` (which it closes). Works on descriptors, so that nobody can put a link in the way. */
static ag_status empty_dir(int fd, const char *path, int depth, ag_err *err)
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
        if (is_dot_or_dotdot(entry->d_name)) continue;
        if (unlinkat(dirfd(stream), entry->d_name, 0) == 0 || errno == ENOENT) continue;
        if (errno != EISDIR && errno != EPERM) {
            status = ag_fail_errno(err, errno, "%s/%s cannot be removed", path, entry->d_name);
            break;
        }
        int child = depth < DEEPEST_TREE ? openat(dirfd(stream), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (child < 0) {
            status = depth < DEEPEST_TREE
                         ? ag_fail_errno(err, errno, "%s/%s cannot be removed", path, entry->d_name)
                         : ag_fail(err, AG_E_IO, "%s: directories nest deeper than %d levels; remove them by hand", path, DEEPEST_TREE);
            break;
        }
        status = empty_dir(child, path, depth + 1, err);
        if (!status && unlinkat(dirfd(stream), entry->d_name, AT_REMOVEDIR))
            status = ag_fail_errno(err, errno, "%s/%s cannot be removed", path, entry->d_name);
    }
    closedir(stream);
    return status;
}

ag_status ag_remove_tree(const char *path, ag_err *err)
{
    if (unlink(path) == 0 || errno == ENOENT) return AG_OK;
    if (errno != EISDIR && errno != EPERM) return ag_fail_errno(err, errno, "%s cannot be removed", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return ag_fail_errno(err, errno, "%s cannot be removed", path);
    AG_TRY(empty_dir(fd, path, 1, err));
    if (rmdir(path)) return ag_fail_errno(err, errno, "%s cannot be removed", path);
    return AG_OK;
}

ag_status ag_disk_free(uint64_t *bytes, const char *path, ag_err *err)
{
    struct statvfs st;
    *bytes = 0;
    if (statvfs(path, &st)) return ag_fail_errno(err, errno, "the free space at %s cannot be asked for", path);
    *bytes = (uint64_t)st.f_bavail * st.f_frsize;
    return AG_OK;
}

/* ---- reading -------------------------------------------------------------------------------------------------------------- */

/* A descriptor of a regular file and its size. */
static ag_status open_regular(int *fd, size_t *n, const char *path, int flags, ag_err *err)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags); /* a FIFO must not make us wait */
    if (*fd < 0 && errno == ELOOP && flags) return ag_fail(err, AG_E_IO, "%s is a symbolic link; a file itself was expected", path);
    if (*fd < 0) return ag_fail_errno(err, errno, "%s cannot be opened", path);
    ag_status status = AG_OK;
    if (fstat(*fd, &st)) status = ag_fail_errno(err, errno, "%s cannot be looked at", path);
    else if (!S_ISREG(st.st_mode))
        status = ag_fail(err, AG_E_IO, "%s is %s; a regular file was expected", path, S_ISDIR(st.st_mode) ? "a directory" : "no file");
    if (status) close(*fd);
    else *n = (size_t)st.st_size;
    return status;
}

static ag_status map_open(ag_map *map, const char *path, int flags, ag_err *err)
{
    *map = (ag_map){0};
    int fd;
    size_t n;
    AG_TRY(open_regular(&fd, &n, path, flags, err));
    void *bytes = n ? mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    int errnum = errno;
    close(fd);
    if (bytes == MAP_FAILED) return ag_fail_errno(err, errnum, "%s cannot be mapped (%zu bytes)", path, n);
    *map = (ag_map){bytes, n};
    return AG_OK;
}

ag_status ag_map_open(ag_map *map, const char *path, ag_err *err) { return map_open(map, path, 0, err); }

ag_status ag_map_open_no_link(ag_map *map, const char *path, ag_err *err) { return map_open(map, path, O_NOFOLLOW, err); }

void ag_map_close(ag_map *map)
{
    if (map->bytes) munmap((void *)(uintptr_t)map->bytes, map->n);
    *map = (ag_map){0};
}

void ag_map_forget(const ag_map *map, size_t offset, size_t n)
{
    if (offset > map->n) return;
    if (n > map->n - offset) n = map->n - offset;
    /* Only pages that lie whole inside: the neighbours' bytes stay. The last page of the file counts as whole. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = (offset + page - 1) / page * page;
    size_t end = offset + n == map->n ? map->n : (offset + n) / page * page;
    if (begin < end) (void)madvise((void *)((uintptr_t)map->bytes + begin), end - begin, MADV_DONTNEED);
}

ag_status ag_file_read(char **text, size_t *n, const char *path, size_t max_bytes, ag_arena *arena, ag_err *err)
{
    *text = NULL;
    *n = 0;
    int fd;
    size_t size;
    AG_TRY(open_regular(&fd, &size, path, 0, err));
    if (size > max_bytes) {
        close(fd);
        return ag_fail(err, AG_E_FORMAT, "%s has %zu bytes; at most %zu are read of such a file", path, size, max_bytes);
    }
    char *bytes = ag_arena_alloc(arena, size + 1);
    size_t at = 0;
    ssize_t got = 1;
    while (at < size && got != 0) {
        got = read(fd, bytes + at, size - at);
        if (got < 0 && errno != EINTR) break;
        if (got > 0) at += (size_t)got;
    }
    int errnum = errno;
    close(fd);
    if (got < 0 && at < size) return ag_fail_errno(err, errnum, "%s cannot be read", path);
    bytes[at] = 0;
    *text = bytes;
    *n = at;
    return AG_OK;
}

/* ---- locks ---------------------------------------------------------------------------------------------------------------- */

ag_status ag_lock_take(ag_lock *lock, const char *dir, const char *name, ag_err *err)
{
    ag_arena arena = {0};
    lock->fd = -1;
    char *path = ag_path_join(&arena, dir, name);
    ag_status status = AG_OK;
    char text[32] = "";
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) {
        status = ag_fail_errno(err, errno, "the lock %s cannot be opened", path);
    } else if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        /* The number is only for the sentence below; the lock is what counts. */
        int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
        if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n) (void)ftruncate(fd, 0);
        lock->fd = fd;
    } else if (errno == EWOULDBLOCK) {
        long pid = pread(fd, text, sizeof text - 1, 0) > 0 ? strtol(text, NULL, 10) : 0;
        char who[64] = "another process";
        if (pid > 0) snprintf(who, sizeof who, "process %ld", pid);
        status = ag_fail(err, AG_E_BUSY, "%s is in use by %s; wait until it has ended, or stop it", dir, who);
    } else {
        status = ag_fail_errno(err, errno, "%s cannot be locked", path);
    }
    if (status && fd >= 0) close(fd);
    ag_arena_free(&arena);
    return status;
}

void ag_lock_release(ag_lock *lock)
{
    if (lock->fd >= 0) close(lock->fd);
    lock->fd = -1;
}
