/* What a killed process left in a run is moved aside with its reason, whole, and nothing else is touched. */
#define _GNU_SOURCE
#include "support/fs_faults.h"
#include "support/run_fixture.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "base/json.h"
#include "train/quarantine.h"
#include "train/run_scan.h"

#include <ctype.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

static ag_arena arena;
static const char *const RUN = "adapters/run", *const QUARANTINE = "adapters/run/.agoge-quarantine";

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

/* The one entry of the quarantine whose name begins with `head`; its reason file as JSON. */
static const char *entry_of(const char *head, json_t **reason)
{
    char **names;
    size_t n;
    ag_err err;
    must(ag_dir_list(&names, &n, QUARANTINE, &arena, &err));
    for (size_t i = 0; i < n; i++)
        if (ag_str_starts(names[i], head)) {
            const char *path = ag_path_join(&arena, QUARANTINE, names[i]);
            if (reason) must(ag_json_load(reason, ag_path_join(&arena, path, "quarantine_reason.json"), 1 << 16, &err));
            return path;
        }
    fail_msg("%s is not in the quarantine", head);
    return NULL;
}

static bool is_stamp(const char *text)
{
    for (int i = 0; i < 22; i++)
        if (i == 8 ? text[i] != 'T' : i == 21 ? text[i] != 'Z' : !isdigit((unsigned char)text[i])) return false;
    return text[22] == 0;
}

static const char *text_of(const json_t *object, const char *key) { return json_string_value(json_object_get(object, key)); }

static void broken_checkpoints_and_staging_folders_are_moved_with_their_reasons(void **state)
{
    (void)state;
    static const struct {
        const char *name, *without, *reason;
    } cases[] = {{"checkpoint-2", "trainer_state.json", "missing_trainer_state"},
                 {"checkpoint-4", "adapter_config.json", "missing_adapter_config"},
                 {"checkpoint-006", "adapter_model.safetensors", "missing_adapter_weights"}};
    ag_err err;
    for (int i = 0; i < 3; i++) {
        run_fixture_checkpoint(in_run(cases[i].name), 2);
        fixture_remove(in_run(ag_arena_printf(&arena, "%s/%s", cases[i].name, cases[i].without)));
    }
    run_fixture_checkpoint(in_run("checkpoint-8"), 8);
    run_fixture_checkpoint(in_run("checkpoint-10"), 10);
    fixture_write(in_run("checkpoint-10/adapter_model.bin"), "x");
    fixture_make_dir(in_run(".agoge-ckpt-staging-1-2"));
    fixture_make_dir(in_run(".agoge-export-staging-3-4"));
    assert_int_equal(0, symlink("nowhere", in_run("checkpoint-12")));
    assert_int_equal(0, symlink(".agoge-quarantine", in_run(".agoge-ckpt-staging-link")));
    must(ag_quarantine_sweep(RUN, &err));
    for (int i = 0; i < 3; i++) {
        json_t *reason;
        const char *head = ag_arena_printf(&arena, "%s.%s.", cases[i].name, cases[i].reason), *path = entry_of(head, &reason);
        assert_true(is_stamp(ag_path_base(path) + strlen(head)));
        assert_int_equal(1, json_integer_value(json_object_get(reason, "schema_version")));
        assert_string_equal(cases[i].reason, text_of(reason, "reason"));
        assert_string_equal(in_run(cases[i].name), text_of(reason, "original_path"));
        assert_int_equal(20, strlen(text_of(reason, "quarantined_at")));
        const json_t *missing = json_object_get(json_object_get(reason, "details"), "missing");
        assert_string_equal(cases[i].without, json_string_value(json_array_get(missing, 0)));
        assert_int_equal(1, json_array_size(missing));
        assert_true(fixture_exists(ag_path_join(&arena, path, "optimizer.pt")));
        ag_json_free(&reason);
    }
    json_t *reason;
    (void)entry_of("checkpoint-10.unsafe_weight_bins.", &reason);
    assert_int_equal(0, json_object_size(json_object_get(reason, "details")));
    ag_json_free(&reason);
    (void)entry_of(".agoge-ckpt-staging-1-2.leftover_staging.", NULL);
    (void)entry_of(".agoge-export-staging-3-4.leftover_staging.", NULL);
    assert_true(fixture_exists(in_run("checkpoint-8/optimizer.pt")));
    assert_true(fixture_exists(in_run("checkpoint-12")) && fixture_exists(in_run(".agoge-ckpt-staging-link")));
}

static void a_run_that_is_whole_gets_no_quarantine(void **state)
{
    (void)state;
    ag_err err;
    run_fixture_checkpoint(in_run("checkpoint-2"), 2);
    char *before = fixture_picture(RUN);
    must(ag_quarantine_sweep(RUN, &err));
    must(ag_quarantine_sweep("adapters/there-is-none", &err));
    char *after = fixture_picture(RUN);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

/* ---- collisions -------------------------------------------------------------------------------------------------- */
static int n_taken;

static int rename_to_taken(const char *from, const char *to)
{
    if (n_taken-- <= 0) return ag_fs_system_calls.rename_new(from, to);
    errno = EEXIST;
    return -1;
}

static void a_name_that_is_taken_gets_a_number_up_to_999(void **state)
{
    (void)state;
    ag_err err;
    const int taken[] = {1, 2, 999};
    for (int i = 0; i < 3; i++) {
        fixture_make_dir(in_run("checkpoint-2"));
        n_taken = taken[i];
        ag_fs_calls_used.rename_new = rename_to_taken;
        must(ag_quarantine_move(RUN, "checkpoint-2", AG_QUARANTINE_NO_STATE, NULL, 0, &err));
        ag_fs_calls_used = ag_fs_system_calls;
        const char *end = ag_arena_printf(&arena, "Z-%d", taken[i]);
        char **names;
        size_t n, n_found = 0;
        must(ag_dir_list(&names, &n, QUARANTINE, &arena, &err));
        for (size_t k = 0; k < n; k++) n_found += ag_str_ends(names[k], end);
        assert_int_equal(1, n_found);
    }
    fixture_make_dir(in_run("checkpoint-2"));
    n_taken = 1000;
    ag_fs_calls_used.rename_new = rename_to_taken;
    must_fail(AG_E_EXISTS, "999 more are taken", ag_quarantine_move(RUN, "checkpoint-2", AG_QUARANTINE_NO_STATE, NULL, 0, &err));
    ag_fs_calls_used = ag_fs_system_calls;
    assert_true(fixture_exists(in_run("checkpoint-2")));
}

static void links_in_place_of_the_entry_or_the_quarantine_are_refused(void **state)
{
    (void)state;
    ag_err err;
    fixture_make_dir("elsewhere");
    assert_int_equal(0, symlink("../../elsewhere", in_run("checkpoint-2")));
    must_fail(AG_E_IO, "symbolic link", ag_quarantine_move(RUN, "checkpoint-2", AG_QUARANTINE_NO_STATE, NULL, 0, &err));
    fixture_make_dir(in_run("checkpoint-4"));
    assert_int_equal(0, symlink("../../elsewhere", QUARANTINE));
    must_fail(AG_E_IO, "symbolic link", ag_quarantine_move(RUN, "checkpoint-4", AG_QUARANTINE_NO_STATE, NULL, 0, &err));
    assert_true(fixture_exists(in_run("checkpoint-4")) && fixture_exists("elsewhere"));
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */
static void whichever_call_fails_or_kills_an_entry_is_here_or_there_and_explained(void **state)
{
    (void)state;
    ag_err err;
    int n = 1;
    for (int deadly = 0; deadly < 2; deadly++) {
        for (int at = 0; at <= n; at++) {
            fixture_remove(RUN);
            fixture_make_dir(in_run("checkpoint-2"));
            fixture_write(in_run("checkpoint-2/optimizer.pt"), "x");
            if (deadly && at > 0) {
                const pid_t child = fork();
                if (child == 0) {
                    fs_faults_begin_deadly(at);
                    (void)!ag_quarantine_sweep(RUN, &err);
                    _exit(0);
                }
                assert_int_equal(child, waitpid(child, NULL, 0));
            } else {
                fs_faults_begin(at);
                const ag_status status = ag_quarantine_sweep(RUN, &err);
                n = at == 0 ? fs_faults_end() : (fs_faults_end(), n);
                assert_int_equal(at > 0, status != AG_OK);
            }
            if (!fixture_exists(in_run("checkpoint-2"))) {
                json_t *reason;
                assert_true(fixture_exists(ag_path_join(&arena, entry_of("checkpoint-2.", &reason), "optimizer.pt")));
                ag_json_free(&reason);
            } else {
                assert_true(fixture_exists(in_run("checkpoint-2/optimizer.pt")));
                must(ag_quarantine_sweep(RUN, &err));
                assert_false(fixture_exists(in_run("checkpoint-2")));
            }
        }
    }
    assert_true(n > 5);
}

/* ---- the scan ---------------------------------------------------------------------------------------------------- */
static void steps_are_read_from_names_and_nothing_else_is_a_checkpoint(void **state)
{
    (void)state;
    assert_int_equal(7, ag_checkpoint_number("checkpoint-7"));
    assert_int_equal(7, ag_checkpoint_number("checkpoint-007"));
    assert_int_equal(0, ag_checkpoint_number("checkpoint-0"));
    static const char *const others[] = {"checkpoint-", "checkpoint-x", "checkpoint-1x", "checkpoint--1", "checkpoint- 1", "Checkpoint-1",
                                         "checkpoint-99999999999999999999999", "xcheckpoint-1"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_int_equal(-1, ag_checkpoint_number(others[i]));
}

static void the_latest_is_the_valid_one_of_the_highest_step(void **state)
{
    (void)state;
    ag_err err;
    ag_run_scan scan;
    run_fixture_checkpoint(in_run("checkpoint-9"), 9);
    run_fixture_checkpoint(in_run("checkpoint-10"), 10);
    fixture_make_dir(in_run("checkpoint-11"));
    must(ag_run_scan_make(&scan, RUN, false, &arena, &err));
    assert_int_equal(3, scan.n);
    assert_int_equal(2, scan.n_valid);
    assert_string_equal("checkpoint-10", scan.latest->name);
    assert_int_equal(AG_LACKS_STATE | AG_LACKS_CONFIG | AG_LACKS_WEIGHTS, scan.entries[2].lacks);
    must(ag_run_scan_make(&scan, "adapters/none", false, &arena, &err));
    assert_int_equal(0, scan.n);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(broken_checkpoints_and_staging_folders_are_moved_with_their_reasons),
        T(a_run_that_is_whole_gets_no_quarantine),
        T(a_name_that_is_taken_gets_a_number_up_to_999),
        T(links_in_place_of_the_entry_or_the_quarantine_are_refused),
        T(whichever_call_fails_or_kills_an_entry_is_here_or_there_and_explained),
        T(steps_are_read_from_names_and_nothing_else_is_a_checkpoint),
        T(the_latest_is_the_valid_one_of_the_highest_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
