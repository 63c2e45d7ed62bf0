/* metrics.jsonl of a run as arrays: what pages and reports draw. The file may be growing, or end inside a line. */
#ifndef AG_METRICS_SERIES_H
#define AG_METRICS_SERIES_H

#include "base/arena.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t step;
    double loss, lr, grad_norm, tok_s, ms; /* NaN where the line has none */
    int64_t tokens;
} ag_step_point;

typedef struct {
    int64_t step, targets;
    double loss;
} ag_eval_point;

typedef struct {
    ag_step_point *steps; /* ascending; a resumed run's later lines replace earlier ones of the same step and beyond */
    ag_eval_point *evals;
    size_t n_steps, n_evals;
    size_t n_unreadable;  /* lines that are no such objects; an unfinished last one is none */
    int64_t tokens;       /* of all steps */
    double seconds;
} ag_series;

/* Arrays lie in the arena. A missing file is AG_E_NOT_FOUND, one over 256 MiB AG_E_FORMAT. */
AG_MUST_USE ag_status ag_series_read(ag_series *out, const char *path, ag_arena *arena, ag_err *err);

#endif
