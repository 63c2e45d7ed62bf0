/* Whether the Trainer's files of a checkpoint are usable to go on from: trainer_state.json, optimizer.pt, scheduler.pt,
 * rng_state.pth, held against the adapter's trained tensors. Nothing is loaded: of the moments only shapes are looked at.
 *
 *     trainer_state.json  at most 4 MiB, only keys that the Trainer knows, global_step is the folder's step, train_batch_size
 * >= 1 optimizer.pt        two groups, of what decays and what does not, or the four of LoRA+; ids that are the state's keys;
 * for each id a step (a float tensor, whole, from 1 to the checkpoint's) and two moments of one floating type in the trained
 * tensor's shape; or bitsandbytes' state of that shape, in 8 bits or (small tensors) 32 scheduler.pt        last_epoch is the
 * step, _step_count one more, lists of one value a group rng_state.pth       python, numpy, cpu; and cuda where it is there (8
 * or 16 bytes): a run made on a CPU has none. Files of several processes (rng_state_<n>.pth) prove nothing about how many there
 * were, and do not count agoge_resume.json   where it is there: global_step, sampler_position and optimizer_shapes must agree
 * with the rest */
#ifndef AG_TRAINER_CHECK_H
#define AG_TRAINER_CHECK_H

#include "runs/adapter_check.h"

/* `dir` is read, `shown` stands in sentences. */
AG_MUST_USE ag_status ag_trainer_check(const char *dir, const char *shown, int64_t step, const ag_trained_shape *shapes,
                                       size_t n_shapes, ag_err *err);

#endif
