#define _GNU_SOURCE
#include "train/run_scan.h"

#include "adapter/peft_io.h"
#include "base/fs.h"
#include "base/str.h"
#include "train/quarantine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 128 }; /* one open descriptor a level */

int64_t ag_checkpoint_number(const char *name)
{
    static const char prefix[] = "checkpoint-";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return -1;
    const char *digits = name + sizeof prefix - 1;
    int64_t step = 0;
    if (!*digits) return -1;
    for (const char *c = digits; *c; c++) {
        if (*c < '0' || *c > '9' || step > (INT64_MAX - 9) / 10) return -1;
        step = step * 10 + (*c - '0');
    }
    return step;
}

bool ag_is_unsafe_weights(const char *name)
{
    return strcmp(name, "pytorch_model.bin") == 0 || strcmp(name, AG_ADAPTER_BIN_FILE) == 0 || ag_str_ends(name, ".ckpt");
}

/* ---- weights that could hold code -------------------------------------------------------------------------------- */
static bool is_missing(int errnum) { return errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP; }

/* The first such file below the directory `fd` (which it closes); links to directories are not followed. `path` is relative.
 * What is in a run's quarantine is loaded by nobody. */
static ag_status find_unsafe(const char **found, int fd, const char *shown, const char *path, int depth, ag_arena *arena,
                             ag_err *err)
{
    DIR *stream = fdopendir(fd);
    if (!stream) {
        const int errnum = errno;
        close(fd);
        return ag_fail_errno(err, errnum, "%s/%s cannot be listed", shown, path);
    }
    ag_status status = AG_OK;
    while (!status && !*found) {
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (!entry && errno) status = ag_fail_errno(err, errno, "%s/%s cannot be listed", shown, path);
        if (!entry) break;
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (depth == 0 && strcmp(name, AG_QUARANTINE_DIR) == 0) continue;
        struct stat st;
        const bool is_unsafe = ag_is_unsafe_weights(name);
        if (!is_unsafe && entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN) continue;
        if (fstatat(dirfd(stream), name, &st, AT_SYMLINK_NOFOLLOW)) {
            if (!is_missing(errno)) status = ag_fail_errno(err, errno, "%s/%s%s cannot be looked at", shown, path, name);
            continue;
        }
        if (!S_ISDIR(st.st_mode)) {
            if (is_unsafe) *found = ag_arena_printf(arena, "%s%s", path, name);
            continue;
        }
        const char *below = ag_arena_printf(arena, "%s%s/", path, name);
        const int child = openat(dirfd(stream), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child < 0) {
            if (!is_missing(errno)) status = ag_fail_errno(err, errno, "%s/%s cannot be listed", shown, below);
        } else if (depth == DEEPEST) {
            close(child);
            status = ag_fail(err, AG_E_IO, "%s/%s: folders nest deeper than %d levels; move them away", shown, below, DEEPEST);
        } else {
            status = find_unsafe(found, child, shown, below, depth + 1, arena, err);
        }
    }
    closedir(stream);
    return status;
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */
/* Whether there is a regular file, links followed. What cannot be known is an error, not a no. */
static ag_status has_file(bool *yes, int dir, const char *shown, const char *name, ag_err *err)
{
    struct stat st;
    *yes = false;
    if (fstatat(dir, name, &st, 0) == 0) *yes = S_ISREG(st.st_mode);
    else if (!is_missing(errno)) return ag_fail_errno(err, errno, "%s/%s cannot be looked at", shown, name);
    return AG_OK;
}

static ag_status has_adapter(bool *config, bool *weights, int dir, const char *shown, bool allow_unsafe, ag_err *err)
{
    AG_TRY(has_file(config, dir, shown, AG_PEFT_CONFIG_FILE, err));
    AG_TRY(has_file(weights, dir, shown, AG_PEFT_WEIGHTS_FILE, err));
    return allow_unsafe && !*weights ? has_file(weights, dir, shown, AG_ADAPTER_BIN_FILE, err) : AG_OK;
}

/* Takes `fd`. */
static ag_status look_at(ag_checkpoint_entry *entry, int fd, const char *shown, bool allow_unsafe, ag_arena *arena, ag_err *err)
{
    bool state = false, config = false, weights = false;
    const char *unsafe = NULL;
    ag_status status = has_file(&state, fd, shown, "trainer_state.json", err);
    if (!status) status = has_adapter(&config, &weights, fd, shown, allow_unsafe, err);
    if (status || allow_unsafe) close(fd);
    else status = find_unsafe(&unsafe, fd, shown, "", 0, arena, err);
    entry->lacks = (state ? 0u : AG_LACKS_STATE) | (config ? 0u : AG_LACKS_CONFIG) | (weights ? 0u : AG_LACKS_WEIGHTS) |
                   (unsafe ? AG_HAS_UNSAFE : 0u);
    return status;
}

/* An entry of the run that has a checkpoint's name; *is_dir false: it is no directory. */
static ag_status look_at_entry(ag_checkpoint_entry *entry, bool *is_dir, int run, const char *run_dir, bool allow_unsafe,
                               ag_arena *arena, ag_err *err)
{
    struct stat st;
    *is_dir = false;
    const char *shown = ag_path_join(arena, run_dir, entry->name);
    if (fstatat(run, entry->name, &st, AT_SYMLINK_NOFOLLOW) == 0) entry->is_link = S_ISLNK(st.st_mode);
    const int fd = openat(run, entry->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return is_missing(errno) ? AG_OK : ag_fail_errno(err, errno, "%s cannot be listed", shown);
    *is_dir = true;
    return look_at(entry, fd, shown, allow_unsafe, arena, err);
}

static int by_step(const void *a, const void *b)
{
    const ag_checkpoint_entry *x = a, *y = b;
    return x->step != y->step ? (x->step > y->step) - (x->step < y->step) : strcmp(x->name, y->name);
}

static ag_status look_at_entries(ag_run_scan *scan, int run, const char *run_dir, bool allow_unsafe, ag_arena *arena,
                                 ag_err *err)
{
    char **names;
    size_t n;
    AG_TRY(ag_dir_list(&names, &n, run_dir, arena, err));
    scan->entries = ag_arena_array(arena, n + 1, sizeof *scan->entries);
    for (size_t i = 0; i < n; i++) {
        bool is_dir;
        ag_checkpoint_entry entry = {.step = ag_checkpoint_number(names[i]), .name = names[i]};
        if (entry.step < 0) continue;
        AG_TRY(look_at_entry(&entry, &is_dir, run, run_dir, allow_unsafe, arena, err));
        if (is_dir) scan->entries[scan->n++] = entry;
    }
    qsort(scan->entries, scan->n, sizeof *scan->entries, by_step);
    for (size_t i = 0; i < scan->n; i++) {
        if (scan->entries[i].lacks) continue;
        scan->n_valid++;
        scan->latest = &scan->entries[i];
    }
    return AG_OK;
}

static ag_status scan_run(ag_run_scan *scan, int run, const char *run_dir, bool allow_unsafe, ag_arena *arena, ag_err *err)
{
    bool config, weights;
    AG_TRY(look_at_entries(scan, run, run_dir, allow_unsafe, arena, err));
    AG_TRY(has_adapter(&config, &weights, run, run_dir, allow_unsafe, err));
    const int again = openat(run, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again < 0) return ag_fail_errno(err, errno, "%s cannot be listed", run_dir);
    AG_TRY(find_unsafe(&scan->unsafe, again, run_dir, "", 0, arena, err));
    scan->has_final_adapter = config && weights && (allow_unsafe || !scan->unsafe);
    return AG_OK;
}

ag_status ag_run_scan_make(ag_run_scan *out, const char *run_dir, bool allow_unsafe, ag_arena *arena, ag_err *err)
{
    *out = (ag_run_scan){0};
    const int run = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (run < 0) return is_missing(errno) ? AG_OK : ag_fail_errno(err, errno, "%s cannot be listed", run_dir);
    const ag_status status = scan_run(out, run, run_dir, allow_unsafe, arena, err);
    close(run);
    return status;
}
