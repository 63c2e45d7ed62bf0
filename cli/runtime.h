/* What most commands share: --format, --threads, --cpu, --device, and a backend made from them. */
#ifndef AGOGE_CLI_RUNTIME_H
#define AGOGE_CLI_RUNTIME_H

#include "cli/options.h"
#include "ops/backend.h"

typedef struct {
    const char *name; /* "text", "json" or "jsonl" */
} cli_format_options;
extern const char *const cli_formats[];
#define CLI_FORMAT_DEFAULT {.name = "text"}
#define CLI_FORMAT(type, field) CLI_CHOICE("format", type, field.name, "FORMAT", "how the result is printed", cli_formats)
bool cli_format_is_json(const cli_format_options *format); /* json or jsonl */

typedef struct {
    int64_t threads; /* 0: the physical cores that the process may use */
    const char *cpu; /* NULL: the best level there is */
    const char *device;
} cli_compute_options;
extern const char *const cli_devices[];
#define CLI_COMPUTE(type, field)                                                                                              \
    CLI_INT("threads", type, field.threads, "N", "threads to use (default: the physical cores of this process)", 1, 256),     \
    CLI_STRING("cpu", type, field.cpu, "LEVEL", "ref, neon, avx2, avx512 or amx (default: the best of this machine)", 0),     \
    CLI_CHOICE("device", type, field.device, "DEVICE", "where to compute", cli_devices)
/* Refuses a device: for commands that compute on the CPU. */
AG_MUST_USE ag_status cli_backend(ag_backend *be, const cli_compute_options *options, ag_err *err);
/* For commands that have a device, too (device_access.h): what remains to the CPU. */
AG_MUST_USE ag_status cli_backend_beside_device(ag_backend *be, const cli_compute_options *options, ag_err *err);

#endif
