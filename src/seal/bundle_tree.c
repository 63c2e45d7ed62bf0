#define _GNU_SOURCE
#include "seal/bundle_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ENTRIES = 1 << 18, MAX_DEPTH = 64 /* a descriptor a level */, READ_BYTES = 256 << 10 /* stays in the core's own cache */ };

static ag_file_identity identity_of(const struct stat *st)
{
    return (ag_file_identity){.device = st->st_dev, .inode = st->st_ino, .mode = st->st_mode, .size = (uint64_t)st->st_size,
                              .modified_s = st->st_mtim.tv_sec, .modified_ns = st->st_mtim.tv_nsec,
                              .changed_s = st->st_ctim.tv_sec, .changed_ns = st->st_ctim.tv_nsec};
}

static bool is_same(const ag_file_identity *a, const ag_file_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->mode == b->mode && a->size == b->size && a->modified_s == b->modified_s &&
           a->modified_ns == b->modified_ns && a->changed_s == b->changed_s && a->changed_ns == b->changed_ns;
}

/* ---- scanning -------------------------------------------------------------------------------------------------------- */
static bool scan_dir(ag_bundle_tree *tree, int fd, const char *path, int depth, ag_bundle_report *report);

static bool add_entry(ag_bundle_tree *tree, const char *path, const struct stat *st, ag_bundle_report *report)
{
    if (tree->n == MAX_ENTRIES) {
        ag_bundle_report_add(
            report, AG_BUNDLE_UNSAFE_PATH, path,
            "there are more than %d entries; a bundle of this size is not verified, leave out what does not belong to it", MAX_ENTRIES);
        return false;
    }
    if (tree->n == tree->room) {
        const size_t room = tree->room ? 2 * tree->room : 256;
        ag_bundle_entry *entries = ag_arena_array(&tree->arena, room, sizeof *entries);
        if (tree->n) memcpy(entries, tree->entries, tree->n * sizeof *entries);
        tree->entries = entries;
        tree->room = room;
    }
    tree->entries[tree->n++] = (ag_bundle_entry){.path = path, .identity = identity_of(st), .is_dir = S_ISDIR(st->st_mode)};
    return true;
}

static bool scan_entry(ag_bundle_tree *tree, int dir, const char *name, const char *path, int depth, ag_bundle_report *report)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) {
        ag_bundle_report_add(report, errno == ENOENT ? AG_BUNDLE_MODIFIED_FILE : AG_BUNDLE_UNSAFE_PATH, path,
                             "cannot be looked at (%s); check its permissions and the disk", strerror(errno));
        return false;
    }
    if (S_ISLNK(st.st_mode)) {
        ag_bundle_report_add(report, AG_BUNDLE_UNSAFE_SYMLINK, path,
                             "is a symbolic link; put a copy of what it points to in its place and seal again");
        return false;
    }
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        ag_bundle_report_add(report, AG_BUNDLE_UNSAFE_PATH, path, "is neither a file nor a directory; remove it");
        return false;
    }
    if (!add_entry(tree, path, &st, report)) return false;
    if (!S_ISDIR(st.st_mode)) return true;
    if (depth == MAX_DEPTH) {
        ag_bundle_report_add(report, AG_BUNDLE_UNSAFE_PATH, path,
                             "lies more than %d folders deep; a bundle is flatter than that, move it up", MAX_DEPTH);
        return false;
    }
    const int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        const bool changed = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
        ag_bundle_report_add(report, changed ? AG_BUNDLE_MODIFIED_FILE : AG_BUNDLE_UNSAFE_PATH, path,
                             "the directory cannot be opened (%s); check its permissions and the disk", strerror(errno));
        return false;
    }
    struct stat opened;
    const ag_file_identity scanned = identity_of(&st);
    bool ok = fstat(fd, &opened) == 0;
    if (ok) {
        const ag_file_identity now = identity_of(&opened);
        ok = is_same(&scanned, &now);
    }
    if (!ok) {
        close(fd);
        ag_bundle_report_add(report, AG_BUNDLE_MODIFIED_FILE, path,
                             "the directory changed while it was scanned; let nothing write to the bundle");
        return false;
    }
    return scan_dir(tree, fd, path, depth + 1, report);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The names in a directory, sorted; -1 on a read error. */
static long list_names(char ***names, DIR *stream, ag_arena *arena)
{
    size_t n = 0, room = 0;
    *names = NULL;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (!entry) break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (n == room) {
            char **more = ag_arena_array(arena, room = room ? 2 * room : 32, sizeof *more);
            if (n) memcpy(more, *names, n * sizeof *more);
            *names = more;
        }
        (*names)[n++] = ag_arena_strdup(arena, entry->d_name);
        if (n > MAX_ENTRIES) break;
    }
    if (errno) return -1;
    if (n) qsort(*names, n, sizeof **names, by_text);
    return (long)n;
}

/* Closes fd. */
static bool scan_dir(ag_bundle_tree *tree, int fd, const char *path, int depth, ag_bundle_report *report)
{
    struct stat before, after;
    char **names;
    const char *shown = *path ? path : NULL;
    DIR *stream = fstat(fd, &before) == 0 ? fdopendir(fd) : NULL;
    if (!stream) {
        ag_bundle_report_add(report, AG_BUNDLE_UNSAFE_PATH, shown,
                             "the directory cannot be listed (%s); check its permissions and the disk", strerror(errno));
        close(fd);
        return false;
    }
    const long n = list_names(&names, stream, &tree->arena);
    bool ok = n >= 0;
    if (!ok)
        ag_bundle_report_add(report, AG_BUNDLE_UNSAFE_PATH, shown,
                             "the directory cannot be listed (%s); check its permissions and the disk", strerror(errno));
    for (long i = 0; i < n && ok; i++)
        ok = scan_entry(tree, fd, names[i], *path ? ag_arena_printf(&tree->arena, "%s/%s", path, names[i]) : names[i], depth, report);
    if (ok) {
        const ag_file_identity then = identity_of(&before);
        ok = fstat(fd, &after) == 0;
        if (ok) {
            const ag_file_identity now = identity_of(&after);
            ok = is_same(&then, &now);
        }
        if (!ok)
            ag_bundle_report_add(report, AG_BUNDLE_MODIFIED_FILE, shown,
                                 "the directory changed while it was scanned; let nothing write to the bundle");
    }
    closedir(stream);
    return ok;
}

static int by_path(const void *a, const void *b) { return strcmp(((const ag_bundle_entry *)a)->path, ((const ag_bundle_entry *)b)->path); }

bool ag_bundle_tree_scan(ag_bundle_tree *tree, const char *dir, ag_bundle_report *report)
{
    *tree = (ag_bundle_tree){.root = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
    struct stat st;
    const int again = tree->root < 0 ? -1 : openat(tree->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again < 0 || fstat(tree->root, &st)) {
        ag_bundle_report_add(report, AG_BUNDLE_UNSAFE_PATH, NULL, "the bundle cannot be opened (%s); check its permissions and the disk",
                             strerror(errno));
        if (again >= 0) close(again);
        return false;
    }
    tree->root_identity = identity_of(&st);
    if (!scan_dir(tree, again, "", 0, report)) return false;
    if (tree->n) qsort(tree->entries, tree->n, sizeof *tree->entries, by_path);
    return true;
}

void ag_bundle_tree_close(ag_bundle_tree *tree)
{
    if (tree->root >= 0) close(tree->root);
    ag_arena_free(&tree->arena);
    *tree = (ag_bundle_tree){.root = -1};
}

const ag_bundle_entry *ag_bundle_tree_file(const ag_bundle_tree *tree, const char *path)
{
    const ag_bundle_entry key = {.path = path};
    const ag_bundle_entry *found = tree->n ? bsearch(&key, tree->entries, tree->n, sizeof *tree->entries, by_path) : NULL;
    return found && !found->is_dir ? found : NULL;
}

void ag_bundle_tree_check_unchanged(const ag_bundle_tree *tree, ag_bundle_report *report)
{
    ag_bundle_report ignored = {0};
    ag_bundle_tree now = {.root = tree->root};
    struct stat st;
    const int again = openat(tree->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool same = again >= 0 && fstat(tree->root, &st) == 0;
    if (same) {
        now.root_identity = identity_of(&st);
        same = is_same(&now.root_identity, &tree->root_identity) && scan_dir(&now, again, "", 0, &ignored) && now.n == tree->n;
        if (same && now.n) qsort(now.entries, now.n, sizeof *now.entries, by_path);
        for (size_t i = 0; same && i < now.n; i++)
            same = strcmp(now.entries[i].path, tree->entries[i].path) == 0 && is_same(&now.entries[i].identity, &tree->entries[i].identity);
    }
    if (!same)
        ag_bundle_report_add(report, AG_BUNDLE_MODIFIED_FILE, NULL,
                             "the bundle changed while it was verified; let nothing write to it and verify again");
    ag_arena_free(&now.arena);
    ag_bundle_report_free(&ignored);
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */
typedef enum { READ_OK, READ_CHANGED, READ_FAILED } read_result;

static bool is_scanned_one(int fd, const ag_bundle_entry *file)
{
    struct stat st;
    if (fstat(fd, &st)) return false;
    const ag_file_identity now = identity_of(&st);
    return is_same(&now, &file->identity);
}

/* Component by component from the root, none of them a link. */
static int open_below(int root, const char *path)
{
    char name[NAME_MAX + 1];
    int dir = root;
    for (;;) {
        const size_t n = strcspn(path, "/");
        if (n > NAME_MAX) {
            if (dir != root) close(dir);
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(name, path, n);
        name[n] = 0;
        const bool is_last = path[n] == 0;
        const int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (is_last ? O_NONBLOCK : O_DIRECTORY);
        const int fd = openat(dir, name, flags), errnum = errno;
        if (dir != root) close(dir);
        errno = errnum;
        if (fd < 0 || is_last) return fd;
        dir = fd;
        path += n + 1;
    }
}

static int open_scanned(const ag_bundle_tree *tree, const ag_bundle_entry *file, read_result *result)
{
    const int fd = open_below(tree->root, file->path);
    *result = fd >= 0 ? READ_OK : errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? READ_CHANGED : READ_FAILED;
    if (fd >= 0 && !is_scanned_one(fd, file)) {
        close(fd);
        *result = READ_CHANGED;
        return -1;
    }
    return fd;
}

static void report_read(ag_bundle_report *report, const ag_bundle_entry *file, read_result result)
{
    if (result == READ_CHANGED)
        ag_bundle_report_add(report, AG_BUNDLE_MODIFIED_FILE, file->path,
                             "changed while the bundle was verified; let nothing write to it and verify again");
    else if (result == READ_FAILED)
        ag_bundle_report_add(report, AG_BUNDLE_UNSAFE_PATH, file->path, "cannot be read; check its permissions and the disk");
}

int ag_bundle_tree_open(const ag_bundle_tree *tree, const ag_bundle_entry *file, ag_bundle_report *report)
{
    read_result result;
    const int fd = open_scanned(tree, file, &result);
    report_read(report, file, result);
    return fd;
}

char *ag_bundle_tree_read(const ag_bundle_tree *tree, const ag_bundle_entry *file, size_t max_bytes, size_t *n, ag_arena *arena,
                          ag_bundle_report *report)
{
    *n = 0;
    if (file->identity.size > max_bytes) {
        ag_bundle_report_add(report, AG_BUNDLE_INVALID_JSON, file->path,
                             "has %llu bytes; such a file has at most %zu, bring the original back",
                             (unsigned long long)file->identity.size, max_bytes);
        return NULL;
    }
    read_result result;
    const int fd = open_scanned(tree, file, &result);
    char *text = NULL;
    if (fd >= 0) {
        text = ag_arena_alloc(arena, (size_t)file->identity.size + 1);
        while (*n < file->identity.size) {
            const ssize_t got = read(fd, text + *n, (size_t)file->identity.size - *n);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) {
                result = got < 0 ? READ_FAILED : READ_CHANGED;
                break;
            }
            *n += (size_t)got;
        }
        if (result == READ_OK && !is_scanned_one(fd, file)) result = READ_CHANGED;
        close(fd);
    }
    report_read(report, file, result);
    return result == READ_OK ? text : NULL;
}

/* ---- digests --------------------------------------------------------------------------------------------------------- */
static read_result digest_file(const ag_bundle_tree *tree, ag_bundle_entry *file, unsigned char *block)
{
    read_result result;
    const int fd = open_scanned(tree, file, &result);
    if (fd < 0) return result;
    ag_sha256_state *state = ag_sha256_begin();
    ssize_t got;
    do {
        got = read(fd, block, READ_BYTES);
        if (got > 0) ag_sha256_add(state, block, (size_t)got);
    } while (got > 0 || (got < 0 && errno == EINTR));
    file->digest = ag_sha256_end(state);
    if (got < 0)
        result = READ_FAILED;
    else if (!is_scanned_one(fd, file))
        result = READ_CHANGED;
    close(fd);
    file->has_digest = result == READ_OK;
    return result;
}

static int larger_first(const void *a, const void *b)
{
    const ag_bundle_entry *x = *(ag_bundle_entry *const *)a, *y = *(ag_bundle_entry *const *)b;
    if (x->identity.size != y->identity.size) return x->identity.size < y->identity.size ? 1 : -1;
    return strcmp(x->path, y->path);
}

void ag_bundle_tree_digest(ag_bundle_tree *tree, int n_threads, ag_bundle_report *report)
{
    ag_arena arena = {0};
    ag_bundle_entry **files = ag_arena_array(&arena, tree->n + 1, sizeof *files);
    read_result *results = ag_arena_array(&arena, tree->n + 1, sizeof *results);
    size_t n = 0;
    for (size_t i = 0; i < tree->n; i++)
        if (!tree->entries[i].is_dir) files[n++] = &tree->entries[i];
    if (n) qsort(files, n, sizeof *files, larger_first);
#pragma omp parallel num_threads(n_threads)
    {
        unsigned char *block = malloc(READ_BYTES);
        if (!block) ag_out_of_memory(READ_BYTES);
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < n; i++) results[i] = digest_file(tree, files[i], block);
        free(block);
    }
    for (size_t i = 0; i < n; i++) report_read(report, files[i], results[i]);
    ag_arena_free(&arena);
}
