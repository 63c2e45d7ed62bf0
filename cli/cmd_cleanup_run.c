/* agoge cleanup-run: delete the checkpoints of a finished run. */
#include "cli/commands.h"
#include "cli/run_options.h"

#include "runs/cleanup.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *run_dir, *merged_dir, *format;
    bool dry_run, force, allow_unsafe;
    int64_t keep_latest;
} options;

static const cli_option table[] = {
    CLI_POSITIONAL("RUN_DIR", options, run_dir, "the run: adapters/<run_name>", CLI_REQUIRED),
    CLI_FLAG("dry-run", options, dry_run, "tell what would be deleted; delete nothing"),
    CLI_INT("keep-latest", options, keep_latest, "N", "keep the N newest valid checkpoints", INT64_MIN, INT64_MAX),
    CLI_FLAG("force", options, force, "delete although the checkpoints are all that the run has"),
    CLI_STRING("merged-dir", options, merged_dir, "DIR",
               "look for the merged model only there (default: the sibling merged/<run_name>)", 0),
    CLI_CHOICE("format", options, format, "FORMAT", "how the report is printed", cli_report_formats),
    CLI_FLAG("allow-unsafe-serialization", options, allow_unsafe,
             "let .bin and .ckpt weights count; they are inspected, never run"),
    CLI_END,
};

static int run(int argc, char **argv)
{
    options o = {.format = "table"};
    ag_err err;
    ag_arena arena = {0};
    ag_str out = {0}, words = {0};
    ag_cleanup c = {0};
    CLI_PARSE(&cli_cleanup_run, &o, argc, argv);
    const ag_status status = ag_cleanup_run(&c,
                                            &(ag_cleanup_options){.run_dir = o.run_dir,
                                                                  .merged_dir = o.merged_dir,
                                                                  .dry_run = o.dry_run,
                                                                  .force = o.force,
                                                                  .allow_unsafe = o.allow_unsafe,
                                                                  .keep_latest = o.keep_latest,
                                                                  .hub_cache = cli_hub_cache(&arena),
                                                                  .n_threads = cli_all_threads()},
                                            &arena, &err);
    if (!status && strcmp(o.format, "json") == 0) {
        ag_cleanup_json(&out, &c);
    } else if (!status) {
        ag_cleanup_words(&words, &c);
        fputs(words.text ? words.text : "", stderr);
        ag_cleanup_table(&out, &c);
    }
    if (!status) fputs(out.text, stdout);
    ag_str_free(&out);
    ag_str_free(&words);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : c.n_failed > 0;
}

const cli_command cli_cleanup_run = {
    .name = "cleanup-run",
    .summary = "delete the checkpoints of a finished run",
    .details =
        "Refuses while a run trains, and unless a final adapter or a merged model is there (--force). Look at --dry-run first.",
    .options = table,
    .run = run};
