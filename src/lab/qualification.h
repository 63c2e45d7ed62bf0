/* The verdict of a release qualification: is the lab's path faster than the reference on every model, in every pair, and still right?
 *
 * Evidence ("bkl.qualification.v1") is one object with the raw numbers:
 *     {"schema", "models": [{"name", "loss_tolerance", "pairs": [{"order": "reference_first" | "candidate_first",
 *        "reference": RUN, "candidate": RUN}, …3]}, …2]}
 *     RUN = {"backend", "step_ms": […], "loss": […], "min_free_mib"}
 * Rules: two models; three pairs each, in alternating order; at least 5 warm-up and 30 measured steps a run; the median of the measured
 * steps at least 5 % lower in every pair; losses equal within the tolerance that was frozen before; the candidate's backend another than
 * the reference's (a fallback is no evidence); at least 2048 MiB free throughout. No rule is ever averaged away. */
#ifndef AG_QUALIFICATION_H
#define AG_QUALIFICATION_H

#include "base/json.h"
#include "base/status.h"

#define AG_QUALIFICATION_SCHEMA "bkl.qualification.v1"
#define AG_QUALIFICATION_VERDICT_SCHEMA "bkl.qualification_verdict.v1"
enum { AG_QUALIFICATION_PAIRS = 3, AG_QUALIFICATION_MODELS = 2, AG_QUALIFICATION_WARM_UP = 5, AG_QUALIFICATION_STEPS = 30 };

/* AG_E_FORMAT: the evidence cannot be read. Otherwise *verdict has "verdict": "pass", "fail" (measured, and not fast enough or not right)
 * or "invalid" (the measurement does not count), with every reason, and the caller frees it. */
AG_MUST_USE ag_status ag_qualification_judge(json_t **verdict, const json_t *evidence, ag_err *err);

#endif
