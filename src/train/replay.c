#include "train/replay.h"

#include "adapter/peft_io.h"
#include "base/fs.h"
#include "train/engine.h"

#include <stdio.h>
#include <string.h>

/* ---- the environment ------------------------------------------------------------------------------------------------- */
static void note(ag_replay_result *result, const char *what, const char *recorded, const char *here, bool can_matter)
{
    if (!recorded || !here || strcmp(recorded, here) == 0) return;
    ag_replay_difference *more = ag_arena_array(&result->arena, result->n_differences + 1, sizeof *more);
    if (result->n_differences) memcpy(more, result->differences, result->n_differences * sizeof *more);
    more[result->n_differences++] = (ag_replay_difference){ag_arena_strdup(&result->arena, what), ag_arena_strdup(&result->arena, recorded),
                                                           ag_arena_strdup(&result->arena, here), can_matter};
    result->differences = more;
}

static const char *text_in(const json_t *object, const char *key) { return json_string_value(json_object_get(object, key)); }

/* Bytes that went in: what else could make the same program differ. */
static ag_status compare_inputs(ag_replay_result *result, const ag_replay_record *r, const ag_train_job *job, ag_err *err)
{
    ag_sha256 digest;
    AG_TRY(ag_sha256_file(&digest, job->config->dataset_file, err));
    note(result, "dataset", text_in(json_object_get(r->manifest, "dataset"), "sha256"), digest.hex, true);
    const json_t *files = json_object_get(json_object_get(r->manifest, "model_metadata"), "files_sha256");
    const char *name, *model = job->config->model_path;
    json_t *recorded;
    json_object_foreach((json_t *)files, name, recorded)
    {
        const char *path = ag_path_is_dir(model) ? ag_path_join(&result->arena, model, name) : model;
        if (strchr(name, '/') || !json_is_string(recorded)) continue;
        if (!ag_path_is_file(path)) {
            note(result, ag_arena_printf(&result->arena, "base model: %s", name), json_string_value(recorded), "not there", true);
            continue;
        }
        AG_TRY(ag_sha256_file(&digest, path, err));
        note(result, ag_arena_printf(&result->arena, "base model: %s", name), json_string_value(recorded), digest.hex, true);
    }
    return AG_OK;
}

static void compare_environment(ag_replay_result *result, const ag_replay_record *r, const ag_train_job *job)
{
    const json_t *environment = json_object_get(r->manifest, "environment"), *libraries = json_object_get(environment, "libraries");
    const json_t *report = json_object_get(json_object_get(r->manifest, "metrics"), "cpu_report");
    const json_t *threads = json_object_get(report, "threads");
    char recorded[32], here[32];
    note(result, "numerics", text_in(report, "numerics"), ag_cpu_numerics_name(job->backend->level), true);
    note(result, "processor", text_in(report, "processor"), ag_cpu_name(), false);
    if (json_is_integer(threads)) {
        snprintf(recorded, sizeof recorded, "%lld", (long long)json_integer_value(threads));
        snprintf(here, sizeof here, "%d", job->backend->n_threads);
        note(result, "threads", recorded, here, false);
    }
    const ag_run_record *me = job->record;
    if (!me) return;
    note(result, "agoge version", text_in(environment, "agoge_version"), me->version, true);
    note(result, "agoge commit", text_in(environment, "agoge_commit"), me->commit, true);
    note(result, "compiler", text_in(environment, "compiler"), me->compiler, true);
    note(result, "system", text_in(environment, "system"), me->system, false);
    for (size_t i = 0; i < me->n_libraries; i++)
        note(result, me->libraries[i].name, text_in(libraries, me->libraries[i].name), me->libraries[i].version, false);
}

/* ---- steps ----------------------------------------------------------------------------------------------------------- */
static const ag_replay_line *line_of(const ag_replay_record *r, int64_t step)
{
    for (size_t lo = 0, hi = r->n_lines; lo < hi;) {
        const size_t mid = lo + (hi - lo) / 2;
        if (r->lines[mid].step == step) return &r->lines[mid];
        if (r->lines[mid].step < step) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

/* The same bits: no two numbers are "close enough". */
static bool same_bits(double a, double b) { return memcmp(&a, &b, sizeof a) == 0; }

static void differs(ag_replay_result *result, const ag_replay_step *step, const char *what)
{
    if (result->first) return;
    result->first = step;
    result->first_what = what;
}

static ag_status compare_adapter(ag_replay_result *result, ag_replay_step *s, const ag_replay_record *r, const ag_engine *e,
                                 float *recorded, ag_err *err)
{
    const size_t bytes = e->adapter.n_params * sizeof(float);
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%lld", (long long)s->step);
    if (ag_checkpoint_step(r->files.checkpoints, name) != s->step) return AG_OK;
    AG_TRY(ag_peft_read_weights(recorded, &e->adapter, e->job->model, ag_path_join(&result->arena, r->files.checkpoints, name), NULL, err));
    s->has_checkpoint = true;
    s->adapter = ag_sha256_bytes(e->state.params, bytes);
    s->recorded_adapter = ag_sha256_bytes(recorded, bytes);
    s->is_same_adapter = strcmp(s->adapter.hex, s->recorded_adapter.hex) == 0;
    result->n_checkpoints++;
    if (!s->is_same_adapter) differs(result, s, "adapter");
    return AG_OK;
}

static ag_status replay_step(ag_replay_result *result, const ag_replay_record *r, ag_engine *e, float *recorded, ag_err *err)
{
    ag_engine_taken taken;
    AG_TRY(ag_engine_step(e, &taken, err));
    ag_replay_step *s = &result->steps[result->n++];
    *s = (ag_replay_step){.step = taken.step, .loss = taken.done.loss, .grad_norm = taken.done.grad_norm};
    const ag_replay_line *line = line_of(r, taken.step);
    if (line) {
        s->is_recorded = true;
        s->recorded_loss = line->loss;
        s->recorded_grad_norm = line->grad_norm;
        const bool same_loss = same_bits(line->loss, s->loss), same_norm = same_bits(line->grad_norm, s->grad_norm);
        s->is_same = same_loss && same_norm;
        result->n_compared++;
        if (!s->is_same) differs(result, s, same_loss ? "grad_norm" : "loss");
    }
    return compare_adapter(result, s, r, e, recorded, err);
}

static ag_status replay(ag_replay_result *result, const ag_replay_record *r, ag_engine *e, int64_t from, int64_t n_steps,
                        ag_replay_progress *progress, void *user, ag_err *err)
{
    if (from + n_steps > e->n_steps)
        return ag_fail(err, AG_E_CONFIG, "the run has %lld steps; %lld behind step %lld are not there, ask for at most %lld",
                       (long long)e->n_steps, (long long)n_steps, (long long)from, (long long)(e->n_steps - from));
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%lld", (long long)from);
    if (from > 0)
        AG_TRY(ag_engine_resume(e, ag_path_join(&result->arena, r->files.checkpoints, name), err));
    else
        AG_TRY(ag_engine_begin(e, err));
    void *recorded;
    const size_t bytes = e->adapter.n_params * sizeof(float);
    AG_TRY(ag_pages_alloc(&recorded, bytes, "the recorded adapter", err));
    ag_status status = AG_OK;
    for (int64_t i = 0; i < n_steps && !status; i++) {
        status = replay_step(result, r, e, recorded, err);
        if (!status && progress) progress(user, &result->steps[result->n - 1]);
    }
    ag_pages_free(recorded, bytes);
    if (!status && result->n_compared + result->n_checkpoints == 0)
        status = ag_fail(err, AG_E_NOT_FOUND,
                         "%s: has no line for the steps %lld to %lld, and there is no checkpoint behind them, so nothing was compared",
                         r->files.metrics, (long long)from + 1, (long long)(from + n_steps));
    return status;
}

ag_status ag_replay_run(ag_replay_result *result, const ag_replay_record *record, const ag_train_job *job, int64_t from, int64_t n_steps,
                        ag_replay_progress *progress, void *user, ag_err *err)
{
    ag_engine engine;
    *result = (ag_replay_result){0};
    if (n_steps < 1 || n_steps > job->train.sampler->n_steps)
        return ag_fail(err, AG_E_CONFIG, "the run has %lld steps; ask for 1 to %lld", (long long)job->train.sampler->n_steps,
                       (long long)job->train.sampler->n_steps);
    result->steps = ag_arena_array(&result->arena, (size_t)n_steps, sizeof *result->steps);
    compare_environment(result, record, job);
    AG_TRY(compare_inputs(result, record, job, err));
    AG_TRY(ag_engine_open(&engine, job, err));
    const ag_status status = replay(result, record, &engine, from, n_steps, progress, user, err);
    ag_engine_close(&engine);
    return status;
}

void ag_replay_result_free(ag_replay_result *result)
{
    ag_arena_free(&result->arena);
    *result = (ag_replay_result){0};
}
