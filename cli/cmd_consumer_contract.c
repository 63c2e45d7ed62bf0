/* agoge consumer-contract: is incoming JSONL what training reads, and does nothing in it know the future? */
#include "cli/commands.h"
#include "cli/runtime.h"

#include "base/fs.h"
#include "base/json.h"
#include "data/consumer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    cli_list inputs;
    const char *out_dir;
    cli_format_options format;
} options;

static const cli_option table[] = {
    CLI_REPEATED("input", options, inputs, "FILE", "a JSONL file to check"),
    CLI_STRING("out-dir", options, out_dir, "DIR", "where <stem>.sidecar.json is written for each input", CLI_REQUIRED),
    CLI_FORMAT(options, format),
    CLI_END,
};

/* The check says what a consumer without a GPU finds; where one could be used, the answer would not be that. */
static ag_status refuse_gpus(ag_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible && *visible && strcmp(visible, "-1") != 0)
        return ag_fail(err, AG_E_CONFIG, "CUDA_VISIBLE_DEVICES is '%s': consumer-contract runs without GPUs; set it to -1",
                       visible);
    if (!visible && ag_path_is_dir("/proc/driver/nvidia/gpus"))
        return ag_fail(err, AG_E_CONFIG, "a GPU is visible: consumer-contract runs without GPUs; set CUDA_VISIBLE_DEVICES=-1");
    return AG_OK;
}

/* The file's name without its last suffix. */
static char *stem_of(const char *path, ag_arena *arena)
{
    const char *base = ag_path_base(path), *dot = strrchr(base, '.');
    return ag_arena_strndup(arena, base, dot && dot != base ? (size_t)(dot - base) : strlen(base));
}

static ag_status refuse_same_stems(const options *o, ag_arena *arena, ag_err *err)
{
    if (o->inputs.n == 0) return ag_fail(err, AG_E_USAGE, "agoge consumer-contract needs --input, once for each file");
    for (int i = 0; i < o->inputs.n; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(stem_of(o->inputs.items[i], arena), stem_of(o->inputs.items[j], arena)) == 0)
                return ag_fail(err, AG_E_USAGE, "%s and %s would write the same sidecar; check them into two folders",
                               o->inputs.items[j], o->inputs.items[i]);
    return AG_OK;
}

static ag_status check_one(const options *o, const char *input, const char *dir, ag_json_writer *w, bool *ok, ag_arena *arena,
                           ag_err *err)
{
    char *path;
    ag_consumer_result r;
    AG_TRY(ag_path_existing_file(&path, input, arena, err));
    AG_TRY(ag_consumer_check(&r, path, err));
    const char *sidecar = ag_path_join(arena, dir, ag_arena_printf(arena, "%s.sidecar.json", stem_of(input, arena)));
    ag_status status = ag_file_publish(sidecar, r.sidecar.text, r.sidecar.n, err);
    if (!status && !cli_format_is_json(&o->format))
        printf("%s  %zu rows, %zu errors; %s\n", r.ok ? "ok    " : "failed", r.n_rows, r.n_errors, sidecar);
    ag_jw_object(w, NULL);
    ag_jw_string(w, "input", input);
    ag_jw_string(w, "sidecar", sidecar);
    ag_jw_int(w, "rows", (int64_t)r.n_rows);
    ag_jw_int(w, "errors", (int64_t)r.n_errors);
    ag_jw_bool(w, "ok", r.ok);
    ag_jw_end(w);
    *ok &= r.ok;
    ag_consumer_result_free(&r);
    return status;
}

static ag_status check_all(const options *o, bool *ok, ag_str *out, ag_arena *arena, ag_err *err)
{
    char *dir;
    ag_json_writer w = {.out = out};
    AG_TRY(refuse_gpus(err));
    AG_TRY(refuse_same_stems(o, arena, err));
    AG_TRY(ag_path_output_dir(&dir, o->out_dir, arena, err));
    ag_jw_array(&w, NULL);
    for (int i = 0; i < o->inputs.n; i++) AG_TRY(check_one(o, o->inputs.items[i], dir, &w, ok, arena, err));
    ag_jw_end(&w);
    return AG_OK;
}

static int run(int argc, char **argv)
{
    options o = {.format = CLI_FORMAT_DEFAULT};
    ag_err err;
    ag_arena arena = {0};
    ag_str out = {0};
    bool ok = true;
    CLI_PARSE(&cli_consumer_contract, &o, argc, argv);
    ag_status status = check_all(&o, &ok, &out, &arena, &err);
    if (!status && cli_format_is_json(&o.format)) printf("%s\n", out.text);
    if (!status && !ok)
        status =
            ag_fail(&err, AG_E_VERIFY, "not every row keeps the contract; the sidecars in %s say which and why", o.out_dir);
    ag_str_free(&out);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_consumer_contract = {.name = "consumer-contract",
                                           .summary = "check incoming JSONL on the CPU and write a sidecar for each file",
                                           .options = table,
                                           .run = run};
