/* The first fine-tuning of Granite as an experiment that is fixed before it runs: split, model, budget and judgement in one
 * contract.
 *
 *     <output_dir>/experiment-contract.json     agoge.granite-first-sft-contract.v1, canonical
 *                  experiment-contract.sha256   "<sha256>  experiment-contract.json"
 *
 * The budget granite-4.1-first-sft-budget-v1 is the same for every experiment of this kind: see ag_experiment_budget. */
#ifndef AG_EXPERIMENT_H
#define AG_EXPERIMENT_H

#include "base/arena.h"
#include "base/digest.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

#define AG_EXPERIMENT_SCHEMA "agoge.granite-first-sft-contract.v1"
#define AG_EXPERIMENT_BUDGET "granite-4.1-first-sft-budget-v1"
#define AG_EXPERIMENT_FILE   "experiment-contract.json"

enum { AG_EXPERIMENT_MAX_TARGETS = 64 };

/* A model that was tried from load to generate (agoge.model-compatibility.v1), as its report says. */
typedef struct {
    const char *model_repository, *model_revision, *tokenizer_repository, *tokenizer_revision, *tokenizer_sha256;
    const char *target_modules[AG_EXPERIMENT_MAX_TARGETS];
    int n_targets;
} ag_qualification;
/* Texts in the arena. AG_E_FORMAT: another schema; AG_E_VERIFY: the report is not of a model that passed, without its code. */
AG_MUST_USE ag_status ag_qualification_load(ag_qualification *out, const char *path, ag_arena *arena, ag_err *err);

typedef struct {
    const char *experiment_id, *output_dir, *split_manifest, *qualification_report;
    const char *git_commit; /* of the clean work tree that the experiment is frozen from */
    int n_threads;
} ag_experiment_options;
AG_MUST_USE ag_status ag_experiment_freeze(ag_sha256 *contract, const ag_experiment_options *options, ag_err *err);

/* A frozen experiment, its files found and held against its digests. */
typedef struct {
    const char *path, *dir; /* of the contract, absolute */
    ag_sha256 sha256;
    const char *id, *git_commit, *split_manifest, *train_file;
    ag_qualification model;
    ag_arena arena;
} ag_experiment;
AG_MUST_USE ag_status ag_experiment_open(ag_experiment **out, const char *contract, int n_threads, ag_err *err);
void ag_experiment_close(ag_experiment **experiment);

/* Numbers of the budget that evaluation needs, and the training config as YAML for a run `run_name` below `output_dir`. */
enum { AG_EXPERIMENT_SEED = 17, AG_EXPERIMENT_NEW_TOKENS = 128, AG_EXPERIMENT_WINDOW = 2048 };
void ag_experiment_write_config(ag_str *out, const ag_experiment *e, const char *output_dir, const char *run_name);

#endif
