/* agoge token-statistics and compose-mixture: how many tokens frozen splits have, and a mixture of them within a budget. */
#include "cli/commands.h"
#include "cli/hub_access.h"
#include "cli/runtime.h"
#include "cli/session.h"

#include "base/clock.h"
#include "base/json.h"
#include "data/mixture.h"
#include "data/model_text.h"
#include "data/split_tokens.h"

#include <stdio.h>

typedef struct {
    const char *manifest, *model, *revision, *output;
    int64_t context_limit, threads;
    cli_format_options format;
} token_options;
static const cli_option token_table[] = {
    CLI_STRING("split-manifest", token_options, manifest, "FILE", "split_manifest.json of a frozen split", CLI_REQUIRED),
    CLI_STRING("model", token_options, model, "MODEL", "whose tokenizer counts", CLI_REQUIRED),
    CLI_STRING("revision", token_options, revision, "REV", "of a hub model; recorded", 0),
    CLI_STRING("output-dir", token_options, output, "DIR", "where both files appear; must not exist", CLI_REQUIRED),
    CLI_INT("context-limit", token_options, context_limit, "N", "count records with more tokens as truncated", 1, INT64_MAX),
    CLI_INT("threads", token_options, threads, "N", "threads to use (default: the physical cores of this process)", 1, 256),
    CLI_FORMAT(token_options, format),
    CLI_END,
};

typedef struct {
    ag_mixture_options mixture;
    int64_t threads;
    cli_format_options format;
} mixture_options;
static const cli_option mixture_table[] = {
    CLI_STRING("policy", mixture_options, mixture.policy, "FILE", "JSON: policy, sources and what is reserved (docs/data.md)",
               CLI_REQUIRED),
    CLI_STRING("output-dir", mixture_options, mixture.output_dir, "DIR", "where the mixture appears; must not exist",
               CLI_REQUIRED),
    CLI_INT("threads", mixture_options, threads, "N", "threads to use (default: the physical cores of this process)", 1, 256),
    CLI_FORMAT(mixture_options, format),
    CLI_END,
};

static int threads_of(int64_t asked) { return asked > 0 ? (int)asked : ag_physical_cores(); }

static ag_status count_tokens(ag_split_token_counts counts[AG_N_SPLITS], const token_options *o, ag_arena *arena, ag_err *err)
{
    const char *path;
    ag_model_text *text;
    AG_TRY(cli_find_model(&path, o->model, o->revision, arena, err));
    AG_TRY(ag_model_text_open(&text, path, err));
    const char *revision = o->revision ? o->revision : "unpinned";
    ag_status status = ag_split_tokens_write(counts,
                                             &(ag_split_tokens_options){.split_manifest = o->manifest,
                                                                        .output_dir = o->output,
                                                                        .model_id = o->model,
                                                                        .model_revision = revision,
                                                                        .tokenizer_id = o->model,
                                                                        .tokenizer_revision = revision,
                                                                        .tokenizer = text->tokenizer,
                                                                        .context_limit = o->context_limit,
                                                                        .n_threads = threads_of(o->threads)},
                                             err);
    ag_model_text_close(&text);
    return status;
}

static int run_tokens(int argc, char **argv)
{
    token_options o = {.format = CLI_FORMAT_DEFAULT};
    ag_err err;
    ag_arena arena = {0};
    ag_split_token_counts counts[AG_N_SPLITS];
    CLI_PARSE(&cli_token_statistics, &o, argc, argv);
    ag_status status = count_tokens(counts, &o, &arena, &err);
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    for (int s = 0; s < AG_N_SPLITS && !status; s++) {
        if (!cli_format_is_json(&o.format))
            printf("%-10s %lld records, %lld tokens, %lld to %lld, %lld truncated\n", ag_split_name_text(s),
                   (long long)counts[s].n_rows, (long long)counts[s].total, (long long)counts[s].minimum,
                   (long long)counts[s].maximum, (long long)counts[s].truncated);
        ag_jw_object(&w, ag_split_name_text(s));
        ag_jw_int(&w, "record_count", counts[s].n_rows);
        ag_jw_int(&w, "total_tokens", counts[s].total);
        ag_jw_int(&w, "minimum_tokens", counts[s].minimum);
        ag_jw_int(&w, "maximum_tokens", counts[s].maximum);
        ag_jw_int(&w, "truncated_records", counts[s].truncated);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    if (!status && cli_format_is_json(&o.format)) printf("%s\n", out.text);
    ag_str_free(&out);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

static int run_mixture(int argc, char **argv)
{
    mixture_options o = {.format = CLI_FORMAT_DEFAULT};
    ag_err err;
    ag_mixture_result r;
    CLI_PARSE(&cli_compose_mixture, &o, argc, argv);
    o.mixture.n_threads = threads_of(o.threads);
    if (ag_mixture_compose(&r, &o.mixture, &err)) return cli_fail(&err);
    if (cli_format_is_json(&o.format)) {
        ag_str out = {0};
        ag_json_writer w = {.out = &out};
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "output_dir", o.mixture.output_dir);
        ag_jw_int(&w, "records", r.n_records);
        ag_jw_int(&w, "tokens", r.n_tokens);
        ag_jw_int(&w, "budget", r.budget);
        ag_jw_int(&w, "shortfall", r.shortfall);
        ag_jw_string(&w, "manifest_sha256", r.manifest_sha256.hex);
        ag_jw_end(&w);
        printf("%s\n", out.text);
        ag_str_free(&out);
    } else {
        printf("%lld records of %d sources, %lld of %lld tokens, in %s\n", (long long)r.n_records, r.n_sources,
               (long long)r.n_tokens, (long long)r.budget, o.mixture.output_dir);
    }
    return 0;
}

const cli_command cli_token_statistics = {.name = "token-statistics",
                                          .summary = "count a frozen split's tokens, beside it and never in it",
                                          .options = token_table,
                                          .run = run_tokens};
const cli_command cli_compose_mixture = {.name = "compose-mixture",
                                         .summary = "a training mixture of frozen train splits within a token budget",
                                         .options = mixture_table,
                                         .run = run_mixture};
