/* Goldens of the data pipeline (tests/golden/data, made by tools/golden/data.py). */
#ifndef AG_TEST_DATA_GOLDEN_H
#define AG_TEST_DATA_GOLDEN_H

#include "base/json.h"
#include "support/cmocka_all.h"

#include <stdio.h>

/* The whole file; free with ag_json_free. */
static inline json_t *data_golden(const char *name)
{
    char path[512];
    ag_err err;
    json_t *root;
    snprintf(path, sizeof path, "%s/golden/data/%s", AGOGE_TESTS_DIR, name);
    if (ag_json_load(&root, path, 1 << 22, &err)) fail_msg("%s", err.text);
    return root;
}

static inline int64_t int_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("golden without '%s'", key);
    return json_integer_value(value);
}

#endif
