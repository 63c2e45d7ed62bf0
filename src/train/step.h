/* One optimizer step: micro-batches forward and backward, one mean over all of their targets, clipping, AdamW.
 *
 *     loss = Σ over micro-batches Σ nll  /  number of targets of all micro-batches
 * so it does not matter how rows are divided into micro-batches. Clipping scales the gradient by
 * min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_ does. A step without a target changes nothing and says so. */
#ifndef AG_STEP_H
#define AG_STEP_H

#include "model/decoder.h"
#include "train/optimizer.h"

typedef struct {
    ag_decoder *decoder;
    const ag_backend *backend;
    float *params, *grads, *exp_avg, *exp_avg_sq; /* [n_params] each; grads are what the decoder's views accumulate into */
    int64_t n_params;
    double beta1, beta2, eps, weight_decay;
    double max_grad_norm; /* 0: no clipping */
    const ag_optimizer *optimizer; /* NULL: plain AdamW over all parameters, with the moments and numbers above */
} ag_stepper;

typedef struct {
    double loss, grad_norm; /* grad_norm before clipping */
    int64_t n_tokens, n_targets;
    bool is_skipped;        /* no target in any micro-batch */
} ag_step_result;

/* Tokens and targets of micro-batches, and whether a step of them would be skipped; loss and norm 0. */
ag_step_result ag_train_step_count(const ag_decoder_batch *micro, int64_t n_micro);

/* update: which update of the optimizer this is, from 1 (Adam's t). micro_call: the number of micro-batches before this step, for
 * the dropout masks. AG_E_NUMERIC, with nothing updated, where loss or gradient norm are not finite. */
AG_MUST_USE ag_status ag_train_step(const ag_stepper *stepper, const ag_decoder_batch *micro, int64_t n_micro, int64_t update,
                                    double lr, uint64_t micro_call, ag_step_result *result, ag_err *err);

#endif
