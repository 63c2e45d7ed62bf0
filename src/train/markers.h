/* The marker stream of a run: runs/<run_name>/telemetry/agoge-markers.jsonl, by which measurements of the same time can be joined to
 * steps. One compact JSON object a line in the envelope bkl.f0_correlation.v1; monotonic_ns rises strictly. Beside it
 * profile-window-request.json says that no window was asked for (this version has none).
 *
 * Telemetry never stops a run: what cannot be written is a warning, once, and ends the stream. */
#ifndef AG_MARKERS_H
#define AG_MARKERS_H

#include "train/job.h"

typedef struct ag_markers ag_markers;

/* Empties the stream and writes run_start. NULL (and nothing written) where the config says emit_markers: false, or after a warning. */
ag_markers *ag_markers_open(const ag_train_job *job);
void ag_markers_close(ag_markers **markers);

typedef struct {
    const char *event, *phase; /* "step_end", "train" */
    int64_t step;
    int64_t n_tokens, n_examples; /* of the run so far; -1: not known */
    double loss;               /* with has_loss */
    bool has_loss;
} ag_marker;
void ag_markers_write(ag_markers *markers, const ag_marker *marker); /* markers may be NULL */

#endif
