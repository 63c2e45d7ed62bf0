#define _GNU_SOURCE
#include "seal/artifact_files.h"

#include "base/digest.h"
#include "base/fs.h"
#include "base/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 64 };

/* ---- the tree -------------------------------------------------------------------------------------------------------- */
static ag_status add(ag_artifact_list *list, const char *name, const char *path, uint64_t bytes, ag_err *err)
{
    if (list->n == AG_ARTIFACT_MAX_FILES)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: an index holds at most %d files; remove checkpoints that are not needed", path,
                       AG_ARTIFACT_MAX_FILES);
    if (list->n == list->room) {
        const size_t room = list->room ? list->room * 2 : 64;
        ag_artifact *items = ag_arena_array(&list->arena, room, sizeof *items);
        if (list->n) memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->room = room;
    }
    list->items[list->n++] = (ag_artifact){.name = name, .path = path, .bytes = bytes};
    return AG_OK;
}

static ag_status walk(ag_artifact_list *list, const char *dir, const char *prefix, int depth, ag_err *err)
{
    char **names;
    size_t n;
    if (depth > MAX_DEPTH) return ag_fail(err, AG_E_UNSUPPORTED, "%s: lies more than %d folders deep", dir, MAX_DEPTH);
    AG_TRY(ag_dir_list(&names, &n, dir, &list->arena, err));
    for (size_t i = 0; i < n; i++) {
        const char *path = ag_path_join(&list->arena, dir, names[i]);
        const char *name = *prefix ? ag_arena_printf(&list->arena, "%s/%s", prefix, names[i]) : names[i];
        struct stat st;
        if (!*prefix && strcmp(name, AG_ARTIFACT_INDEX_FILE) == 0) continue;
        if (lstat(path, &st)) return ag_fail_errno(err, errno, "%s: cannot be looked at", path);
        if (S_ISDIR(st.st_mode))
            AG_TRY(walk(list, path, name, depth + 1, err));
        else if (S_ISREG(st.st_mode))
            AG_TRY(add(list, name, path, (uint64_t)st.st_size, err));
        else
            return ag_fail(err, AG_E_UNSUPPORTED, "%s: is a link or a special file; an index vouches for plain files only, remove it",
                           path);
    }
    return AG_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const ag_artifact *)a)->name, ((const ag_artifact *)b)->name); }

static ag_status digest_all(ag_artifact_list *list, int n_threads, ag_err *err)
{
    ag_status failed = AG_OK;
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
    for (size_t i = 0; i < list->n; i++) {
        ag_err own;
        const ag_status status = ag_sha256_file(&list->items[i].digest, list->items[i].path, &own);
        if (!status) continue;
#pragma omp critical(ag_artifact_index)
        {
            failed = status;
            if (err) *err = own;
        }
    }
    return failed;
}

ag_status ag_artifact_list_files(ag_artifact_list *list, const char *dir, int n_threads, ag_err *err)
{
    AG_TRY(walk(list, dir, "", 0, err));
    qsort(list->items, list->n, sizeof *list->items, by_name);
    return digest_all(list, n_threads, err);
}

/* ---- the file -------------------------------------------------------------------------------------------------------- */
static void write_provenance(ag_json_writer *w, const ag_provenance *p)
{
    ag_jw_object(w, "producer_provenance");
    ag_jw_string(w, "base_model_name_or_path", p->base_model_name_or_path);
    ag_jw_string(w, "revision", p->revision);
    ag_jw_string(w, "training_split_manifest_sha256", p->training_split_manifest_sha256);
    ag_jw_string(w, "training_split_name", p->training_split_name);
    ag_jw_string(w, "training_split_sha256", p->training_split_sha256);
    ag_jw_end(w);
}

static ag_status publish(const ag_artifact_list *list, const char *dir, const char *output_dir, const ag_provenance *provenance,
                         ag_err *err)
{
    ag_str text = {0};
    ag_arena arena = {0};
    ag_json_writer w = {.out = &text, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "output_dir", output_dir);
    ag_jw_array(&w, "artifacts");
    for (size_t i = 0; i < list->n; i++) {
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "file", list->items[i].name);
        ag_jw_uint(&w, "size_bytes", list->items[i].bytes);
        ag_jw_string(&w, "sha256", list->items[i].digest.hex);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    if (provenance) write_provenance(&w, provenance);
    ag_jw_end(&w);
    ag_str_add_char(&text, '\n');
    ag_status status = ag_file_publish(ag_path_join(&arena, dir, AG_ARTIFACT_INDEX_FILE), text.text, text.n, err);
    ag_str_free(&text);
    ag_arena_free(&arena);
    return status;
}

ag_status ag_artifact_index_write(const char *dir, const char *output_dir, const ag_provenance *provenance, int n_threads, ag_err *err)
{
    ag_artifact_list list = {0};
    ag_status status = ag_artifact_list_files(&list, dir, n_threads, err);
    if (!status) status = publish(&list, dir, output_dir, provenance, err);
    ag_arena_free(&list.arena);
    return status;
}
