/* What GPU 0 lets itself be asked: a snapshot taken before sampling ("bkl.f0_capability.v1"), bound to one run by its digest. The
 * digest covers what can be read and on which device and driver, not the values that were read, so two snapshots of one machine have
 * one digest. */
#ifndef AG_GPU_CAPABILITY_H
#define AG_GPU_CAPABILITY_H

#include "base/status.h"
#include "lab/f0_record.h"
#include "lab/nvml.h"

#define AG_CAPABILITY_SCHEMA "bkl.f0_capability.v1"

/* One probe of everything; a metric that fails never stops the others. */
typedef struct {
    ag_f0_measurement readings[AG_F0_N_READINGS];
    ag_f0_measurement performance_state;
    ag_f0_status throttle;
    uint64_t throttle_mask; /* where throttle is ok */
    int codes[AG_F0_N_READINGS + 2]; /* NVML's own, in that order */
} ag_gpu_probe;
void ag_gpu_probe_all(ag_gpu_probe *out, ag_nvml *nvml);

typedef struct {
    const char *run_id, *hostname, *timestamp;
    int64_t monotonic_ns;
    const char *nvidia_smi; /* its version; NULL: not asked */
} ag_capability_context;

/* Discovers and probes. Never fails: a machine without a GPU has a snapshot that says so. The caller frees the object. */
json_t *ag_capability_discover(ag_nvml *nvml, const ag_capability_context *context);
/* "sha256:…" of a snapshot's identity; the caller frees it with free(). */
char *ag_capability_digest(const json_t *snapshot);
/* Checks every rule of a snapshot, its digest included. */
AG_MUST_USE ag_status ag_capability_check(const json_t *snapshot, ag_err *err);
/* Whether samples (records[0..n)) were taken under this snapshot: run, host, GPU, digest, and not before it. */
AG_MUST_USE ag_status ag_capability_bind(const json_t *snapshot, const ag_f0_record *samples, size_t n, ag_err *err);

#endif
