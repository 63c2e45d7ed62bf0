/* Training steps on a device: all micro-batches forward and backward, the norm of the gradient, clipping and AdamW, captured as one graph
 * and launched once; the host waits for the losses alone.
 *
 *     ag_device_trainer *t;
 *     AG_TRY(ag_device_trainer_create(&t, &options, err));
 *     AG_TRY(ag_device_trainer_put(t, params, exp_avg, exp_avg_sq, err));
 *     AG_TRY(ag_device_trainer_step(t, micro, n_micro, update, lr, micro_call, &result, err));
 *     AG_TRY(ag_device_trainer_get(t, params, exp_avg, exp_avg_sq, err));        // before a checkpoint
 *     ag_device_trainer_free(&t);
 *
 * Activations are bf16, sums f32, adapter and moments f32. A layer keeps its input and is computed again in backward. The numbers are not
 * those of the CPU, whose activations are f32: docs/kernels.md says how far they may be apart. For one library and device the bits are the
 * same in every run. */
#ifndef AG_DEVICE_TRAINER_H
#define AG_DEVICE_TRAINER_H

#include "adapter/adapter.h"
#include "device/bkl_device.h"
#include "model/decoder.h"

typedef struct {
    const ag_device *device;
    const ag_model *model;
    const ag_adapter *adapter; /* bound: its views say where in the flat arrays each matrix lies */
    int64_t max_tokens, max_targets, max_positions, max_micro; /* of a micro-batch; and how many a step has */
    double beta1, beta2, eps, weight_decay;
    double max_grad_norm;      /* 0: no clipping */
    float dropout;             /* of the pairs' inputs, with the CPU's masks; over 0 all projections must be NF4 */
    uint64_t dropout_key;
    bool weights_become_nf4;   /* of a plan: the projections will be NF4 */
} ag_device_trainer_options;

/* Bytes on the device. Needs no context: ag_device_open_for_sizes will do. */
typedef struct {
    size_t weights, adapter, gradients, optimizer, activations, workspace, total;
} ag_device_bytes;
/* AG_E_UNSUPPORTED where the device cannot train what the options say; the sentence names what. */
AG_MUST_USE ag_status ag_device_trainer_plan(ag_device_bytes *out, const ag_device_trainer_options *options, ag_err *err);

typedef struct ag_device_trainer ag_device_trainer;
AG_MUST_USE ag_status ag_device_trainer_create(ag_device_trainer **out, const ag_device_trainer_options *options, ag_err *err);
void ag_device_trainer_free(ag_device_trainer **trainer);

/* The flat arrays of the adapter, to and from the device. */
AG_MUST_USE ag_status ag_device_trainer_put(ag_device_trainer *t, const float *params, const float *exp_avg, const float *exp_avg_sq, ag_err *err);
AG_MUST_USE ag_status ag_device_trainer_get(ag_device_trainer *t, float *params, float *exp_avg, float *exp_avg_sq, ag_err *err);

typedef struct {
    double loss, grad_norm; /* before clipping */
} ag_device_step_result;
/* One optimizer step; at least one of the rows has a target. micro_call: the number of micro-batches before it, for the masks. AG_E_NUMERIC where loss or norm are not finite: what is on the device is then
 * of no use, what was last fetched still is. */
AG_MUST_USE ag_status ag_device_trainer_step(ag_device_trainer *t, const ag_decoder_batch *micro, int64_t n_micro, int64_t update, double lr,
                                             uint64_t micro_call, ag_device_step_result *result, ag_err *err);
/* Forward only: nll [number of targets] in row order. */
AG_MUST_USE ag_status ag_device_trainer_score(ag_device_trainer *t, const ag_decoder_batch *batch, float *nll, ag_err *err);

#endif
