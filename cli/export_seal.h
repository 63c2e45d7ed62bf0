/* What an adapter must show before it is exported: that nothing in its folder was changed, and what it was trained on. */
#ifndef AGOGE_CLI_EXPORT_SEAL_H
#define AGOGE_CLI_EXPORT_SEAL_H

#include "seal/artifact_index.h"

typedef struct {
    const char *adapter;         /* its folder */
    const char *base, *base_path; /* as it is named; where it lies on this machine */
    const char *revision;        /* that adapter_config.json names; NULL where the base was given on the command line */
    bool base_was_given, allow_unsafe, allow_unsealed;
    int n_threads;
} cli_export_source;

/* Fills the provenance that the result's index is to carry. Refused (AG_E_VERIFY), each with what to do:
 *   - pickled weight files anywhere below the folder, unless allow_unsafe;
 *   - an index without provenance, or none, unless allow_unsealed: then *is_sealed is false and the result carries none;
 *   - files that are not the indexed ones, or a base that is not the provenance's, unless allow_unsafe or allow_unsealed.
 * A base on this machine that was named by its content is hashed. */
AG_MUST_USE ag_status cli_export_check_seal(ag_provenance *out, bool *is_sealed, const cli_export_source *source, ag_arena *arena,
                                            ag_err *err);

#endif
