/* Deleting by descriptor: a run's folder is opened once, component by component without following a link, and everything below
 * is looked at and removed through that descriptor. Whoever swaps a folder for a link, or a link for a folder, while this runs,
 * finds that what was planned is gone or that nothing happened: no path is resolved twice.
 *
 * A mount point (a bind mount too) is told by its mount's number, and never entered. */
#ifndef AG_RUN_TREE_H
#define AG_RUN_TREE_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* An absolute path without a symbolic link in it. AG_E_IO names the component that is one. The caller closes *fd. */
AG_MUST_USE ag_status ag_tree_open(int *fd, const char *path, ag_err *err);

typedef enum {
    AG_TREE_DIR,   /* a folder, with no mount in or below it */
    AG_TREE_LINK,
    AG_TREE_MOUNT, /* the folder, or something below it, is a mount point */
    AG_TREE_OTHER, /* a file or the like */
    AG_TREE_GONE
} ag_tree_kind;
const char *ag_tree_kind_text(ag_tree_kind kind); /* "symlink", "mount", … */

typedef struct {
    ag_tree_kind kind;
    uint64_t device, inode; /* of the entry itself: what will be recognized again */
    uint64_t bytes;         /* of files below it; links count their own length */
} ag_tree_entry;

/* What "name" in the folder `dir` is. AG_E_IO where it cannot be told. */
AG_MUST_USE ag_status ag_tree_look(ag_tree_entry *out, int dir, const char *name, ag_err *err);

/* Removes everything in the folder that was looked at, and leaves it empty. It is looked at again first: a change of kind or
 * identity is AG_E_IO, and nothing is touched. The file `first` goes before everything else and its going is synced, so that a
 * folder that a kill leaves half removed is recognized as unfinished. */
AG_MUST_USE ag_status ag_tree_empty(int dir, const char *name, const ag_tree_entry *planned, const char *first, ag_err *err);
/* Removes the emptied folder itself, if it is still the one of that name. */
AG_MUST_USE ag_status ag_tree_drop(int dir, const char *name, const ag_tree_entry *planned, ag_err *err);

/* The folder's entries reach the disk. */
AG_MUST_USE ag_status ag_tree_sync(int dir, const char *shown, ag_err *err);

#endif
