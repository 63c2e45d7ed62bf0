/* A reproducibility bundle: one folder with everything that a claim about a fine-tuned model rests on, and an inventory of it.
 *
 *     <bundle>/reproducibility-bundle.json                   the inventory: every file, its size and SHA-256 (bundle_inventory.h)
 *              reproducibility-bundle.sig                    optional: 64 bytes, Ed25519 over the inventory's bytes
 *              run/manifest.json        config/locked.json   what ran, and with which configuration
 *              split_manifest.json      splits/…             what it was trained and judged on
 *              adapter/artifact_index.json …                 what came out; merged/artifact_index.json … where it was merged
 *              contract.json                                 how base and result were compared
 *
 *     ag_bundle_report report;
 *     AG_TRY(ag_bundle_verify(&report, "path/to/bundle", &(ag_bundle_verify_options){.n_threads = 2}, err));
 *     puts(ag_bundle_passes(&report) ? "pass" : "fail");
 *     ag_bundle_report_free(&report);
 *
 * Verification reads and hashes files, and nothing else: no network, no weights loaded, no tensor header read, nothing unpickled, nothing
 * written. Whatever is not known to be right is a failure. To read a verification from top to bottom, start at ag_bundle_verify in
 * bundle_verify.c; docs/evidence.md says the same in words. */
#ifndef AG_BUNDLE_H
#define AG_BUNDLE_H

#include "seal/bundle_report.h"
#include "seal/signature.h"

#define AG_BUNDLE_VERSION "agoge.reproducibility-bundle.v1"
#define AG_BUNDLE_INVENTORY_FILE "reproducibility-bundle.json"
#define AG_BUNDLE_SIGNATURE_FILE "reproducibility-bundle.sig"

/* Paths in the bundle, canonical and relative. merged_index may be NULL: sealing takes merged/artifact_index.json where it is there. */
typedef struct {
    const char *run_manifest, *locked_config, *split_manifest, *adapter_index, *merged_index, *contract;
} ag_bundle_parts;
#define AG_BUNDLE_PARTS_DEFAULT                                                                                                      \
    {"run/manifest.json", "config/locked.json", "split_manifest.json", "adapter/artifact_index.json", NULL, "contract.json"}

typedef struct {
    int n_threads;
    const ag_verify_key *key; /* demanded: a bundle that is not signed by it fails. NULL: a signature is not looked at */
} ag_bundle_verify_options;

/* AG_OK with a report that the caller frees, also where the bundle fails. An error only where `dir` is no directory. */
AG_MUST_USE ag_status ag_bundle_verify(ag_bundle_report *report, const char *dir, const ag_bundle_verify_options *options, ag_err *err);

/* Writes the inventory (and, with a key, the signature) of a folder that is populated already. Everything is verified first: where the
 * report does not pass, nothing was written, and AG_E_VERIFY is returned with the report filled. An older inventory is replaced; an older
 * signature goes before that. What a killed seal left (temporaries) is removed. The caller frees the report in every case. */
typedef struct {
    ag_bundle_parts parts;
    const ag_sign_key *key; /* NULL: unsigned */
    int n_threads;
} ag_bundle_seal_options;
AG_MUST_USE ag_status ag_bundle_seal(ag_bundle_report *report, const char *dir, const ag_bundle_seal_options *options, ag_err *err);

/* Gathers a bundle from where its parts lie, seals it, and publishes it whole or not at all; `out` must not exist.
 *
 *     adapter/            a copy of run_dir, its index first of all
 *     run/                manifest.json, and metrics.jsonl and telemetry where they lie beside it
 *     config/locked.json  the manifest's config, canonical
 *     split_manifest.json, splits/…   a copy, at the paths that the manifest names
 *     contract.json       the evaluation's contract, its two paths set to the bundle's own files
 *     evaluation/         the rest of the folder that the contract lies in, where it is an evaluation's
 *     merged/             a copy of merged_dir */
typedef struct {
    const char *run_dir, *run_manifest, *split_manifest, *contract;
    const char *merged_dir; /* NULL: none */
    const char *metrics;    /* metrics.jsonl; NULL: the one beside the manifest, if it is there */
    const ag_sign_key *key;
    int n_threads;
} ag_bundle_gather_options;
AG_MUST_USE ag_status ag_bundle_gather(ag_bundle_report *report, const char *out, const ag_bundle_gather_options *options, ag_err *err);

#endif
