/* A profile window: for some steps of a run, what each op cost. Off unless the config (or --profile-window) asks for it; then in
 * runs/<run_name>/telemetry/:
 *
 *     profile-window-request.json   what was asked for, in every run
 *     profile-window.json           what was found: time, bytes and flop by op, percentiles, the overhead of looking
 *     profile-table.txt             the same for people
 *     profile-trace.json            every call as a Chrome trace, which Perfetto and chrome://tracing open
 *
 * The backend `torch`, the name that configs of the forge use for "the training program's own profiler", is agoge's op profiler
 * (ops/profile.h). Other names are recorded as unsupported; nothing else is started in their stead. A fault is recorded in
 * profiler_error and never ends a run. */
#ifndef AG_PROFILE_WINDOW_H
#define AG_PROFILE_WINDOW_H

#include "ops/profile.h"
#include "train/markers.h"

typedef struct ag_profile_window ag_profile_window;

/* Publishes the request. NULL where no window is asked for; everything below takes it. */
ag_profile_window *ag_profile_window_open(const ag_train_job *job, ag_markers *markers);
void ag_profile_window_close(ag_profile_window **window);

/* To be put into the backend that the steps run on, before anything copies it; NULL where nothing is to be measured. */
ag_profile *ag_profile_window_ops(ag_profile_window *window);

bool ag_profile_window_starts(const ag_profile_window *window, int64_t step); /* step: the one about to run */
bool ag_profile_window_ends(const ag_profile_window *window, int64_t step);   /* step: the one just done */
/* The window's id where `step` lies in it, else NULL. */
const char *ag_profile_window_ref(const ag_profile_window *window, int64_t step);
/* Its id where it was started and has not ended: a run that stops inside must still say so. */
const char *ag_profile_window_is_open(const ag_profile_window *window);

void ag_profile_window_step_begin(ag_profile_window *window, int64_t step);
void ag_profile_window_step_end(ag_profile_window *window, int64_t step, uint64_t ns);

/* Publishes what was found so far; call it when the window ends, and once more when the run does (for the overhead). */
void ag_profile_window_publish(ag_profile_window *window, ag_markers *markers);

/* What this run published, for the manifest; NULL where it did not. */
const char *ag_profile_window_id_of(const ag_profile_window *window);
const char *ag_profile_window_path(const ag_profile_window *window);

#endif
