/* Checkpoints of a run: directories checkpoint-<step> that appear whole or not at all, in the layout of Hugging Face's Trainer, so that
 * either program can go on from the other's.
 *
 *     checkpoint-<step>/  adapter_model.safetensors adapter_config.json   the adapter, PEFT's layout
 *                         optimizer.pt scheduler.pt rng_state.pth trainer_state.json   the Trainer's
 *                         tokenizer files                                  as beside the base
 *                         agoge_resume.json                                global_step, sampler_position, optimizer_shapes
 *
 * A checkpoint is written to .agoge-ckpt-staging-… beside it, synced, and renamed; the oldest beyond the limit are renamed away before
 * they are deleted, so that a half-deleted one never stands under its name. Position in the data, dropout masks and learning rate
 * follow from the step; what a resume must load is the adapter, the optimizer's moments and its count of updates. */
#ifndef AG_CHECKPOINT_H
#define AG_CHECKPOINT_H

#include "train/job.h"
#include "train/optimizer.h"

typedef struct {
    int64_t step;       /* optimizer steps taken, skipped ones too: the step of the directory's name */
    int64_t n_updates;  /* of those, the ones that moved the adapter: AdamW's t */
} ag_progress;

typedef struct {
    int64_t step;
    double loss, grad_norm, lr, epoch;
} ag_log_entry;

typedef struct {
    const ag_train_job *job;
    float *params;                        /* [job->adapter.n_params] */
    ag_optimizer optimizer;               /* its moments */
    ag_log_entry *log;                    /* of every step so far, for trainer_state.json; room for job's n_steps */
    int64_t n_log;
    bool drop_earlier;                    /* the run began anew: the first save drops what an earlier run left, once it is whole */
} ag_run_state;

/* Writes checkpoint-<step> into run_dir, then drops the oldest valid ones beyond config->save_total_limit. */
AG_MUST_USE ag_status ag_checkpoint_save(ag_run_state *state, ag_progress progress, const char *run_dir, ag_err *err);

/* The checkpoint that a run is to resume from by its config (resume_checkpoint_path, else resume_from_latest_checkpoint), or NULL: start
 * anew. Of the valid ones the newest is taken from which the run goes on as if it had never stopped: global step, optimizer, scheduler,
 * position in the data, generators and adapter weights are all there and fit this job. Newer ones that lack any of these go to the
 * quarantine (non_equivalent_resume); where every one lacks something nothing is moved, and the newest is taken with a warning that
 * says what it lacks. `state` is used as a place to load into. */
AG_MUST_USE ag_status ag_checkpoint_choose(const char **path, ag_run_state *state, const char *run_dir, ag_arena *arena, ag_err *err);

/* How many whole checkpoints are in run_dir. */
AG_MUST_USE ag_status ag_checkpoint_count(size_t *n, const char *run_dir, ag_err *err);

/* Fills params, moments and log. AG_E_FORMAT names file and what does not fit this job; then nothing may be used. */
AG_MUST_USE ag_status ag_checkpoint_load(ag_run_state *state, ag_progress *progress, const char *path, ag_err *err);

/* "checkpoint-<digits>" with trainer_state.json, adapter_config.json and adapter_model.safetensors in it: the cheap rule by which every
 * command chooses checkpoints. -1 where it is not one, else its step. */
int64_t ag_checkpoint_step(const char *run_dir, const char *name);

#endif
