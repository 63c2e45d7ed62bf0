#include "train/job.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "train/samples.h"
#include "train/optimizer.h"

#include <stdlib.h>
#include <string.h>

/* The program itself, its libraries and a tokenizer of 50,000 tokens, resident: measured, see docs/performance.md. */
static const uint64_t PROGRAM_BYTES = (uint64_t)42 << 20;

/* ---- data -------------------------------------------------------------------------------------------------------- */
static ag_status read_rows(ag_train_job *job, ag_job_data *data, const char *path, int n_threads, ag_err *err)
{
    const ag_train_config *c = job->config;
    AG_TRY(ag_rows_open(&data->rows, path, err));
    AG_TRY(ag_examples_make(&data->examples, data->rows, &(ag_examples_options){
        .tokenizer = job->text->tokenizer, .chat = job->chat.render ? &job->chat : NULL, .text_field = c->dataset_text_field,
        .max_seq_length = c->max_seq_length, .n_vocab = 0, .completion_only = c->completion_only_loss,
        .assistant_only = c->assistant_only_loss, .n_threads = n_threads}, err));
    const ag_examples *x = data->examples;
    if (x->n_cut > 0)
        ag_log(AG_LOG_WARN, "%s: %lld of %lld rows are longer than max_seq_length %lld and were cut, %lld tokens in all; the first is "
               "line %lld", path, (long long)x->n_cut, (long long)x->n, (long long)c->max_seq_length, (long long)x->n_cut_tokens,
               (long long)x->first_cut_line);
    if (x->n_plain_chat > 0 && job->text->chat_source) { /* there is a template, but it cannot be used: never guess another form */
        if (err) *err = job->text->chat_error;
        return job->text->chat_error.code;
    }
    if (x->n_plain_chat > 0)
        ag_log(AG_LOG_WARN, "%s: %lld rows of messages were written as plain 'Role: text' lines, for the model has no chat template",
               path, (long long)x->n_plain_chat);
    return AG_OK;
}

/* The rows that were tokenized are the frozen ones, also if somebody wrote to the file since. */
static ag_status check_frozen(const ag_train_job *job, ag_err *err)
{
    const ag_map *map = &job->train.rows->map;
    if (!job->provenance || strcmp(ag_sha256_bytes(map->bytes, map->n).hex, job->provenance->training_split_sha256) == 0) return AG_OK;
    return ag_fail(err, AG_E_DATA, "%s: changed while it was read; restore the frozen split and start again", job->config->dataset_file);
}

static ag_status arrange(ag_job_data *data, const ag_train_config *c, bool is_eval, ag_err *err)
{
    if (c->packing) {
        AG_TRY(ag_packing_make(&data->packing, data->examples->offset, data->examples->n, c->max_seq_length, err));
        data->is_packed = true;
    }
    AG_TRY(ag_batch_init(&data->batch, data->examples, data->is_packed ? &data->packing : NULL, c->batch_size, err));
    return ag_sampler_create(&data->sampler, &(ag_sampler_plan){
        .n_rows = data->is_packed ? data->packing.n : data->examples->n, .batch_size = c->batch_size,
        .accumulation = is_eval ? 1 : c->gradient_accumulation_steps, .n_epochs = is_eval ? 1 : c->num_train_epochs,
        .max_steps = is_eval ? -1 : c->max_steps, .seed = (uint64_t)c->seed, .in_order = is_eval}, err);
}

static void close_data(ag_job_data *data)
{
    ag_sampler_free(&data->sampler);
    ag_batch_deinit(&data->batch);
    if (data->is_packed) ag_packing_free(&data->packing);
    ag_examples_free(&data->examples);
    ag_rows_close(&data->rows);
}

static ag_status check_ids(const ag_job_data *data, const char *path, int64_t V, ag_err *err)
{
    const ag_examples *x = data->examples;
    for (int64_t r = 0; r < x->n; r++)
        for (int64_t t = x->offset[r]; t < x->offset[r + 1]; t++)
            if (x->ids[t] < 0 || x->ids[t] >= V)
                return ag_fail(err, AG_E_DATA, "%s: line %u: has the token id %d, the model's embedding has %lld rows; the tokenizer "
                               "does not belong to this model", path, x->line[r], x->ids[t], (long long)V);
    return AG_OK;
}

/* ---- job ---------------------------------------------------------------------------------------------------------- */
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static ag_status plan_adapter(ag_train_job *job, ag_err *err)
{
    const ag_train_config *c = job->config;
    const char *const *names = NULL;
    size_t n_names = 0;
    if (!c->target_modules.is_pattern)
        AG_TRY(ag_targets_choose(&names, &n_names, c->target_modules_mode, c->target_modules.item, c->target_modules.n, &job->model->d,
                                 &job->arena, err));
    return ag_adapter_plan(&job->adapter, &job->model->d, &(ag_lora_config){
        .r = c->lora_r, .alpha = (double)c->lora_alpha, .dropout = c->lora_dropout, .rslora = c->use_rslora, .dora = c->use_dora,
        .bias = c->bias, .targets = names, .n_targets = n_names, .pattern = c->target_modules.is_pattern ? c->target_modules.item[0] : NULL,
        .exclude = c->exclude_modules.is_pattern ? NULL : c->exclude_modules.item,
        .n_exclude = c->exclude_modules.is_pattern ? 0 : c->exclude_modules.n,
        .exclude_pattern = c->exclude_modules.is_pattern ? c->exclude_modules.item[0] : NULL, .layers = c->layers_to_transform.item,
        .n_layers = c->layers_to_transform.n, .layers_patterns = c->layers_pattern.item, .n_layers_patterns = c->layers_pattern.n,
        .modules_to_save = c->modules_to_save.item, .n_modules_to_save = c->modules_to_save.n, .ranks = c->rank_pattern.item,
        .n_ranks = c->rank_pattern.n, .alphas = c->alpha_pattern.item, .n_alphas = c->alpha_pattern.n}, &job->arena, err);
}

static uint64_t optimizer_bytes(const ag_train_job *job)
{
    ag_optimizer optimizer;
    ag_layout layout = {0};
    ag_arena scratch = {0};
    ag_optimizer_plan(&optimizer, &job->adapter, job->config, &scratch);
    ag_optimizer_place(&optimizer, &layout);
    ag_arena_free(&scratch);
    return layout.bytes;
}

/* The decoder's sizes need the shapes of what is trained; the numbers come when the run binds again. */
static void plan_decoder(ag_train_job *job)
{
    const ag_train_config *c = job->config;
    const ag_batch *train = &job->train.batch, *eval = job->eval.rows ? &job->eval.batch : train;
    ag_adapter_bind_shapes(&job->adapter);
    job->decoder = (ag_decoder_options){
        .model = job->model, .backend = job->backend,
        .compute = ag_train_config_computes_bf16(c) ? AG_COMPUTE_BF16 : AG_COMPUTE_F32, .train = true,
        .recompute = c->gradient_checkpointing, .dropout = (float)c->lora_dropout, .dropout_key = (uint64_t)c->seed, .neftune_alpha = (float)c->neftune_noise_alpha,
        .max_tokens = larger(train->max_T, eval->max_T), .max_targets = larger(train->max_M, eval->max_M),
        .max_positions = larger(train->max_longest, eval->max_longest), .longest_span = larger(train->max_longest, eval->max_longest)};
    ag_adapter_use(&job->decoder, &job->adapter);
}

/* What the config asks for that only the CPU does; what the model has, the trainer's plan looks at. */
static ag_status check_device(const ag_train_job *job, ag_err *err)
{
    const ag_train_config *c = job->config;
    if (!job->device) return AG_OK;
    if (!ag_train_config_computes_bf16(c))
        return ag_fail(err, AG_E_UNSUPPORTED, "the device multiplies bf16 operands; set bnb_4bit_compute_dtype: bfloat16, or train with --device cpu");
    if (c->loraplus_lr_ratio > 0 || c->neftune_noise_alpha > 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "the device does neither LoRA+ nor NEFTune; leave loraplus_lr_ratio and neftune_noise_alpha out, or train with --device cpu");
    if (c->optim != AG_OPTIM_ADAMW_TORCH) return ag_fail(err, AG_E_UNSUPPORTED, "the device's optimizer is adamw_torch; set optim: adamw_torch, or train with --device cpu");
    return AG_OK;
}

static ag_status open_job(ag_train_job *job, const ag_train_job_options *options, ag_err *err)
{
    const ag_train_config *c = job->config;
    const int n_threads = job->backend->n_threads;
    AG_TRY(check_device(job, err));
    AG_TRY(ag_model_text_open(&job->text, c->model_path, err));
    if (job->text->chat) AG_TRY(ag_model_text_chat(&job->chat, job->text, err));
    AG_TRY(read_rows(job, &job->train, c->dataset_file, n_threads, err));
    AG_TRY(check_frozen(job, err));
    if (c->eval_dataset_file) AG_TRY(read_rows(job, &job->eval, c->eval_dataset_file, n_threads, err));

    AG_TRY(ag_model_open(&job->model, c->model_path, &(ag_model_options){
        .quantize_nf4 = c->load_in_4bit && !options->only_plan, .double_quant = c->bnb_4bit_use_double_quant,
        .n_threads = n_threads}, err));
    const ag_description *d = &job->model->d;
    AG_TRY(check_ids(&job->train, c->dataset_file, d->V, err));
    if (job->eval.rows) AG_TRY(check_ids(&job->eval, c->eval_dataset_file, d->V, err));
    if (d->context_length > 0 && job->train.examples->longest > d->context_length)
        ag_log(AG_LOG_WARN, "the longest row has %lld tokens, the model was made for %lld", (long long)job->train.examples->longest,
               (long long)d->context_length);

    AG_TRY(arrange(&job->train, c, false, err));
    if (job->eval.rows) AG_TRY(arrange(&job->eval, c, true, err));
    job->schedule = ag_schedule_plan(c, job->train.sampler->n_steps);
    AG_TRY(plan_adapter(job, err));
    plan_decoder(job);
    return AG_OK;
}

ag_device_trainer_options ag_train_job_device_options(const ag_train_job *job, const ag_adapter *adapter, int64_t max_micro)
{
    const ag_train_config *c = job->config;
    return (ag_device_trainer_options){
        .device = job->device, .model = job->model, .adapter = adapter, .max_tokens = job->decoder.max_tokens, .max_targets = job->decoder.max_targets,
        .max_positions = job->decoder.max_positions, .max_micro = max_micro, .beta1 = c->adam_beta1, .beta2 = c->adam_beta2, .eps = c->adam_epsilon,
        .weight_decay = c->weight_decay, .max_grad_norm = c->max_grad_norm, .dropout = (float)c->lora_dropout,
        .dropout_key = (uint64_t)c->seed, .weights_become_nf4 = c->load_in_4bit && job->model->source == AG_SOURCE_HF};
}

ag_status ag_train_job_open(ag_train_job **out, const ag_train_config *config, const ag_backend *backend,
                            const ag_train_job_options *options, ag_err *err)
{
    *out = NULL;
    ag_train_job *job = calloc(1, sizeof *job);
    if (!job) ag_out_of_memory(sizeof *job);
    job->config = config;
    job->backend = backend;
    job->provenance = options->provenance;
    job->record = options->record;
    job->device = options->device;
    ag_status status = open_job(job, options, err);
    if (status)
        ag_train_job_close(&job);
    else
        *out = job;
    return status;
}

void ag_train_job_close(ag_train_job **job)
{
    if (!job || !*job) return;
    close_data(&(*job)->train);
    close_data(&(*job)->eval);
    ag_model_close(&(*job)->model);
    ag_model_text_close(&(*job)->text);
    ag_arena_free(&(*job)->arena);
    free(*job);
    *job = NULL;
}

/* ---- plan ---------------------------------------------------------------------------------------------------------- */
/* Bytes of a projection in NF4: half a byte a weight, a scale per 64, of the scales' own scales one per 256. */
static uint64_t nf4_bytes(const ag_weight *w, bool double_quant)
{
    const uint64_t n = (uint64_t)w->N * (uint64_t)w->K, blocks = (n + 63) / 64;
    return (n + 1) / 2 + (double_quant ? blocks + (blocks + 255) / 256 * sizeof(float) : blocks * sizeof(float));
}

static bool will_be_quantized(const ag_train_job *job)
{
    return job->config->load_in_4bit && job->model->source == AG_SOURCE_HF;
}

static uint64_t weight_bytes(const ag_train_job *job)
{
    const ag_model *m = job->model;
    uint64_t bytes = ag_weight_bytes(&m->embed) + (m->d.tied ? 0 : ag_weight_bytes(&m->head));
    for (int64_t l = 0; l < m->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) {
            const ag_weight *w = &m->layers[l].proj[p];
            bytes += will_be_quantized(job) ? nf4_bytes(w, job->config->bnb_4bit_use_double_quant) : ag_weight_bytes(w);
        }
    return bytes;
}

static uint64_t data_bytes(const ag_job_data *data)
{
    return data->rows ? data->examples->bytes + data->batch.bytes + data->rows->map.n : 0;
}

/* Multiply-adds twice: forward and dX for every weight, forward again with recompute; three products of each adapter matrix, one
 * more of a matrix that is trained itself. The head counts per target, twice where it is trained. */
static double flop_of_run(const ag_train_job *job, int64_t n_tokens, int64_t n_targets)
{
    const ag_description *d = &job->model->d;
    double projections = 0;
    for (int p = 0; p < AG_N_PROJ; p++) {
        int64_t N, K;
        ag_projection_size(&N, &K, d, (ag_projection)p);
        projections += (double)N * (double)K * (double)d->L;
    }
    const double passes = job->config->gradient_checkpointing ? 6 : 4;
    double of_tokens = 0, of_targets = 4 * (double)d->V * (double)d->C;
    for (size_t i = 0; i < job->adapter.n_trained; i++) {
        const ag_trained *t = &job->adapter.trained[i];
        if (t->rank == 1 || t->module.kind == AG_MODULE_EMBED) continue;
        if (t->module.kind == AG_MODULE_HEAD) of_targets += 4 * (double)t->n;
        else of_tokens += (t->kind == AG_TRAINED_COPY ? 2 : 6) * (double)t->n;
    }
    return (double)n_tokens * (passes * projections + of_tokens) + (double)n_targets * of_targets;
}

void ag_train_job_plan(ag_train_plan *out, const ag_train_job *job)
{
    ag_decoder_bytes decoder;
    ag_decoder_plan(&decoder, &job->decoder);
    const uint64_t params = (uint64_t)job->adapter.n_params * sizeof(float);
    ag_train_plan p = {.weights = weight_bytes(job), .adapter = params, .gradients = params, .optimizer = optimizer_bytes(job),
                       .activations = decoder.activations, .n_params = (int64_t)job->adapter.n_params};
    /* What the process holds by now, of which the weights' pages that were looked at are counted above already. */
    p.workspace = decoder.workspace + ag_samples_bytes(job) + data_bytes(&job->train) + data_bytes(&job->eval) + PROGRAM_BYTES;
    p.total = p.weights + p.adapter + p.gradients + p.optimizer + p.activations + p.workspace;
    p.available = ag_memory_available();
    p.fits = p.total <= p.available;

    const ag_sampler *s = job->train.sampler;
    const ag_sampler_position end = ag_sampler_at(s, s->n_steps);
    p.n_steps = s->n_steps;
    p.n_tokens = (int64_t)(end.epochs * (double)job->train.examples->n_tokens + 0.5);
    p.n_targets = (int64_t)(end.epochs * (double)job->train.examples->n_targets + 0.5);
    p.flop = flop_of_run(job, p.n_tokens, p.n_targets);
    *out = p;
}

ag_status ag_train_job_plan_device(ag_train_plan *out, const ag_train_job *job, ag_err *err)
{
    ag_device_bytes bytes;
    ag_train_job_plan(out, job);
    const ag_device_trainer_options options = ag_train_job_device_options(job, &job->adapter, job->config->gradient_accumulation_steps);
    AG_TRY(ag_device_trainer_plan(&bytes, &options, err));
    out->weights = bytes.weights;
    out->adapter = bytes.adapter;
    out->gradients = bytes.gradients;
    out->optimizer = bytes.optimizer;
    out->activations = bytes.activations;
    out->workspace = bytes.workspace;
    out->total = bytes.total;
    out->available = job->device->context ? job->device->info.memory_free : 0;
    out->fits = out->total <= out->available;
    return AG_OK;
}
