#define _GNU_SOURCE
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- paths ---------------------------------------------------------------------------------------------------------------- */

static void paths_keep_the_rules(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_err err;
    char *out;
    must_fail(AG_E_CONFIG, "empty", ag_path_check(&out, "", &a, &err));
    must_fail(AG_E_CONFIG, "empty", ag_path_check(&out, " \t", &a, &err));
    must_fail(AG_E_CONFIG, "empty", ag_path_check(&out, NULL, &a, &err));
    must_fail(AG_E_CONFIG, "a/../b", ag_path_check(&out, "a/../b", &a, &err));
    must_fail(AG_E_CONFIG, "'..'", ag_path_check(&out, "..", &a, &err));
    must_fail(AG_E_CONFIG, "'..'", ag_path_check(&out, "/x/..", &a, &err));
    must_fail(AG_E_NOT_FOUND, "'~nobody-of-this-name'", ag_path_check(&out, "~nobody-of-this-name/x", &a, &err));
    must(ag_path_check(&out, "a..b/...", &a, &err));
    assert_string_equal("a..b/...", out);
    ag_path_set_home("/home/of/test");
    must(ag_path_check(&out, "~/models", &a, &err));
    assert_string_equal("/home/of/test/models", out);
    must(ag_path_check(&out, "~", &a, &err));
    assert_string_equal("/home/of/test", out);
    ag_path_set_home(NULL);
    must(ag_path_check(&out, "~root/x", &a, &err));
    assert_true(out[0] == '/' && strstr(out, "/x"));
    ag_arena_free(&a);
}

static void existing_paths_are_resolved_and_their_kind_is_checked(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_err err;
    char *out;
    scratch_dir_create();
    must(ag_file_publish(scratch_path("file"), "x", 1, &err));
    assert_int_equal(0, mkdir(scratch_path("dir"), 0777));
    assert_int_equal(0, symlink(scratch_path("file"), scratch_path("link")));
    assert_int_equal(0, symlink(scratch_path("loop"), scratch_path("loop")));
    must(ag_path_existing_file(&out, scratch_path("link"), &a, &err));
    assert_string_equal(scratch_path("file"), out);
    must(ag_path_existing_dir(&out, scratch_path("dir/."), &a, &err));
    assert_string_equal(scratch_path("dir"), out);
    must_fail(AG_E_NOT_FOUND, "does not exist", ag_path_existing_file(&out, scratch_path("missing"), &a, &err));
    must_fail(AG_E_NOT_FOUND, "does not exist", ag_path_existing_file(&out, scratch_path("file/x"), &a, &err));
    must_fail(AG_E_IO, "loop", ag_path_existing_file(&out, scratch_path("loop"), &a, &err));
    must_fail(AG_E_IO, "is a directory; a file was expected", ag_path_existing_file(&out, scratch_path("dir"), &a, &err));
    must_fail(AG_E_IO, "is a file; a directory was expected", ag_path_existing_dir(&out, scratch_path("file"), &a, &err));
    must(ag_path_output_dir(&out, scratch_path("a/b/c/"), &a, &err));
    assert_string_equal(scratch_path("a/b/c"), out);
    must(ag_path_output_dir(&out, scratch_path("a/b/c"), &a, &err));
    must_fail(AG_E_EXISTS, "something else of that name", ag_path_output_dir(&out, scratch_path("file"), &a, &err));
    must_fail(AG_E_EXISTS, "file cannot be made", ag_path_output_dir(&out, scratch_path("file/x"), &a, &err));
    scratch_dir_remove();
    ag_arena_free(&a);
}

static void an_absent_output_makes_only_its_parent_and_dotdot_is_refused_everywhere(void **state) /* forge.md §10, 34 */
{
    (void)state;
    ag_arena a = {0};
    ag_err err;
    char *out;
    scratch_dir_create();
    must(ag_path_absent_dir(&out, scratch_path("deep/down/new/"), &a, &err));
    assert_string_equal(scratch_path("deep/down/new"), out);
    assert_true(ag_path_is_dir(scratch_path("deep/down")));
    assert_false(ag_path_is_dir(out));
    assert_int_equal(0, mkdir(out, 0777));
    must_fail(AG_E_EXISTS, "it is not written over", ag_path_absent_dir(&out, scratch_path("deep/down/new"), &a, &err));
    assert_int_equal(0, symlink("nowhere", scratch_path("dangling")));
    must_fail(AG_E_EXISTS, "it is not written over", ag_path_absent_dir(&out, scratch_path("dangling"), &a, &err));
    must_fail(AG_E_EXISTS, "name a new one", ag_path_absent_dir(&out, ".", &a, &err));
    must_fail(AG_E_CONFIG, "'..'", ag_path_absent_dir(&out, "x/../y", &a, &err));
    must_fail(AG_E_CONFIG, "'..'", ag_path_output_dir(&out, "x/../y", &a, &err));
    must_fail(AG_E_CONFIG, "'..'", ag_path_existing_dir(&out, "x/../y", &a, &err));
    assert_false(ag_path_is_dir("x"));
    ag_arena_free(&a);
    scratch_dir_remove();
}

static void paths_are_joined_and_split(void **state)
{
    (void)state;
    ag_arena a = {0};
    assert_string_equal("a/b", ag_path_join(&a, "a", "b"));
    assert_string_equal("a/b", ag_path_join(&a, "a/", "b"));
    assert_string_equal("/b", ag_path_join(&a, "a", "/b"));
    assert_string_equal("b", ag_path_join(&a, "", "b"));
    assert_string_equal("b.json", ag_path_base("/a/b.json"));
    assert_string_equal("b", ag_path_base("b"));
    assert_string_equal("/a", ag_path_dir(&a, "/a/b"));
    assert_string_equal("/a", ag_path_dir(&a, "/a//b"));
    assert_string_equal("/", ag_path_dir(&a, "/b"));
    assert_string_equal(".", ag_path_dir(&a, "b"));
    ag_arena_free(&a);
}

/* ---- directories and reading ---------------------------------------------------------------------------------------------- */

static void directories_are_listed_in_order(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_err err;
    char **names;
    size_t n;
    scratch_dir_create();
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%03d", (i * 37) % 100);
        must(ag_file_publish(scratch_path(name), "", 0, &err));
    }
    must(ag_dir_list(&names, &n, scratch_path("."), &a, &err));
    assert_int_equal(100, n);
    assert_null(names[100]);
    for (size_t i = 0; i < n; i++) assert_int_equal((int)i, atoi(names[i] + 1));
    must_fail(AG_E_NOT_FOUND, "cannot be listed", ag_dir_list(&names, &n, scratch_path("missing"), &a, &err));
    scratch_dir_remove();
    ag_arena_free(&a);
}

static void removing_a_tree_follows_no_link(void **state)
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    must(ag_make_dirs(scratch_path("tree/a/b"), &err));
    must(ag_make_dirs(scratch_path("outside"), &err));
    must(ag_file_publish(scratch_path("outside/kept"), "x", 1, &err));
    must(ag_file_publish(scratch_path("tree/a/b/gone"), "x", 1, &err));
    assert_int_equal(0, symlink(scratch_path("outside"), scratch_path("tree/a/link")));
    assert_int_equal(0, symlink(scratch_path("outside"), scratch_path("link")));
    must(ag_remove_tree(scratch_path("tree"), &err));
    must(ag_remove_tree(scratch_path("link"), &err));
    must(ag_remove_tree(scratch_path("never-was"), &err));
    assert_false(ag_path_is_dir(scratch_path("tree")));
    assert_true(ag_path_is_file(scratch_path("outside/kept")));
    assert_int_not_equal(0, access(scratch_path("link"), F_OK));
    scratch_dir_remove();
}

static void files_are_read_and_mapped(void **state)
{
    (void)state;
    ag_arena a = {0};
    ag_err err;
    ag_map map;
    char *text;
    size_t n;
    uint64_t space;
    scratch_dir_create();
    size_t n_block = 3 * 4096 + 5;
    char *block = ag_arena_alloc(&a, n_block);
    for (size_t i = 0; i < n_block; i++) block[i] = (char)(i * 7);
    must(ag_file_publish(scratch_path("file"), block, n_block, &err));
    must(ag_file_read(&text, &n, scratch_path("file"), n_block, &a, &err));
    assert_int_equal(n_block, n);
    assert_memory_equal(block, text, n);
    assert_int_equal(0, text[n]);
    must_fail(AG_E_FORMAT, "at most 5 are read", ag_file_read(&text, &n, scratch_path("file"), 5, &a, &err));
    must(ag_map_open(&map, scratch_path("file"), &err));
    assert_int_equal(0, unlink(scratch_path("file")));
    assert_int_equal(n_block, map.n);
    assert_memory_equal(block, map.bytes, n_block);
    ag_map_forget(&map, 100, n_block);
    ag_map_forget(&map, 0, SIZE_MAX);
    ag_map_forget(&map, SIZE_MAX, 1);
    assert_memory_equal(block, map.bytes, n_block);
    ag_map_close(&map);
    assert_null(map.bytes);
    must(ag_file_publish(scratch_path("empty"), NULL, 0, &err));
    must(ag_map_open(&map, scratch_path("empty"), &err));
    assert_int_equal(0, map.n);
    ag_map_close(&map);
    must_fail(AG_E_IO, "is a directory", ag_map_open(&map, scratch_path("."), &err));
    assert_int_equal(0, mkfifo(scratch_path("fifo"), 0600));
    must_fail(AG_E_IO, "a regular file was expected", ag_map_open(&map, scratch_path("fifo"), &err));
    must(ag_disk_free(&space, scratch_path("."), &err));
    assert_true(space > 0);
    scratch_dir_remove();
    ag_arena_free(&a);
}

static void a_lock_keeps_other_processes_out(void **state)
{
    (void)state;
    ag_err err;
    ag_lock lock, second;
    scratch_dir_create();
    must(ag_lock_take(&lock, scratch_path("."), "lock", &err));
    char who[32];
    snprintf(who, sizeof who, "process %ld", (long)getpid());
    must_fail(AG_E_BUSY, who, ag_lock_take(&second, scratch_path("."), "lock", &err));
    pid_t child = fork();
    if (child == 0) _exit(ag_lock_take(&second, scratch_path("."), "lock", &err) == AG_E_BUSY ? 0 : 1);
    int ended;
    assert_int_equal(child, waitpid(child, &ended, 0));
    assert_int_equal(0, ended);
    ag_lock_release(&lock);
    must(ag_lock_take(&second, scratch_path("."), "lock", &err));
    ag_lock_release(&second);
    scratch_dir_remove();
}

/* ---- faults --------------------------------------------------------------------------------------------------------------- */

typedef enum { FAULT_ERROR, FAULT_DEATH, FAULT_INTERRUPT, FAULT_COUNT } fault_kind;
static struct {
    fault_kind kind;
    int at, n_calls; /* the at-th call has the fault; at 0: none */
    char calls[64];  /* a letter for each, repeated ones once */
} fault;

/* True where this call fails. */
static int faulty(char letter)
{
    size_t n = strlen(fault.calls);
    if (n + 1 < sizeof fault.calls && (n == 0 || fault.calls[n - 1] != letter)) fault.calls[n] = letter;
    if (++fault.n_calls != fault.at) return 0;
    if (fault.kind == FAULT_DEATH) _exit(9);
    errno = fault.kind == FAULT_INTERRUPT ? EINTR : EIO;
    return 1;
}

static int faulty_open(const char *path, int flags, unsigned mode) { return faulty('o') ? -1 : open(path, flags, (mode_t)mode); }
static int faulty_fsync(int fd) { return faulty(fd < 0 ? '?' : 's') ? -1 : 0; } /* no real one: hundreds would take long */
static int faulty_rename(const char *a, const char *b) { return faulty('r') ? -1 : rename(a, b); }
static int faulty_rename_new(const char *a, const char *b) { return faulty('R') ? -1 : ag_fs_system_calls.rename_new(a, b); }
static int faulty_mkdir(const char *path, unsigned mode) { return faulty('m') ? -1 : mkdir(path, (mode_t)mode); }

static int faulty_close(int fd)
{
    int failed = close(fd);
    return faulty('c') ? -1 : failed;
}

static ssize_t faulty_write(int fd, const void *bytes, size_t n)
{
    if (n > 1) n = n / 2 + 1; /* every write is a short one */
    return faulty('w') ? -1 : write(fd, bytes, n);
}

static void faults_begin(fault_kind kind, int at)
{
    fault.kind = kind;
    fault.at = at;
    fault.n_calls = 0;
    memset(fault.calls, 0, sizeof fault.calls);
    ag_fs_calls_used = (ag_fs_calls){faulty_open, faulty_write, faulty_fsync, faulty_close, faulty_rename, faulty_rename_new, faulty_mkdir,
                                     ag_fs_system_calls.unlink_at};
}

static void faults_end(void) { ag_fs_calls_used = ag_fs_system_calls; }

enum { NEW_BYTES = 700000 }; /* several buffers */
static char new_text[NEW_BYTES];

static ag_status publish_in_pieces(const char *path, ag_err *err)
{
    ag_file_writer w;
    AG_TRY(ag_file_begin(&w, path, err));
    for (size_t at = 0, piece = 1; at < NEW_BYTES; at += piece, piece = piece * 3 + 1) {
        if (piece > NEW_BYTES - at) piece = NEW_BYTES - at;
        AG_TRY(ag_file_write(&w, new_text + at, piece, err));
    }
    assert_int_equal(NEW_BYTES, w.n_written);
    return ag_file_commit(&w, err);
}

static void put_old(void)
{
    FILE *file = fopen(scratch_path("file"), "wb");
    assert_non_null(file);
    assert_true(fputs("old", file) >= 0 && fclose(file) == 0);
}

/* 'o' the old text, 'n' the new one, '?' anything else */
static char which_file(const char *path)
{
    ag_arena a = {0};
    ag_err err;
    char *text, which = '?';
    size_t n;
    if (ag_file_read(&text, &n, path, NEW_BYTES, &a, &err) == AG_OK) {
        if (n == 3 && memcmp(text, "old", 3) == 0) which = 'o';
        if (n == NEW_BYTES && memcmp(text, new_text, n) == 0) which = 'n';
    }
    ag_arena_free(&a);
    return which;
}

static size_t count_names(const char *dir)
{
    ag_arena a = {0};
    ag_err err;
    char **names;
    size_t n;
    must(ag_dir_list(&names, &n, dir, &a, &err));
    ag_arena_free(&a);
    return n;
}

static int calls_of_a_publish(void)
{
    ag_err err;
    faults_begin(FAULT_COUNT, 0);
    must(publish_in_pieces(scratch_path("file"), &err));
    faults_end();
    assert_int_equal('n', which_file(scratch_path("file")));
    assert_true(fault.n_calls > 10);
    assert_string_equal("owscros", fault.calls); /* the bytes are on disk before the name points to them, and then the name is */
    return fault.n_calls;
}

static void a_file_is_the_old_or_the_new_one_whichever_call_fails(void **state)
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    for (int n = calls_of_a_publish(), at = 1; at <= n; at++) {
        put_old();
        faults_begin(FAULT_ERROR, at);
        err.text[0] = 0;
        ag_status status = publish_in_pieces(scratch_path("file"), &err);
        faults_end();
        assert_int_equal(AG_E_IO, status);
        assert_non_null(strstr(err.text, "Input/output error"));
        /* only the directory's own open and fsync come after the rename */
        assert_int_equal(at > n - 2 ? 'n' : 'o', which_file(scratch_path("file")));
        assert_int_equal(1, count_names(scratch_path("."))); /* no temporary is left */
    }
    scratch_dir_remove();
}

static void a_file_is_the_old_or_the_new_one_whenever_the_process_dies(void **state)
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    for (int n = calls_of_a_publish(), at = 1; at <= n; at++) {
        put_old();
        pid_t child = fork();
        if (child == 0) {
            faults_begin(FAULT_DEATH, at);
            _exit(publish_in_pieces(scratch_path("file"), &err));
        }
        int ended;
        assert_int_equal(child, waitpid(child, &ended, 0));
        assert_int_equal(9, WEXITSTATUS(ended));
        assert_int_equal(at > n - 2 ? 'n' : 'o', which_file(scratch_path("file")));
    }
    scratch_dir_remove();
}

static void interrupted_calls_are_made_again(void **state)
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    for (int n = calls_of_a_publish(), at = 1; at <= n; at++) {
        if (at == n - 2) continue; /* rename knows no EINTR */
        put_old();
        faults_begin(FAULT_INTERRUPT, at);
        must(publish_in_pieces(scratch_path("file"), &err));
        faults_end();
        assert_int_equal('n', which_file(scratch_path("file")));
    }
    scratch_dir_remove();
}

static void a_failed_or_aborted_writer_stays_so(void **state)
{
    (void)state;
    ag_err err;
    ag_file_writer w;
    scratch_dir_create();
    must_fail(AG_E_NOT_FOUND, "no/such/dir/file cannot be written", ag_file_begin(&w, scratch_path("no/such/dir/file"), &err));
    must(ag_file_begin(&w, scratch_path("file"), &err));
    faults_begin(FAULT_ERROR, 1);
    must_fail(AG_E_IO, "cannot be written", ag_file_write(&w, new_text, NEW_BYTES, &err));
    faults_end();
    must_fail(AG_E_IO, "cannot be written", ag_file_write(&w, "x", 1, &err));
    must_fail(AG_E_IO, "cannot be written", ag_file_commit(&w, &err));
    ag_file_abort(&w);
    must(ag_file_begin(&w, scratch_path("file"), &err));
    must(ag_file_write(&w, "x", 1, &err));
    ag_file_abort(&w);
    ag_file_abort(&w);
    assert_int_equal(0, count_names(scratch_path(".")));
    assert_int_equal(0, mkdir(scratch_path("dir"), 0777));
    must_fail(AG_E_IO, "cannot be put in place", ag_file_publish(scratch_path("dir"), "x", 1, &err));
    assert_int_equal(1, count_names(scratch_path(".")));
    scratch_dir_remove();
}

static ag_status publish_dir(ag_err *err)
{
    ag_dir_writer w;
    ag_arena a = {0};
    AG_TRY(ag_dir_begin(&w, scratch_path("run/checkpoint-5"), "tmp-checkpoint-5-", err));
    ag_status status = ag_make_dirs(ag_path_join(&a, w.staging, "inner"), err);
    if (!status) status = ag_file_publish(ag_path_join(&a, w.staging, "a"), "aaa", 3, err);
    if (!status) status = ag_file_publish(ag_path_join(&a, w.staging, "inner/b"), "bbb", 3, err);
    if (!status) status = ag_dir_commit(&w, err);
    else ag_dir_abort(&w);
    ag_arena_free(&a);
    return status;
}

static bool dir_is_whole(void)
{
    return ag_path_is_file(scratch_path("run/checkpoint-5/a")) && ag_path_is_file(scratch_path("run/checkpoint-5/inner/b")) &&
           count_names(scratch_path("run/checkpoint-5")) == 2;
}

static void a_directory_is_whole_or_absent_whichever_call_fails(void **state)
{
    (void)state;
    ag_err err;
    for (int deadly = 0; deadly < 2; deadly++) {
        scratch_dir_create();
        must(ag_make_dirs(scratch_path("run"), &err));
        faults_begin(FAULT_COUNT, 0);
        must(publish_dir(&err));
        faults_end();
        assert_true(dir_is_whole());
        assert_string_equal("osRos", fault.calls + strlen(fault.calls) - 5);
        assert_int_equal(1, count_names(scratch_path("run")));
        for (int n = fault.n_calls, at = 1; at <= n; at++) {
            must(ag_remove_tree(scratch_path("run/checkpoint-5"), &err));
            pid_t child = deadly ? fork() : 0;
            if (child == 0) {
                faults_begin(deadly ? FAULT_DEATH : FAULT_ERROR, at);
                ag_status status = publish_dir(&err);
                faults_end();
                if (deadly) _exit(0);
                assert_int_equal(AG_E_IO, status);
                assert_int_equal(at > n - 2, count_names(scratch_path("run"))); /* the staging directory is gone */
            } else {
                assert_int_equal(child, waitpid(child, NULL, 0));
            }
            assert_int_equal(at > n - 2, ag_path_is_dir(scratch_path("run/checkpoint-5")));
            if (at > n - 2) assert_true(dir_is_whole());
        }
        scratch_dir_remove();
    }
}

static void a_directory_that_exists_is_not_replaced(void **state)
{
    (void)state;
    ag_err err;
    ag_dir_writer w;
    scratch_dir_create();
    must(ag_make_dirs(scratch_path("out"), &err));
    must_fail(AG_E_EXISTS, "out exists already", ag_dir_begin(&w, scratch_path("out/"), ".tmp-", &err));
    must(ag_dir_begin(&w, scratch_path("late"), ".tmp-", &err));
    must(ag_make_dirs(scratch_path("late"), &err)); /* somebody was faster */
    must_fail(AG_E_EXISTS, "late exists already", ag_dir_commit(&w, &err));
    must(ag_dir_begin(&w, scratch_path("dropped"), ".tmp-", &err));
    ag_dir_abort(&w);
    ag_dir_abort(&w);
    assert_int_equal(2, count_names(scratch_path(".")));
    scratch_dir_remove();
}

int main(void)
{
    for (size_t i = 0; i < NEW_BYTES; i++) new_text[i] = (char)(i * 31 + i / 251);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_keep_the_rules),
        cmocka_unit_test(existing_paths_are_resolved_and_their_kind_is_checked),
        cmocka_unit_test(an_absent_output_makes_only_its_parent_and_dotdot_is_refused_everywhere),
        cmocka_unit_test(paths_are_joined_and_split),
        cmocka_unit_test(directories_are_listed_in_order),
        cmocka_unit_test(removing_a_tree_follows_no_link),
        cmocka_unit_test(files_are_read_and_mapped),
        cmocka_unit_test(a_lock_keeps_other_processes_out),
        cmocka_unit_test(a_file_is_the_old_or_the_new_one_whichever_call_fails),
        cmocka_unit_test(a_file_is_the_old_or_the_new_one_whenever_the_process_dies),
        cmocka_unit_test(interrupted_calls_are_made_again),
        cmocka_unit_test(a_failed_or_aborted_writer_stays_so),
        cmocka_unit_test(a_directory_is_whole_or_absent_whichever_call_fails),
        cmocka_unit_test(a_directory_that_exists_is_not_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
