#define _GNU_SOURCE
#include "runs/run_tree.h"

#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { DEEPEST = 128, OPEN_DIR = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

typedef struct {
    mode_t mode;
    uint64_t device, inode, mount, bytes;
    bool has_mount; /* an older kernel does not tell it */
} facts;

/* ---- looking ----------------------------------------------------------------------------------------------------- */
/* An entry itself, never what it points to; name "" is the descriptor's own. False leaves errno. */
static bool look(facts *f, int dir, const char *name)
{
    struct statx st;
    const int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | (*name ? 0 : AT_EMPTY_PATH);
    if (statx(dir, name, flags, STATX_BASIC_STATS | STATX_MNT_ID, &st)) return false;
    *f = (facts){.mode = st.stx_mode,
                 .device = makedev(st.stx_dev_major, st.stx_dev_minor),
                 .inode = st.stx_ino,
                 .mount = st.stx_mnt_id,
                 .bytes = st.stx_size,
                 .has_mount = st.stx_mask & STATX_MNT_ID};
    return true;
}

/* The mount that an open folder lies on, where statx could not say. */
static bool mount_of(uint64_t *mount, int fd)
{
    char path[64], line[128];
    bool found = false;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    while (!found && fgets(line, sizeof line, file)) {
        unsigned long long number;
        found = sscanf(line, "mnt_id: %llu", &number) == 1;
        if (found) *mount = number;
    }
    fclose(file);
    return found;
}

static ag_status identify(facts *f, int fd, const char *name, ag_err *err)
{
    if (!look(f, fd, "")) return ag_fail_errno(err, errno, "%s cannot be looked at", name);
    if (f->has_mount || mount_of(&f->mount, fd)) return AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "%s: this system does not tell mount points apart (no statx, no /proc); nothing is deleted here", name);
}

const char *ag_tree_kind_text(ag_tree_kind kind)
{
    static const char *const texts[] = {[AG_TREE_DIR] = "directory", [AG_TREE_LINK] = "symlink", [AG_TREE_MOUNT] = "mount",
                                        [AG_TREE_OTHER] = "file", [AG_TREE_GONE] = "missing"};
    return texts[kind];
}

/* Takes `fd` over; it is closed with the stream, or here where there is none. */
static ag_status open_listing(DIR **stream, int fd, const char *shown, ag_err *err)
{
    *stream = fdopendir(fd);
    if (*stream) return AG_OK;
    const int errnum = errno;
    close(fd);
    return ag_fail_errno(err, errnum, "%s cannot be listed", shown);
}

/* The next name but . and ..; NULL behind the last. It stays until the next call. */
static ag_status next_entry(const char **name, DIR *stream, const char *shown, ag_err *err)
{
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (!entry && errno) return ag_fail_errno(err, errno, "%s cannot be listed", shown);
        *name = entry ? entry->d_name : NULL;
        if (!entry || (strcmp(*name, ".") != 0 && strcmp(*name, "..") != 0)) return AG_OK;
    }
}

/* Adds the sizes below the folder `fd` (which it closes); *has_mount where something below lies on another mount than `mount`.
 */
static ag_status measure(uint64_t *bytes, bool *has_mount, int fd, uint64_t mount, const char *shown, int depth, ag_err *err)
{
    DIR *stream;
    const char *name;
    AG_TRY(open_listing(&stream, fd, shown, err));
    ag_status status = AG_OK;
    while (!status && !(status = next_entry(&name, stream, shown, err)) && name) {
        facts f;
        if (!look(&f, dirfd(stream), name)) {
            if (errno != ENOENT) status = ag_fail_errno(err, errno, "%s/%s cannot be looked at", shown, name);
            continue;
        }
        if (f.has_mount && f.mount != mount) *has_mount = true;
        if (!S_ISDIR(f.mode)) {
            *bytes += f.bytes;
            continue;
        }
        const int child = openat(dirfd(stream), name, OPEN_DIR);
        if (child < 0) {
            if (errno != ENOENT) status = ag_fail_errno(err, errno, "%s/%s cannot be listed", shown, name);
            continue;
        }
        if (depth == DEEPEST)
            status = ag_fail(err, AG_E_IO, "%s: folders nest deeper than %d levels; remove them by hand", shown, DEEPEST);
        if (!status) status = identify(&f, child, shown, err);
        if (!status && f.mount != mount) *has_mount = true;
        if (status || *has_mount) close(child);
        else status = measure(bytes, has_mount, child, mount, shown, depth + 1, err);
    }
    closedir(stream);
    return status;
}

/* Opens the folder "name", known by its facts, as a descriptor on the mount of `dir`. */
static ag_status open_entry(int *fd, facts *f, bool *is_mount, int dir, const char *name, ag_err *err)
{
    facts parent;
    AG_TRY(identify(&parent, dir, name, err));
    *fd = openat(dir, name, OPEN_DIR);
    if (*fd < 0) return ag_fail_errno(err, errno, "%s cannot be opened", name);
    const ag_status status = identify(f, *fd, name, err);
    if (status) close(*fd);
    *is_mount = !status && f->mount != parent.mount;
    return status;
}

ag_status ag_tree_look(ag_tree_entry *out, int dir, const char *name, ag_err *err)
{
    facts f;
    int fd;
    bool is_mount;
    *out = (ag_tree_entry){.kind = AG_TREE_GONE};
    if (!look(&f, dir, name)) return errno == ENOENT ? AG_OK : ag_fail_errno(err, errno, "%s cannot be looked at", name);
    *out = (ag_tree_entry){.kind = S_ISLNK(f.mode)   ? AG_TREE_LINK
                                   : S_ISDIR(f.mode) ? AG_TREE_DIR
                                                     : AG_TREE_OTHER,
                           .device = f.device,
                           .inode = f.inode,
                           .bytes = f.bytes};
    if (out->kind != AG_TREE_DIR) return AG_OK;
    out->bytes = 0;
    AG_TRY(open_entry(&fd, &f, &is_mount, dir, name, err));
    out->device = f.device;
    out->inode = f.inode;
    if (is_mount) close(fd);
    else AG_TRY(measure(&out->bytes, &is_mount, fd, f.mount, name, 1, err));
    if (is_mount) out->kind = AG_TREE_MOUNT;
    return AG_OK;
}

ag_status ag_tree_open(int *fd, const char *path, ag_err *err)
{
    AG_ASSERT(path[0] == '/');
    *fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) return ag_fail_errno(err, errno, "/ cannot be opened");
    for (const char *part = path + 1; *part;) {
        char name[NAME_MAX + 1];
        const size_t n = strcspn(part, "/");
        const bool is_last = part[n] == 0;
        const int length = (int)(part + n - path);
        if (n > NAME_MAX) {
            close(*fd);
            return ag_fail(err, AG_E_CONFIG, "%.*s: the name is too long", length, path);
        }
        memcpy(name, part, n);
        name[n] = 0;
        const int next = openat(*fd, name, is_last ? OPEN_DIR : O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), errnum = errno;
        facts f;
        const bool is_link = next < 0 && look(&f, *fd, name) && S_ISLNK(f.mode);
        close(*fd);
        *fd = next;
        if (is_link)
            return ag_fail(err, AG_E_IO, "%.*s is a symbolic link; nothing is deleted through links, name the folder itself",
                           length, path);
        if (next < 0) return ag_fail_errno(err, errnum, "%.*s cannot be opened", length, path);
        part += n;
        part += strspn(part, "/");
    }
    return AG_OK;
}

/* ---- removing ---------------------------------------------------------------------------------------------------- */
static int unlink_again(int dir, const char *name, int flags)
{
    int failed;
    do failed = ag_fs_calls_used.unlink_at(dir, name, flags);
    while (failed && errno == EINTR);
    return failed && errno == ENOENT ? 0 : failed;
}

/* Empties the folder `fd` (which it closes). */
static ag_status empty(int fd, uint64_t mount, const char *shown, int depth, ag_err *err)
{
    DIR *stream;
    const char *name;
    AG_TRY(open_listing(&stream, fd, shown, err));
    ag_status status = AG_OK;
    while (!status && !(status = next_entry(&name, stream, shown, err)) && name) {
        facts f;
        /* What is no folder goes by its name in this very folder: a link goes, not what it points to. */
        if (unlink_again(dirfd(stream), name, 0) == 0) continue;
        if (errno != EISDIR && errno != EPERM) {
            status = ag_fail_errno(err, errno, "%s/%s cannot be removed", shown, name);
            break;
        }
        const int child = openat(dirfd(stream), name, OPEN_DIR);
        if (child < 0) {
            status = ag_fail_errno(err, errno, "%s/%s cannot be removed", shown, name);
            break;
        }
        status = identify(&f, child, shown, err);
        if (!status && f.mount != mount)
            status =
                ag_fail(err, AG_E_IO, "%s/%s became a mount after planning; unmount it and run the cleanup again", shown, name);
        if (!status && depth == DEEPEST)
            status = ag_fail(err, AG_E_IO, "%s: folders nest deeper than %d levels; remove them by hand", shown, DEEPEST);
        if (status) close(child);
        else status = empty(child, mount, shown, depth + 1, err);
        if (!status && unlink_again(dirfd(stream), name, AT_REMOVEDIR))
            status = ag_fail_errno(err, errno, "%s/%s cannot be removed", shown, name);
    }
    closedir(stream);
    return status;
}

static ag_status changed(const ag_tree_entry *now, ag_err *err)
{
    static const char *const kinds[] = {[AG_TREE_DIR] = "another directory",
                                        [AG_TREE_LINK] = "a symlink",
                                        [AG_TREE_MOUNT] = "a mount",
                                        [AG_TREE_OTHER] = "a file",
                                        [AG_TREE_GONE] = "missing"};
    return ag_fail(err, AG_E_IO, "became %s after planning; look at it and run the cleanup again", kinds[now->kind]);
}

ag_status ag_tree_empty(int dir, const char *name, const ag_tree_entry *planned, const char *first, ag_err *err)
{
    ag_tree_entry now;
    facts f;
    int fd;
    bool is_mount;
    AG_TRY(ag_tree_look(&now, dir, name, err));
    if (now.kind != AG_TREE_DIR || now.device != planned->device || now.inode != planned->inode) return changed(&now, err);
    AG_TRY(open_entry(&fd, &f, &is_mount, dir, name, err));
    ag_status status = AG_OK;
    if (is_mount || f.device != planned->device || f.inode != planned->inode) /* since the look just now */
        status = changed(&(ag_tree_entry){.kind = is_mount ? AG_TREE_MOUNT : AG_TREE_DIR}, err);
    else if (unlink_again(fd, first, 0) && errno != EISDIR && errno != EPERM)
        status = ag_fail_errno(err, errno, "%s/%s cannot be removed", name, first);
    if (!status) status = ag_tree_sync(fd, name, err);
    if (!status) return empty(fd, f.mount, name, 1, err);
    close(fd);
    return status;
}

ag_status ag_tree_drop(int dir, const char *name, const ag_tree_entry *planned, ag_err *err)
{
    facts now;
    if (!look(&now, dir, name) || now.inode != planned->inode || now.device != planned->device)
        return ag_fail(err, AG_E_IO,
                       "was emptied, but another entry has taken its name meanwhile; look at it and run the cleanup again");
    /* Only an empty folder can go here. */
    return unlink_again(dir, name, AT_REMOVEDIR) ? ag_fail_errno(err, errno, "cannot be removed") : AG_OK;
}

ag_status ag_tree_sync(int dir, const char *shown, ag_err *err)
{
    if (ag_fs_calls_used.fsync(dir) == 0 || errno == EINVAL) return AG_OK;
    return ag_fail_errno(err, errno, "%s cannot be written to disk", shown);
}
