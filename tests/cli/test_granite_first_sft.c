/* An experiment from freezing to its comparison, with a tiny model in Granite's place. Runs the real program (AGOGE_BIN) and
 * git. */
#define _GNU_SOURCE
#include "support/file_tools.h"
#include "support/scratch_dir.h"
#include "support/tiny_folder.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "base/json.h"
#include "model/identity.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define REVISION "0123456789abcdef0123456789abcdef01234567"
static char dir[256], revision[65];
static ag_arena arena;

static const char *in(const char *name) { return ag_path_join(&arena, dir, name); }

static pid_t start(const char *program, const char *const *words)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    const char *argv[32] = {program};
    for (int n = 1; *words; n++) argv[n] = *words++;
    if (chdir(dir) || !freopen("../said.err", "w", stderr) || !freopen("../said.out", "w", stdout)) _exit(99);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(98);
}

static int finish(pid_t child)
{
    int status;
    assert_int_equal(child, waitpid(child, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void expect(int code, const char *sentence, const char *program, const char *const *words)
{
    const int got = finish(start(program, words));
    char *said = file_text(in("../said.err"));
    if (got != code || (sentence && !strstr(said, sentence)))
        fail_msg("exit code %d, want %d and '%s': %s", got, code, sentence ? sentence : "", said);
    free(said);
}
#define RUN(code, sentence, ...) expect(code, sentence, getenv("AGOGE_BIN"), (const char *const[]){__VA_ARGS__, NULL})
#define GIT(...)                 expect(0, NULL, "git", (const char *const[]){"-c", "user.name=t", "-c", "user.email=t@t", __VA_ARGS__, NULL})
#define FREEZE(output)                                                                                                         \
    "freeze-granite-first-sft", "--experiment-id", "e1", "--output-dir", output, "--split-manifest",                           \
        "frozen/split_manifest.json", "--qualification-report", "report.json"

static void write_report(const char *verdict)
{
    ag_str text = {0};
    ag_str_printf(&text,
                  "{\"schema_version\":\"agoge.model-compatibility.v1\",\"model_repository\":\"%s\",\"model_revision\":\"%s\","
                  "\"tokenizer_repository\":\"%s\","
                  "\"tokenizer_revision\":\"%s\",\"tokenizer_sha256\":\"%s\",\"target_modules\":[\"q_proj\",\"v_proj\"],"
                  "\"verdict\":\"%s\",\"lifecycle\":"
                  "\"load-train-save-reload-generate\",\"trust_remote_code\":false}\n",
                  in("model"), revision, in("model"), revision, revision, verdict);
    file_put(in("report.json"), text.text);
    ag_str_free(&text);
}

static int set_up(void **state)
{
    ag_err err;
    ag_sha256 digest;
    ag_str rows = {0};
    (void)state;
    snprintf(dir, sizeof dir, "%s/repository", scratch_dir_create());
    must(ag_make_dirs(dir, &err));
    tiny_folder_make(dir);
    must(ag_model_content_revision(&digest, in("model"), 1, &err));
    snprintf(revision, sizeof revision, "%s", digest.hex);
    for (int i = 0; i < 24; i++)
        ag_str_printf(&rows,
                      "{\"canonical_id\":\"t%02d\",\"text\":\"the light holds %d\\nby night\",\"completion_start_char\":%d}\n",
                      i, i, i < 10 ? 17 : 18);
    file_put(in("source.jsonl"), rows.text);
    ag_str_free(&rows);
    write_report("pass");
    file_put(in(".gitignore"), "/e*/\n");
    RUN(0, NULL, "freeze-split", "--source", "source.jsonl", "--source-path", "source.jsonl", "--output-dir", "frozen",
        "--source-repository", "o/d", "--source-revision", REVISION, "--dataset-version", "v1", "--seed", "3", "--salt", "s1",
        "--train-weight", "6", "--validation-weight", "2", "--held-out-weight", "2");
    GIT("init", "-q");
    GIT("add", "-A");
    GIT("commit", "-qm", "start");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ag_arena_free(&arena);
    scratch_dir_remove();
    return 0;
}

static void an_experiment_is_frozen_from_a_clean_commit_and_a_passed_report(void **state)
{
    (void)state;
    file_append(in("source.jsonl"), "\n");
    RUN(1, "commit or undo the changes, then freeze", FREEZE("e-dirty"));
    GIT("checkout", "-q", "source.jsonl");
    write_report("fail");
    GIT("commit", "-qam", "a report that failed");
    RUN(1, "verdict is 'fail', not pass", FREEZE("e-failed"));
    write_report("pass");
    GIT("commit", "-qam", "and passed");
    RUN(0, NULL, FREEZE("e1"));
    RUN(1, "is not written over", FREEZE("e1"));
    char *contract = file_text(in("e1/experiment-contract.json")), *line = file_text(in("e1/experiment-contract.sha256"));
    assert_int_equal(0, strncmp(ag_sha256_bytes(contract, strlen(contract)).hex, line, 64));
    assert_non_null(strstr(contract, "\"budget_id\":\"granite-4.1-first-sft-budget-v1\""));
    assert_non_null(strstr(contract, "\"manifest_path\":\"../frozen/split_manifest.json\""));
    free(contract);
    free(line);
}

static void a_run_goes_from_base_scores_to_a_comparison_and_on_after_a_kill(void **state)
{
    (void)state;
    ag_err err;
    const char *const words[] = {"run-granite-first-sft", "--contract", "e1/experiment-contract.json", "--threads", "2", NULL};
    for (int i = 0; i < 4; i++) { /* stopped at four places or finished early, then run to the end */
        const pid_t child = start(getenv("AGOGE_BIN"), words);
        usleep((useconds_t)(20000 + i * 120000));
        kill(child, SIGTERM);
        const int code = finish(child);
        assert_true(code == 143 || code == 0);
        if (code == 0) break;
    }
    if (access(in("e1/comparison.json"), F_OK) != 0) expect(0, NULL, getenv("AGOGE_BIN"), words);
    static const char *const files[] = {"g0-contract.json",
                                        "g0-base/generations.jsonl",
                                        "g1-sft/generations.jsonl",
                                        "g1-sft/metrics.json",
                                        "comparison.json",
                                        "regressions.jsonl",
                                        "training-results.json",
                                        "report.md",
                                        "reproduction.md",
                                        "evaluation-contract.json",
                                        "training/sft/adapter_model.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (access(in(ag_path_join(&arena, "e1", files[i])), F_OK) != 0) fail_msg("%s is missing", files[i]);
    json_t *comparison;
    must(ag_json_load(&comparison, in("e1/comparison.json"), 1 << 20, &err));
    assert_string_equal("scored", json_string_value(json_object_get(comparison, "status")));
    assert_true(json_integer_value(json_object_get(comparison, "n_tasks")) > 0);
    json_decref(comparison);
    char *text = file_text(in("e1/reproduction.md"));
    assert_non_null(strstr(text, "the two agree to the byte"));
    free(text);
    expect(1, "the experiment was run", getenv("AGOGE_BIN"), words);
}

static void a_stage_that_fails_concludes_nothing(void **state)
{
    (void)state;
    ag_err err;
    RUN(0, NULL, FREEZE("e2"));
    file_replace(in("model/config.json"), "\"hidden_act\": \"silu\"",
                 "\"hidden_act\": \"relu\""); /* the model is no longer the one that was qualified */
    RUN(1, "scoring the base failed with exit code 1", "run-granite-first-sft", "--contract", "e2/experiment-contract.json");
    file_replace(in("model/config.json"), "\"hidden_act\": \"relu\"", "\"hidden_act\": \"silu\"");
    json_t *comparison;
    must(ag_json_load(&comparison, in("e2/comparison.json"), 1 << 20, &err));
    assert_string_equal("not_run", json_string_value(json_object_get(comparison, "status")));
    assert_string_equal("g0-base", json_string_value(json_object_get(comparison, "failed_stage")));
    assert_null(json_object_get(comparison, "conclusion"));
    json_decref(comparison);
    file_append(in("e2/experiment-contract.json"), " ");
    RUN(1, "the contract was changed, freeze a new one", "run-granite-first-sft", "--contract", "e2/experiment-contract.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_experiment_is_frozen_from_a_clean_commit_and_a_passed_report),
        cmocka_unit_test(a_run_goes_from_base_scores_to_a_comparison_and_on_after_a_kill),
        cmocka_unit_test(a_stage_that_fails_concludes_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
