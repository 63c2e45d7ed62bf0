#include "cli/yaml_keys.h"

#include <string.h>

enum { MAX_YAML = 1 << 20 };

ag_status cli_yaml_load(json_t **root, const char *path, const char *const *known, ag_err *err)
{
    AG_TRY(ag_yaml_load(root, path, MAX_YAML, err));
    if (json_is_null(*root)) {
        *root = json_object();
        return AG_OK;
    }
    ag_status status = json_is_object(*root) ? AG_OK : ag_fail(err, AG_E_CONFIG, "%s: must be a mapping of keys and values", path);
    size_t n = 0;
    while (known[n]) n++;
    for (void *it = status ? NULL : json_object_iter(*root); it && !status; it = json_object_iter_next(*root, it)) {
        const char *key = json_object_iter_key(it);
        size_t i = 0;
        while (i < n && strcmp(known[i], key) != 0) i++;
        if (i < n) continue;
        const char *nearest = ag_str_nearest(key, known, n);
        status = nearest ? ag_fail(err, AG_E_CONFIG, "%s: unknown key '%.64s'; did you mean '%s'?", path, key, nearest)
                         : ag_fail(err, AG_E_CONFIG, "%s: unknown key '%.64s'", path, key);
    }
    if (status) ag_json_free(root);
    return status;
}
