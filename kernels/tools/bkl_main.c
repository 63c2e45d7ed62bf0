/* bkl: the kernel lab's checkers, the telemetry sampler, and what continuous integration needs of a GPU. Runs with and without one. */
#define _GNU_SOURCE
#include "kernels/tools/bkl_command.h"

#include "agoge_version.h"
#include "base/canonical_json.h"
#include "base/fs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const commands[] = {
#define X(name) &bkl_##name,
    BKL_COMMANDS(X)
#undef X
};
enum { N_COMMANDS = sizeof commands / sizeof *commands, MAX_JSON_BYTES = 64 << 20 };

ag_status bkl_json_load(json_t **out, const char *path, ag_err *err) { return ag_json_load(out, path, MAX_JSON_BYTES, err); }

static void add_json(ag_str *out, const json_t *value)
{
    ag_json_writer w = {.out = out, .indent = 2, .ascii = true};
    ag_jw_sorted(&w, NULL, value);
    ag_str_add_char(out, '\n');
}

ag_status bkl_json_publish(const char *path, const json_t *value, ag_err *err)
{
    ag_arena arena = {0};
    ag_str text = {0};
    ag_status status = ag_make_dirs(ag_path_dir(&arena, path), err);
    if (!status) {
        add_json(&text, value);
        status = ag_file_publish(path, text.text, text.n, err);
    }
    ag_str_free(&text);
    ag_arena_free(&arena);
    return status;
}

void bkl_json_print(const json_t *value)
{
    ag_str text = {0};
    add_json(&text, value);
    fwrite(text.text, 1, text.n, stdout);
    ag_str_free(&text);
}

const char *bkl_hostname(void)
{
    static char name[256];
    if (!name[0] && (gethostname(name, sizeof name - 1) != 0 || !name[0])) strcpy(name, "localhost");
    return name;
}

static int help(void)
{
    printf("bkl: checkers, telemetry and GPU policy of the kernel lab\n\nusage: bkl COMMAND [options]     bkl COMMAND --help tells a command's options\n\n");
    for (int i = 0; i < N_COMMANDS; i++) printf("  %-26s %s\n", commands[i]->name, commands[i]->summary);
    return 0;
}

int main(int argc, char **argv)
{
    cli_program = "bkl";
    signal(SIGPIPE, SIG_IGN);
    ag_path_set_home(getenv("HOME"));
    if (argc < 2) {
        help();
        return 2;
    }
    const char *word = argv[1];
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return help();
    if (strcmp(word, "--version") == 0) {
        printf("bkl %s (%s)\n", AGOGE_VERSION, AGOGE_COMMIT);
        return 0;
    }
    const char *known[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) {
        known[i] = commands[i]->name;
        if (strcmp(word, known[i]) != 0) continue;
        int code = commands[i]->run(argc - 2, argv + 2);
        if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
            fprintf(stderr, "bkl: the result could not be written to standard output\n");
            code = 1;
        }
        return code;
    }
    const char *nearest = ag_str_nearest(word, known, N_COMMANDS);
    fprintf(stderr, nearest ? "bkl: there is no command '%s'; did you mean '%s'?\n" : "bkl: there is no command '%s'; `bkl help` lists them\n", word, nearest);
    return 2;
}
