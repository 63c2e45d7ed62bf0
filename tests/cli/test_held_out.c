/* From a frozen split to a published comparison with the real program (AGOGE_BIN): the provenance gate of training,
 * held-out-eval, and what both refuse. */
#define _GNU_SOURCE
#include "support/file_tools.h"
#include "support/scratch_dir.h"
#include "support/tiny_folder.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "base/json.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define REVISION "0123456789abcdef0123456789abcdef01234567"
enum { ROWS = 40 };

static char dir[256], revision[65];

/* ---- the program ------------------------------------------------------------------------------------------------- */
enum { MOST_WORDS = 48 };

static pid_t start(const char *const *words)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    const char *argv[MOST_WORDS] = {getenv("AGOGE_BIN")};
    for (int n = 1; *words; n++) argv[n] = *words++;
    if (chdir(dir) || !freopen("said.err", "w", stderr) || !freopen("said.out", "w", stdout)) _exit(99);
    execv(argv[0], (char *const *)argv);
    _exit(98);
}

static int finish(pid_t child)
{
    int status;
    assert_int_equal(child, waitpid(child, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static const char *in_dir(const char *name)
{
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void expect(int code, const char *sentence, const char *const *words)
{
    const int got = finish(start(words));
    char *said = file_text(in_dir("said.err"));
    if (got != code || (sentence && !strstr(said, sentence)))
        fail_msg("exit code %d, want %d and '%s': %s", got, code, sentence ? sentence : "", said);
    free(said);
}
#define RUN(code, sentence, ...) expect(code, sentence, (const char *const[]){__VA_ARGS__, NULL})

/* ---- the world: a model, rows whose completions the base itself gave, a frozen split, an adapter ----------------- */
#define EVALUATE                                                                                                               \
    "held-out-eval", "--split-manifest", "frozen/split_manifest.json", "--base-model-id", "model", "--base-revision",          \
        revision, "--max-new-tokens", "12", "--context-window", "64"

/* What generate says to the prompt, as JSON text. */
static char *answer_to(const char *prompt)
{
    ag_err err;
    json_t *root;
    RUN(0, NULL, "generate", "--model", "model", "--prompt", prompt, "--max-new-tokens", "12", "--format", "json");
    must(ag_json_load(&root, in_dir("said.out"), 1 << 20, &err));
    char *text = json_dumps(json_object_get(root, "text"), JSON_ENCODE_ANY);
    ag_json_free(&root);
    return text;
}

static void write_source(void)
{
    static const char *const words[] = {"the light", "holds a ship", "of salt", "and wind", "goes home", "by night"};
    ag_str rows = {0};
    for (int i = 0; i < ROWS; i++) {
        char prompt[256];
        snprintf(prompt, sizeof prompt, "%s %d %s", words[i % 6], i,
                 i == 7 ? "on and on and on and on and on and on and on and on and on" : words[i / 6 % 6]);
        char *answer = i % 4 == 0 ? strdup("\"something else\"") : answer_to(prompt);
        ag_str_printf(&rows, "{\"canonical_id\":\"t%02d\",\"text\":\"%s%.*s\"", i, prompt, (int)strlen(answer) - 2, answer + 1);
        if (i != 9) ag_str_printf(&rows, ",\"completion_start_char\":%zu", strlen(prompt));
        ag_str_add(&rows, i == 7 || i == 9 ? ",\"group_id\":\"odd ones\"}\n" : "}\n"); /* a group that falls to held_out */
        free(answer);
    }
    file_put(in_dir("source.jsonl"), rows.text);
    ag_str_free(&rows);
}

static void write_config(void)
{
    char text[1024];
    snprintf(
        text, sizeof text,
        "model_id: model\ndataset_path: frozen/splits/train.jsonl\noutput_dir: out\nrun_name: sealed\nmax_seq_length: 128\n"
        "lora_r: 4\nlearning_rate: 0.05\nload_in_4bit: false\nbatch_size: 2\ngradient_accumulation_steps: 1\n");
    file_put(in_dir("run.yaml"), text);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s", scratch_dir_create());
    tiny_folder_make(dir);
    write_source();
    write_config();
    RUN(0, NULL, "freeze-split", "--source", "source.jsonl", "--source-path", "data/source.jsonl", "--output-dir", "frozen",
        "--source-repository", "o/d", "--source-revision", REVISION, "--dataset-version", "v1", "--seed", "3", "--salt", "s1",
        "--train-weight", "2", "--validation-weight", "1", "--held-out-weight", "7");
    RUN(0, "its provenance is named by its content", "train-qlora", "--config", "run.yaml");
    ag_err err;
    json_t *index;
    must(ag_json_load(&index, in_dir("out/sealed/artifact_index.json"), 1 << 20, &err));
    snprintf(revision, sizeof revision, "%s",
             json_string_value(json_object_get(json_object_get(index, "producer_provenance"), "revision")));
    ag_json_free(&index);
    assert_int_equal(64, strlen(revision));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_dir_remove();
    return 0;
}

static json_t *load(const char *name)
{
    ag_err err;
    json_t *root;
    must(ag_json_load(&root, in_dir(name), 1 << 24, &err));
    return root;
}

static json_int_t number(const json_t *object, const char *key) { return json_integer_value(json_object_get(object, key)); }
static const char *word(const json_t *object, const char *key) { return json_string_value(json_object_get(object, key)); }

static const char *const bundle_files[] = {"contract.json",         "base/generations.jsonl", "base/metrics.json",
                                           "sft/generations.jsonl", "sft/metrics.json",       "comparison.json",
                                           "regressions.jsonl",     "statistics.json",        "report.md"};

static void expect_same_bundle(const char *one, const char *two)
{
    for (size_t i = 0; i < sizeof bundle_files / sizeof *bundle_files; i++) {
        char a[512], b[512];
        snprintf(a, sizeof a, "%s/%s/%s", dir, one, bundle_files[i]);
        snprintf(b, sizeof b, "%s/%s/%s", dir, two, bundle_files[i]);
        char *x = file_text(a), *y = file_text(b);
        if (strcmp(x, y) != 0) fail_msg("%s of %s and %s differ", bundle_files[i], one, two);
        free(x);
        free(y);
    }
}

/* ---- the gate of training ---------------------------------------------------------------------------------------- */
static void an_index_carries_where_the_adapter_comes_from(void **state)
{
    (void)state;
    json_t *index = load("out/sealed/artifact_index.json"), *config = load("out/sealed/adapter_config.json"),
           *manifest = load("runs/sealed/manifest.json");
    const json_t *p = json_object_get(index, "producer_provenance");
    assert_int_equal(5, json_object_size(p));
    assert_string_equal("model", word(p, "base_model_name_or_path"));
    assert_string_equal("train", word(p, "training_split_name"));
    assert_string_equal(revision, word(config, "revision"));
    assert_string_equal(revision, word(json_object_get(manifest, "config"), "revision"));
    json_t *split = load("frozen/split_manifest.json");
    assert_string_equal(word(json_object_get(json_object_get(split, "splits"), "train"), "sha256"),
                        word(p, "training_split_sha256"));
    json_decref(index);
    json_decref(config);
    json_decref(manifest);
    json_decref(split);
}

static void provenance_that_cannot_be_constructed_refuses_the_run(void **state)
{
    (void)state;
#define GATE "producer provenance cannot be constructed: "
    RUN(1, GATE, "train-qlora", "--config", "run.yaml", "--set", "dataset_path=frozen/splits/validation.jsonl");
    RUN(1, "is not the train split of", "train-qlora", "--config", "run.yaml", "--set",
        "dataset_path=frozen/splits/validation.jsonl");
    RUN(1, GATE "revision 'main' of model may move", "train-qlora", "--config", "run.yaml", "--set", "revision=main");
    file_tree_copy(in_dir("frozen"), in_dir("touched"));
    file_append(in_dir("touched/splits/held_out.jsonl"), "\n");
    RUN(1, GATE, "train-qlora", "--config", "run.yaml", "--set", "dataset_path=touched/splits/train.jsonl");
    RUN(1, "the split was changed after it was frozen", "train-qlora", "--config", "run.yaml", "--set",
        "dataset_path=touched/splits/train.jsonl");
}

static void an_unfrozen_dataset_trains_without_provenance_and_says_so(void **state)
{
    (void)state;
    RUN(0, "is not a frozen train split", "train-qlora", "--config", "run.yaml", "--set", "dataset_path=rows.jsonl", "--set",
        "run_name=plain");
    json_t *index = load("out/plain/artifact_index.json");
    assert_null(json_object_get(index, "producer_provenance"));
    json_decref(index);
    RUN(1, "carries no producer_provenance; train on a frozen train split", EVALUATE, "--sft-artifact", "out/plain",
        "--output-dir", "eval/plain");
}

/* ---- held-out-eval ----------------------------------------------------------------------------------------------- */
static void both_arms_are_asked_the_same_and_the_base_answers_as_generate_does(void **state) /* 49 */
{
    (void)state;
    RUN(0, NULL, EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "eval/whole", "--format", "json");
    json_t *contract = load("eval/whole/contract.json"), *split = load("frozen/split_manifest.json"),
           *base = load("eval/whole/base/metrics.json"), *comparison = load("eval/whole/comparison.json"),
           *result = load("said.out");
    const json_t *members = json_object_get(json_object_get(json_object_get(split, "splits"), "held_out"), "members");
    const size_t n = json_array_size(members);
    size_t n_own = 0;
    int n_refused = 0;
    for (size_t i = 0; i < n; i++) { /* which the base itself completed when the rows were written */
        const int at = atoi(word(json_array_get(members, i), "canonical_id") + 1);
        n_own += at % 4 != 0 && at != 7 && at != 9;
        n_refused += at == 7 || at == 9;
    }
    assert_int_equal(2, n_refused); /* the split has both */
    assert_int_equal(n, number(base, "n_tasks"));
    assert_true(number(base, "n_correct") + 4 >= (json_int_t)n_own &&
                number(base, "n_correct") <= (json_int_t)n_own); /* an answer may be blank */
    assert_true(number(base, "n_invalid") >= 2);
    assert_true(number(comparison, "n_regressed") > 0 && number(comparison, "n_regressed") + number(comparison, "n_improved") +
                                                                 number(comparison, "n_tied") +
                                                                 number(comparison, "n_invalid") ==
                                                             (json_int_t)n);
    assert_string_equal("causal_base", word(json_object_get(contract, "base"), "role"));
    assert_string_equal("causal_sft", word(json_object_get(contract, "sft"), "role"));
    assert_true(json_is_null(json_object_get(json_object_get(contract, "base"), "artifact")));
    assert_string_equal("peft_adapter", word(json_object_get(json_object_get(contract, "sft"), "artifact"), "kind"));
    assert_string_equal("../../out/sealed/artifact_index.json",
                        word(json_object_get(json_object_get(contract, "sft"), "artifact"), "artifact_index_path"));
    assert_string_equal("../../frozen/split_manifest.json", word(contract, "split_manifest_path"));
    assert_int_equal(17, number(json_object_get(json_object_get(contract, "base"), "decoding"), "seed"));
    assert_string_equal("mark_unsupported", word(json_object_get(contract, "base"), "truncation_policy"));
    assert_string_equal(word(comparison, "conclusion"), word(result, "conclusion"));
    assert_true(json_array_size(json_object_get(contract, "logical_task_ids")) == n);
    assert_int_equal(-1, access(in_dir("eval/.agoge-eval-whole"), F_OK)); /* the journal is gone */
    json_decref(contract);
    json_decref(split);
    json_decref(base);
    json_decref(comparison);
    json_decref(result);
    RUN(1, "agoge runs no code that comes with a model", EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "x",
        "--trust-remote-code");
}

static void rows_that_cannot_be_asked_are_marked(void **state) /* 52 */
{
    (void)state;
    char *rows = file_text(in_dir("eval/whole/base/generations.jsonl"));
    const char *over = strstr(rows, "\"status\":\"unsupported\",\"task_id\":\"t07\""),
               *invalid = strstr(rows, "\"status\":\"invalid\",\"task_id\":\"t09\"");
    assert_non_null(over);
    assert_non_null(invalid);
    assert_non_null(strstr(rows, "it is over the context window of 64\""));
    assert_non_null(strstr(rows, "\"reason\":\"completion_start_char is missing or no integer\""));
    free(rows);
    RUN(1, "task t07: its prompt has", EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "eval/r",
        "--truncation-policy", "reject");
    RUN(1, "--context-window 12 leaves no room", EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "eval/r",
        "--context-window", "12");
}

static void the_bundle_is_the_same_whatever_the_batch_and_the_threads(void **state)
{
    (void)state;
    RUN(0, NULL, EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "eval/one-by-one", "--batch", "1", "--threads", "1");
    expect_same_bundle("eval/whole", "eval/one-by-one");
    RUN(0, NULL, EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "eval/three", "--batch", "3", "--threads", "2");
    expect_same_bundle("eval/whole", "eval/three");
}

static void an_existing_output_is_refused(void **state) /* 52 */
{
    (void)state;
    RUN(1, "eval/whole exists already; it is not written over", EVALUATE, "--sft-artifact", "out/sealed", "--output-dir",
        "eval/whole");
}

static size_t bytes_of(const char *name)
{
    struct stat st;
    return stat(in_dir(name), &st) == 0 ? (size_t)st.st_size : 0;
}

/* Starts the program and sends it a signal as soon as these files have grown by so much, or lets it end; its exit code. */
static int run_until(const char *const *words, const char *one, const char *two, size_t bytes, unsigned more_us, int signal)
{
    const size_t before = bytes_of(one) + bytes_of(two);
    const pid_t child = start(words);
    siginfo_t info = {0};
    while (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0 &&
           bytes_of(one) + bytes_of(two) < before + bytes)
        usleep(200);
    usleep(more_us);
    kill(child, signal);
    return finish(child);
}

static void a_killed_evaluation_goes_on_to_the_same_bytes(void **state)
{
    (void)state;
    const char *const words[] = {EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "eval/killed", "--batch", "2", NULL};
    unsigned seed = 5, n_left = 0;
    for (unsigned i = 0; i < 12; i++) {
        if (run_until(words, "eval/.agoge-eval-killed/base.jsonl", "eval/.agoge-eval-killed/sft.jsonl", 1 + 500 * (i % 3),
                      (unsigned)rand_r(&seed) % 3000, SIGKILL) == 0) { /* the kill came too late */
            ag_err err;
            expect_same_bundle("eval/whole", "eval/killed");
            must(ag_remove_tree(in_dir("eval/killed"), &err));
        }
        n_left += access(in_dir("eval/.agoge-eval-killed/base.jsonl"), F_OK) == 0;
        if (access(in_dir("eval/killed"), F_OK) == 0) { /* killed behind the publication */
            ag_err err;
            expect_same_bundle("eval/whole", "eval/killed");
            must(ag_remove_tree(in_dir("eval/killed"), &err));
        }
    }
    assert_true(n_left > 3); /* else this tested nothing */
    if (bytes_of("eval/.agoge-eval-killed/base.jsonl") > 0)
        file_append(in_dir("eval/.agoge-eval-killed/base.jsonl"),
                    "0123456789abcdef {\"not\":\"ours\"}\n0123456789abcdef {\"half"); /* as a power cut leaves it */
    expect(0, NULL, words);
    expect_same_bundle("eval/whole", "eval/killed");
    assert_int_equal(-1, access(in_dir("eval/.agoge-eval-killed"), F_OK));
}

static void an_unfinished_evaluation_of_another_contract_is_not_mixed(void **state) /* 52 */
{
    (void)state;
    const char *const words[] = {EVALUATE,       "--sft-artifact", "out/sealed", "--output-dir",
                                 "eval/stopped", "--batch",        "1",          NULL};
    const int code = run_until(words, "eval/.agoge-eval-stopped/base.jsonl", "", 1, 0, SIGINT);
    assert_int_equal(130, code);
    assert_int_equal(0, access(in_dir("eval/.agoge-eval-stopped/contract.json"), F_OK));
    RUN(1, "was asked something else: base.decoding, sft.decoding differ", EVALUATE, "--sft-artifact", "out/sealed",
        "--output-dir", "eval/stopped", "--seed", "18");
    RUN(1, "cpu differ", EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "eval/stopped", "--cpu", "ref");
    RUN(0, NULL, EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "eval/stopped", "--restart");
    expect_same_bundle("eval/whole", "eval/stopped");
}

static void an_artifact_must_be_whole_safe_and_of_this_base_and_split(void **state)
{
    (void)state;
    ag_err err;
    file_tree_copy(in_dir("out/sealed"), in_dir("touched-adapter"));
    file_append(in_dir("touched-adapter/adapter_config.json"), " ");
    RUN(1, "adapter_config.json", EVALUATE, "--sft-artifact", "touched-adapter", "--output-dir", "eval/x");
    must(ag_remove_tree(in_dir("touched-adapter"), &err));
    file_tree_copy(in_dir("out/sealed"), in_dir("touched-adapter"));
    file_put(in_dir("touched-adapter/deep/down/adapter_model.bin"), "x");
    RUN(1, "which can hold code", EVALUATE, "--sft-artifact", "touched-adapter", "--output-dir", "eval/x");
    RUN(1, "lies inside the artifact", EVALUATE, "--sft-artifact", "out/sealed", "--output-dir", "out/sealed/eval");
    file_put(in_dir("nothing/readme.md"), "x");
    RUN(1, "has neither adapter_config.json nor config.json", EVALUATE, "--sft-artifact", "nothing", "--output-dir", "eval/x");
    RUN(1, "its content is", "held-out-eval", "--split-manifest", "frozen/split_manifest.json", "--base-model-id", "model",
        "--base-revision", "00000000000000000000000000000000000000000000000000000000000000ff", "--context-window", "64",
        "--max-new-tokens", "4", "--sft-artifact", "out/sealed", "--output-dir", "eval/x");
    RUN(1, "'main' may move", "held-out-eval", "--split-manifest", "frozen/split_manifest.json", "--base-model-id", "model",
        "--base-revision", "main", "--context-window", "64", "--sft-artifact", "out/sealed", "--output-dir", "eval/x");
    RUN(1, "was made with the base revision", "held-out-eval", "--split-manifest", "frozen/split_manifest.json",
        "--base-model-id", "model", "--base-revision", REVISION, "--context-window", "64", "--max-new-tokens", "4",
        "--sft-artifact", "out/sealed", "--output-dir", "eval/x");
    RUN(0, NULL, "freeze-split", "--source", "source.jsonl", "--source-path", "data/source.jsonl", "--output-dir", "other",
        "--source-repository", "o/d", "--source-revision", REVISION, "--dataset-version", "v2", "--seed", "4", "--salt", "s1",
        "--held-out-weight", "90");
    RUN(1, "was made with the split manifest", "held-out-eval", "--split-manifest", "other/split_manifest.json",
        "--base-model-id", "model", "--base-revision", revision, "--context-window", "64", "--max-new-tokens", "4",
        "--sft-artifact", "out/sealed", "--output-dir", "eval/x");
    assert_int_equal(-1, access(in_dir("eval/x"), F_OK));
}

static void a_merged_model_is_an_artifact_too(void **state)
{
    (void)state;
    RUN(0, NULL, "export-final-model", "--run-dir", "out/sealed", "--out-dir", "merged/sealed");
    RUN(0, NULL, EVALUATE, "--sft-artifact", "merged/sealed", "--output-dir", "eval/merged");
    json_t *contract = load("eval/merged/contract.json");
    assert_string_equal("merged_model", word(json_object_get(json_object_get(contract, "sft"), "artifact"), "kind"));
    json_decref(contract);
    char *of_adapter = file_text(in_dir("eval/whole/base/generations.jsonl")),
         *of_merged = file_text(in_dir("eval/merged/base/generations.jsonl"));
    assert_string_equal(of_adapter, of_merged);
    free(of_adapter);
    free(of_merged);
}

static void the_base_alone_can_be_asked_beforehand(void **state)
{
    (void)state;
    RUN(0, NULL, "g0-held-out-eval", "--experiment-id", "e1", "--split-manifest", "frozen/split_manifest.json",
        "--base-model-id", "model", "--base-revision", revision, "--max-new-tokens", "12", "--context-window", "64",
        "--output-dir", "eval/g0");
    char *g0 = file_text(in_dir("eval/g0/g0-base/generations.jsonl")),
         *base = file_text(in_dir("eval/whole/base/generations.jsonl"));
    assert_string_equal(base, g0);
    free(g0);
    free(base);
    assert_int_equal(0, access(in_dir("eval/g0/g0-contract.json"), F_OK));
    assert_int_equal(-1, access(in_dir("eval/g0/comparison.json"), F_OK));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_carries_where_the_adapter_comes_from),
        cmocka_unit_test(provenance_that_cannot_be_constructed_refuses_the_run),
        cmocka_unit_test(an_unfrozen_dataset_trains_without_provenance_and_says_so),
        cmocka_unit_test(both_arms_are_asked_the_same_and_the_base_answers_as_generate_does),
        cmocka_unit_test(rows_that_cannot_be_asked_are_marked),
        cmocka_unit_test(the_bundle_is_the_same_whatever_the_batch_and_the_threads),
        cmocka_unit_test(an_existing_output_is_refused),
        cmocka_unit_test(a_killed_evaluation_goes_on_to_the_same_bytes),
        cmocka_unit_test(an_unfinished_evaluation_of_another_contract_is_not_mixed),
        cmocka_unit_test(an_artifact_must_be_whole_safe_and_of_this_base_and_split),
        cmocka_unit_test(a_merged_model_is_an_artifact_too),
        cmocka_unit_test(the_base_alone_can_be_asked_beforehand),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
