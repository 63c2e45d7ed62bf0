/* Gathering a bundle from a run, its split and its evaluation. What is copied is not trusted here: sealing verifies the copies. */
#define _GNU_SOURCE
#include "seal/bundle.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "seal/artifact_index.h"
#include "seal/portable_path.h"
#include "seal/split_reader.h"
#include "seal/strict.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 64, COPY_BYTES = 1 << 20, JSON_MAX_BYTES = 256 << 20 };
#define STAGING_PREFIX ".agoge-seal-staging-"

typedef struct {
    const char *dir; /* staging */
    ag_arena arena;
    unsigned char *block;
} gather;

/* ---- copying --------------------------------------------------------------------------------------------------------- */
static ag_status copy_fd(gather *g, int fd, const char *from, const char *to, ag_err *err)
{
    ag_file_writer w;
    AG_TRY(ag_file_begin(&w, to, err));
    for (;;) {
        const ssize_t got = read(fd, g->block, COPY_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            ag_file_abort(&w);
            return ag_fail_errno(err, errno, "%s cannot be read", from);
        }
        if (got == 0) return ag_file_commit(&w, err);
        AG_TRY(ag_file_write(&w, g->block, (size_t)got, err));
    }
}

static ag_status copy_file(gather *g, const char *from, const char *to, ag_err *err)
{
    struct stat st;
    const int fd = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ELOOP)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s is a symbolic link; put a copy of what it points to in its place", from);
    if (fd < 0) return ag_fail_errno(err, errno, "%s cannot be opened", from);
    ag_status status = AG_OK;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        status = ag_fail(err, AG_E_UNSUPPORTED, "%s is no regular file; a bundle holds files only, remove it", from);
    if (!status) status = ag_make_dirs(ag_path_dir(&g->arena, to), err);
    if (!status) status = copy_fd(g, fd, from, to, err);
    close(fd);
    return status;
}

static ag_status copy_tree(gather *g, const char *from, const char *to, int depth, ag_err *err)
{
    char **names;
    size_t n;
    if (depth > MAX_DEPTH) return ag_fail(err, AG_E_UNSUPPORTED, "%s lies more than %d folders deep", from, MAX_DEPTH);
    AG_TRY(ag_dir_list(&names, &n, from, &g->arena, err));
    for (size_t i = 0; i < n; i++) {
        const char *source = ag_path_join(&g->arena, from, names[i]), *target = ag_path_join(&g->arena, to, names[i]);
        struct stat st;
        if (lstat(source, &st)) return ag_fail_errno(err, errno, "%s cannot be looked at", source);
        AG_TRY(S_ISDIR(st.st_mode) ? copy_tree(g, source, target, depth + 1, err) : copy_file(g, source, target, err));
    }
    return AG_OK;
}

static const char *in_bundle(gather *g, const char *path) { return ag_path_join(&g->arena, g->dir, path); }

static ag_status put_canonical(gather *g, const char *path, const json_t *value, ag_err *err)
{
    ag_str text = {0};
    ag_json_add_canonical(&text, value);
    ag_str_add_char(&text, '\n');
    const char *target = in_bundle(g, path);
    ag_status status = ag_make_dirs(ag_path_dir(&g->arena, target), err);
    if (!status) status = ag_file_publish(target, text.text, text.n, err);
    ag_str_free(&text);
    return status;
}

/* ---- the parts ------------------------------------------------------------------------------------------------------- */
static ag_status take_run(gather *g, const ag_bundle_gather_options *o, ag_err *err)
{
    char *run_dir, *manifest;
    json_t *root;
    AG_TRY(ag_path_existing_dir(&run_dir, o->run_dir, &g->arena, err));
    if (!ag_path_is_file(ag_path_join(&g->arena, run_dir, AG_ARTIFACT_INDEX_FILE)))
        return ag_fail(err, AG_E_NOT_FOUND, "%s has no %s, so nothing says that the run ended; let it end before it is sealed", o->run_dir,
                       AG_ARTIFACT_INDEX_FILE);
    AG_TRY(copy_tree(g, run_dir, in_bundle(g, "adapter"), 0, err));
    AG_TRY(ag_path_existing_file(&manifest, o->run_manifest, &g->arena, err));
    AG_TRY(copy_file(g, manifest, in_bundle(g, "run/manifest.json"), err));
    const char *beside = ag_path_dir(&g->arena, manifest), *telemetry = ag_path_join(&g->arena, beside, "telemetry");
    char *metrics = ag_path_join(&g->arena, beside, "metrics.jsonl");
    if (o->metrics) AG_TRY(ag_path_existing_file(&metrics, o->metrics, &g->arena, err));
    if (ag_path_is_file(metrics)) AG_TRY(copy_file(g, metrics, in_bundle(g, "run/metrics.jsonl"), err));
    if (ag_path_is_dir(telemetry)) AG_TRY(copy_tree(g, telemetry, in_bundle(g, "run/telemetry"), 0, err));
    AG_TRY(ag_json_load(&root, manifest, JSON_MAX_BYTES, err));
    const json_t *config = json_object_get(root, "config");
    const ag_status status = json_is_object(config)
                                 ? put_canonical(g, "config/locked.json", config, err)
                                 : ag_fail(err, AG_E_FORMAT, "%s: has no 'config'; give the run's own manifest", o->run_manifest);
    ag_json_free(&root);
    return status;
}

static ag_status copy_splits(gather *g, const json_t *root, const char *manifest, ag_err *err)
{
    const char *name;
    json_t *split;
    json_object_foreach(json_object_get(root, "splits"), name, split)
    {
        const char *path = ag_strict_text(split, "path"), *fault = ag_portable_path_fault(path);
        if (fault)
            return ag_fail(err, AG_E_FORMAT, "%s: the path '%.200s' of the split '%.40s' %s; freeze the split again", manifest, path,
                           name, fault);
        AG_TRY(copy_file(g, ag_path_join(&g->arena, ag_path_dir(&g->arena, manifest), path), in_bundle(g, path), err));
    }
    return AG_OK;
}

static ag_status take_split(gather *g, const ag_bundle_gather_options *o, ag_err *err)
{
    char *manifest;
    ag_split_reader *reader;
    AG_TRY(ag_path_existing_file(&manifest, o->split_manifest, &g->arena, err));
    AG_TRY(ag_split_reader_load(&reader, manifest, err));
    ag_status status = copy_splits(g, reader->root, manifest, err);
    ag_split_reader_free(&reader);
    return status ? status : copy_file(g, manifest, in_bundle(g, "split_manifest.json"), err);
}

/* The contract names two files relative to where it lies; in the bundle these are the bundle's. Its digests stay, and are verified. */
static ag_status take_contract(gather *g, const ag_bundle_gather_options *o, ag_err *err)
{
    char *contract;
    json_t *root;
    AG_TRY(ag_path_existing_file(&contract, o->contract, &g->arena, err));
    AG_TRY(ag_json_load(&root, contract, JSON_MAX_BYTES, err));
    json_t *artifact = json_object_get(json_object_get(root, "sft"), "artifact");
    if (json_is_object(root)) json_object_set_new(root, "split_manifest_path", json_string("split_manifest.json"));
    if (json_is_object(artifact)) {
        const bool is_merged = strcmp(ag_strict_text(artifact, "kind"), "merged_model") == 0;
        json_object_set_new(artifact, "artifact_index_path",
                            json_string(is_merged ? "merged/artifact_index.json" : "adapter/artifact_index.json"));
    }
    ag_status status = put_canonical(g, "contract.json", root, err);
    ag_json_free(&root);
    const char *folder = ag_path_dir(&g->arena, contract);
    if (!status && ag_path_is_file(ag_path_join(&g->arena, folder, "comparison.json")))
        status = copy_tree(g, folder, in_bundle(g, "evaluation"), 0, err);
    return status;
}

static ag_status fill(gather *g, const ag_bundle_gather_options *o, ag_err *err)
{
    AG_TRY(take_run(g, o, err));
    AG_TRY(take_split(g, o, err));
    AG_TRY(take_contract(g, o, err));
    if (!o->merged_dir) return AG_OK;
    char *merged;
    AG_TRY(ag_path_existing_dir(&merged, o->merged_dir, &g->arena, err));
    return copy_tree(g, merged, in_bundle(g, "merged"), 0, err);
}

ag_status ag_bundle_gather(ag_bundle_report *report, const char *out, const ag_bundle_gather_options *options, ag_err *err)
{
    gather g = {0};
    ag_dir_writer dir = {0};
    char *checked;
    *report = (ag_bundle_report){0};
    ag_status status = ag_path_check(&checked, out, &g.arena, err);
    if (!status) status = ag_make_dirs(ag_path_dir(&g.arena, checked), err);
    if (!status) status = ag_dir_begin(&dir, checked, STAGING_PREFIX, err);
    if (status) {
        ag_arena_free(&g.arena);
        return status;
    }
    g.dir = dir.staging;
    g.block = malloc(COPY_BYTES);
    if (!g.block) ag_out_of_memory(COPY_BYTES);
    status = fill(&g, options, err);
    if (!status) {
        const ag_bundle_seal_options seal = {.parts = AG_BUNDLE_PARTS_DEFAULT, .key = options->key, .n_threads = options->n_threads};
        status = ag_bundle_seal(report, dir.staging, &seal, err);
        report->bundle_path = ag_arena_strdup(&report->arena, checked); /* not where it was staged */
        if (status == AG_E_VERIFY)
            (void)ag_fail(err, status, "%s: would not verify (%zu failure%s), so it was not made; mend what the report says", out,
                          report->n, report->n == 1 ? "" : "s");
    }
    if (!status) status = ag_dir_commit(&dir, err);
    ag_dir_abort(&dir);
    free(g.block);
    ag_arena_free(&g.arena);
    return status;
}
