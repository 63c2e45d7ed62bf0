#include "model/identity.h"

#include "base/fs.h"
#include "base/str.h"

static ag_status digest_files(ag_sha256 *digests, char *const *paths, size_t n, int n_threads, ag_err *err)
{
    ag_status failed = AG_OK;
#pragma omp parallel for schedule(dynamic) num_threads(n_threads > 0 ? n_threads : 1)
    for (size_t i = 0; i < n; i++) {
        ag_err own;
        const ag_status status = ag_sha256_file(&digests[i], paths[i], &own);
        if (!status) continue;
#pragma omp critical(ag_model_identity)
        {
            failed = status;
            if (err) *err = own;
        }
    }
    return failed;
}

static ag_status folder_revision(ag_sha256 *out, const char *dir, int n_threads, ag_arena *arena, ag_err *err)
{
    char **names;
    size_t n_names, n = 0;
    AG_TRY(ag_dir_list(&names, &n_names, dir, arena, err));
    char **paths = ag_arena_array(arena, n_names + 1, sizeof *paths);
    for (size_t i = 0; i < n_names; i++) {
        char *path = ag_path_join(arena, dir, names[i]);
        if (names[i][0] == '.' || !ag_path_is_file(path)) continue;
        names[n] = names[i];
        paths[n++] = path;
    }
    ag_sha256 *digests = ag_arena_array(arena, n + 1, sizeof *digests);
    AG_TRY(digest_files(digests, paths, n, n_threads, err));
    ag_str lines = {0};
    for (size_t i = 0; i < n; i++) ag_str_printf(&lines, "%s  %s\n", digests[i].hex, names[i]);
    *out = ag_sha256_bytes(lines.text, lines.n);
    ag_str_free(&lines);
    return AG_OK;
}

ag_status ag_model_content_revision(ag_sha256 *out, const char *path, int n_threads, ag_err *err)
{
    if (!ag_path_is_dir(path)) return ag_sha256_file(out, path, err);
    ag_arena arena = {0};
    ag_status status = folder_revision(out, path, n_threads, &arena, err);
    ag_arena_free(&arena);
    return status;
}
