#include "train/config_record.h"

#include "train/train_config_keys.h"

#include <string.h>

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

static bool is_of_the_run(const ag_config_row *row)
{
    static const char *const keys[] = {"eval_dataset_path", "eval_steps", "eval_prompts", "eval_prompt_tokens",
                                       "resume_from_latest_checkpoint", "resume_checkpoint_path", "logging_dir"};
    if (row->section == AG_SECTION_TELEMETRY || row->section == AG_SECTION_PROFILE) return true;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(row->key, keys[i]) == 0) return true;
    return false;
}

static const json_t *section_of(const json_t *record, ag_config_section section)
{
    return section == AG_SECTION_TOP ? record : json_object_get(record, ag_config_sections[section]);
}

static bool is_known(ag_config_section section, const char *key)
{
    for (size_t i = 0; i < ag_n_config_rows; i++)
        if (ag_config_rows[i].section == section && strcmp(last_part(ag_config_rows[i].key), key) == 0) return true;
    for (int i = AG_SECTION_QUANTIZATION; section == AG_SECTION_TOP && i < AG_N_SECTIONS; i++)
        if (strcmp(ag_config_sections[i], key) == 0) return true;
    return false;
}

static ag_status check_keys(const json_t *record, const char *name, ag_err *err)
{
    static const ag_config_section sections[] = {AG_SECTION_TOP, AG_SECTION_QUANTIZATION, AG_SECTION_TRAINING, AG_SECTION_LORA,
                                                 AG_SECTION_RUNTIME};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)section_of(record, sections[i]), key, value) if (!is_known(sections[i], key)) return ag_fail(
            err, AG_E_UNSUPPORTED,
            "%s: the config has the key '%.80s', which this version does not know; use the version that the "
            "record names",
            name, key);
    }
    return AG_OK;
}

/* Every JSON value is a YAML value in flow style, so the file's own reader judges it. */
ag_status ag_train_config_from_record(ag_train_config **out, const json_t *record, const char *name, ag_err *err)
{
    *out = NULL;
    if (!json_is_object(record)) return ag_fail(err, AG_E_FORMAT, "%s: holds no config; give the run's own manifest", name);
    AG_TRY(check_keys(record, name, err));
    ag_str yaml = {0};
    for (size_t i = 0; i < ag_n_config_rows; i++) {
        const ag_config_row *row = &ag_config_rows[i];
        const json_t *value = json_object_get(section_of(record, row->section), last_part(row->key));
        if (!value || is_of_the_run(row)) continue;
        ag_json_writer w = {.out = &yaml, .indent = 0};
        ag_str_printf(&yaml, "%s: ", row->key);
        ag_jw_value(&w, NULL, value);
        ag_str_add_char(&yaml, '\n');
    }
    const ag_status status = ag_train_config_parse(out, yaml.text ? yaml.text : "", yaml.n, name, NULL, 0, err);
    ag_str_free(&yaml);
    return status;
}
