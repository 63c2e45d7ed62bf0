/* A checkpoint's save, where any one of its writes, syncs and renames fails or kills: the one before it stays whole, and what stands under
 * the new one's name is whole or is not there. */
#define _GNU_SOURCE
#include "support/fs_faults.h"
#include "support/run_fixture.h"
#include "support/tiny_folder.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "train/engine.h"
#include "train/quarantine.h"
#include "train/run_scan.h"

#include <sys/wait.h>
#include <unistd.h>

static ag_arena arena;
static ag_train_config *config;
static ag_train_job *job;
static ag_backend backend;
static ag_engine engine;

static int setup(void **state)
{
    (void)state;
    ag_err err;
    ag_engine_taken taken;
    run_fixture_begin();
    tiny_folder_make(".");
    fixture_write("t.yaml", "model_id: model\ndataset_path: rows.jsonl\nrun_name: t\nmax_seq_length: 32\nlora_r: 2\ntarget_modules: [q_proj]\n"
                            "save_total_limit: 1\ngradient_accumulation_steps: 1\n");
    must(ag_backend_init_cpu(&backend, ag_cpu_best_level(), 1, &err));
    must(ag_train_config_load(&config, "t.yaml", NULL, 0, &err));
    must(ag_train_job_open(&job, config, &backend, &(ag_train_job_options){0}, &err));
    must(ag_engine_open(&engine, job, &err));
    must(ag_engine_begin(&engine, &err));
    must(ag_engine_step(&engine, &taken, &err));
    must(ag_make_dirs("run", &err));
    must(ag_checkpoint_save(&engine.state, engine.progress, "run", &err));
    fixture_copy_tree("run/checkpoint-1", "first");
    must(ag_engine_step(&engine, &taken, &err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ag_engine_close(&engine);
    ag_train_job_close(&job);
    ag_train_config_free(&config);
    run_fixture_end();
    ag_arena_free(&arena);
    return 0;
}

/* Whole: it loads, and stands at its step. */
static void expect_loads(int64_t step)
{
    ag_err err;
    ag_engine other;
    must(ag_engine_open(&other, job, &err));
    must(ag_engine_resume(&other, ag_arena_printf(&arena, "run/checkpoint-%lld", (long long)step), &err));
    assert_int_equal(step, other.progress.step);
    ag_engine_close(&other);
}

static void expect_sane(void)
{
    ag_err err;
    ag_run_scan scan;
    must(ag_run_scan_make(&scan, "run", false, &arena, &err));
    assert_true(scan.n_valid > 0);
    for (size_t i = 0; i < scan.n; i++) {
        assert_int_equal(0, scan.entries[i].lacks);
        expect_loads(scan.entries[i].step);
    }
}

static void restore(void)
{
    fixture_remove("run");
    fixture_make_dir("run");
    fixture_copy_tree("first", "run/checkpoint-1");
}

static void whichever_call_of_a_save_fails_or_kills_a_whole_checkpoint_is_there(void **state)
{
    (void)state;
    ag_err err;
    fs_faults_begin(0);
    must(ag_checkpoint_save(&engine.state, engine.progress, "run", &err));
    const int n = fs_faults_end();
    assert_true(n > 40);
    assert_false(fixture_exists("run/checkpoint-1")); /* save_total_limit 1 */
    for (int deadly = 0; deadly < 2; deadly++)
        for (int at = 1; at <= n; at++) {
            restore();
            if (deadly) {
                const pid_t child = fork();
                if (child == 0) {
                    fs_faults_begin_deadly(at);
                    (void)!ag_checkpoint_save(&engine.state, engine.progress, "run", &err);
                    _exit(0);
                }
                int status;
                assert_int_equal(child, waitpid(child, &status, 0));
                assert_int_equal(FS_FAULTS_DEATH, WEXITSTATUS(status));
            } else {
                fs_faults_begin(at);
                const ag_status status = ag_checkpoint_save(&engine.state, engine.progress, "run", &err);
                (void)fs_faults_end();
                assert_int_not_equal(AG_OK, status);
            }
            expect_sane();
            /* The next run sweeps what a killed save left, and its save comes through. */
            fs_faults_begin(0);
            must(ag_quarantine_sweep("run", &err));
            must(ag_checkpoint_save(&engine.state, engine.progress, "run", &err));
            (void)fs_faults_end();
            ag_run_scan scan;
            must(ag_run_scan_make(&scan, "run", false, &arena, &err));
            assert_true(scan.n_valid == 1 && scan.latest->step == 2);
        }
}

static void a_save_that_failed_is_kept_in_the_quarantine(void **state)
{
    (void)state;
    ag_err err;
    char **names;
    size_t n, n_found = 0;
    restore();
    fs_faults_begin(12); /* somewhere inside */
    assert_int_equal(AG_E_IO, ag_checkpoint_save(&engine.state, engine.progress, "run", &err));
    (void)fs_faults_end();
    must(ag_dir_list(&names, &n, "run/" AG_QUARANTINE_DIR, &arena, &err));
    for (size_t i = 0; i < n; i++) n_found += strstr(names[i], ".interrupted_save.") != NULL;
    assert_int_equal(1, n_found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whichever_call_of_a_save_fails_or_kills_a_whole_checkpoint_is_there),
        cmocka_unit_test(a_save_that_failed_is_kept_in_the_quarantine),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
