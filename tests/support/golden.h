/* Expected numbers from tests/golden/, written by tools/golden/ with other programs. A golden file is a .safetensors file; this
 * reader knows no more of the format than goldens need and shares nothing with src/format, which is itself under test.
 *
 *     golden g = golden_open("weight/nf4.safetensors");
 *     const float *x = golden_get(&g, "odd.x", "F32", 385);   // fails the test where it is not so
 *     golden_close(&g); */
#ifndef AG_TEST_GOLDEN_H
#define AG_TEST_GOLDEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    unsigned char *bytes; /* the file */
    size_t n;
    json_t *header;
} golden;

golden golden_open(const char *path_in_golden);
golden golden_open_path(const char *path);
void golden_close(golden *g);
bool golden_has(const golden *g, const char *name);
/* The numbers of a tensor, 8-byte aligned as the file's writer aligns them; n_items -1: any number. Fails the test where the
 * tensor is missing or of another type ("F32", "BF16", "U8", "I64" …) or size. Lives as long as the golden. */
const void *golden_get(const golden *g, const char *name, const char *dtype, int64_t n_items);
int64_t golden_n(const golden *g, const char *name);
int64_t golden_dim(const golden *g, const char *name, int i);
const char *golden_dtype(const golden *g, const char *name);
/* A copy as f32, from F32, F16 or BF16; the caller frees it. */
float *golden_floats(const golden *g, const char *name);

#endif
