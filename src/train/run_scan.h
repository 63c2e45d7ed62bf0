/* One look at a run's folder: which directories are checkpoints, and whether its root is an adapter. Every command that chooses
 * a checkpoint chooses by this rule, so that they agree.
 *
 *     valid checkpoint   a directory checkpoint-<digits> (checkpoint-007 is step 7) with trainer_state.json,
 * adapter_config.json and adapter_model.safetensors in it, and no weights that could hold code anywhere below it final adapter
 * the run's folder has adapter_config.json and adapter_model.safetensors, and no such weights below it (its quarantine aside)
 *
 * Weights that could hold code: pytorch_model.bin, adapter_model.bin, *.ckpt. With allow_unsafe they hide nothing, and
 * adapter_model.bin may stand where adapter_model.safetensors is missing.
 *
 *     ag_run_scan scan;
 *     AG_TRY(ag_run_scan_make(&scan, run_dir, false, &arena, err));
 *     if (scan.latest) … scan.latest->name …
 */
#ifndef AG_RUN_SCAN_H
#define AG_RUN_SCAN_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AG_ADAPTER_BIN_FILE "adapter_model.bin"

enum { /* what keeps a checkpoint from being valid */
    AG_LACKS_STATE = 1,
    AG_LACKS_CONFIG = 2,
    AG_LACKS_WEIGHTS = 4,
    AG_HAS_UNSAFE = 8
};

typedef struct {
    int64_t step;
    const char *name; /* the directory's own, never made from the step */
    bool is_link;     /* the entry is a symbolic link (to a directory, which is what counts) */
    unsigned lacks;   /* AG_LACKS_… and AG_HAS_UNSAFE; 0: valid */
} ag_checkpoint_entry;

typedef struct {
    ag_checkpoint_entry *entries; /* directories of that name, by step, then by name; whole and broken ones */
    size_t n, n_valid;
    const ag_checkpoint_entry *latest; /* the valid one of the highest step, or NULL */
    bool has_final_adapter;
    const char *unsafe;           /* the first file that could hold code, relative to the run; NULL: none */
} ag_run_scan;

/* A missing folder is an empty scan. AG_E_IO where something cannot be looked at. Texts lie in the arena. */
AG_MUST_USE ag_status ag_run_scan_make(ag_run_scan *out, const char *run_dir, bool allow_unsafe, ag_arena *arena, ag_err *err);

/* The step that a name "checkpoint-<digits>" speaks of; -1 for any other name. */
int64_t ag_checkpoint_number(const char *name);

/* Whether a file name is on the list of weights that could hold code. */
bool ag_is_unsafe_weights(const char *name);

#endif
