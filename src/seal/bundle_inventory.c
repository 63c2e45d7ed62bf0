#include "seal/bundle_inventory.h"

#include "base/json.h"
#include "seal/portable_path.h"
#include "seal/strict.h"

#include <stdlib.h>
#include <string.h>

bool ag_bundle_is_seal(const char *path)
{
    return strcmp(path, AG_BUNDLE_INVENTORY_FILE) == 0 || strcmp(path, AG_BUNDLE_SIGNATURE_FILE) == 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const ag_inventory_file *)a)->path, ((const ag_inventory_file *)b)->path);
}

const ag_inventory_file *ag_bundle_inventory_find(const ag_bundle_inventory *inventory, const char *path)
{
    const ag_inventory_file key = {.path = path};
    return inventory->n ? bsearch(&key, inventory->files, inventory->n, sizeof *inventory->files, by_path) : NULL;
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */
static const ag_strict_field root_fields[] = {
    {"schema_version", AG_STRICT_TEXT, 0},
    {"files", AG_STRICT_LIST, 0},
    {"run_manifest_path", AG_STRICT_STRING, 0},
    {"locked_config_path", AG_STRICT_STRING, 0},
    {"split_manifest_path", AG_STRICT_STRING, 0},
    {"adapter_artifact_index_path", AG_STRICT_STRING, 0},
    {"evaluation_contract_path", AG_STRICT_STRING, 0},
    {"merged_artifact_index_path", AG_STRICT_STRING, AG_STRICT_NULLABLE | AG_STRICT_OPTIONAL},
};
static const ag_strict_field file_fields[] = {
    {"path", AG_STRICT_STRING, 0}, {"size_bytes", AG_STRICT_COUNT, 0}, {"sha256", AG_STRICT_DIGEST, 0}};

static bool check_version(const json_t *root, ag_bundle_report *report)
{
    const json_t *version = json_object_get(root, "schema_version");
    const char *text = json_string_value(version);
    if (text && strcmp(text, AG_BUNDLE_VERSION) == 0) return true;
    if (!json_is_object(root))
        ag_bundle_report_add(report, AG_BUNDLE_INVALID_JSON, AG_BUNDLE_INVENTORY_FILE, "must be a JSON object; seal the bundle again");
    else
        ag_bundle_report_add(report, AG_BUNDLE_UNKNOWN_VERSION, AG_BUNDLE_INVENTORY_FILE,
                             "schema_version is '%.200s', this program knows '%s'; verify with a version of agoge that knows it",
                             text ? text : version ? "(no text)" : "(missing)", AG_BUNDLE_VERSION);
    return false;
}

/* False where the path cannot stand in an inventory; says so. */
static bool check_path(const char *path, ag_bundle_report *report)
{
    const char *fault = ag_portable_path_fault(path);
    if (fault)
        ag_bundle_report_add(report, AG_BUNDLE_PATH_ESCAPING, path, "the inventory's path %s; seal the bundle again", fault);
    else if (strcmp(path, AG_BUNDLE_INVENTORY_FILE) == 0 || strcmp(path, AG_BUNDLE_SIGNATURE_FILE) == 0)
        ag_bundle_report_add(report, AG_BUNDLE_INVALID_JSON, path, "the inventory lists the seal itself; seal the bundle again");
    else
        return true;
    return false;
}

static bool read_files(ag_bundle_inventory *out, const json_t *list, ag_arena *arena, ag_bundle_report *report)
{
    const size_t n = json_array_size(list), n_failures = report->n;
    ag_err err;
    if (n == 0)
        ag_bundle_report_add(report, AG_BUNDLE_INVALID_JSON, AG_BUNDLE_INVENTORY_FILE, "'files' is empty; seal the bundle again");
    out->files = ag_arena_array(arena, n, sizeof *out->files);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        if (ag_strict_object(item, "an entry of 'files'", file_fields, 3, &err)) {
            ag_bundle_report_add(report, AG_BUNDLE_INVALID_JSON, AG_BUNDLE_INVENTORY_FILE, "%s; seal the bundle again", err.text);
            return false;
        }
        const char *path = ag_strict_text(item, "path");
        if (!check_path(path, report)) continue;
        out->files[out->n++] = (ag_inventory_file){.path = ag_arena_strdup(arena, path),
                                                   .sha256 = ag_arena_strdup(arena, ag_strict_text(item, "sha256")),
                                                   .size_bytes = (uint64_t)json_integer_value(json_object_get(item, "size_bytes"))};
    }
    if (out->n) qsort(out->files, out->n, sizeof *out->files, by_path);
    for (size_t i = 1; i < out->n; i++)
        if (strcmp(out->files[i - 1].path, out->files[i].path) == 0 && (i == 1 || strcmp(out->files[i - 2].path, out->files[i].path) != 0))
            ag_bundle_report_add(report, AG_BUNDLE_DUPLICATE_PATH, out->files[i].path,
                                 "the inventory lists it more than once; seal the bundle again");
    return report->n == n_failures;
}

static void read_part(const char **out, const ag_bundle_inventory *inventory, const json_t *root, const char *key, ag_arena *arena,
                      ag_bundle_report *report)
{
    const char *path = json_string_value(json_object_get(root, key));
    *out = NULL;
    if (!path) return; /* only where null is allowed */
    const char *fault = ag_portable_path_fault(path);
    if (fault)
        ag_bundle_report_add(report, AG_BUNDLE_PATH_ESCAPING, path, "'%s' %s; seal the bundle again", key, fault);
    else if (!ag_bundle_inventory_find(inventory, path))
        ag_bundle_report_add(report, AG_BUNDLE_MISSING_FILE, path,
                             "'%s' names a file that the inventory does not list; seal the bundle again", key);
    else
        *out = ag_arena_strdup(arena, path);
}

static bool read_root(ag_bundle_inventory *out, const json_t *root, ag_arena *arena, ag_bundle_report *report)
{
    ag_err err;
    const size_t n_failures = report->n;
    if (!check_version(root, report)) return false;
    if (ag_strict_object(root, "the inventory", root_fields, sizeof root_fields / sizeof *root_fields, &err)) {
        ag_bundle_report_add(report, AG_BUNDLE_INVALID_JSON, AG_BUNDLE_INVENTORY_FILE, "%s; seal the bundle again", err.text);
        return false;
    }
    if (!read_files(out, json_object_get(root, "files"), arena, report)) return false;
    ag_bundle_parts *p = &out->parts;
    read_part(&p->run_manifest, out, root, "run_manifest_path", arena, report);
    read_part(&p->locked_config, out, root, "locked_config_path", arena, report);
    read_part(&p->split_manifest, out, root, "split_manifest_path", arena, report);
    read_part(&p->adapter_index, out, root, "adapter_artifact_index_path", arena, report);
    read_part(&p->merged_index, out, root, "merged_artifact_index_path", arena, report);
    read_part(&p->contract, out, root, "evaluation_contract_path", arena, report);
    return report->n == n_failures;
}

bool ag_bundle_inventory_parse(ag_bundle_inventory *out, const char *bytes, size_t n, ag_arena *arena, ag_bundle_report *report)
{
    ag_err err;
    json_t *root;
    *out = (ag_bundle_inventory){0};
    if (ag_json_parse(&root, bytes, n, AG_BUNDLE_INVENTORY_FILE, &err)) {
        ag_bundle_report_add(report, AG_BUNDLE_INVALID_JSON, AG_BUNDLE_INVENTORY_FILE, "%s; seal the bundle again", err.text);
        return false;
    }
    const bool ok = read_root(out, root, arena, report);
    if (ok) report->schema_version = AG_BUNDLE_VERSION;
    ag_json_free(&root);
    return ok;
}

/* ---- writing --------------------------------------------------------------------------------------------------------- */
void ag_bundle_inventory_compose(ag_str *out, const ag_bundle_tree *tree, const ag_bundle_parts *parts)
{
    ag_json_writer w = {.out = out, .indent = -1}; /* keys go out sorted: canonical JSON */
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "adapter_artifact_index_path", parts->adapter_index);
    ag_jw_string(&w, "evaluation_contract_path", parts->contract);
    ag_jw_array(&w, "files");
    for (size_t i = 0; i < tree->n; i++) {
        const ag_bundle_entry *e = &tree->entries[i];
        if (e->is_dir || ag_bundle_is_seal(e->path)) continue;
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "path", e->path);
        ag_jw_string(&w, "sha256", e->digest.hex);
        ag_jw_uint(&w, "size_bytes", e->identity.size);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_string(&w, "locked_config_path", parts->locked_config);
    ag_jw_string(&w, "merged_artifact_index_path", parts->merged_index);
    ag_jw_string(&w, "run_manifest_path", parts->run_manifest);
    ag_jw_string(&w, "schema_version", AG_BUNDLE_VERSION);
    ag_jw_string(&w, "split_manifest_path", parts->split_manifest);
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
}
