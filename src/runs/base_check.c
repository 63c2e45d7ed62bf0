#define _GNU_SOURCE
#include "runs/base_check.h"

#include "base/fs.h"
#include "base/json.h"
#include "base/str.h"
#include "data/model_text.h"
#include "format/safetensors.h"
#include "hub/hub.h"
#include "model/model.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    MOST_ENTRIES = 1024,
    MOST_TOKENIZER_FILES = 128,
    LARGEST_TOKENIZER_FILE = 64 << 20,
    LARGEST_TOKENIZER = 128 << 20,
    LARGEST_CONFIG = 4 << 20,
    LARGEST_INTEGER = 16777216,
    LARGEST_COUNT = 4096,
    LARGEST_PRODUCT = 65536,
    LARGEST_CONTAINER = 4096
};

/* ---- config.json within bounds ----------------------------------------------------------------------------------- */
typedef struct {
    int64_t layers, experts; /* the largest values of keys that speak of them */
    const char *name;
} bounds;

static bool holds(const char *key, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(key, parts[i])) return true;
    return false;
}

static ag_status check_integer(bounds *b, const char *key, int64_t value, ag_err *err)
{
    static const char *const layers[] = {"layer", "block", "stage", "depth"}, *const heads[] = {"heads"},
                             *const experts[] = {"expert"};
    if (value > LARGEST_INTEGER || value < -LARGEST_INTEGER)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' is %lld; no architecture needs more than %d", b->name, key,
                       (long long)value, LARGEST_INTEGER);
    const bool is_layers = holds(key, layers, 4), is_experts = holds(key, experts, 1);
    /* Sizes and ids have such words in their names, too: block_size, moe_layer_freq … are small, token ids have "_id". */
    if ((is_layers || is_experts || holds(key, heads, 1)) && value > LARGEST_COUNT && !strstr(key, "size") &&
        !strstr(key, "dim") && !strstr(key, "_id"))
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' is %lld; at most %d are looked at", b->name, key, (long long)value,
                       LARGEST_COUNT);
    if (is_layers && ag_str_starts(key, "num") && value > b->layers) b->layers = value;
    if (is_experts && ag_str_starts(key, "n") && value > b->experts) b->experts = value;
    return AG_OK;
}

static ag_status check_value(bounds *b, const char *key, const json_t *value, ag_err *err)
{
    if (json_is_integer(value)) return check_integer(b, key, json_integer_value(value), err);
    const size_t n = json_is_array(value) ? json_array_size(value) : json_object_size(value);
    if (n > LARGEST_CONTAINER)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: '%s' has %zu entries; at most %d are looked at", b->name, key, n,
                       LARGEST_CONTAINER);
    const char *inner;
    json_t *item;
    for (size_t i = 0; i < json_array_size(value); i++) AG_TRY(check_value(b, key, json_array_get(value, i), err));
    json_object_foreach((json_t *)value, inner, item) AG_TRY(check_value(b, inner, item, err));
    return AG_OK;
}

static ag_status check_config(const char *dir, ag_arena *arena, ag_err *err)
{
    json_t *root;
    bounds b = {.layers = 1, .experts = 1, .name = ag_path_join(arena, dir, "config.json")};
    AG_TRY(ag_json_load(&root, b.name, LARGEST_CONFIG, err));
    ag_status status = json_is_object(root) ? check_value(&b, "config", root, err)
                                            : ag_fail(err, AG_E_FORMAT, "%s: the config must be an object", b.name);
    if (!status && b.layers * b.experts > LARGEST_PRODUCT)
        status = ag_fail(err, AG_E_UNSUPPORTED, "%s: %lld layers of %lld experts are more than %d", b.name, (long long)b.layers,
                         (long long)b.experts, LARGEST_PRODUCT);
    ag_json_free(&root);
    return status;
}

/* ---- the tokenizer's files --------------------------------------------------------------------------------------- */
static bool is_tokenizer_file(const char *name)
{
    static const char *const ends[] = {".codes", ".jinja", ".json", ".model", ".tokenizer", ".txt"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ag_str_ends(name, ends[i])) return true;
    return false;
}

/* A link of a hub snapshot must end among its repository's blobs; elsewhere there must be none. */
static ag_status check_link(const char *dir, const char *path, bool is_snapshot, ag_arena *arena, ag_err *err)
{
    char target[PATH_MAX], blobs[PATH_MAX];
    if (is_snapshot && realpath(path, target) &&
        realpath(ag_path_join(arena, ag_path_dir(arena, ag_path_dir(arena, dir)), "blobs"), blobs)) {
        const size_t n = strlen(blobs);
        if (strncmp(target, blobs, n) == 0 && target[n] == '/') return AG_OK;
    }
    return ag_fail(err, AG_E_FORMAT, "%s is a symbolic link%s; put the file itself there", path,
                   is_snapshot ? " that does not end in the blobs of its own hub cache" : "");
}

static ag_status check_inventory(const char *dir, bool is_snapshot, ag_arena *arena, ag_err *err)
{
    char **names;
    size_t n, n_files = 0;
    int64_t bytes = 0;
    AG_TRY(ag_dir_list(&names, &n, dir, arena, err));
    if (n > MOST_ENTRIES)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s has %zu entries; a model's folder has at most %d", dir, n, MOST_ENTRIES);
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        const char *path = ag_path_join(arena, dir, names[i]);
        if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) AG_TRY(check_link(dir, path, is_snapshot, arena, err));
        if (!is_tokenizer_file(names[i]) || strcmp(names[i], "model.safetensors.index.json") == 0) continue;
        if (stat(path, &st) || !S_ISREG(st.st_mode)) continue;
        bytes += st.st_size;
        if (++n_files > MOST_TOKENIZER_FILES || st.st_size > LARGEST_TOKENIZER_FILE || bytes > LARGEST_TOKENIZER)
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "%s: the tokenizer's files are too many or too large (at most %d files of %d MiB, %d MiB in "
                           "all)",
                           path, MOST_TOKENIZER_FILES, LARGEST_TOKENIZER_FILE >> 20, LARGEST_TOKENIZER >> 20);
    }
    return AG_OK;
}

static bool is_inner_file(const char *dir, const char *name, ag_arena *arena)
{
    for (const char *part = name; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == 0)) return false;
    return name[0] && name[0] != '/' && !strchr(name, '\\') && ag_path_is_file(ag_path_join(arena, dir, name));
}

/* Files that tokenizer_config.json names must be there, inside the folder. */
static ag_status check_named_files(const char *dir, ag_arena *arena, ag_err *err)
{
    json_t *root, *value;
    const char *key, *bad = NULL, *path = ag_path_join(arena, dir, "tokenizer_config.json");
    if (!ag_path_is_file(path)) return AG_OK;
    AG_TRY(ag_json_load(&root, path, LARGEST_CONFIG, err));
    json_object_foreach(root, key, value)
    {
        if (ag_str_ends(key, "_file") && json_is_string(value) && !is_inner_file(dir, json_string_value(value), arena))
            bad = key;
        if (strcmp(key, "fast_tokenizer_files") != 0) continue;
        for (size_t i = 0; i < json_array_size(value); i++) {
            const char *name = json_string_value(json_array_get(value, i));
            if (!name || !is_inner_file(dir, name, arena)) bad = key;
        }
    }
    const ag_status status =
        bad ? ag_fail(err, AG_E_FORMAT, "%s: '%s' names a file that is not in the folder", path, bad) : AG_OK;
    ag_json_free(&root);
    return status;
}

static ag_status check_text(const char *path, ag_err *err)
{
    ag_model_text *text;
    AG_TRY(ag_model_text_open(&text, path, err));
    const ag_tokenizer *t = text->tokenizer;
    ag_status status = AG_OK;
    if (ag_tokenizer_vocab_size(t) <= 0 ||
        (ag_tokenizer_special_id(t, AG_SPECIAL_PAD) < 0 && ag_tokenizer_special_id(t, AG_SPECIAL_EOS) < 0))
        status = ag_fail(err, AG_E_FORMAT, "%s: the tokenizer has no tokens, or neither a pad nor an end token", path);
    ag_model_text_close(&text);
    return status;
}

/* ---- folders and files ------------------------------------------------------------------------------------------- */
static ag_status check_folder(ag_description *d, const char *dir, bool is_snapshot, ag_arena *arena, ag_err *err)
{
    ag_st_folder folder;
    AG_TRY(check_inventory(dir, is_snapshot, arena, err));
    AG_TRY(check_config(dir, arena, err));
    AG_TRY(ag_st_folder_open(&folder, dir, AG_ST_VERIFY, err));
    ag_st_folder_close(&folder);
    AG_TRY(ag_model_check(d, dir, arena, err));
    AG_TRY(check_named_files(dir, arena, err));
    return check_text(dir, err);
}

ag_status ag_model_folder_check(ag_description *d, const char *dir, ag_arena *arena, ag_err *err)
{
    return check_folder(d, dir, false, arena, err);
}

static bool is_commit(const char *revision) { return strlen(revision) == 40 && strspn(revision, "0123456789abcdef") == 40; }

static ag_status find_snapshot(const char **out, const char *name, const char *revision, const char *hub_cache, ag_arena *arena,
                               ag_err *err)
{
    char *dir;
    if (!ag_hub_names_model(name)) return ag_fail(err, AG_E_NOT_FOUND, "the base model '%s' is not there", name);
    if (!revision || !is_commit(revision))
        return ag_fail(err, AG_E_NOT_FOUND,
                       "the base model '%s' is neither a folder nor a file here, and is pinned to no commit (a revision of "
                       "40 hex digits), so that the hub cache cannot be asked for it",
                       name);
    const char *slash = strchr(name, '/');
    const char *repo = slash ? ag_arena_printf(arena, "models--%.*s--%s", (int)(slash - name), name, slash + 1)
                             : ag_arena_printf(arena, "models--%s", name);
    const char *path = ag_arena_printf(arena, "%s/%s/snapshots/%s", hub_cache ? hub_cache : "", repo, revision);
    if (!hub_cache || !ag_path_is_dir(path))
        return ag_fail(err, AG_E_NOT_FOUND,
                       "the base model '%s' at %s is neither a folder here nor in the hub cache %s; fetch it first", name,
                       revision, hub_cache ? hub_cache : "(none is set)");
    AG_TRY(ag_path_existing_dir(&dir, path, arena, err));
    *out = dir;
    return AG_OK;
}

ag_status ag_base_check(ag_description *d, const char *name, const char *revision, const char *hub_cache, ag_arena *arena,
                        ag_err *err)
{
    const char *snapshot = NULL;
    char *local;
    AG_TRY(ag_path_check(&local, name, arena, err));
    if (ag_path_is_dir(local)) return check_folder(d, local, false, arena, err);
    if (ag_path_is_file(local)) {
        AG_TRY(ag_model_check(d, local, arena, err));
        return check_text(local, err);
    }
    AG_TRY(find_snapshot(&snapshot, name, revision, hub_cache, arena, err));
    return check_folder(d, snapshot, true, arena, err);
}
