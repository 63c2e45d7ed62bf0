#define _GNU_SOURCE
#include "seal/artifact_files.h"

#include "base/fs.h"
#include "base/json.h"
#include "seal/portable_path.h"
#include "seal/strict.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_INDEX_BYTES = 32 << 20 };

/* ---- parsing --------------------------------------------------------------------------------------------------------- */
static const ag_strict_field provenance_fields[] = {
    {"base_model_name_or_path", AG_STRICT_TEXT, 0},          {"revision", AG_STRICT_REVISION, 0},
    {"training_split_manifest_sha256", AG_STRICT_DIGEST, 0}, {"training_split_name", AG_STRICT_TEXT, 0},
    {"training_split_sha256", AG_STRICT_DIGEST, 0},
};

static ag_status parse_provenance(ag_provenance *out, const json_t *p, const char *name, ag_arena *arena, ag_err *err)
{
    if (ag_strict_object(p, "producer_provenance", provenance_fields, sizeof provenance_fields / sizeof *provenance_fields, err))
        return ag_err_prefix(err, "%s", name);
    const char **texts[] = {&out->base_model_name_or_path, &out->revision, &out->training_split_manifest_sha256, &out->training_split_name,
                            &out->training_split_sha256};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        *texts[i] = ag_arena_strdup(arena, ag_strict_text(p, provenance_fields[i].key));
    return AG_OK;
}

static int by_file(const void *a, const void *b)
{
    return strcmp(((const ag_artifact_entry *)a)->file, ((const ag_artifact_entry *)b)->file);
}

static ag_status parse_artifacts(ag_artifact_index *out, const json_t *list, const char *name, ag_arena *arena, ag_err *err)
{
    static const ag_strict_field fields[] = {
        {"file", AG_STRICT_TEXT, 0}, {"size_bytes", AG_STRICT_COUNT, 0}, {"sha256", AG_STRICT_DIGEST, 0}};
    const size_t n = json_array_size(list);
    if (n > AG_ARTIFACT_MAX_FILES)
        return ag_fail(err, AG_E_FORMAT, "%s: lists %zu files; an index holds at most %d", name, n, AG_ARTIFACT_MAX_FILES);
    out->artifacts = ag_arena_array(arena, n, sizeof *out->artifacts);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        if (ag_strict_object(item, "an entry of 'artifacts'", fields, 3, err)) return ag_err_prefix(err, "%s", name);
        const char *file = ag_strict_text(item, "file"), *fault = ag_portable_path_fault(file);
        if (fault) return ag_fail(err, AG_E_CONFIG, "%s: the path '%.200s' %s", name, file, fault);
        out->artifacts[i] = (ag_artifact_entry){.file = ag_arena_strdup(arena, file),
                                                .size_bytes = (uint64_t)json_integer_value(json_object_get(item, "size_bytes")),
                                                .sha256 = ag_arena_strdup(arena, ag_strict_text(item, "sha256"))};
    }
    out->n = n;
    if (n) qsort(out->artifacts, n, sizeof *out->artifacts, by_file);
    for (size_t i = 1; i < n; i++)
        if (strcmp(out->artifacts[i - 1].file, out->artifacts[i].file) == 0)
            return ag_fail(err, AG_E_EXISTS, "%s: lists '%.200s' twice", name, out->artifacts[i].file);
    return AG_OK;
}

static ag_status parse_root(ag_artifact_index *out, const json_t *root, const char *name, ag_arena *arena, ag_err *err)
{
    static const ag_strict_field fields[] = {
        {"output_dir", AG_STRICT_TEXT, 0}, {"artifacts", AG_STRICT_LIST, 0}, {"producer_provenance", AG_STRICT_OBJECT, AG_STRICT_OPTIONAL}};
    AG_TRY(ag_strict_object(root, name, fields, 3, err));
    out->output_dir = ag_arena_strdup(arena, ag_strict_text(root, "output_dir"));
    AG_TRY(parse_artifacts(out, json_object_get(root, "artifacts"), name, arena, err));
    const json_t *provenance = json_object_get(root, "producer_provenance");
    out->has_provenance = provenance != NULL;
    return provenance ? parse_provenance(&out->provenance, provenance, name, arena, err) : AG_OK;
}

ag_status ag_artifact_index_parse(ag_artifact_index *out, const char *bytes, size_t n, const char *name, ag_arena *arena, ag_err *err)
{
    json_t *root;
    *out = (ag_artifact_index){0};
    AG_TRY(ag_json_parse(&root, bytes, n, name, err));
    const ag_status status = parse_root(out, root, name, arena, err);
    ag_json_free(&root);
    return status;
}

ag_status ag_artifact_index_load(ag_artifact_index *out, const char *dir, ag_arena *arena, ag_err *err)
{
    const char *path = ag_path_join(arena, dir, AG_ARTIFACT_INDEX_FILE);
    char *text;
    size_t n;
    *out = (ag_artifact_index){0};
    AG_TRY(ag_file_read(&text, &n, path, MAX_INDEX_BYTES, arena, err));
    return ag_artifact_index_parse(out, text, n, path, arena, err);
}

ag_status ag_artifact_index_provenance(ag_provenance *out, bool *found, const char *dir, ag_arena *arena, ag_err *err)
{
    ag_artifact_index index;
    *found = false;
    *out = (ag_provenance){0};
    if (!ag_path_is_file(ag_path_join(arena, dir, AG_ARTIFACT_INDEX_FILE))) return AG_OK;
    AG_TRY(ag_artifact_index_load(&index, dir, arena, err));
    *found = index.has_provenance;
    *out = index.provenance;
    return AG_OK;
}

/* ---- verifying ------------------------------------------------------------------------------------------------------- */
static ag_status compare(const ag_artifact_index *index, const ag_artifact_list *list, const char *dir, ag_err *err)
{
    size_t i = 0, k = 0;
    while (i < index->n || k < list->n) {
        const int order = i == index->n ? 1 : k == list->n ? -1 : strcmp(index->artifacts[i].file, list->items[k].name);
        if (order < 0)
            return ag_fail(err, AG_E_VERIFY, "%s: %s lists %s, which is not there; bring the file back, or make the artifact again", dir,
                           AG_ARTIFACT_INDEX_FILE, index->artifacts[i].file);
        if (order > 0)
            return ag_fail(err, AG_E_VERIFY, "%s: %s is not listed in %s; remove it, or make the artifact again", dir, list->items[k].name,
                           AG_ARTIFACT_INDEX_FILE);
        if (index->artifacts[i].size_bytes != list->items[k].bytes || strcmp(index->artifacts[i].sha256, list->items[k].digest.hex) != 0)
            return ag_fail(err, AG_E_VERIFY,
                           "%s: %s is not the file that %s vouches for (%llu bytes, SHA-256 %.16s…; it lists %llu, %.16s…); "
                           "bring the original back, or make the artifact again",
                           dir, list->items[k].name, AG_ARTIFACT_INDEX_FILE, (unsigned long long)list->items[k].bytes,
                           list->items[k].digest.hex, (unsigned long long)index->artifacts[i].size_bytes, index->artifacts[i].sha256);
        i++;
        k++;
    }
    return AG_OK;
}

ag_status ag_artifact_index_verify(ag_artifact_index *out, const char *dir, int n_threads, ag_arena *arena, ag_err *err)
{
    AG_TRY(ag_artifact_index_load(out, dir, arena, err));
    ag_artifact_list list = {0};
    ag_status status = ag_artifact_list_files(&list, dir, n_threads, err);
    if (!status) status = compare(out, &list, dir, err);
    ag_arena_free(&list.arena);
    return status;
}
