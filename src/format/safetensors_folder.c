#define _GNU_SOURCE
#include "base/json.h"
#include "format/safetensors.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_INDEX_BYTES = 4 << 20 };
static const char single_name[] = "model.safetensors", index_name[] = "model.safetensors.index.json";

static bool is_shard_name(const char *name)
{
    return ag_str_ends(name, ".safetensors") && strcmp(name, "adapter_model.safetensors") != 0;
}

/* A link of a hub cache snapshot must end among the blobs of its own repository; other links are refused, for what they point
 * to is not part of the folder that is recorded and verified. */
static ag_status check_link(ag_st_folder *f, const char *name, ag_err *err)
{
    const char *dir = f->dir;
    ag_arena *arena = &f->arena;
    if (f->use == AG_ST_READ) return AG_OK;
    const char *path = ag_path_join(arena, dir, name);
    struct stat info;
    if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode)) return AG_OK; /* a missing file is named by who opens it */
    char real_dir[PATH_MAX], blobs[PATH_MAX], target[PATH_MAX];
    if (realpath(dir, real_dir) && realpath(path, target)) {
        const char *parent = ag_path_dir(arena, real_dir);
        if (strcmp(ag_path_base(parent), "snapshots") == 0 &&
            realpath(ag_path_join(arena, ag_path_dir(arena, parent), "blobs"), blobs)) {
            size_t n = strlen(blobs);
            if (strncmp(target, blobs, n) == 0 && target[n] == '/') return AG_OK;
        }
    }
    return ag_fail(err, AG_E_FORMAT,
                   "%s is a symbolic link that does not end in the blobs of its own hub cache; put the file itself there",
                   path);
}

static size_t add_shard_name(const char **names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return n;
    names[n] = name;
    return n + 1;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Reads "<digits>" at *text, moves on and gives the number of digits; more than 9 digits count as none. */
static int read_digits(const char **text, long *value)
{
    int n = 0;
    *value = 0;
    while (**text >= '0' && **text <= '9' && n < 10) *value = *value * 10 + (*(*text)++ - '0'), n++;
    return n < 10 ? n : 0;
}

/* model-<i>-of-<n>.safetensors: false where the name has another form. */
static bool read_numbering(const char *name, long *i, long *n, int *width)
{
    if (!ag_str_starts(name, "model-")) return false;
    const char *at = name + strlen("model-");
    int first = read_digits(&at, i);
    if (first == 0 || !ag_str_starts(at, "-of-")) return false;
    at += strlen("-of-");
    int second = read_digits(&at, n);
    *width = first == second ? first : -1;
    return second > 0 && strcmp(at, ".safetensors") == 0;
}

static ag_status check_numbering(const char *index_path, const char **names, size_t n_names, ag_err *err)
{
    int numbered = 0, width = 0;
    for (size_t k = 0; k < n_names; k++) {
        long i, n;
        int this_width;
        if (!read_numbering(names[k], &i, &n, &this_width)) continue;
        if (numbered++ == 0) width = this_width;
        if (this_width < 0 || this_width != width || n != (long)n_names || i < 1 || i > n)
            return ag_fail(err, AG_E_FORMAT, "%s: shard '%s' does not fit a complete numbering of %zu shards; some are missing",
                           index_path, names[k], n_names);
    }
    if (numbered != 0 && (size_t)numbered != n_names)
        return ag_fail(err, AG_E_FORMAT, "%s: %d of %zu shards are numbered model-<i>-of-<n>, the others are not", index_path,
                       numbered, n_names);
    return AG_OK;
}

/* The shard names that the weight map gives, sorted. */
static ag_status shard_names(const char ***names, size_t *n, json_t *weight_map, const char *index_path, ag_arena *arena,
                             ag_err *err)
{
    const char *key;
    json_t *value;
    *names = ag_arena_array(arena, json_object_size(weight_map), sizeof **names);
    *n = 0;
    const char *last = "";
    json_object_foreach(weight_map, key, value)
    {
        const char *name = json_string_value(value);
        if (!name || !is_shard_name(name) || strchr(name, '/') || strchr(name, '\\') || name[0] == '.')
            return ag_fail(err, AG_E_FORMAT,
                           "%s: 'weight_map' must give each tensor the name of a *.safetensors file in the same folder; "
                           "'%.100s' has '%.100s'",
                           index_path, key, name ? name : "no text");
        if (strcmp(name, last) != 0) *n = add_shard_name(*names, *n, name);
        last = name;
        /* Files of a folder are few; more are no model but a way to keep us busy. */
        if (*n > 1000) return ag_fail(err, AG_E_FORMAT, "%s: 'weight_map' names more than 1000 files", index_path);
    }
    qsort(*names, *n, sizeof **names, by_text);
    return check_numbering(index_path, *names, *n, err);
}

/* Both lists are sorted. A file beside the shards is none of a reader's business, unless it could be the model itself. */
static ag_status same_files(const ag_st_folder *f, const char *index_path, const char **mapped, size_t n_mapped,
                            const char **there, size_t n_there, ag_err *err)
{
    for (size_t i = 0, j = 0; i < n_mapped || j < n_there;) {
        int order = i == n_mapped ? 1 : j == n_there ? -1 : strcmp(mapped[i], there[j]);
        if (order < 0)
            return ag_fail(err, AG_E_NOT_FOUND, "%s names '%s', which is not in the folder; fetch that file", index_path,
                           mapped[i]);
        if (order > 0 && (f->use == AG_ST_VERIFY || strcmp(there[j], single_name) == 0))
            return ag_fail(err, AG_E_FORMAT, "%s does not name '%s', which lies in the folder; move it away", index_path,
                           there[j]);
        i += order <= 0, j += order >= 0;
    }
    return AG_OK;
}

static ag_status open_shard(ag_st_folder *f, const char *name, ag_err *err)
{
    AG_TRY(check_link(f, name, err));
    ag_safetensors *st = &f->shards[f->n_shards];
    AG_TRY(ag_safetensors_open(st, ag_path_join(&f->arena, f->dir, name), err));
    f->n_shards++;
    f->n_tensors += st->n_tensors;
    return AG_OK;
}

static ag_status check_shard(const ag_safetensors *st, json_t *weight_map, const char *index_path, ag_err *err)
{
    for (size_t i = 0; i < st->n_tensors; i++) {
        const char *mapped = json_string_value(json_object_get(weight_map, st->tensors[i].name));
        if (!mapped || strcmp(mapped, ag_path_base(st->path)) != 0)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: tensor '%s' lies in '%s', the index gives it %s%s%s; the index does not belong to these files",
                           index_path, st->tensors[i].name, ag_path_base(st->path), mapped ? "'" : "no file",
                           mapped ? mapped : "", mapped ? "'" : "");
    }
    return AG_OK;
}

static ag_status open_sharded(ag_st_folder *f, json_t *root, const char *index_path, const char **there, size_t n_there,
                              ag_err *err)
{
    json_t *weight_map = json_object_get(root, "weight_map");
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0)
        return ag_fail(err, AG_E_FORMAT, "%s: 'weight_map' must be an object with at least one tensor", index_path);
    const char **mapped;
    size_t n_mapped;
    AG_TRY(shard_names(&mapped, &n_mapped, weight_map, index_path, &f->arena, err));
    AG_TRY(same_files(f, index_path, mapped, n_mapped, there, n_there, err));
    f->shards = ag_arena_array(&f->arena, n_mapped, sizeof *f->shards);
    for (size_t i = 0; i < n_mapped; i++) {
        AG_TRY(open_shard(f, mapped[i], err));
        AG_TRY(check_shard(&f->shards[i], weight_map, index_path, err));
    }
    if (f->n_tensors == json_object_size(weight_map)) return AG_OK;
    for (void *at = json_object_iter(weight_map); at; at = json_object_iter_next(weight_map, at))
        if (!ag_st_folder_find(f, json_object_iter_key(at), NULL))
            return ag_fail(err, AG_E_NOT_FOUND, "%s: tensor '%s' is not in '%s', where the index puts it", index_path,
                           json_object_iter_key(at), json_string_value(json_object_iter_value(at)));
    return AG_OK;
}

static ag_status folder_open(ag_st_folder *f, ag_err *err)
{
    char **names;
    size_t n, n_there = 0;
    AG_TRY(ag_dir_list(&names, &n, f->dir, &f->arena, err));
    const char **there = ag_arena_array(&f->arena, n, sizeof *there);
    for (size_t i = 0; i < n; i++) {
        if (is_shard_name(names[i])) there[n_there++] = names[i];
        if (strcmp(names[i], index_name) == 0) f->sharded = true;
    }
    if (f->sharded) {
        const char *index_path = ag_path_join(&f->arena, f->dir, index_name);
        json_t *root = NULL;
        AG_TRY(check_link(f, index_name, err));
        AG_TRY(ag_json_load(&root, index_path, MAX_INDEX_BYTES, err));
        ag_status status = open_sharded(f, root, index_path, there, n_there, err);
        ag_json_free(&root);
        return status;
    }
    if (n_there == 0)
        return ag_fail(err, AG_E_NOT_FOUND,
                       "%s has neither %s nor %s; weights in another format (pytorch_model.bin) are not read", f->dir,
                       single_name, index_name);
    bool has_single = false;
    for (size_t i = 0; i < n_there; i++) has_single |= strcmp(there[i], single_name) == 0;
    for (size_t i = 0; i < n_there && !(has_single && f->use == AG_ST_READ); i++)
        if (strcmp(there[i], single_name) != 0)
            return ag_fail(err, AG_E_FORMAT, "%s has '%s' but no %s that names it; fetch the index or move the file away",
                           f->dir, there[i], index_name);
    f->shards = ag_arena_array(&f->arena, 1, sizeof *f->shards);
    return open_shard(f, single_name, err);
}

ag_status ag_st_folder_open(ag_st_folder *out, const char *dir, ag_st_folder_use use, ag_err *err)
{
    *out = (ag_st_folder){.use = use};
    out->dir = ag_arena_strdup(&out->arena, dir);
    ag_status status = folder_open(out, err);
    if (status) ag_st_folder_close(out);
    return status;
}

void ag_st_folder_close(ag_st_folder *folder)
{
    for (size_t i = 0; i < folder->n_shards; i++) ag_safetensors_close(&folder->shards[i]);
    ag_arena_free(&folder->arena);
    *folder = (ag_st_folder){0};
}

const ag_st_tensor *ag_st_folder_find(const ag_st_folder *folder, const char *name, const ag_safetensors **shard)
{
    for (size_t i = 0; i < folder->n_shards; i++) {
        const ag_st_tensor *t = ag_safetensors_find(&folder->shards[i], name);
        if (!t) continue;
        if (shard) *shard = &folder->shards[i];
        return t;
    }
    return NULL;
}
