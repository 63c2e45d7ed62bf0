/* agoge pull: a repository of the hub into the cache that huggingface_hub uses. */
#include "cli/commands.h"
#include "cli/hub_access.h"
#include "cli/runtime.h"
#include "cli/terminal.h"

#include "base/json.h"

#include <stdio.h>

typedef struct {
    const char *id, *revision;
    cli_list include;
    bool dataset, verify;
    cli_format_options format;
} options;

static const cli_option table[] = {
    CLI_POSITIONAL("ORG/NAME", options, id, "the repository", CLI_REQUIRED),
    CLI_STRING("revision", options, revision, "REV", "a branch, tag or commit (default: main)", 0),
    CLI_REPEATED("include", options, include, "GLOB", "fetch only files whose names match ('*' crosses '/', too)"),
    CLI_FLAG("dataset", options, dataset, "a dataset, not a model"),
    CLI_FLAG("verify", options, verify, "take the digests of what the cache has already, too"),
    CLI_FORMAT(options, format),
    CLI_END,
};

static void print_result(const options *o, const ag_hub_snapshot *s)
{
    if (!cli_format_is_json(&o->format)) {
        printf("%s\n  %s@%s, commit %s: %zu files, %s; fetched %zu, %s\n", s->path, o->id, o->revision ? o->revision : "main", s->commit, s->n_files,
               cli_bytes(s->bytes), s->n_fetched, cli_bytes(s->fetched_bytes));
        return;
    }
    ag_str text = {0};
    ag_json_writer w = {.out = &text};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "path", s->path);
    ag_jw_string(&w, "revision", s->commit);
    ag_jw_uint(&w, "files", s->n_files);
    ag_jw_uint(&w, "bytes", s->bytes);
    ag_jw_uint(&w, "fetched_files", s->n_fetched);
    ag_jw_uint(&w, "fetched_bytes", s->fetched_bytes);
    ag_jw_end(&w);
    printf("%s\n", text.text);
    ag_str_free(&text);
}

static ag_status pull(const options *o, ag_arena *arena, ag_err *err)
{
    ag_hub_options hub;
    ag_hub_snapshot snapshot;
    AG_TRY(cli_hub_options(&hub, arena, err));
    hub.verify = o->verify;
    cli_hub_bar *bar = cli_hub_bar_begin(&hub, arena);
    const ag_status status = ag_hub_pull(&snapshot, &hub, &(ag_hub_request){
        .kind = o->dataset ? AG_HUB_DATASET : AG_HUB_MODEL, .id = o->id, .revision = o->revision, .include = o->include.items,
        .n_include = (size_t)o->include.n}, arena, err);
    cli_hub_bar_end(bar);
    if (!status) print_result(o, &snapshot);
    return status;
}

static int run(int argc, char **argv)
{
    options o = {.format = CLI_FORMAT_DEFAULT};
    ag_arena arena = {0};
    ag_err err;
    CLI_PARSE(&cli_pull, &o, argc, argv);
    const ag_status status = pull(&o, &arena, &err);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_pull = {
    .name = "pull", .summary = "fetch a repository of the hub into the cache that huggingface_hub uses",
    .details = "Resumes what was cut, checks lengths and digests. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they\n"
               "mean to huggingface_hub.", .options = table, .run = run};
