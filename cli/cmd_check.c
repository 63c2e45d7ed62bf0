/* agoge check: what this machine can do, and what is missing. */
#include "cli/commands.h"
#include "cli/device_access.h"
#include "cli/hub_access.h"
#include "cli/session.h"
#include "cli/terminal.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"

#include <stdio.h>

typedef struct {
    cli_format_options format;
    const char *model;
} options;

static const cli_option table[] = {
    CLI_STRING("model", options, model, "MODEL", "look at every weight of this model, too: are they numbers, are all there", 0),
    CLI_FORMAT(options, format),
    CLI_END,
};

static ag_status check_model(const char *name, ag_err *err)
{
    ag_model *model;
    ag_arena arena = {0};
    const char *path;
    ag_status status = cli_find_model(&path, name, NULL, &arena, err);
    if (!status) status = ag_model_open(&model, path, &(ag_model_options){.check_finite = true, .n_threads = ag_physical_cores()}, err);
    if (!status) {
        fprintf(stderr, "%s: %s, %.1f M parameters, every weight is a finite number\n", name, model->d.architecture,
                (double)ag_description_parameters(&model->d) * 1e-6);
        ag_model_close(&model);
    }
    ag_arena_free(&arena);
    return status;
}

static int run(int argc, char **argv)
{
    options o = {.format = CLI_FORMAT_DEFAULT};
    CLI_PARSE(&cli_check, &o, argc, argv);
    uint64_t disk = 0;
    ag_err err;
    if (o.model && check_model(o.model, &err)) return cli_fail(&err);
    if (ag_disk_free(&disk, ".", &err)) disk = 0;

    ag_str out = {0};
    ag_json_writer w = {.out = &out, .indent = 2};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "cpu", ag_cpu_name());
    ag_jw_string(&w, "cpu_level", ag_cpu_level_name(ag_cpu_best_level()));
    ag_jw_array(&w, "cpu_levels");
    for (int i = 0; i < AG_N_CPU_LEVELS; i++)
        if (ag_cpu_has_level((ag_cpu_level)i)) ag_jw_string(&w, NULL, ag_cpu_level_name((ag_cpu_level)i));
    ag_jw_end(&w);
    ag_jw_bool(&w, "avx512_bf16", ag_cpu_has_avx512_bf16());
    ag_jw_int(&w, "cores", ag_physical_cores());
    ag_jw_uint(&w, "memory_available_bytes", ag_memory_available());
    ag_jw_uint(&w, "disk_free_bytes", disk);
    ag_device *gpu;
    ag_err why;
    const bool has_gpu = cli_device_open(&gpu, "cuda", &why) == AG_OK;
    ag_jw_string(&w, "gpu", has_gpu ? gpu->info.name : NULL);
    ag_jw_bool(&w, "cuda", has_gpu);
    if (!has_gpu) ag_jw_string(&w, "cuda_missing", why.text);
    ag_jw_end(&w);

    if (cli_format_is_json(&o.format)) {
        printf("%s\n", out.text);
    } else {
        printf("processor  %s\nlevels    ", ag_cpu_name());
        for (int i = 0; i < AG_N_CPU_LEVELS; i++)
            if (ag_cpu_has_level((ag_cpu_level)i)) printf(" %s", ag_cpu_level_name((ag_cpu_level)i));
        printf(" (used: %s)\ncores      %d\nmemory     %s free\ndisk       %s free here\n", ag_cpu_level_name(ag_cpu_best_level()),
               ag_physical_cores(), cli_bytes(ag_memory_available()), cli_bytes(disk));
        if (has_gpu)
            printf("gpu        %s, compute %d.%d, %s of %s free\n", gpu->info.name, gpu->info.major, gpu->info.minor, cli_bytes(gpu->info.memory_free),
                   cli_bytes(gpu->info.memory_total));
        else
            printf("gpu        none: %s\n", why.text);
    }
    ag_device_close(&gpu);
    ag_str_free(&out);
    return 0;
}

const cli_command cli_check = {
    .name = "check", .alias = "check-torch", .summary = "what this machine can do, and what is missing", .options = table, .run = run};
