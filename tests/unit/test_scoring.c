/* Scoring, comparison and their statistics (against scipy and statsmodels, tools/golden/make_statistics.py), and the files of
 * an evaluation. */
#define _GNU_SOURCE
#include "support/fs_faults.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "eval/contract.h"
#include "eval/eval_bundle.h"
#include "eval/paired_statistics.h"

#include <math.h>
#include <sys/stat.h>

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */
static ag_text text_of(const char *text) { return text ? (ag_text){text, strlen(text)} : (ag_text){0}; }

static ag_generation generation(const char *id, const char *expected, const char *completion)
{
    return (ag_generation){.task_id = id,
                           .prompt = text_of("p"),
                           .expected = text_of(expected),
                           .raw_text = text_of(completion),
                           .completion = text_of(completion),
                           .n_prompt = 1,
                           .n_completion = 1};
}

static ag_verdict verdict(const char *expected, const char *completion)
{
    const ag_generation g = generation("t", expected, completion);
    return ag_score_generation(&g);
}

static void line_ends_and_trailing_spaces_do_not_matter_but_leading_spaces_do(void **state) /* 53 */
{
    (void)state;
    assert_int_equal(AG_VERDICT_CORRECT, verdict("a\nb", "a\r\nb \t\r\n\n"));
    assert_int_equal(AG_VERDICT_CORRECT, verdict("a\r\nb\xc2\xa0\xe2\x80\x83", "a\nb"));
    assert_int_equal(AG_VERDICT_INCORRECT, verdict("a", " a"));
    assert_int_equal(AG_VERDICT_INCORRECT, verdict("a", "A"));
    assert_int_equal(AG_VERDICT_INCORRECT, verdict("a\rb", "a\nb")); /* a lone CR is a character of its own */
    assert_int_equal(AG_VERDICT_INCORRECT, verdict("a", ""));
    assert_int_equal(AG_VERDICT_INVALID, verdict("", ""));
    assert_int_equal(AG_VERDICT_INVALID, verdict(" \r\n", "x")); /* nothing was expected */
    assert_int_equal(AG_VERDICT_INVALID, verdict(NULL, "x"));
    assert_int_equal(AG_VERDICT_INVALID, verdict("x", NULL));
    ag_generation g = generation("t", "x", "x");
    g.status = AG_GENERATION_UNSUPPORTED;
    assert_int_equal(AG_VERDICT_INVALID, ag_score_generation(&g));
}

/* ---- arms made from letters: c correct, i incorrect, - invalid --------------------------------------------------- */
enum { MOST = 8 };
typedef struct {
    ag_generation generations[MOST];
    ag_verdict verdicts[MOST];
    ag_scored_arm arm;
} letters;

static const char *const ids[MOST] = {"t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"};

static void make_arm(letters *l, const char *role, const char *word)
{
    l->arm = (ag_scored_arm){.role = role, .generation = l->generations, .verdict = l->verdicts, .n = strlen(word)};
    for (size_t i = 0; i < l->arm.n; i++) {
        l->generations[i] = generation(ids[i], word[i] == '-' ? "" : "yes", word[i] == 'c' ? "yes" : "no");
        l->verdicts[i] = ag_score_generation(&l->generations[i]);
    }
}

static ag_comparison compare(const char *base, const char *sft)
{
    letters b, s;
    make_arm(&b, "causal_base", base);
    make_arm(&s, "causal_sft", sft);
    return ag_compare(&b.arm, &s.arm);
}

static void a_conclusion_follows_from_the_pairs(void **state) /* 53 */
{
    (void)state;
    assert_string_equal("inconclusive", compare("--", "ci").conclusion);
    assert_string_equal("inconclusive", compare("-c", "i-").conclusion); /* no pair is valid in both arms */
    assert_string_equal("mixed", compare("ci", "ic").conclusion);
    assert_string_equal("improved", compare("ici-", "ccic").conclusion);
    assert_string_equal("regressed", compare("cc", "ci").conclusion);
    assert_string_equal("null", compare("ci-", "ci-").conclusion);
    const ag_comparison c = compare("ccii-c", "ciic--");
    assert_true(c.n == 6 && c.improved == 1 && c.regressed == 1 && c.tied == 2 && c.invalid == 2 && c.both_correct == 1 &&
                c.both_incorrect == 1);
}

static void what_is_written_is_exactly_this(void **state)
{
    (void)state;
    letters b, s;
    ag_str out = {0};
    make_arm(&b, "causal_base", "cic-");
    make_arm(&s, "causal_sft", "cci-");
    const ag_comparison c = ag_compare(&b.arm, &s.arm);
    ag_metrics_write(&out, &b.arm);
    assert_string_equal(
        "{\"accuracy\":0.6666666666666666,\"n_correct\":2,\"n_incorrect\":1,\"n_invalid\":1,\"n_scored\":3,\"n_tasks\":4,"
        "\"role\":\"causal_base\",\"scoring_version\":\"exact-match-v1\"}\n",
        out.text);
    ag_str_clear(&out);
    ag_comparison_write(&out, &c, &b.arm, &s.arm);
    assert_string_equal(
        "{\"conclusion\":\"mixed\",\"delta_accuracy\":0.0,\"n_improved\":1,\"n_invalid\":1,\"n_regressed\":1,\"n_tasks\":4,\"n_"
        "tied\":1,"
        "\"outcomes\":{\"t1\":\"tied\",\"t2\":\"improved\",\"t3\":\"regressed\",\"t4\":\"invalid\"},\"pairs\":["
        "{\"base_verdict\":\"correct\",\"outcome\":\"tied\",\"sft_verdict\":\"correct\",\"task_id\":\"t1\"},"
        "{\"base_verdict\":\"incorrect\",\"outcome\":\"improved\",\"sft_verdict\":\"correct\",\"task_id\":\"t2\"},"
        "{\"base_verdict\":\"correct\",\"outcome\":\"regressed\",\"sft_verdict\":\"incorrect\",\"task_id\":\"t3\"},"
        "{\"base_verdict\":\"invalid\",\"outcome\":\"invalid\",\"sft_verdict\":\"invalid\",\"task_id\":\"t4\"}],"
        "\"schema_version\":\"agoge.paired-comparison.v1\",\"scoring_version\":\"exact-match-v1\"}\n",
        out.text);
    ag_str_clear(&out);
    ag_regressions_write(&out, &b.arm, &s.arm);
    assert_string_equal(
        "{\"base\":{\"expected_completion\":\"yes\",\"predicted_completion\":\"yes\",\"raw_text\":\"yes\",\"reason\":null,"
        "\"verdict\":\"correct\"},\"outcome\":\"regressed\",\"sft\":{\"expected_completion\":\"yes\",\"predicted_completion\":"
        "\"no\",\"raw_text\":\"no\",\"reason\":null,\"verdict\":\"incorrect\"},\"task_id\":\"t3\"}\n",
        out.text);
    ag_str_clear(&out);
    make_arm(&b, "causal_base", "--");
    ag_metrics_write(&out, &b.arm);
    assert_non_null(strstr(out.text, "\"accuracy\":null"));
    ag_str_free(&out);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */
static void intervals_and_the_exact_test_are_those_of_statsmodels(void **state)
{
    (void)state;
    FILE *f = fopen(AGOGE_TESTS_DIR "/golden/eval/statistics.txt", "r");
    long long a, b, c, d;
    double low, high, difference_low, difference_high, p;
    int n = 0;
    assert_non_null(f);
    while (fscanf(f, "%lld %lld %lld %lld %lf %lf %lf %lf %lf", &a, &b, &c, &d, &low, &high, &difference_low, &difference_high,
                  &p) == 9) {
        const ag_interval share = ag_wilson_interval(a + b, a + b + c + d),
                          difference = ag_paired_difference_interval(a, b, c, d);
        if (fabs(share.low - low) > 1e-12 || fabs(share.high - high) > 1e-12 || fabs(difference.low - difference_low) > 1e-12 ||
            fabs(difference.high - difference_high) > 1e-12 || fabs(ag_mcnemar_exact(b, c) - p) > 1e-9 * p)
            fail_msg("%lld %lld %lld %lld: %.17g %.17g, %.17g %.17g, %.17g", a, b, c, d, share.low, share.high, difference.low,
                     difference.high, ag_mcnemar_exact(b, c));
        n++;
    }
    fclose(f);
    assert_int_equal(16, n);
    /* Newcombe 1998, table II: 36, 12, 2, 0 of 50 pairs */
    const ag_interval published = ag_paired_difference_interval(36, 12, 2, 0);
    assert_true(fabs(published.low - 0.0569) < 5e-5 && fabs(published.high - 0.3404) < 5e-5);
}

/* ---- the bundle -------------------------------------------------------------------------------------------------- */
static void a_bundle_is_whole_or_absent_whichever_call_fails(void **state)
{
    (void)state;
    static const char *const files[] = {"contract.json",         "base/generations.jsonl", "base/metrics.json",
                                        "sft/generations.jsonl", "sft/metrics.json",       "comparison.json",
                                        "regressions.jsonl",     "statistics.json",        "report.md"};
    letters b, s;
    ag_err err;
    ag_arena a = {0};
    make_arm(&b, "causal_base", "cici");
    make_arm(&s, "causal_sft", "cc-i");
    json_t *contract = json_pack("{s:s}", "held_out_split_sha256", "digest");
    const ag_eval_bundle bundle = {.contract = contract, .base = &b.arm, .sft = &s.arm, .seed = 17};
    scratch_dir_create();
    const char *all = ag_arena_strdup(&a, scratch_path("all")), *out = ag_arena_strdup(&a, scratch_path("all/out"));
    assert_int_equal(0, mkdir(all, 0777));
    fs_faults_begin(0);
    must(ag_eval_bundle_publish(&bundle, out, &err));
    const int n = fs_faults_end();
    assert_true(n > 60);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) assert_true(ag_path_is_file(ag_path_join(&a, out, files[i])));
    must_fail(AG_E_EXISTS, "is not written over", ag_eval_bundle_publish(&bundle, out, &err));
    /* what a killed process left goes with the next publication, what is another output's stays */
    must(ag_make_dirs(ag_path_join(&a, all, ".agoge-eval-staging-out-123-0"), &err));
    must(ag_make_dirs(ag_path_join(&a, all, ".agoge-eval-staging-out-2-123-0"), &err));
    must(ag_remove_tree(out, &err));
    must(ag_eval_bundle_publish(&bundle, out, &err));
    assert_false(ag_path_is_dir(ag_path_join(&a, all, ".agoge-eval-staging-out-123-0")));
    assert_true(ag_path_is_dir(ag_path_join(&a, all, ".agoge-eval-staging-out-2-123-0")));
    must(ag_remove_tree(ag_path_join(&a, all, ".agoge-eval-staging-out-2-123-0"), &err));
    for (int at = 1; at <= n; at++) {
        char **names;
        size_t n_names;
        must(ag_remove_tree(out, &err));
        fs_faults_begin(at);
        const ag_status status = ag_eval_bundle_publish(&bundle, out, &err);
        fs_faults_end();
        assert_int_equal(AG_E_IO, status);
        must(ag_dir_list(&names, &n_names, all, &a, &err));
        if (n_names)
            assert_true(at > n - 2 && n_names == 1 &&
                        ag_path_is_file(ag_path_join(&a, out, "report.md"))); /* only the last fsync failed */
    }
    json_decref(contract);
    ag_arena_free(&a);
    scratch_dir_remove();
}

static void a_report_begins_with_its_conclusion(void **state)
{
    (void)state;
    letters b, s;
    ag_str out = {0};
    make_arm(&b, "causal_base", "cici");
    make_arm(&s, "causal_sft", "cc-i");
    json_t *contract = json_pack("{s:s, s:s}", "held_out_split_sha256", "digest", "logical_task_set_sha256", "ids");
    const ag_eval_bundle bundle = {.contract = contract, .base = &b.arm, .sft = &s.arm, .seed = 17};
    const ag_comparison c = ag_compare(&b.arm, &s.arm);
    ag_eval_report_write(&out, &bundle, &c);
    assert_string_equal(
        "# Held-out comparison: improved\n\n"
        "The held-out split (SHA-256 `digest`) was read as it was frozen; nothing was split again.\n\n"
        "Scorer: `exact-match-v1`. No model judged a completion.\n\n"
        "| Arm | Tasks | Scored | Correct | Accuracy |\n| --- | --- | --- | --- | --- |\n"
        "| base | 4 | 4 | 2 | 0.5000 |\n| sft | 4 | 3 | 2 | 0.6667 |\n\n"
        "- Pairs: 1 improved, 0 regressed, 2 tied, 1 invalid\n"
        "- Delta accuracy (SFT - base): +0.3333 over 3 pairs, 95 % interval -0.3158 to +0.7178 (Newcombe, paired)\n"
        "- Exact McNemar test, two-sided: p = 1 (pairs that differ: 1)\n"
        "- Task set SHA-256: `ids`\n- Scoring version: `exact-match-v1`\n- Seed: 17\n",
        out.text);
    json_decref(contract);
    ag_str_free(&out);
}

/* ---- contracts --------------------------------------------------------------------------------------------------- */
static void a_drifted_field_is_named(void **state) /* 52 */
{
    (void)state;
    ag_str out = {0};
    json_t *a = json_pack("{s:s, s:{s:s, s:i}, s:{s:i}}", "split_manifest_sha256", "x", "base", "role", "causal_base",
                          "context_window", 4096, "sft", "context_window", 4096);
    json_t *b = json_deep_copy(a);
    ag_contract_differences(&out, a, b);
    assert_int_equal(0, out.n);
    json_object_set_new(json_object_get(b, "sft"), "context_window", json_integer(2048));
    json_object_set_new(b, "split_manifest_sha256", json_string("y"));
    ag_contract_differences(&out, a, b);
    assert_string_equal("split_manifest_sha256, sft.context_window", out.text);
    json_decref(a);
    json_decref(b);
    ag_str_free(&out);
}

static void a_path_is_written_as_the_contract_sees_it(void **state)
{
    (void)state;
    ag_arena a = {0};
    assert_string_equal("../../frozen/m.json", ag_path_relative(&a, "/w/eval/run", "/w/frozen/m.json"));
    assert_string_equal("m.json", ag_path_relative(&a, "/w/run", "/w/run/m.json"));
    assert_string_equal("../run", ag_path_relative(&a, "/w/runs", "/w/run"));
    assert_string_equal("../runs/x", ag_path_relative(&a, "/w/run", "/w/runs/x"));
    assert_string_equal("w/x", ag_path_relative(&a, "/", "/w/x"));
    assert_string_equal("../../x", ag_path_relative(&a, "/a/b", "/x"));
    ag_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_ends_and_trailing_spaces_do_not_matter_but_leading_spaces_do),
        cmocka_unit_test(a_conclusion_follows_from_the_pairs),
        cmocka_unit_test(what_is_written_is_exactly_this),
        cmocka_unit_test(intervals_and_the_exact_test_are_those_of_statsmodels),
        cmocka_unit_test(a_bundle_is_whole_or_absent_whichever_call_fails),
        cmocka_unit_test(a_report_begins_with_its_conclusion),
        cmocka_unit_test(a_drifted_field_is_named),
        cmocka_unit_test(a_path_is_written_as_the_contract_sees_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
