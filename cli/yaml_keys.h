/* Small YAML files of flat keys: known names only, values of the right kind. */
#ifndef AGOGE_CLI_YAML_KEYS_H
#define AGOGE_CLI_YAML_KEYS_H

#include "base/yaml_tree.h"

/* An empty file is an empty object. AG_E_CONFIG for a key that is not among `known` (NULL-terminated), with the nearest one. */
AG_MUST_USE ag_status cli_yaml_load(json_t **root, const char *path, const char *const *known, ag_err *err);

#endif
