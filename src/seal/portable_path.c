#include "seal/portable_path.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static bool is_blank(const char *text) { return text[strspn(text, " \t\n\r\v\f")] == 0; }
static bool is_separator(char c) { return c == '/' || c == '\\'; }
static bool has_drive(const char *path) { return isalpha((unsigned char)path[0]) && path[1] == ':'; }

static size_t component_length(const char *at)
{
    size_t n = 0;
    while (at[n] && !is_separator(at[n])) n++;
    return n;
}

const char *ag_portable_path_fault(const char *path)
{
    if (is_blank(path)) return "is blank";
    if (is_separator(path[0]) || has_drive(path)) return "is absolute; it must stay relative to its directory";
    bool is_canonical = strchr(path, '\\') == NULL;
    for (const char *at = path;; at++) {
        const size_t n = component_length(at);
        if (n == 2 && at[0] == '.' && at[1] == '.') return "holds '..'; it must stay inside its directory";
        if (n == 0 || (n == 1 && at[0] == '.')) is_canonical = false;
        at += n;
        if (!*at) break;
    }
    return is_canonical ? NULL : "is not in canonical form (a/b, without '\\', '.', doubled or trailing '/')";
}

char *ag_portable_path_resolve(ag_arena *arena, const char *dir, const char *path)
{
    if (is_blank(path) || path[0] == '/' || has_drive(path) || strchr(path, '\\')) return NULL;
    char *out = ag_arena_alloc(arena, strlen(dir) + strlen(path) + 2);
    strcpy(out, dir);
    size_t length = strlen(out);
    for (const char *at = path;; at++) {
        const size_t n = component_length(at);
        if (n == 2 && at[0] == '.' && at[1] == '.') {
            if (length == 0) return NULL;
            while (length > 0 && out[length - 1] != '/') length--;
            if (length > 0) length--;
        } else if (n > 0 && !(n == 1 && at[0] == '.')) {
            if (length > 0) out[length++] = '/';
            memcpy(out + length, at, n);
            length += n;
        }
        out[length] = 0;
        at += n;
        if (!*at) break;
    }
    return length > 0 ? out : NULL;
}

char *ag_portable_path_dir(ag_arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');
    return ag_arena_strndup(arena, path, slash ? (size_t)(slash - path) : 0);
}
