/* Paths as artifact indexes and bundle inventories hold them: relative to one folder, and the same on every system. */
#ifndef AG_PORTABLE_PATH_H
#define AG_PORTABLE_PATH_H

#include "base/arena.h"

/* NULL where `path` is fine, else why it is not, to stand behind "the path … ". Refused: blank; absolute, also as Windows has it, with a
 * drive or with '\' for '/'; a component ".."; and what is no canonical POSIX form (a//b, ./a, a/., a/). */
const char *ag_portable_path_fault(const char *path);

/* What `path`, written in a file that lies in the folder `dir` ("" for the root), names seen from the root: components "." and ".." are
 * followed by name. NULL where it is absolute, holds '\' or a drive, or leaves the root. */
char *ag_portable_path_resolve(ag_arena *arena, const char *dir, const char *path);

/* The folder of a canonical path, "" where it lies in the root. */
char *ag_portable_path_dir(ag_arena *arena, const char *path);

#endif
