#define _GNU_SOURCE
#include "support/file_tools.h"

#include "support/unit_test.h"

#include "base/fs.h"
#include "base/str.h"


static void put(const char *path, const char *bytes, size_t n, const char *mode)
{
    FILE *file = fopen(path, mode);
    if (!file) fail_msg("%s cannot be opened", path);
    if (n) assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

void file_tree_copy(const char *from, const char *to)
{
    ag_err err;
    ag_arena arena = {0};
    char **names;
    size_t n;
    must(ag_make_dirs(to, &err));
    must(ag_dir_list(&names, &n, from, &arena, &err));
    for (size_t i = 0; i < n; i++) {
        const char *source = ag_path_join(&arena, from, names[i]), *target = ag_path_join(&arena, to, names[i]);
        if (ag_path_is_dir(source)) {
            file_tree_copy(source, target);
            continue;
        }
        ag_map map;
        must(ag_map_open(&map, source, &err));
        put(target, (const char *)map.bytes, map.n, "wb");
        ag_map_close(&map);
    }
    ag_arena_free(&arena);
}

char *file_text(const char *path)
{
    ag_err err;
    ag_arena arena = {0};
    char *text;
    size_t n;
    must(ag_file_read(&text, &n, path, 64 << 20, &arena, &err));
    char *copy = strdup(text);
    ag_arena_free(&arena);
    return copy;
}

void file_put(const char *path, const char *text)
{
    ag_err err;
    ag_arena arena = {0};
    must(ag_make_dirs(ag_path_dir(&arena, path), &err));
    put(path, text, strlen(text), "wb");
    ag_arena_free(&arena);
}

void file_append(const char *path, const char *text) { put(path, text, strlen(text), "ab"); }

void file_replace(const char *path, const char *old, const char *new)
{
    ag_str out = {0};
    char *text = file_text(path), *at = strstr(text, old);
    if (!at) fail_msg("%s does not hold '%s'", path, old);
    ag_str_add_n(&out, text, (size_t)(at - text));
    ag_str_add(&out, new);
    ag_str_add(&out, at + strlen(old));
    file_put(path, out.text);
    ag_str_free(&out);
    free(text);
}
