/* Token statistics beside frozen splits, and mixtures of them. */
#define _GNU_SOURCE
#include "support/file_tools.h"
#include "support/fs_faults.h"
#include "support/scratch_dir.h"
#include "support/tiny_folder.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "base/json.h"
#include "data/mixture.h"
#include "data/model_text.h"
#include "data/split_tokens.h"
#include "data/tokenizer_identity.h"

#define REVISION "0123456789abcdef0123456789abcdef01234567"

static char dir[256];
static ag_arena arena;

static const char *in(const char *name) { return ag_path_join(&arena, dir, name); }

static void freeze(const char *name, int first, int n)
{
    ag_err err;
    ag_str rows = {0};
    for (int i = first; i < first + n; i++) {
        ag_str_printf(&rows, "{\"canonical_id\":\"%s-%d\",\"text\":\"row %d", name, i, i);
        for (int k = 0; k < i * 7 % 13; k++) ag_str_add(&rows, " holds a ship");
        ag_str_add(&rows, "\"}\n");
    }
    file_put(in(ag_arena_printf(&arena, "%s.jsonl", name)), rows.text);
    ag_str_free(&rows);
    ag_split_freeze_result result;
    must(ag_split_freeze(
        &result,
        &(ag_split_freeze_options){
            .source = in(ag_arena_printf(&arena, "%s.jsonl", name)),
            .source_path = "rows.jsonl",
            .output_dir = in(ag_arena_printf(&arena, "frozen-%s", name)),
            .source_repository = "o/d",
            .source_revision = REVISION,
            .dataset_version = "v1",
            .policy = {.seed = 1, .salt = "s", .weight = {8, 1, 1}},
            .identity = {.canonical_id_field = "canonical_id", .lineage_id_field = "lineage_id", .group_id_field = "group_id"},
            .n_threads = 1},
        &err));
}

static ag_status count(const char *name, const ag_tokenizer *t, const char *output, int64_t limit,
                       ag_split_token_counts counts[AG_N_SPLITS], ag_err *err)
{
    return ag_split_tokens_write(
        counts,
        &(ag_split_tokens_options){.split_manifest = in(ag_arena_printf(&arena, "frozen-%s/split_manifest.json", name)),
                                   .output_dir = in(output),
                                   .model_id = "m",
                                   .model_revision = REVISION,
                                   .tokenizer_id = "m",
                                   .tokenizer_revision = REVISION,
                                   .tokenizer = t,
                                   .context_limit = limit,
                                   .n_threads = 2},
        err);
}

static int set_up(void **state)
{
    ag_err err;
    static ag_model_text *text;
    ag_split_token_counts counts[AG_N_SPLITS];
    snprintf(dir, sizeof dir, "%s", scratch_dir_create());
    tiny_folder_make(dir);
    freeze("a", 0, 60);
    freeze("b", 100, 60);
    must(ag_model_text_open(&text, in("model"), &err));
    must(count("a", text->tokenizer, "tokens-a", 90, counts, &err));
    assert_true(counts[AG_SPLIT_TRAIN].truncated > 0 && counts[AG_SPLIT_TRAIN].minimum > 0 &&
                counts[AG_SPLIT_TRAIN].maximum > 90);
    must(count("b", text->tokenizer, "tokens-b", 90, counts, &err));
    *state = text;
    return 0;
}

static int tear_down(void **state)
{
    ag_model_text *text = *state;
    ag_model_text_close(&text);
    ag_arena_free(&arena);
    scratch_dir_remove();
    return 0;
}

static void different_tokenizers_make_sidecars_and_leave_the_manifest_alone(void **state) /* 48 */
{
    ag_model_text *other;
    ag_err err;
    ag_split_token_counts counts[AG_N_SPLITS];
    char *before = file_text(in("frozen-a/split_manifest.json"));
    (void)state;
    file_tree_copy(in("model"), in("other-model"));
    file_replace(in("other-model/tokenizer_config.json"), "\"eos_token\": \"</s>\"", "\"eos_token\": \"<pad>\"");
    must(ag_model_text_open(&other, in("other-model"), &err));
    must(count("a", other->tokenizer, "tokens-other", 0, counts, &err));
    char *after = file_text(in("frozen-a/split_manifest.json")), *one = file_text(in("tokens-a/token_statistics.json")),
         *two = file_text(in("tokens-other/token_statistics.json"));
    assert_string_equal(before, after);
    assert_string_not_equal(one, two);
    assert_non_null(strstr(two, "\"context_limit\":null"));
    must_fail(AG_E_EXISTS, "is not written over", count("a", other->tokenizer, "tokens-a", 0, counts, &err));
    ag_model_text_close(&other);
    free(before);
    free(after);
    free(one);
    free(two);
}

static void a_sidecar_is_held_against_its_split(void **state) /* 48 */
{
    ag_err err;
    ag_split *split;
    ag_token_identity identity;
    ag_split_token_counts counts[AG_N_SPLITS];
    (void)state;
    must(ag_split_open(&split, in("frozen-a/split_manifest.json"), &(ag_split_check){.n_threads = 1}, &err));
    must(ag_token_statistics_read(&identity, counts, in("tokens-a/token_statistics.json"), split, &err));
    assert_int_equal(90, identity.context_limit);
    must_fail(AG_E_VERIFY, "was made for another split",
              ag_token_statistics_read(&identity, counts, in("tokens-b/token_statistics.json"), split, &err));
    file_tree_copy(in("tokens-a"), in("changed"));
    file_replace(in("changed/token_statistics.json"), "{\"context_limit\"", "{\"context_limit\":1,\"context_limit\"");
    must_fail(AG_E_FORMAT, "duplicate",
              ag_token_statistics_read(&identity, counts, in("changed/token_statistics.json"), split, &err));
    file_tree_copy(in("tokens-a"), in("changed2"));
    file_replace(in("changed2/token_statistics.json"), "\"minimum_tokens\":", "\"minimum_tokens\":9");
    must_fail(AG_E_VERIFY, "do not go together",
              ag_token_statistics_read(&identity, counts, in("changed2/token_statistics.json"), split, &err));
    ag_split_close(&split);
}

static void a_tokenizer_has_one_fingerprint_however_it_is_spelt(void **state) /* 50 */
{
    ag_err err;
    ag_model_text *text = *state, *spelt;
    ag_sha256 one, two;
    json_t *root;
    must(ag_tokenizer_fingerprint(&one, text->tokenizer, &err));
    file_tree_copy(in("model"), in("spelt"));
    must(ag_json_load(&root, in("spelt/tokenizer.json"), 1 << 24, &err));
    char *dumped = json_dumps(root, JSON_SORT_KEYS | JSON_INDENT(3)); /* other order of keys, other spacing */
    file_put(in("spelt/tokenizer.json"), dumped);
    free(dumped);
    ag_json_free(&root);
    must(ag_model_text_open(&spelt, in("spelt"), &err));
    must(ag_tokenizer_fingerprint(&two, spelt->tokenizer, &err));
    assert_string_equal(one.hex, two.hex);
    ag_model_text_close(&spelt);
    file_replace(in("spelt/tokenizer_config.json"), "\"eos_token\": \"</s>\"", "\"eos_token\": \"<pad>\"");
    must(ag_model_text_open(&spelt, in("spelt"), &err));
    must(ag_tokenizer_fingerprint(&two, spelt->tokenizer, &err));
    assert_string_not_equal(one.hex, two.hex);
    ag_model_text_close(&spelt);
}

/* ---- mixtures ---------------------------------------------------------------------------------------------------- */
#define SOURCE(id, weight, tokens)                                                                                             \
    "{\"source_id\":\"" id "\",\"provenance_class\":\"PROMETHEUS_REAL\",\"weight\":" weight ",\"split_manifest\":\"frozen-" id \
    "/split_manifest.json\",\"token_statistics\":\"" tokens "/token_statistics.json\",\"token_ledger\":\"" tokens              \
    "/token_ledger.json\"}"
#define POLICY(budget)                                                                                                         \
    "{\"policy\":{\"seed\":5,\"salt\":\"m1\",\"accepted_token_budget\":" budget                                                \
    ",\"experiment_arm\":\"e\",\"consumed_split\":\"train\"}"

static ag_status compose(const char *policy, const char *output, ag_mixture_result *result, ag_err *err)
{
    file_put(in("policy.json"), policy);
    return ag_mixture_compose(
        result, &(ag_mixture_options){.policy = in("policy.json"), .output_dir = in(output), .n_threads = 1}, err);
}

static json_int_t number(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static void a_mixture_keeps_to_its_quotas(void **state)
{
    ag_err err;
    ag_mixture_result r, again;
    (void)state;
    must(compose(POLICY("1001") ",\"sources\":[" SOURCE("b", "1", "tokens-b") "," SOURCE("a", "2", "tokens-a") "]}", "mix", &r,
                 &err));
    must(compose(POLICY("1001") ",\"sources\":[" SOURCE("a", "2", "tokens-a") "," SOURCE("b", "1", "tokens-b") "]}", "mix2",
                 &again, &err));
    assert_string_equal(r.manifest_sha256.hex, again.manifest_sha256.hex); /* the order of the sources says nothing */
    json_t *m;
    must(ag_json_load(&m, in("mix/mixture_manifest.json"), 1 << 24, &err));
    const json_t *sources = json_object_get(m, "sources"), *members = json_object_get(m, "members");
    json_int_t quotas = 0, accepted = 0, of_members = 0, records = 0;
    for (size_t i = 0; i < 2; i++) {
        const json_t *s = json_array_get(sources, i), *excluded = json_object_get(s, "excluded_records");
        quotas += number(s, "quota");
        accepted += number(s, "accepted_tokens");
        records += number(s, "accepted_records");
        assert_true(number(s, "accepted_tokens") <= number(s, "quota"));
        assert_int_equal(number(s, "quota") - number(s, "accepted_tokens"), number(s, "shortfall"));
        assert_int_equal(number(s, "shortfall") > 0, json_is_true(json_object_get(s, "underfilled")));
        assert_int_equal(number(s, "available_records"), number(s, "accepted_records") + number(excluded, "truncated") +
                                                             number(excluded, "exceeds-source-quota") +
                                                             number(excluded, "quota-remainder"));
        assert_true(number(excluded, "truncated") > 0);
    }
    assert_int_equal(1001, quotas);
    assert_int_equal(
        667, number(json_array_get(sources, 0), "quota")); /* 667.33 and 333.66: the token left goes to the larger remainder */
    assert_int_equal(334, number(json_array_get(sources, 1), "quota"));
    for (size_t i = 0; i < json_array_size(members); i++) of_members += number(json_array_get(members, i), "tokens");
    assert_true(accepted == r.n_tokens && of_members == r.n_tokens && r.n_tokens <= 1001 && records == r.n_records &&
                r.n_records > 2);
    /* every line is a line of a train split, as it stands there */
    char *lines = file_text(in("mix/mixture.jsonl")), *a = file_text(in("frozen-a/splits/train.jsonl")),
         *b = file_text(in("frozen-b/splits/train.jsonl"));
    int64_t n = 0;
    for (char *save = NULL, *line = strtok_r(lines, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++)
        assert_true(strstr(a, line) || strstr(b, line));
    assert_int_equal(r.n_records, n);
    free(lines);
    free(a);
    free(b);
    json_decref(m);
}

static void what_is_held_back_does_not_get_in(void **state)
{
    ag_err err;
    ag_mixture_result r;
    ag_split_token_counts counts[AG_N_SPLITS];
    ag_model_text *text = *state;
    must_fail(AG_E_VERIFY, "lineage_held_back",
              compose(POLICY("5000") ",\"sources\":[" SOURCE(
                          "a", "2", "tokens-a") "],\"reserved\":{\"lineage_ids\":"
                                                "[\"a-0\",\"a-1\",\"a-2\",\"a-3\",\"a-13\",\"a-26\",\"a-39\"]}}",
                      "no", &r, &err)
                  ? AG_E_VERIFY
                  : AG_OK);
    /* c holds the same texts as a, under other names and split by another salt */
    char *rows = file_text(in("a.jsonl")), *renamed = strdup(rows);
    for (char *at = renamed; (at = strstr(at, "\"a-")); at++) at[1] = 'c';
    file_put(in("c.jsonl"), renamed);
    ag_split_freeze_result frozen;
    must(ag_split_freeze(
        &frozen,
        &(ag_split_freeze_options){
            .source = in("c.jsonl"),
            .source_path = "rows.jsonl",
            .output_dir = in("frozen-c"),
            .source_repository = "o/d",
            .source_revision = REVISION,
            .dataset_version = "v1",
            .policy = {.seed = 2, .salt = "other", .weight = {5, 2, 3}},
            .identity = {.canonical_id_field = "canonical_id", .lineage_id_field = "lineage_id", .group_id_field = "group_id"},
            .n_threads = 1},
        &err));
    must(count("c", text->tokenizer, "tokens-c", 90, counts, &err));
    must_fail(AG_E_VERIFY, "exact_content_held_back",
              compose(POLICY("9000") ",\"sources\":[" SOURCE("a", "2", "tokens-a") "," SOURCE("c", "1", "tokens-c") "]}", "no",
                      &r, &err));
    assert_false(ag_path_is_dir(in("no")));
    free(rows);
    free(renamed);
}

static void a_policy_that_makes_no_sense_is_refused(void **state)
{
    ag_err err;
    ag_mixture_result r;
    (void)state;
    must_fail(AG_E_CONFIG, "policy.accepted_token_budget",
              compose(POLICY("0") ",\"sources\":[" SOURCE("a", "2", "tokens-a") "]}", "no", &r, &err));
    must_fail(AG_E_CONFIG, "sources[0].weight",
              compose(POLICY("10") ",\"sources\":[" SOURCE("a", "0", "tokens-a") "]}", "no", &r, &err));
    must_fail(AG_E_CONFIG, "stands twice",
              compose(POLICY("10") ",\"sources\":[" SOURCE("a", "1", "tokens-a") "," SOURCE("a", "1", "tokens-a") "]}", "no",
                      &r, &err));
    must_fail(AG_E_CONFIG, "the file.extra is not known",
              compose(POLICY("10") ",\"extra\":1,\"sources\":[" SOURCE("a", "1", "tokens-a") "]}", "no", &r, &err));
    must_fail(AG_E_CONFIG, "sources must be a list", compose(POLICY("10") ",\"sources\":[]}", "no", &r, &err));
    must_fail(AG_E_VERIFY, "was made for another split",
              compose(POLICY("10") ",\"sources\":[" SOURCE("a", "1", "tokens-b") "]}", "no", &r, &err));
    must_fail(AG_E_DATA, "no record fits",
              compose(POLICY("2") ",\"sources\":[" SOURCE("a", "1", "tokens-a") "]}", "no", &r, &err));
    must_fail(AG_E_VERIFY, "with another tokenizer",
              compose(POLICY("500") ",\"sources\":[" SOURCE("a", "1", "tokens-other") "," SOURCE("b", "1", "tokens-b") "]}",
                      "no", &r, &err));
    assert_false(ag_path_is_dir(in("no")));
}

static void a_mixture_is_whole_or_absent_whichever_call_fails(void **state)
{
    ag_err err;
    ag_mixture_result r;
    (void)state;
    file_put(in("policy.json"), POLICY("500") ",\"sources\":[" SOURCE("a", "2", "tokens-a") "]}");
    const char *output = in("faulty/out");
    const ag_mixture_options o = {.policy = in("policy.json"), .output_dir = output, .n_threads = 1};
    must(ag_make_dirs(in("faulty"), &err));
    fs_faults_begin(0);
    must(ag_mixture_compose(&r, &o, &err));
    const int n = fs_faults_end();
    for (int at = 1; at <= n; at++) {
        must(ag_remove_tree(output, &err));
        fs_faults_begin(at);
        const ag_status status = ag_mixture_compose(&r, &o, &err);
        fs_faults_end();
        assert_int_equal(AG_E_IO, status);
        assert_true(!ag_path_is_dir(output) ||
                    (at > n - 2 && ag_path_is_file(ag_path_join(&arena, output, "mixture_manifest.json"))));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_tokenizers_make_sidecars_and_leave_the_manifest_alone),
        cmocka_unit_test(a_sidecar_is_held_against_its_split),
        cmocka_unit_test(a_tokenizer_has_one_fingerprint_however_it_is_spelt),
        cmocka_unit_test(a_mixture_keeps_to_its_quotas),
        cmocka_unit_test(what_is_held_back_does_not_get_in),
        cmocka_unit_test(a_policy_that_makes_no_sense_is_refused),
        cmocka_unit_test(a_mixture_is_whole_or_absent_whichever_call_fails),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
