/* What a finished run leaves beside its checkpoints: the adapter and tokenizer files in the run's folder, the index over that folder, and
 * runs/<run_name>/manifest.json, which says with what the run was made. */
#ifndef AG_MANIFEST_H
#define AG_MANIFEST_H

#include "train/job.h"
#include "train/markers.h"
#include "train/profile_window.h"

typedef struct {
    const ag_train_job *job;
    const ag_adapter *adapter; /* bound, trained */
    const char *run_dir;       /* absolute */
    int64_t n_steps;
    double loss;
    const ag_markers *markers;       /* may be NULL */
    const ag_profile_window *window; /* likewise */
} ag_manifest_args;

/* Adapter, tokenizer, index, manifest, in this order: what vouches for other files comes after them. */
AG_MUST_USE ag_status ag_manifest_write_final(const ag_manifest_args *args, ag_err *err);

#endif
