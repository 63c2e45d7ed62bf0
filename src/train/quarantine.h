/* What a killed process or a fault left in a run's folder is moved aside, never deleted: <run_dir>/.agoge-quarantine/, one
 * folder an entry, with the reason beside it.
 *
 *     .agoge-quarantine/<name>.<reason>.<UTC, YYYYmmddTHHMMSSffffffZ>[-1 … -999]/
 *     …/quarantine_reason.json   {"schema_version": 1, "reason": …, "original_path": …, "quarantined_at": …, "details": {…}}
 *
 * The reason is written into the tree and synced before the tree is renamed, so that nothing lies in the quarantine
 * unexplained. Callers hold the run's lock. */
#ifndef AG_QUARANTINE_H
#define AG_QUARANTINE_H

#include "base/arena.h"
#include "base/status.h"

#include <stddef.h>

#define AG_QUARANTINE_DIR ".agoge-quarantine"
#define AG_CHECKPOINT_STAGING ".agoge-ckpt-staging-"
#define AG_EXPORT_STAGING ".agoge-export-staging-"

/*    reason                            text */
#define AG_QUARANTINE_REASONS(X)                                   \
    X(AG_QUARANTINE_NO_STATE,       "missing_trainer_state")       \
    X(AG_QUARANTINE_NO_CONFIG,      "missing_adapter_config")      \
    X(AG_QUARANTINE_NO_WEIGHTS,     "missing_adapter_weights")     \
    X(AG_QUARANTINE_UNSAFE,         "unsafe_weight_bins")          \
    X(AG_QUARANTINE_INCOMPLETE,     "incomplete_checkpoint")       \
    X(AG_QUARANTINE_INTERRUPTED,    "interrupted_save")            \
    X(AG_QUARANTINE_STAGING,        "leftover_staging")            \
    X(AG_QUARANTINE_SHORT_WRITE,    "short_write")                 \
    X(AG_QUARANTINE_NOT_EQUIVALENT, "non_equivalent_resume")

typedef enum {
#define X(reason, text) reason,
    AG_QUARANTINE_REASONS(X)
#undef X
} ag_quarantine_reason;

/* Moves <run_dir>/<name>, a directory, aside. `missing` are the words of details.missing (n_missing 0: details is empty). A
 * symbolic link in the name's place, or one in the quarantine's, is AG_E_IO. */
AG_MUST_USE ag_status ag_quarantine_move(const char *run_dir, const char *name, ag_quarantine_reason reason,
                                         const char *const *missing, size_t n_missing, ag_err *err);

/* Every broken checkpoint and every staging folder of a process that is gone; symbolic links stay where they are. Each goes to
 * the log as a warning. */
AG_MUST_USE ag_status ag_quarantine_sweep(const char *run_dir, ag_err *err);

#endif
