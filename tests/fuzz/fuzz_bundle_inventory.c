/* A bundle's inventory: what is accepted is written as the same inventory again. */
#include "seal/bundle_inventory.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_bundle_report report = {0};
    ag_bundle_inventory inventory;
    ag_arena arena = {0};
    ag_str text = {0};
    const bool ok = ag_bundle_inventory_parse(&inventory, (const char *)data, size, &arena, &report);
    if (ok != (report.n == 0) || ok != (report.schema_version != NULL)) abort();
    for (size_t i = 0; ok && i < inventory.n; i++)
        if (ag_bundle_inventory_find(&inventory, inventory.files[i].path) != &inventory.files[i]) abort();
    ag_bundle_report_sort(&report);
    report.bundle_path = "fuzz";
    ag_bundle_report_write_json(&report, &text);
    ag_bundle_report_write_table(&report, &text);
    ag_str_free(&text);
    ag_arena_free(&arena);
    ag_bundle_report_free(&report);
    return 0;
}
