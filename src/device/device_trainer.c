#include "device/device_trainer.h"

#include "base/num.h"
#include "device/device_pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANK_STEP = 8 };

/* Host memory that the device reads and writes while a graph runs. */
typedef struct {
    int32_t *ints;  /* [max_micro] times a micro-batch's */
    float *nll;     /* [max_micro, max_targets] */
    float *norm;    /* [2] */
    bkl_adamw_coefficients *coefficients;
} staging;

typedef struct { /* what a captured graph holds by value */
    int64_t T, M;
    uint64_t dropout_call; /* 0 without dropout */
    float dloss;
} graph_micro;

struct ag_device_trainer {
    ag_device_trainer_options o;
    ag_device_weights weights;
    ag_device_pass pass;
    float *params, *exp_avg, *exp_avg_sq, *norm; /* on the device; grads and the bf16 copy are the pass's */
    bkl_adamw_coefficients *coefficients;
    staging host;
    size_t ints_of_micro;
    void *block, *host_block;
    bkl_graph *graph;
    graph_micro *signature; /* of the graph: [n_signature], and room for the step's */
    int64_t n_signature;
    ag_arena arena;
};

/* ---- what can be trained --------------------------------------------------------------------------------------------------------------- */
static int64_t largest_rank(const ag_adapter *a)
{
    int64_t R = RANK_STEP;
    for (size_t i = 0; i < a->n_pairs; i++)
        if (a->pairs[i].R > R) R = a->pairs[i].R;
    return R;
}

static ag_status check(const ag_device_trainer_options *o, ag_err *err)
{
    AG_TRY(ag_device_weights_check(o->model, o->max_positions, err));
    const ag_adapter *a = o->adapter;
    if (!a->is_plain) return ag_fail(err, AG_E_UNSUPPORTED, "the device trains LoRA pairs beside projections alone; biases, modules_to_save and a pair beside the embedding need --device cpu");
    for (int64_t l = 0; o->dropout > 0 && l < o->model->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++)
            if (!ag_device_weight_is_nf4(&o->model->layers[l].proj[p], o->weights_become_nf4))
                return ag_fail(err, AG_E_UNSUPPORTED, "on the device dropout goes with NF4 weights; set load_in_4bit: true or lora_dropout: 0, or train with --device cpu");
    for (size_t i = 0; i < a->n_pairs; i++) {
        if (a->pairs[i].is_dora) return ag_fail(err, AG_E_UNSUPPORTED, "the device does not train DoRA; train it with --device cpu");
        if (a->pairs[i].R % RANK_STEP)
            return ag_fail(err, AG_E_UNSUPPORTED, "a rank is %lld; on the device ranks are multiples of %d", (long long)a->pairs[i].R, RANK_STEP);
    }
    return AG_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------------------- */
static void place_optimizer(ag_layout *l, ag_device_trainer *t)
{
    const size_t n = t->o.adapter->n_params;
    t->exp_avg = ag_layout_place(l, n * sizeof(float));
    t->exp_avg_sq = ag_layout_place(l, n * sizeof(float));
    t->norm = ag_layout_place(l, 2 * sizeof(float));
    t->coefficients = ag_layout_place(l, sizeof *t->coefficients);
}

static void place_adapter(ag_layout *l, ag_device_trainer *t)
{
    const size_t n = t->o.adapter->n_params;
    t->params = ag_layout_place(l, n * sizeof(float));
    t->pass.params_bf16 = ag_layout_place(l, n * sizeof(bkl_bf16));
}

static void place_buffers(ag_layout *l, ag_device_trainer *t)
{
    ag_device_buffers_place(l, &t->pass.b, &t->o.model->d, t->o.max_tokens, t->o.max_targets, largest_rank(t->o.adapter));
}

static void place_host(ag_layout *l, ag_device_trainer *t)
{
    t->host.ints = ag_layout_place(l, (size_t)t->o.max_micro * t->ints_of_micro * sizeof(int32_t));
    t->host.nll = ag_layout_place(l, (size_t)(t->o.max_micro * t->o.max_targets) * sizeof(float));
    t->host.norm = ag_layout_place(l, 2 * sizeof(float));
    t->host.coefficients = ag_layout_place(l, sizeof *t->host.coefficients);
}

static void grad_norm(ag_device_pass *p, float *out, int64_t n, double max_norm)
{
    AG_DEVICE_RUN(p, grad_norm, {.out = out, .g = p->grads, .n = n, .max_norm = (float)max_norm});
}

static void adamw(ag_device_pass *p, ag_device_trainer *t)
{
    AG_DEVICE_RUN(p, adamw, {.p = t->params, .m = t->exp_avg, .v = t->exp_avg_sq, .p_bf16 = p->params_bf16, .g = p->grads, .grad_scale = t->norm + 1,
                             .coefficients = t->coefficients, .n = (int64_t)t->o.adapter->n_params});
}

/* The largest workspace of the very calls that a step of the largest micro-batch makes. Addresses are made up: only shapes are read. */
static size_t plan_workspace(const ag_device_trainer *t, const ag_device_weights *weights)
{
    static const uintptr_t anywhere = 1 << 12;
    ag_device_trainer copy = *t;
    ag_layout layout = {.base = (unsigned char *)anywhere};
    place_buffers(&layout, &copy);
    place_adapter(&layout, &copy);
    place_optimizer(&layout, &copy);
    copy.pass.grads = ag_layout_place(&layout, t->o.adapter->n_params * sizeof(float));
    copy.pass.weights = weights;
    copy.pass.only_sizes = true;
    copy.pass.T = t->o.max_tokens;
    copy.pass.M = t->o.max_targets;
    ag_device_pass_run(&copy.pass, true);
    grad_norm(&copy.pass, copy.norm, (int64_t)t->o.adapter->n_params, 1);
    adamw(&copy.pass, &copy);
    return copy.pass.workspace_bytes;
}

/* Weights that have shapes and made-up addresses. */
static void shape_weights(ag_device_weights *w, const ag_device_trainer_options *o, ag_arena *arena)
{
    *w = (ag_device_weights){.layers = ag_arena_array(arena, (size_t)o->model->d.L, sizeof(ag_device_layer))};
    for (int64_t l = 0; l < o->model->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) {
            const ag_weight *from = &o->model->layers[l].proj[p];
            ag_device_projection *to = &w->layers[l].proj[p];
            to->N = from->N;
            to->K = from->K;
            to->is_nf4 = ag_device_weight_is_nf4(from, o->weights_become_nf4);
            to->nf4 = (bkl_nf4_weight){.N = from->N, .K = from->K};
        }
}

static void init(ag_device_trainer *t, const ag_device_trainer_options *o)
{
    t->o = *o;
    t->ints_of_micro = (size_t)(AG_DEVICE_INTS_PER_TOKEN * o->max_tokens + AG_DEVICE_INTS_PER_TARGET * o->max_targets);
    t->pass = (ag_device_pass){.device = o->device, .model = o->model, .adapter = o->adapter, .weights = &t->weights, .host_params = o->adapter->params, .dropout_key = o->dropout_key};
}

ag_status ag_device_trainer_plan(ag_device_bytes *out, const ag_device_trainer_options *o, ag_err *err)
{
    AG_TRY(check(o, err));
    ag_arena arena = {0};
    ag_device_trainer t = {0};
    ag_device_weights weights;
    init(&t, o);
    shape_weights(&weights, o, &arena);
    *out = (ag_device_bytes){.weights = ag_device_weights_plan(o->model, o->max_positions, o->weights_become_nf4), .gradients = o->adapter->n_params * sizeof(float)};
    ag_layout layout = {0};
    place_adapter(&layout, &t);
    out->adapter = layout.bytes;
    layout = (ag_layout){0};
    place_optimizer(&layout, &t);
    out->optimizer = layout.bytes;
    layout = (ag_layout){0};
    place_buffers(&layout, &t);
    out->activations = layout.bytes;
    out->workspace = plan_workspace(&t, &weights);
    out->total = out->weights + out->adapter + out->gradients + out->optimizer + out->activations + out->workspace;
    ag_arena_free(&arena);
    return AG_OK;
}

static ag_status allocate(ag_device_trainer *t, ag_err *err)
{
    const ag_device *dev = t->o.device;
    AG_TRY(ag_device_weights_load(&t->weights, dev, t->o.model, t->o.max_positions, &t->arena, err));
    const size_t workspace = plan_workspace(t, &t->weights);
    ag_layout layout = {0};
    for (int pass = 0; pass < 2; pass++) {
        place_buffers(&layout, t);
        place_adapter(&layout, t);
        place_optimizer(&layout, t);
        t->pass.grads = ag_layout_place(&layout, t->o.adapter->n_params * sizeof(float));
        t->pass.workspace = ag_layout_place(&layout, workspace);
        if (pass == 0) {
            AG_TRY(ag_device_check(dev, dev->bkl->alloc(dev->context, &t->block, layout.bytes), "memory for training", err));
            layout = (ag_layout){.base = t->block};
        }
    }
    t->pass.workspace_bytes = workspace;
    layout = (ag_layout){0};
    place_host(&layout, t);
    AG_TRY(ag_device_check(dev, dev->bkl->alloc_host(dev->context, &t->host_block, layout.bytes), "memory to copy with", err));
    layout = (ag_layout){.base = t->host_block};
    place_host(&layout, t);
    t->signature = ag_arena_array(&t->arena, 2 * (size_t)t->o.max_micro, sizeof *t->signature);
    return AG_OK;
}

ag_status ag_device_trainer_create(ag_device_trainer **out, const ag_device_trainer_options *o, ag_err *err)
{
    AG_TRY(check(o, err));
    ag_device_trainer *t = calloc(1, sizeof *t);
    if (!t) ag_out_of_memory(sizeof *t);
    init(t, o);
    *out = t;
    const ag_status status = allocate(t, err);
    if (status) ag_device_trainer_free(out);
    return status;
}

void ag_device_trainer_free(ag_device_trainer **trainer)
{
    ag_device_trainer *t = *trainer;
    if (!t) return;
    const ag_device *dev = t->o.device;
    ag_err ignored;
    if (t->graph) dev->bkl->graph_free(&t->graph);
    if (t->block && ag_device_check(dev, dev->bkl->free(dev->context, &t->block), "freeing", &ignored)) t->block = NULL;
    if (t->host_block && ag_device_check(dev, dev->bkl->free_host(dev->context, &t->host_block), "freeing", &ignored)) t->host_block = NULL;
    ag_device_weights_free(&t->weights, dev);
    ag_arena_free(&t->arena);
    free(t);
    *trainer = NULL;
}

/* ---- the adapter's numbers ------------------------------------------------------------------------------------------------------------------ */
static ag_status copies_done(ag_device_trainer *t, bkl_status status, ag_err *err)
{
    const ag_device *dev = t->o.device;
    AG_TRY(ag_device_check(dev, status, "copying the adapter", err));
    return ag_device_check(dev, dev->bkl->synchronize(dev->stream), "copying the adapter", err);
}

ag_status ag_device_trainer_put(ag_device_trainer *t, const float *params, const float *exp_avg, const float *exp_avg_sq, ag_err *err)
{
    const ag_device *dev = t->o.device;
    const size_t n = t->o.adapter->n_params, bytes = n * sizeof(float);
    bkl_bf16 *rounded = malloc(n * sizeof *rounded);
    if (!rounded) ag_out_of_memory(n * sizeof *rounded);
    for (size_t i = 0; i < n; i++) rounded[i] = ag_f32_to_bf16(params[i]);
    bkl_status status = dev->bkl->copy_in(dev->stream, t->params, params, bytes);
    if (!status) status = dev->bkl->copy_in(dev->stream, t->exp_avg, exp_avg, bytes);
    if (!status) status = dev->bkl->copy_in(dev->stream, t->exp_avg_sq, exp_avg_sq, bytes);
    if (!status) status = dev->bkl->copy_in(dev->stream, t->pass.params_bf16, rounded, n * sizeof *rounded);
    const ag_status done = copies_done(t, status, err);
    free(rounded);
    return done;
}

ag_status ag_device_trainer_get(ag_device_trainer *t, float *params, float *exp_avg, float *exp_avg_sq, ag_err *err)
{
    const ag_device *dev = t->o.device;
    const size_t bytes = t->o.adapter->n_params * sizeof(float);
    bkl_status status = dev->bkl->copy_out(dev->stream, params, t->params, bytes);
    if (!status) status = dev->bkl->copy_out(dev->stream, exp_avg, t->exp_avg, bytes);
    if (!status) status = dev->bkl->copy_out(dev->stream, exp_avg_sq, t->exp_avg_sq, bytes);
    return copies_done(t, status, err);
}

/* ---- a micro-batch -------------------------------------------------------------------------------------------------------------------------- */
/* ids, positions, first_key, last_query, slots [T], target rows and targets [M]; returns M. */
static int64_t lay_out(int32_t *ints, const ag_decoder_batch *batch)
{
    const int64_t T = batch->T;
    int32_t *first = ints + 2 * T, *last = ints + 3 * T, *slot = ints + 4 * T, *row = ints + 5 * T;
    memcpy(ints, batch->ids, (size_t)T * sizeof *ints);
    memcpy(ints + T, batch->positions, (size_t)T * sizeof *ints);
    for (int64_t t = 0; t < T; t++) first[t] = last[t] = -1; /* rows of no document */
    for (int64_t s = 0; s < batch->n_spans; s++) {
        const ag_attention_span *span = &batch->spans[s];
        for (int64_t i = 0; i < span->n_q; i++) {
            first[span->q0 + i] = (int32_t)span->kv0;
            last[span->q0 + i] = (int32_t)(span->q0 + span->n_q - 1);
        }
    }
    int64_t M = 0;
    for (int64_t t = 0; t < T; t++) M += batch->targets[t] >= 0;
    int32_t *target = row + M;
    int64_t i = 0;
    for (int64_t t = 0; t < T; t++) {
        slot[t] = (int32_t)M;
        if (batch->targets[t] < 0) continue;
        slot[t] = (int32_t)i;
        row[i] = (int32_t)t;
        target[i++] = batch->targets[t];
    }
    return M;
}

static void copy(ag_device_pass *p, bool in, void *to, const void *from, size_t bytes)
{
    if (p->failed) return;
    p->failed = in ? p->device->bkl->copy_in(p->device->stream, to, from, bytes) : p->device->bkl->copy_out(p->device->stream, to, from, bytes);
    if (p->failed) p->failed_op = in ? "copy_in" : "copy_out";
}

static void run_micro(ag_device_trainer *t, int64_t i, const graph_micro *micro, bool train)
{
    ag_device_pass *p = &t->pass;
    const int64_t T = p->T = micro->T, M = p->M = micro->M;
    p->dloss = micro->dloss;
    p->dropout = train ? t->o.dropout : 0;
    p->dropout_call = micro->dropout_call;
    copy(p, true, p->b.ints, t->host.ints + (size_t)i * t->ints_of_micro, (size_t)(AG_DEVICE_INTS_PER_TOKEN * T + AG_DEVICE_INTS_PER_TARGET * M) * sizeof(int32_t));
    ag_device_pass_run(p, train);
    copy(p, false, t->host.nll + i * t->o.max_targets, p->b.nll, (size_t)M * sizeof(float));
}

static ag_status finish(ag_device_trainer *t, ag_err *err)
{
    const ag_device *dev = t->o.device;
    if (t->pass.failed) return ag_device_check(dev, t->pass.failed, t->pass.failed_op, err);
    return ag_device_check(dev, dev->bkl->synchronize(dev->stream), "the step", err);
}

/* ---- a step ------------------------------------------------------------------------------------------------------------------------------------ */
static bool is_captured(const ag_device_trainer *t, const graph_micro *now, int64_t n)
{
    return t->graph && n == t->n_signature && memcmp(now, t->signature, (size_t)n * sizeof *now) == 0;
}

static ag_status capture(ag_device_trainer *t, const graph_micro *now, int64_t n, ag_err *err)
{
    const ag_device *dev = t->o.device;
    ag_device_pass *p = &t->pass;
    if (t->graph) dev->bkl->graph_free(&t->graph);
    AG_TRY(ag_device_check(dev, dev->bkl->capture_begin(dev->stream), "capturing the step", err));
    p->failed = dev->bkl->fill(dev->stream, p->grads, 0, t->o.adapter->n_params * sizeof(float));
    p->failed_op = "fill";
    copy(p, true, t->coefficients, t->host.coefficients, sizeof *t->coefficients);
    for (int64_t i = 0; i < n; i++)
        if (now[i].M > 0) run_micro(t, i, &now[i], true);
    grad_norm(p, t->norm, (int64_t)t->o.adapter->n_params, t->o.max_grad_norm);
    copy(p, false, t->host.norm, t->norm, 2 * sizeof(float));
    adamw(p, t);
    const bkl_status ended = dev->bkl->capture_end(dev->stream, &t->graph);
    if (p->failed) return ag_device_check(dev, p->failed, p->failed_op, err);
    AG_TRY(ag_device_check(dev, ended, "capturing the step", err));
    memcpy(t->signature, now, (size_t)n * sizeof *now);
    t->n_signature = n;
    return AG_OK;
}

static bkl_adamw_coefficients coefficients(const ag_device_trainer_options *o, int64_t update, double lr)
{
    const double correction1 = 1 - pow(o->beta1, (double)update), correction2 = 1 - pow(o->beta2, (double)update);
    return (bkl_adamw_coefficients){.decay = (float)(1 - lr * o->weight_decay), .beta2 = (float)o->beta2, .one_minus_beta1 = (float)(1 - o->beta1),
                                    .one_minus_beta2 = (float)(1 - o->beta2), .root_correction2 = (float)sqrt(correction2), .eps = (float)o->eps,
                                    .step_size = (float)(lr / correction1)};
}

ag_status ag_device_trainer_step(ag_device_trainer *t, const ag_decoder_batch *micro, int64_t n_micro, int64_t update, double lr,
                                 uint64_t micro_call, ag_device_step_result *result, ag_err *err)
{
    const ag_device *dev = t->o.device;
    graph_micro *now = t->signature + t->o.max_micro;
    int64_t n_targets = 0;
    AG_ASSERT(n_micro <= t->o.max_micro);
    memset(now, 0, (size_t)n_micro * sizeof *now); /* compared as bytes */
    for (int64_t i = 0; i < n_micro; i++) {
        AG_ASSERT(micro[i].T <= t->o.max_tokens);
        now[i].T = micro[i].T;
        if (t->o.dropout > 0) now[i].dropout_call = micro_call + (uint64_t)i;
        now[i].M = lay_out(t->host.ints + (size_t)i * t->ints_of_micro, &micro[i]);
        n_targets += now[i].M;
    }
    for (int64_t i = 0; i < n_micro; i++) now[i].dloss = (float)(1.0 / (double)n_targets);
    *t->host.coefficients = coefficients(&t->o, update, lr);
    t->pass.failed = BKL_OK;
    if (!is_captured(t, now, n_micro)) AG_TRY(capture(t, now, n_micro, err));
    AG_TRY(ag_device_check(dev, dev->bkl->graph_launch(dev->stream, t->graph), "the step", err));
    AG_TRY(finish(t, err));
    double sum = 0;
    for (int64_t i = 0; i < n_micro; i++)
        for (int64_t k = 0; k < now[i].M; k++) sum += (double)t->host.nll[i * t->o.max_targets + k];
    *result = (ag_device_step_result){.loss = sum / (double)n_targets, .grad_norm = (double)t->host.norm[0]};
    if (!isfinite(result->loss) || !isfinite(result->grad_norm))
        return ag_fail(err, AG_E_NUMERIC, "loss %g and gradient norm %g at update %lld are not finite; the last checkpoint is whole. Lower learning_rate, "
                       "or look at the rows of this step", result->loss, result->grad_norm, (long long)update);
    return AG_OK;
}

ag_status ag_device_trainer_score(ag_device_trainer *t, const ag_decoder_batch *batch, float *nll, ag_err *err)
{
    AG_ASSERT(batch->T <= t->o.max_tokens);
    const int64_t M = lay_out(t->host.ints, batch);
    if (M == 0) return AG_OK;
    t->pass.failed = BKL_OK;
    run_micro(t, 0, &(graph_micro){.T = batch->T, .M = M}, false);
    AG_TRY(finish(t, err));
    memcpy(nll, t->host.nll, (size_t)M * sizeof *nll);
    return AG_OK;
}
