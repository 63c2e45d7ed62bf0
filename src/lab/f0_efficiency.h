/* What a correlation bundle says about a run: tokens a second, seconds a step, memory peaks, power and an approximate energy
 * ("bkl.f0_efficiency.v1"; docs/telemetry.md has the formulas). Only readings that are ok enter a number; what is missing is counted and
 * never becomes zero. No formula knows a model's name. */
#ifndef AG_F0_EFFICIENCY_H
#define AG_F0_EFFICIENCY_H

#include "lab/f0_join.h"
#include "lab/f0_record.h"

#define AG_EFFICIENCY_SCHEMA "bkl.f0_efficiency.v1"
#define AG_PROFILE_WINDOW_SCHEMA "bkl.f0_profile_window.v1"

typedef struct {
    const ag_f0_stream *markers, *samples;
    const ag_f0_line *windows; /* compact profile records; may be NULL */
    size_t n_windows;
    const json_t *train_fit;   /* the reference to compare with; may be NULL */
    const char *run_id;        /* NULL: the only one there is */
    double max_gap_factor;     /* a gap of more than this times the planned cadence is not integrated over; finite, > 0 */
} ag_efficiency_input;

/* The summary as an object, which the caller frees. */
AG_MUST_USE ag_status ag_efficiency_summarize(json_t **out, const ag_efficiency_input *input, ag_err *err);
/* The same for people, in Markdown. */
void ag_efficiency_report(ag_str *out, const json_t *summary);

#endif
