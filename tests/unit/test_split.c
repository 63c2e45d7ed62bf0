/* Frozen splits against an independent implementation (tools/golden/make_split.py), and what validation must not let pass. */
#define _GNU_SOURCE
#include "support/fs_faults.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "data/split.h"

#include <sys/stat.h>
#include <unistd.h>

#define REVISION "0123456789abcdef0123456789abcdef01234567"
#define GOLDEN   AGOGE_TESTS_DIR "/golden/split/"

static ag_split_freeze_options options(const char *source, const char *output)
{
    return (ag_split_freeze_options){
        .source = source,
        .source_path = "data/rows.jsonl",
        .output_dir = output,
        .source_repository = "org/data",
        .source_revision = REVISION,
        .dataset_version = "v1",
        .policy = {.seed = 7, .salt = "salt-v1", .weight = {60, 20, 20}},
        .identity = {.canonical_id_field = "canonical_id", .lineage_id_field = "lineage_id", .group_id_field = "group_id"},
        .n_threads = 2};
}

static char *read_whole(const char *path, ag_arena *arena)
{
    ag_err err;
    char *text;
    size_t n;
    must(ag_file_read(&text, &n, path, 1 << 20, arena, &err));
    return text;
}

static void put(const char *path, const char *text)
{
    ag_err err;
    must(ag_file_publish(path, text, strlen(text), &err));
}

static void freeze_golden(const char *output)
{
    ag_err err;
    ag_split_freeze_result result;
    const ag_split_freeze_options o = options(GOLDEN "source.jsonl", output);
    must(ag_split_freeze(&result, &o, &err));
    assert_int_equal(60, result.n_rows);
}

/* Opens and closes; the status of the open. */
static ag_status validate(const char *dir, const char *source, ag_err *err)
{
    ag_split *split;
    ag_arena arena = {0};
    ag_status status =
        ag_split_open(&split, ag_path_join(&arena, dir, AG_SPLIT_MANIFEST_FILE), &(ag_split_check){source, 2}, err);
    assert_true(!status == (split != NULL));
    ag_split_close(&split);
    ag_arena_free(&arena);
    return status;
}

static void a_split_is_what_the_independent_program_makes(void **state)
{
    (void)state;
    static const char *const files[] = {"split_manifest.json", "splits/train.jsonl", "splits/validation.jsonl",
                                        "splits/held_out.jsonl"};
    ag_arena a = {0};
    ag_err err;
    scratch_dir_create();
    freeze_golden(scratch_path("out"));
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(read_whole(ag_path_join(&a, GOLDEN, files[i]), &a),
                            read_whole(ag_path_join(&a, scratch_path("out"), files[i]), &a));
    must(validate(GOLDEN, GOLDEN "source.jsonl", &err));
    ag_arena_free(&a);
    scratch_dir_remove();
}

static void two_materialisations_are_byte_identical_and_the_report_states_full_coverage(void **state) /* 40 */
{
    (void)state;
    static const char *const files[] = {"split_manifest.json", "split_report.md", "splits/train.jsonl",
                                        "splits/validation.jsonl", "splits/held_out.jsonl"};
    ag_arena a = {0};
    ag_err err;
    ag_split_freeze_result result;
    scratch_dir_create();
    freeze_golden(scratch_path("one"));
    ag_split_freeze_options o = options(GOLDEN "source.jsonl", scratch_path("two"));
    o.n_threads = 1;
    must(ag_split_freeze(&result, &o, &err));
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(read_whole(ag_path_join(&a, scratch_path("one"), files[i]), &a),
                            read_whole(ag_path_join(&a, scratch_path("two"), files[i]), &a));
    assert_non_null(strstr(read_whole(scratch_path("one/split_report.md"), &a), "Coverage: 60/60 records"));
    must(validate(scratch_path("one"), GOLDEN "source.jsonl", &err)); /* the union of the splits is the source */
    ag_arena_free(&a);
    scratch_dir_remove();
}

static ag_status freeze_text(const char *rows, ag_err *err)
{
    ag_split_freeze_result result;
    put(scratch_path("rows.jsonl"), rows);
    const ag_split_freeze_options o = options(scratch_path("rows.jsonl"), scratch_path("frozen"));
    return ag_split_freeze(&result, &o, err);
}

static void an_existing_output_and_mixed_representations_are_refused(void **state) /* 41 */
{
    (void)state;
    ag_err err;
    ag_split_freeze_result result;
    scratch_dir_create();
    assert_int_equal(0, mkdir(scratch_path("there"), 0777));
    ag_split_freeze_options o = options(GOLDEN "source.jsonl", scratch_path("there"));
    must_fail(AG_E_EXISTS, "exists already", ag_split_freeze(&result, &o, &err));
    must_fail(AG_E_DATA, "line 2: has 'messages'; a frozen split holds text only",
              freeze_text("{\"canonical_id\":\"a\",\"text\":\"x\"}\n{\"canonical_id\":\"b\",\"messages\":[]}\n", &err));
    must_fail(AG_E_DATA, "line 1: has 'instruction' beside 'text'",
              freeze_text("{\"canonical_id\":\"a\",\"text\":\"x\",\"instruction\":\"y\"}\n", &err));
    must_fail(AG_E_DATA, "line 1: has no 'text'", freeze_text("{\"canonical_id\":\"a\"}\n", &err));
    must_fail(AG_E_DATA, "line 1: 'text' is no string", freeze_text("{\"canonical_id\":\"a\",\"text\":1}\n", &err));
    must_fail(AG_E_DATA, "line 3: has no 'canonical_id'",
              freeze_text("\n{\"canonical_id\":\"a\",\"text\":\"x\"}\n{\"text\":\"y\"}\n", &err));
    must_fail(AG_E_DATA, "line 1: 'canonical_id' is blank",
              freeze_text("{\"canonical_id\":\" \\u00a0\",\"text\":\"x\"}\n", &err));
    must_fail(AG_E_DATA, "line 1: 'lineage_id' must be a string",
              freeze_text("{\"canonical_id\":\"a\",\"lineage_id\":3,\"text\":\"x\"}\n", &err));
    must_fail(AG_E_DATA, "line 1: must be a JSON object", freeze_text("[1]\n", &err));
    must_fail(AG_E_FORMAT, "line 1: ", freeze_text("{\"text\":\"x\",\"text\":\"y\"}\n", &err));
    must_fail(AG_E_DATA, "is blank", freeze_text(" \n\n", &err));
    must_fail(AG_E_DATA, "'a' stands twice, at data/rows.jsonl:1 and data/rows.jsonl:3",
              freeze_text("{\"canonical_id\":\"a\",\"text\":\"x\"}\n\n{\"canonical_id\":\" a\",\"text\":\"y\"}\n", &err));
    must_fail(AG_E_DATA, "take a larger source, or another versioned salt",
              freeze_text("{\"canonical_id\":\"a\",\"text\":\"x\"}\n", &err));
    assert_false(ag_path_is_dir(scratch_path("frozen"))); /* nothing was written */
    scratch_dir_remove();
}

static void what_the_manifest_cannot_record_is_refused(void **state)
{
    (void)state;
    static const char *const paths[] = {"",     " a",  "/a", "C:\\a", "c:a",  "a\\b", "a/../b",
                                        "a//b", "./a", "a/", ".",     "a\nb", NULL};
    ag_err err;
    ag_split_freeze_result result;
    scratch_dir_create();
    ag_split_freeze_options o = options(GOLDEN "source.jsonl", scratch_path("out"));
    for (size_t i = 0; paths[i]; i++) {
        o.source_path = paths[i];
        must_fail(AG_E_CONFIG, "give it relative to its repository", ag_split_freeze(&result, &o, &err));
    }
    o = options(GOLDEN "source.jsonl", scratch_path("out"));
    o.source_revision = "main";
    must_fail(AG_E_CONFIG, "'main' may move", ag_split_freeze(&result, &o, &err));
    o = options(GOLDEN "source.jsonl", scratch_path("out"));
    o.policy.weight[AG_SPLIT_VALIDATION] = 0;
    must_fail(AG_E_CONFIG, "--validation-weight is 0", ag_split_freeze(&result, &o, &err));
    o = options(GOLDEN "source.jsonl", "x/../y");
    must_fail(AG_E_CONFIG, "'..'", ag_split_freeze(&result, &o, &err));
    o = options(GOLDEN "source.jsonl", scratch_path("deep/below/out")); /* only the parent is made beforehand */
    o.policy.salt = " ";
    must_fail(AG_E_CONFIG, "--salt is blank", ag_split_freeze(&result, &o, &err));
    scratch_dir_remove();
}

/* ---- files that were changed ------------------------------------------------------------------------------------- */
static void append(const char *path, const char *text)
{
    FILE *f = fopen(path, "ab");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void an_appended_byte_is_detected_with_a_specific_message(void **state) /* 42 */
{
    (void)state;
    ag_arena a = {0};
    ag_err err;
    scratch_dir_create();
    freeze_golden(scratch_path("out"));
    put(scratch_path("source.jsonl"), read_whole(GOLDEN "source.jsonl", &a));
    must(validate(scratch_path("out"), scratch_path("source.jsonl"), &err));
    append(scratch_path("source.jsonl"), "\n");
    must_fail(AG_E_VERIFY, "the source was changed after it was frozen",
              validate(scratch_path("out"), scratch_path("source.jsonl"), &err));
    append(scratch_path("out/splits/held_out.jsonl"), "\n");
    must_fail(AG_E_VERIFY, "held_out.jsonl: its SHA-256 is", validate(scratch_path("out"), NULL, &err));
    must_fail(AG_E_VERIFY, "the split was changed after it was frozen", validate(scratch_path("out"), NULL, &err));
    ag_arena_free(&a);
    scratch_dir_remove();
}

/* A manifest and its files as they can be changed: rows and members together. */
typedef struct {
    json_t *manifest;
    json_t *rows[AG_N_SPLITS]; /* lists of rows, in the order of members */
} open_split;

static json_t *members(const open_split *s, ag_split_name name)
{
    return json_object_get(json_object_get(json_object_get(s->manifest, "splits"), ag_split_name_text(name)), "members");
}

static open_split open_golden(void)
{
    ag_err err;
    ag_arena a = {0};
    open_split s;
    must(ag_json_load(&s.manifest, GOLDEN "split_manifest.json", 1 << 20, &err));
    for (int i = 0; i < AG_N_SPLITS; i++) {
        char *text = read_whole(ag_arena_printf(&a, GOLDEN "splits/%s.jsonl", ag_split_name_text(i)), &a), *save = NULL;
        s.rows[i] = json_array();
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            json_t *row;
            must(ag_json_parse_exact(&row, line, strlen(line), "row", &err));
            json_array_append_new(s.rows[i], row);
        }
    }
    ag_arena_free(&a);
    return s;
}

/* Publishes it with every digest and count made right, and frees it. */
static void close_repaired(open_split *s, const char *dir)
{
    ag_arena a = {0};
    ag_err err;
    int64_t sum = 0;
    must(ag_make_dirs(ag_path_join(&a, dir, "splits"), &err));
    for (int i = 0; i < AG_N_SPLITS; i++) {
        ag_str file = {0};
        json_t *part = json_object_get(json_object_get(s->manifest, "splits"), ag_split_name_text(i));
        for (size_t r = 0; r < json_array_size(s->rows[i]); r++) {
            const size_t start = file.n;
            ag_json_add_canonical(&file, json_array_get(s->rows[i], r));
            json_object_set_new(json_array_get(members(s, i), r), "materialized_line_sha256",
                                json_string(ag_sha256_bytes(file.text + start, file.n - start).hex));
            ag_str payload = {0};
            ag_str_add(&payload, "{\"text\":");
            ag_json_add_canonical(&payload, json_object_get(json_array_get(s->rows[i], r), "text"));
            ag_str_add(&payload, "}");
            json_object_set_new(json_array_get(members(s, i), r), "content_sha256",
                                json_string(ag_sha256_bytes(payload.text, payload.n).hex));
            ag_str_free(&payload);
            ag_str_add_char(&file, '\n');
        }
        json_object_set_new(part, "sha256", json_string(ag_sha256_bytes(file.text, file.n).hex));
        json_object_set_new(part, "record_count", json_integer((json_int_t)json_array_size(s->rows[i])));
        sum += (int64_t)json_array_size(s->rows[i]);
        put(ag_arena_printf(&a, "%s/splits/%s.jsonl", dir, ag_split_name_text(i)), file.text);
        ag_str_free(&file);
        json_decref(s->rows[i]);
    }
    json_object_set_new(json_object_get(s->manifest, "source"), "record_count", json_integer(sum));
    ag_str text = {0};
    ag_json_add_canonical(&text, s->manifest);
    ag_str_add_char(&text, '\n');
    put(ag_path_join(&a, dir, AG_SPLIT_MANIFEST_FILE), text.text);
    ag_str_free(&text);
    json_decref(s->manifest);
    ag_arena_free(&a);
}

static const char *id_of(const json_t *member) { return json_string_value(json_object_get(member, "canonical_id")); }

/* Moves row r of `from` to its place in `to`. */
static void move_row(open_split *s, ag_split_name from, size_t r, ag_split_name to)
{
    json_t *member = json_incref(json_array_get(members(s, from), r)), *row = json_incref(json_array_get(s->rows[from], r));
    size_t at = 0;
    json_array_remove(members(s, from), r);
    json_array_remove(s->rows[from], r);
    while (at < json_array_size(members(s, to)) && strcmp(id_of(json_array_get(members(s, to), at)), id_of(member)) < 0) at++;
    json_array_insert_new(members(s, to), at, member);
    json_array_insert_new(s->rows[to], at, row);
}

/* A row of the split that is a component of its own. */
static size_t lonely_row(const open_split *s, ag_split_name name)
{
    for (size_t r = 0; r < json_array_size(s->rows[name]); r++) {
        const json_t *m = json_array_get(members(s, name), r);
        if (json_is_null(json_object_get(m, "group_id")) &&
            strcmp(id_of(m), json_string_value(json_object_get(m, "lineage_id"))) == 0 &&
            strcmp("the same text", json_string_value(json_object_get(json_array_get(s->rows[name], r), "text"))) != 0)
            return r;
    }
    fail_msg("the golden has no lonely row in %s", ag_split_name_text(name));
    return 0;
}

static void a_repaired_copy_of_the_golden_is_valid(void **state)
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    open_split s = open_golden();
    close_repaired(&s, scratch_path("out"));
    must(
        validate(scratch_path("out"), GOLDEN "source.jsonl", &err)); /* so that what the next tests find is what they changed */
    scratch_dir_remove();
}

static void swapped_rows_with_repaired_digests_are_caught_by_ownership(void **state) /* 43 */
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    open_split s = open_golden();
    const size_t train = lonely_row(&s, AG_SPLIT_TRAIN), held_out = lonely_row(&s, AG_SPLIT_HELD_OUT);
    move_row(&s, AG_SPLIT_TRAIN, train, AG_SPLIT_VALIDATION);
    move_row(&s, AG_SPLIT_HELD_OUT, held_out, AG_SPLIT_TRAIN);
    close_repaired(&s, scratch_path("out"));
    must_fail(AG_E_VERIFY, "by the manifest's policy; rows were moved", validate(scratch_path("out"), NULL, &err));
    scratch_dir_remove();
}

static void train_text_copied_into_held_out_with_repaired_digests_is_leakage(void **state) /* 44 */
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    open_split s = open_golden();
    json_object_set(json_array_get(s.rows[AG_SPLIT_HELD_OUT], 3), "text",
                    json_object_get(json_array_get(s.rows[AG_SPLIT_TRAIN], 5), "text"));
    close_repaired(&s, scratch_path("out"));
    must_fail(AG_E_VERIFY, "leakage: 1 contents stand in more than one split", validate(scratch_path("out"), NULL, &err));
    scratch_dir_remove();
}

static void a_lineage_in_two_splits_is_leakage(void **state)
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    open_split s = open_golden();
    size_t r = 0;
    while (strncmp("lineage-", json_string_value(json_object_get(json_array_get(members(&s, AG_SPLIT_TRAIN), r), "lineage_id")),
                   8) != 0)
        r++;
    json_t *lineage = json_object_get(json_array_get(members(&s, AG_SPLIT_TRAIN), r), "lineage_id");
    json_object_set(json_array_get(members(&s, AG_SPLIT_HELD_OUT), 0), "lineage_id", lineage);
    json_object_set(json_array_get(s.rows[AG_SPLIT_HELD_OUT], 0), "lineage_id", lineage);
    close_repaired(&s, scratch_path("out"));
    must_fail(AG_E_VERIFY, "lineages stand in more than one split", validate(scratch_path("out"), NULL, &err));
    scratch_dir_remove();
}

static void members_that_do_not_tell_the_truth_are_caught(void **state)
{
    (void)state;
    static const char *const keys[] = {"canonical_id", "lineage_id", "group_id", "raw_line_sha256", "source_coordinate"};
    static const char *const values[] = {
        "other", "other", "other", "0000000000000000000000000000000000000000000000000000000000000000", "data/rows.jsonl:9999"};
    static const char *const found[] = {"another canonical_id", "another lineage_id", "another group_id", "not the row that",
                                        "not the row that"};
    ag_err err;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        scratch_dir_create();
        open_split s = open_golden();
        json_object_set_new(json_array_get(members(&s, AG_SPLIT_VALIDATION), 2), keys[i], json_string(values[i]));
        close_repaired(&s, scratch_path("out"));
        must_fail(AG_E_VERIFY, found[i], validate(scratch_path("out"), GOLDEN "source.jsonl", &err));
        scratch_dir_remove();
    }
    scratch_dir_create();
    open_split s = open_golden();
    json_object_set(json_array_get(members(&s, AG_SPLIT_TRAIN), 1), "source_coordinate",
                    json_object_get(json_array_get(members(&s, AG_SPLIT_TRAIN), 2), "source_coordinate"));
    close_repaired(&s, scratch_path("out"));
    must_fail(AG_E_VERIFY, "stands twice in the splits", validate(scratch_path("out"), NULL, &err));
    scratch_dir_remove();
}

static void equal_text_with_different_metadata_lands_in_one_split(void **state) /* 45 */
{
    (void)state;
    ag_err err;
    ag_arena a = {0};
    ag_str rows = {0};
    scratch_dir_create();
    for (int i = 0; i < 180; i++) /* 60 texts, each with three ids and other columns; lineages and groups over the rest */
        ag_str_printf(&rows, "{\"canonical_id\":\"c%d\",\"text\":\"text %d\",\"source\":%d,\"lineage_id\":\"l%d\"%s}\n", i,
                      i % 60, i, i / 2, i % 45 == 0 ? ",\"group_id\":\"g\"" : "");
    must(freeze_text(rows.text, &err));
    char *train = read_whole(scratch_path("frozen/splits/train.jsonl"), &a),
         *held_out = read_whole(scratch_path("frozen/splits/held_out.jsonl"), &a),
         *validation = read_whole(scratch_path("frozen/splits/validation.jsonl"), &a);
    for (int i = 0; i < 60; i++) {
        const char *text = ag_arena_printf(&a, "\"text %d\"", i);
        assert_int_equal(1, !!strstr(train, text) + !!strstr(held_out, text) + !!strstr(validation, text));
    }
    assert_int_equal(1, !!strstr(train, "\"group_id\":\"g\"") + !!strstr(held_out, "\"group_id\":\"g\"") +
                            !!strstr(validation, "\"group_id\":\"g\""));
    must(validate(scratch_path("frozen"), scratch_path("rows.jsonl"), &err));
    ag_str_free(&rows);
    ag_arena_free(&a);
    scratch_dir_remove();
}

static void a_manifest_without_the_content_policy_keeps_legacy_semantics(void **state) /* 46 */
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    open_split s = open_golden();
    json_object_del(json_object_get(s.manifest, "canonical_identity"), "content_hash_policy");
    close_repaired(&s, scratch_path("payload"));
    must_fail(AG_E_VERIFY, "another content_sha256",
              validate(scratch_path("payload"), NULL, &err)); /* digests of the other policy */

    s = open_golden();
    json_object_del(json_object_get(s.manifest, "canonical_identity"), "content_hash_policy");
    close_repaired(&s, scratch_path("legacy"));
    must(ag_json_load(&s.manifest, scratch_path("legacy/split_manifest.json"), 1 << 20, &err));
    for (int i = 0; i < AG_N_SPLITS; i++) { /* the whole row counts, without its identity */
        ag_arena a = {0};
        char *text = read_whole(ag_arena_printf(&a, "%s/splits/%s.jsonl", scratch_path("legacy"), ag_split_name_text(i)), &a),
             *save = NULL;
        size_t r = 0;
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), r++) {
            json_t *row;
            must(ag_json_parse_exact(&row, line, strlen(line), "row", &err));
            json_object_del(row, "canonical_id");
            json_object_del(row, "lineage_id");
            json_object_del(row, "group_id");
            json_object_set_new(json_array_get(members(&s, i), r), "content_sha256",
                                json_string(ag_json_canonical_digest(row).hex));
            ag_json_free(&row);
        }
        ag_arena_free(&a);
    }
    ag_str text = {0};
    ag_json_add_canonical(&text, s.manifest);
    put(scratch_path("legacy/split_manifest.json"), text.text);
    ag_str_free(&text);
    json_decref(s.manifest);
    ag_split *split;
    ag_status status = ag_split_open(&split, scratch_path("legacy/split_manifest.json"), &(ag_split_check){NULL, 1}, &err);
    /* Two rows of the golden share their text but not their columns: the legacy policy does not join them, so it may give them
     * other splits than the golden's. */
    if (status)
        assert_non_null(strstr(err.text, "by the manifest's policy"));
    else
        assert_int_equal(AG_SPLIT_CONTENT_LEGACY, split->identity.content);
    ag_split_close(&split);
    scratch_dir_remove();
}

static void a_cache_key_changes_with_manifest_or_split_and_columns_do_not_disturb(void **state) /* 47 */
{
    (void)state;
    ag_err err;
    ag_split *one, *two;
    scratch_dir_create();
    must(ag_split_open(&one, GOLDEN "split_manifest.json", &(ag_split_check){NULL, 1},
                       &err)); /* rows with columns of mixed kinds */
    must(ag_split_open(&two, GOLDEN "split_manifest.json", &(ag_split_check){NULL, 1}, &err));
    assert_string_equal(ag_split_cache_key(one, AG_SPLIT_TRAIN).hex, ag_split_cache_key(two, AG_SPLIT_TRAIN).hex);
    assert_string_not_equal(ag_split_cache_key(one, AG_SPLIT_TRAIN).hex, ag_split_cache_key(two, AG_SPLIT_HELD_OUT).hex);
    two->part[AG_SPLIT_TRAIN].sha256.hex[0] ^= 1;
    assert_string_not_equal(ag_split_cache_key(one, AG_SPLIT_TRAIN).hex, ag_split_cache_key(two, AG_SPLIT_TRAIN).hex);
    two->part[AG_SPLIT_TRAIN].sha256.hex[0] ^= 1;
    two->manifest_sha256.hex[0] ^= 1;
    assert_string_not_equal(ag_split_cache_key(one, AG_SPLIT_TRAIN).hex, ag_split_cache_key(two, AG_SPLIT_TRAIN).hex);
    ag_split_close(&one);
    ag_split_close(&two);
    scratch_dir_remove();
}

/* ---- manifests that are none ------------------------------------------------------------------------------------- */
static ag_status validate_changed(const char *from, const char *to, ag_err *err)
{
    ag_arena a = {0};
    char *text = read_whole(GOLDEN "split_manifest.json", &a), *at = strstr(text, from);
    assert_non_null(at);
    ag_str changed = {0};
    ag_str_add_n(&changed, text, (size_t)(at - text));
    ag_str_add(&changed, to);
    ag_str_add(&changed, at + strlen(from));
    put(scratch_path("out/split_manifest.json"), changed.text);
    ag_str_free(&changed);
    ag_arena_free(&a);
    return validate(scratch_path("out"), NULL, err);
}

/* Without the last member of held_out. */
static ag_status validate_fewer(ag_err *err)
{
    open_split s = open_golden();
    freeze_golden(scratch_path("fewer"));
    json_array_remove(members(&s, AG_SPLIT_HELD_OUT), json_array_size(members(&s, AG_SPLIT_HELD_OUT)) - 1);
    ag_str text = {0};
    ag_json_add_canonical(&text, s.manifest);
    put(scratch_path("fewer/split_manifest.json"), text.text);
    ag_str_free(&text);
    for (int i = 0; i < AG_N_SPLITS; i++) json_decref(s.rows[i]);
    json_decref(s.manifest);
    return validate(scratch_path("fewer"), NULL, err);
}

static void a_manifest_is_held_against_its_schema(void **state)
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    freeze_golden(scratch_path("out"));
    must(validate_changed("{\"canonical_identity\"", " { \"canonical_identity\"", &err)); /* spacing says nothing */
    must_fail(AG_E_FORMAT, "schema_version is 'agoge.split-manifest.v2'",
              validate_changed("agoge.split-manifest.v1", "agoge.split-manifest.v2", &err));
    must_fail(AG_E_FORMAT, "has keys that are none of",
              validate_changed("\"exclusions\":[]", "\"exclusions\":[],\"more\":1", &err));
    must_fail(AG_E_FORMAT, "has no 'salt'", validate_changed("\"salt\":", "\"sugar\":", &err));
    must_fail(AG_E_FORMAT, "duplicate", validate_changed("\"exclusions\":[]", "\"exclusions\":[],\"exclusions\":[]", &err));
    must_fail(AG_E_FORMAT, "not valid JSON", validate_changed("\"exclusions\":[]", "\"exclusions\":[", &err));
    must_fail(AG_E_FORMAT, "lineage_cross_split must be 0",
              validate_changed("\"lineage_cross_split\":0", "\"lineage_cross_split\":1", &err));
    must_fail(AG_E_FORMAT, "source.revision must be immutable", validate_changed(REVISION, "main", &err));
    must_fail(AG_E_FORMAT, "splits.train.path must be a path below",
              validate_changed("\"splits/train.jsonl\"", "\"../train.jsonl\"", &err));
    must_fail(AG_E_FORMAT, "required_keys must be", validate_changed("\"tokenizer_sha256\"", "\"tokenizer\"", &err));
    must_fail(AG_E_FORMAT, "a member", validate_changed("\"group_id\":null", "\"group_id\":3", &err));
    must_fail(AG_E_FORMAT, "has no 'lineage_id'", validate_changed("\"lineage_id\":", "\"lineage\":", &err));
    must_fail(AG_E_FORMAT, "a member has no 'canonical_id'", validate_changed("\"members\":[{", "\"members\":[{},{", &err));
    must_fail(AG_E_FORMAT, "not valid JSON near byte", validate_changed("\"members\":[{", "\"members\":[,{", &err));
    must_fail(AG_E_VERIFY, "splits.held_out has fewer members than the 10 rows", validate_fewer(&err));
    must_fail(AG_E_NOT_FOUND, "out/other is not there",
              validate_changed("\"splits/train.jsonl\"", "\"other/train.jsonl\"", &err));
    scratch_dir_remove();
}

static void split_files_must_lie_in_the_manifests_folder(void **state)
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    freeze_golden(scratch_path("out"));
    assert_int_equal(0, rename(scratch_path("out/splits"), scratch_path("elsewhere")));
    assert_int_equal(0, symlink("../elsewhere", scratch_path("out/splits")));
    must_fail(AG_E_VERIFY, "is a symbolic link", validate(scratch_path("out"), NULL, &err));
    scratch_dir_remove();
}

static void a_manifest_is_found_beside_the_dataset_or_above(void **state)
{
    (void)state;
    ag_arena a = {0};
    assert_string_equal(GOLDEN "split_manifest.json", ag_split_manifest_find(GOLDEN "splits/train.jsonl", &a));
    assert_string_equal(GOLDEN "split_manifest.json", ag_split_manifest_find(GOLDEN "source.jsonl", &a));
    assert_null(ag_split_manifest_find(AGOGE_TESTS_DIR "/golden/data/cases.jsonl", &a));
    ag_arena_free(&a);
}

static void ids_with_long_common_beginnings_are_ordered(void **state)
{
    (void)state;
    ag_err err;
    ag_str rows = {0};
    scratch_dir_create();
    for (int i = 0; i < 400; i++)
        ag_str_printf(&rows, "{\"canonical_id\":\"%0*d/%s%d\",\"text\":\"t%d\"}\n", i % 4 * 17 + 1, i % 5,
                      i % 2 ? "\xc3\xa9" : "z", i * 37 % 400, i);
    must(freeze_text(rows.text, &err));
    must(validate(scratch_path("frozen"), scratch_path("rows.jsonl"), &err)); /* which holds the order against memcmp */
    ag_str_free(&rows);
    scratch_dir_remove();
}

static void a_snapshot_is_whole_or_absent_whichever_call_fails(void **state)
{
    (void)state;
    ag_err err;
    ag_split_freeze_result result;
    scratch_dir_create();
    assert_int_equal(0, mkdir(scratch_path("all"), 0777));
    char *output = strdup(scratch_path("all/out"));
    const ag_split_freeze_options o = options(GOLDEN "source.jsonl", output);
    fs_faults_begin(0);
    must(ag_split_freeze(&result, &o, &err));
    const int n = fs_faults_end();
    assert_true(n > 20);
    for (int at = 1; at <= n; at++) {
        must(ag_remove_tree(scratch_path("all/out"), &err));
        fs_faults_begin(at);
        const ag_status status = ag_split_freeze(&result, &o, &err);
        fs_faults_end();
        assert_int_equal(AG_E_IO, status);
        ag_arena a = {0};
        char **names;
        size_t n_names;
        must(ag_dir_list(&names, &n_names, scratch_path("all"), &a, &err));
        if (n_names) { /* only the directory's own open and fsync come after the rename */
            assert_true(at > n - 2 && n_names == 1);
            must(validate(scratch_path("all/out"), NULL, &err));
        }
        ag_arena_free(&a);
    }
    free(output);
    scratch_dir_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_is_what_the_independent_program_makes),
        cmocka_unit_test(two_materialisations_are_byte_identical_and_the_report_states_full_coverage),
        cmocka_unit_test(an_existing_output_and_mixed_representations_are_refused),
        cmocka_unit_test(what_the_manifest_cannot_record_is_refused),
        cmocka_unit_test(an_appended_byte_is_detected_with_a_specific_message),
        cmocka_unit_test(a_repaired_copy_of_the_golden_is_valid),
        cmocka_unit_test(swapped_rows_with_repaired_digests_are_caught_by_ownership),
        cmocka_unit_test(train_text_copied_into_held_out_with_repaired_digests_is_leakage),
        cmocka_unit_test(a_lineage_in_two_splits_is_leakage),
        cmocka_unit_test(members_that_do_not_tell_the_truth_are_caught),
        cmocka_unit_test(equal_text_with_different_metadata_lands_in_one_split),
        cmocka_unit_test(a_manifest_without_the_content_policy_keeps_legacy_semantics),
        cmocka_unit_test(a_cache_key_changes_with_manifest_or_split_and_columns_do_not_disturb),
        cmocka_unit_test(a_manifest_is_held_against_its_schema),
        cmocka_unit_test(split_files_must_lie_in_the_manifests_folder),
        cmocka_unit_test(a_manifest_is_found_beside_the_dataset_or_above),
        cmocka_unit_test(ids_with_long_common_beginnings_are_ordered),
        cmocka_unit_test(a_snapshot_is_whole_or_absent_whichever_call_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
