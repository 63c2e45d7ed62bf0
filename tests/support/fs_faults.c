#define _GNU_SOURCE
#include "support/fs_faults.h"

#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

static int fails_at, n_calls;
static bool deadly;

static int fails(void)
{
    if (++n_calls != fails_at) return 0;
    if (deadly) _exit(FS_FAULTS_DEATH);
    errno = EIO;
    return 1;
}

static int faulty_open(const char *path, int flags, unsigned mode)
{
    return fails() ? -1 : ag_fs_system_calls.open(path, flags, mode);
}
static ssize_t faulty_write(int fd, const void *bytes, size_t n)
{
    return fails() ? -1 : ag_fs_system_calls.write(fd, bytes, n);
}
/* A process's end loses nothing that the system has: the sync itself would only take time. */
static int faulty_fsync(int fd) { return fails() || fcntl(fd, F_GETFD) < 0 ? -1 : 0; }
static int faulty_rename(const char *from, const char *to) { return fails() ? -1 : ag_fs_system_calls.rename(from, to); }
static int faulty_rename_new(const char *from, const char *to)
{
    return fails() ? -1 : ag_fs_system_calls.rename_new(from, to);
}
static int faulty_mkdir(const char *path, unsigned mode) { return fails() ? -1 : ag_fs_system_calls.mkdir(path, mode); }
static int faulty_unlink_at(int dir, const char *name, int flags)
{
    return fails() ? -1 : ag_fs_system_calls.unlink_at(dir, name, flags);
}

static int faulty_close(int fd)
{
    const int failed = fails(), closed = ag_fs_system_calls.close(fd); /* a failed close has closed, too */
    if (failed) errno = EIO;
    return failed ? -1 : closed;
}

void fs_faults_begin(int at)
{
    fails_at = at;
    n_calls = 0;
    deadly = false;
    ag_fs_calls_used = (ag_fs_calls){faulty_open,   faulty_write,      faulty_fsync, faulty_close,
                                     faulty_rename, faulty_rename_new, faulty_mkdir, faulty_unlink_at};
}

void fs_faults_begin_deadly(int at)
{
    fs_faults_begin(at);
    deadly = true;
}

int fs_faults_end(void)
{
    ag_fs_calls_used = ag_fs_system_calls;
    return n_calls;
}
