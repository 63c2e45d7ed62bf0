/* What cleanup-run deletes, keeps, skips and refuses. Edge cases by number are those of docs/runs.md. */
#define _GNU_SOURCE
#include "support/fs_faults.h"
#include "support/run_fixture.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "base/json.h"
#include "runs/cleanup.h"
#include "seal/artifact_index.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static ag_arena arena;
static const char *const RUN = "adapters/run";

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

static const char *in_run(const char *name) { return ag_path_join(&arena, RUN, name); }

/* A finished run: final adapter, checkpoints 2, 4 and 10. */
static void finished_run(void)
{
    run_fixture_adapter(RUN);
    run_fixture_checkpoint(in_run("checkpoint-2"), 2);
    run_fixture_checkpoint(in_run("checkpoint-4"), 4);
    run_fixture_checkpoint(in_run("checkpoint-10"), 10);
}

static ag_status clean(ag_cleanup *c, ag_cleanup_options options, ag_err *err)
{
    if (!options.run_dir) options.run_dir = RUN;
    options.n_threads = 1;
    return ag_cleanup_run(c, &options, &arena, err);
}

static ag_cleanup cleaned(ag_cleanup_options options)
{
    ag_err err;
    ag_cleanup c;
    must(clean(&c, options, &err));
    for (size_t i = 0; i < c.n_failed; i++) print_message("failed: %s: %s\n", c.failed[i].path, c.failed[i].why);
    return c;
}

static uint64_t bytes_of(const char *dir)
{
    char **names;
    size_t n;
    ag_err err;
    uint64_t sum = 0;
    must(ag_dir_list(&names, &n, dir, &arena, &err));
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        assert_int_equal(0, lstat(ag_path_join(&arena, dir, names[i]), &st));
        sum += (uint64_t)st.st_size;
    }
    return sum;
}

/* ---- plans and deeds --------------------------------------------------------------------------------------------- */
static void edge_21_a_plan_lists_all_steps_and_changes_nothing(void **state)
{
    (void)state;
    finished_run();
    run_fixture_seal(RUN, true);
    char *before = fixture_picture(".");
    const ag_cleanup c = cleaned((ag_cleanup_options){.dry_run = true});
    char *after = fixture_picture(".");
    assert_string_equal(before, after);
    assert_int_equal(3, c.n_removed);
    const int64_t steps[] = {2, 4, 10};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(steps[i], c.removed[i].step);
        assert_int_equal(bytes_of(c.removed[i].path), c.removed[i].bytes);
    }
    assert_int_equal(c.removed[0].bytes + c.removed[1].bytes + c.removed[2].bytes, c.bytes_reclaimed);
    assert_true(c.final_artifact && !c.forced && !c.index_rewritten);
    free(before);
    free(after);
}

static void edge_22_bytes_count_what_was_removed_and_the_adapter_survives(void **state)
{
    (void)state;
    finished_run();
    fixture_write(in_run("tokenizer.json"), "{}");
    fixture_make_dir(in_run("checkpoint-4/deep/er"));
    fixture_write(in_run("checkpoint-4/deep/er/file"), "12345");
    assert_int_equal(0, symlink("/etc/hosts", in_run("checkpoint-4/link"))); /* counts its own ten bytes, and goes itself */
    const uint64_t want = bytes_of(in_run("checkpoint-2")) + bytes_of(in_run("checkpoint-4")) + bytes_of(in_run("checkpoint-10")) + 5;
    struct stat st;
    assert_int_equal(0, stat(in_run("checkpoint-4/deep"), &st));
    const ag_cleanup c = cleaned((ag_cleanup_options){0});
    assert_int_equal(0, c.n_failed);
    assert_int_equal(3, c.n_removed);
    assert_int_equal(want - (uint64_t)st.st_size, c.bytes_reclaimed);
    char *left = fixture_picture(RUN);
    assert_null(strstr(left, "checkpoint"));
    assert_non_null(strstr(left, "adapter_model.safetensors"));
    assert_non_null(strstr(left, "tokenizer.json"));
    assert_true(fixture_exists("/etc/hosts"));
    free(left);
}

static void edge_23_keep_0_1_2_99(void **state)
{
    (void)state;
    const struct {
        int64_t keep;
        size_t removed;
    } cases[] = {{0, 3}, {1, 2}, {2, 1}, {99, 0}};
    finished_run();
    for (int i = 0; i < 4; i++) {
        const ag_cleanup c = cleaned((ag_cleanup_options){.dry_run = true, .keep_latest = cases[i].keep});
        assert_int_equal(cases[i].removed, c.n_removed);
        assert_int_equal(3 - cases[i].removed, c.n_kept);
        if (c.n_kept) assert_true(ag_str_ends(c.kept[c.n_kept - 1], "/checkpoint-10"));
    }
    (void)cleaned((ag_cleanup_options){.keep_latest = 2});
    assert_false(fixture_exists(in_run("checkpoint-2")));
    assert_true(fixture_exists(in_run("checkpoint-4")) && fixture_exists(in_run("checkpoint-10")));
}

static void edge_24_a_half_written_highest_step_takes_no_slot(void **state)
{
    (void)state;
    finished_run();
    fixture_remove(in_run("checkpoint-10/trainer_state.json"));
    const ag_cleanup c = cleaned((ag_cleanup_options){.keep_latest = 1});
    assert_int_equal(1, c.n_kept);
    assert_true(ag_str_ends(c.kept[0], "/checkpoint-4"));
    assert_false(fixture_exists(in_run("checkpoint-10")));
}

static void a_zero_padded_checkpoint_is_kept_as_itself(void **state)
{
    (void)state;
    run_fixture_adapter(RUN);
    run_fixture_checkpoint(in_run("checkpoint-002"), 2);
    fixture_make_dir(in_run("checkpoint-2")); /* another spelling of the step, half-written */
    const ag_cleanup c = cleaned((ag_cleanup_options){.keep_latest = 1});
    assert_int_equal(1, c.n_kept);
    assert_true(ag_str_ends(c.kept[0], "/checkpoint-002"));
    assert_false(fixture_exists(in_run("checkpoint-2")));
}

static void edge_25_wrong_arguments_are_errors(void **state)
{
    (void)state;
    ag_err err;
    ag_cleanup c;
    finished_run();
    must_fail(AG_E_CONFIG, "--keep-latest is -1", clean(&c, (ag_cleanup_options){.keep_latest = -1}, &err));
    must_fail(AG_E_NOT_FOUND, "does not exist", clean(&c, (ag_cleanup_options){.run_dir = "adapters/gone"}, &err));
    must_fail(AG_E_CONFIG, "'..'", clean(&c, (ag_cleanup_options){.run_dir = "adapters/../adapters/run"}, &err));
    must_fail(AG_E_CONFIG, "empty", clean(&c, (ag_cleanup_options){.run_dir = " "}, &err));
    assert_true(fixture_exists(in_run("checkpoint-2")));
}

/* ---- the guard --------------------------------------------------------------------------------------------------- */
static void edge_26_a_run_with_only_checkpoints_is_refused_unless_forced(void **state)
{
    (void)state;
    ag_err err;
    ag_cleanup c;
    finished_run();
    fixture_remove(in_run("adapter_model.safetensors"));
    char *before = fixture_picture(".");
    must_fail(AG_E_CONFIG, "only recoverable artifact", clean(&c, (ag_cleanup_options){0}, &err));
    must_fail(AG_E_CONFIG, "--force", clean(&c, (ag_cleanup_options){.dry_run = true}, &err));
    fixture_remove("adapters/.run.lock");
    char *after = fixture_picture(".");
    assert_string_equal(before, after);
    free(before);
    free(after);
    c = cleaned((ag_cleanup_options){.force = true});
    assert_true(c.forced && !c.final_artifact);
    assert_int_equal(3, c.n_removed);
    ag_str words = {0};
    ag_cleanup_words(&words, &c);
    assert_non_null(strstr(words.text, "can no longer be resumed or exported"));
    ag_str_free(&words);
}

static void force_is_not_told_as_forced_where_it_was_not_needed(void **state)
{
    (void)state;
    finished_run();
    assert_false(cleaned((ag_cleanup_options){.force = true, .dry_run = true}).forced);
}

static void a_damaged_final_adapter_guards_nothing(void **state)
{
    (void)state;
    ag_err err;
    ag_cleanup c;
    size_t n;
    finished_run();
    char *bytes = fixture_read(in_run("adapter_model.safetensors"), &n);
    fixture_write_n(in_run("adapter_model.safetensors"), bytes, n - 1);
    free(bytes);
    must_fail(AG_E_CONFIG, "its final adapter is damaged", clean(&c, (ag_cleanup_options){0}, &err));
}

static void edge_27_a_merged_model_is_enough(void **state)
{
    (void)state;
    ag_err err;
    ag_cleanup c;
    finished_run();
    fixture_remove(in_run("adapter_model.safetensors"));
    run_fixture_merged("merged/run");
    assert_true(cleaned((ag_cleanup_options){.dry_run = true}).final_artifact);
    fixture_write("merged/run/stray", "x"); /* not what its index says: no merged model */
    must_fail(AG_E_CONFIG, "no usable merged model", clean(&c, (ag_cleanup_options){.dry_run = true}, &err));
    fixture_make_dir("other");
    must_fail(AG_E_CONFIG, "no usable merged model", clean(&c, (ag_cleanup_options){.dry_run = true, .merged_dir = "other"}, &err));
}

static void a_run_that_trains_is_left_alone(void **state)
{
    (void)state;
    ag_err err;
    ag_cleanup c;
    ag_lock lock;
    finished_run();
    must(ag_lock_take(&lock, "adapters", ".run.lock", &err));
    must_fail(AG_E_BUSY, "a training run is at work here", clean(&c, (ag_cleanup_options){0}, &err));
    must_fail(AG_E_BUSY, "a training run is at work here", clean(&c, (ag_cleanup_options){.dry_run = true}, &err));
    ag_lock_release(&lock);
    assert_true(fixture_exists(in_run("checkpoint-2")));
    assert_int_equal(3, cleaned((ag_cleanup_options){0}).n_removed);
}

/* ---- links and mounts -------------------------------------------------------------------------------------------- */
static void edge_28_links_are_refused_or_skipped_and_never_followed(void **state)
{
    (void)state;
    ag_err err;
    ag_cleanup c;
    finished_run();
    assert_int_equal(0, symlink("run", "adapters/alias"));
    assert_int_equal(0, symlink("adapters", "linked"));
    must_fail(AG_E_IO, "adapters/alias is a symbolic link", clean(&c, (ag_cleanup_options){.run_dir = "adapters/alias"}, &err));
    must_fail(AG_E_IO, "/linked is a symbolic link", clean(&c, (ag_cleanup_options){.run_dir = "linked/run"}, &err));
    must_fail(AG_E_IO, "/linked is a symbolic link", clean(&c, (ag_cleanup_options){.run_dir = scratch_path("linked/run")}, &err));
    run_fixture_checkpoint("elsewhere/checkpoint-20", 20);
    assert_int_equal(0, symlink("../../elsewhere/checkpoint-20", in_run("checkpoint-20")));
    assert_int_equal(0, symlink("nowhere", in_run("checkpoint-30")));
    c = cleaned((ag_cleanup_options){0});
    assert_int_equal(2, c.n_skipped);
    assert_string_equal("symlink", c.skipped[0].why);
    assert_string_equal("symlink", c.skipped[1].why);
    assert_int_equal(3, c.n_removed);
    assert_true(fixture_exists(in_run("checkpoint-20")) && fixture_exists(in_run("checkpoint-30")));
    assert_true(fixture_exists("elsewhere/checkpoint-20/optimizer.pt"));
}

static void only_folders_of_that_name_are_candidates(void **state)
{
    (void)state;
    finished_run();
    static const char *const others[] = {"checkpoint-", "checkpoint-4x", "checkpoint-best", "xcheckpoint-4", "checkpoint-4.bak", "Checkpoint-4",
                                         ".agoge-quarantine"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        fixture_make_dir(in_run(others[i]));
        fixture_write(in_run(ag_arena_printf(&arena, "%s/file", others[i])), "x");
    }
    fixture_write(in_run("checkpoint-7"), "a file");
    const ag_cleanup c = cleaned((ag_cleanup_options){0});
    assert_int_equal(3, c.n_removed);
    assert_int_equal(0, c.n_skipped);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_true(fixture_exists(in_run(others[i])));
    assert_true(fixture_exists(in_run("checkpoint-7")));
}

/* ---- the index --------------------------------------------------------------------------------------------------- */
static void edge_29_30_the_index_is_rewritten_over_what_is_left(void **state)
{
    (void)state;
    ag_err err;
    ag_artifact_index index;
    finished_run();
    run_fixture_seal(RUN, true);
    char *before = fixture_read(in_run("artifact_index.json"), NULL);
    ag_cleanup c = cleaned((ag_cleanup_options){.keep_latest = 99});
    assert_false(c.index_rewritten);
    char *after = fixture_read(in_run("artifact_index.json"), NULL);
    assert_string_equal(before, after);
    free(after);
    free(before);
    c = cleaned((ag_cleanup_options){.keep_latest = 1});
    assert_int_equal(0, c.n_failed);
    assert_true(c.index_rewritten);
    must(ag_artifact_index_verify(&index, RUN, 1, &arena, &err));
    assert_true(index.has_provenance);
    assert_string_equal("base/tiny-llama", index.provenance.base_model_name_or_path);
    assert_string_equal(RUN, index.output_dir);
    for (size_t i = 0; i < index.n; i++) assert_null(strstr(index.artifacts[i].file, "checkpoint-4"));
    ag_run_place place;
    ag_run_status s;
    must(ag_run_place_find(&place, RUN, NULL, &arena, &err));
    must(ag_run_status_make(&s, &place, &(ag_run_status_options){0}, &arena, &err));
    assert_true(s.export_ready && s.resume_ready);
}

static void edge_30_an_absent_index_is_not_invented(void **state)
{
    (void)state;
    finished_run();
    const ag_cleanup c = cleaned((ag_cleanup_options){0});
    assert_false(c.index_rewritten);
    assert_false(fixture_exists(in_run("artifact_index.json")));
}

static void an_index_without_provenance_or_sense_is_rebuilt(void **state)
{
    (void)state;
    ag_err err;
    ag_artifact_index index;
    for (int damaged = 0; damaged < 2; damaged++) {
        finished_run();
        run_fixture_seal(RUN, false);
        if (damaged) fixture_write(in_run("artifact_index.json"), "{");
        fixture_write(in_run("stray"), "x");
        assert_true(cleaned((ag_cleanup_options){0}).index_rewritten);
        must(ag_artifact_index_verify(&index, RUN, 1, &arena, &err));
        assert_false(index.has_provenance);
    }
}

static void edge_31_a_survivor_that_is_not_what_was_sealed_stops_the_rewrite(void **state)
{
    (void)state;
    static const char *const parts[] = {"another size", "another content", "does not list it", "is listed, but gone", "no regular file"};
    for (int i = 0; i < 5; i++) {
        finished_run();
        fixture_write(in_run("notes.md"), "abc");
        run_fixture_seal(RUN, true);
        if (i == 0) fixture_write(in_run("notes.md"), "abcd");
        if (i == 1) fixture_write(in_run("notes.md"), "abd");
        if (i == 2) fixture_write(in_run("extra.md"), "x");
        if (i >= 3) fixture_remove(in_run("notes.md"));
        if (i == 4) assert_int_equal(0, symlink("../../base/tiny-llama/config.json", in_run("notes.md")));
        char *before = fixture_read(in_run("artifact_index.json"), NULL);
        const ag_cleanup c = cleaned((ag_cleanup_options){.keep_latest = 1});
        assert_int_equal(1, c.n_failed);
        assert_true(ag_str_ends(c.failed[0].path, "/artifact_index.json"));
        if (!strstr(c.failed[0].why, parts[i])) fail_msg("\"%s\" does not say \"%s\"", c.failed[0].why, parts[i]);
        assert_int_equal(2, c.n_removed);
        assert_false(c.index_rewritten);
        char *after = fixture_read(in_run("artifact_index.json"), NULL);
        assert_string_equal(before, after);
        free(before);
        free(after);
        fixture_remove(RUN);
        fixture_make_dir(RUN);
    }
}

static void a_kept_checkpoint_that_was_changed_stops_the_rewrite(void **state)
{
    (void)state;
    finished_run();
    run_fixture_seal(RUN, true);
    fixture_replace(in_run("checkpoint-10/trainer_state.json"), "{", "{ ");
    const ag_cleanup c = cleaned((ag_cleanup_options){.keep_latest = 1});
    assert_int_equal(1, c.n_failed);
    assert_non_null(strstr(c.failed[0].why, "checkpoint-10/trainer_state.json"));
}

/* ---- after planning ---------------------------------------------------------------------------------------------- */
static void swap_for_a_link(void *user)
{
    (void)user;
    assert_int_equal(0, rename(in_run("checkpoint-4"), "moved"));
    assert_int_equal(0, symlink("../../moved", in_run("checkpoint-4")));
}

static void swap_for_another_folder(void *user)
{
    (void)user;
    assert_int_equal(0, rename(in_run("checkpoint-4"), "moved"));
    fixture_make_dir(in_run("checkpoint-4"));
    fixture_write(in_run("checkpoint-4/precious"), "x");
}

static void swap_the_run(void *user)
{
    (void)user;
    assert_int_equal(0, rename("adapters", "adapters-moved"));
    assert_int_equal(0, symlink("precious", "adapters"));
}

static void mount_below(void *user)
{
    (void)user;
    fixture_make_dir(in_run("checkpoint-4/below"));
    assert_int_equal(0, mount("base", in_run("checkpoint-4/below"), NULL, MS_BIND, NULL));
}

static void edge_32_what_changed_after_planning_is_a_failure_and_the_others_go_on(void **state)
{
    (void)state;
    void (*const swaps[])(void *) = {swap_for_a_link, swap_for_another_folder};
    static const char *const words[] = {"became a symlink after planning", "became another directory after planning"};
    for (int i = 0; i < 2; i++) {
        finished_run();
        const ag_cleanup c = cleaned((ag_cleanup_options){.planned = swaps[i]});
        assert_int_equal(1, c.n_failed);
        assert_true(ag_str_ends(c.failed[0].path, "/checkpoint-4"));
        if (!strstr(c.failed[0].why, words[i])) fail_msg("\"%s\" does not say \"%s\"", c.failed[0].why, words[i]);
        assert_int_equal(2, c.n_removed);
        assert_true(fixture_exists("moved/optimizer.pt"));
        if (i == 1) assert_true(fixture_exists(in_run("checkpoint-4/precious")));
        fixture_remove("moved");
        fixture_remove(RUN);
        fixture_make_dir(RUN);
    }
}

static void the_run_that_was_opened_is_the_run_that_is_cleaned(void **state)
{
    (void)state;
    finished_run();
    run_fixture_checkpoint("precious/run/checkpoint-2", 2);
    const ag_cleanup c = cleaned((ag_cleanup_options){.planned = swap_the_run});
    assert_int_equal(3, c.n_removed);
    assert_true(fixture_exists("precious/run/checkpoint-2/optimizer.pt"));
    assert_false(fixture_exists("adapters-moved/run/checkpoint-2"));
}

/* In a mount namespace of its own, where the system lets a process have one. */
static int with_mounts(void (*body)(void))
{
    const pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) _exit(78);
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) _exit(78);
        body();
        _exit(0);
    }
    int status;
    assert_int_equal(child, waitpid(child, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

#define CHILD_NEEDS(condition) ((condition) ? (void)0 : (fprintf(stderr, "line %d: %s\n", __LINE__, #condition), _exit(1)))

static void clean_with_mounts(void)
{
    ag_err err;
    ag_cleanup c;
    if (mount("base", in_run("checkpoint-2"), NULL, MS_BIND, NULL)) _exit(78);
    fixture_make_dir(in_run("checkpoint-10/below"));
    CHILD_NEEDS(mount("base", in_run("checkpoint-10/below"), NULL, MS_BIND, NULL) == 0);
    CHILD_NEEDS(clean(&c, (ag_cleanup_options){.planned = mount_below}, &err) == AG_OK);
    CHILD_NEEDS(c.n_skipped == 2 && strcmp(c.skipped[0].why, "mount") == 0 && strcmp(c.skipped[1].why, "mount") == 0);
    CHILD_NEEDS(c.n_removed == 0 && c.n_failed == 1 && strstr(c.failed[0].why, "became a mount after planning"));
    CHILD_NEEDS(fixture_exists("base/tiny-llama/model.safetensors"));
    CHILD_NEEDS(fixture_exists(in_run("checkpoint-10/optimizer.pt")));
}

static void edge_32_mount_points_are_skipped_and_later_ones_are_failures(void **state)
{
    (void)state;
    finished_run();
    const int code = with_mounts(clean_with_mounts);
    if (code == 78) skip(); /* this system gives no mount namespace */
    assert_int_equal(0, code);
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */
static void the_json_has_every_key_in_its_order(void **state)
{
    (void)state;
    finished_run();
    run_fixture_seal(RUN, false);
    assert_int_equal(0, symlink("nowhere", in_run("checkpoint-30")));
    const ag_cleanup c = cleaned((ag_cleanup_options){.keep_latest = 2});
    ag_str out = {0}, want = {0};
    ag_cleanup_json(&out, &c);
    const char *dir = c.place.real;
    ag_str_printf(&want, "{\n  \"schema_version\": 1,\n  \"run_dir\": \"%s\",\n  \"run_name\": \"run\",\n  \"dry_run\": false,\n"
                  "  \"keep_latest\": 2,\n  \"allow_unsafe_serialization\": false,\n  \"guard\": {\n    \"final_artifact\": true,\n"
                  "    \"forced\": false\n  },\n  \"removed\": [\n    {\n      \"path\": \"%s/checkpoint-2\",\n      \"step\": 2,\n"
                  "      \"bytes\": %llu\n    }\n  ],\n  \"kept\": [\n    \"%s/checkpoint-4\",\n    \"%s/checkpoint-10\"\n  ],\n"
                  "  \"skipped\": [\n    {\n      \"path\": \"%s/checkpoint-30\",\n      \"reason\": \"symlink\"\n    }\n  ],\n"
                  "  \"failed\": [",
                  dir, dir, (unsigned long long)c.bytes_reclaimed, dir, dir, dir);
    assert_memory_equal(want.text, out.text, want.n);
    assert_non_null(strstr(out.text, "\"artifact_index_rewritten\": false\n}\n")); /* a link in the tree: an index vouches for files only */
    ag_str_free(&out);
    ag_str_free(&want);
}

static void the_table_has_every_row(void **state)
{
    (void)state;
    finished_run();
    const ag_cleanup c = cleaned((ag_cleanup_options){.dry_run = true, .keep_latest = 1});
    ag_str out = {0}, words = {0};
    ag_cleanup_table(&out, &c);
    assert_non_null(strstr(out.text, "checkpoints_removed:      2\ncheckpoints_kept:         1\ncheckpoints_skipped:      0\n"
                                     "checkpoints_failed:       0\n"));
    assert_non_null(strstr(out.text, "gib_reclaimed:            0.00\nartifact_index_rewritten: no\n"));
    ag_cleanup_words(&words, &c);
    assert_memory_equal("[dry-run] would remove ", words.text, 23);
    ag_str_free(&out);
    ag_str_free(&words);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */
/* Whichever call fails, what is there afterwards is right: the adapter whole, no checkpoint that looks whole and is not, the index old or new. */
static void expect_sane(const char *adapter)
{
    ag_err err;
    ag_run_scan scan;
    ag_artifact_index index;
    char *now = fixture_read(in_run("adapter_model.safetensors"), NULL);
    assert_string_equal(adapter, now);
    free(now);
    must(ag_run_scan_make(&scan, RUN, false, &arena, &err));
    static const char *const files[] = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"};
    for (size_t i = 0; i < scan.n; i++)
        for (size_t k = 0; k < 4 && !scan.entries[i].lacks; k++)
            assert_true(fixture_exists(in_run(ag_arena_printf(&arena, "%s/%s", scan.entries[i].name, files[k]))));
    if (fixture_exists(in_run("checkpoint-4/trainer_state.json")))
        for (char c = 'a'; c <= 'p'; c++) assert_true(fixture_exists(in_run(ag_arena_printf(&arena, "checkpoint-4/%c", c))));
    must(ag_artifact_index_load(&index, RUN, &arena, &err));
    assert_true(index.has_provenance);
}

static void whichever_call_fails_or_kills_nothing_is_half_valid_and_the_next_cleanup_ends_it(void **state)
{
    (void)state;
    ag_err err;
    int n = 1;
    finished_run();
    for (char c = 'a'; c <= 'p'; c++) fixture_write(in_run(ag_arena_printf(&arena, "checkpoint-4/%c", c)), "x"); /* in whatever order they come */
    run_fixture_seal(RUN, true);
    fixture_copy_tree(RUN, "template");
    for (int deadly = 0; deadly < 2; deadly++) {
        for (int at = 0; at <= n; at++) {
            ag_cleanup c;
            fixture_remove(RUN);
            fixture_copy_tree("template", RUN);
            char *adapter = fixture_read(in_run("adapter_model.safetensors"), NULL);
            bool index_failed = false; /* then it is told, and the old index stays */
            if (deadly && at > 0) {
                const pid_t child = fork();
                if (child == 0) {
                    fs_faults_begin_deadly(at);
                    (void)!clean(&c, (ag_cleanup_options){.keep_latest = 1}, &err);
                    _exit(0);
                }
                int status;
                assert_int_equal(child, waitpid(child, &status, 0));
                assert_int_equal(FS_FAULTS_DEATH, WEXITSTATUS(status));
            } else {
                fs_faults_begin(at);
                must(clean(&c, (ag_cleanup_options){.keep_latest = 1}, &err));
                n = at == 0 ? fs_faults_end() : (fs_faults_end(), n);
                assert_int_equal(at > 0, c.n_failed > 0);
                for (size_t i = 0; i < c.n_failed; i++) index_failed |= ag_str_ends(c.failed[i].path, "/artifact_index.json");
            }
            expect_sane(adapter);
            fs_faults_begin(0);
            must(clean(&c, (ag_cleanup_options){.keep_latest = 1}, &err));
            (void)fs_faults_end();
            assert_false(fixture_exists(in_run("checkpoint-2")) || fixture_exists(in_run("checkpoint-4")));
            expect_sane(adapter);
            ag_artifact_index index;
            if (!index_failed) must(ag_artifact_index_verify(&index, RUN, 1, &arena, &err));
            free(adapter);
        }
    }
    assert_true(n > 20);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(edge_21_a_plan_lists_all_steps_and_changes_nothing),
        T(edge_22_bytes_count_what_was_removed_and_the_adapter_survives),
        T(edge_23_keep_0_1_2_99),
        T(edge_24_a_half_written_highest_step_takes_no_slot),
        T(a_zero_padded_checkpoint_is_kept_as_itself),
        T(edge_25_wrong_arguments_are_errors),
        T(edge_26_a_run_with_only_checkpoints_is_refused_unless_forced),
        T(force_is_not_told_as_forced_where_it_was_not_needed),
        T(a_damaged_final_adapter_guards_nothing),
        T(edge_27_a_merged_model_is_enough),
        T(a_run_that_trains_is_left_alone),
        T(edge_28_links_are_refused_or_skipped_and_never_followed),
        T(only_folders_of_that_name_are_candidates),
        T(edge_29_30_the_index_is_rewritten_over_what_is_left),
        T(edge_30_an_absent_index_is_not_invented),
        T(an_index_without_provenance_or_sense_is_rebuilt),
        T(edge_31_a_survivor_that_is_not_what_was_sealed_stops_the_rewrite),
        T(a_kept_checkpoint_that_was_changed_stops_the_rewrite),
        T(edge_32_what_changed_after_planning_is_a_failure_and_the_others_go_on),
        T(the_run_that_was_opened_is_the_run_that_is_cleaned),
        T(edge_32_mount_points_are_skipped_and_later_ones_are_failures),
        T(the_json_has_every_key_in_its_order),
        T(the_table_has_every_row),
        T(whichever_call_fails_or_kills_nothing_is_half_valid_and_the_next_cleanup_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
