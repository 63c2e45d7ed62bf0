/* A model of a known shape with random weights, made in memory: what a machine can do with a model of that size, without a file. */
#ifndef AGOGE_CLI_BENCH_MODEL_H
#define AGOGE_CLI_BENCH_MODEL_H

#include "base/arena.h"
#include "model/model.h"

extern const char *const cli_shapes[]; /* NULL-terminated */

/* Projections in NF4 with double quantization, embedding and head in bf16. The arrays belong to *arena. */
void cli_bench_model(ag_model *model, const char *shape, ag_arena *arena);

#endif
