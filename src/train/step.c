#include "train/step.h"

#include "ops/adamw/adamw.h"

#include <math.h>
#include <string.h>

static int64_t count_targets(const ag_decoder_batch *batch)
{
    int64_t n = 0;
    for (int64_t t = 0; t < batch->T; t++) n += batch->targets[t] >= 0;
    return n;
}

static ag_status update_params(const ag_stepper *s, int64_t update, double lr, double norm, ag_err *err)
{
    ag_decoder_refresh(s->decoder);
    const double clip = s->max_grad_norm > 0 ? s->max_grad_norm / (norm + 1e-6) : 1;
    if (s->optimizer) return ag_optimizer_update(s->optimizer, s->backend, s->params, s->grads, clip < 1 ? clip : 1, lr, update, err);
    return ag_adamw(s->backend, &(ag_adamw_args){
        .p = ag_vec_f32(s->params, s->n_params), .m = ag_vec_f32(s->exp_avg, s->n_params),
        .v = ag_vec_f32(s->exp_avg_sq, s->n_params), .g = ag_vec_f32(s->grads, s->n_params), .lr = lr, .beta1 = s->beta1,
        .beta2 = s->beta2, .eps = s->eps, .weight_decay = s->weight_decay, .grad_scale = clip < 1 ? clip : 1, .step = update}, err);
}

ag_step_result ag_train_step_count(const ag_decoder_batch *micro, int64_t n_micro)
{
    ag_step_result result = {0};
    for (int64_t i = 0; i < n_micro; i++) {
        result.n_tokens += micro[i].T;
        result.n_targets += count_targets(&micro[i]);
    }
    result.is_skipped = result.n_targets == 0;
    return result;
}

ag_status ag_train_step(const ag_stepper *s, const ag_decoder_batch *micro, int64_t n_micro, int64_t update, double lr,
                        uint64_t micro_call, ag_step_result *result, ag_err *err)
{
    *result = ag_train_step_count(micro, n_micro);
    if (result->is_skipped) return AG_OK;
    memset(s->grads, 0, (size_t)s->n_params * sizeof *s->grads);
    const double dloss = 1.0 / (double)result->n_targets;
    double sum = 0;
    for (int64_t i = 0; i < n_micro; i++) {
        double loss;
        int64_t n;
        AG_TRY(ag_decoder_train(s->decoder, &micro[i], dloss, micro_call + (uint64_t)i, &loss, &n, err));
        sum += loss;
    }
    result->loss = sum * dloss;

    double squares;
    AG_TRY(ag_sum_squares(s->backend, &squares, ag_vec_f32(s->grads, s->n_params), err));
    result->grad_norm = sqrt(squares);
    if (!isfinite(result->grad_norm))
        return ag_fail(err, AG_E_NUMERIC, "the gradient is not finite at update %lld (loss %g); nothing was changed by it. Lower "
                       "learning_rate, or look at the rows of this step", (long long)update, result->loss);
    return update_params(s, update, lr, result->grad_norm, err);
}
