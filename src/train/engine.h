/* What computes a run's steps: the adapter with its gradients and moments, the decoder, the batches of a step. It writes no file and says
 * nothing, so that a run and the replay of a run take the very same steps.
 *
 *     ag_engine e;
 *     AG_TRY(ag_engine_open(&e, job, err));
 *     AG_TRY(ag_engine_resume(&e, "adapters/demo/checkpoint-50", err));   // or ag_engine_begin(&e, err)
 *     while (e.progress.step < e.n_steps) AG_TRY(ag_engine_step(&e, &taken, err));
 *     ag_engine_close(&e);
 */
#ifndef AG_ENGINE_H
#define AG_ENGINE_H

#include "device/device_trainer.h"
#include "train/checkpoint.h"
#include "train/step.h"

typedef struct {
    const ag_train_job *job;  /* the caller's; outlives the engine */
    ag_adapter adapter;       /* bound */
    ag_run_state state;       /* its parameters, moments and log */
    ag_progress progress;
    int64_t n_steps;          /* of the whole run */
    ag_decoder *decoder;      /* on the CPU … */
    ag_stepper stepper;
    ag_device_trainer *device; /* … or on the job's device, which then holds the newest parameters and moments */
    ag_decoder_batch *micro;  /* of one step; their arrays below */
    ag_batch *batches;
    int64_t n_batches;
    float *nll;               /* of one evaluation call */
    void *block;
    size_t block_bytes;
    ag_arena arena;
} ag_engine;

/* Takes all the memory that steps need. A failed open needs no close. */
AG_MUST_USE ag_status ag_engine_open(ag_engine *e, const ag_train_job *job, ag_err *err);
void ag_engine_close(ag_engine *e);

/* The state before the first step … */
AG_MUST_USE ag_status ag_engine_begin(ag_engine *e, ag_err *err);
/* … or that of a checkpoint. AG_E_CONFIG where it has more steps behind it than the config asks for. */
AG_MUST_USE ag_status ag_engine_resume(ag_engine *e, const char *checkpoint, ag_err *err);

typedef struct {
    ag_step_result done;
    int64_t step;       /* 1 for the first */
    double lr, epoch;   /* epoch: passes over the data so far */
    int64_t n_examples; /* rows in it */
    uint64_t ns;
} ag_engine_taken;

/* The next step; progress and log follow. n_steps must not be reached. */
AG_MUST_USE ag_status ag_engine_step(ag_engine *e, ag_engine_taken *taken, ag_err *err);

/* Brings parameters and moments to the state's arrays where a device holds them: before a checkpoint, before anything else reads them. */
AG_MUST_USE ag_status ag_engine_fetch(ag_engine *e, ag_err *err);

/* Mean loss over the job's evaluation data; job->eval.rows must be there. */
AG_MUST_USE ag_status ag_engine_evaluate(ag_engine *e, double *loss, int64_t *n_targets, ag_err *err);

#endif
