#include "seal/bundle_checks.h"

#include "seal/portable_path.h"
#include "seal/strict.h"

#include <stdlib.h>
#include <string.h>

enum { INDEX_MAX_BYTES = 32 << 20, CONFIG_MAX_BYTES = 4 << 20, SHARD_INDEX_MAX_BYTES = 32 << 20 };

static void fail(ag_bundle *b, const char *path, const char *what)
{
    ag_bundle_report_add(b->report, AG_BUNDLE_ARTIFACT_INDEX, path, "%s", what);
}

static const ag_artifact_entry *find(const ag_artifact_index *index, const char *file)
{
    for (size_t lo = 0, hi = index->n; lo < hi;) {
        const size_t mid = lo + (hi - lo) / 2;
        const int order = strcmp(file, index->artifacts[mid].file);
        if (order == 0) return &index->artifacts[mid];
        if (order < 0) hi = mid;
        else lo = mid + 1;
    }
    return NULL;
}

static const char *in_dir(ag_bundle *b, const char *dir, const char *file)
{
    return *dir ? ag_arena_printf(&b->arena, "%s/%s", dir, file) : file;
}

/* ---- the index against the files of its folder ----------------------------------------------------------------------- */
static void check_files(ag_bundle *b, const ag_bundle_artifact *a, const char *dir)
{
    const size_t n_dir = strlen(dir);
    for (size_t i = 0; i < a->index.n; i++) {
        const ag_artifact_entry *listed = &a->index.artifacts[i];
        const char *path = in_dir(b, dir, listed->file);
        const ag_inventory_file *sealed = ag_bundle_inventory_find(&b->inventory, path);
        if (!sealed)
            ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_FILE, path,
                                 "the artifact index lists it, and it is not there; bring the file back");
        else if (sealed->size_bytes != listed->size_bytes || strcmp(sealed->sha256, listed->sha256) != 0)
            ag_bundle_report_add(b->report, AG_BUNDLE_MODIFIED_FILE, path,
                                 "is not the file that the run's artifact index vouches for (SHA-256 %s); bring the original back",
                                 listed->sha256);
    }
    for (size_t i = 0; i < b->inventory.n; i++) {
        const char *path = b->inventory.files[i].path;
        if (n_dir && (strncmp(path, dir, n_dir) != 0 || path[n_dir] != '/')) continue;
        if (strcmp(path, a->path) == 0 || find(&a->index, n_dir ? path + n_dir + 1 : path)) continue;
        ag_bundle_report_add(b->report, AG_BUNDLE_EXTRA_FILE, path,
                             "lies among the artifacts, and their index does not list it; move it elsewhere in the bundle");
    }
}

static void check_provenance(ag_bundle *b, const ag_bundle_artifact *a)
{
    const ag_provenance *p = &a->index.provenance;
    if (!a->index.has_provenance) {
        fail(b, a->path, "carries no producer_provenance; train on a frozen split");
        return;
    }
    if (b->split.is_read && strcmp(p->training_split_manifest_sha256, b->split.manifest_sha256) != 0)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, a->path,
                             "was made with another split manifest (SHA-256 %s); bundle the one it was trained on",
                             p->training_split_manifest_sha256);
    if (strcmp(p->training_split_name, "train") != 0)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, a->path,
                             "was trained on the split '%.80s', not on 'train'; train on the train split", p->training_split_name);
    if (b->split.is_read && strcmp(p->training_split_sha256, b->split.train_sha256) != 0)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, a->path,
                             "was trained on another train split (SHA-256 %s); bundle the one it was trained on",
                             p->training_split_sha256);
    if (!b->locked.is_read) return;
    if (strcmp(p->base_model_name_or_path, b->locked.model_id) != 0)
        fail(b, a->path, "its provenance names another base model than the locked config; bundle the config that it was trained with");
    if (!b->locked.revision || strcmp(p->revision, b->locked.revision) != 0)
        fail(b, a->path,
             "its provenance names another revision of the base than the locked config; bundle the config that it was trained with");
}

/* ---- layouts --------------------------------------------------------------------------------------------------------- */
static void check_adapter_config(ag_bundle *b, const ag_bundle_artifact *a, const char *path)
{
    json_t *root = ag_bundle_load_json(b, path, CONFIG_MAX_BYTES);
    if (!root) return;
    const char *peft_type = ag_strict_text(root, "peft_type"), *base = ag_strict_text(root, "base_model_name_or_path");
    if (!*peft_type) fail(b, path, "has no 'peft_type'; save the adapter again");
    if (!*base) fail(b, path, "has no 'base_model_name_or_path'; save the adapter again");
    if (a->index.has_provenance && *base && strcmp(base, a->index.provenance.base_model_name_or_path) != 0)
        fail(b, path, "names another base model than the provenance; bring the run's own adapter");
    if (a->index.has_provenance && strcmp(ag_strict_text(root, "revision"), a->index.provenance.revision) != 0)
        fail(b, path, "names another revision of the base than the provenance; bring the run's own adapter");
    ag_json_free(&root);
}

static void check_adapter_layout(ag_bundle *b, const ag_bundle_artifact *a, const char *dir)
{
    static const char *const needed[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (int i = 0; i < 2; i++)
        if (!find(&a->index, needed[i]))
            ag_bundle_report_add(b->report, AG_BUNDLE_ARTIFACT_INDEX, a->path, "lists no %s; bundle a whole adapter", needed[i]);
    if (find(&a->index, needed[0])) check_adapter_config(b, a, in_dir(b, dir, needed[0]));
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static void check_shards(ag_bundle *b, const ag_bundle_artifact *a, const char *dir, const char *path)
{
    json_t *root = ag_bundle_load_json(b, path, SHARD_INDEX_MAX_BYTES), *value;
    if (!root) return;
    const json_t *map = json_object_get(root, "weight_map");
    const char *key;
    size_t n = 0;
    const char **shards = calloc(json_object_size(map) + 1, sizeof *shards);
    if (!shards) ag_out_of_memory(sizeof *shards);
    if (json_object_size(map) == 0) fail(b, path, "has no 'weight_map'; export the model again");
    json_object_foreach((json_t *)map, key, value)
    {
        shards[n++] = json_string_value(value);
        if (shards[n - 1] && *shards[n - 1]) continue;
        fail(b, path, "its weight_map names a shard by something else than a text; export the model again");
        n = 0;
        break;
    }
    if (n) qsort(shards, n, sizeof *shards, by_text);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && strcmp(shards[i - 1], shards[i]) == 0) continue;
        const char *fault = ag_portable_path_fault(shards[i]);
        if (fault)
            ag_bundle_report_add(b->report, AG_BUNDLE_PATH_ESCAPING, path, "the shard '%.200s' %s; export the model again", shards[i],
                                 fault);
        else if (!find(&a->index, shards[i]))
            ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_FILE, in_dir(b, dir, shards[i]),
                                 "the shard index names it, and the artifact index does not list it; export the model again");
    }
    free(shards);
    ag_json_free(&root);
}

static void check_merged_layout(ag_bundle *b, const ag_bundle_artifact *a, const char *dir)
{
    const bool whole = find(&a->index, "model.safetensors"), sharded = find(&a->index, "model.safetensors.index.json");
    if (whole == sharded)
        fail(b, a->path, whole ? "lists both model.safetensors and a shard index; export the model again"
                               : "lists neither model.safetensors nor model.safetensors.index.json; bundle a whole model");
    if (sharded) check_shards(b, a, dir, in_dir(b, dir, "model.safetensors.index.json"));
    if (!find(&a->index, "config.json")) {
        fail(b, a->path, "lists no config.json; bundle a whole model");
        return;
    }
    const char *path = in_dir(b, dir, "config.json");
    json_t *root = ag_bundle_load_json(b, path, CONFIG_MAX_BYTES);
    if (root && !*ag_strict_text(root, "model_type")) fail(b, path, "has no 'model_type'; export the model again");
    ag_json_free(&root);
}

/* ---- both ------------------------------------------------------------------------------------------------------------ */
static bool load_index(ag_bundle *b, ag_bundle_artifact *a, const char *path)
{
    const ag_bundle_entry *file = ag_bundle_tree_file(&b->tree, path);
    ag_err err;
    size_t n;
    a->path = path;
    const char *text = file ? ag_bundle_tree_read(&b->tree, file, INDEX_MAX_BYTES, &n, &b->arena, b->report) : NULL;
    if (!text) return false;
    const ag_status status = ag_artifact_index_parse(&a->index, text, n, "the index", &b->arena, &err);
    if (status)
        ag_bundle_report_add(b->report,
                             status == AG_E_CONFIG   ? AG_BUNDLE_PATH_ESCAPING
                             : status == AG_E_EXISTS ? AG_BUNDLE_DUPLICATE_PATH
                                                     : AG_BUNDLE_INVALID_JSON,
                             path, "%s; bring the run's own index", err.text);
    a->is_read = !status;
    return a->is_read;
}

void ag_bundle_check_artifacts(ag_bundle *b)
{
    const struct {
        ag_bundle_artifact *artifact;
        const char *path;
        void (*check_layout)(ag_bundle *, const ag_bundle_artifact *, const char *dir);
    } both[] = {{&b->adapter, b->inventory.parts.adapter_index, check_adapter_layout},
                {&b->merged, b->inventory.parts.merged_index, check_merged_layout}};
    for (int i = 0; i < 2; i++) {
        if (!both[i].path || !load_index(b, both[i].artifact, both[i].path)) continue;
        const char *dir = ag_portable_path_dir(&b->arena, both[i].path);
        check_files(b, both[i].artifact, dir);
        check_provenance(b, both[i].artifact);
        both[i].check_layout(b, both[i].artifact, dir);
    }
}
