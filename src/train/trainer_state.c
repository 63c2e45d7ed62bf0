#include "train/trainer_state.h"

#include "base/fs.h"
#include "base/json.h"

#include <math.h>
#include <string.h>

enum { LARGEST_STATE_BYTES = 4 << 20 };
static const char FILE_NAME[] = "trainer_state.json";
static const int64_t MOST = INT64_C(1) << 53; /* Python and JSON agree on integers up to here */

/* ---- writing ---------------------------------------------------------------------------------------------------------------- */

static void write_optional(ag_json_writer *w, const char *key, double value)
{
    if (!isnan(value)) ag_jw_double(w, key, value);
}

static void write_log(ag_json_writer *w, const ag_trainer_state *s)
{
    ag_jw_array(w, "log_history");
    for (size_t i = 0; i < s->n_log; i++) {
        const ag_trainer_log *entry = &s->log[i];
        ag_jw_object(w, NULL);
        write_optional(w, "epoch", entry->epoch);
        write_optional(w, "eval_loss", entry->eval_loss);
        write_optional(w, "grad_norm", entry->grad_norm);
        write_optional(w, "learning_rate", entry->learning_rate);
        write_optional(w, "loss", entry->loss);
        ag_jw_int(w, "step", entry->step);
        ag_jw_end(w);
    }
    ag_jw_end(w);
}

/* The Trainer refuses a state without its control's own state. */
static void write_callbacks(ag_json_writer *w)
{
    ag_jw_object(w, "stateful_callbacks");
    ag_jw_object(w, "TrainerControl");
    ag_jw_object(w, "args");
    ag_jw_bool(w, "should_epoch_stop", false);
    ag_jw_bool(w, "should_evaluate", false);
    ag_jw_bool(w, "should_log", false);
    ag_jw_bool(w, "should_save", true);
    ag_jw_bool(w, "should_training_stop", false);
    ag_jw_end(w);
    ag_jw_object(w, "attributes");
    ag_jw_end(w);
    ag_jw_end(w);
    ag_jw_end(w);
}

ag_status ag_trainer_state_save(const ag_trainer_state *s, const char *dir, ag_err *err)
{
    ag_arena arena = {0};
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    if (s->best_global_step >= 0) ag_jw_int(&w, "best_global_step", s->best_global_step);
    else ag_jw_null(&w, "best_global_step");
    ag_jw_double(&w, "best_metric", s->best_metric); /* NaN goes out as null */
    ag_jw_string(&w, "best_model_checkpoint", s->best_model_checkpoint);
    ag_jw_double(&w, "epoch", s->epoch);
    ag_jw_int(&w, "eval_steps", s->eval_steps);
    ag_jw_int(&w, "global_step", s->global_step);
    ag_jw_bool(&w, "is_hyper_param_search", false);
    ag_jw_bool(&w, "is_local_process_zero", true);
    ag_jw_bool(&w, "is_world_process_zero", true);
    write_log(&w, s);
    ag_jw_int(&w, "logging_steps", s->logging_steps);
    ag_jw_int(&w, "max_steps", s->max_steps);
    ag_jw_int(&w, "num_input_tokens_seen", s->num_input_tokens_seen);
    ag_jw_int(&w, "num_train_epochs", s->num_train_epochs);
    ag_jw_int(&w, "save_steps", s->save_steps);
    write_callbacks(&w);
    ag_jw_double(&w, "total_flos", s->total_flos);
    ag_jw_int(&w, "train_batch_size", s->train_batch_size);
    ag_jw_null(&w, "trial_name");
    ag_jw_null(&w, "trial_params");
    ag_jw_end(&w);
    ag_str_add_char(&text, '\n');
    ag_status status = ag_file_publish(ag_path_join(&arena, dir, FILE_NAME), text.text, text.n, err);
    ag_str_free(&text);
    ag_arena_free(&arena);
    return status;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------------- */

static ag_status check_keys(const json_t *root, const char *path, ag_err *err)
{
    static const char *const known[] = {
        "best_global_step", "best_metric", "best_model_checkpoint", "epoch", "eval_steps", "global_step", "is_hyper_param_search",
        "is_local_process_zero", "is_world_process_zero", "log_history", "logging_steps", "max_steps", "num_input_tokens_seen",
        "num_train_epochs", "save_steps", "stateful_callbacks", "total_flos", "train_batch_size", "trial_name", "trial_params"};
    if (!json_is_object(root)) return ag_fail(err, AG_E_FORMAT, "%s: a JSON object was expected", path);
    for (void *at = json_object_iter((json_t *)(uintptr_t)root); at; at = json_object_iter_next((json_t *)(uintptr_t)root, at)) {
        const char *key = json_object_iter_key(at);
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known && !found; i++) found = strcmp(key, known[i]) == 0;
        if (!found) return ag_fail(err, AG_E_FORMAT, "%s: the Trainer knows no key '%.60s' here and would refuse the file", path, key);
    }
    return AG_OK;
}

/* Steps that the Trainer's arguments may also give as a fraction. */
static ag_status get_steps(const json_t *root, const char *key, int64_t *out, const char *path, ag_err *err)
{
    double value = 0;
    AG_TRY(ag_json_get_double(root, key, &value, path, err));
    *out = value >= 0 && value <= (double)MOST ? (int64_t)value : 0;
    return AG_OK;
}

static ag_status read_entry(ag_trainer_log *entry, const json_t *object, const char *path, ag_err *err)
{
    *entry = (ag_trainer_log){.epoch = NAN, .loss = NAN, .grad_norm = NAN, .learning_rate = NAN, .eval_loss = NAN};
    AG_TRY(ag_json_get_int(object, "step", 0, MOST, &entry->step, path, err));
    AG_TRY(ag_json_get_double(object, "epoch", &entry->epoch, path, err));
    AG_TRY(ag_json_get_double(object, "loss", &entry->loss, path, err));
    AG_TRY(ag_json_get_double(object, "grad_norm", &entry->grad_norm, path, err));
    AG_TRY(ag_json_get_double(object, "learning_rate", &entry->learning_rate, path, err));
    return ag_json_get_double(object, "eval_loss", &entry->eval_loss, path, err);
}

static ag_status read_log(ag_trainer_state *s, const json_t *root, const char *path, ag_arena *arena, ag_err *err)
{
    const json_t *list = json_object_get(root, "log_history");
    if (!list) return AG_OK;
    if (!json_is_array(list)) return ag_fail(err, AG_E_FORMAT, "%s: 'log_history' must be an array", path);
    s->n_log = json_array_size(list);
    ag_trainer_log *log = ag_arena_array(arena, s->n_log, sizeof *log);
    for (size_t i = 0; i < s->n_log; i++) AG_TRY(read_entry(&log[i], json_array_get(list, i), path, err));
    s->log = log;
    return AG_OK;
}

static ag_status read_state(ag_trainer_state *s, const json_t *root, const char *path, ag_arena *arena, ag_err *err)
{
    const char *best = NULL;
    AG_TRY(check_keys(root, path, err));
    AG_TRY(ag_json_need_int(root, "global_step", 0, MOST, &s->global_step, path, err));
    AG_TRY(ag_json_need_int(root, "train_batch_size", 1, MOST, &s->train_batch_size, path, err));
    AG_TRY(ag_json_get_int(root, "max_steps", 0, MOST, &s->max_steps, path, err));
    AG_TRY(ag_json_get_int(root, "num_train_epochs", 0, MOST, &s->num_train_epochs, path, err));
    AG_TRY(ag_json_get_int(root, "num_input_tokens_seen", 0, MOST, &s->num_input_tokens_seen, path, err));
    AG_TRY(get_steps(root, "logging_steps", &s->logging_steps, path, err));
    AG_TRY(get_steps(root, "eval_steps", &s->eval_steps, path, err));
    AG_TRY(get_steps(root, "save_steps", &s->save_steps, path, err));
    AG_TRY(ag_json_get_double(root, "epoch", &s->epoch, path, err));
    AG_TRY(ag_json_get_double(root, "total_flos", &s->total_flos, path, err));
    AG_TRY(ag_json_get_double(root, "best_metric", &s->best_metric, path, err));
    AG_TRY(ag_json_get_int(root, "best_global_step", 0, MOST, &s->best_global_step, path, err));
    AG_TRY(ag_json_get_string(root, "best_model_checkpoint", &best, path, err));
    if (best) s->best_model_checkpoint = ag_arena_strdup(arena, best);
    return read_log(s, root, path, arena, err);
}

ag_status ag_trainer_state_load(ag_trainer_state *s, const char *dir, ag_arena *arena, ag_err *err)
{
    *s = (ag_trainer_state){.best_metric = NAN, .best_global_step = -1};
    const char *path = ag_path_join(arena, dir, FILE_NAME);
    ag_map map;
    AG_TRY(ag_map_open_no_link(&map, path, err));
    json_t *root = NULL;
    ag_status status = map.n <= LARGEST_STATE_BYTES
                           ? ag_json_parse_nan(&root, (const char *)map.bytes, map.n, path, err)
                           : ag_fail(err, AG_E_FORMAT, "%s has %zu bytes; at most %d are read", path, map.n, LARGEST_STATE_BYTES);
    ag_map_close(&map);
    if (!status) status = read_state(s, root, path, arena, err);
    ag_json_free(&root);
    return status;
}
