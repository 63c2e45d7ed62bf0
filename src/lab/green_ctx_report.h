/* Checks a report of bkl_green_ctx_bench (schema bkl.green_ctx_bench.v1): every verdict in it is computed again from the numbers beside
 * it, and a report that disagrees with itself is refused. */
#ifndef AG_GREEN_CTX_REPORT_H
#define AG_GREEN_CTX_REPORT_H

#include "base/json.h"
#include "base/status.h"

/* *outcome borrows from the report. AG_E_FORMAT: a key is missing or of the wrong kind; AG_E_VERIFY: a rule fails. */
AG_MUST_USE ag_status ag_green_ctx_report_check(const char **outcome, const json_t *report, ag_err *err);

#endif
