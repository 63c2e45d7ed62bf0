/* agoge.evaluation-contract.v2: what two arms were asked, written down so that anyone can see that it was the same thing. */
#ifndef AG_CONTRACT_H
#define AG_CONTRACT_H

#include "eval/generation.h"
#include "ops/linear/linear.h"

#define AG_CONTRACT_SCHEMA "agoge.evaluation-contract.v2"

typedef enum { AG_ARTIFACT_PEFT_ADAPTER, AG_ARTIFACT_MERGED_MODEL } ag_artifact_kind;
const char *ag_artifact_kind_name(ag_artifact_kind kind); /* "peft_adapter", "merged_model" */

typedef struct {
    const char *dir;            /* absolute, where the contract will lie: its paths are relative to it */
    const char *split_manifest; /* absolute */
    const ag_split *split;
    const ag_task_list *tasks;
    const char *model_repository, *model_revision;
    const char *tokenizer_repository, *tokenizer_revision;
    ag_sha256 tokenizer_sha256;
    int64_t context_window, max_new_tokens, seed;
    ag_truncation_policy policy;
    ag_artifact_kind kind;
    const char *artifact_index; /* absolute; NULL: the contract has no arm "sft" */
    ag_sha256 artifact_index_sha256;
} ag_contract_parts;

/* The caller frees it with ag_json_free. AG_E_USAGE where a text is not UTF-8. */
AG_MUST_USE ag_status ag_contract_make(json_t **out, const ag_contract_parts *parts, ag_err *err);
/* The names of the fields in which two contracts differ, divided by ", "; empty where they are the same. Fields of an arm as
 * "base.decoding". */
void ag_contract_differences(ag_str *out, const json_t *a, const json_t *b);

/* "../frozen/split_manifest.json": `path` seen from `dir`, both absolute and without links. */
char *ag_path_relative(ag_arena *arena, const char *dir, const char *path);

#endif
