#include "cli/options.h"

#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *cli_program = "agoge";

int cli_fail(const ag_err *err)
{
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", cli_program, err->text);
    return ag_status_exit_code(err->code);
}

static void print_help(const cli_command *command)
{
    printf("%s %s", cli_program, command->name);
    for (const cli_option *o = command->options; o->name; o++)
        if (o->kind == CLI_KIND_POSITIONAL) printf(o->flags & CLI_REQUIRED ? " %s" : " [%s]", o->name);
    printf(" [options]\n\n%s\n", command->summary);
    if (command->details) printf("\n%s\n", command->details);
    printf("\n");
    for (const cli_option *o = command->options; o->name; o++) {
        char left[64];
        if (o->kind == CLI_KIND_POSITIONAL)
            snprintf(left, sizeof left, "  %s", o->name);
        else if (o->kind == CLI_KIND_FLAG)
            snprintf(left, sizeof left, "  --[no-]%s", o->name);
        else
            snprintf(left, sizeof left, "  --%s %s", o->name, o->value_name);
        printf("%-34s %s%s%s", left, o->help, o->flags & CLI_REQUIRED ? " (required)" : "",
               o->kind == CLI_KIND_LIST ? " (may be repeated)" : "");
        for (const char *const *c = o->choices; c && *c; c++) printf("%s%s", c == o->choices ? ": " : "|", *c);
        printf("\n");
    }
    printf("%-34s %s\n", "  --help", "this text");
}

static const cli_option *find(const cli_command *command, const char *name)
{
    for (const cli_option *o = command->options; o->name; o++)
        if (o->kind != CLI_KIND_POSITIONAL && strcmp(o->name, name) == 0) return o;
    return NULL;
}

static ag_status unknown(const cli_command *command, const char *name, ag_err *err)
{
    const char *known[128];
    size_t n = 0;
    for (const cli_option *o = command->options; o->name && n < 128; o++)
        if (o->kind != CLI_KIND_POSITIONAL) known[n++] = o->name;
    const char *nearest = ag_str_nearest(name, known, n);
    if (nearest)
        return ag_fail(err, AG_E_USAGE, "%s %s has no option '--%s'; did you mean '--%s'?", cli_program, command->name, name, nearest);
    return ag_fail(err, AG_E_USAGE, "%s %s has no option '--%s'; see `%s %s --help`", cli_program, command->name, name, cli_program,
                   command->name);
}

static ag_status set(const cli_command *command, const cli_option *o, void *values, const char *text, ag_err *err)
{
    void *field = (char *)values + o->offset;
    char *end;
    errno = 0;
    switch (o->kind) {
    case CLI_KIND_STRING:
        if (o->choices) {
            const char *const *c = o->choices;
            while (*c && strcmp(*c, text) != 0) c++;
            if (!*c) {
                ag_str list = {0};
                for (c = o->choices; *c; c++) ag_str_printf(&list, "%s%s", c == o->choices ? "" : ", ", *c);
                ag_status status = ag_fail(err, AG_E_USAGE, "--%s is '%s'; it must be one of: %s", o->name, text, list.text);
                ag_str_free(&list);
                return status;
            }
        }
        *(const char **)field = text;
        return AG_OK;
    case CLI_KIND_POSITIONAL: *(const char **)field = text; return AG_OK;
    case CLI_KIND_INT: {
        const long long value = strtoll(text, &end, 10);
        if (end == text || *end || errno || value < o->min || value > o->max)
            return ag_fail(err, AG_E_USAGE, "--%s is '%s'; it must be a whole number from %lld to %lld", o->name, text,
                           (long long)o->min, (long long)o->max);
        *(int64_t *)field = value;
        return AG_OK;
    }
    case CLI_KIND_DOUBLE: {
        const double value = strtod(text, &end);
        if (end == text || *end) return ag_fail(err, AG_E_USAGE, "--%s is '%s'; it must be a number", o->name, text);
        *(double *)field = value;
        return AG_OK;
    }
    case CLI_KIND_LIST: {
        cli_list *list = field;
        if (list->n == CLI_LIST_MAX) return ag_fail(err, AG_E_USAGE, "--%s stands more than %d times", o->name, CLI_LIST_MAX);
        list->items[list->n++] = text;
        return AG_OK;
    }
    case CLI_KIND_FLAG: break;
    }
    return ag_fail(err, AG_E_USAGE, "%s %s: --%s takes no value", cli_program, command->name, o->name);
}

static ag_status set_positional(const cli_command *command, void *values, int at, const char *text, ag_err *err)
{
    for (const cli_option *o = command->options; o->name; o++)
        if (o->kind == CLI_KIND_POSITIONAL && at-- == 0) return set(command, o, values, text, err);
    return ag_fail(err, AG_E_USAGE, "%s %s does not know what to do with '%s'; see `%s %s --help`", cli_program, command->name, text,
                   cli_program, command->name);
}

ag_status cli_parse(const cli_command *command, void *values, int argc, char **argv, bool *helped, ag_err *err)
{
    int n_positional = 0;
    bool given[128] = {false};
    *helped = false;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(command);
            *helped = true;
            return AG_OK;
        }
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (strncmp(word, "--", 2) != 0) {
            AG_TRY(set_positional(command, values, n_positional++, word, err));
            continue;
        }
        char name[128];
        const char *equals = strchr(word, '=');
        snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - word - 2) : (int)strlen(word + 2), word + 2);
        const cli_option *o = find(command, name);
        const bool is_no = !o && strncmp(name, "no-", 3) == 0;
        if (is_no) o = find(command, name + 3);
        if (!o || (is_no && o->kind != CLI_KIND_FLAG)) return unknown(command, name, err);
        given[o - command->options] = true;
        if (o->kind == CLI_KIND_FLAG) {
            if (equals) return ag_fail(err, AG_E_USAGE, "--%s takes no value", name);
            *(bool *)((char *)values + o->offset) = !is_no;
            continue;
        }
        if (!equals && i + 1 == argc) return ag_fail(err, AG_E_USAGE, "--%s needs a value: %s", name, o->value_name);
        AG_TRY(set(command, o, values, equals ? equals + 1 : argv[++i], err));
    }
    for (const cli_option *o = command->options; o->name; o++) {
        if (!(o->flags & CLI_REQUIRED)) continue;
        if (o->kind == CLI_KIND_POSITIONAL ? n_positional-- <= 0 : !given[o - command->options])
            return ag_fail(err, AG_E_USAGE, "%s %s needs %s%s; see `%s %s --help`", cli_program, command->name,
                           o->kind == CLI_KIND_POSITIONAL ? "" : "--", o->name, cli_program, command->name);
    }
    return AG_OK;
}
