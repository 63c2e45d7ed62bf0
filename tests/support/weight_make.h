/* Random weights of every stored form, for op checks. */
#ifndef AG_TEST_WEIGHT_MAKE_H
#define AG_TEST_WEIGHT_MAKE_H

#include "ops/weight/weight.h"

#include <stdbool.h>

/* A weight whose bytes depend on the arguments alone, values within about ±1. It owns its memory until weight_free. The bytes
 * begin at an odd address, as they may in a file. `double_quantized` is for NF4. */
ag_weight weight_make(ag_weight_type type, int64_t N, int64_t K, uint32_t seed, bool double_quantized);
void weight_free(ag_weight *w);

#endif
