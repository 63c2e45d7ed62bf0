/* A training run from a job to its files: steps, evaluations, checkpoints, the final adapter, the manifest.
 *
 *     <output_dir>/<run_name>/   the adapter and tokenizer files, checkpoint-<step>/, artifact_index.json
 *     runs/<run_name>/           manifest.json; metrics.jsonl and TensorBoard events unless logging_dir says elsewhere
 *
 * One process at a time: the run holds a lock, another one is refused (AG_E_BUSY). Whatever ends it, the last checkpoint is whole, and
 * the same command with resume_from_latest_checkpoint goes on to the same bits as if it had not ended. */
#ifndef AG_RUN_H
#define AG_RUN_H

#include "train/job.h"

#include <signal.h>

typedef struct {
    int64_t step, n_steps;  /* step: done, 1 for the first */
    double loss, grad_norm, lr, tok_s;
    int64_t n_tokens, n_targets;
    bool is_skipped;
} ag_run_step;

/* What the run tells while it goes; any of them may be NULL. */
typedef struct {
    void *user;
    void (*on_begin)(void *user, const ag_train_job *job, int64_t first_step, const char *resumed_from); /* NULL: anew */
    void (*on_step)(void *user, const ag_run_step *step);
    void (*on_eval)(void *user, int64_t step, double loss, int64_t n_targets);
    void (*on_checkpoint)(void *user, int64_t step, const char *path);
} ag_run_events;

typedef struct {
    const char *run_dir;  /* the config's */
    int64_t n_steps;      /* taken in all, also before a resume */
    double loss;          /* of the last step */
    double tok_s;         /* over the steps of this process */
    int64_t n_targets;    /* supervised tokens of this process */
    double eval_loss;     /* NAN where nothing was evaluated */
} ag_run_result;

/* stop: where a signal handler leaves its number; the step that runs is finished, a checkpoint is written (unless the config says
 * save_on_signal: false), and AG_E_INTERRUPTED (SIGINT) or AG_E_TERMINATED is returned. NULL: nothing stops it. */
AG_MUST_USE ag_status ag_run(const ag_train_job *job, const ag_run_events *events, const volatile sig_atomic_t *stop,
                             ag_run_result *result, ag_err *err);

#endif
