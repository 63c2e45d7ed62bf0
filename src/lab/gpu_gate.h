/* Whether a change must be proven on a GPU before it may land, and whether it was: the rules of docs/ci.md as functions. */
#ifndef AG_GPU_GATE_H
#define AG_GPU_GATE_H

#include "base/status.h"

#include <stdbool.h>

/* Whether a changed path (relative to the repository) needs a GPU run. A path that no rule knows does. */
bool ag_gpu_gate_path(const char *path);

/* 40 or 64 lower-case hexadecimal digits; all zeros is an id too (git's "no commit"). */
bool ag_gpu_gate_is_commit(const char *id);
bool ag_gpu_gate_is_zero(const char *id);
/* "owner/name" of letters, digits, '.', '_' and '-'. */
bool ag_gpu_gate_is_repository(const char *name);

typedef struct {
    const char *detection_result, *required, *trusted, *gpu_result; /* as the workflow says them; NULL reads as "" */
} ag_gpu_verdict_input;
/* AG_OK: the required check passes. */
AG_MUST_USE ag_status ag_gpu_gate_verify(const ag_gpu_verdict_input *input, ag_err *err);

#endif
