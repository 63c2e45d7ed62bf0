/* agoge verify-bundle and seal-bundle: a claim about a model, checked offline, and made checkable. */
#include "cli/commands.h"
#include "cli/runtime.h"

#include "base/clock.h"
#include "seal/bundle.h"

#include <stdio.h>
#include <string.h>

static const char *const report_formats[] = {"json", "table", NULL};

typedef struct {
    const char *path, *format;
    const char *verify_key, *sign_key;
    const char *run_dir, *run_manifest, *split_manifest, *contract, *merged_dir, *metrics;
    ag_bundle_parts parts;
    int64_t threads;
} options;

static int n_threads(const options *o) { return o->threads > 0 ? (int)o->threads : ag_physical_cores(); }

static void print_report(const options *o, const ag_bundle_report *report)
{
    ag_str text = {0};
    if (strcmp(o->format, "table") == 0)
        ag_bundle_report_write_table(report, &text);
    else
        ag_bundle_report_write_json(report, &text);
    fwrite(text.text, 1, text.n, stdout);
    ag_str_free(&text);
}

/* ---- verify-bundle --------------------------------------------------------------------------------------------------- */
static const cli_option verify_table[] = {
    CLI_POSITIONAL("PATH", options, path, "the bundle", CLI_REQUIRED),
    CLI_CHOICE("format", options, format, "FORMAT", "json (default) or table", report_formats),
    CLI_STRING("verify-key", options, verify_key, "FILE", "an Ed25519 public key (PEM): the bundle must be signed by it", 0),
    CLI_INT("threads", options, threads, "N", "threads to hash with (default: the physical cores of this process)", 1, 256),
    CLI_END,
};

static int run_verify(int argc, char **argv)
{
    options o = {.format = "json"};
    ag_err err;
    ag_verify_key *key = NULL;
    ag_bundle_report report;
    CLI_PARSE(&cli_verify_bundle, &o, argc, argv);
    ag_status status = o.verify_key ? ag_verify_key_load(&key, o.verify_key, &err) : AG_OK;
    if (status) return cli_fail(&err);
    status = ag_bundle_verify(&report, o.path, &(ag_bundle_verify_options){.n_threads = n_threads(&o), .key = key}, &err);
    if (!status) print_report(&o, &report);
    const bool passes = !status && ag_bundle_passes(&report);
    ag_bundle_report_free(&report);
    ag_verify_key_free(&key);
    return status ? cli_fail(&err) : passes ? 0 : 1;
}

const cli_command cli_verify_bundle = {
    .name = "verify-bundle", .summary = "check a sealed bundle offline: files, split, config, artifacts, evaluation, signature",
    .details = "Exit code 0 only where the verdict is pass. Nothing is loaded, unpickled, written or fetched.", .options = verify_table,
    .run = run_verify};

/* ---- seal-bundle ----------------------------------------------------------------------------------------------------- */
static const cli_option seal_table[] = {
    CLI_POSITIONAL("PATH", options, path, "the folder to seal; with --run-dir the bundle to make", CLI_REQUIRED),
    CLI_STRING("run-dir", options, run_dir, "DIR", "gather the bundle from this run's folder …", 0),
    CLI_STRING("run-manifest", options, run_manifest, "FILE", "… its runs/<run_name>/manifest.json …", 0),
    CLI_STRING("split-manifest", options, split_manifest, "FILE", "… the split it was trained on …", 0),
    CLI_STRING("contract", options, contract, "FILE", "… and the contract of its evaluation", 0),
    CLI_STRING("merged-dir", options, merged_dir, "DIR", "the merged model, where there is one", 0),
    CLI_STRING("metrics", options, metrics, "FILE", "metrics.jsonl (default: the one beside the manifest)", 0),
    CLI_STRING("run-manifest-path", options, parts.run_manifest, "PATH",
               "in a folder that is populated: run/manifest.json, or where it lies", 0),
    CLI_STRING("locked-config-path", options, parts.locked_config, "PATH", "likewise, config/locked.json", 0),
    CLI_STRING("split-manifest-path", options, parts.split_manifest, "PATH", "likewise, split_manifest.json", 0),
    CLI_STRING("adapter-index-path", options, parts.adapter_index, "PATH", "likewise, adapter/artifact_index.json", 0),
    CLI_STRING("merged-index-path", options, parts.merged_index, "PATH",
               "likewise, merged/artifact_index.json (default: that, if it is there)", 0),
    CLI_STRING("contract-path", options, parts.contract, "PATH", "likewise, contract.json", 0),
    CLI_STRING("sign-key", options, sign_key, "FILE", "an Ed25519 private key (PEM) to sign the inventory with", 0),
    CLI_CHOICE("format", options, format, "FORMAT", "json (default) or table", report_formats),
    CLI_INT("threads", options, threads, "N", "threads to hash with (default: the physical cores of this process)", 1, 256),
    CLI_END,
};

static ag_status seal(const options *o, const ag_sign_key *key, ag_bundle_report *report, ag_err *err)
{
    const bool gathers = o->run_dir || o->run_manifest || o->split_manifest || o->contract || o->merged_dir || o->metrics;
    if (!gathers)
        return ag_bundle_seal(report, o->path, &(ag_bundle_seal_options){.parts = o->parts, .key = key, .n_threads = n_threads(o)}, err);
    if (!o->run_dir || !o->run_manifest || !o->split_manifest || !o->contract)
        return ag_fail(err, AG_E_USAGE,
                       "a bundle is gathered from --run-dir, --run-manifest, --split-manifest and --contract; give all four, or none to "
                       "seal a populated folder");
    return ag_bundle_gather(report, o->path, &(ag_bundle_gather_options){
        .run_dir = o->run_dir, .run_manifest = o->run_manifest, .split_manifest = o->split_manifest, .contract = o->contract,
        .merged_dir = o->merged_dir, .metrics = o->metrics, .key = key, .n_threads = n_threads(o)}, err);
}

static int run_seal(int argc, char **argv)
{
    options o = {.format = "json", .parts = AG_BUNDLE_PARTS_DEFAULT};
    ag_err err;
    ag_sign_key *key = NULL;
    ag_bundle_report report = {0};
    CLI_PARSE(&cli_seal_bundle, &o, argc, argv);
    ag_status status = o.sign_key ? ag_sign_key_load(&key, o.sign_key, &err) : AG_OK;
    if (!status) status = seal(&o, key, &report, &err);
    if (!status || report.n) print_report(&o, &report);
    ag_bundle_report_free(&report);
    ag_sign_key_free(&key);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_seal_bundle = {
    .name = "seal-bundle", .summary = "write the inventory of a bundle, or gather one from a run, its split and its evaluation",
    .details = "Everything is verified first: what would not pass verify-bundle is not sealed. PATH appears whole or not at all.",
    .options = seal_table, .run = run_seal};
