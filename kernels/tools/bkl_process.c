#define _GNU_SOURCE
#include "kernels/tools/bkl_process.h"

#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_OUTPUT_BYTES = 16 << 20, COULD_NOT_START = 127, TIMED_OUT = 124, POLL_MS = 20 };

const char *bkl_program_find(const char *name, const char *override, ag_arena *arena)
{
    const char *given = override ? getenv(override) : NULL;
    if (given && *given) return access(given, X_OK) == 0 ? given : NULL;
    const char *path = getenv("PATH");
    for (const char *at = path ? path : ""; *at;) {
        const size_t n = strcspn(at, ":");
        const char *file = ag_arena_printf(arena, "%.*s/%s", (int)n, at, name);
        if (n && access(file, X_OK) == 0 && ag_path_is_file(file)) return file;
        at += n + (at[n] == ':');
    }
    const char *file = ag_arena_printf(arena, "/usr/local/cuda/bin/%s", name);
    return access(file, X_OK) == 0 ? file : NULL;
}

static void start_child(const char *const *argv, int out, int error)
{
    setpgid(0, 0);
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(error >= 0 ? error : nothing, STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    execv(argv[0], (char *const *)argv);
    _exit(COULD_NOT_START);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads what there is without waiting; false at the end of the output. */
static bool drain(ag_str *out, int fd, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, wait_ms) <= 0) return true;
    char bytes[8192];
    const ssize_t n = read(fd, bytes, sizeof bytes);
    if (n > 0 && out->n < MAX_OUTPUT_BYTES) ag_str_add_n(out, bytes, (size_t)n);
    return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

ag_status bkl_process_run(bkl_exit *exit_status, ag_str *out, const char *const *argv, const char *log, int limit_s, ag_err *err)
{
    int pipes[2] = {-1, -1}, to = -1;
    if (log && (to = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) < 0) return ag_fail_errno(err, errno, "%s: cannot be written", log);
    if (!log && pipe2(pipes, O_CLOEXEC) != 0) return ag_fail_errno(err, errno, "no pipe for %s", argv[0]);
    const pid_t child = fork();
    if (child == 0) start_child(argv, log ? to : pipes[1], log ? to : -1);
    if (log) close(to);
    if (!log) close(pipes[1]);
    if (child < 0) {
        if (!log) close(pipes[0]);
        return ag_fail_errno(err, errno, "%s cannot be started", argv[0]);
    }
    const int64_t until = limit_s ? now_ms() + (int64_t)limit_s * 1000 : INT64_MAX;
    int how = 0;
    bool more = !log, done = false;
    *exit_status = (bkl_exit){0};
    while (!done) {
        if (more)
            more = drain(out, pipes[0], POLL_MS);
        else if (limit_s)
            nanosleep(&(struct timespec){0, POLL_MS * 1000000}, NULL);
        done = waitpid(child, &how, limit_s || more ? WNOHANG : 0) == child;
        if (!done && now_ms() >= until) {
            kill(-child, SIGKILL);
            exit_status->timed_out = true;
            waitpid(child, &how, 0);
            done = true;
        }
    }
    while (more && !exit_status->timed_out && drain(out, pipes[0], 0) && poll(&(struct pollfd){.fd = pipes[0], .events = POLLIN}, 1, 0) > 0) {}
    if (!log) close(pipes[0]);
    exit_status->exit_code = exit_status->timed_out ? TIMED_OUT : WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    return AG_OK;
}
