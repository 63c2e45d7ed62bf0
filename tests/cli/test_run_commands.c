/* run-status and cleanup-run as programs, and a training run that finds broken checkpoints when it resumes. Runs the real binary
 * (AGOGE_BIN). Edge cases by number are those of docs/runs.md. */
#define _GNU_SOURCE
#include "support/run_fixture.h"
#include "support/scratch_dir.h"
#include "support/tiny_folder.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "base/json.h"
#include "base/str.h"

#include <sys/wait.h>
#include <unistd.h>

static ag_arena arena;
static int code;

static int setup(void **state)
{
    (void)state;
    run_fixture_begin();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_fixture_end();
    ag_arena_free(&arena);
    return 0;
}

/* Runs `agoge <arguments>` by the shell; its stdout and stderr lie in stdout.txt and stderr.txt afterwards. */
static const char *agoge(const char *arguments)
{
    const int status = system(ag_arena_printf(&arena, "%s %s >stdout.txt 2>stderr.txt", getenv("AGOGE_BIN"), arguments));
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 99;
    char *text = fixture_read("stdout.txt", NULL), *kept = ag_arena_strdup(&arena, text);
    free(text);
    return kept;
}

static void expect(int wanted, const char *part, const char *arguments)
{
    (void)agoge(arguments);
    char *said = fixture_read("stderr.txt", NULL);
    if (code != wanted || !strstr(said, part)) fail_msg("%s: exit code %d, expected %d with '%s': %s", arguments, code, wanted, part, said);
    free(said);
}

static void finished_run(void)
{
    run_fixture_adapter("adapters/run");
    run_fixture_checkpoint("adapters/run/checkpoint-2", 2);
    run_fixture_checkpoint("adapters/run/checkpoint-4", 4);
}

static void edge_1_json_is_the_default_and_wrong_usage_exits_with_2(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    finished_run();
    const char *plain = agoge("run-status adapters/run");
    assert_int_equal(0, code);
    assert_string_equal(plain, agoge("run-status adapters/run --format json"));
    must(ag_json_parse(&root, plain, strlen(plain), "report", &err));
    assert_true(json_is_true(json_object_get(json_object_get(root, "resume"), "ready")));
    ag_json_free(&root);
    expect(2, "format", "run-status adapters/run --format yaml");
    expect(2, "RUN_DIR", "run-status");
    expect(1, "does not exist", "run-status adapters/gone");
    expect(1, "a directory was expected", "run-status adapters/run/adapter_config.json");
    expect(1, "'..'", "run-status adapters/../adapters/run");
    expect(1, "a directory was expected", "run-status adapters/run --merged-dir adapters/run/adapter_config.json");
    expect(0, "", "run-status adapters/run --merged-dir nowhere");
    fixture_make_dir("adapters/empty");
    expect(0, "not ready to resume: there is no checkpoint yet", "run-status adapters/empty");
}

static void the_status_table_is_exactly_this(void **state)
{
    (void)state;
    run_fixture_checkpoint("adapters/run/checkpoint-2", 2);
    char dir[4096];
    assert_non_null(getcwd(dir, sizeof dir));
    const char *want = ag_arena_printf(
        &arena,
        "schema_version:             1\nrun_name:                   run\nrun_dir:                    %s/adapters/run\n"
        "allow_unsafe_serialization: no\nvalid_checkpoints:          1\ncheckpoint_steps:           2\nlatest_checkpoint_step:     2\n"
        "latest_checkpoint_path:     %s/adapters/run/checkpoint-2\nfinal_adapter:              no\nfinal_adapter_path:         -\n"
        "merged_model:               no\nmerged_model_path:          -\nbase_model:                 base/tiny-llama\n"
        "base_revision:              -\nresume_ready:               yes\nresume_checkpoint_path:     %s/adapters/run/checkpoint-2\n"
        "export_ready:               yes\nexport_source_kind:         checkpoint\n"
        "export_source_path:         %s/adapters/run/checkpoint-2\n", dir, dir, dir, dir);
    assert_string_equal(want, agoge("run-status adapters/run --format table"));
}

static void edge_33_cleanup_prints_one_document_and_its_exit_codes(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    finished_run();
    run_fixture_seal("adapters/run", true);
    const char *plan = agoge("cleanup-run adapters/run --dry-run --format json");
    assert_int_equal(0, code);
    must(ag_json_parse(&root, plan, strlen(plan), "plan", &err));
    assert_int_equal(2, json_array_size(json_object_get(root, "removed")));
    ag_json_free(&root);
    expect(0, "[dry-run] would remove", "cleanup-run adapters/run --dry-run");
    expect(1, "--keep-latest is -1", "cleanup-run adapters/run --keep-latest -1");
    expect(2, "format", "cleanup-run adapters/run --format yaml");
    assert_true(fixture_exists("adapters/run/checkpoint-2"));
    fixture_write("adapters/run/stray", "x"); /* the sealed index cannot go on: exit code 1, one document all the same */
    const char *deed = agoge("cleanup-run adapters/run --keep-latest 1 --format json");
    assert_int_equal(1, code);
    must(ag_json_parse(&root, deed, strlen(deed), "deed", &err));
    assert_int_equal(1, json_array_size(json_object_get(root, "failed")));
    assert_int_equal(1, json_array_size(json_object_get(root, "removed")));
    ag_json_free(&root);
    fixture_remove("adapters/run/adapter_model.safetensors");
    expect(1, "only recoverable artifact", "cleanup-run adapters/run --format json");
    assert_string_equal("", agoge("cleanup-run adapters/run --format json"));
    fixture_remove("adapters/run/artifact_index.json");
    expect(0, "can no longer be resumed or exported", "cleanup-run adapters/run --force");
    assert_false(fixture_exists("adapters/run/checkpoint-4"));
}

static void the_cleanup_table_is_exactly_this(void **state)
{
    (void)state;
    finished_run();
    char dir[4096];
    assert_non_null(getcwd(dir, sizeof dir));
    const char *out = agoge("cleanup-run adapters/run --keep-latest 2");
    const char *want = ag_arena_printf(
        &arena,
        "schema_version:           1\nrun_name:                 run\nrun_dir:                  %s/adapters/run\ndry_run:                  no\n"
        "keep_latest:              2\nfinal_artifact:           yes\nforced:                   no\ncheckpoints_removed:      0\n"
        "checkpoints_kept:         2\ncheckpoints_skipped:      0\ncheckpoints_failed:       0\nbytes_reclaimed:          0\n"
        "gib_reclaimed:            0.00\nartifact_index_rewritten: no\n", dir);
    assert_string_equal(want, out);
    char *said = fixture_read("stderr.txt", NULL);
    const char *words = ag_arena_printf(&arena, "kept %s/adapters/run/checkpoint-2\nkept %s/adapters/run/checkpoint-4\nnothing to remove in %s/adapters/run\n",
                                        dir, dir, dir);
    assert_string_equal(words, said);
    free(said);
}

/* ---- resuming ---------------------------------------------------------------------------------------------------- */
static void train(const char *more)
{
    (void)agoge(ag_arena_printf(&arena, "train-qlora --config tiny.yaml %s", more));
}

static void expect_said(int wanted, const char *part)
{
    char *said = fixture_read("stderr.txt", NULL);
    if (code != wanted || !strstr(said, part)) fail_msg("exit code %d, expected %d with '%s': %s", code, wanted, part, said);
    free(said);
}

static void expect_in_quarantine(const char *head)
{
    char **names;
    size_t n;
    ag_err err;
    must(ag_dir_list(&names, &n, "out/tiny/.agoge-quarantine", &arena, &err));
    for (size_t i = 0; i < n; i++)
        if (ag_str_starts(names[i], head)) return;
    fail_msg("%s is not in the quarantine", head);
}

static void a_resume_takes_the_newest_checkpoint_that_lacks_nothing(void **state)
{
    (void)state;
    static const char resume[] = "--set resume_from_latest_checkpoint=true";
    tiny_folder_make(".");
    fixture_write("tiny.yaml", "model_id: model\ndataset_path: rows.jsonl\noutput_dir: out\nlogging_dir: log\nrun_name: tiny\nmax_seq_length: 64\n"
                               "lora_r: 4\nlearning_rate: 0.01\nsave_steps: 1\nsave_total_limit: 9\nmax_steps: 3\n"
                               "gradient_accumulation_steps: 2\n");
    train("");
    expect_said(0, "");
    const char *status = agoge("run-status out/tiny");
    if (!strstr(status, "\"resume\": {\n    \"ready\": true")) {
        char *said = fixture_read("stderr.txt", NULL);
        fail_msg("a run of ours is not ready to resume: %s", said);
    }
    assert_non_null(strstr(status, "\"export\": {\n    \"ready\": true"));
    /* 3 lacks its generators, 2 is half-written, a killed save left its staging folder: the run goes on from 1. */
    fixture_remove("out/tiny/checkpoint-3/rng_state.pth");
    fixture_remove("out/tiny/checkpoint-2/trainer_state.json");
    fixture_make_dir("out/tiny/.agoge-ckpt-staging-1-1");
    train(resume);
    expect_said(0, "it lacks rng");
    expect_in_quarantine("checkpoint-3.non_equivalent_resume.");
    expect_in_quarantine("checkpoint-2.missing_trainer_state.");
    expect_in_quarantine(".agoge-ckpt-staging-1-1.leftover_staging.");
    assert_true(fixture_exists("out/tiny/checkpoint-3/rng_state.pth")); /* made anew */
    /* Where every checkpoint lacks something, none is moved and the newest is taken, with a word. */
    for (int i = 1; i <= 3; i++) fixture_remove(ag_arena_printf(&arena, "out/tiny/checkpoint-%d/rng_state.pth", i));
    train("--set resume_from_latest_checkpoint=true --set max_steps=4");
    expect_said(0, "the checkpoint lacks rng");
    assert_true(fixture_exists("out/tiny/checkpoint-2") && fixture_exists("out/tiny/checkpoint-4"));
}

/* Whatever agoge can train it can go on from and export, and run-status says so. */
static void runs_of_every_kind_are_ready(void **state)
{
    (void)state;
    static const char *const kinds[] = {"optim=adamw_8bit", "loraplus_lr_ratio=4", "use_dora=true", "modules_to_save=[lm_head]", "bias=all",
                                        "target_modules=[embed_tokens,q_proj]"};
    tiny_folder_make(".");
    fixture_write("tiny.yaml", "model_id: model\ndataset_path: rows.jsonl\noutput_dir: out\nlogging_dir: log\nmax_seq_length: 64\nlora_r: 4\n"
                               "target_modules_mode: explicit\nmax_steps: 2\ngradient_accumulation_steps: 2\n");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        train(ag_arena_printf(&arena, "--set run_name=kind-%zu --set '%s'", i, kinds[i]));
        expect_said(0, "");
        const char *status = agoge(ag_arena_printf(&arena, "run-status out/kind-%zu", i));
        char *said = fixture_read("stderr.txt", NULL);
        if (!strstr(status, "\"resume\": {\n    \"ready\": true") || !strstr(status, "\"export\": {\n    \"ready\": true"))
            fail_msg("%s: not ready: %s", kinds[i], said);
        free(said);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(edge_1_json_is_the_default_and_wrong_usage_exits_with_2),
        T(the_status_table_is_exactly_this),
        T(edge_33_cleanup_prints_one_document_and_its_exit_codes),
        T(the_cleanup_table_is_exactly_this),
        T(a_resume_takes_the_newest_checkpoint_that_lacks_nothing),
        T(runs_of_every_kind_are_ready),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
