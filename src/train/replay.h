/* Steps of a recorded run, taken once more and held against the record to the bit.
 *
 *     ag_replay_record record;                       what the run left: manifest, metrics.jsonl, checkpoints
 *     AG_TRY(ag_replay_record_open(&record, &files, err));
 *     ag_cpu_level level;
 *     AG_TRY(ag_replay_level(&level, &record, from, n_steps, err));      // pinned from the record
 *     … config from record.config, backend at that level, job …
 *     ag_replay_result result;
 *     AG_TRY(ag_replay_run(&result, &record, job, from, n_steps, NULL, NULL, err));
 *     ag_replay_result_free(&result);
 *
 * Loss and gradient norm of each step are compared with metrics.jsonl, whose numbers read back to the same bits; where the record has a
 * checkpoint behind a step, so is the adapter, by a digest of its numbers. Nothing is written. The number of threads does not matter;
 * the CPU level does, and is therefore the record's. */
#ifndef AG_REPLAY_H
#define AG_REPLAY_H

#include "train/job.h"

typedef struct {
    const char *manifest;    /* runs/<run_name>/manifest.json, or a bundle's */
    const char *metrics;     /* metrics.jsonl */
    const char *checkpoints; /* the folder that holds checkpoint-<step> */
} ag_replay_files;

typedef struct {
    int64_t step;
    double loss, grad_norm;
    const char *cpu; /* NULL: an older record does not say */
} ag_replay_line;

typedef struct {
    ag_replay_files files;
    json_t *manifest;
    const json_t *config; /* in it */
    ag_replay_line *lines; /* by step; where a step stands there twice, the later line counts */
    size_t n_lines;
    ag_arena arena;
} ag_replay_record;

AG_MUST_USE ag_status ag_replay_record_open(ag_replay_record *out, const ag_replay_files *files, ag_err *err);
void ag_replay_record_close(ag_replay_record *record);

/* "checkpoint-50" or "start". AG_E_USAGE, or AG_E_NOT_FOUND naming the checkpoints that are there. */
AG_MUST_USE ag_status ag_replay_from(int64_t *step, const ag_replay_record *record, const char *text, ag_err *err);

/* The level that the steps behind `from` were computed at. AG_E_UNSUPPORTED where they were not all computed at one, or where this machine
 * cannot compute as they were. */
AG_MUST_USE ag_status ag_replay_level(ag_cpu_level *out, const ag_replay_record *record, int64_t from, int64_t n_steps, ag_err *err);

typedef struct {
    int64_t step;
    double loss, grad_norm, recorded_loss, recorded_grad_norm;
    bool is_recorded, is_same;          /* is_same only where it is recorded */
    bool has_checkpoint, is_same_adapter;
    ag_sha256 adapter, recorded_adapter; /* with has_checkpoint */
} ag_replay_step;

typedef struct {
    const char *what, *recorded, *here;
    bool can_matter; /* for the bits */
} ag_replay_difference;

typedef struct {
    ag_replay_step *steps;
    size_t n;
    const ag_replay_step *first; /* that differs; NULL: all that is recorded is the same */
    const char *first_what;      /* "loss", "grad_norm" or "adapter" */
    size_t n_compared;           /* steps with a line in metrics.jsonl */
    size_t n_checkpoints;        /* adapters compared */
    ag_replay_difference *differences; /* between the record's environment and this one */
    size_t n_differences;
    ag_arena arena;
} ag_replay_result;

typedef void ag_replay_progress(void *user, const ag_replay_step *step);

/* from 0: from the start. AG_E_CONFIG where the run has not so many steps, AG_E_NOT_FOUND where the record has nothing to compare with.
 * job->record (may be NULL) is this program's. The caller frees the result, also after a failure. */
AG_MUST_USE ag_status ag_replay_run(ag_replay_result *result, const ag_replay_record *record, const ag_train_job *job, int64_t from,
                                    int64_t n_steps, ag_replay_progress *progress, void *user, ag_err *err);
void ag_replay_result_free(ag_replay_result *result);

#endif
