/* Where a run's adapter comes from, as the artifact index records it: which base model, and which frozen train split.
 *
 *     ag_train_provenance p;
 *     AG_TRY(ag_train_provenance_derive(&p, config, n_threads, err));      // before any work on the model
 *     … (ag_train_job_options){.provenance = p.is_sealed ? &p.provenance : NULL} …
 *
 * A dataset without split_manifest.json in its folder or the one above is not frozen: the run trains, and its index carries no
 * provenance. Where the manifest is there, it must be true (ag_split_open recomputes it), the dataset must be its train split,
 * byte for byte, and the model must be named by something that cannot change: `revision` a commit of 40 to 64 hexadecimal
 * digits, or, for a folder or .gguf file without `revision`, the digest of its content (model/identity.h), which becomes the
 * config's revision. Anything else refuses the run with a sentence that begins "producer provenance cannot be constructed". */
#ifndef AG_TRAIN_PROVENANCE_H
#define AG_TRAIN_PROVENANCE_H

#include "seal/artifact_index.h"
#include "train/train_config.h"

typedef struct {
    bool is_sealed;
    ag_provenance provenance; /* texts in the config's arena */
} ag_train_provenance;

AG_MUST_USE ag_status ag_train_provenance_derive(ag_train_provenance *out, ag_train_config *config, int n_threads, ag_err *err);

#endif
