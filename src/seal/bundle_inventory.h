/* reproducibility-bundle.json: what a bundle consists of, and where its parts lie in it.
 *
 *     {"adapter_artifact_index_path": …, "evaluation_contract_path": …, "files": [{"path", "sha256", "size_bytes"}, …],
 *      "locked_config_path": …, "merged_artifact_index_path": … or null, "run_manifest_path": …,
 *      "schema_version": "agoge.reproducibility-bundle.v1", "split_manifest_path": …}
 *
 * Every regular file of the bundle is listed but the inventory itself and the signature over it. */
#ifndef AG_BUNDLE_INVENTORY_H
#define AG_BUNDLE_INVENTORY_H

#include "seal/bundle.h"
#include "seal/bundle_tree.h"

typedef struct {
    const char *path;
    uint64_t size_bytes;
    const char *sha256;
} ag_inventory_file;

typedef struct {
    ag_inventory_file *files; /* by path */
    size_t n;
    ag_bundle_parts parts;
} ag_bundle_inventory;

/* Strict. False: failures are in the report, and the inventory must not be used. Sets report->schema_version. */
bool ag_bundle_inventory_parse(ag_bundle_inventory *out, const char *bytes, size_t n, ag_arena *arena, ag_bundle_report *report);

/* The text for a tree whose files all have digests. */
void ag_bundle_inventory_compose(ag_str *out, const ag_bundle_tree *tree, const ag_bundle_parts *parts);

/* Inventory and signature: files of a bundle that no inventory lists. */
bool ag_bundle_is_seal(const char *path);

const ag_inventory_file *ag_bundle_inventory_find(const ag_bundle_inventory *inventory, const char *path);

#endif
