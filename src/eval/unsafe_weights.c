#define _GNU_SOURCE
#include "eval/held_out.h"

#include "base/fs.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 64 };

static bool is_unsafe(const char *name)
{
    return strcmp(name, "pytorch_model.bin") == 0 || strcmp(name, "adapter_model.bin") == 0 || ag_str_ends(name, ".ckpt");
}

static ag_status walk(const char *root, const char *dir, int depth, ag_arena *arena, ag_err *err)
{
    char **names;
    size_t n;
    if (depth > MAX_DEPTH) return ag_fail(err, AG_E_UNSUPPORTED, "%s: lies more than %d folders deep", dir, MAX_DEPTH);
    AG_TRY(ag_dir_list(&names, &n, dir, arena, err));
    for (size_t i = 0; i < n; i++) {
        const char *path = ag_path_join(arena, dir, names[i]);
        struct stat st;
        if (is_unsafe(names[i]))
            return ag_fail(err, AG_E_VERIFY, "%s: holds %s, which can hold code; remove it, or save the weights as safetensors",
                           root, path);
        if (lstat(path, &st)) return ag_fail_errno(err, errno, "%s cannot be looked at", path);
        if (S_ISDIR(st.st_mode)) AG_TRY(walk(root, path, depth + 1, arena, err));
    }
    return AG_OK;
}

ag_status ag_refuse_unsafe_weights(const char *dir, ag_err *err)
{
    ag_arena arena = {0};
    ag_status status = walk(dir, dir, 0, &arena, err);
    ag_arena_free(&arena);
    return status;
}
