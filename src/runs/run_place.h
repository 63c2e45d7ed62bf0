/* Where a run lies: as typed, as it really is, and where its merged model is looked for. */
#ifndef AG_RUN_PLACE_H
#define AG_RUN_PLACE_H

#include "base/arena.h"
#include "base/status.h"

typedef struct {
    const char *logical; /* as typed, "~" expanded, absolute, "." and double slashes gone, symbolic links left in */
    const char *real;    /* resolved */
    const char *name;    /* the last part of what was typed; of the resolved path where that has none (".") */
    const char
        *merged; /* resolved: --merged-dir, or <parent of parent of logical>/merged/<name>; NULL: there is no such folder */
} ag_run_place;

/* The path rules of docs/paths.md for an existing directory; merged_dir may be missing on disk, any other fault of it is a
 * failure. A merged folder that was not named and cannot be used (a dangling link, a file) is absent. merged_dir NULL: the
 * sibling. */
AG_MUST_USE ag_status ag_run_place_find(ag_run_place *out, const char *run_dir, const char *merged_dir, ag_arena *arena,
                                        ag_err *err);

#endif
