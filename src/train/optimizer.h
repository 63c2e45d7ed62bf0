/* The optimizer of a run: which learning rate and decay each trained tensor has, where its moments lie, and the update of all.
 *
 *     ag_optimizer o;
 *     ag_optimizer_plan(&o, &adapter, config, &arena);
 *     ag_optimizer_place(&o, &layout);                                    // twice, as layouts go; moments begin at 0
 *     AG_TRY(ag_optimizer_update(&o, be, params, grads, clip, lr, update, err));
 *
 * Groups as transformers' Trainer makes them: what decays, then biases and norms, which do not. With loraplus_lr_ratio as PEFT's
 * create_loraplus_optimizer does: A and full copies of matrices, then the pair of the embedding (rate 1e-6), then B, magnitudes and
 * norms at ratio times the rate, then biases at the same rate without decay.
 *
 * adamw_torch keeps moments in f32; adamw_8bit in 8 bits where a tensor has 4096 numbers or more and is no embedding (adamw8.h), as
 * bitsandbytes does under the Trainer. */
#ifndef AG_OPTIMIZER_H
#define AG_OPTIMIZER_H

#include "adapter/adapter.h"
#include "train/train_config.h"
#include "train/trainer_state.h"

typedef struct {
    int group;
    float *m, *v;                             /* [n] f32 … */
    uint8_t *m8, *v8;                         /* … or [n] codes … */
    float *absmax_m, *absmax_v;               /* … with a scale for every block */
} ag_moments;

typedef struct {
    const ag_adapter *adapter;  /* as planned */
    ag_optim kind;
    double beta1, beta2, eps;
    ag_optimizer_group groups[AG_OPTIMIZER_MAX_GROUPS]; /* lr: the peak */
    double lr_scale[AG_OPTIMIZER_MAX_GROUPS];           /* of a group's rate, times the run's */
    int n_groups;
    ag_moments *moments;        /* [adapter->n_trained] */
    bool *is_8bit;              /* [adapter->n_trained] */
} ag_optimizer;

/* The group of a tensor: 0 or 1, with LoRA+ 0 … 3. */
int ag_optimizer_group_of(const ag_trained *t, bool loraplus);
void ag_optimizer_plan(ag_optimizer *out, const ag_adapter *adapter, const ag_train_config *config, ag_arena *arena);
void ag_optimizer_place(ag_optimizer *o, ag_layout *layout);
/* One AdamW step over all trained tensors. update counts from 1; lr is the run's rate of this step. */
AG_MUST_USE ag_status ag_optimizer_update(const ag_optimizer *o, const ag_backend *be, float *params, float *grads, double grad_scale,
                                          double lr, int64_t update, ag_err *err);

/* What ag_optimizer_save and _load take: the tensors in the order of the groups, the groups with their rates of a step whose rate is lr.
 * Names and lists go to the arena; the moments are the optimizer's own. */
ag_optimizer_state ag_optimizer_view(const ag_optimizer *o, double lr, int64_t n_updates, ag_arena *arena);

#endif
