/* agoge: finds the command, runs it. The only place, with the other files of this folder, that prints, exits, or reads the
 * environment. */
#define _GNU_SOURCE
#include "agoge_version.h"
#include "cli/commands.h"
#include "cli/device_access.h"
#include "cli/terminal.h"
#include "ops/cpu_level.h"

#include "base/fs.h"
#include "base/str.h"

#include <jansson.h>
#include <signal.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>
#include <zlib.h>

static const cli_command *const commands[] = {
#define X(name) &cli_##name,
    CLI_COMMANDS(X)
#undef X
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static int help(void)
{
    printf("agoge: fine-tune, evaluate, export and use language models on this machine\n\n"
           "usage: agoge COMMAND [options]     agoge COMMAND --help tells a command's options\n\n");
    for (int i = 0; i < N_COMMANDS; i++) printf("  %-22s %s\n", commands[i]->name, commands[i]->summary);
    return 0;
}

static int version(void)
{
    ag_device *gpu;
    ag_err err;
    const bool has_cuda = cli_device_open(&gpu, "cuda", &err) == AG_OK;
    printf("agoge %s (%s)\ncompiler  %s\nlibraries jansson %s, libyaml %s, zlib %s, %s\ncpu       %s, level %s\ncuda      %s\n",
           AGOGE_VERSION, AGOGE_COMMIT, AGOGE_COMPILER, JANSSON_VERSION, yaml_get_version_string(), zlibVersion(),
           OpenSSL_version(OPENSSL_VERSION), ag_cpu_name(), ag_cpu_level_name(ag_cpu_best_level()), has_cuda ? "yes" : err.text);
    ag_device_close(&gpu);
    return 0;
}

static int unknown(const char *word)
{
    const char *known[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) known[i] = commands[i]->name;
    const char *nearest = ag_str_nearest(word, known, N_COMMANDS);
    if (nearest)
        fprintf(stderr, "agoge: there is no command '%s'; did you mean '%s'?\n", word, nearest);
    else
        fprintf(stderr, "agoge: there is no command '%s'; `agoge help` lists them\n", word);
    return 2;
}

/* OpenMP's threads spin for milliseconds at the end of a parallel region. Where another program wants the processor, that time is
 * taken from the very thread they wait for: measured on two busy cores, training fell from 80 to 10 tokens a second. A short spin
 * costs nothing measurable on a quiet machine. The runtime reads its environment before main, so the program starts itself once more;
 * whoever has set one of these variables keeps the choice. */
static void spin_briefly(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY") || getenv("KMP_BLOCKTIME")) return;
    setenv("GOMP_SPINCOUNT", "2000", 1);
    setenv("KMP_BLOCKTIME", "0", 1);
    execv("/proc/self/exe", argv); /* where it cannot, go on as it is */
}

int main(int argc, char **argv)
{
    spin_briefly(argv);
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is a failed write, not a silent death */
    cli_log_to_stderr();
    ag_path_set_home(getenv("HOME"));
    if (argc < 2) {
        help();
        return 2;
    }
    const char *word = argv[1];
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        if (argc == 2 || word[0] == '-') return help();
        word = argv[2];
        argv[2] = "--help";
        argc = 3;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0) return version();
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(word, commands[i]->name) == 0 || (commands[i]->alias && strcmp(word, commands[i]->alias) == 0)) {
            int code = commands[i]->run(argc - 2, argv + 2);
            if (fflush(stdout) != 0 || ferror(stdout)) {
                fprintf(stderr, "agoge: the result could not be written to standard output\n");
                if (code == 0) code = 1;
            }
            return code;
        }
    return unknown(word);
}
