#define _GNU_SOURCE
#include "support/bundle_bench.h"

#include "support/file_tools.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/digest.h"
#include "seal/artifact_index.h"
#include "seal/bundle_inventory.h"

static char folder[512], name[64];

const char *bundle_begin(const char *which)
{
    char from[512];
    snprintf(from, sizeof from, "%s/golden/seal/%s", AGOGE_TESTS_DIR, which);
    snprintf(folder, sizeof folder, "%s/bundle", scratch_dir_create());
    snprintf(name, sizeof name, "%s", which);
    file_tree_copy(from, folder);
    return folder;
}

void bundle_end(void) { scratch_dir_remove(); }

const char *bundle_file(const char *file)
{
    static char paths[8][1200];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, file);
    return path;
}

void bundle_reseal(void)
{
    ag_bundle_report report = {0};
    ag_bundle_tree tree;
    ag_bundle_parts parts = AG_BUNDLE_PARTS_DEFAULT;
    ag_str text = {0};
    if (strcmp(name, "merged") == 0) parts.merged_index = "merged/artifact_index.json";
    assert_true(ag_bundle_tree_scan(&tree, folder, &report));
    ag_bundle_tree_digest(&tree, 1, &report);
    assert_true(ag_bundle_passes(&report));
    ag_bundle_inventory_compose(&text, &tree, &parts);
    file_put(bundle_file(AG_BUNDLE_INVENTORY_FILE), text.text);
    ag_str_free(&text);
    ag_bundle_tree_close(&tree);
    ag_bundle_report_free(&report);
}

void bundle_reindex(const char *of)
{
    ag_err err;
    ag_arena arena = {0};
    ag_artifact_index index;
    ag_sha256 before, after;
    char path[512];
    snprintf(path, sizeof path, "%s/artifact_index.json", of);
    must(ag_artifact_index_load(&index, bundle_file(of), &arena, &err));
    must(ag_sha256_file(&before, bundle_file(path), &err));
    must(ag_artifact_index_write(bundle_file(of), index.output_dir, index.has_provenance ? &index.provenance : NULL, 1, &err));
    must(ag_sha256_file(&after, bundle_file(path), &err));
    char *contract = file_text(bundle_file("contract.json"));
    if (strstr(contract, before.hex)) file_replace(bundle_file("contract.json"), before.hex, after.hex);
    free(contract);
    ag_arena_free(&arena);
    bundle_reseal();
}

static void verify(const char *failures, const char *part)
{
    ag_err err;
    ag_bundle_report report;
    ag_str found = {0};
    bool has_part = part == NULL;
    ag_str_add(&found, "");
    must(ag_bundle_verify(&report, folder, &(ag_bundle_verify_options){.n_threads = 2}, &err));
    for (size_t i = 0; i < report.n; i++) {
        ag_str_printf(&found, "%s%s%s\n", ag_bundle_code_name(report.failures[i].code), report.failures[i].path ? " " : "",
                      report.failures[i].path ? report.failures[i].path : "");
        has_part = has_part || strstr(report.failures[i].message, part);
    }
    if (strcmp(found.text, failures) != 0 || !has_part) {
        ag_str table = {0};
        ag_bundle_report_write_table(&report, &table);
        fail_msg("wanted:\n%s(with '%s')\nfound:\n%s%s", failures, part ? part : "", found.text, table.text);
    }
    ag_str_free(&found);
    ag_bundle_report_free(&report);
}

void bundle_expect(const char *failures) { verify(failures, NULL); }
void bundle_expect_message(const char *failures, const char *part) { verify(failures, part); }
