/* Sealing, signing and gathering bundles: whole or not at all, whatever fails and whoever interferes. */
#define _GNU_SOURCE
#include "support/bundle_bench.h"
#include "support/file_tools.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "seal/bundle.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *golden(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/golden/seal/%s", AGOGE_TESTS_DIR, name);
    return path;
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static ag_status seal(const ag_sign_key *key, ag_err *err)
{
    ag_bundle_report report;
    const ag_status status = ag_bundle_seal(&report, bundle_file(""),
                                            &(ag_bundle_seal_options){.parts = AG_BUNDLE_PARTS_DEFAULT, .key = key, .n_threads = 1}, err);
    ag_bundle_report_free(&report);
    return status;
}

/* ---- signatures ------------------------------------------------------------------------------------------------------ */
static void expect_signature(const char *key_file, ag_signature_state state, const char *failures)
{
    ag_err err;
    ag_verify_key *key = NULL;
    ag_bundle_report report;
    ag_str found = {0};
    if (key_file) must(ag_verify_key_load(&key, golden(key_file), &err));
    must(ag_bundle_verify(&report, bundle_file(""), &(ag_bundle_verify_options){.n_threads = 1, .key = key}, &err));
    ag_str_add(&found, "");
    for (size_t i = 0; i < report.n; i++)
        ag_str_printf(&found, "%s %s\n", ag_bundle_code_name(report.failures[i].code), report.failures[i].path);
    assert_string_equal(found.text, failures);
    assert_int_equal(report.signature, state);
    ag_str_free(&found);
    ag_bundle_report_free(&report);
    ag_verify_key_free(&key);
}

static void the_signature_is_the_one_that_openssl_makes(void **state)
{
    (void)state;
    ag_err err;
    ag_sign_key *key;
    ag_map ours, theirs;
    bundle_begin("adapter");
    must(ag_sign_key_load(&key, golden("key.pem"), &err));
    must(seal(key, &err));
    must(ag_map_open(&ours, bundle_file(AG_BUNDLE_SIGNATURE_FILE), &err));
    must(ag_map_open(&theirs, golden("adapter.sig"), &err));
    assert_int_equal(ours.n, AG_SIGNATURE_BYTES);
    assert_memory_equal(ours.bytes, theirs.bytes, AG_SIGNATURE_BYTES);
    ag_map_close(&ours);
    ag_map_close(&theirs);
    expect_signature("key.pub.pem", AG_SIGNATURE_VERIFIED, "");
    must(seal(NULL, &err)); /* sealed again without a key: the old signature goes */
    assert_false(exists(bundle_file(AG_BUNDLE_SIGNATURE_FILE)));
    ag_sign_key_free(&key);
    bundle_end();
}

static void a_bundle_of_another_key_or_unsigned_or_damaged_fails(void **state)
{
    (void)state;
    static const char failed[] = "signature reproducibility-bundle.sig\n";
    bundle_begin("adapter");
    expect_signature("key.pub.pem", AG_SIGNATURE_FAILED, failed);
    expect_signature(NULL, AG_SIGNATURE_ABSENT, "");
    ag_err err;
    ag_map map;
    must(ag_map_open(&map, golden("adapter.sig"), &err));
    must(ag_file_publish(bundle_file(AG_BUNDLE_SIGNATURE_FILE), map.bytes, map.n, &err));
    expect_signature("key.pub.pem", AG_SIGNATURE_VERIFIED, "");
    expect_signature("other.pub.pem", AG_SIGNATURE_FAILED, failed);
    expect_signature(NULL, AG_SIGNATURE_NOT_CHECKED, "");
    must(ag_file_publish(bundle_file(AG_BUNDLE_SIGNATURE_FILE), map.bytes, map.n - 1, &err));
    expect_signature("key.pub.pem", AG_SIGNATURE_FAILED, failed);
    must(ag_file_publish(bundle_file(AG_BUNDLE_SIGNATURE_FILE), map.bytes, map.n, &err));
    file_append(bundle_file(AG_BUNDLE_INVENTORY_FILE), " "); /* the same inventory, in other bytes */
    expect_signature("key.pub.pem", AG_SIGNATURE_FAILED, failed);
    ag_map_close(&map);
    bundle_end();
}

static void keys_of_other_kinds_are_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_sign_key *sign;
    ag_verify_key *verify;
    must_fail(AG_E_FORMAT, "no public key", ag_verify_key_load(&verify, golden("key.pem"), &err));
    must_fail(AG_E_FORMAT, "no private key", ag_sign_key_load(&sign, golden("key.pub.pem"), &err));
    must_fail(AG_E_NOT_FOUND, "nowhere.pem", ag_sign_key_load(&sign, golden("nowhere.pem"), &err));
    scratch_dir_create();
    file_put(scratch_path("rsa.pem"), "-----BEGIN PUBLIC KEY-----\nMFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAKdrb0+7KIKCmVRmOXMVXn2Jm8QeCmyK\n"
             "wvW7Gw6rHcYQzkPzDHDg9C8rQ3cTSbqVSqTeZdGJtB2KJj1lDcTxoT0CAwEAAQ==\n-----END PUBLIC KEY-----\n");
    must_fail(AG_E_FORMAT, "another algorithm than Ed25519", ag_verify_key_load(&verify, scratch_path("rsa.pem"), &err));
    scratch_dir_remove();
}

/* ---- gathering ------------------------------------------------------------------------------------------------------- */
/* The golden bundle's parts, scattered as a run, a split and an evaluation lie. */
static char run_dir[600], manifest[600], split[600], contract[600], merged[600], out[600];

static void scatter(const char *which)
{
    bundle_begin(which);
    snprintf(run_dir, sizeof run_dir, "%s", scratch_path("adapters/demo_run"));
    snprintf(merged, sizeof merged, "%s", scratch_path("merged/demo_run"));
    snprintf(manifest, sizeof manifest, "%s", scratch_path("runs/demo_run/manifest.json"));
    snprintf(split, sizeof split, "%s", scratch_path("frozen/split_manifest.json"));
    snprintf(contract, sizeof contract, "%s", scratch_path("eval/contract.json"));
    snprintf(out, sizeof out, "%s", scratch_path("made/bundle"));
    file_tree_copy(bundle_file("adapter"), run_dir);
    if (exists(bundle_file("merged"))) file_tree_copy(bundle_file("merged"), merged);
    file_tree_copy(bundle_file("splits"), scratch_path("frozen/splits"));
    static const char *const moved[][2] = {{"run/manifest.json", manifest}, {"split_manifest.json", split}, {"contract.json", contract}};
    for (int i = 0; i < 3; i++) {
        char *text = file_text(bundle_file(moved[i][0]));
        file_put(moved[i][1], text);
        free(text);
    }
    file_put(scratch_path("runs/demo_run/metrics.jsonl"), "{\"step\": 1}\n");
    file_replace(contract, "\"split_manifest_path\":\"split_manifest.json\"", "\"split_manifest_path\":\"../frozen/split_manifest.json\"");
}

static ag_status gather(const char *merged_dir, ag_err *err)
{
    ag_bundle_report report;
    const ag_status status = ag_bundle_gather(&report, out,
                                              &(ag_bundle_gather_options){.run_dir = run_dir,
                                                                          .run_manifest = manifest,
                                                                          .split_manifest = split,
                                                                          .contract = contract,
                                                                          .merged_dir = merged_dir,
                                                                          .n_threads = 1},
                                              err);
    ag_bundle_report_free(&report);
    return status;
}

static bool passes(const char *dir)
{
    ag_err err;
    ag_bundle_report report;
    if (ag_bundle_verify(&report, dir, &(ag_bundle_verify_options){.n_threads = 1}, &err)) return false;
    const bool ok = ag_bundle_passes(&report);
    ag_bundle_report_free(&report);
    return ok;
}

static void a_bundle_is_gathered_from_where_its_parts_lie(void **state)
{
    (void)state;
    static const char *const which[] = {"adapter", "merged"};
    ag_err err;
    for (int i = 0; i < 2; i++) {
        scatter(which[i]);
        must(gather(i == 1 ? merged : NULL, &err));
        assert_true(passes(out));
        char path[700];
        snprintf(path, sizeof path, "%s/run/metrics.jsonl", out);
        assert_true(exists(path));
        must_fail(AG_E_EXISTS, "exists already", gather(i == 1 ? merged : NULL, &err));
        bundle_end();
    }
}

static void what_would_not_verify_is_not_gathered(void **state)
{
    (void)state;
    ag_err err;
    scatter("adapter");
    file_append(scratch_path("adapters/demo_run/adapter_model.safetensors"), "x");
    must_fail(AG_E_VERIFY, "so it was not made", gather(NULL, &err));
    assert_false(exists(out));
    file_put(manifest, "{}");
    must_fail(AG_E_FORMAT, "has no 'config'", gather(NULL, &err));
    assert_int_equal(0, unlink(scratch_path("adapters/demo_run/artifact_index.json")));
    must_fail(AG_E_NOT_FOUND, "let it end", gather(NULL, &err));
    ag_arena arena = {0};
    char **names;
    size_t n;
    must(ag_dir_list(&names, &n, scratch_path("made"), &arena, &err));
    assert_int_equal(n, 0); /* no staging is left */
    ag_arena_free(&arena);
    bundle_end();
}

/* ---- faults ---------------------------------------------------------------------------------------------------------- */
static int n_calls, fail_at; /* fail_at 0: never */
static bool fails(void) { return ++n_calls == fail_at && (errno = EIO); }
static int faulty_open(const char *path, int flags, unsigned mode) { return fails() ? -1 : ag_fs_system_calls.open(path, flags, mode); }
static ssize_t faulty_write(int fd, const void *bytes, size_t n) { return fails() ? -1 : ag_fs_system_calls.write(fd, bytes, n); }
static int faulty_fsync(int fd) { return fails() ? -1 : ag_fs_system_calls.fsync(fd); }
static int faulty_close(int fd) { return fails() ? (ag_fs_system_calls.close(fd), errno = EIO, -1) : ag_fs_system_calls.close(fd); }
static int faulty_rename(const char *a, const char *b) { return fails() ? -1 : ag_fs_system_calls.rename(a, b); }
static int faulty_rename_new(const char *a, const char *b) { return fails() ? -1 : ag_fs_system_calls.rename_new(a, b); }
static int faulty_mkdir(const char *path, unsigned mode) { return fails() ? -1 : ag_fs_system_calls.mkdir(path, mode); }

static void faults_begin(int n)
{
    n_calls = 0;
    fail_at = n;
    ag_fs_calls_used = ag_fs_system_calls;
    ag_fs_calls_used.open = faulty_open;
    ag_fs_calls_used.write = faulty_write;
    ag_fs_calls_used.fsync = faulty_fsync;
    ag_fs_calls_used.close = faulty_close;
    ag_fs_calls_used.rename = faulty_rename;
    ag_fs_calls_used.rename_new = faulty_rename_new;
    ag_fs_calls_used.mkdir = faulty_mkdir;
}
static void faults_end(void) { ag_fs_calls_used = ag_fs_system_calls; }

static bool has_temporaries(const char *dir)
{
    ag_err err;
    ag_arena arena = {0};
    char **names;
    size_t n;
    bool found = false;
    must(ag_dir_list(&names, &n, dir, &arena, &err));
    for (size_t i = 0; i < n; i++) found = found || strstr(names[i], ".tmp-") || names[i][0] == '.';
    ag_arena_free(&arena);
    return found;
}

static void a_fault_at_any_call_of_a_seal_leaves_the_old_or_the_new_inventory(void **state)
{
    (void)state;
    ag_err err;
    ag_sign_key *key;
    must(ag_sign_key_load(&key, golden("key.pem"), &err));
    bundle_begin("adapter");
    char *old = file_text(bundle_file(AG_BUNDLE_INVENTORY_FILE));
    file_put(bundle_file("notes.txt"), "more");
    int n_old = 0, n_new = 0;
    for (int n = 1;; n++) {
        file_put(bundle_file(AG_BUNDLE_INVENTORY_FILE), old);
        faults_begin(n);
        const ag_status status = seal(key, &err);
        faults_end();
        assert_false(has_temporaries(bundle_file("")));
        char *now = file_text(bundle_file(AG_BUNDLE_INVENTORY_FILE));
        if (strcmp(now, old) == 0) {
            n_old++;
            assert_int_not_equal(status, AG_OK);
        } else {
            n_new++;
            assert_true(passes(bundle_file("")));
        }
        free(now);
        if (status == AG_OK) break;
        assert_true(n < 100);
    }
    assert_true(n_old >= 6 && n_new >= 1);
    free(old);
    ag_sign_key_free(&key);
    bundle_end();
}

static void a_fault_at_any_call_of_a_gather_leaves_a_whole_bundle_or_none(void **state)
{
    (void)state;
    ag_err err;
    scatter("adapter");
    int n = 1, n_failed = 0;
    for (;; n++) {
        faults_begin(n);
        const ag_status status = gather(NULL, &err);
        faults_end();
        if (exists(out)) assert_true(passes(out));
        else assert_int_not_equal(status, AG_OK);
        assert_false(exists(scratch_path("made")) && has_temporaries(scratch_path("made")));
        if (status == AG_OK) break;
        n_failed++;
        must(ag_remove_tree(out, &err));
        assert_true(n < 2000);
    }
    assert_true(n_failed > 50);
    bundle_end();
}

/* ---- kills and races ------------------------------------------------------------------------------------------------- */
static void sixty_kills_leave_nothing_half_valid(void **state)
{
    (void)state;
    ag_err err;
    uint32_t random = 7;
    int n_killed = 0;
    scatter("adapter");
    char *old = file_text(bundle_file(AG_BUNDLE_INVENTORY_FILE));
    file_put(bundle_file("notes.txt"), "more");
    for (int i = 0; i < 60; i++) {
        const bool gathers = i % 2 == 0;
        if (!gathers) file_put(bundle_file(AG_BUNDLE_INVENTORY_FILE), old);
        const pid_t child = fork();
        if (child == 0) _exit(gathers ? gather(NULL, &err) : seal(NULL, &err));
        random = random * 1664525u + 1013904223u;
        usleep(random / 65536 % 12000);
        kill(child, SIGKILL);
        int status;
        assert_true(waitpid(child, &status, 0) == child);
        n_killed += WIFSIGNALED(status);
        if (gathers) {
            if (exists(out)) assert_true(passes(out));
            must(ag_remove_tree(out, &err));
        } else {
            char *now = file_text(bundle_file(AG_BUNDLE_INVENTORY_FILE));
            const bool is_old = strcmp(now, old) == 0;
            free(now);
            if (is_old) assert_false(passes(bundle_file(""))); /* notes.txt is not in it: the old inventory still says the truth */
            must(seal(NULL, &err)); /* what the kill left does not stand in the way */
            assert_true(passes(bundle_file("")));
        }
    }
    assert_true(n_killed > 10);
    free(old);
    bundle_end();
}

/* Another process swaps a file of the bundle for another of the same size, and the folder for a link, as fast as it can. */
static void a_bundle_that_changes_meanwhile_never_passes_with_foreign_bytes(void **state)
{
    (void)state;
    bundle_begin("adapter");
    const char *weights = bundle_file("adapter/adapter_model.safetensors"), *good = scratch_path("good"), *bad = scratch_path("bad");
    char *original = file_text(bundle_file("adapter/adapter_config.json"));
    file_put(bad, "0123456789");
    const pid_t child = fork();
    if (child == 0)
        for (;;) {
            (void)!rename(weights, good), (void)!rename(bad, weights);
            (void)!rename(weights, bad), (void)!rename(good, weights);
            (void)!rename(bundle_file("splits"), scratch_path("aside")), (void)!symlink("/etc", bundle_file("splits"));
            (void)!unlink(bundle_file("splits")), (void)!rename(scratch_path("aside"), bundle_file("splits"));
        }
    int n_failed = 0;
    for (int i = 0; i < 150; i++) {
        ag_err err;
        ag_bundle_report report;
        must(ag_bundle_verify(&report, bundle_file(""), &(ag_bundle_verify_options){.n_threads = 1}, &err));
        for (size_t k = 0; k < report.n; k++) {
            const ag_bundle_code code = report.failures[k].code;
            if (code != AG_BUNDLE_MODIFIED_FILE && code != AG_BUNDLE_MISSING_FILE && code != AG_BUNDLE_UNSAFE_SYMLINK &&
                code != AG_BUNDLE_EXTRA_FILE)
                fail_msg("%s %s: %s", ag_bundle_code_name(code), report.failures[k].path, report.failures[k].message);
        }
        n_failed += !ag_bundle_passes(&report);
        ag_bundle_report_free(&report);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_true(n_failed > 0);
    free(original);
    bundle_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_signature_is_the_one_that_openssl_makes),
        cmocka_unit_test(a_bundle_of_another_key_or_unsigned_or_damaged_fails),
        cmocka_unit_test(keys_of_other_kinds_are_refused),
        cmocka_unit_test(a_bundle_is_gathered_from_where_its_parts_lie),
        cmocka_unit_test(what_would_not_verify_is_not_gathered),
        cmocka_unit_test(a_fault_at_any_call_of_a_seal_leaves_the_old_or_the_new_inventory),
        cmocka_unit_test(a_fault_at_any_call_of_a_gather_leaves_a_whole_bundle_or_none),
        cmocka_unit_test(sixty_kills_leave_nothing_half_valid),
        cmocka_unit_test(a_bundle_that_changes_meanwhile_never_passes_with_foreign_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
