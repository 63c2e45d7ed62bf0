#define _GNU_SOURCE
#include "runs/run_place.h"

#include "base/fs.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Absolute, without "." and without doubled or trailing slashes; *has_name: something of the typed path is left. */
static ag_status make_logical(const char **out, bool *has_name, const char *checked, ag_arena *arena, ag_err *err)
{
    char cwd[PATH_MAX] = "";
    size_t n = 0;
    *has_name = false;
    if (checked[0] != '/' && !getcwd(cwd, sizeof cwd)) return ag_fail_errno(err, errno, "the working directory cannot be told");
    if (strcmp(cwd, "/") == 0) cwd[0] = 0;
    char *path = ag_arena_array(arena, strlen(cwd) + strlen(checked) + 3, 1);
    n = strlen(cwd);
    memcpy(path, cwd, n);
    for (const char *part = checked; *part;) {
        part += strspn(part, "/");
        const size_t n_part = strcspn(part, "/");
        if (n_part > 0 && !(n_part == 1 && *part == '.')) {
            path[n++] = '/';
            memcpy(path + n, part, n_part);
            n += n_part;
            *has_name = true;
        }
        part += n_part;
    }
    if (n == 0) path[n++] = '/';
    path[n] = 0;
    *out = path;
    return AG_OK;
}

static ag_status find_merged(ag_run_place *p, const char *merged_dir, ag_arena *arena, ag_err *err)
{
    char *dir;
    ag_err ignored;
    if (merged_dir) {
        const ag_status status = ag_path_existing_dir(&dir, merged_dir, arena, err);
        if (status == AG_E_NOT_FOUND && (merged_dir[0] != '~' || ag_path_check(&dir, merged_dir, arena, &ignored) == AG_OK))
            return AG_OK;
        if (!status) p->merged = dir;
        return status;
    }
    const char *root = ag_path_dir(arena, ag_path_dir(arena, p->logical));
    const char *sibling = ag_path_join(arena, ag_path_join(arena, root, "merged"), p->name);
    if (ag_path_is_dir(sibling) && ag_path_existing_dir(&dir, sibling, arena, &ignored) == AG_OK) p->merged = dir;
    return AG_OK;
}

ag_status ag_run_place_find(ag_run_place *out, const char *run_dir, const char *merged_dir, ag_arena *arena, ag_err *err)
{
    char *checked, *real;
    bool has_name;
    *out = (ag_run_place){0};
    AG_TRY(ag_path_existing_dir(&real, run_dir, arena, err));
    AG_TRY(ag_path_check(&checked, run_dir, arena, err));
    AG_TRY(make_logical(&out->logical, &has_name, checked, arena, err));
    out->real = real;
    if (!has_name) out->logical = real;
    out->name = ag_path_base(out->logical);
    return find_merged(out, merged_dir, arena, err);
}
