/* Frozen splits: a dataset divided once, by rules that anyone can run again, and then never changed.
 *
 *     ag_split_freeze_options o = {.source = "cache/rows.jsonl", .source_path = "data/rows.jsonl", .output_dir = "frozen", …};
 *     AG_TRY(ag_split_freeze(&result, &o, err));          // frozen/splits/{train,validation,held_out}.jsonl, manifest, report
 *
 *     ag_split *split;
 *     AG_TRY(ag_split_open(&split, "frozen/split_manifest.json", &(ag_split_check){.n_threads = 2}, err));   // all of it
 * recomputed … split->part[AG_SPLIT_TRAIN].sha256.hex, split->manifest_sha256.hex … ag_split_close(&split);
 *
 * The algorithm, sha256-atomic-bucket-v1: records that share a lineage, a group or a content digest are one component,
 * transitively. Its anchor is "group:<smallest group id>", or "lineage:<smallest lineage id>" where no member has a group.
 * SHA-256 of algorithm NUL seed NUL salt NUL anchor, a big-endian integer, modulo the sum of the weights, says the split. So no
 * component is ever divided, and a record's split depends on its component alone. Members of a split are in the order of their
 * canonical ids (by code point); a split's line is the canonical JSON of its row. Same inputs, same bytes, whatever the number
 * of threads.
 *
 * Memory: about 110 bytes a row whatever the rows hold (128-bit keys, offsets); rows are read from the map when they are
 * needed. Nothing is copied: validation works where nothing can be written. */
#ifndef AG_SPLIT_H
#define AG_SPLIT_H

#include "base/arena.h"
#include "base/digest.h"
#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AG_SPLIT_MANIFEST_FILE "split_manifest.json"
#define AG_SPLIT_SCHEMA        "agoge.split-manifest.v1"
#define AG_SPLIT_ALGORITHM     "sha256-atomic-bucket-v1"

typedef enum { AG_SPLIT_TRAIN, AG_SPLIT_VALIDATION, AG_SPLIT_HELD_OUT, AG_N_SPLITS } ag_split_name;
const char *ag_split_name_text(ag_split_name name); /* "train", "validation", "held_out" */

/* What makes two rows' contents the same. LEGACY: the canonical JSON of the row without its three identity fields; manifests
 * without the field mean it. PAYLOAD: what training sees, {"text": …}; new snapshots have it. */
typedef enum { AG_SPLIT_CONTENT_LEGACY, AG_SPLIT_CONTENT_PAYLOAD } ag_split_content;

typedef struct {
    const char *canonical_id_field, *lineage_id_field, *group_id_field;
    ag_split_content content;
} ag_split_identity;

typedef struct {
    int64_t seed;
    const char *salt;
    int64_t weight[AG_N_SPLITS]; /* each 1 … 10^9 */
} ag_split_policy;

typedef struct {
    const char *source;      /* the file */
    const char *source_path; /* as it is recorded: relative to its repository (docs/paths.md) */
    const char *output_dir;  /* must not exist */
    const char *source_repository, *source_revision, *dataset_version;
    ag_split_policy policy;
    ag_split_identity identity; /* content is not asked: new snapshots have AG_SPLIT_CONTENT_PAYLOAD */
    int n_threads;
} ag_split_freeze_options;

typedef struct {
    int64_t n_rows, n_of[AG_N_SPLITS];
    ag_sha256 source_sha256, manifest_sha256;
} ag_split_freeze_result;

/* Publishes output_dir whole or not at all. A row's mistake is told as "<source>: line <n>: …", the first one of the file.
 * AG_E_EXISTS where output_dir is there; AG_E_DATA where a split would be empty. */
AG_MUST_USE ag_status ag_split_freeze(ag_split_freeze_result *result, const ag_split_freeze_options *options, ag_err *err);

typedef struct {
    const char *path; /* absolute */
    ag_sha256 sha256;
    int64_t n_rows;
} ag_split_part;

typedef struct {
    const char *path; /* of the manifest, absolute */
    ag_sha256 manifest_sha256;
    const char *repository, *revision, *dataset_version, *source_path;
    ag_sha256 source_sha256;
    int64_t n_rows;
    ag_split_identity identity;
    ag_split_policy policy;
    ag_split_part part[AG_N_SPLITS];
    ag_arena arena;
} ag_split;

typedef struct {
    const char *source; /* the source file, to hold the splits against; NULL: not at hand */
    int n_threads;
} ag_split_check;

/* Reads a manifest and recomputes everything that it says: schema, digests and counts of the files, every member, the leakage
 * audit, and which split each record belongs to; with a source also that the splits are its rows, all of them, unchanged.
 * AG_E_FORMAT: not a manifest of a version that we know; AG_E_VERIFY: it does not tell the truth about its files (the sentence
 * says in what). */
AG_MUST_USE ag_status ag_split_open(ag_split **out, const char *manifest_path, const ag_split_check *check, ag_err *err);
void ag_split_close(ag_split **split);

/* The manifest that stands beside a dataset file or in the folder above, in the arena; NULL where there is none. */
char *ag_split_manifest_find(const char *dataset_file, ag_arena *arena);

/* An id as splits know it: without white space around it, as Python's str.strip() takes it away. */
void ag_split_id_trim(ag_str *out, const char *text, size_t n);

/* 40 to 64 lowercase hexadecimal digits: a name that can never mean something else. */
bool ag_revision_is_immutable(const char *revision);

/* Names a loaded part as caches must: other for another manifest, other for another split file. */
ag_sha256 ag_split_cache_key(const ag_split *split, ag_split_name name);

#endif
