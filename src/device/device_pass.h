/* The sequence of the library's calls that makes up forward and backward, shared by a step, a score and a plan. A plan makes the same
 * calls' argument structs and asks each op for its workspace, so that what is planned is what will run. Of this folder alone. */
#ifndef AG_DEVICE_PASS_H
#define AG_DEVICE_PASS_H

#include "device/device_trainer.h"
#include "device/device_weights.h"

enum { AG_DEVICE_INTS_PER_TOKEN = 5, AG_DEVICE_INTS_PER_TARGET = 2 };

/* Buffers of a pass; T and M are the largest micro-batch's. Some share memory: rows and drows with gate and up; dgated and d_o, dq, dk, dv
 * with gated. */
typedef struct {
    bkl_bf16 *kept;                   /* [L+1,T,C] the stream before each layer, and behind the last */
    bkl_bf16 *normed, *mid, *sub;     /* [T,C] a norm's output; the stream behind attention; what a sublayer gives */
    bkl_bf16 *q, *k, *v, *o;          /* [T,H,D], [T,G,D] twice, [T,H,D] */
    bkl_bf16 *raw_q, *raw_k;          /* q and k before the norms of heads; NULL where there are none */
    bkl_bf16 *gate, *up, *gated;      /* [T,F] */
    bkl_bf16 *h[AG_N_PROJ], *dh[AG_N_PROJ], *scaled; /* [T,R] thin products, forward and backward; one times the residual scale */
    bkl_bf16 *d, *d_mid, *dnormed;    /* [T,C] */
    bkl_bf16 *dq, *dk, *dv, *d_o;     /* [T,H,D] … */
    bkl_bf16 *dgated;                 /* [T,F] */
    bkl_bf16 *rows, *drows;           /* [M,C]; [M+1,C], the last row zero */
    float *lse, *r_attn, *r_ffn, *r_final; /* [T,H], [T] */
    float *r_q, *r_k;                 /* [T,H], [T,G] of the norms of heads */
    float *nll;                       /* [M] */
    int32_t *ints;                    /* ids, positions, first_key, last_query, slots [T]; target rows, targets [M] */
} ag_device_buffers;

typedef struct {
    const ag_device *device;
    const ag_model *model;
    const ag_adapter *adapter;
    const ag_device_weights *weights;
    ag_device_buffers b;
    const float *host_params;         /* the adapter's own array: its views point into it */
    bkl_bf16 *params_bf16;            /* [n_params] on the device */
    float *grads;
    void *workspace;
    size_t workspace_bytes;           /* of a plan: the largest that was asked for */
    bool only_sizes;
    int64_t T, M;                     /* of the micro-batch */
    float dropout;                    /* of the pairs' inputs; 0 where nothing is trained */
    uint64_t dropout_key, dropout_call;
    float dloss;
    bkl_status failed;                /* the first call that failed; later ones do nothing */
    const char *failed_op;
} ag_device_pass;

void ag_device_buffers_place(ag_layout *layout, ag_device_buffers *b, const ag_description *d, int64_t T, int64_t M, int64_t R);
/* Stream, losses (pass->b.nll) and, with `train`, the gradients (+=) of one micro-batch whose ints are on the device. */
void ag_device_pass_run(ag_device_pass *pass, bool train);

/* One op of the library, or in a plan its workspace. */
#define AG_DEVICE_RUN(pass, op, ...)                                                                                              \
    do {                                                                                                                          \
        const bkl_##op##_args args_ = __VA_ARGS__;                                                                                \
        const bkl_api *bkl_ = (pass)->device->bkl;                                                                                \
        if ((pass)->only_sizes) {                                                                                                 \
            const size_t bytes_ = bkl_->op##_workspace(&args_);                                                                   \
            if (bytes_ > (pass)->workspace_bytes) (pass)->workspace_bytes = bytes_;                                               \
        } else if (!(pass)->failed) {                                                                                             \
            (pass)->failed = bkl_->op((pass)->device->stream, &args_, (pass)->workspace, (pass)->workspace_bytes);                \
            if ((pass)->failed) (pass)->failed_op = #op;                                                                          \
        }                                                                                                                         \
    } while (0)

#endif
