/* The command line as data: a command is a table of options and a function. Parsing, --help, defaults and the sentence for a
 * misspelt word come from the table.
 *
 *     typedef struct { const char *model; int64_t n; bool stream; } my_options;
 *     static const cli_option options[] = {
 *         CLI_STRING("model", my_options, model, "PATH", "a model folder or .gguf file", CLI_REQUIRED),
 *         CLI_INT("max-new-tokens", my_options, n, "N", "stop after N tokens", 1, 1 << 20),
 *         CLI_FLAG("stream", my_options, stream, "print while it comes"),
 *         CLI_END };
 *
 * The struct holds the defaults before parsing. `--name value` and `--name=value` are the same; a flag also has `--no-name`. */
#ifndef AGOGE_CLI_OPTIONS_H
#define AGOGE_CLI_OPTIONS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { CLI_KIND_STRING, CLI_KIND_INT, CLI_KIND_DOUBLE, CLI_KIND_FLAG, CLI_KIND_LIST, CLI_KIND_POSITIONAL } cli_kind;
enum { CLI_REQUIRED = 1 };
enum { CLI_LIST_MAX = 64 };

typedef struct { /* an option that may be given several times */
    const char *items[CLI_LIST_MAX];
    int n;
} cli_list;

typedef struct {
    const char *name; /* without dashes; of a positional argument its name in the usage line */
    cli_kind kind;
    size_t offset;    /* of the value in the command's struct */
    const char *value_name, *help;
    int flags;
    int64_t min, max; /* of CLI_KIND_INT */
    const char *const *choices; /* of CLI_KIND_STRING, NULL-terminated; NULL: anything */
} cli_option;

#define CLI_STRING(name, type, field, value, help, flags) {name, CLI_KIND_STRING, offsetof(type, field), value, help, flags, 0, 0, NULL}
#define CLI_CHOICE(name, type, field, value, help, choices) {name, CLI_KIND_STRING, offsetof(type, field), value, help, 0, 0, 0, choices}
#define CLI_INT(name, type, field, value, help, min, max) {name, CLI_KIND_INT, offsetof(type, field), value, help, 0, min, max, NULL}
#define CLI_INT_REQUIRED(name, type, field, value, help, min, max) \
    {name, CLI_KIND_INT, offsetof(type, field), value, help, CLI_REQUIRED, min, max, NULL}
#define CLI_DOUBLE(name, type, field, value, help) {name, CLI_KIND_DOUBLE, offsetof(type, field), value, help, 0, 0, 0, NULL}
#define CLI_FLAG(name, type, field, help) {name, CLI_KIND_FLAG, offsetof(type, field), NULL, help, 0, 0, 0, NULL}
#define CLI_REPEATED(name, type, field, value, help) {name, CLI_KIND_LIST, offsetof(type, field), value, help, 0, 0, 0, NULL}
#define CLI_POSITIONAL(name, type, field, help, flags) {name, CLI_KIND_POSITIONAL, offsetof(type, field), name, help, flags, 0, 0, NULL}
#define CLI_END {NULL, CLI_KIND_FLAG, 0, NULL, NULL, 0, 0, 0, NULL}

typedef struct {
    const char *name, *alias; /* alias may be NULL */
    const char *summary;      /* one line, for `agoge help` */
    const char *details;      /* for --help, may be NULL */
    const cli_option *options;
    /* argv behind the command's name. Returns the exit code. */
    int (*run)(int argc, char **argv);
} cli_command;

/* Fills `values` from argv. Sets *helped and returns AG_OK when --help was asked for (the text is on stdout); the caller then
 * ends with exit code 0. AG_E_USAGE names the word and the nearest known one. */
AG_MUST_USE ag_status cli_parse(const cli_command *command, void *values, int argc, char **argv, bool *helped, ag_err *err);

/* What the program is called in its own sentences; main of another program says its name first. */
extern const char *cli_program;

/* The sentence on stderr, and the exit code that belongs to it. */
int cli_fail(const ag_err *err);

/* Parses or leaves: for the top of a command's run function. */
#define CLI_PARSE(command, values, argc, argv)                                          \
    do {                                                                                \
        ag_err parse_err_;                                                              \
        bool helped_ = false;                                                           \
        if (cli_parse(command, values, argc, argv, &helped_, &parse_err_)) return cli_fail(&parse_err_); \
        if (helped_) return 0;                                                          \
    } while (0)

#endif
