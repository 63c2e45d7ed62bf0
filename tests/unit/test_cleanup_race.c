/* A cleanup while another process swaps the run, its checkpoints and folders inside them for symbolic links, as fast as it can: what the
 * links point to is never touched. */
#define _GNU_SOURCE
#include "support/run_fixture.h"
#include "support/unit_test.h"

#include "base/clock.h"
#include "base/fs.h"
#include "runs/cleanup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_CHECKPOINTS = 4, MOST_ROUNDS = 400 };

enum { FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

static void exchange(int dir, const char *name, const char *link)
{
    for (int i = 0; i < 2; i++) { /* there and back; between, long enough for the other to come by */
        (void)!renameat2(dir, name, AT_FDCWD, link, RENAME_EXCHANGE);
        usleep(30);
    }
}

/* Goes through no link itself, so that whatever happens to what they point to was the cleanup's doing. */
static void swap_forever(void)
{
    for (unsigned i = 0;; i++) {
        char name[32];
        snprintf(name, sizeof name, "checkpoint-%u", 1 + i % N_CHECKPOINTS);
        const int run = open("adapters/run", FOLDER), checkpoint = run < 0 ? -1 : openat(run, name, FOLDER);
        if (checkpoint >= 0) exchange(checkpoint, "inner", "link-to-inner");
        if (run >= 0) exchange(run, name, "link-to-checkpoint");
        if (i % 2 == 0) exchange(AT_FDCWD, "adapters/run", "link-to-run");
        if (checkpoint >= 0) close(checkpoint);
        if (run >= 0) close(run);
    }
}

/* What an earlier cleanup removed stands there again. */
static void refill(void)
{
    const int run = open("adapters/run", FOLDER);
    for (int i = 1; run >= 0 && i <= N_CHECKPOINTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "checkpoint-%d", i);
        (void)!mkdirat(run, name, 0755);
        const int checkpoint = openat(run, name, FOLDER);
        if (checkpoint < 0) continue;
        (void)!mkdirat(checkpoint, "inner", 0755);
        const int file = openat(checkpoint, "trainer_state.json", O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (file >= 0) close(file);
        close(checkpoint);
    }
    if (run >= 0) close(run);
}

static void fill(const char *run)
{
    char path[128];
    for (int i = 1; i <= N_CHECKPOINTS; i++) {
        snprintf(path, sizeof path, "%s/checkpoint-%d/inner", run, i);
        fixture_make_dir(path);
        snprintf(path, sizeof path, "%s/checkpoint-%d/trainer_state.json", run, i);
        fixture_write(path, "{}");
        snprintf(path, sizeof path, "%s/checkpoint-%d/inner/file", run, i);
        fixture_write(path, "x");
    }
}

static void no_link_that_is_put_in_the_way_is_followed(void **state)
{
    (void)state;
    ag_err err;
    run_fixture_begin();
    fill("precious");
    assert_int_equal(0, symlink("../precious", "link-to-run"));
    assert_int_equal(0, symlink("../../precious/checkpoint-1", "link-to-checkpoint"));
    assert_int_equal(0, symlink("../../../precious/checkpoint-2", "link-to-inner"));
    char *before = fixture_picture("precious");
    const pid_t child = fork();
    if (child == 0) swap_forever();
    int n_done = 0, n_refused = 0, n_rounds = 0;
    const uint64_t start = ag_clock_ns();
    for (; n_rounds < MOST_ROUNDS && ag_clock_ns() - start < 2000000000u; n_rounds++) {
        ag_arena arena = {0};
        ag_cleanup c;
        refill();
        if (ag_cleanup_run(&c, &(ag_cleanup_options){.run_dir = "adapters/run", .force = true, .n_threads = 1}, &arena, &err)) n_refused++;
        else if (c.n_removed > 0) n_done++;
        ag_arena_free(&arena);
    }
    kill(child, SIGKILL);
    assert_int_equal(child, waitpid(child, NULL, 0));
    char *after = fixture_picture("precious");
    assert_string_equal(before, after);
    print_message("%d cleanups: %d removed something, %d were refused\n", n_rounds, n_done, n_refused);
    assert_true(n_done > 0);
    free(before);
    free(after);
    run_fixture_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_link_that_is_put_in_the_way_is_followed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
