/* A run as one HTML page that needs nothing else: no script, no network, light and dark by the reader's own setting. Everything
 * that comes from files is escaped.
 *
 *     <run_dir>                       status, adapter, artifact_index.json
 *     runs/<run_name>/                metrics.jsonl (curves), manifest.json (what ran, where, from which bytes): the sibling of
 * the run's parent, as merged/<run_name> is eval/<run_name>/                a held-out evaluation, where there is one: before
 * and after, side by side
 *
 * What is not there is left out, and the page says so. */
#ifndef AG_RUN_REPORT_H
#define AG_RUN_REPORT_H

#include "runs/run_status.h"

typedef struct {
    const char *run_dir;
    const char *logging_dir, *eval_dir; /* NULL: the siblings */
    const char *hub_cache;
    int n_threads;
} ag_run_report_options;

/* Appends the page. *logging_dir (may be NULL) is where the run's records were looked for, in the arena. AG_E_NOT_FOUND where
 * there is neither an adapter, nor a checkpoint, nor a metrics.jsonl. */
AG_MUST_USE ag_status ag_run_report_write(ag_str *out, const ag_run_report_options *options, const char **logging_dir,
                                          ag_arena *arena, ag_err *err);

#endif
