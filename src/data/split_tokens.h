/* How many tokens a frozen split has for one tokenizer, beside the split and never in it: the split's bytes are the same for
 * every tokenizer.
 *
 *     <output_dir>/token_statistics.json   agoge.token-stats.v1: digests of manifest and splits, model, tokenizer, serializer,
 * context_limit, and of each split record_count, total_tokens, minimum_tokens, maximum_tokens, truncated_records
 *                  token_ledger.json       agoge.token-ledger.v1: the tokens of every record of every split, by canonical id
 *
 * Both canonical JSON. A record's tokens are those that training gives it (examples.h), its EOS included; it is truncated where
 * they are more than the context limit. */
#ifndef AG_SPLIT_TOKENS_H
#define AG_SPLIT_TOKENS_H

#include "base/json.h"
#include "data/split.h"
#include "text/tokenizer.h"

#define AG_TOKEN_STATS_SCHEMA  "agoge.token-stats.v1"
#define AG_TOKEN_LEDGER_SCHEMA "agoge.token-ledger.v1"
#define AG_TOKEN_STATS_FILE    "token_statistics.json"
#define AG_TOKEN_LEDGER_FILE   "token_ledger.json"

typedef struct {
    const char *split_manifest, *output_dir;                                   /* output_dir must not exist */
    const char *model_id, *model_revision, *tokenizer_id, *tokenizer_revision; /* recorded */
    const ag_tokenizer *tokenizer;
    int64_t context_limit; /* 0: none */
    int n_threads;
} ag_split_tokens_options;

typedef struct {
    int64_t n_rows, total, minimum, maximum, truncated;
} ag_split_token_counts;

/* Publishes both files, whole or not at all; never touches the split. */
AG_MUST_USE ag_status ag_split_tokens_write(ag_split_token_counts counts[AG_N_SPLITS], const ag_split_tokens_options *options,
                                            ag_err *err);

/* What both files say of the split and the tokenizer; texts in the arena. */
typedef struct {
    ag_sha256 split_manifest, tokenizer, serializer;
    int64_t context_limit; /* 0: none */
    ag_sha256 sha256;      /* of the file itself */
} ag_token_identity;
/* Reads token_statistics.json and holds it against the split: AG_E_VERIFY where it was made for another. */
AG_MUST_USE ag_status ag_token_statistics_read(ag_token_identity *out, ag_split_token_counts counts[AG_N_SPLITS],
                                               const char *path, const ag_split *split, ag_err *err);
/* Reads token_ledger.json, likewise; *records is the list of {"canonical_id", "tokens"} of one split, borrowed from *root,
 * which the caller frees. */
AG_MUST_USE ag_status ag_token_ledger_read(ag_token_identity *out, json_t **root, const json_t **records, const char *path,
                                           const ag_split *split, ag_split_name name, ag_err *err);

#endif
