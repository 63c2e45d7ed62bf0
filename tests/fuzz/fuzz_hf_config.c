/* Any bytes as a config.json and, behind a NUL, as a generation_config.json: a description is made, with sizes that nothing can
 * overflow, or refused. */
#include "model/description.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_err err;
    ag_arena arena = {0};
    ag_description d;
    const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t n = end ? (size_t)(end - data) : size;
    if (!ag_description_from_config(&d, (const char *)data, n, "fuzz", end ? (const char *)end + 1 : NULL, end ? size - n - 1 : 0, &arena, &err)) {
        double *freq = calloc((size_t)d.D / 2, sizeof *freq), mscale;
        if (!freq || ag_description_parameters(&d) <= 0) abort();
        ag_description_rope(freq, &mscale, &d, 1 << 20);
        for (int64_t i = 0; i < d.D / 2; i++)
            if (isnan(freq[i])) abort();
        free(freq);
    }
    ag_arena_free(&arena);
    return 0;
}
