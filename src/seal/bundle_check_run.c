#include "seal/bundle_checks.h"

#include "seal/strict.h"

#include <string.h>

enum { MANIFEST_MAX_BYTES = 16 << 20, CONFIG_MAX_BYTES = 4 << 20, MAX_NESTING = 16 };

/* ---- the config's form -------------------------------------------------------------------------------------------------------
 * The keys that any training config has had, with what an absent one means, as JSON. Keys beyond these are allowed, since a config gains
 * keys with every version; but manifest and locked config must have the same ones with the same values. */
typedef struct {
    const char *section; /* "": the top */
    const char *key;
    ag_strict_kind kind;
    int flags;
    const char *fallback; /* NULL: the key must be there */
} config_key;

static const config_key config_keys[] = {
    {"", "model_id", AG_STRICT_TEXT, 0, NULL},
    {"", "revision", AG_STRICT_TEXT, AG_STRICT_NULLABLE, "null"},
    {"", "trust_remote_code", AG_STRICT_BOOL, 0, "false"},
    {"", "dataset_path", AG_STRICT_TEXT, 0, NULL},
    {"", "dataset_text_field", AG_STRICT_TEXT, 0, "\"text\""},
    {"", "output_dir", AG_STRICT_TEXT, 0, "\"adapters\""},
    {"", "run_name", AG_STRICT_TEXT, 0, "\"run\""},
    {"quantization", "load_in_4bit", AG_STRICT_BOOL, 0, "true"},
    {"quantization", "bnb_4bit_quant_type", AG_STRICT_TEXT, 0, "\"nf4\""},
    {"quantization", "bnb_4bit_compute_dtype", AG_STRICT_TEXT, 0, "\"bfloat16\""},
    {"quantization", "bnb_4bit_use_double_quant", AG_STRICT_BOOL, 0, "true"},
    {"training", "max_seq_length", AG_STRICT_POSITIVE, 0, "2048"},
    {"training", "batch_size", AG_STRICT_POSITIVE, 0, "1"},
    {"training", "gradient_accumulation_steps", AG_STRICT_POSITIVE, 0, "8"},
    {"training", "gradient_checkpointing", AG_STRICT_BOOL, 0, "true"},
    {"training", "learning_rate", AG_STRICT_NUMBER, 0, "0.0002"},
    {"training", "num_train_epochs", AG_STRICT_COUNT, 0, "1"},
    {"training", "bf16", AG_STRICT_BOOL, 0, "true"},
    {"training", "seed", AG_STRICT_COUNT, 0, "42"},
    {"training", "save_steps", AG_STRICT_COUNT, 0, "50"},
    {"training", "save_total_limit", AG_STRICT_COUNT, AG_STRICT_NULLABLE, "2"},
    {"training", "resume_from_latest_checkpoint", AG_STRICT_BOOL, 0, "false"},
    {"training", "resume_checkpoint_path", AG_STRICT_TEXT, AG_STRICT_NULLABLE, "null"},
    {"training", "completion_only_loss", AG_STRICT_BOOL, 0, "false"},
    {"lora", "lora_r", AG_STRICT_POSITIVE, 0, "16"},
    {"lora", "lora_alpha", AG_STRICT_NUMBER, 0, "32"},
    {"lora", "lora_dropout", AG_STRICT_NUMBER, 0, "0.05"},
    {"lora", "target_modules", AG_STRICT_TEXTS, 0, "[\"q_proj\",\"v_proj\"]"},
    {"lora", "target_modules_mode", AG_STRICT_TEXT, 0, "\"auto_common\""},
    {"runtime", "save_safetensors", AG_STRICT_BOOL, 0, "true"},
    {"runtime", "allow_unsafe_serialization", AG_STRICT_BOOL, 0, "false"},
    {"runtime", "max_shard_size", AG_STRICT_TEXT, 0, "\"4GB\""},
    {"runtime", "disk_free_warning_gb", AG_STRICT_NUMBER, 0, "20.0"},
    {"runtime", "checkpoint_disk_buffer_gb", AG_STRICT_NUMBER, 0, "8.0"},
    {"telemetry", "run_id", AG_STRICT_TEXT, AG_STRICT_NULLABLE, "null"},
    {"telemetry", "emit_markers", AG_STRICT_BOOL, 0, "true"},
    {"telemetry", "profile_window", AG_STRICT_OBJECT, 0, "{}"},
};
static const char *const sections[] = {"quantization", "training", "lora", "runtime", "telemetry"};

/* Adds what an absent key means, and checks the kinds. */
static ag_status normalize(json_t *config, const char *where, ag_err *err)
{
    if (!json_is_object(config)) return ag_fail(err, AG_E_FORMAT, "%s must be an object", where);
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        const json_t *section = json_object_get(config, sections[i]);
        if (!section) json_object_set_new(config, sections[i], json_object());
        else if (!json_is_object(section)) return ag_fail(err, AG_E_FORMAT, "%s: '%s' must be an object", where, sections[i]);
    }
    for (size_t i = 0; i < sizeof config_keys / sizeof *config_keys; i++) {
        const config_key *k = &config_keys[i];
        json_t *section = *k->section ? json_object_get(config, k->section) : config;
        if (!json_object_get(section, k->key) && k->fallback) {
            json_t *fallback;
            AG_TRY(ag_json_parse(&fallback, k->fallback, strlen(k->fallback), k->key, err));
            json_object_set_new(section, k->key, fallback);
        }
        const ag_strict_field field = {k->key, k->kind, k->flags};
        if (ag_strict_subset(section, *k->section ? k->section : "the config", &field, 1, err)) return ag_err_prefix(err, "%s", where);
    }
    return AG_OK;
}

/* No remote code, and a base that cannot change. */
static void check_policy(ag_bundle *b, const json_t *config, const char *path, const char *where)
{
    if (json_is_true(json_object_get(config, "trust_remote_code")))
        ag_bundle_report_add(b->report, AG_BUNDLE_LOCKED_CONFIG, path,
                             "%s enables trust_remote_code; what foreign code does cannot be verified, train without it", where);
    const char *revision = json_string_value(json_object_get(config, "revision"));
    if (!revision || !ag_is_immutable_revision(revision))
        ag_bundle_report_add(b->report, AG_BUNDLE_LOCKED_CONFIG, path,
                             "%s pins no immutable revision (40 to 64 hex digits) of the base, found %.100s; train with one", where,
                             revision ? revision : "none");
}

/* ---- that both agree ------------------------------------------------------------------------------------------------- */
static bool is_equal(const json_t *a, const json_t *b, int depth)
{
    if (depth > MAX_NESTING) return false;
    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) == json_integer_value(b)
                                                        : json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!is_equal(json_array_get(a, i), json_array_get(b, i), depth + 1)) return false;
        return true;
    }
    if (!json_is_object(a)) return json_equal(a, b);
    const char *key;
    json_t *value;
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !is_equal(value, other, depth + 1)) return false;
    }
    return true;
}

/* The first key, by name, whose values differ: "training.seed". NULL: they are equal. */
static const char *first_difference(ag_arena *arena, const json_t *a, const json_t *b, const char *prefix, int depth)
{
    const char *first = NULL, *key;
    json_t *value;
    const json_t *pair[2] = {a, b};
    for (int side = 0; side < 2; side++)
        json_object_foreach((json_t *)pair[side], key, value)
        {
            const json_t *other = json_object_get(pair[1 - side], key);
            if (other && is_equal(value, other, 0)) continue;
            const char *name = ag_arena_printf(arena, "%s%s%s", prefix, *prefix ? "." : "", key);
            if (json_is_object(value) && json_is_object(other) && depth < MAX_NESTING) {
                const char *inner = first_difference(arena, value, other, name, depth + 1);
                if (inner) name = inner;
            }
            if (!first || strcmp(name, first) < 0) first = name;
        }
    return first;
}

/* ---- the two files --------------------------------------------------------------------------------------------------- */
static void check_manifest_fields(ag_bundle *b, const json_t *root, const char *path)
{
    const char *timestamp = json_string_value(json_object_get(root, "timestamp"));
    if (!timestamp)
        ag_bundle_report_add(b->report, AG_BUNDLE_RUN_MANIFEST, path, "'timestamp' is missing or no string; bring the run's own manifest");
    else if (!ag_is_iso_timestamp(timestamp))
        ag_bundle_report_add(b->report, AG_BUNDLE_RUN_MANIFEST, path,
                             "'timestamp' is '%.80s', not an ISO-8601 time; bring the run's own manifest", timestamp);
    if (!json_is_object(json_object_get(root, "git")))
        ag_bundle_report_add(b->report, AG_BUNDLE_RUN_MANIFEST, path, "'git' is missing or no object; bring the run's own manifest");
    if (!json_is_object(json_object_get(root, "config")))
        ag_bundle_report_add(b->report, AG_BUNDLE_RUN_MANIFEST, path, "'config' is missing or no object; bring the run's own manifest");
}

static void compare_configs(ag_bundle *b, json_t *locked, json_t *ran)
{
    const char *locked_path = b->inventory.parts.locked_config, *manifest_path = b->inventory.parts.run_manifest;
    ag_err err;
    const bool locked_ok = !normalize(locked, "the locked config", &err);
    if (!locked_ok) ag_bundle_report_add(b->report, AG_BUNDLE_LOCKED_CONFIG, locked_path, "%s; lock the config that the run had", err.text);
    else check_policy(b, locked, locked_path, "the locked config");
    if (!json_is_object(ran)) return;
    const bool ran_ok = !normalize(ran, "the manifest's config", &err);
    if (!ran_ok) ag_bundle_report_add(b->report, AG_BUNDLE_LOCKED_CONFIG, manifest_path, "%s; bring the run's own manifest", err.text);
    else check_policy(b, ran, manifest_path, "the manifest's config");
    if (!locked_ok || !ran_ok) return;
    const char *difference = is_equal(locked, ran, 0) ? NULL : first_difference(&b->arena, locked, ran, "", 0);
    if (difference)
        ag_bundle_report_add(b->report, AG_BUNDLE_LOCKED_CONFIG, locked_path,
                             "'%.200s' is not what the run's manifest says; lock the config that the run had", difference);
    const char *revision = json_string_value(json_object_get(locked, "revision"));
    b->locked = (ag_bundle_locked){.is_read = true, .model_id = ag_arena_strdup(&b->arena, ag_strict_text(locked, "model_id")),
                                   .revision = revision ? ag_arena_strdup(&b->arena, revision) : NULL};
}

void ag_bundle_check_run(ag_bundle *b)
{
    json_t *manifest = ag_bundle_load_json(b, b->inventory.parts.run_manifest, MANIFEST_MAX_BYTES);
    json_t *locked = ag_bundle_load_json(b, b->inventory.parts.locked_config, CONFIG_MAX_BYTES);
    if (manifest) check_manifest_fields(b, manifest, b->inventory.parts.run_manifest);
    if (locked) compare_configs(b, locked, manifest ? json_object_get(manifest, "config") : NULL);
    ag_json_free(&manifest);
    ag_json_free(&locked);
}
