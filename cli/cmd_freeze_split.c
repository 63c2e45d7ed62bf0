/* agoge freeze-split: divide a dataset once, and write down how. */
#include "cli/commands.h"
#include "cli/runtime.h"

#include "base/clock.h"
#include "base/json.h"
#include "data/split.h"

#include <stdio.h>

typedef struct {
    ag_split_freeze_options freeze;
    int64_t threads;
    cli_format_options format;
} options;

enum { MAX_WEIGHT = 1000000000 };

static const cli_option table[] = {
    CLI_STRING("source", options, freeze.source, "FILE", "the JSONL dataset, under whatever name it lies here", CLI_REQUIRED),
    CLI_STRING("source-path", options, freeze.source_path, "PATH", "what it is called in its repository; recorded",
               CLI_REQUIRED),
    CLI_STRING("output-dir", options, freeze.output_dir, "DIR", "where the snapshot appears; must not exist", CLI_REQUIRED),
    CLI_STRING("source-repository", options, freeze.source_repository, "NAME", "recorded", CLI_REQUIRED),
    CLI_STRING("source-revision", options, freeze.source_revision, "COMMIT", "40 to 64 hexadecimal digits; recorded",
               CLI_REQUIRED),
    CLI_STRING("dataset-version", options, freeze.dataset_version, "NAME", "recorded", CLI_REQUIRED),
    CLI_INT_REQUIRED("seed", options, freeze.policy.seed, "N", "decides, with the salt, who goes where", INT64_MIN, INT64_MAX),
    CLI_STRING("salt", options, freeze.policy.salt, "TEXT", "likewise; name it with a version", CLI_REQUIRED),
    CLI_INT("train-weight", options, freeze.policy.weight[AG_SPLIT_TRAIN], "N", "share of train (default: 80)", 1, MAX_WEIGHT),
    CLI_INT("validation-weight", options, freeze.policy.weight[AG_SPLIT_VALIDATION], "N", "share of validation (default: 10)",
            1, MAX_WEIGHT),
    CLI_INT("held-out-weight", options, freeze.policy.weight[AG_SPLIT_HELD_OUT], "N", "share of held_out (default: 10)", 1,
            MAX_WEIGHT),
    CLI_STRING("canonical-id-field", options, freeze.identity.canonical_id_field, "KEY",
               "the row's own id (default: canonical_id)", 0),
    CLI_STRING("lineage-id-field", options, freeze.identity.lineage_id_field, "KEY", "rows of one origin (default: lineage_id)",
               0),
    CLI_STRING("group-id-field", options, freeze.identity.group_id_field, "KEY", "rows to keep together (default: group_id)",
               0),
    CLI_INT("threads", options, threads, "N", "threads to use (default: the physical cores of this process)", 1, 256),
    CLI_FORMAT(options, format),
    CLI_END,
};

static void print_json(const options *o, const ag_split_freeze_result *r)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "output_dir", o->freeze.output_dir);
    ag_jw_string(&w, "manifest_sha256", r->manifest_sha256.hex);
    ag_jw_string(&w, "source_sha256", r->source_sha256.hex);
    ag_jw_int(&w, "records", r->n_rows);
    for (int s = 0; s < AG_N_SPLITS; s++) ag_jw_int(&w, ag_split_name_text(s), r->n_of[s]);
    ag_jw_end(&w);
    printf("%s\n", out.text);
    ag_str_free(&out);
}

static void print_text(const options *o, const ag_split_freeze_result *r)
{
    printf("source  %s, %lld records, SHA-256 %s\n", o->freeze.source, (long long)r->n_rows, r->source_sha256.hex);
    for (int s = 0; s < AG_N_SPLITS; s++)
        printf("wrote   %s/splits/%s.jsonl, %lld records\n", o->freeze.output_dir, ag_split_name_text(s),
               (long long)r->n_of[s]);
    printf("wrote   %s/" AG_SPLIT_MANIFEST_FILE ", SHA-256 %s\nwrote   %s/split_report.md\n", o->freeze.output_dir,
           r->manifest_sha256.hex, o->freeze.output_dir);
}

static int run(int argc, char **argv)
{
    options o = {.freeze = {.policy = {.weight = {80, 10, 10}},
                            .identity = {.canonical_id_field = "canonical_id",
                                         .lineage_id_field = "lineage_id",
                                         .group_id_field = "group_id"}},
                 .format = CLI_FORMAT_DEFAULT};
    ag_err err;
    ag_split_freeze_result result;
    CLI_PARSE(&cli_freeze_split, &o, argc, argv);
    o.freeze.n_threads = o.threads > 0 ? (int)o.threads : ag_physical_cores();
    if (ag_split_freeze(&result, &o.freeze, &err)) return cli_fail(&err);
    if (cli_format_is_json(&o.format))
        print_json(&o, &result);
    else
        print_text(&o, &result);
    return 0;
}

const cli_command cli_freeze_split = {
    .name = "freeze-split",
    .summary = "divide a dataset into train, validation and held_out, once and for all",
    .details =
        "Rows that share a lineage, a group or their text stay together. The same inputs give the same bytes, anywhere. A "
        "dataset beside\n"
        "whose split_manifest.json a model is trained gives the adapter a sealed provenance, which held-out-eval asks for.",
    .options = table,
    .run = run};
