#define _GNU_SOURCE
#include "eval/held_out.h"

#include "adapter/peft_io.h"
#include "base/canonical_json.h"
#include "base/log.h"
#include "data/model_text.h"
#include "data/tokenizer_identity.h"
#include "eval/eval_bundle.h"
#include "eval/greedy_batch.h"
#include "eval/journal.h"
#include "model/identity.h"
#include "seal/artifact_index.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const ag_held_out_options *o;
    ag_arena arena;
    char *output, *artifact;
    ag_artifact_kind kind;
    ag_split *split;
    ag_model_text *text; /* of the tokenizer */
    ag_task_list tasks;
    json_t *contract;
    ag_journal journal;
    ag_model *base;
    ag_scored_arm arms[2];
    int64_t n_resumed;
} evaluation;

static const char *const arm_names[2] = {"base", "sft"};

/* ---- before anything is generated -------------------------------------------------------------------------------- */
static ag_status check_options(const ag_held_out_options *o, ag_err *err)
{
    if (!ag_revision_is_immutable(o->base_revision))
        return ag_fail(err, AG_E_CONFIG,
                       "--base-revision '%s' may move; name the commit (40 to 64 lowercase hexadecimal digits)",
                       o->base_revision);
    if (o->context_window <= o->max_new_tokens)
        return ag_fail(
            err, AG_E_CONFIG,
            "--context-window %lld leaves no room for a prompt beside %lld new tokens; give a larger window or fewer "
            "tokens",
            (long long)o->context_window, (long long)o->max_new_tokens);
    return AG_OK;
}

/* A folder or file is what its content is: where the revision is a digest, it must be the content's. */
static ag_status check_base(const ag_held_out_options *o, ag_err *err)
{
    if (ag_path_is_dir(o->base_path)) AG_TRY(ag_refuse_unsafe_weights(o->base_path, err));
    if (strcmp(o->base_id, o->base_path) != 0 || strlen(o->base_revision) != 64) return AG_OK;
    ag_sha256 digest;
    AG_TRY(ag_model_content_revision(&digest, o->base_path, o->backend->n_threads, err));
    if (strcmp(digest.hex, o->base_revision) == 0) return AG_OK;
    return ag_fail(err, AG_E_VERIFY, "%s: its content is %s, --base-revision says %s; give the model that was trained on",
                   o->base_path, digest.hex, o->base_revision);
}

static ag_status refuse_inside(const char *output, const char *dir, ag_err *err)
{
    const size_t n = strlen(dir);
    if (strncmp(output, dir, n) != 0 || output[n] != '/') return AG_OK;
    return ag_fail(err, AG_E_CONFIG,
                   "%s lies inside the artifact %s, whose index would not hold any more; give another --output-dir", output,
                   dir);
}

static ag_status differs(const char *what, const char *found, const char *wanted, const char *dir, ag_err *err)
{
    return ag_fail(err, AG_E_VERIFY,
                   "%s: was made with the %s %s, this evaluation has %s; evaluate it on its own model and split", dir, what,
                   found, wanted);
}

static ag_status check_provenance(const evaluation *e, const ag_artifact_index *index, ag_err *err)
{
    const ag_provenance *p = &index->provenance;
    if (!index->has_provenance)
        return ag_fail(
            err, AG_E_VERIFY,
            "%s: its index carries no producer_provenance; train on a frozen train split (agoge freeze-split), which "
            "seals it",
            e->artifact);
    if (strcmp(p->base_model_name_or_path, e->o->base_id) != 0)
        return differs("base model", p->base_model_name_or_path, e->o->base_id, e->artifact, err);
    if (strcmp(p->revision, e->o->base_revision) != 0)
        return differs("base revision", p->revision, e->o->base_revision, e->artifact, err);
    if (strcmp(p->training_split_manifest_sha256, e->split->manifest_sha256.hex) != 0)
        return differs("split manifest", p->training_split_manifest_sha256, e->split->manifest_sha256.hex, e->artifact, err);
    if (strcmp(p->training_split_sha256, e->split->part[AG_SPLIT_TRAIN].sha256.hex) != 0)
        return differs("train split", p->training_split_sha256, e->split->part[AG_SPLIT_TRAIN].sha256.hex, e->artifact, err);
    return AG_OK;
}

static ag_status check_adapter_config(evaluation *e, ag_err *err)
{
    ag_peft_config config;
    AG_TRY(ag_peft_config_load(&config, e->artifact, &e->arena, err));
    if (!config.base_model || strcmp(config.base_model, e->o->base_id) != 0)
        return differs("base model (adapter_config.json)", config.base_model ? config.base_model : "none", e->o->base_id,
                       e->artifact, err);
    if (config.revision && strcmp(config.revision, e->o->base_revision) != 0)
        return differs("base revision (adapter_config.json)", config.revision, e->o->base_revision, e->artifact, err);
    return AG_OK;
}

/* What kind it is, and that it is whole, safe and of this base and split. */
static ag_status check_artifact(evaluation *e, ag_sha256 *index_sha256, ag_err *err)
{
    ag_artifact_index index;
    if (ag_path_is_file(ag_path_join(&e->arena, e->artifact, AG_PEFT_CONFIG_FILE)))
        e->kind = AG_ARTIFACT_PEFT_ADAPTER;
    else if (ag_path_is_file(ag_path_join(&e->arena, e->artifact, "config.json")))
        e->kind = AG_ARTIFACT_MERGED_MODEL;
    else
        return ag_fail(err, AG_E_NOT_FOUND,
                       "%s: has neither " AG_PEFT_CONFIG_FILE " nor config.json; give an adapter's or a merged model's folder",
                       e->artifact);
    AG_TRY(refuse_inside(e->output, e->artifact, err));
    AG_TRY(ag_refuse_unsafe_weights(e->artifact, err));
    AG_TRY(ag_artifact_index_verify(&index, e->artifact, e->o->backend->n_threads, &e->arena, err));
    AG_TRY(check_provenance(e, &index, err));
    if (e->kind == AG_ARTIFACT_PEFT_ADAPTER) AG_TRY(check_adapter_config(e, err));
    return ag_sha256_file(index_sha256, ag_path_join(&e->arena, e->artifact, AG_ARTIFACT_INDEX_FILE), err);
}

static ag_status make_contract(evaluation *e, const ag_sha256 *index_sha256, ag_err *err)
{
    const ag_held_out_options *o = e->o;
    ag_contract_parts parts = {.dir = e->output,
                               .split_manifest = e->split->path,
                               .split = e->split,
                               .tasks = &e->tasks,
                               .model_repository = o->base_id,
                               .model_revision = o->base_revision,
                               .tokenizer_repository = o->tokenizer_id,
                               .tokenizer_revision = o->tokenizer_revision,
                               .context_window = o->context_window,
                               .max_new_tokens = o->max_new_tokens,
                               .seed = o->seed,
                               .policy = o->policy,
                               .kind = e->kind,
                               .artifact_index_sha256 = *index_sha256};
    if (e->artifact) parts.artifact_index = ag_path_join(&e->arena, e->artifact, AG_ARTIFACT_INDEX_FILE);
    AG_TRY(ag_tokenizer_fingerprint(&parts.tokenizer_sha256, e->text->tokenizer, err));
    return ag_contract_make(&e->contract, &parts, err);
}

static ag_status open_journal(evaluation *e, ag_err *err)
{
    json_t *engine = json_pack("{s:s, s:s}", "cpu", ag_cpu_level_name(e->o->backend->level), "compute",
                               e->o->compute == AG_COMPUTE_BF16 ? "bf16" : "f32");
    ag_status status = ag_journal_open(&e->journal, e->output, e->contract, engine, e->o->restart, err);
    json_decref(engine);
    return status;
}

static ag_status prepare(evaluation *e, ag_err *err)
{
    const ag_held_out_options *o = e->o;
    ag_sha256 index_sha256 = {{0}};
    AG_TRY(check_options(o, err));
    AG_TRY(ag_path_absent_dir(&e->output, o->output_dir, &e->arena, err));
    if (o->sft_artifact) AG_TRY(ag_path_existing_dir(&e->artifact, o->sft_artifact, &e->arena, err));
    AG_TRY(ag_split_open(&e->split, o->split_manifest, &(ag_split_check){.n_threads = o->backend->n_threads}, err));
    AG_TRY(check_base(o, err));
    if (e->artifact) AG_TRY(check_artifact(e, &index_sha256, err));
    AG_TRY(ag_model_text_open(&e->text, o->tokenizer_path, err));
    AG_TRY(ag_tasks_load(&e->tasks, e->split,
                         &(ag_task_options){.tokenizer = e->text->tokenizer,
                                            .context_window = o->context_window,
                                            .max_new_tokens = o->max_new_tokens,
                                            .policy = o->policy},
                         err));
    AG_TRY(make_contract(e, &index_sha256, err));
    return open_journal(e, err);
}

/* ---- one arm ----------------------------------------------------------------------------------------------------- */
typedef struct {
    evaluation *e;
    int arm;
    ag_journal_arm journal;
    size_t *task; /* of each prompt */
    int64_t n_done;
} generator;

static void tell(generator *g)
{
    const ag_held_out_options *o = g->e->o;
    if (o->on_progress) o->on_progress(o->user, arm_names[g->arm], g->n_done, (int64_t)g->e->tasks.n);
}

static ag_text keep(ag_arena *arena, const ag_str *s)
{
    return (ag_text){ag_arena_strndup(arena, s->text ? s->text : "", s->n), s->n};
}

static ag_status on_answer(void *user, size_t i, const int32_t *ids, int64_t n_ids, ag_finish finish, ag_err *err)
{
    generator *g = user;
    const ag_task *t = &g->e->tasks.task[g->task[i]];
    ag_generation *out = &g->e->arms[g->arm].generation[g->task[i]];
    ag_str raw = {0}, completion = {0};
    (void)finish;
    ag_tokenizer_decode(g->e->text->tokenizer, ids, (size_t)n_ids, false, &raw);
    ag_tokenizer_decode(g->e->text->tokenizer, ids, (size_t)n_ids, true, &completion);
    *out = (ag_generation){.task_id = t->id,
                           .prompt = t->prompt,
                           .expected = t->expected,
                           .raw_text = keep(&g->e->arena, &raw),
                           .completion = keep(&g->e->arena, &completion),
                           .n_prompt = t->n_ids,
                           .n_completion = n_ids};
    ag_str_free(&raw);
    ag_str_free(&completion);
    g->n_done++;
    tell(g);
    return ag_journal_add(&g->journal, out, err);
}

static ag_decoder_options decoder_of(const evaluation *e, const ag_model *model)
{
    return (ag_decoder_options){.model = model, .backend = e->o->backend, .compute = e->o->compute};
}

/* Generates what the journal has not. */
static ag_status generate(generator *g, const ag_decoder_options *decoder, const bool *found, ag_err *err)
{
    evaluation *e = g->e;
    ag_prompt *prompts = malloc((e->tasks.n + 1) * sizeof *prompts);
    g->task = malloc((e->tasks.n + 1) * sizeof *g->task);
    if (!prompts || !g->task) ag_out_of_memory((e->tasks.n + 1) * sizeof *prompts);
    size_t n = 0;
    for (size_t i = 0; i < e->tasks.n; i++) {
        if (found[i]) continue;
        if (e->tasks.task[i].status != AG_GENERATION_OK) {
            e->arms[g->arm].generation[i] = ag_generation_of_refused(&e->tasks.task[i]);
            g->n_done++;
            continue;
        }
        prompts[n] = (ag_prompt){e->tasks.task[i].ids, e->tasks.task[i].n_ids};
        g->task[n++] = i;
    }
    tell(g);
    ag_status status = ag_journal_arm_open(&g->journal, &e->journal, arm_names[g->arm], err);
    if (!status) {
        status = ag_greedy_batch_run(&(ag_greedy_batch){.decoder = *decoder,
                                                        .prompt = prompts,
                                                        .n = n,
                                                        .max_new_tokens = e->o->max_new_tokens,
                                                        .batch = e->o->batch,
                                                        .on_answer = on_answer,
                                                        .user = g,
                                                        .stop = e->o->stop},
                                     err);
        ag_err own;
        const ag_status closed = ag_journal_arm_close(&g->journal, status ? &own : err);
        if (!status) status = closed;
    }
    free(prompts);
    free(g->task);
    return status;
}

/* The decoder options name the model and its adapter. */
static ag_status run_arm(evaluation *e, int arm, const ag_decoder_options *decoder, ag_err *err)
{
    const size_t n = e->tasks.n;
    ag_scored_arm *a = &e->arms[arm];
    generator g = {.e = e, .arm = arm};
    *a = (ag_scored_arm){.role = arm ? "causal_sft" : "causal_base",
                         .n = n,
                         .generation = ag_arena_array(&e->arena, n, sizeof *a->generation),
                         .verdict = ag_arena_array(&e->arena, n, sizeof *a->verdict)};
    const ag_model *model = decoder->model;
    if (ag_tokenizer_vocab_size(e->text->tokenizer) > model->d.V)
        return ag_fail(err, AG_E_DATA,
                       "%s: the tokenizer has %d tokens, the model's embedding %lld rows; give the model's own tokenizer",
                       e->o->tokenizer_id, ag_tokenizer_vocab_size(e->text->tokenizer), (long long)model->d.V);
    bool *found = ag_arena_array(&e->arena, n, sizeof *found);
    AG_TRY(ag_journal_read(&e->journal, arm_names[arm], &e->tasks, a->generation, found, &e->arena, err));
    for (size_t i = 0; i < n; i++) g.n_done += found[i];
    e->n_resumed += g.n_done;
    AG_TRY(generate(&g, decoder, found, err));
    for (size_t i = 0; i < n; i++) a->verdict[i] = ag_score_generation(&a->generation[i]);
    return AG_OK;
}

static ag_status check_same_shape(const evaluation *e, const ag_description *d, ag_err *err)
{
    const ag_description *b = &e->base->d;
    if (strcmp(d->model_type, b->model_type) == 0 && d->C == b->C && d->L == b->L && d->H == b->H && d->G == b->G &&
        d->D == b->D && d->F == b->F && d->V == b->V)
        return AG_OK;
    return ag_fail(
        err, AG_E_SHAPE,
        "%s: is no fine-tuned %s: its architecture or sizes differ from the base's; give the model that was merged from it",
        e->artifact, e->o->base_id);
}

static ag_status run_sft(evaluation *e, ag_err *err)
{
    if (e->kind == AG_ARTIFACT_PEFT_ADAPTER) {
        ag_peft *peft;
        AG_TRY(ag_peft_open_on(&peft, e->artifact, e->base, NULL, err));
        ag_decoder_options decoder = decoder_of(e, e->base);
        ag_adapter_use(&decoder, &peft->adapter);
        ag_status status = run_arm(e, 1, &decoder, err);
        ag_peft_close(&peft);
        return status;
    }
    ag_model *merged;
    AG_TRY(ag_model_open(&merged, e->artifact, NULL, err));
    ag_status status = check_same_shape(e, &merged->d, err);
    const ag_decoder_options decoder = decoder_of(e, merged);
    if (!status) status = run_arm(e, 1, &decoder, err);
    ag_model_close(&merged);
    return status;
}

static ag_status run_arms(evaluation *e, ag_err *err)
{
    AG_TRY(ag_model_open(&e->base, e->o->base_path, &(ag_model_options){.n_threads = e->o->backend->n_threads}, err));
    if (e->base->d.context_length > 0 && e->o->context_window > e->base->d.context_length)
        ag_log(AG_LOG_WARN, "--context-window %lld is more than the %lld tokens that %s was made for",
               (long long)e->o->context_window, (long long)e->base->d.context_length, e->o->base_id);
    const ag_decoder_options decoder = decoder_of(e, e->base);
    AG_TRY(run_arm(e, 0, &decoder, err));
    return e->artifact ? run_sft(e, err) : AG_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */
static ag_status evaluate(evaluation *e, ag_held_out_result *result, ag_err *err)
{
    AG_TRY(prepare(e, err));
    AG_TRY(run_arms(e, err));
    const ag_eval_bundle bundle = {
        .contract = e->contract, .base = &e->arms[0], .sft = e->artifact ? &e->arms[1] : NULL, .seed = e->o->seed};
    AG_TRY(ag_eval_bundle_publish(&bundle, e->output, err));
    result->base = ag_arm_count(&e->arms[0]);
    result->kind = e->kind;
    result->n_resumed = e->n_resumed;
    if (e->artifact) {
        result->sft = ag_arm_count(&e->arms[1]);
        result->comparison = ag_compare(&e->arms[0], &e->arms[1]);
    }
    return ag_journal_remove(&e->journal, err);
}

ag_status ag_held_out_run(ag_held_out_result *result, const ag_held_out_options *options, ag_err *err)
{
    evaluation e = {.o = options, .journal = {.lock = {.fd = -1}}};
    *result = (ag_held_out_result){0};
    ag_status status = evaluate(&e, result, err);
    if (e.journal.dir) ag_journal_close(&e.journal);
    ag_model_close(&e.base);
    ag_model_text_close(&e.text);
    if (e.contract) ag_json_free(&e.contract);
    ag_tasks_free(&e.tasks);
    ag_split_close(&e.split);
    ag_arena_free(&e.arena);
    return status;
}
