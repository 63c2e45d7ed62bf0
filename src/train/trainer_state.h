/* The side files of a checkpoint, as Hugging Face's Trainer writes and reads them: trainer_state.json, optimizer.pt, scheduler.pt,
 * rng_state.pth. Plain structs in, plain structs out; nothing here knows the training loop.
 *
 *     ag_trainer_state_save(&state, dir, err);  ag_optimizer_save(&optimizer, dir, err);
 *     ag_scheduler_save(&scheduler, dir, err);  ag_trainer_rng_save(&rng, dir, err);
 *
 * Each file is published whole (ag_file_writer). The Trainer uses optimizer.pt and scheduler.pt only together: write both.
 * Loading treats every file as hostile, reads no link in a file's place, and checks it as `run-status` does. */
#ifndef AG_TRAINER_STATE_H
#define AG_TRAINER_STATE_H

#include "base/arena.h"
#include "base/rng.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- trainer_state.json ------------------------------------------------------------------------------------------- */
/* One entry of log_history. A NaN value is absent. */
typedef struct {
    int64_t step;
    double epoch, loss, grad_norm, learning_rate, eval_loss;
} ag_trainer_log;

typedef struct {
    int64_t global_step, max_steps, num_train_epochs;
    int64_t logging_steps, eval_steps, save_steps;
    int64_t train_batch_size, num_input_tokens_seen;
    double epoch, total_flos;
    double best_metric;                /* NaN: none */
    int64_t best_global_step;          /* negative: none */
    const char *best_model_checkpoint; /* NULL: none */
    const ag_trainer_log *log;
    size_t n_log;
} ag_trainer_state;

/* Keys sorted, indent 2, final newline; exactly the keys that the Trainer knows, for it refuses any other. */
AG_MUST_USE ag_status ag_trainer_state_save(const ag_trainer_state *state, const char *dir, ag_err *err);
/* At most 4 MiB, no key that the Trainer does not know, global_step >= 0, train_batch_size >= 1. Texts and log lie in the arena. */
AG_MUST_USE ag_status ag_trainer_state_load(ag_trainer_state *state, const char *dir, ag_arena *arena, ag_err *err);

/* ---- optimizer.pt ------------------------------------------------------------------------------------------------- */
enum { AG_OPTIMIZER_MAX_RANK = 4, AG_OPTIMIZER_MAX_GROUPS = 4 };
/* A trained tensor and its moments. The caller owns them, contiguous, of the shape's size: either exp_avg and exp_avg_sq, or (8 bits)
 * codes with a scale for every 256 of them (adamw8.h). */
typedef struct {
    const char *name; /* stands in sentences */
    int rank;
    int64_t dim[AG_OPTIMIZER_MAX_RANK];
    int group;
    float *exp_avg, *exp_avg_sq;
    uint8_t *codes, *codes_sq;
    float *absmax, *absmax_sq;
} ag_optimizer_param;

typedef struct {
    double lr;         /* of the next step */
    double initial_lr; /* the peak */
    double weight_decay;
} ag_optimizer_group;

typedef struct {
    ag_optimizer_param *params; /* in module order: layer by layer q k v o gate up down; A, B, magnitude. The index is the key */
    size_t n_params;
    int64_t n_updates; /* AdamW's t, at most the checkpoint's step; 0: never updated, no state is written */
    double lr;         /* of the next step */
    double initial_lr, beta1, beta2, eps, weight_decay;
    ag_optimizer_group groups[AG_OPTIMIZER_MAX_GROUPS]; /* params are in the order of their groups … */
    int n_groups;      /* … 0: two groups of lr and initial_lr, the second without decay */
    bool is_bnb;       /* the state_dict of bitsandbytes' AdamW8bit, not of torch's AdamW */
} ag_optimizer_state;

/* AdamW's state_dict. Moments are streamed from where they lie. */
AG_MUST_USE ag_status ag_optimizer_save(const ag_optimizer_state *state, const char *dir, ag_err *err);
/* Fills moments and numbers of a state whose params are set. The file must have the same number of params, in this order, of these
 * shapes, in groups of these sizes; finite f32, f16 or bf16 moments, exp_avg_sq not negative; codes where codes are expected, with
 * bitsandbytes' own maps; one step count for all, from 1 to max_updates. A file of a run that never
 * updated gives zeros and n_updates 0. On failure the moments may be half written and must not be used. */
AG_MUST_USE ag_status ag_optimizer_load(ag_optimizer_state *state, const char *dir, int64_t max_updates, ag_err *err);

/* ---- scheduler.pt ------------------------------------------------------------------------------------------------- */
typedef struct {
    int64_t step;            /* last_epoch; _step_count is one more */
    double base_lr, last_lr; /* the peak; what the next step uses: of the first group */
    double base_lrs[AG_OPTIMIZER_MAX_GROUPS], last_lrs[AG_OPTIMIZER_MAX_GROUPS]; /* of every group … */
    int n_groups;            /* … 0: two groups with one rate */
} ag_scheduler_state;

AG_MUST_USE ag_status ag_scheduler_save(const ag_scheduler_state *state, const char *dir, ag_err *err);
/* The file must stand at `step`, and have rates that are finite and not negative; where s->n_groups is 0 the same for every group, else for
 * so many groups. */
AG_MUST_USE ag_status ag_scheduler_load(ag_scheduler_state *state, const char *dir, int64_t step, ag_err *err);

/* ---- rng_state.pth ------------------------------------------------------------------------------------------------ */
/* The three generators of a Trainer process. */
typedef struct {
    ag_mt19937 python, numpy, cpu;
} ag_trainer_rng;

/* As the Trainer's set_seed leaves them: random.seed, numpy.random.seed, torch.manual_seed. seed < 2^32. */
void ag_trainer_rng_seed(ag_trainer_rng *rng, uint32_t seed);
AG_MUST_USE ag_status ag_trainer_rng_save(const ag_trainer_rng *rng, const char *dir, ag_err *err);
/* What a CUDA run saved beside them is checked (8 or 16 bytes, an offset that is a multiple of 4) and dropped. */
AG_MUST_USE ag_status ag_trainer_rng_load(ag_trainer_rng *rng, const char *dir, ag_err *err);

#endif
