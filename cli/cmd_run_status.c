/* agoge run-status: what a run's folder is ready for. */
#define _GNU_SOURCE
#include "cli/commands.h"
#include "cli/run_options.h"

#include "runs/run_status.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *run_dir, *merged_dir, *format;
    bool allow_unsafe;
} options;

static const cli_option table[] = {
    CLI_POSITIONAL("RUN_DIR", options, run_dir, "the run: adapters/<run_name>", CLI_REQUIRED),
    CLI_STRING("merged-dir", options, merged_dir, "DIR",
               "look for the merged model only there (default: the sibling merged/<run_name>)", 0),
    CLI_CHOICE("format", options, format, "FORMAT", "how the report is printed", cli_report_formats),
    CLI_FLAG("allow-unsafe-serialization", options, allow_unsafe,
             "let .bin and .ckpt weights count; they are inspected, never run"),
    CLI_END,
};

/* Reasons go to stderr: the report has no place for them. */
static void tell(const ag_run_status *s)
{
    if (s->why_not_resume) fprintf(stderr, "not ready to resume: %s\n", s->why_not_resume);
    if (s->why_not_export) fprintf(stderr, "not ready to export: %s\n", s->why_not_export);
    if (s->why_not_merged && s->place.merged) fprintf(stderr, "no merged model: %s\n", s->why_not_merged);
}

static ag_status report(const options *o, ag_str *out, ag_arena *arena, ag_err *err)
{
    ag_run_place place;
    ag_run_status status;
    AG_TRY(ag_run_place_find(&place, o->run_dir, o->merged_dir, arena, err));
    AG_TRY(ag_run_status_make(&status, &place, &(ag_run_status_options){
        .allow_unsafe = o->allow_unsafe, .hub_cache = cli_hub_cache(arena), .n_threads = cli_all_threads()}, arena, err));
    if (strcmp(o->format, "json") == 0) ag_run_status_json(out, &status);
    else ag_run_status_table(out, &status);
    tell(&status);
    return AG_OK;
}

static int run(int argc, char **argv)
{
    options o = {.format = "json"};
    ag_err err;
    ag_arena arena = {0};
    ag_str out = {0};
    CLI_PARSE(&cli_run_status, &o, argc, argv);
    const ag_status status = report(&o, &out, &arena, &err);
    if (!status) fputs(out.text, stdout);
    ag_str_free(&out);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_run_status = {
    .name = "run-status", .summary = "what a run is ready for: resume, export",
    .details = "Nothing is loaded, run or fetched. The report is on stdout, the reasons for what is not ready on stderr.",
    .options = table, .run = run};
