/* agoge plan: memory and time of a training run, before anything large is allocated. */
#include "cli/commands.h"
#include "cli/device_access.h"
#include "cli/hub_access.h"
#include "cli/runtime.h"
#include "cli/session.h"
#include "cli/terminal.h"

#include "base/json.h"
#include "ops/linear/linear_peak.h"
#include "train/job.h"

#include <stdio.h>

typedef struct {
    const char *config;
    cli_list sets;
    cli_compute_options compute;
    cli_format_options format;
} options;

static const cli_option table[] = {
    CLI_STRING("config", options, config, "YAML", "the training config", CLI_REQUIRED),
    CLI_REPEATED("set", options, sets, "KEY=VALUE", "override one key of the file"),
    CLI_COMPUTE(options, compute),
    CLI_FORMAT(options, format),
    CLI_END,
};

static void print_json(const ag_train_plan *p)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out, .indent = 2};
    const struct {
        const char *name;
        uint64_t bytes;
    } parts[] = {{"weights", p->weights}, {"adapter", p->adapter}, {"gradients", p->gradients}, {"optimizer", p->optimizer},
                 {"activations", p->activations}, {"workspace", p->workspace}, {"total", p->total}};
    ag_jw_object(&w, NULL);
    ag_jw_object(&w, "bytes");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) ag_jw_uint(&w, parts[i].name, parts[i].bytes);
    ag_jw_end(&w);
    ag_jw_bool(&w, "fits", p->fits);
    ag_jw_int(&w, "steps", p->n_steps);
    ag_jw_int(&w, "tokens", p->n_tokens);
    ag_jw_int(&w, "supervised_tokens", p->n_targets);
    ag_jw_end(&w);
    printf("%s\n", out.text);
    ag_str_free(&out);
}

static void print_text(const ag_train_plan *p, double gflops)
{
    printf("weights      %s\nadapter      %s (%.2f M parameters)\ngradients    %s\noptimizer    %s\nactivations  %s\nworkspace    %s\n",
           cli_bytes(p->weights), cli_bytes(p->adapter), (double)p->n_params * 1e-6, cli_bytes(p->gradients), cli_bytes(p->optimizer),
           cli_bytes(p->activations), cli_bytes(p->workspace));
    printf("total        %s of %s free: %s\n", cli_bytes(p->total), cli_bytes(p->available),
           p->fits ? "fits" : "does not fit; lower batch_size or max_seq_length, or set gradient_checkpointing: true");
    printf("steps        %lld\ntokens       %lld, of them supervised %lld\n", (long long)p->n_steps, (long long)p->n_tokens,
           (long long)p->n_targets);
    if (gflops > 0) printf("time         about %s at this machine's %.0f GFLOP/s\n", cli_duration(p->flop / (gflops * 1e9) / 0.8), gflops);
}

/* Without a device at hand the plan is held against the card that the kernels are made for, less what must stay free on it. */
static void use_card(ag_train_plan *p)
{
    static const uint64_t card_bytes = (uint64_t)16303 << 20, headroom_bytes = (uint64_t)2048 << 20;
    p->available = card_bytes - headroom_bytes;
    p->fits = p->total <= p->available;
}

static ag_status plan(const options *o, ag_err *err)
{
    ag_backend backend;
    ag_train_config *config;
    ag_train_job *job = NULL;
    ag_device *device = NULL;
    AG_TRY(cli_backend_beside_device(&backend, &o->compute, err));
    AG_TRY(ag_train_config_load(&config, o->config, (const char *const *)o->sets.items, (size_t)o->sets.n, err));
    ag_arena arena = {0};
    ag_status status = cli_find_model(&config->model_path, config->model_id, config->revision, &arena, err);
    if (!status) status = cli_device_open_for_sizes(&device, o->compute.device, err);
    if (!status) status = ag_train_job_open(&job, config, &backend, &(ag_train_job_options){.only_plan = true, .device = device}, err);
    ag_train_plan p;
    if (!status && device) status = ag_train_job_plan_device(&p, job, err);
    if (!status && device && !device->context) use_card(&p);
    if (!status) {
        if (!device) ag_train_job_plan(&p, job);
        double gflops = 0;
        if (cli_format_is_json(&o->format))
            print_json(&p);
        else if (device)
            print_text(&p, 0);
        else if (!(status = ag_linear_peak(&gflops, &backend, job->decoder.compute, err)))
            print_text(&p, gflops);
    }
    ag_train_job_close(&job);
    ag_device_close(&device);
    ag_train_config_free(&config);
    ag_arena_free(&arena);
    return status;
}

static int run(int argc, char **argv)
{
    options o = {.format = CLI_FORMAT_DEFAULT};
    ag_err err;
    CLI_PARSE(&cli_plan, &o, argc, argv);
    return plan(&o, &err) ? cli_fail(&err) : 0;
}

const cli_command cli_plan = {
    .name = "plan", .summary = "memory, steps and time of a training run, before anything is allocated", .options = table, .run = run};
