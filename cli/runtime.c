#include "cli/runtime.h"

#include "base/clock.h"

#include <string.h>

const char *const cli_formats[] = {"text", "json", "jsonl", NULL};
const char *const cli_devices[] = {"cpu", "cuda", "emu", NULL};

bool cli_format_is_json(const cli_format_options *format) { return strcmp(format->name, "text") != 0; }

ag_status cli_backend(ag_backend *be, const cli_compute_options *options, ag_err *err)
{
    if (options->device && strcmp(options->device, "cpu") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "this command computes on the CPU; --device %s is for train-qlora, train-lora and plan", options->device);
    return cli_backend_beside_device(be, options, err);
}

ag_status cli_backend_beside_device(ag_backend *be, const cli_compute_options *options, ag_err *err)
{
    ag_cpu_level level = ag_cpu_best_level();
    if (options->cpu) AG_TRY(ag_cpu_level_parse(&level, options->cpu, err));
    return ag_backend_init_cpu(be, level, options->threads > 0 ? (int)options->threads : ag_physical_cores(), err);
}
