/* A training mixture: of several frozen train splits, so many tokens of each as its weight says, the same ones every time.
 *
 *     policy.json   {"policy": {"seed", "salt", "accepted_token_budget", "experiment_arm", "consumed_split": "train"},
 *                    "sources": [{"source_id", "provenance_class", "weight", "split_manifest", "token_statistics",
 * "token_ledger"}, …], "reserved": {"canonical_ids", "lineage_ids", "group_ids", "content_sha256"}}           reserved is
 * optional <output_dir>/ mixture.jsonl (rows as their splits hold them), mixture_manifest.json (agoge.mixture-manifest.v1,
 * canonical)
 *
 * sha256-token-budget-v1: quotas are the budget's shares by weight, rounded down, and what is left goes to the largest
 * remainders (of equals to the smaller source_id). A source's records are taken in the order of SHA-256(algorithm NUL seed NUL
 * salt NUL source_id NUL canonical_id) while they fit: a record over the context limit is left out as "truncated", one larger
 * than the whole quota as "exceeds-source-quota", one larger than what is left of it as "quota-remainder". The accepted rows of
 * all sources stand in the order of the same digests. So a quota is never exceeded, and what could not be filled is told as its
 * shortfall.
 *
 * Nothing that is held back may be in the mixture: not what is reserved, not the validation or held-out rows of any source,
 * nothing twice. Each is a counter of the manifest's audit; where one is not 0 the mixture is refused and nothing is written.
 */
#ifndef AG_MIXTURE_H
#define AG_MIXTURE_H

#include "base/digest.h"
#include "base/status.h"

#include <stdint.h>

#define AG_MIXTURE_SCHEMA    "agoge.mixture-manifest.v1"
#define AG_MIXTURE_ALGORITHM "sha256-token-budget-v1"

typedef struct {
    const char *policy, *output_dir; /* output_dir must not exist */
    int n_threads;
} ag_mixture_options;

typedef struct {
    int64_t n_records, n_tokens, budget, shortfall;
    int n_sources;
    ag_sha256 manifest_sha256;
} ag_mixture_result;

/* Paths of the policy are relative to its file. */
AG_MUST_USE ag_status ag_mixture_compose(ag_mixture_result *result, const ag_mixture_options *options, ag_err *err);

#endif
