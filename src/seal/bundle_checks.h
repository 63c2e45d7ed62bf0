/* The parts of a verification behind the inventory, one file each; bundle_verify.c calls them in this order. Each puts what is wrong into
 * the report, and leaves what the later ones need. A part that could not be read leaves nothing: the bundle has failed already, and what
 * depends on that part is not compared. Internal to this folder. */
#ifndef AG_BUNDLE_CHECKS_H
#define AG_BUNDLE_CHECKS_H

#include "base/json.h"
#include "seal/artifact_index.h"
#include "seal/bundle_inventory.h"

typedef struct {
    bool is_read;
    const char *manifest_sha256; /* of split_manifest.json */
    const char *train_sha256, *held_out_sha256;
    const char *held_out_path;
    struct ag_split_reader *reader; /* the manifest, its members in order */
} ag_bundle_split;

typedef struct {
    bool is_read;
    const char *model_id, *revision;
} ag_bundle_locked;

typedef struct {
    bool is_read;
    const char *path; /* of its index */
    ag_artifact_index index;
} ag_bundle_artifact;

typedef struct {
    ag_bundle_tree tree;
    ag_bundle_inventory inventory;
    ag_bundle_report *report;
    ag_bundle_split split;
    ag_bundle_locked locked;
    ag_bundle_artifact adapter, merged;
    ag_arena arena;
} ag_bundle;

/* split_manifest.json: schema, sums, uniqueness, leakage; each split file listed with its digest, its lines the members'. */
void ag_bundle_check_split(ag_bundle *b);
/* run/manifest.json and config/locked.json: form, policy, and that they agree. */
void ag_bundle_check_run(ag_bundle *b);
/* adapter/artifact_index.json and, where there is one, merged/: files, layout, provenance. */
void ag_bundle_check_artifacts(ag_bundle *b);
/* contract.json: both arms, and that it speaks of this split and this artifact. */
void ag_bundle_check_contract(ag_bundle *b);

/* All of the above behind membership, digests and names, for a tree that was scanned and hashed and an inventory that was read; then the
 * tree must still be what was scanned. */
void ag_bundle_check_all(ag_bundle *b);
void ag_bundle_close(ag_bundle *b);

/* evaluation/, or what lies beside the contract, where there is a comparison.json: answers, scores, comparison. `contract` is valid. */
void ag_bundle_check_evaluation(ag_bundle *b, const json_t *contract);

/* A listed JSON file, strictly decoded, its top an object; NULL with a failure in the report. The caller frees it. */
json_t *ag_bundle_load_json(ag_bundle *b, const char *path, size_t max_bytes);

#endif
