/* The frozen base on a device: projections in NF4 as bitsandbytes packs them, or in bf16; embedding and head in bf16; norms, biases and the
 * rope table in f32. One block, sized before it is allocated. */
#ifndef AG_DEVICE_WEIGHTS_H
#define AG_DEVICE_WEIGHTS_H

#include "base/arena.h"
#include "device/bkl_device.h"
#include "model/model.h"

typedef struct {
    bool is_nf4;
    bkl_nf4_weight nf4;
    bkl_bf16 *dense; /* [N,K] where it is not NF4 */
    float *bias;     /* [N] or NULL */
    int64_t N, K;
} ag_device_projection;

typedef struct {
    ag_device_projection proj[AG_N_PROJ];
    float *norm[AG_N_NORMS]; /* NULL: none */
} ag_device_layer;

typedef struct {
    bkl_bf16 *embed, *head; /* [V,C]; one where tied */
    float *final_norm, *cos, *sin, *map;
    ag_device_layer *layers; /* [L], in the arena */
    void *block;
    size_t bytes;
} ag_device_weights;

/* Whether a projection is NF4 on the device: blocks must not straddle rows, and a slice of a fused matrix must begin with a block. `as_nf4`: so is
 * one that will be quantized. */
bool ag_device_weight_is_nf4(const ag_weight *w, bool as_nf4);

/* Bytes on the device. `as_nf4`: projections that are not NF4 yet are counted as if they were (a plan, before they are quantized). */
size_t ag_device_weights_plan(const ag_model *model, int64_t max_positions, bool as_nf4);
/* AG_E_UNSUPPORTED where the model has what the device's ops cannot do; the sentence names it. */
AG_MUST_USE ag_status ag_device_weights_check(const ag_model *model, int64_t max_positions, ag_err *err);
AG_MUST_USE ag_status ag_device_weights_load(ag_device_weights *out, const ag_device *device, const ag_model *model, int64_t max_positions,
                                             ag_arena *arena, ag_err *err);
void ag_device_weights_free(ag_device_weights *weights, const ag_device *device);

#endif
