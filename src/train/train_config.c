#define _GNU_SOURCE
#include "train/train_config.h"

#include "base/fs.h"
#include "base/str.h"
#include "train/train_config_keys.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG_BYTES = 1 << 20 };

/* ---- what a key's own bounds cannot say ------------------------------------------------------------------------- */

static ag_status check_run_name(const ag_train_config *c, const char *name, ag_err *err)
{
    if (strcmp(c->run_name, ".") == 0 || strcmp(c->run_name, "..") == 0 || strchr(c->run_name, '/'))
        return ag_fail(err, AG_E_CONFIG,
                       "%s: 'run_name' must be one path component, found '%.80s'; set the folder with 'output_dir'", name,
                       c->run_name);
    for (const char *p = c->run_name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return ag_fail(err, AG_E_CONFIG, "%s: 'run_name' has a control character in it", name);
    return AG_OK;
}

static ag_status check_support(const ag_train_config *c, const char *name, ag_err *err)
{
    if (c->trust_remote_code)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: 'trust_remote_code' is true, but agoge runs no code that comes with a model; "
                       "set it to false",
                       name);
    if (!c->save_safetensors)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: 'save_safetensors' is false, but agoge writes no pickled weights; set it to true", name);
    return AG_OK;
}

static ag_status check_whole(ag_train_config *c, const char *name, ag_err *err)
{
    if (!c->model_id) return ag_fail(err, AG_E_CONFIG, "%s: the required key 'model_id' is missing", name);
    c->model_path = c->model_id;
    if (!c->dataset_path) return ag_fail(err, AG_E_CONFIG, "%s: the required key 'dataset_path' is missing", name);
    AG_TRY(check_run_name(c, name, err));
    AG_TRY(check_support(c, name, err));
    if (c->max_steps == 0)
        return ag_fail(err, AG_E_CONFIG, "%s: 'max_steps' must be -1 (the epochs decide) or at least 1, found 0", name);
    if (c->telemetry.profile_window.end_step < c->telemetry.profile_window.start_step)
        return ag_fail(err, AG_E_CONFIG, "%s: 'telemetry.profile_window.end_step' (%lld) is before 'start_step' (%lld)", name,
                       (long long)c->telemetry.profile_window.end_step, (long long)c->telemetry.profile_window.start_step);
    if (c->completion_only_loss && c->assistant_only_loss)
        return ag_fail(err, AG_E_CONFIG,
                       "%s: 'completion_only_loss' and 'assistant_only_loss' are both true; choose one: the first is "
                       "for 'text' rows, the second for 'messages' rows",
                       name);
    if (c->completion_only_loss && strcmp(c->dataset_text_field, "text") != 0)
        return ag_fail(err, AG_E_CONFIG, "%s: 'completion_only_loss' needs 'dataset_text_field: text', found '%.80s'", name,
                       c->dataset_text_field);
    uint64_t shard_bytes;
    if (ag_byte_size_parse(&shard_bytes, c->max_shard_size, err)) return ag_err_prefix(err, "%s: 'max_shard_size'", name);
    c->run_dir = ag_path_join(&c->arena, c->output_dir, c->run_name);
    if (!c->logging_dir) c->logging_dir = ag_arena_printf(&c->arena, "runs/%s", c->run_name);
    return AG_OK;
}

ag_status ag_byte_size_parse(uint64_t *bytes, const char *text, ag_err *err)
{
    static const struct {
        const char *unit;
        uint64_t factor;
    } units[] = {
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"KiB", UINT64_C(1) << 10},
        {"MiB", UINT64_C(1) << 20},
        {"GiB", UINT64_C(1) << 30},
        {"TiB", UINT64_C(1) << 40},
        {"", 1},
    };
    size_t digits = strspn(text, "0123456789"), n_units = sizeof units / sizeof units[0];
    errno = 0;
    unsigned long long count = strtoull(text, NULL, 10);
    for (size_t i = 0; digits > 0 && !errno && i < n_units; i++)
        if (strcasecmp(text + digits, units[i].unit) == 0) {
            uint64_t product;
            if (count == 0 || __builtin_mul_overflow((uint64_t)count, units[i].factor, &product)) break;
            *bytes = product;
            return AG_OK;
        }
    return ag_fail(err, AG_E_CONFIG,
                   "a size must be a whole number above 0 with KB, MB, GB, TB, KiB, MiB, GiB, TiB or nothing behind it, "
                   "found '%.80s'",
                   text);
}

bool ag_train_config_computes_bf16(const ag_train_config *config)
{
    return config->load_in_4bit ? config->bnb_4bit_compute_dtype == AG_COMPUTE_DTYPE_BFLOAT16 : config->bf16;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

ag_status ag_train_config_parse(ag_train_config **out, const char *bytes, size_t n, const char *name, const char *const *sets,
                                size_t n_sets, ag_err *err)
{
    ag_train_config *config = calloc(1, sizeof *config);
    if (!config) ag_out_of_memory(sizeof *config);
    for (size_t i = 0; i < ag_n_config_rows; i++) ag_config_row_set_default(&ag_config_rows[i], config);
    config->overrides = ag_arena_array(&config->arena, n_sets, sizeof *config->overrides);
    ag_status status = ag_config_read_yaml(config, bytes, n, name, err);
    for (size_t i = 0; !status && i < n_sets; i++) status = ag_config_read_override(config, sets[i], err);
    if (!status) status = check_whole(config, name, err);
    if (status) ag_train_config_free(&config);
    *out = config;
    return status;
}

void ag_train_config_free(ag_train_config **config)
{
    if (!*config) return;
    ag_arena arena = (*config)->arena;
    ag_arena_free(&arena);
    free(*config);
    *config = NULL;
}

/* An existing file named in the YAML: "~" and absolute paths follow the common rules; a relative one starts at the folder
 * of the YAML, and there ".." is allowed, because the shipped configs say "../datasets/…". */
static ag_status resolve_data_file(const char **out, ag_train_config *config, const char *key, const char *written, ag_err *err)
{
    char *file = NULL;
    if (written[0] == '/' || written[0] == '~') {
        if (ag_path_existing_file(&file, written, &config->arena, err))
            return ag_err_prefix(err, "%s: '%s'", config->path, key);
        *out = file;
        return AG_OK;
    }
    const char *joined = ag_path_join(&config->arena, ag_path_dir(&config->arena, config->path), written);
    char *real = realpath(joined, NULL);
    if (!real && errno == ENOENT)
        return ag_fail(err, AG_E_NOT_FOUND,
                       "%s: '%s' is '%.200s', but %.300s does not exist; a relative path starts at the folder of "
                       "the config",
                       config->path, key, written, joined);
    if (!real) return ag_fail_errno(err, errno, "%s: '%s' is '%.200s'", config->path, key, written);
    file = ag_arena_strdup(&config->arena, real);
    free(real);
    struct stat st;
    if (stat(file, &st) || !S_ISREG(st.st_mode))
        return ag_fail(err, AG_E_CONFIG, "%s: '%s' must be a file, and %.300s is none", config->path, key, file);
    *out = file;
    return AG_OK;
}

static ag_status resolve_paths(ag_train_config *config, ag_err *err)
{
    AG_TRY(resolve_data_file(&config->dataset_file, config, "dataset_path", config->dataset_path, err));
    if (config->eval_dataset_path)
        AG_TRY(resolve_data_file(&config->eval_dataset_file, config, "eval_dataset_path", config->eval_dataset_path, err));
    char *checked;
    if (ag_path_check(&checked, config->output_dir, &config->arena, err))
        return ag_err_prefix(err, "%s: 'output_dir'", config->path);
    config->run_dir = ag_path_join(&config->arena, checked, config->run_name);
    if (ag_path_check(&checked, config->logging_dir, &config->arena, err))
        return ag_err_prefix(err, "%s: 'logging_dir'", config->path);
    config->logging_dir = checked;
    return AG_OK;
}

ag_status ag_train_config_load(ag_train_config **out, const char *path, const char *const *sets, size_t n_sets, ag_err *err)
{
    ag_arena scratch = {0};
    char *file = NULL, *text = NULL;
    size_t n = 0;
    *out = NULL;
    ag_status status = ag_path_existing_file(&file, path, &scratch, err);
    if (!status) status = ag_file_read(&text, &n, file, MAX_CONFIG_BYTES, &scratch, err);
    if (!status) status = ag_train_config_parse(out, text, n, path, sets, n_sets, err);
    if (!status) {
        (*out)->path = ag_arena_strdup(&(*out)->arena, file);
        status = resolve_paths(*out, err);
        if (status) ag_train_config_free(out);
    }
    ag_arena_free(&scratch);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

/* An empty list of a key whose default is null is null. */
static void write_list(ag_json_writer *w, const char *key, const ag_text_list *list, bool has_default)
{
    if (list->is_pattern || (list->n == 0 && !has_default)) {
        ag_jw_string(w, key, list->is_pattern ? list->item[0] : NULL);
        return;
    }
    ag_jw_array(w, key);
    for (size_t i = 0; i < list->n; i++) ag_jw_string(w, NULL, list->item[i]);
    ag_jw_end(w);
}

static void write_ints(ag_json_writer *w, const char *key, const ag_int_list *list)
{
    if (list->n == 0) {
        ag_jw_null(w, key);
        return;
    }
    ag_jw_array(w, key);
    for (size_t i = 0; i < list->n; i++) ag_jw_int(w, NULL, list->item[i]);
    ag_jw_end(w);
}

static void write_map(ag_json_writer *w, const char *key, const ag_lora_override_list *map)
{
    if (map->n == 0) {
        ag_jw_null(w, key);
        return;
    }
    ag_jw_object(w, key);
    for (size_t i = 0; i < map->n; i++) {
        const double value = map->item[i].value;
        if (value == (double)(int64_t)value)
            ag_jw_int(w, map->item[i].name, (int64_t)value);
        else
            ag_jw_double(w, map->item[i].name, value);
    }
    ag_jw_end(w);
}

static void write_row(const ag_train_config *config, const ag_config_row *row, ag_json_writer *w)
{
    const void *member = (const char *)config + row->offset;
    const char *dot = strrchr(row->key, '.'), *key = dot ? dot + 1 : row->key;
    switch (row->kind) {
    case AG_CONFIG_TEXT: ag_jw_string(w, key, *(const char *const *)member); break;
    case AG_CONFIG_FLAG: ag_jw_bool(w, key, *(const bool *)member); break;
    case AG_CONFIG_INT: ag_jw_int(w, key, *(const int64_t *)member); break;
    case AG_CONFIG_COUNT:
        if (*(const int64_t *)member == 0)
            ag_jw_null(w, key);
        else
            ag_jw_int(w, key, *(const int64_t *)member);
        break;
    case AG_CONFIG_REAL: ag_jw_double(w, key, *(const double *)member); break;
    case AG_CONFIG_CHOICE: {
        ag_arena scratch = {0};
        ag_jw_string(w, key, ag_config_word(row->text, (size_t) * (const int *)member, &scratch));
        ag_arena_free(&scratch);
        break;
    }
    case AG_CONFIG_OPTION:
        if (*(const double *)member == 0)
            ag_jw_null(w, key);
        else
            ag_jw_double(w, key, *(const double *)member);
        break;
    case AG_CONFIG_LIST:
    case AG_CONFIG_NAMES: write_list(w, key, member, row->text != NULL); break;
    case AG_CONFIG_INTS: write_ints(w, key, member); break;
    case AG_CONFIG_MAP: write_map(w, key, member); break;
    }
}

void ag_train_config_write(const ag_train_config *config, ag_json_writer *w, const char *key)
{
    ag_train_config resolved = *config; /* a view: nothing in it is freed */
    if (config->dataset_file) resolved.dataset_path = config->dataset_file;
    if (config->eval_dataset_file) resolved.eval_dataset_path = config->eval_dataset_file;
    ag_jw_object(w, key);
    for (int section = 0; section < AG_N_SECTIONS; section++) {
        if (section != AG_SECTION_TOP) ag_jw_object(w, ag_config_sections[section]);
        for (size_t i = 0; i < ag_n_config_rows; i++)
            if ((int)ag_config_rows[i].section == section) write_row(&resolved, &ag_config_rows[i], w);
        /* profile_window lies inside telemetry. */
        if (section != AG_SECTION_TOP && section != AG_SECTION_TELEMETRY) ag_jw_end(w);
    }
    ag_jw_end(w);
    ag_jw_end(w);
}

void ag_train_config_write_overrides(const ag_train_config *config, ag_json_writer *w, const char *key)
{
    ag_jw_array(w, key);
    for (size_t i = 0; i < config->n_overrides; i++) {
        ag_jw_object(w, NULL);
        ag_jw_string(w, "key", config->overrides[i].key);
        ag_jw_string(w, "value", config->overrides[i].value);
        ag_jw_end(w);
    }
    ag_jw_end(w);
}
