#include "base/yaml_tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ag_err err;
    json_t *root;
    if (ag_yaml_parse(&root, (const char *)data, n, "fuzz", &err) == AG_OK) ag_json_free(&root);
    return 0;
}
