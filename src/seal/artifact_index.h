/* artifact_index.json: every regular file under a directory with its size and SHA-256, the index itself aside.
 *
 *     {"output_dir": …, "artifacts": [{"file": "adapter_model.safetensors", "size_bytes": …, "sha256": …}, …],
 *      "producer_provenance": {…}}                     the last only where the run was made on a frozen split
 *
 * Files are listed by path, sorted bytewise, and hashed by all threads. A symbolic link, a device or the like in the tree is refused: an
 * index must not vouch for what lies elsewhere. */
#ifndef AG_ARTIFACT_INDEX_H
#define AG_ARTIFACT_INDEX_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AG_ARTIFACT_INDEX_FILE "artifact_index.json"

/* What a sealed artifact was made from; every field is there. */
typedef struct {
    const char *base_model_name_or_path, *revision;
    const char *training_split_manifest_sha256, *training_split_name, *training_split_sha256;
} ag_provenance;

/* Indexes `dir` and publishes the index in it. output_dir is the directory as the producer names it. provenance NULL: none. */
AG_MUST_USE ag_status ag_artifact_index_write(const char *dir, const char *output_dir, const ag_provenance *provenance, int n_threads,
                                              ag_err *err);

/* An index as it was read. */
typedef struct {
    const char *file; /* canonical, relative to the indexed directory */
    uint64_t size_bytes;
    const char *sha256;
} ag_artifact_entry;
typedef struct {
    const char *output_dir;
    ag_artifact_entry *artifacts; /* by file, bytewise, none twice */
    size_t n;
    bool has_provenance;
    ag_provenance provenance;
} ag_artifact_index;

/* From the text of an index file; texts go to the arena. `name` stands in sentences. The schema is strict: AG_E_FORMAT (no JSON of this
 * form), AG_E_CONFIG (a path that is not canonical or leaves its directory), AG_E_EXISTS (a path twice). */
AG_MUST_USE ag_status ag_artifact_index_parse(ag_artifact_index *out, const char *bytes, size_t n, const char *name, ag_arena *arena,
                                              ag_err *err);
/* Reads dir's index. AG_E_NOT_FOUND where there is none. */
AG_MUST_USE ag_status ag_artifact_index_load(ag_artifact_index *out, const char *dir, ag_arena *arena, ag_err *err);

/* dir's index is there and lists exactly the files of dir with their sizes and digests: AG_E_VERIFY names the first file that differs.
 * Links and special files in dir are refused. */
AG_MUST_USE ag_status ag_artifact_index_verify(ag_artifact_index *out, const char *dir, int n_threads, ag_arena *arena, ag_err *err);

/* The provenance that dir's index carries, texts in the arena; *found false where there is no index or none in it. AG_E_FORMAT
 * for an index that cannot be read. */
AG_MUST_USE ag_status ag_artifact_index_provenance(ag_provenance *out, bool *found, const char *dir, ag_arena *arena, ag_err *err);

#endif
