/* Samples of GPU 0 while something else runs: one line a cadence, appended to a file that its readers may follow. The sampler never writes
 * what training does; markers say that (f0_join.h). A card that is lost gives lines that say so, and is asked again until it is back. */
#ifndef AG_GPU_SAMPLER_H
#define AG_GPU_SAMPLER_H

#include "base/str.h"
#include "lab/gpu_capability.h"

typedef struct {
    const char *run_id, *hostname;
    int64_t cadence_ms;
    const json_t *snapshot; /* taken before; must be of a device that is there */
    const char *window;     /* the profile window that the samples belong to; NULL: none */
} ag_gpu_sampler;

/* One probe of the card as one line of JSON, with its '\n'. */
void ag_gpu_sample_add(ag_str *out, const ag_gpu_sampler *sampler, ag_nvml *nvml);

#endif
