/* The files under a directory with their digests: what an index is written from and held against. Internal to this folder. */
#ifndef AG_ARTIFACT_FILES_H
#define AG_ARTIFACT_FILES_H

#include "base/digest.h"
#include "seal/artifact_index.h"

enum { AG_ARTIFACT_MAX_FILES = 65536 };

typedef struct {
    const char *name; /* relative to the directory */
    const char *path;
    uint64_t bytes;
    ag_sha256 digest;
} ag_artifact;

typedef struct {
    ag_artifact *items; /* by name */
    size_t n, room;
    ag_arena arena; /* the owner frees it, also after a failure */
} ag_artifact_list;

/* Every file below dir but the index in it. The list must be {0}. */
AG_MUST_USE ag_status ag_artifact_list_files(ag_artifact_list *list, const char *dir, int n_threads, ag_err *err);

#endif
