/* agoge report: a run as one HTML page. */
#include "cli/commands.h"
#include "cli/run_options.h"

#include "base/fs.h"
#include "runs/run_report.h"

#include <stdio.h>

typedef struct {
    const char *run_dir, *logging_dir, *eval_dir, *out;
} options;

static const cli_option table[] = {
    CLI_STRING("run-dir", options, run_dir, "DIR", "the run: adapters/<run_name>", CLI_REQUIRED),
    CLI_STRING("out", options, out, "FILE", "the page (default: report.html beside the run's metrics)", 0),
    CLI_STRING("logging-dir", options, logging_dir, "DIR",
               "metrics.jsonl and manifest.json (default: the sibling runs/<run_name>)", 0),
    CLI_STRING("eval-dir", options, eval_dir, "DIR",
               "a held-out evaluation (default: the sibling eval/<run_name>, where there is one)", 0),
    CLI_END,
};

static ag_status report(const options *o, const char **written, ag_arena *arena, ag_err *err)
{
    ag_str page = {0};
    const char *logging_dir = NULL;
    ag_status status = ag_run_report_write(&page, &(ag_run_report_options){
        .run_dir = o->run_dir, .logging_dir = o->logging_dir, .eval_dir = o->eval_dir, .hub_cache = cli_hub_cache(arena),
        .n_threads = cli_all_threads()}, &logging_dir, arena, err);
    if (!status) {
        *written = o->out ? o->out : logging_dir ? ag_path_join(arena, logging_dir, "report.html") : "report.html";
        status = ag_make_dirs(ag_path_dir(arena, *written), err);
        if (!status) status = ag_file_publish(*written, page.text, page.n, err);
    }
    ag_str_free(&page);
    return status;
}

static int run(int argc, char **argv)
{
    options o = {0};
    ag_err err;
    ag_arena arena = {0};
    const char *written = NULL;
    CLI_PARSE(&cli_report, &o, argc, argv);
    const ag_status status = report(&o, &written, &arena, &err);
    if (!status) printf("%s\n", written);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_report = {
    .name = "report", .summary = "a run as one HTML page: curves, samples, memory, environment, digests",
    .details = "The page needs no script and no network. Its path is printed.",
    .options = table, .run = run};
