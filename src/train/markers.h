/* The telemetry of a run, in runs/<run_name>/telemetry/: the marker stream agoge-markers.jsonl, by which measurements of the same time can
 * be joined to steps, and the files of a profile window (profile_window.h). Every record has the envelope bkl.f0_correlation.v1; a
 * marker is one compact JSON object a line, written with one system call; monotonic_ns rises strictly within a run.
 *
 * Telemetry never stops a run: what cannot be written is a warning, once, and ends the stream. */
#ifndef AG_MARKERS_H
#define AG_MARKERS_H

#include "base/json.h"
#include "train/job.h"

typedef struct ag_markers ag_markers;

/* Empties the stream and writes run_start, unless the config says emit_markers: false or another process of the run writes
 * (job->record). NULL where the folder cannot be made: then nothing is written, and everything below takes it. */
ag_markers *ag_markers_open(const ag_train_job *job);
void ag_markers_close(ag_markers **markers);

typedef struct {
    const char *event, *phase; /* "step_end", "train" */
    int64_t step;
    int64_t n_tokens, n_examples; /* of the run so far; -1: not known */
    double loss;               /* with has_loss */
    bool has_loss;
    double tok_s;              /* 0: not measured */
    const char *window_id;     /* of the profile window that the step lies in; NULL: none */
} ag_marker;
void ag_markers_write(ag_markers *markers, const ag_marker *marker);

/* For the other files of the folder: publishes a JSON document with an envelope before what `compose` adds. False after a warning. */
typedef void ag_markers_compose(void *user, ag_json_writer *w);
bool ag_markers_publish(ag_markers *markers, const char *file, const char *record_kind, ag_markers_compose *compose, void *user);
/* The same for text without an envelope. */
bool ag_markers_publish_text(ag_markers *markers, const char *file, const char *text, size_t n);

const char *ag_markers_run_id(const ag_train_job *job);
/* Where the stream lies; NULL where none is written. */
const char *ag_markers_path(const ag_markers *markers);
const char *ag_markers_dir(const ag_markers *markers); /* likewise, the folder */

#endif
