#include "support/golden.h"

#include "base/num.h"
#include "support/op_check.h"

#include <stdio.h>

golden golden_open(const char *path_in_golden)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s", AGOGE_TESTS_DIR, path_in_golden);
    return golden_open_path(path);
}

golden golden_open_path(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s is not there", path);
    fseek(file, 0, SEEK_END);
    golden g = {.n = (size_t)ftell(file)};
    rewind(file);
    g.bytes = malloc(g.n);
    assert_non_null(g.bytes);
    if (fread(g.bytes, 1, g.n, file) != g.n) fail_msg("%s cannot be read", path);
    fclose(file);
    uint64_t n_header;
    memcpy(&n_header, g.bytes, sizeof n_header);
    assert_true(n_header < g.n - 8);
    json_error_t error;
    g.header = json_loadb((const char *)g.bytes + 8, n_header, 0, &error);
    if (!g.header) fail_msg("%s: %s", path, error.text);
    return g;
}

void golden_close(golden *g)
{
    json_decref(g->header);
    free(g->bytes);
    *g = (golden){0};
}

bool golden_has(const golden *g, const char *name) { return json_object_get(g->header, name); }

static const json_t *entry(const golden *g, const char *name)
{
    const json_t *e = json_object_get(g->header, name);
    if (!e) fail_msg("the golden has no tensor '%s'", name);
    return e;
}

const char *golden_dtype(const golden *g, const char *name) { return json_string_value(json_object_get(entry(g, name), "dtype")); }

int64_t golden_dim(const golden *g, const char *name, int i)
{
    return json_integer_value(json_array_get(json_object_get(entry(g, name), "shape"), (size_t)i));
}

int64_t golden_n(const golden *g, const char *name)
{
    int64_t n = 1;
    const json_t *shape = json_object_get(entry(g, name), "shape");
    for (size_t i = 0; i < json_array_size(shape); i++) n *= json_integer_value(json_array_get(shape, i));
    return n;
}

const void *golden_get(const golden *g, const char *name, const char *dtype, int64_t n_items)
{
    if (strcmp(golden_dtype(g, name), dtype) != 0) fail_msg("'%s' is %s, not %s", name, golden_dtype(g, name), dtype);
    if (n_items >= 0 && golden_n(g, name) != n_items)
        fail_msg("'%s' has %lld items, not %lld", name, (long long)golden_n(g, name), (long long)n_items);
    const json_t *offsets = json_object_get(entry(g, name), "data_offsets");
    uint64_t n_header;
    memcpy(&n_header, g->bytes, sizeof n_header);
    return g->bytes + 8 + n_header + json_integer_value(json_array_get(offsets, 0));
}

float *golden_floats(const golden *g, const char *name)
{
    const char *dtype = golden_dtype(g, name);
    const int64_t n = golden_n(g, name);
    const char *from = golden_get(g, name, dtype, n);
    float *to = malloc((size_t)(n + 1) * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = 0;
        if (strcmp(dtype, "F32") == 0)
            memcpy(to + i, from + 4 * i, sizeof *to);
        else
            memcpy(&half, from + 2 * i, sizeof half);
        if (strcmp(dtype, "F16") == 0)
            to[i] = ag_f16_to_f32(half);
        else if (strcmp(dtype, "BF16") == 0)
            to[i] = ag_bf16_to_f32(half);
        else
            assert_string_equal("F32", dtype);
    }
    return to;
}
