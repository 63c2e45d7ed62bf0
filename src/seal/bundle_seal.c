/* Sealing: what would not verify is not sealed. */
#define _GNU_SOURCE
#include "seal/bundle_checks.h"

#include "base/fs.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Temporaries of a seal that was killed lie in the bundle and belong to nothing. */
static ag_status remove_leftovers(const char *dir, ag_arena *arena, ag_err *err)
{
    char **names;
    size_t n;
    AG_TRY(ag_dir_list(&names, &n, dir, arena, err));
    for (size_t i = 0; i < n; i++) {
        if (!ag_str_starts(names[i], AG_BUNDLE_INVENTORY_FILE ".tmp-") && !ag_str_starts(names[i], AG_BUNDLE_SIGNATURE_FILE ".tmp-"))
            continue;
        const char *path = ag_path_join(arena, dir, names[i]);
        if (unlink(path) && errno != ENOENT)
            return ag_fail_errno(err, errno, "%s, left by a seal that did not end, cannot be removed", path);
    }
    return AG_OK;
}

/* The signature goes before the inventory. A kill between the two leaves an inventory and a signature that do not belong together, which
 * fails wherever a signature is demanded, until the bundle is sealed again. */
static ag_status publish(const char *dir, const ag_str *inventory, const ag_sign_key *key, ag_arena *arena, ag_err *err)
{
    const char *signature_path = ag_path_join(arena, dir, AG_BUNDLE_SIGNATURE_FILE);
    if (key) {
        unsigned char signature[AG_SIGNATURE_BYTES];
        ag_signature_make(signature, key, inventory->text, inventory->n);
        AG_TRY(ag_file_publish(signature_path, signature, sizeof signature, err));
    } else if (unlink(signature_path) && errno != ENOENT) {
        return ag_fail_errno(err, errno, "%s, of an earlier seal, cannot be removed", signature_path);
    }
    return ag_file_publish(ag_path_join(arena, dir, AG_BUNDLE_INVENTORY_FILE), inventory->text, inventory->n, err);
}

static bool check(ag_bundle *b, ag_str *text, const char *dir, const ag_bundle_seal_options *options)
{
    if (!ag_bundle_tree_scan(&b->tree, dir, b->report)) return false;
    ag_bundle_tree_digest(&b->tree, options->n_threads, b->report);
    if (!ag_bundle_passes(b->report)) return false;
    ag_bundle_parts parts = options->parts;
    static const char usual_merged[] = "merged/" AG_ARTIFACT_INDEX_FILE;
    if (!parts.merged_index && ag_bundle_tree_file(&b->tree, usual_merged)) parts.merged_index = usual_merged;
    ag_bundle_inventory_compose(text, &b->tree, &parts);
    if (!ag_bundle_inventory_parse(&b->inventory, text->text, text->n, &b->arena, b->report)) return false;
    ag_bundle_check_all(b);
    return ag_bundle_passes(b->report);
}

ag_status ag_bundle_seal(ag_bundle_report *report, const char *dir, const ag_bundle_seal_options *options, ag_err *err)
{
    *report = (ag_bundle_report){0};
    char *real;
    AG_TRY(ag_path_existing_dir(&real, dir, &report->arena, err));
    report->bundle_path = real;
    AG_TRY(remove_leftovers(real, &report->arena, err));
    ag_bundle b = {.report = report};
    ag_str text = {0};
    ag_status status = AG_OK;
    if (!check(&b, &text, real, options))
        status = ag_fail(err, AG_E_VERIFY, "%s: would not verify (%zu failure%s), so it was not sealed; mend what the report says", dir,
                         report->n, report->n == 1 ? "" : "s");
    ag_bundle_report_sort(report);
    if (!status) status = publish(real, &text, options->key, &b.arena, err);
    if (!status && options->key) report->signature = AG_SIGNATURE_VERIFIED;
    ag_str_free(&text);
    ag_bundle_close(&b);
    return status;
}
