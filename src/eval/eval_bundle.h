/* An evaluation's files, published whole or not at all. */
#ifndef AG_EVAL_BUNDLE_H
#define AG_EVAL_BUNDLE_H

#include "eval/scoring.h"

typedef struct {
    const json_t *contract;
    const ag_scored_arm *base, *sft; /* sft NULL: only the base was asked, and nothing is compared */
    int64_t seed;
} ag_eval_bundle;

/* `output` is absolute and must not exist (AG_E_EXISTS). One process at a time: what a killed one left of this output is
 * removed. */
AG_MUST_USE ag_status ag_eval_bundle_publish(const ag_eval_bundle *bundle, const char *output, ag_err *err);

/* report.md of two arms. */
void ag_eval_report_write(ag_str *out, const ag_eval_bundle *bundle, const ag_comparison *c);

#endif
