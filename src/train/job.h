/* A training job before anything large is allocated: config, dataset as token ids, order of rows, model, adapter shapes. `plan` prints
 * what it would take; a run goes on from here.
 *
 *     ag_train_job *job;
 *     AG_TRY(ag_train_job_open(&job, config, &be, &(ag_train_job_options){0}, err));
 *     ag_train_plan plan;  ag_train_job_plan(&plan, job);
 *     …
 *     ag_train_job_close(&job);
 */
#ifndef AG_JOB_H
#define AG_JOB_H

#include "adapter/adapter.h"
#include "data/batch.h"
#include "data/model_text.h"
#include "device/device_trainer.h"
#include "model/decoder.h"
#include "seal/artifact_index.h"
#include "train/run_record.h"
#include "train/schedule.h"
#include "train/train_config.h"

typedef struct {
    ag_rows *rows;
    ag_examples *examples;
    ag_packing packing;
    bool is_packed;
    ag_batch batch;
    ag_sampler *sampler;
} ag_job_data;

typedef struct {
    const ag_train_config *config; /* the caller's; outlives the job */
    const ag_backend *backend;     /* likewise */
    const ag_provenance *provenance; /* NULL: the dataset is not frozen */
    const ag_run_record *record;   /* likewise; may be NULL */
    const ag_device *device;       /* likewise; NULL: the CPU computes */
    ag_model_text *text;
    ag_chat chat;                  /* render is NULL where the model has no template */
    ag_model *model;
    ag_job_data train, eval;       /* eval.rows is NULL where the config names no file */
    ag_adapter adapter;            /* planned, not bound */
    ag_schedule schedule;
    ag_decoder_options decoder;
    ag_arena arena;
} ag_train_job;

typedef struct {
    bool only_plan; /* do not quantize: sizes are wanted, not weights */
    const ag_provenance *provenance; /* of a frozen dataset (train/provenance.h), NULL: none; outlives the job */
    const ag_run_record *record; /* outlives the job; NULL: nothing is known of the program */
    const ag_device *device;     /* outlives the job; NULL: the CPU */
} ag_train_job_options;

/* Order: dataset rows are looked at before the model is opened, so that a wrong row is told at once. What was cut or dropped goes to
 * the log. */
AG_MUST_USE ag_status ag_train_job_open(ag_train_job **out, const ag_train_config *config, const ag_backend *backend,
                                        const ag_train_job_options *options, ag_err *err);
void ag_train_job_close(ag_train_job **job);

/* What a trainer on the job's device needs; the adapter is bound. */
ag_device_trainer_options ag_train_job_device_options(const ag_train_job *job, const ag_adapter *adapter, int64_t max_micro);

/* Bytes of a run, all resident at its peak. `workspace` holds the ops' scratch, the data, the tokenizer and the program itself. */
typedef struct {
    uint64_t weights, adapter, gradients, optimizer, activations, workspace, total;
    uint64_t available; /* on this machine, now */
    bool fits;
    int64_t n_steps, n_tokens, n_targets; /* of the whole run */
    int64_t n_params;                     /* that are trained */
    double flop;                          /* of the whole run's matrix products */
} ag_train_plan;
void ag_train_job_plan(ag_train_plan *out, const ag_train_job *job);
/* The same of a job with a device, whose memory it then is; `available` is what the device has free, 0 where there is only its library. */
AG_MUST_USE ag_status ag_train_job_plan_device(ag_train_plan *out, const ag_train_job *job, ag_err *err);

#endif
