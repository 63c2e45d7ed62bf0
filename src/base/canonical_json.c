#include "base/canonical_json.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

/* ag_json_writer writes text and numbers; what is ours is the order of keys. UTF-8 sorts bytewise as its code points do. */
static int by_key(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

void ag_jw_sorted(ag_json_writer *w, const char *key, const json_t *value)
{
    if (json_is_array(value)) {
        ag_jw_array(w, key);
        for (size_t i = 0; i < json_array_size(value); i++) ag_jw_sorted(w, NULL, json_array_get(value, i));
        ag_jw_end(w);
        return;
    }
    if (!json_is_object(value) || ag_json_big_integer(value)) {
        ag_jw_value(w, key, value);
        return;
    }
    const size_t n = json_object_size(value);
    const char **keys = malloc((n + 1) * sizeof *keys);
    if (!keys) ag_out_of_memory((n + 1) * sizeof *keys);
    size_t i = 0;
    for (void *it = json_object_iter((json_t *)(uintptr_t)value); it;
         it = json_object_iter_next((json_t *)(uintptr_t)value, it))
        keys[i++] = json_object_iter_key(it);
    qsort(keys, n, sizeof *keys, by_key);
    ag_jw_object(w, key);
    for (i = 0; i < n; i++) ag_jw_sorted(w, keys[i], json_object_get(value, keys[i]));
    ag_jw_end(w);
    free(keys);
}

void ag_json_add_canonical(ag_str *out, const json_t *value)
{
    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_sorted(&w, NULL, value);
}

ag_sha256 ag_json_canonical_digest(const json_t *value)
{
    ag_str text = {0};
    ag_json_add_canonical(&text, value);
    const ag_sha256 digest = ag_sha256_bytes(text.text, text.n);
    ag_str_free(&text);
    return digest;
}

bool ag_json_is_canonical_file(const json_t *root, const char *bytes, size_t n)
{
    ag_str text = {0};
    ag_json_add_canonical(&text, root);
    ag_str_add_char(&text, '\n');
    const bool same = text.n == n && memcmp(text.text, bytes, n) == 0;
    ag_str_free(&text);
    return same;
}
