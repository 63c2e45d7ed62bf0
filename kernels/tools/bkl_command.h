/* The lab's program: one file per command, as in cli/. Names, options, output and exit codes are those of docs/kernel-lab.md. */
#ifndef BKL_COMMAND_H
#define BKL_COMMAND_H

#include "base/arena.h"
#include "base/json.h"
#include "cli/options.h"

#define BKL_COMMANDS(X)        \
    X(check_f0_correlation)    \
    X(check_f0_clock_skew)     \
    X(calibrate_f0_clock)      \
    X(nvml_capability)         \
    X(summarize_f0_efficiency) \
    X(check_f0_efficiency)     \
    X(check_green_ctx_report)  \
    X(wait_gpu_headroom)       \
    X(run_compute_sanitizer)   \
    X(gpu_ci_gate)             \
    X(publish_gpu_validation)  \
    X(sample)                  \
    X(qualify)

#define X(name) extern const cli_command bkl_##name;
BKL_COMMANDS(X)
#undef X

/* A JSON file of at most 64 MiB. */
AG_MUST_USE ag_status bkl_json_load(json_t **out, const char *path, ag_err *err);
/* Two spaces a level, sorted keys, ASCII, a newline at the end: to `path` (parents made, whole or not at all). */
AG_MUST_USE ag_status bkl_json_publish(const char *path, const json_t *value, ag_err *err);
void bkl_json_print(const json_t *value); /* the same on stdout */
const char *bkl_hostname(void);           /* of this machine; the text stays */

#endif
