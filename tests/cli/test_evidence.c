/* A run's evidence, with the real program (AGOGE_BIN): telemetry, sealed bundle, verification, replay, export. */
#define _GNU_SOURCE
#include "support/file_tools.h"
#include "support/scratch_dir.h"
#include "support/tiny_folder.h"
#include "support/unit_test.h"

#include "base/digest.h"
#include "base/fs.h"
#include "base/json.h"
#include "lab/f0_record.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define REVISION "0123456789abcdef0123456789abcdef01234567"
enum { ROWS = 36, MOST_WORDS = 40 };

static char dir[256], revision[65];

/* ---- the program ----------------------------------------------------------------------------------------------------- */
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
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const char *argv[MOST_WORDS] = {getenv("AGOGE_BIN")};
        for (int n = 1; *words; n++) argv[n] = *words++;
        if (chdir(dir) || !freopen("said.err", "w", stderr) || !freopen("said.out", "w", stdout)) _exit(99);
        execv(argv[0], (char *const *)argv);
        _exit(98);
    }
    assert_int_equal(child, waitpid(child, &status, 0));
    const int got = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    char *out = file_text(in_dir("said.out")), *err = file_text(in_dir("said.err"));
    if (got != code || (sentence && !strstr(out, sentence) && !strstr(err, sentence)))
        fail_msg("exit code %d, want %d and '%s'; it said:\n%s%s", got, code, sentence ? sentence : "", out, err);
    free(out);
    free(err);
}
#define RUN(code, sentence, ...) expect(code, sentence, (const char *const[]){__VA_ARGS__, NULL})

static json_t *load(const char *name)
{
    ag_err err;
    json_t *root;
    must(ag_json_load(&root, in_dir(name), 16 << 20, &err));
    return root;
}

/* ---- the world: a tiny model, a frozen split, a run on it, its evaluation, a bundle of all --------------------------- */
static void write_source(void)
{
    ag_str rows = {0};
    for (int i = 0; i < ROWS; i++)
        ag_str_printf(&rows, "{\"canonical_id\":\"t%02d\",\"text\":\"the light of ship %d goes home\",\"completion_start_char\":%d}\n", i,
                      i, i < 10 ? 19 : 20);
    file_put(in_dir("source.jsonl"), rows.text);
    ag_str_free(&rows);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s", scratch_dir_create());
    tiny_folder_make(dir);
    write_source();
    file_put(
        in_dir("run.yaml"),
        "model_id: model\ndataset_path: frozen/splits/train.jsonl\noutput_dir: adapters\nrun_name: t\nmax_seq_length: 64\nlora_r: 4\n"
        "learning_rate: 0.01\nsave_steps: 2\nsave_total_limit: null\nmax_steps: 6\ngradient_accumulation_steps: 2\n");
    RUN(0, NULL, "freeze-split", "--source", "source.jsonl", "--source-path", "data/source.jsonl", "--output-dir", "frozen",
        "--source-repository", "o/d", "--source-revision", REVISION, "--dataset-version", "v1", "--seed", "3", "--salt", "s1",
        "--train-weight", "6", "--validation-weight", "2", "--held-out-weight", "2");
    RUN(0, NULL, "train-qlora", "--config", "run.yaml", "--run-id", "id-1", "--profile-window", "train:2-2", "--threads", "2");
    json_t *index = load("adapters/t/artifact_index.json");
    snprintf(revision, sizeof revision, "%s",
             json_string_value(json_object_get(json_object_get(index, "producer_provenance"), "revision")));
    ag_json_free(&index);
    RUN(0, NULL, "held-out-eval", "--split-manifest", "frozen/split_manifest.json", "--base-model-id", "model", "--base-revision",
        revision, "--sft-artifact", "adapters/t", "--output-dir", "eval", "--max-new-tokens", "4", "--context-window", "64");
    RUN(0, "\"verdict\": \"pass\"", "seal-bundle", "bundle", "--run-dir", "adapters/t", "--run-manifest", "runs/t/manifest.json",
        "--split-manifest", "frozen/split_manifest.json", "--contract", "eval/contract.json");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_dir_remove();
    return 0;
}

/* ---- bundles --------------------------------------------------------------------------------------------------------- */
static void what_was_sealed_verifies_and_a_changed_byte_does_not(void **state)
{
    (void)state;
    char want[1024];
    RUN(0, NULL, "verify-bundle", "bundle");
    char *said = file_text(in_dir("said.out"));
    snprintf(want, sizeof want,
             "{\n  \"schema_version\": \"agoge.bundle-verification.v1\",\n  \"verdict\": \"pass\",\n  \"bundle_path\": \"%s/bundle\",\n"
             "  \"bundle_schema_version\": \"agoge.reproducibility-bundle.v1\",\n  \"failures\": []\n}\n",
             dir);
    assert_string_equal(said, want);
    free(said);
    /* The markers' config_digest is that of the locked config without its newline. */
    char *locked = file_text(in_dir("bundle/config/locked.json")), *markers = file_text(in_dir("runs/t/telemetry/agoge-markers.jsonl"));
    snprintf(want, sizeof want, "\"config_digest\":\"sha256:%s\"", ag_sha256_bytes(locked, strlen(locked) - 1).hex);
    assert_non_null(strstr(markers, want));
    free(locked);
    free(markers);
    RUN(0, "verdict               pass\n", "verify-bundle", "bundle", "--format", "table");
    RUN(1, "does not exist", "verify-bundle", "nowhere");
    RUN(1, "may not hold the component '..'", "verify-bundle", "bundle/../bundle");
    RUN(2, "--format", "verify-bundle", "bundle", "--format", "xml");
    RUN(2, NULL, "verify-bundle");
    file_tree_copy(in_dir("bundle"), in_dir("tampered"));
    file_append(in_dir("tampered/run/metrics.jsonl"), "\n");
    RUN(1, "  modified_file: run/metrics.jsonl: has ", "verify-bundle", "tampered", "--format", "table");
    RUN(1, "does not verify (2 failures), so its record proves nothing", "replay", "--bundle", "tampered", "--from", "checkpoint-2");
    RUN(1, "exists already", "seal-bundle", "bundle", "--run-dir", "adapters/t", "--run-manifest", "runs/t/manifest.json",
        "--split-manifest", "frozen/split_manifest.json", "--contract", "eval/contract.json");
    RUN(2, "give all four", "seal-bundle", "other", "--run-dir", "adapters/t");
    RUN(0, "\"verdict\": \"pass\"", "seal-bundle", "tampered"); /* whoever may write to it can seal it: a key tells who did */
}

static void a_key_that_is_demanded_must_have_signed(void **state)
{
    (void)state;
    char key[512], public_key[512], other[512];
    snprintf(key, sizeof key, "%s/golden/seal/key.pem", AGOGE_TESTS_DIR);
    snprintf(public_key, sizeof public_key, "%s/golden/seal/key.pub.pem", AGOGE_TESTS_DIR);
    snprintf(other, sizeof other, "%s/golden/seal/other.pub.pem", AGOGE_TESTS_DIR);
    RUN(1, "\"signature\": \"failed\"", "verify-bundle", "bundle", "--verify-key", public_key);
    file_tree_copy(in_dir("bundle"), in_dir("signed"));
    RUN(0, "\"signature\": \"verified\"", "seal-bundle", "signed", "--sign-key", key);
    RUN(0, "\"signature\": \"verified\"", "verify-bundle", "signed", "--verify-key", public_key);
    RUN(0, "signature             not checked\n", "verify-bundle", "signed", "--format", "table");
    RUN(1, "another key made it", "verify-bundle", "signed", "--verify-key", other);
    RUN(1, "no public key", "verify-bundle", "signed", "--verify-key", key);
}

static void an_evaluation_whose_numbers_do_not_follow_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *file, *old, *new, *sentence;
    } cases[] = {
        {"evaluation/base/generations.jsonl", "\"expected_completion\":\"", "\"expected_completion\":\"x",
         "row 1 does not ask what the held-out row asks"},
        {"evaluation/sft/generations.jsonl", "\"task_id\":\"t", "\"task_id\":\"u",
         "its rows are not the contract's tasks in their order"},
        {"evaluation/sft/metrics.json", "\"n_correct\":", "\"n_correct\":1", "evaluation/sft/metrics.json"},
        {"evaluation/base/metrics.json", "causal_base", "causal_sft", "another role or scorer"},
        {"evaluation/comparison.json", "\"n_tied\":", "\"n_tied\":1", "does not say what follows from the scores"},
        {"evaluation/comparison.json", "\"conclusion\":\"", "\"conclusion\":\"not ", "does not say what follows from the scores"},
        {"evaluation/comparison.json", "paired-comparison.v1", "paired-comparison.v2", "unknown_schema_version"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ag_err err;
        char path[256];
        snprintf(path, sizeof path, "wrong/%s", cases[i].file);
        file_tree_copy(in_dir("bundle"), in_dir("wrong"));
        file_replace(in_dir(path), cases[i].old, cases[i].new);
        RUN(1, cases[i].sentence, "seal-bundle", "wrong", "--format", "table");
        must(ag_remove_tree(in_dir("wrong"), &err));
    }
    ag_err err;
    file_tree_copy(in_dir("bundle"), in_dir("wrong"));
    must(ag_remove_tree(in_dir("wrong/evaluation/sft/generations.jsonl"), &err));
    RUN(1, "missing_file: evaluation/sft/generations.jsonl: belongs to the evaluation", "seal-bundle", "wrong", "--format", "table");
}

/* ---- replay ---------------------------------------------------------------------------------------------------------- */
static void a_replay_gives_the_same_bits_for_any_number_of_threads(void **state)
{
    (void)state;
    RUN(0, "same bits: 4 steps from checkpoint-2 (loss and gradient norm), 2 adapters", "replay", "--bundle", "bundle", "--from",
        "checkpoint-2", "--steps", "4", "--threads", "1");
    RUN(0, "threads", "replay", "--bundle", "bundle", "--from", "start", "--steps", "6", "--threads", "3");
    RUN(0, "same bits: 2 steps", "replay", "--run-dir", "adapters/t", "--from", "checkpoint-4", "--steps", "2");
    RUN(0, NULL, "replay", "--bundle", "bundle", "--from", "checkpoint-4", "--steps", "2", "--format", "json");
    json_t *root = load("said.out");
    assert_string_equal(json_string_value(json_object_get(root, "verdict")), "same");
    assert_true(json_is_null(json_object_get(root, "first_difference")));
    assert_int_equal(json_integer_value(json_object_get(root, "steps_compared")), 2);
    assert_int_equal(json_integer_value(json_object_get(root, "adapters_compared")), 1);
    ag_json_free(&root);
}

static void a_replay_names_the_first_step_that_differs(void **state)
{
    (void)state;
    file_tree_copy(in_dir("runs"), in_dir("changed"));
    char *line = file_text(in_dir("changed/t/metrics.jsonl")), *fourth = strstr(line, "{\"step\": 4"),
         *norm = strstr(fourth, "\"grad_norm\": ") + 13;
    norm[strcspn(norm, ",") - 1] ^= 1; /* the last digit */
    file_put(in_dir("changed/t/metrics.jsonl"), line);
    free(line);
    RUN(1, "differs: step 4, grad_norm: recorded ", "replay", "--run-dir", "adapters/t", "--metrics", "changed/t/metrics.jsonl", "--from",
        "checkpoint-2", "--steps", "4");
    RUN(0, "same bits: 1 steps", "replay", "--run-dir", "adapters/t", "--metrics", "changed/t/metrics.jsonl", "--from", "checkpoint-2",
        "--steps", "1");
    file_replace(in_dir("changed/t/manifest.json"), "\"learning_rate\": 0.01", "\"learning_rate\": 0.02");
    RUN(1, "differs: step 2, loss: recorded ", "replay", "--run-dir", "adapters/t", "--run-manifest", "changed/t/manifest.json",
        "--metrics", "runs/t/metrics.jsonl", "--from", "start", "--steps", "4");
    /* Another base under the same config. */
    file_tree_copy(in_dir("model"), in_dir("other"));
    FILE *weights = fopen(in_dir("other/model.safetensors"), "r+b");
    fseek(weights, -64, SEEK_END);
    fputc(0x3e, weights);
    fclose(weights);
    RUN(1, "base model: model.safetensors", "replay", "--bundle", "bundle", "--from", "checkpoint-2", "--steps", "1", "--model", "other");
}

static void what_cannot_be_replayed_is_said_in_one_sentence(void **state)
{
    (void)state;
    RUN(1, "there are: start, checkpoint-2, checkpoint-4, checkpoint-6", "replay", "--bundle", "bundle", "--from", "checkpoint-3");
    RUN(2, "--from takes checkpoint-<step> or start", "replay", "--bundle", "bundle", "--from", "yesterday");
    RUN(2, "one of --bundle and --run-dir", "replay", "--from", "start");
    RUN(1, "the run has 6 steps; 5 behind step 4 are not there, ask for at most 2", "replay", "--bundle", "bundle", "--from",
        "checkpoint-4", "--steps", "5");
    file_tree_copy(in_dir("runs"), in_dir("foreign"));
    file_replace(in_dir("foreign/t/manifest.json"), "\"packing\": false", "\"packing\": false, \"from_the_future\": 1");
    RUN(1, "the key 'from_the_future', which this version does not know", "replay", "--run-dir", "adapters/t", "--run-manifest",
        "foreign/t/manifest.json", "--from", "start");
    char *lines = file_text(in_dir("runs/t/metrics.jsonl")), *cpu = strstr(strstr(lines, "{\"step\": 4"), "\"cpu\": \"") + 8;
    cpu[0] = 'z';
    file_put(in_dir("foreign/t/metrics.jsonl"), lines);
    free(lines);
    RUN(1, "were computed at different levels", "replay", "--run-dir", "adapters/t", "--metrics", "foreign/t/metrics.jsonl", "--from",
        "checkpoint-2", "--steps", "4");
    RUN(1, "metrics.jsonl", "replay", "--run-dir", "adapters/t", "--metrics", "nowhere/metrics.jsonl", "--from", "start");
}

/* ---- telemetry ------------------------------------------------------------------------------------------------------- */
typedef struct {
    char *text, *at;
    json_t *root;
} marker_stream;

static bool next_marker(marker_stream *s)
{
    ag_err err;
    ag_json_free(&s->root);
    if (!*s->at) return false;
    char *end = strchr(s->at, '\n');
    assert_non_null(end);
    must(ag_json_parse(&s->root, s->at, (size_t)(end - s->at), "marker", &err));
    s->at = end + 1;
    return true;
}

static const char *field(const marker_stream *s, const char *key) { return json_string_value(json_object_get(s->root, key)); }

static void a_window_on_step_2_marks_it_and_measures_it(void **state)
{
    (void)state;
    static const char id[] = "id-1:train:2-2";
    marker_stream s = {.text = file_text(in_dir("runs/t/telemetry/agoge-markers.jsonl"))};
    s.at = s.text;
    ag_str events = {0};
    json_int_t last = 0;
    while (next_marker(&s)) {
        const json_int_t step = json_integer_value(json_object_get(s.root, "global_step")),
                         now = json_integer_value(json_object_get(s.root, "monotonic_ns"));
        const char *event = field(&s, "event"), *ref = field(&s, "profile_window_ref");
        assert_true(now > last);
        last = now;
        assert_string_equal(field(&s, "agoge_run_id"), "id-1");
        assert_string_equal(field(&s, "model_revision"), revision);
        assert_int_equal(strncmp(json_string_value(json_object_get(json_object_get(s.root, "dataset"), "config_digest")), "sha256:", 7), 0);
        if (step == 2 && (strncmp(event, "step_", 5) == 0 || strncmp(event, "profile", 7) == 0)) assert_string_equal(ref, id);
        else assert_null(ref);
        if (step <= 2 || strncmp(event, "step_", 5) != 0) ag_str_printf(&events, "%s %lld\n", event, (long long)step);
    }
    assert_string_equal(
        events.text,
        "run_start 0\ntrain_start 0\nstep_begin 1\nstep_end 1\nprofile_window_start 2\nstep_begin 2\nstep_end 2\nprofile_window_end 2\n"
        "checkpoint_complete 2\ncheckpoint_complete 4\ncheckpoint_complete 6\ntrain_end 6\n");
    ag_str_free(&events);
    free(s.text);
    ag_err err;
    ag_f0_stream stream = {0};
    must(ag_f0_stream_load(&stream, in_dir("runs/t/telemetry/agoge-markers.jsonl"), AG_F0_MARKER,
                           &err)); /* as the kernel lab's checkers read it */
    assert_int_equal(stream.n, 2 + 2 * 6 + 2 + 3 + 1);
    ag_f0_stream_free(&stream);

    json_t *window = load("runs/t/telemetry/profile-window.json"), *request = load("runs/t/telemetry/profile-window-request.json");
    json_t *trace = load("runs/t/telemetry/profile-trace.json");
    const json_t *overhead = json_object_get(window, "overhead"), *duration = json_object_get(window, "kernel_duration");
    assert_true(json_is_true(json_object_get(window, "complete")));
    assert_int_equal(json_integer_value(json_object_get(window, "actual_end_step")), 2);
    assert_string_equal(json_string_value(json_object_get(overhead, "status")), "ok");
    assert_true(json_real_value(json_object_get(overhead, "unprofiled_step_mean_s")) > 0);
    assert_true(json_array_size(json_object_get(window, "kernels")) > 8);
    const json_int_t n_calls = json_integer_value(json_object_get(duration, "count")),
                     n_events = json_integer_value(json_object_get(window, "events"));
    assert_true(n_calls > 100 && n_calls <= n_events); /* an op that calls another is one call and two events */
    assert_int_equal(json_array_size(json_object_get(trace, "traceEvents")), n_events + 2); /* the process's name, the step */
    assert_string_equal(json_string_value(json_object_get(json_object_get(json_object_get(request, "backends"), "cupti"), "status")),
                        "unsupported");
    assert_true(json_is_null(json_object_get(request, "reason")));
    ag_json_free(&window);
    ag_json_free(&request);
    ag_json_free(&trace);
}

static void a_default_run_starts_no_profiler_but_writes_markers_and_the_request(void **state)
{
    (void)state;
    RUN(0, NULL, "train-qlora", "--config", "run.yaml", "--set", "run_name=plain", "--set", "max_steps=1");
    json_t *request = load("runs/plain/telemetry/profile-window-request.json"), *manifest = load("runs/plain/manifest.json");
    assert_true(json_is_false(json_object_get(request, "enabled")));
    assert_true(json_is_null(json_object_get(request, "profile_window_id")));
    assert_string_equal(json_string_value(json_object_get(request, "reason")), "profile window disabled");
    assert_false(ag_path_is_file(in_dir("runs/plain/telemetry/profile-window.json")));
    const json_t *telemetry = json_object_get(json_object_get(manifest, "metrics"), "telemetry");
    assert_true(json_is_null(json_object_get(telemetry, "profile_window")));
    assert_string_equal(json_string_value(json_object_get(telemetry, "markers")), "runs/plain/telemetry/agoge-markers.jsonl");
    assert_string_equal(json_string_value(json_object_get(json_object_get(manifest, "environment"), "cuda_version")), "None");
    assert_true(json_is_object(json_object_get(manifest, "git")));
    ag_json_free(&request);
    ag_json_free(&manifest);
}

static void a_window_that_cannot_be_is_refused_or_recorded_as_it_is(void **state)
{
    (void)state;
    static const struct {
        const char *window, *sentence;
    } wrong[] = {{"train:2", "names no last step"},
                 {"train:3-2", "ends at step 2, before it starts at 3"},
                 {"eval:1-2", "only 'train' can be profiled"},
                 {"train:0-1", "steps count from 1"},
                 {"start=1,from=2", "stands there twice"},
                 {"color=red", "there is no field 'color'"},
                 {"start_step=,end_step=2", "is empty"},
                 {"enabled=maybe", "must be true or false"},
                 {"train:a-b", "is no integer"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        RUN(1, wrong[i].sentence, "train-qlora", "--config", "run.yaml", "--profile-window", wrong[i].window);
    setenv("AGOGE_PROFILE_WINDOW", "this is not read", 1); /* a window on the command line goes before it */
    RUN(0, "is not supported, so nothing is measured", "train-qlora", "--config", "run.yaml", "--set", "run_name=late", "--set",
        "max_steps=1", "--profile-window", "start=5,to=6,backend=nsight_systems");
    unsetenv("AGOGE_PROFILE_WINDOW");
    json_t *window = load("runs/late/telemetry/profile-window.json");
    assert_string_equal(json_string_value(json_object_get(window, "backend_status")), "unsupported");
    assert_true(json_is_null(json_object_get(window, "actual_end_step")));
    assert_true(json_is_null(json_object_get(window, "monotonic_ns_start")));
    assert_true(json_is_false(json_object_get(window, "complete")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(window, "overhead"), "status")), "unavailable");
    ag_json_free(&window);
}

/* ---- export ---------------------------------------------------------------------------------------------------------- */
static void only_what_its_index_vouches_for_is_exported(void **state)
{
    (void)state;
    ag_err err;
    RUN(0, NULL, "export-final-model", "--run-dir", "adapters/t", "--out-dir", "merged/t");
    json_t *of_run = load("adapters/t/artifact_index.json"), *of_model = load("merged/t/artifact_index.json");
    assert_true(json_equal(json_object_get(of_run, "producer_provenance"), json_object_get(of_model, "producer_provenance")));
    ag_json_free(&of_run);
    ag_json_free(&of_model);
    file_tree_copy(in_dir("adapters/t"), in_dir("adapters/touched"));
    file_append(in_dir("adapters/touched/README.md"), "hello");
    RUN(1, "README.md is not listed in artifact_index.json", "export-final-model", "--run-dir", "adapters/touched", "--out-dir",
        "merged/x");
    RUN(1, "README.md is not listed", "merge-adapter", "--adapter-path", "adapters/touched", "--base-model", "model", "--out-dir",
        "merged/x");
    RUN(0, NULL, "export-final-model", "--allow-unsealed", "--run-dir", "adapters/touched", "--out-dir", "merged/unsealed");
    json_t *unsealed = load("merged/unsealed/artifact_index.json");
    assert_null(json_object_get(unsealed, "producer_provenance"));
    ag_json_free(&unsealed);
    must(ag_remove_tree(in_dir("adapters/touched/README.md"), &err));
    file_put(in_dir("adapters/touched/checkpoint-2/pytorch_model.bin"), "x");
    RUN(1, "holds pickled weights", "export-final-model", "--adapter-path", "adapters/touched", "--out-dir", "merged/x");
    file_tree_copy(in_dir("model"), in_dir("copied"));
    RUN(0, NULL, "export-final-model", "--run-dir", "adapters/t", "--base-model", "copied", "--out-dir",
        "merged/copied"); /* the same bytes elsewhere */
    file_append(in_dir("copied/config.json"), " ");
    RUN(1, "bring the base back that it was trained on", "export-final-model", "--run-dir", "adapters/t", "--base-model", "copied",
        "--out-dir", "merged/x");
    RUN(1, "carries no producer_provenance", "merge-adapter", "--adapter-path", "adapters/t/checkpoint-2", "--base-model", "model",
        "--out-dir", "merged/x");
    assert_false(ag_path_is_dir(in_dir("merged/x")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_sealed_verifies_and_a_changed_byte_does_not),
        cmocka_unit_test(a_key_that_is_demanded_must_have_signed),
        cmocka_unit_test(an_evaluation_whose_numbers_do_not_follow_is_told),
        cmocka_unit_test(a_replay_gives_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(a_replay_names_the_first_step_that_differs),
        cmocka_unit_test(what_cannot_be_replayed_is_said_in_one_sentence),
        cmocka_unit_test(a_window_on_step_2_marks_it_and_measures_it),
        cmocka_unit_test(a_default_run_starts_no_profiler_but_writes_markers_and_the_request),
        cmocka_unit_test(a_window_that_cannot_be_is_refused_or_recorded_as_it_is),
        cmocka_unit_test(only_what_its_index_vouches_for_is_exported),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
