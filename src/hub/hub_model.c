/* A model by its hub id: which files make one, and whether the cache has them all. */
#define _GNU_SOURCE
#include "base/json.h"
#include "base/log.h"
#include "hub/hub_names.h"
#include "hub/hub_pull.h"

#include <string.h>

enum { MOST_INDEX_BYTES = 16 << 20 };

/* Files that a model may have or not; the cache knows of each, or the server is asked. */
static const char *const optional[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
                                       "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json"};
enum { N_OPTIONAL = sizeof optional / sizeof *optional };

bool ag_hub_names_model(const char *text) { return ag_hub_is_id(text); }

/* ---- in the cache --------------------------------------------------------------------------------------------------------------- */
typedef struct {
    const char *path;  /* NULL: config or weights are missing */
    bool is_complete;  /* and nothing is left to ask for */
} found;

static ag_status has_file(bool *has, const ag_hub_store *s, const char *commit, const char *file, ag_err *err)
{
    const char *path;
    AG_TRY(ag_hub_snapshot_file(&path, NULL, s, commit, file, err));
    *has = path != NULL;
    return AG_OK;
}

/* All files that an index of shards names. */
static ag_status has_shards(bool *has, const ag_hub_store *s, const char *index, const char *commit, ag_err *err)
{
    json_t *root;
    const char *key;
    json_t *value;
    AG_TRY(ag_json_load(&root, index, MOST_INDEX_BYTES, err));
    ag_status status = AG_OK;
    json_t *map = json_object_get(root, "weight_map");
    *has = json_object_size(map) > 0;
    json_object_foreach(map, key, value) {
        const char *name = json_string_value(value);
        if (!status && *has && name && !(status = ag_hub_file_check(name, err))) status = has_file(has, s, commit, name, err);
    }
    ag_json_free(&root);
    return status;
}

static ag_status has_weights(bool *has, const ag_hub_store *s, const char *commit, ag_err *err)
{
    const char *index;
    AG_TRY(has_file(has, s, commit, "model.safetensors", err));
    if (*has) return AG_OK;
    AG_TRY(ag_hub_snapshot_file(&index, NULL, s, commit, "model.safetensors.index.json", err));
    return index ? has_shards(has, s, index, commit, err) : AG_OK;
}

/* The one .gguf file of a snapshot without config.json. */
static ag_status find_gguf(found *f, const ag_hub_store *s, const char *commit, ag_err *err)
{
    char **names;
    size_t n, n_gguf = 0;
    const char *snapshot = ag_hub_store_snapshot(s, commit), *path = NULL;
    if (!ag_path_is_dir(snapshot)) return AG_OK;
    AG_TRY(ag_dir_list(&names, &n, snapshot, s->arena, err));
    for (size_t i = 0; i < n; i++) {
        if (!ag_str_ends(names[i], ".gguf")) continue;
        AG_TRY(ag_hub_snapshot_file(&path, NULL, s, commit, names[i], err));
        n_gguf++;
    }
    if (n_gguf == 1 && path) *f = (found){.path = path, .is_complete = true};
    return AG_OK;
}

static ag_status find_model(found *f, const ag_hub_store *s, const char *commit, ag_err *err)
{
    bool has_config, has = false;
    *f = (found){0};
    if (!commit[0]) return AG_OK;
    AG_TRY(has_file(&has_config, s, commit, "config.json", err));
    if (!has_config) return find_gguf(f, s, commit, err);
    AG_TRY(has_weights(&has, s, commit, err));
    if (!has) return AG_OK;
    f->path = ag_hub_store_snapshot(s, commit);
    f->is_complete = true;
    for (int i = 0; i < N_OPTIONAL && f->is_complete; i++) {
        AG_TRY(has_file(&has, s, commit, optional[i], err));
        f->is_complete = has || ag_hub_is_known_missing(s, commit, optional[i]);
    }
    return AG_OK;
}

/* ---- on the server ---------------------------------------------------------------------------------------------------------------- */
/* Of the files at the top: JSON, templates, the tokenizer's model, and the weights that transformers' own names have. */
static bool is_of_a_model(const char *name)
{
    if (strchr(name, '/')) return false;
    return ag_hub_glob_match("*.json", name) || ag_hub_glob_match("*.jinja", name) || strcmp(name, "tokenizer.model") == 0 ||
           ag_hub_glob_match("model*.safetensors", name);
}

static ag_status choose_gguf(const ag_hub_job *j, const char **chosen, size_t *n, const ag_hub_listing *listing, ag_err *err)
{
    ag_str names = {0};
    size_t n_gguf = 0;
    for (size_t i = 0; i < listing->n_files; i++) {
        if (!ag_str_ends(listing->files[i], ".gguf")) continue;
        chosen[0] = listing->files[i];
        if (names.n < 400) ag_str_printf(&names, "%s%s", n_gguf > 0 ? ", " : "", listing->files[i]);
        n_gguf++;
    }
    ag_status status = AG_OK;
    *n = 1;
    if (n_gguf == 0)
        status = ag_fail(err, AG_E_UNSUPPORTED, "%s has neither config.json with model*.safetensors nor a .gguf file; agoge reads those", j->request->id);
    else if (n_gguf > 1)
        status = ag_fail(err, AG_E_USAGE, "%s has %zu .gguf files (%.400s); fetch one with `agoge pull %s --include NAME` and give its path",
                         j->request->id, n_gguf, names.text, j->request->id);
    ag_str_free(&names);
    return status;
}

static ag_status choose_model(void *user, const char **chosen, size_t *n, const ag_hub_listing *listing, ag_err *err)
{
    const ag_hub_job *j = user;
    bool has_config = false, has_weights_ = false;
    for (size_t i = 0; i < listing->n_files; i++) {
        has_config |= strcmp(listing->files[i], "config.json") == 0;
        has_weights_ |= ag_hub_glob_match("model*.safetensors", listing->files[i]) && !strchr(listing->files[i], '/');
    }
    if (!has_config || !has_weights_) return choose_gguf(j, chosen, n, listing, err);
    for (size_t i = 0; i < listing->n_files; i++)
        if (is_of_a_model(listing->files[i])) chosen[(*n)++] = listing->files[i];
    return AG_OK;
}

/* What the list does not have, the cache knows from now on. */
static void mark_missing(const ag_hub_job *j)
{
    for (int i = 0; i < N_OPTIONAL; i++) {
        bool is_listed = false;
        for (size_t k = 0; k < j->listing.n_files && !is_listed; k++) is_listed = strcmp(j->listing.files[k], optional[i]) == 0;
        if (!is_listed) ag_hub_mark_missing(&j->store, j->listing.commit, optional[i]);
    }
}

ag_status ag_hub_model(const char **path, const ag_hub_options *options, const char *id, const char *revision, ag_arena *arena, ag_err *err)
{
    ag_hub_job job;
    found f;
    char commit[41];
    ag_hub_snapshot snapshot;
    const ag_hub_request request = {.id = id, .revision = revision};
    *path = NULL;
    AG_TRY(ag_hub_job_open(&job, options, &request, arena, err));
    AG_TRY(ag_hub_ref_read(commit, &job.store, job.revision, err));
    AG_TRY(find_model(&f, &job.store, commit, err));
    *path = f.path;
    if (f.is_complete || (f.path && options->offline)) return AG_OK;
    if (options->offline)
        return ag_fail(err, AG_E_NOT_FOUND, "%s@%s is not in the cache %s, and nothing may be fetched (HF_HUB_OFFLINE); pull it once online", id,
                       job.revision, job.store.root);
    job.choose = choose_model;
    job.user = &job;
    const ag_status status = ag_hub_job_run(&snapshot, &job, err);
    if (status == AG_E_IO && f.path) {
        ag_log(AG_LOG_WARN, "%s; going on with what the cache has of it", err->text);
        return AG_OK;
    }
    AG_TRY(status);
    mark_missing(&job);
    AG_TRY(find_model(&f, &job.store, snapshot.commit, err));
    *path = f.path;
    return f.path ? AG_OK : ag_fail(err, AG_E_FORMAT, "%s@%s: the files that model.safetensors.index.json names are not all there", id, job.revision);
}
