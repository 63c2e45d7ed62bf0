/* What the program around a run says about itself, for manifest and markers: library code asks neither the environment nor git. */
#ifndef AG_RUN_RECORD_H
#define AG_RUN_RECORD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *name, *version;
} ag_library_version;

typedef struct {
    const char *version, *commit, *compiler; /* of the program */
    const char *system;                      /* "Linux 6.1.0 x86_64" */
    const ag_library_version *libraries;
    size_t n_libraries;
    struct {
        bool is_known; /* the working directory lies in a git work tree, and git could be asked */
        const char *commit, *branch;
        bool dirty;    /* tracked files differ from the commit */
    } git;
    bool is_secondary; /* another process of this run writes the telemetry (RANK, LOCAL_RANK) */
} ag_run_record;

#endif
