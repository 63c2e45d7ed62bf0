/* The files of a bundle as they are on disk, looked at through one directory descriptor: no link is followed, no path is resolved twice,
 * and each file that is read must still be the one that was scanned.
 *
 *     ag_bundle_tree tree;
 *     if (ag_bundle_tree_scan(&tree, "/path/to/bundle", report)) …   // false: the report says why
 *     ag_bundle_tree_digest(&tree, n_threads, report);
 *     ag_bundle_tree_close(&tree);
 */
#ifndef AG_BUNDLE_TREE_H
#define AG_BUNDLE_TREE_H

#include "base/digest.h"
#include "seal/bundle_report.h"

#include <stdint.h>
#include <sys/types.h>

/* What must not change between two looks at an entry. */
typedef struct {
    uint64_t device, inode, mode, size;
    int64_t modified_s, modified_ns, changed_s, changed_ns;
} ag_file_identity;

typedef struct {
    const char *path; /* canonical, relative to the bundle */
    ag_file_identity identity;
    bool is_dir;
    bool has_digest;  /* the file was read whole, and was the same before and after */
    ag_sha256 digest;
} ag_bundle_entry;

typedef struct {
    int root; /* descriptor */
    ag_file_identity root_identity;
    ag_bundle_entry *entries; /* files and directories, by path */
    size_t n, room;
    ag_arena arena;
} ag_bundle_tree;

/* Every entry below dir. A link, a special file, an unreadable entry or a directory that changes meanwhile is one failure in the report,
 * and false: nothing more can be said about such a tree. */
bool ag_bundle_tree_scan(ag_bundle_tree *tree, const char *dir, ag_bundle_report *report);
void ag_bundle_tree_close(ag_bundle_tree *tree);

const ag_bundle_entry *ag_bundle_tree_file(const ag_bundle_tree *tree, const char *path); /* NULL: there is no such file */

/* SHA-256 of every file, one file a thread, the largest first. A file that cannot be read or is not what was scanned goes to the report. */
void ag_bundle_tree_digest(ag_bundle_tree *tree, int n_threads, ag_bundle_report *report);

/* A descriptor of the scanned file, or -1 with a failure in the report. */
int ag_bundle_tree_open(const ag_bundle_tree *tree, const ag_bundle_entry *file, ag_bundle_report *report);
/* A whole small file, NUL-terminated, in the arena; NULL with a failure in the report. Larger than max_bytes is invalid_json. */
char *ag_bundle_tree_read(const ag_bundle_tree *tree, const ag_bundle_entry *file, size_t max_bytes, size_t *n, ag_arena *arena,
                          ag_bundle_report *report);

/* Scans again; any difference is one modified_file failure on the root. */
void ag_bundle_tree_check_unchanged(const ag_bundle_tree *tree, ag_bundle_report *report);

#endif
