/* What every op check needs: guarded buffers, repeatable fillings, comparison with one table of tolerances, and a walk over
 * the levels that this machine has. */
#ifndef AG_TEST_OP_CHECK_H
#define AG_TEST_OP_CHECK_H

#include "ops/backend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* n floats filled with a guard value, and guards on both sides; free with check_free. */
float *check_floats(int64_t n);
void check_free(float *p);
/* The guards around p (n as it was made) are as they were. */
void check_guards(const float *p, int64_t n, const char *what);

/* Numbers in -scale..scale that depend on seed and index only. */
void check_fill(float *p, int64_t n, uint32_t seed, float scale);

/* Every got[i] within tolerance·max|want| of want[i], no NaN. A `want` of zeros only fails: it proves nothing. */
void check_close(const float *got, const float *want, int64_t n, double tolerance, const char *what);

/* A backend for the level; scratch_bytes of scratch (0: none), freed by check_backend_free. */
ag_backend check_backend(ag_cpu_level level, int n_threads);
void check_backend_scratch(ag_backend *be, size_t bytes);
void check_backend_free(ag_backend *be);

/* Every level above the reference that this machine has, ascending; ends with AG_CPU_REF:
 *     for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) { … } */
const ag_cpu_level *check_levels(void);

#endif
