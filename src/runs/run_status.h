/* What a run's folder is ready for, decided from its files alone: nothing is loaded, run or fetched. docs/runs.md says it for
 * users.
 *
 *     ag_run_place place;  ag_run_status status;
 *     AG_TRY(ag_run_place_find(&place, "adapters/demo", NULL, &arena, err));
 *     AG_TRY(ag_run_status_make(&status, &place, &(ag_run_status_options){.hub_cache = cache}, &arena, err));
 *     ag_run_status_json(&out, &status);
 *
 * resume.checkpoint is what a run with resume_from_latest_checkpoint picks first, export.source what export-final-model merges.
 * The run is scanned once: counts, latest and source describe the same moment. A newest checkpoint that is not usable is told
 * as not ready; the report never falls back to an older one. */
#ifndef AG_RUN_STATUS_H
#define AG_RUN_STATUS_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"
#include "runs/run_place.h"
#include "train/run_scan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    bool allow_unsafe;
    const char *hub_cache; /* where base models that are hub ids are looked for; NULL: nowhere */
    int n_threads;         /* that hash a merged model */
    const char *access;    /* a path by which the run is read instead of place->real (a descriptor's); NULL: place->real */
} ag_run_status_options;

typedef enum { AG_SOURCE_NONE, AG_SOURCE_FINAL_ADAPTER, AG_SOURCE_CHECKPOINT } ag_export_source;

typedef struct {
    ag_run_place place;
    bool allow_unsafe;
    ag_run_scan scan;
    const char *latest_path;        /* NULL: no valid checkpoint */
    const char *merged_path;        /* NULL: no usable merged model */
    const char *base_model, *base_revision;
    bool resume_ready, export_ready;
    ag_export_source source;
    const char *source_path;
    const char *why_not_resume, *why_not_export, *why_not_merged; /* a sentence each where it is not so, else NULL */
} ag_run_status;

/* AG_E_IO where something cannot be looked at. Texts lie in the arena. */
AG_MUST_USE ag_status ag_run_status_make(ag_run_status *out, const ag_run_place *place, const ag_run_status_options *options,
                                         ag_arena *arena, ag_err *err);
void ag_run_status_json(ag_str *out, const ag_run_status *s);  /* indent 2, keys in the report's order, ends in a newline */
void ag_run_status_table(ag_str *out, const ag_run_status *s);

#endif
