/* Base against fine-tuned, on rows that neither was trained on: the same prompts, greedily, scored and compared.
 *
 *     <output_dir>/contract.json        what was asked (contract.h)
 *                  base/generations.jsonl  base/metrics.json     sft/generations.jsonl  sft/metrics.json
 *                  comparison.json  regressions.jsonl  statistics.json  report.md
 *
 *     ag_held_out_result result;
 *     AG_TRY(ag_held_out_run(&result, &options, err));
 *
 * The bundle appears whole or not at all. What is generated is kept in a journal beside it (journal.h), so that the same
 * command goes on where a killed one stopped, to the same bytes. The result depends on nothing but the contract and the
 * processor level: not on threads, nor on how many rows run side by side. */
#ifndef AG_HELD_OUT_H
#define AG_HELD_OUT_H

#include "eval/contract.h"
#include "eval/scoring.h"
#include "ops/backend.h"

#include <signal.h>

typedef struct {
    const char *split_manifest, *output_dir;
    const char *sft_artifact; /* an adapter's or merged model's folder with its artifact_index.json; NULL: only the base arm
                                 (base_only) */
    const char *base_id, *base_revision, *base_path;                /* named so, and where it lies */
    const char *tokenizer_id, *tokenizer_revision, *tokenizer_path; /* likewise */
    int64_t context_window, max_new_tokens, seed;
    ag_truncation_policy policy;
    ag_compute compute;
    int batch; /* rows side by side, 1 … AG_LINEAR_FEW */
    bool restart;
    const ag_backend *backend;
    void *user;
    void (*on_progress)(void *user, const char *arm, int64_t done, int64_t total); /* may be NULL */
    const volatile sig_atomic_t *stop;
} ag_held_out_options;

typedef struct {
    ag_comparison comparison;
    ag_arm_counts base, sft;
    ag_artifact_kind kind;
    int64_t n_resumed; /* generations that were in the journal */
} ag_held_out_result;

AG_MUST_USE ag_status ag_held_out_run(ag_held_out_result *result, const ag_held_out_options *options, ag_err *err);

/* Files under dir (at any depth) that may hold code: pytorch_model.bin, adapter_model.bin, *.ckpt. AG_E_VERIFY names the first.
 */
AG_MUST_USE ag_status ag_refuse_unsafe_weights(const char *dir, ag_err *err);

#endif
