/* Verification from top to bottom. */
#include "seal/bundle_checks.h"

#include "base/fs.h"
#include "seal/split_reader.h"

#include <fnmatch.h>
#include <string.h>

enum { INVENTORY_MAX_BYTES = 64 << 20 };

/* ---- 3: the inventory, and the signature over it --------------------------------------------------------------------- */
static const char *const UNSIGNED = "the bundle is not signed, and a signature by the given key is demanded; seal it with --sign-key";

static void check_signature(ag_bundle *b, const char *inventory, size_t n, const ag_verify_key *key)
{
    const ag_bundle_entry *file = ag_bundle_tree_file(&b->tree, AG_BUNDLE_SIGNATURE_FILE);
    if (!key) {
        b->report->signature = file ? AG_SIGNATURE_NOT_CHECKED : AG_SIGNATURE_ABSENT;
        return;
    }
    b->report->signature = AG_SIGNATURE_FAILED;
    if (!file) {
        ag_bundle_report_add(b->report, AG_BUNDLE_SIGNATURE, AG_BUNDLE_SIGNATURE_FILE, "%s", UNSIGNED);
        return;
    }
    size_t n_signature = 0;
    const char *signature = file->identity.size == AG_SIGNATURE_BYTES
                                ? ag_bundle_tree_read(&b->tree, file, AG_SIGNATURE_BYTES, &n_signature, &b->arena, b->report) : NULL;
    if (signature && ag_signature_check((const unsigned char *)signature, n_signature, key, inventory, n))
        b->report->signature = AG_SIGNATURE_VERIFIED;
    else
        ag_bundle_report_add(
            b->report, AG_BUNDLE_SIGNATURE, AG_BUNDLE_SIGNATURE_FILE,
            "is no signature of the given key over this inventory: "
            "another key made it, or the inventory was changed; ask the producer for the right key, or for the bundle again");
}

static bool load_inventory(ag_bundle *b, const ag_verify_key *key)
{
    const ag_bundle_entry *file = ag_bundle_tree_file(&b->tree, AG_BUNDLE_INVENTORY_FILE);
    size_t n;
    if (!file) {
        ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_FILE, AG_BUNDLE_INVENTORY_FILE,
                             "there is no inventory; seal the folder with agoge seal-bundle");
        return false;
    }
    const char *text = ag_bundle_tree_read(&b->tree, file, INVENTORY_MAX_BYTES, &n, &b->arena, b->report);
    if (!text || !ag_bundle_inventory_parse(&b->inventory, text, n, &b->arena, b->report)) return false;
    check_signature(b, text, n, key);
    return true;
}

/* ---- 4: membership --------------------------------------------------------------------------------------------------- */
static void check_membership(ag_bundle *b)
{
    for (size_t i = 0; i < b->inventory.n; i++)
        if (!ag_bundle_tree_file(&b->tree, b->inventory.files[i].path))
            ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_FILE, b->inventory.files[i].path,
                                 "is listed in the inventory and not there; bring the file back");
    for (size_t i = 0; i < b->tree.n; i++) {
        const ag_bundle_entry *e = &b->tree.entries[i];
        if (e->is_dir || ag_bundle_is_seal(e->path) || ag_bundle_inventory_find(&b->inventory, e->path)) continue;
        const bool is_leftover = strncmp(e->path, AG_BUNDLE_INVENTORY_FILE ".tmp-", sizeof AG_BUNDLE_INVENTORY_FILE ".tmp-" - 1) == 0;
        ag_bundle_report_add(b->report, AG_BUNDLE_EXTRA_FILE, e->path, "%s", is_leftover
                                 ? "was left by a seal that did not end; seal the bundle again"
                                 : "is not listed in the inventory; remove it, or seal the bundle again if it belongs there");
    }
}

/* ---- 5: sizes and digests -------------------------------------------------------------------------------------------- */
static void check_digests(ag_bundle *b)
{
    for (size_t i = 0; i < b->inventory.n; i++) {
        const ag_inventory_file *listed = &b->inventory.files[i];
        const ag_bundle_entry *found = ag_bundle_tree_file(&b->tree, listed->path);
        if (!found) continue;
        if (found->identity.size != listed->size_bytes)
            ag_bundle_report_add(b->report, AG_BUNDLE_MODIFIED_FILE, listed->path,
                                 "has %llu bytes, the inventory says %llu; bring the original back",
                                 (unsigned long long)found->identity.size, (unsigned long long)listed->size_bytes);
        if (found->has_digest && strcmp(found->digest.hex, listed->sha256) != 0)
            ag_bundle_report_add(b->report, AG_BUNDLE_MODIFIED_FILE, listed->path,
                                 "has the SHA-256 %s, the inventory says %s; bring the original back", found->digest.hex, listed->sha256);
    }
}

/* ---- 6: pickled weights ---------------------------------------------------------------------------------------------- */
static void check_names(ag_bundle *b)
{
    static const char *const unsafe[] = {"pytorch_model.bin", "adapter_model.bin", "*.ckpt"};
    for (size_t i = 0; i < b->inventory.n; i++)
        for (size_t k = 0; k < sizeof unsafe / sizeof *unsafe; k++)
            if (fnmatch(unsafe[k], ag_path_base(b->inventory.files[i].path), 0) == 0)
                ag_bundle_report_add(b->report, AG_BUNDLE_UNSAFE_PATH, b->inventory.files[i].path,
                                     "is a file of pickled weights, which can hold code; ship safetensors instead");
}

/* ---- the order of it all --------------------------------------------------------------------------------------------- */
static bool may_go_on(const ag_bundle_report *report)
{
    for (size_t i = 0; i < report->n; i++) {
        const ag_bundle_code code = report->failures[i].code;
        if (code == AG_BUNDLE_MISSING_FILE || code == AG_BUNDLE_EXTRA_FILE || code == AG_BUNDLE_MODIFIED_FILE) return false;
    }
    return true;
}

/* Steps 4 to 8, for a tree that was scanned and hashed, and an inventory that was read. */
void ag_bundle_check_all(ag_bundle *b)
{
    check_membership(b);
    check_digests(b);
    check_names(b);
    if (!may_go_on(b->report)) return; /* what is inside files that are not the sealed ones says nothing */
    ag_bundle_check_split(b);
    ag_bundle_check_run(b);
    ag_bundle_check_artifacts(b);
    ag_bundle_check_contract(b);
    ag_bundle_tree_check_unchanged(&b->tree, b->report);
}

static void verify(ag_bundle *b, const char *dir, const ag_bundle_verify_options *options)
{
    if (!ag_bundle_tree_scan(&b->tree, dir, b->report)) return;
    if (!load_inventory(b, options->key)) return;
    ag_bundle_tree_digest(&b->tree, options->n_threads, b->report);
    ag_bundle_check_all(b);
}

ag_status ag_bundle_verify(ag_bundle_report *report, const char *dir, const ag_bundle_verify_options *options, ag_err *err)
{
    *report = (ag_bundle_report){0};
    char *real;
    AG_TRY(ag_path_existing_dir(&real, dir, &report->arena, err));
    report->bundle_path = real;
    ag_bundle b = {.report = report};
    verify(&b, real, options);
    ag_bundle_report_sort(report);
    ag_bundle_close(&b);
    return AG_OK;
}

void ag_bundle_close(ag_bundle *b)
{
    ag_split_reader_free(&b->split.reader);
    ag_bundle_tree_close(&b->tree);
    ag_arena_free(&b->arena);
}

json_t *ag_bundle_load_json(ag_bundle *b, const char *path, size_t max_bytes)
{
    const ag_bundle_entry *file = ag_bundle_tree_file(&b->tree, path);
    ag_arena arena = {0};
    ag_err err;
    json_t *root = NULL;
    size_t n = 0;
    const char *text = file ? ag_bundle_tree_read(&b->tree, file, max_bytes, &n, &arena, b->report) : NULL;
    if (!file)
        ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_FILE, path, "is not there; bring the file back");
    else if (text && ag_json_parse(&root, text, n, path, &err))
        ag_bundle_report_add(b->report, AG_BUNDLE_INVALID_JSON, path, "%s; bring the original back", err.text);
    if (root && !json_is_object(root)) {
        ag_bundle_report_add(b->report, AG_BUNDLE_INVALID_JSON, path, "must be a JSON object; bring the original back");
        ag_json_free(&root);
    }
    ag_arena_free(&arena);
    return root;
}
