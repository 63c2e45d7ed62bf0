#include "train/checkpoint.h"

#include "adapter/peft_io.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "train/quarantine.h"
#include "train/run_scan.h"
#include "train/trainer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char STAGING[] = AG_CHECKPOINT_STAGING, DROPPED[] = ".agoge-ckpt-dropped-", SIDECAR[] = "agoge_resume.json";

/* trainer_state.json may have 4 MiB; an entry takes about 170 bytes. Older entries of a longer run are in metrics.jsonl. */
enum { MAX_LOG_ENTRIES = 20000 };

/* ---- which directories are checkpoints --------------------------------------------------------------------------- */
int64_t ag_checkpoint_step(const char *run_dir, const char *name)
{
    if (ag_checkpoint_number(name) < 0) return -1;
    ag_arena arena = {0};
    ag_run_scan scan;
    ag_err ignored; /* what cannot be looked at is no checkpoint to choose */
    int64_t step = -1;
    if (ag_run_scan_make(&scan, run_dir, false, &arena, &ignored) == AG_OK)
        for (size_t i = 0; i < scan.n; i++)
            if (strcmp(scan.entries[i].name, name) == 0 && !scan.entries[i].lacks) step = scan.entries[i].step;
    ag_arena_free(&arena);
    return step;
}

/* ---- what a run without an orderly end leaves -------------------------------------------------------------------- */
static ag_status remove_leftovers(const char *run_dir, ag_err *err)
{
    char **names;
    size_t n;
    ag_arena arena = {0};
    ag_status status = ag_dir_list(&names, &n, run_dir, &arena, err);
    for (size_t i = 0; !status && i < n; i++)
        if (ag_str_starts(names[i], STAGING) || ag_str_starts(names[i], DROPPED))
            status = ag_remove_tree(ag_path_join(&arena, run_dir, names[i]), err);
    ag_arena_free(&arena);
    return status;
}

/* Renamed away before deletion: a half-deleted checkpoint never stands under its name. */
static ag_status drop(const char *run_dir, const char *path, ag_arena *arena, ag_err *err)
{
    const char *away = ag_arena_printf(arena, "%s/%s%s", run_dir, DROPPED, ag_path_base(path));
    AG_TRY(ag_remove_tree(away, err));
    AG_TRY(ag_rename_synced(path, away, err));
    return ag_remove_tree(away, err);
}

/* The oldest beyond the limit; with drop_earlier all but the one of this step. */
static ag_status drop_checkpoints(const ag_run_state *s, int64_t step, const char *run_dir, ag_arena *arena, ag_err *err)
{
    const size_t limit = s->job->config->save_total_limit > 0 ? (size_t)s->job->config->save_total_limit : SIZE_MAX;
    ag_run_scan scan;
    AG_TRY(ag_run_scan_make(&scan, run_dir, false, arena, err));
    size_t n_newer = scan.n_valid;
    for (size_t i = 0; i < scan.n; i++) {
        if (scan.entries[i].lacks) continue;
        const bool is_beyond = n_newer-- > limit, is_earlier = s->drop_earlier && scan.entries[i].step != step;
        if (is_beyond || is_earlier) AG_TRY(drop(run_dir, ag_path_join(arena, run_dir, scan.entries[i].name), arena, err));
    }
    return AG_OK;
}

ag_status ag_checkpoint_count(size_t *n, const char *run_dir, ag_err *err)
{
    ag_arena arena = {0};
    ag_run_scan scan;
    const ag_status status = ag_run_scan_make(&scan, run_dir, false, &arena, err);
    *n = scan.n_valid;
    ag_arena_free(&arena);
    return status;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */
static ag_status save_sidecar(const ag_run_state *s, ag_progress progress, const char *dir, ag_err *err)
{
    ag_str text = {0};
    ag_arena arena = {0};
    const ag_optimizer_state optimizer = ag_optimizer_view(&s->optimizer, 0, 0, &arena);
    ag_json_writer w = {.out = &text};
    ag_jw_object(&w, NULL);
    ag_jw_int(&w, "global_step", progress.step);
    ag_jw_int(&w, "sampler_position", ag_sampler_at(s->job->train.sampler, progress.step).rows);
    ag_jw_array(&w, "optimizer_shapes"); /* by group */
    for (int g = 0; g < optimizer.n_groups; g++) {
        ag_jw_array(&w, NULL);
        for (size_t i = 0; i < optimizer.n_params; i++) {
            const ag_optimizer_param *p = &optimizer.params[i];
            if (p->group != g) continue;
            ag_jw_array(&w, NULL);
            for (int d = 0; d < p->rank; d++) ag_jw_int(&w, NULL, p->dim[d]);
            ag_jw_end(&w);
        }
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_end(&w);
    ag_str_add_char(&text, '\n');
    ag_status status = ag_file_publish(ag_path_join(&arena, dir, SIDECAR), text.text, text.n, err);
    ag_str_free(&text);
    ag_arena_free(&arena);
    return status;
}

static ag_status save_trainer_state(const ag_run_state *s, ag_progress progress, const char *dir, ag_arena *arena, ag_err *err)
{
    const ag_train_config *c = s->job->config;
    const int64_t first = s->n_log > MAX_LOG_ENTRIES ? s->n_log - MAX_LOG_ENTRIES : 0, n = s->n_log - first;
    ag_trainer_log *log = ag_arena_array(arena, (size_t)n, sizeof *log);
    for (int64_t i = 0; i < n; i++) {
        const ag_log_entry *e = &s->log[first + i];
        log[i] = (ag_trainer_log){.step = e->step, .epoch = e->epoch, .loss = e->loss, .grad_norm = e->grad_norm,
                                  .learning_rate = e->lr, .eval_loss = NAN};
    }
    return ag_trainer_state_save(&(ag_trainer_state){
        .global_step = progress.step, .max_steps = s->job->train.sampler->n_steps, .num_train_epochs = s->job->train.sampler->n_epochs,
        .logging_steps = 1, .eval_steps = c->eval_steps > 0 ? c->eval_steps : 500, .save_steps = c->save_steps > 0 ? c->save_steps : 500,
        .train_batch_size = c->batch_size, .epoch = ag_sampler_at(s->job->train.sampler, progress.step).epochs, .best_metric = NAN,
        .best_global_step = -1, .log = log, .n_log = (size_t)n}, dir, err);
}

static ag_status save_files(const ag_run_state *s, ag_progress progress, const char *dir, ag_arena *arena, ag_err *err)
{
    const ag_train_job *job = s->job;
    const ag_train_config *c = job->config;
    const double next_lr = ag_schedule_rate(&job->schedule, progress.step);
    ag_adapter adapter = job->adapter;
    adapter.params = s->params;

    AG_TRY(ag_peft_save(&adapter, dir, c->model_id, c->revision, err));
    AG_TRY(ag_model_text_save(job->text, c->model_path, dir, err));
    const ag_optimizer_state optimizer = ag_optimizer_view(&s->optimizer, next_lr, progress.n_updates, arena);
    AG_TRY(ag_optimizer_save(&optimizer, dir, err));
    ag_scheduler_state scheduler = {.step = progress.step, .base_lr = c->learning_rate, .last_lr = next_lr, .n_groups = optimizer.n_groups};
    for (int g = 0; g < optimizer.n_groups; g++) {
        scheduler.base_lrs[g] = optimizer.groups[g].initial_lr;
        scheduler.last_lrs[g] = optimizer.groups[g].lr;
    }
    AG_TRY(ag_scheduler_save(&scheduler, dir, err));
    ag_trainer_rng rng;
    ag_trainer_rng_seed(&rng, (uint32_t)c->seed);
    AG_TRY(ag_trainer_rng_save(&rng, dir, err));
    AG_TRY(save_sidecar(s, progress, dir, err));
    return save_trainer_state(s, progress, dir, arena, err);
}

/* A save that failed is evidence and goes to the quarantine; but a disk that is full needs the room more. */
static void keep_partial(const char *run_dir, const char *staging, ag_status why)
{
    ag_err ignored; /* the save's own failure is what is reported */
    if (why != AG_E_NO_SPACE) (void)!ag_quarantine_move(run_dir, ag_path_base(staging), AG_QUARANTINE_INTERRUPTED, NULL, 0, &ignored);
}

static ag_status publish(ag_run_state *s, ag_progress progress, const char *run_dir, ag_arena *arena, ag_err *err)
{
    ag_dir_writer w;
    const char *path = ag_arena_printf(arena, "%s/checkpoint-%lld", run_dir, (long long)progress.step);
    AG_TRY(remove_leftovers(run_dir, err));
    /* A directory of that name is an earlier run's, or that of a run that went back to an earlier checkpoint, or not whole. */
    if (ag_path_is_dir(path)) AG_TRY(drop(run_dir, path, arena, err));
    AG_TRY(ag_dir_begin(&w, path, STAGING, err));
    ag_status status = save_files(s, progress, w.staging, arena, err);
    if (status) {
        keep_partial(run_dir, w.staging, status);
        ag_dir_abort(&w);
        return status;
    }
    AG_TRY(ag_dir_commit(&w, err));
    AG_TRY(drop_checkpoints(s, progress.step, run_dir, arena, err));
    s->drop_earlier = false;
    return AG_OK;
}

ag_status ag_checkpoint_save(ag_run_state *s, ag_progress progress, const char *run_dir, ag_err *err)
{
    ag_arena arena = {0};
    ag_status status = publish(s, progress, run_dir, &arena, err);
    ag_arena_free(&arena);
    return status;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */
/* The first tensor that two adapters on this base do not have alike, in shape or scale; NULL: none. */
static const char *first_difference(const ag_adapter *a, const ag_adapter *b)
{
    for (size_t i = 0; i < a->n_trained || i < b->n_trained; i++) {
        if (i >= a->n_trained) return b->trained[i].module.path;
        const ag_trained *x = &a->trained[i], *y = i < b->n_trained ? &b->trained[i] : NULL;
        if (!y || x->kind != y->kind || strcmp(x->module.path, y->module.path) != 0 || x->dim[0] != y->dim[0] || x->dim[1] != y->dim[1])
            return x->module.path;
    }
    for (size_t i = 0; i < a->n_pairs; i++)
        if (a->pairs[i].scale != b->pairs[i].scale) return a->pairs[i].linear ? a->pairs[i].linear->path : "embed_tokens";
    return NULL;
}

static ag_status check_adapter_config(const ag_run_state *s, const char *path, ag_arena *arena, ag_err *err)
{
    const ag_adapter *adapter = &s->job->adapter;
    const ag_lora_config *want = &adapter->config;
    ag_peft_config found;
    ag_adapter planned;
    AG_TRY(ag_peft_config_load(&found, path, arena, err));
    if (found.lora.r != want->r || found.lora.alpha != want->alpha || found.lora.rslora != want->rslora)
        return ag_fail(err, AG_E_CONFIG, "%s: was made with lora_r %lld, lora_alpha %g, use_rslora %s; the config says %lld, %g, %s. Resume "
                       "with the numbers it was made with, or start anew", path, (long long)found.lora.r, found.lora.alpha,
                       found.lora.rslora ? "true" : "false", (long long)want->r, want->alpha, want->rslora ? "true" : "false");
    if (ag_adapter_plan(&planned, &s->job->model->d, &found.lora, arena, err)) return ag_err_prefix(err, "%s/%s", path, AG_PEFT_CONFIG_FILE);
    const char *where = first_difference(adapter, &planned);
    if (!where) return AG_OK;
    return ag_fail(err, AG_E_CONFIG, "%s: trains something else than the config says, first at %s (target_modules, use_dora, bias, modules_to_save, "
                   "rank_pattern or alpha_pattern differ). Resume with the keys it was made with, or start anew", path, where);
}

static ag_status load_log(ag_run_state *s, ag_progress *progress, const char *path, ag_arena *arena, ag_err *err)
{
    ag_trainer_state state;
    AG_TRY(ag_trainer_state_load(&state, path, arena, err));
    const ag_train_config *c = s->job->config;
    progress->step = state.global_step;
    if (state.train_batch_size != c->batch_size)
        ag_log(AG_LOG_WARN, "%s: was made with batch_size %lld, the config says %lld: the run goes on at another place in the data", path,
               (long long)state.train_batch_size, (long long)c->batch_size);
    const int64_t n_steps = s->job->train.sampler->n_steps;
    s->n_log = 0;
    for (size_t i = 0; i < state.n_log && s->n_log < n_steps; i++) {
        const ag_trainer_log *e = &state.log[i];
        if (isnan(e->loss) || e->step > progress->step) continue;
        s->log[s->n_log++] = (ag_log_entry){.step = e->step, .loss = e->loss, .grad_norm = e->grad_norm, .lr = e->learning_rate, .epoch = e->epoch};
    }
    return AG_OK;
}

static ag_status load_files(ag_run_state *s, ag_progress *progress, const char *path, ag_arena *arena, ag_err *err)
{
    const ag_train_config *c = s->job->config;
    AG_TRY(check_adapter_config(s, path, arena, err));
    AG_TRY(load_log(s, progress, path, arena, err));
    AG_TRY(ag_peft_read_weights(s->params, &s->job->adapter, s->job->model, path, NULL, err));
    ag_optimizer_state optimizer = ag_optimizer_view(&s->optimizer, c->learning_rate, 0, arena);
    AG_TRY(ag_optimizer_load(&optimizer, path, progress->step, err));
    progress->n_updates = optimizer.n_updates;
    ag_scheduler_state scheduler = {.n_groups = s->optimizer.n_groups};
    AG_TRY(ag_scheduler_load(&scheduler, path, progress->step, err));
    if (scheduler.base_lr != c->learning_rate)
        ag_log(AG_LOG_WARN, "%s: had learning_rate %g; the run goes on with the config's %g", path, scheduler.base_lr, c->learning_rate);
    return AG_OK;
}

ag_status ag_checkpoint_load(ag_run_state *s, ag_progress *progress, const char *path, ag_err *err)
{
    ag_arena arena = {0};
    ag_status status = load_files(s, progress, path, &arena, err);
    ag_arena_free(&arena);
    return status;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */
enum { N_FIELDS = 6 };

/* agoge_resume.json, where it is there, must speak of this step. A Trainer's checkpoint has none: the position follows from the step. */
static ag_status check_sidecar(const char *path, int64_t step, ag_arena *arena, ag_err *err)
{
    enum { MOST_BYTES = 4 << 20 };
    const char *file = ag_path_join(arena, path, SIDECAR);
    if (!ag_path_is_file(file)) return AG_OK;
    json_t *root;
    int64_t global_step = -1, position = -1;
    AG_TRY(ag_json_load(&root, file, MOST_BYTES, err));
    ag_status status = ag_json_need_int(root, "global_step", step, step, &global_step, file, err);
    if (!status) status = ag_json_need_int(root, "sampler_position", 0, INT64_MAX, &position, file, err);
    ag_json_free(&root);
    return status;
}

/* What an equivalent resume lacks, by name; the log says why. AG_E_CONFIG where the checkpoint and the config contradict each other:
 * that is no fault of the checkpoint. */
static ag_status find_missing(const char *missing[N_FIELDS], size_t *n, ag_run_state *s, const char *path, int64_t step, ag_err *err)
{
    ag_arena arena = {0};
    ag_trainer_rng rng;
    ag_scheduler_state scheduler = {.n_groups = s->optimizer.n_groups};
    ag_progress progress = {0};
    ag_err why;
    *n = 0;
    ag_status status = check_adapter_config(s, path, &arena, &why);
    if (status == AG_E_CONFIG) {
        if (err) *err = why;
        goto out;
    }
    ag_optimizer_state optimizer = ag_optimizer_view(&s->optimizer, s->job->config->learning_rate, 0, &arena);
    const ag_status weights = status ? status : ag_peft_read_weights(s->params, &s->job->adapter, s->job->model, path, NULL, &why);
    const struct {
        const char *field;
        ag_status status;
    } fields[N_FIELDS] = {
        {"adapter_weights", weights},
        {"global_step", load_log(s, &progress, path, &arena, &why)},
        {"optimizer", ag_optimizer_load(&optimizer, path, step, &why)},
        {"scheduler", ag_scheduler_load(&scheduler, path, step, &why)},
        {"sampler_position", check_sidecar(path, step, &arena, &why)},
        {"rng", ag_trainer_rng_load(&rng, path, &why)},
    };
    status = AG_OK;
    for (int i = 0; i < N_FIELDS; i++)
        if (fields[i].status || (i == 1 && progress.step != step)) missing[(*n)++] = fields[i].field;
out:
    ag_arena_free(&arena);
    return status;
}

static const char *listed(const char *const *words, size_t n, ag_arena *arena)
{
    const char *text = "";
    for (size_t i = 0; i < n; i++) text = ag_arena_printf(arena, "%s%s%s", text, i ? ", " : "", words[i]);
    return text;
}

typedef struct {
    const char *missing[N_FIELDS];
    size_t n;
} lack;

static ag_status choose_latest(const char **path, ag_run_state *s, const ag_run_scan *scan, const char *run_dir, ag_arena *arena,
                               ag_err *err)
{
    lack *lacks = ag_arena_array(arena, scan->n, sizeof *lacks);
    for (size_t i = scan->n; i-- > 0;) {
        const ag_checkpoint_entry *entry = &scan->entries[i];
        if (entry->lacks) continue;
        const char *dir = ag_path_join(arena, run_dir, entry->name);
        AG_TRY(find_missing(lacks[i].missing, &lacks[i].n, s, dir, entry->step, err));
        if (lacks[i].n > 0) continue;
        *path = dir;
        for (size_t k = i + 1; k < scan->n; k++) {
            const ag_checkpoint_entry *newer = &scan->entries[k];
            if (newer->lacks || newer->is_link) continue;
            ag_log(AG_LOG_WARN, "%s/%s cannot be gone on from as if the run had not stopped: it lacks %s", run_dir, newer->name,
                   listed(lacks[k].missing, lacks[k].n, arena));
            AG_TRY(ag_quarantine_move(run_dir, newer->name, AG_QUARANTINE_NOT_EQUIVALENT, lacks[k].missing, lacks[k].n, err));
        }
        return AG_OK;
    }
    const lack *newest = &lacks[scan->latest - scan->entries];
    *path = ag_path_join(arena, run_dir, scan->latest->name);
    ag_log(AG_LOG_WARN, "%s: this resume is not equivalent to a run that never stopped; the checkpoint lacks %s", *path,
           listed(newest->missing, newest->n, arena));
    return AG_OK;
}

ag_status ag_checkpoint_choose(const char **path, ag_run_state *state, const char *run_dir, ag_arena *arena, ag_err *err)
{
    const ag_train_config *config = state->job->config;
    *path = NULL;
    if (config->resume_checkpoint_path) {
        char *dir;
        AG_TRY(ag_path_existing_dir(&dir, config->resume_checkpoint_path, arena, err));
        if (ag_checkpoint_step(ag_path_dir(arena, dir), ag_path_base(dir)) < 0)
            return ag_fail(err, AG_E_NOT_FOUND, "%s: is no whole checkpoint (checkpoint-<step> with trainer_state.json, %s and %s, and no "
                           ".bin or .ckpt weights below it); give another resume_checkpoint_path", dir, AG_PEFT_CONFIG_FILE,
                           AG_PEFT_WEIGHTS_FILE);
        *path = dir;
        return AG_OK;
    }
    if (!config->resume_from_latest_checkpoint) return AG_OK;
    ag_run_scan scan;
    AG_TRY(ag_run_scan_make(&scan, run_dir, false, arena, err));
    if (scan.latest) return choose_latest(path, state, &scan, run_dir, arena, err);
    ag_log(AG_LOG_INFO, "%s: there is no checkpoint to resume from; starting anew", run_dir);
    return AG_OK;
}
