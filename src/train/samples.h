/* Answers to a few fixed prompts while a run goes on, so that a person sees what a loss does not say. Greedy, on the CPU, by the adapter as it is;
 * nothing that training computes depends on them.
 *
 *     ag_samples *s;
 *     AG_TRY(ag_samples_open(&s, job, &adapter, err));
 *     AG_TRY(ag_samples_answer(s, err));       // before the first step, and at every evaluation
 *     … ag_samples_texts(s)[i] …               // the answer to job->config->eval_prompts.item[i], until the next call
 *     ag_samples_close(&s);
 */
#ifndef AG_SAMPLES_H
#define AG_SAMPLES_H

#include "train/job.h"

typedef struct ag_samples ag_samples;

/* Bytes that answering takes, 0 where the config names no prompts. */
size_t ag_samples_bytes(const ag_train_job *job);
/* The adapter is bound and attached, and outlives the samples. AG_E_DATA where a prompt has no token. */
AG_MUST_USE ag_status ag_samples_open(ag_samples **out, const ag_train_job *job, const ag_adapter *adapter, ag_err *err);
void ag_samples_close(ag_samples **samples);
AG_MUST_USE ag_status ag_samples_answer(ag_samples *samples, ag_err *err);
const char *const *ag_samples_texts(const ag_samples *samples);

#endif
