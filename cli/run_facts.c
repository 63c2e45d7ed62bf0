#define _GNU_SOURCE
#include "cli/run_facts.h"

#include "agoge_version.h"
#include "base/clock.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include <yaml.h>
#include <zlib.h>

extern char **environ;
enum { GIT_MAX_MS = 5000, GIT_MAX_BYTES = 4096 };

/* What a child writes to `fd` before it ends, at most GIT_MAX_BYTES; false where it takes too long. */
static bool read_all(int fd, char out[GIT_MAX_BYTES + 1])
{
    size_t n = 0;
    const uint64_t end = ag_clock_ns() + (uint64_t)GIT_MAX_MS * 1000000;
    for (;;) {
        const uint64_t now = ag_clock_ns();
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (now >= end || poll(&wait, 1, (int)((end - now) / 1000000)) == 0) return false;
        const ssize_t got = read(fd, out + n, GIT_MAX_BYTES - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return false;
        if (got > 0) n += (size_t)got;
        out[n] = 0;
        if (got == 0 || n == GIT_MAX_BYTES) return true;
    }
}

/* Runs git with these words; its output without the last newline. False where it cannot, fails, or takes too long. */
static bool git(char out[GIT_MAX_BYTES + 1], const char *const *words)
{
    char *argv[16] = {"git", "-c", "core.fsmonitor=false"}; /* a repository's own configuration starts no program */
    int n = 3, pipe_fd[2], status = 1;
    while (*words) argv[n++] = (char *)*words++;
    if (pipe2(pipe_fd, O_CLOEXEC)) return false;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    pid_t child;
    const int failed = posix_spawnp(&child, "git", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fd[1]);
    bool ok = false;
    if (!failed) {
        ok = read_all(pipe_fd[0], out);
        close(pipe_fd[0]); /* a git that still writes is told so */
        if (!ok) kill(child, SIGKILL);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    } else {
        close(pipe_fd[0]);
    }
    const bool cut = ok && strlen(out) == GIT_MAX_BYTES;
    if (!ok || (!cut && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))) return false;
    const size_t length = strlen(out);
    if (length > 0 && out[length - 1] == '\n') out[length - 1] = 0;
    return true;
}

static void ask_git(ag_run_record *out, ag_arena *arena)
{
    char commit[GIT_MAX_BYTES + 1] = "", branch[GIT_MAX_BYTES + 1] = "", changes[GIT_MAX_BYTES + 1] = "";
    setenv("GIT_OPTIONAL_LOCKS", "0", 1); /* asking changes nothing */
    if (!git(commit, (const char *const[]){"rev-parse", "--verify", "HEAD", NULL})) return;
    if (!git(branch, (const char *const[]){"rev-parse", "--abbrev-ref", "HEAD", NULL})) return;
    if (!git(changes, (const char *const[]){"status", "--porcelain", "--untracked-files=no", NULL})) return;
    out->git.is_known = true;
    out->git.commit = ag_arena_strdup(arena, commit);
    out->git.branch = ag_arena_strdup(arena, branch);
    out->git.dirty = changes[0] != 0;
}

static bool is_secondary(void)
{
    const char *rank = getenv("RANK");
    if (!rank || !*rank) rank = getenv("LOCAL_RANK");
    return rank && *rank && strcmp(rank, "0") != 0;
}

void cli_run_facts(ag_run_record *out, ag_arena *arena)
{
    struct utsname system;
    const ag_library_version libraries[] = {{"jansson", JANSSON_VERSION},
                                            {"libyaml", yaml_get_version_string()},
                                            {"zlib", zlibVersion()},
                                            {"openssl", OpenSSL_version(OPENSSL_VERSION_STRING)}};
    ag_library_version *copy = ag_arena_array(arena, sizeof libraries / sizeof *libraries, sizeof *copy);
    memcpy(copy, libraries, sizeof libraries);
    *out = (ag_run_record){.version = AGOGE_VERSION, .commit = AGOGE_COMMIT, .compiler = AGOGE_COMPILER, .libraries = copy,
                           .n_libraries = sizeof libraries / sizeof *libraries, .is_secondary = is_secondary(), .system = "unknown"};
    if (uname(&system) == 0) out->system = ag_arena_printf(arena, "%s %s %s", system.sysname, system.release, system.machine);
    ask_git(out, arena);
}
