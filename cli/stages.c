#define _GNU_SOURCE
#include "cli/stages.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
enum { MOST_WORDS = 64 };

static volatile sig_atomic_t stage_pid, stop_signal;

/* Ctrl-C reaches the stage by itself, a kill of this process does not. */
static void hand_on(int signal)
{
    stop_signal = signal;
    if (stage_pid > 0 && signal == SIGTERM) kill((pid_t)stage_pid, signal);
}

static ag_status ended(int status, const char *what, ag_err *err)
{
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 128 + SIGINT || stop_signal == SIGINT)
        return ag_fail(err, AG_E_INTERRUPTED, "%s was stopped; the same command goes on where it was", what);
    if (code == 128 + SIGTERM || stop_signal == SIGTERM)
        return ag_fail(err, AG_E_TERMINATED, "%s was stopped; the same command goes on where it was", what);
    if (code)
        return ag_fail(err, AG_E_VERIFY, "%s failed with exit code %d; what it said stands above, mend that and start again",
                       what, code);
    return AG_OK;
}

ag_status cli_stage_run(const char *const *words, const char *output, const char *what, ag_err *err)
{
    const char *argv[MOST_WORDS] = {"agoge"};
    int n = 1, status = 0;
    while (*words) {
        AG_ASSERT(n + 1 < MOST_WORDS);
        argv[n++] = *words++;
    }
    struct sigaction action = {.sa_handler = hand_on}, old_int, old_term;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &old_int);
    sigaction(SIGTERM, &action, &old_term);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    pid_t child;
    const int failed = posix_spawn(&child, "/proc/self/exe", &actions, NULL, (char *const *)(void *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    ag_status result = failed ? ag_fail_errno(err, failed, "%s cannot be started", what) : AG_OK;
    if (!failed) {
        stage_pid = child;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
        stage_pid = 0;
        result = ended(status, what, err);
    }
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    return result;
}
