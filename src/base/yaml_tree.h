/* A small YAML file as a JSON value: mappings, lists and scalars. For files of a few keys; the training configuration has its own reader.
 *
 * Plain scalars are null, booleans, integers and floats as YAML 1.2's core schema has them; everything else, and whatever is quoted, is
 * text. Anchors, aliases, tags, several documents and keys that stand twice are refused: nothing in such files needs them. */
#ifndef AG_YAML_TREE_H
#define AG_YAML_TREE_H

#include "base/json.h"

/* AG_E_FORMAT names the file and the line. An empty file is null. The caller frees *root with ag_json_free. */
AG_MUST_USE ag_status ag_yaml_parse(json_t **root, const char *bytes, size_t n, const char *name, ag_err *err);
AG_MUST_USE ag_status ag_yaml_load(json_t **root, const char *path, size_t max_bytes, ag_err *err);

#endif
