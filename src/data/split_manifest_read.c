#include "data/split_manifest.h"

#include <stdlib.h>
#include <string.h>

/* ---- fields of a schema that forbids what it does not know ------------------------------------------------------- */
typedef struct {
    const char *name; /* of the file */
    ag_err *err;
} place;

static ag_status wrong(const place *at, const char *where, const char *what, const char *expected)
{
    return ag_fail(at->err, AG_E_FORMAT,
                   "%s: %s%s%s must be %s; the file is no split manifest of version " AG_SPLIT_SCHEMA
                   ", freeze the split again",
                   at->name, where, *where && *what ? "." : "", what, expected);
}

/* Every key of `keys` (divided by spaces) is there, those with a '?' before them may be missing, and there is no other. */
static ag_status check_keys(const json_t *object, const char *where, const char *keys, const place *at)
{
    if (!json_is_object(object)) return wrong(at, where, "", "an object");
    size_t n_found = 0;
    char word[64];
    for (const char *from = keys; *from;) {
        const size_t n = strcspn(from, " ");
        const bool is_optional = *from == '?';
        AG_ASSERT(n < sizeof word);
        memcpy(word, from + is_optional, n - is_optional);
        word[n - is_optional] = 0;
        from += n + (from[n] == ' ');
        const bool found = json_object_get(object, word) != NULL;
        n_found += found;
        if (!found && !is_optional)
            return ag_fail(at->err, AG_E_FORMAT,
                           "%s: %s has no '%s'; the file is damaged or of another version, freeze the split again", at->name,
                           where, word);
    }
    if (n_found == json_object_size(object)) return AG_OK;
    return ag_fail(at->err, AG_E_FORMAT,
                   "%s: %s has keys that are none of %s; a manifest of another version needs another agoge", at->name, where,
                   keys);
}

static bool is_hex(const char *text, size_t min, size_t max)
{
    const size_t n = text ? strspn(text, "0123456789abcdef") : 0;
    return text && text[n] == 0 && n >= min && n <= max;
}

bool ag_revision_is_immutable(const char *revision) { return is_hex(revision, 40, 64); }

static ag_status read_text(const char **out, const json_t *object, const char *where, const char *key, const place *at)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    if (!text || strlen(text) != json_string_length(value) || text[strspn(text, " \t\n\r\v\f")] == 0)
        return wrong(at, where, key, "a text that is not blank");
    *out = text;
    return AG_OK;
}

static ag_status read_word(const json_t *object, const char *where, const char *key, const char *word, const place *at)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && strcmp(text, word) == 0 ? AG_OK : wrong(at, where, key, word);
}

static ag_status read_digest(ag_sha256 *out, const json_t *object, const char *where, const char *key, const place *at)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!is_hex(text, 64, 64)) return wrong(at, where, key, "a SHA-256 (64 lowercase hexadecimal digits)");
    memcpy(out->hex, text, sizeof out->hex);
    return AG_OK;
}

static ag_status read_count(int64_t *out, const json_t *object, const char *where, const char *key, int64_t min, int64_t max,
                            const place *at)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max)
        return wrong(at, where, key, min == 0 ? "an integer from 0 on" : "an integer from 1 on");
    *out = json_integer_value(value);
    return AG_OK;
}

static ag_status read_texts(const json_t *object, const char *where, const char *key, const place *at)
{
    const json_t *list = json_object_get(object, key);
    bool fits = json_is_array(list);
    for (size_t i = 0; fits && i < json_array_size(list); i++) fits = json_is_string(json_array_get(list, i));
    return fits ? AG_OK : wrong(at, where, key, "a list of texts");
}

/* ---- the parts --------------------------------------------------------------------------------------------------- */
static ag_status read_source(ag_split *s, const json_t *root, const place *at)
{
    const json_t *o = json_object_get(root, "source");
    AG_TRY(check_keys(o, "source", "dataset_version path record_count repository revision sha256", at));
    AG_TRY(read_text(&s->repository, o, "source", "repository", at));
    AG_TRY(read_text(&s->revision, o, "source", "revision", at));
    AG_TRY(read_text(&s->dataset_version, o, "source", "dataset_version", at));
    AG_TRY(read_text(&s->source_path, o, "source", "path", at));
    AG_TRY(read_digest(&s->source_sha256, o, "source", "sha256", at));
    AG_TRY(read_count(&s->n_rows, o, "source", "record_count", 1, UINT32_MAX - 1, at));
    if (!ag_revision_is_immutable(s->revision))
        return wrong(at, "source", "revision", "immutable (40 to 64 lowercase hexadecimal digits)");
    ag_err own;
    if (ag_path_check_repository_relative(s->source_path, &own))
        return wrong(at, "source", "path", "a path relative to its repository");
    return AG_OK;
}

static ag_status read_identity(ag_split *s, const json_t *root, const place *at)
{
    static const char where[] = "canonical_identity";
    const json_t *o = json_object_get(root, where);
    AG_TRY(check_keys(o, where,
                      "canonical_id_field lineage_id_field group_id_field missing_lineage ?content_hash_policy "
                      "source_coordinate_policy",
                      at));
    AG_TRY(read_text(&s->identity.canonical_id_field, o, where, "canonical_id_field", at));
    AG_TRY(read_text(&s->identity.lineage_id_field, o, where, "lineage_id_field", at));
    AG_TRY(read_text(&s->identity.group_id_field, o, where, "group_id_field", at));
    AG_TRY(read_word(o, where, "missing_lineage", "canonical_id", at));
    AG_TRY(read_word(o, where, "source_coordinate_policy", AG_SPLIT_COORDINATE_POLICY, at));
    s->identity.content = AG_SPLIT_CONTENT_LEGACY;
    const json_t *policy = json_object_get(o, "content_hash_policy");
    const char *word = json_string_value(policy);
    if (word && strcmp(word, AG_SPLIT_CONTENT_PAYLOAD_NAME) == 0)
        s->identity.content = AG_SPLIT_CONTENT_PAYLOAD;
    else if (policy && !(word && strcmp(word, AG_SPLIT_CONTENT_LEGACY_NAME) == 0))
        return wrong(at, where, "content_hash_policy", AG_SPLIT_CONTENT_PAYLOAD_NAME " or " AG_SPLIT_CONTENT_LEGACY_NAME);
    return AG_OK;
}

static ag_status read_policy(ag_split *s, const json_t *root, const place *at)
{
    const json_t *o = json_object_get(root, "split_policy"), *weights = json_object_get(o, "weights"),
                 *seed = json_object_get(o, "seed");
    AG_TRY(check_keys(o, "split_policy", "algorithm_version seed salt weights", at));
    AG_TRY(read_word(o, "split_policy", "algorithm_version", AG_SPLIT_ALGORITHM, at));
    AG_TRY(read_text(&s->policy.salt, o, "split_policy", "salt", at));
    if (!json_is_integer(seed)) return wrong(at, "split_policy", "seed", "an integer");
    s->policy.seed = json_integer_value(seed);
    AG_TRY(check_keys(weights, "split_policy.weights", "train validation held_out", at));
    for (int i = 0; i < AG_N_SPLITS; i++)
        AG_TRY(read_count(&s->policy.weight[i], weights, "split_policy.weights", ag_split_name_text(i), 1, AG_SPLIT_MAX_WEIGHT,
                          at));
    return AG_OK;
}

static ag_status read_parts(ag_split *s, const json_t *root, const place *at)
{
    const json_t *splits = json_object_get(root, "splits");
    int64_t sum = 0;
    AG_TRY(check_keys(splits, "splits", "train validation held_out", at));
    for (int i = 0; i < AG_N_SPLITS; i++) {
        const char *where = ag_arena_printf(&s->arena, "splits.%s", ag_split_name_text(i));
        const json_t *o = json_object_get(splits, ag_split_name_text(i));
        ag_err own;
        AG_TRY(check_keys(o, where, "path sha256 record_count members", at));
        AG_TRY(read_text(&s->part[i].path, o, where, "path", at));
        AG_TRY(read_digest(&s->part[i].sha256, o, where, "sha256", at));
        AG_TRY(read_count(&s->part[i].n_rows, o, where, "record_count", 1, UINT32_MAX - 1, at));
        if (ag_path_check_repository_relative(s->part[i].path, &own))
            return wrong(at, where, "path", "a path below the manifest's folder");
        sum += s->part[i].n_rows;
    }
    if (sum == s->n_rows) return AG_OK;
    return ag_fail(at->err, AG_E_VERIFY,
                   "%s: the splits hold %lld records, the source %lld; the manifest was changed, freeze the split again",
                   at->name, (long long)sum, (long long)s->n_rows);
}

static ag_status read_audit(const json_t *root, const place *at)
{
    static const char *const counters[] = {"exact_content_cross_split", "canonical_id_cross_split",
                                           "source_coordinate_cross_split", "lineage_cross_split",
                                           "declared_group_cross_split"};
    static const char where[] = "leakage_audit";
    const json_t *o = json_object_get(root, where);
    AG_TRY(check_keys(o, where,
                      "status exact_content_cross_split canonical_id_cross_split source_coordinate_cross_split "
                      "lineage_cross_split declared_group_cross_split deterministic_guarantees",
                      at));
    AG_TRY(read_word(o, where, "status", "passed", at));
    AG_TRY(read_texts(o, where, "deterministic_guarantees", at));
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        const json_t *value = json_object_get(o, counters[i]);
        if (!json_is_integer(value) || json_integer_value(value) != 0) return wrong(at, where, counters[i], "0");
    }
    return AG_OK;
}

static ag_status read_tokens(const json_t *root, const place *at)
{
    static const char where[] = "token_statistics";
    const json_t *o = json_object_get(root, where), *keys = json_object_get(o, "required_keys");
    AG_TRY(check_keys(o, where, "artifact_schema_version storage invariant required_keys", at));
    AG_TRY(read_word(o, where, "artifact_schema_version", AG_SPLIT_TOKENS_SCHEMA, at));
    AG_TRY(read_word(o, where, "storage", AG_SPLIT_TOKENS_STORAGE, at));
    AG_TRY(read_word(o, where, "invariant", AG_SPLIT_TOKENS_INVARIANT, at));
    AG_TRY(read_texts(o, where, "required_keys", at));
    bool all = json_array_size(keys) == AG_SPLIT_N_TOKENS_KEYS;
    for (int i = 0; all && i < AG_SPLIT_N_TOKENS_KEYS; i++) {
        bool found = false;
        for (int j = 0; j < AG_SPLIT_N_TOKENS_KEYS; j++)
            found |= strcmp(json_string_value(json_array_get(keys, (size_t)j)), ag_split_tokens_keys[i]) == 0;
        all = found;
    }
    return all ? AG_OK : wrong(at, where, "required_keys", "the eight names of model, tokenizer and serializer");
}

ag_status ag_split_head_read(ag_split *s, const json_t *root, const char *name, ag_err *err)
{
    const place at = {name, err};
    const char *version = json_string_value(json_object_get(root, "schema_version"));
    if (!json_is_object(root)) return wrong(&at, "the file", "", "an object");
    if (!version || strcmp(version, AG_SPLIT_SCHEMA) != 0)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: schema_version is '%.100s'; this agoge reads " AG_SPLIT_SCHEMA ", freeze the split again", name,
                       version ? version : "");
    AG_TRY(check_keys(root, "the file",
                      "schema_version source canonical_identity split_policy splits leakage_audit token_statistics "
                      "exclusions limitations",
                      &at));
    AG_TRY(read_source(s, root, &at));
    AG_TRY(read_identity(s, root, &at));
    AG_TRY(read_policy(s, root, &at));
    AG_TRY(read_parts(s, root, &at));
    AG_TRY(read_audit(root, &at));
    AG_TRY(read_tokens(root, &at));
    AG_TRY(read_texts(root, "the file", "exclusions", &at));
    AG_TRY(read_texts(root, "the file", "limitations", &at));
    const char **texts[] = {&s->repository,
                            &s->revision,
                            &s->dataset_version,
                            &s->source_path,
                            &s->identity.canonical_id_field,
                            &s->identity.lineage_id_field,
                            &s->identity.group_id_field,
                            &s->policy.salt,
                            &s->part[0].path,
                            &s->part[1].path,
                            &s->part[2].path};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) *texts[i] = ag_arena_strdup(&s->arena, *texts[i]);
    return AG_OK;
}

/* ---- members ----------------------------------------------------------------------------------------------------- */
static ag_status read_id(ag_str *out, const json_t *value, const char *key, const place *at)
{
    const json_t *id = json_object_get(value, key);
    if (!json_is_string(id) || json_string_length(id) == 0) return wrong(at, "a member", key, "a text");
    *out = (ag_str){.text = (char *)(uintptr_t)json_string_value(id), .n = json_string_length(id)};
    return AG_OK;
}

ag_status ag_split_member_read(ag_split_member *m, const json_t *value, const char *source_path, const char *name, ag_err *err)
{
    const place at = {name, err};
    *m = (ag_split_member){0};
    AG_TRY(check_keys(value, "a member",
                      "canonical_id lineage_id group_id source_coordinate content_sha256 raw_line_sha256 "
                      "materialized_line_sha256",
                      &at));
    AG_TRY(read_id(&m->canonical_id, value, "canonical_id", &at));
    AG_TRY(read_id(&m->lineage_id, value, "lineage_id", &at));
    if (!json_is_null(json_object_get(value, "group_id"))) AG_TRY(read_id(&m->group_id, value, "group_id", &at));
    AG_TRY(read_digest(&m->content, value, "a member", "content_sha256", &at));
    AG_TRY(read_digest(&m->raw_line, value, "a member", "raw_line_sha256", &at));
    AG_TRY(read_digest(&m->materialized_line, value, "a member", "materialized_line_sha256", &at));
    const char *coordinate = json_string_value(json_object_get(value, "source_coordinate"));
    const size_t n_path = strlen(source_path);
    if (!coordinate || strncmp(coordinate, source_path, n_path) != 0 || coordinate[n_path] != ':')
        return wrong(&at, "a member", "source_coordinate", "<source path>:<line>");
    const char *digits = coordinate + n_path + 1;
    const size_t n_digits = strspn(digits, "0123456789");
    const unsigned long long line = strtoull(digits, NULL, 10);
    if (digits[n_digits] || n_digits == 0 || n_digits > 10 || *digits == '0' || line > UINT32_MAX)
        return wrong(&at, "a member", "source_coordinate", "<source path>:<line>");
    m->line_number = (uint32_t)line;
    return AG_OK;
}
