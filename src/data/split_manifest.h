/* split_manifest.json in its parts: written as a stream, read without ever holding all members at once. Private to data/. */
#ifndef AG_SPLIT_MANIFEST_H
#define AG_SPLIT_MANIFEST_H

#include "base/fs.h"
#include "base/json.h"
#include "data/split.h"

#define AG_SPLIT_CONTENT_PAYLOAD_NAME "normalized-training-payload-v1"
#define AG_SPLIT_CONTENT_LEGACY_NAME  "canonical-json-excluding-identity-fields"
#define AG_SPLIT_COORDINATE_POLICY    "source-path-plus-one-based-line"
#define AG_SPLIT_TOKENS_SCHEMA        "agoge.token-stats.v1"
#define AG_SPLIT_TOKENS_STORAGE       "immutable-sidecar"
#define AG_SPLIT_TOKENS_INVARIANT     "must-not-modify-source-split-digests"
enum { AG_SPLIT_MAX_WEIGHT = 1000000000, AG_SPLIT_N_TOKENS_KEYS = 8 };
extern const char *const ag_split_tokens_keys[AG_SPLIT_N_TOKENS_KEYS];

typedef struct {
    const char *repository, *revision, *dataset_version, *source_path;
    ag_sha256 source_sha256;
    int64_t n_rows;
    ag_split_identity identity;
    ag_split_policy policy;
} ag_split_manifest_head;

typedef struct {
    ag_str canonical_id, lineage_id, group_id; /* borrowed; group_id.n 0: none */
    uint32_t line_number;                      /* of the source */
    ag_sha256 content, raw_line, materialized_line;
} ag_split_member;

/* Up to {"splits":{ – the caller writes "<name>":{"members":[…],"path":…,"record_count":…,"sha256":…} for held_out, train and
 * validation – and from there to the end of the file. */
void ag_split_manifest_write_begin(ag_str *out, const ag_split_manifest_head *head);
void ag_split_manifest_write_end(ag_str *out);
void ag_split_member_write(ag_str *out, const ag_split_member *member, const char *source_path);
void ag_split_report_write(ag_str *out, const ag_split_manifest_head *head, const int64_t n_of[AG_N_SPLITS]);

/* A manifest's text with its lists of members cut out. */
typedef struct {
    json_t *root;                                /* splits.<name>.members is [] there */
    size_t start[AG_N_SPLITS], end[AG_N_SPLITS]; /* of the lists in the text, brackets included; 0, 0: there is none */
} ag_split_skeleton;
AG_MUST_USE ag_status ag_split_skeleton_read(ag_split_skeleton *out, const ag_map *map, const char *name, ag_err *err);

/* The list's next member: *at starts behind the '[' and moves on; *value is NULL behind the last one, else the caller's to
 * free. */
AG_MUST_USE ag_status ag_split_member_next(json_t **value, size_t *at, const ag_map *map, size_t end, const char *name,
                                           ag_err *err);
/* A member's fields, checked; `member` borrows from `value`. */
AG_MUST_USE ag_status ag_split_member_read(ag_split_member *member, const json_t *value, const char *source_path,
                                           const char *name, ag_err *err);
/* Everything but the members, held against the schema. Texts go to split->arena, which also gets the parts' paths as they are
 * written. */
AG_MUST_USE ag_status ag_split_head_read(ag_split *split, const json_t *root, const char *name, ag_err *err);

#endif
