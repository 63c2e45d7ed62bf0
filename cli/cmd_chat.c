/* agoge chat: a conversation in the terminal. */
#define _GNU_SOURCE
#include "cli/answering.h"
#include "cli/commands.h"
#include "cli/prompting.h"
#include "cli/terminal.h"

#include "base/fs.h"
#include "base/json.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    cli_model_options model;
    cli_compute_options compute;
    cli_sampling_options sampling;
    const char *system;
    int64_t context;
} options;

static const cli_option table[] = {
    CLI_MODEL_WEIGHTS(options, model),
    CLI_STRING("system", options, system, "TEXT", "what the conversation begins with", 0),
    CLI_INT("context", options, context, "N", "tokens that the conversation may have (default 4096, at most the model's)", 16, 1 << 20),
    CLI_SAMPLING(options, sampling),
    CLI_COMPUTE(options, compute),
    CLI_END,
};

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

static bool print_piece(void *user, const char *text, size_t n)
{
    (void)user;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return !interrupted;
}

typedef struct {
    const options *o;
    const cli_session *s;
    cli_answerer answerer;
    json_t *messages;
    char *system; /* owned; NULL: none */
} conversation;

static void reset(conversation *c)
{
    json_array_clear(c->messages);
    if (c->system) json_array_append_new(c->messages, json_pack("{s:s, s:s}", "role", "system", "content", c->system));
}

static ag_status save(const conversation *c, const char *path, ag_err *err)
{
    if (!*path) return ag_fail(err, AG_E_USAGE, "/save needs a file name");
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = 2};
    ag_jw_value(&w, NULL, c->messages);
    ag_str_add_char(&text, '\n');
    ag_status status = ag_file_publish(path, text.text, text.n, err);
    ag_str_free(&text);
    return status;
}

/* "/word rest"; true where the line was a command. */
static bool command(conversation *c, char *line)
{
    ag_err err;
    if (line[0] != '/') return false;
    char *rest = line + strcspn(line, " ");
    if (*rest) *rest++ = 0;
    if (strcmp(line, "/reset") == 0) {
        reset(c);
        fprintf(stderr, "(a new conversation)\n");
    } else if (strcmp(line, "/system") == 0) {
        free(c->system);
        c->system = *rest ? strdup(rest) : NULL;
        reset(c);
        fprintf(stderr, "(a new conversation, %s system text)\n", c->system ? "with this" : "without");
    } else if (strcmp(line, "/save") == 0) {
        if (save(c, rest, &err))
            fprintf(stderr, "%s\n", err.text);
        else
            fprintf(stderr, "(saved to %s)\n", rest);
    } else {
        fprintf(stderr, "/reset, /system TEXT, /save FILE; Ctrl-C stops an answer, Ctrl-D ends\n");
    }
    return true;
}

/* Answers the last message. On failure it is taken back, so that the conversation goes on as if it had not been said. */
static ag_status answer(conversation *c, ag_err *err)
{
    ag_arena arena = {0};
    int32_t *ids;
    int64_t n;
    cli_answer a = {0};
    ag_status status = cli_encode_messages(&ids, &n, c->s->text, c->messages, &arena, err);
    if (!status) {
        cli_sampling_options sampling = c->o->sampling;
        const int64_t room = c->answerer.capacity - n;
        if (sampling.max_new_tokens > room) sampling.max_new_tokens = room > 1 ? room : 1;
        interrupted = 0;
        status = cli_answer_prompt(&a, &c->answerer, c->s, &sampling, ids, n, print_piece, NULL, err);
        printf("\n");
    }
    if (status)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    else
        json_array_append_new(c->messages, json_pack("{s:s, s:s%}", "role", "assistant", "content", a.text.text ? a.text.text : "", a.text.n));
    cli_answer_free(&a);
    ag_arena_free(&arena);
    return status;
}

static void talk(conversation *c)
{
    char *line = NULL;
    size_t room = 0;
    const bool is_terminal = cli_stdout_is_terminal();
    reset(c);
    for (;;) {
        if (is_terminal) printf("> ");
        fflush(stdout);
        ssize_t n = getline(&line, &room, stdin);
        if (n < 0 && errno == EINTR && interrupted) { /* Ctrl-C at the prompt: a fresh line */
            interrupted = 0;
            clearerr(stdin);
            printf("\n");
            continue;
        }
        if (n < 0) break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
        if (n == 0 || command(c, line)) continue;
        if (!ag_utf8_valid(line, (size_t)n)) {
            fprintf(stderr, "that line is not UTF-8\n");
            continue;
        }
        json_array_append_new(c->messages, json_pack("{s:s, s:s}", "role", "user", "content", line));
        ag_err trouble;
        if (answer(c, &trouble)) fprintf(stderr, "%s (/reset begins anew)\n", trouble.text);
    }
    if (is_terminal) printf("\n");
    free(line);
}

static int run(int argc, char **argv)
{
    options o = {.model = CLI_MODEL_DEFAULT, .sampling = CLI_SAMPLING_DEFAULT, .context = 4096};
    ag_err err;
    cli_session s;
    CLI_PARSE(&cli_chat, &o, argc, argv);
    ag_status status = cli_session_open(&s, &o.model, &o.compute, CLI_TEXT | CLI_WEIGHTS, &err);
    conversation c = {.o = &o, .s = &s};
    if (!status) {
        const int64_t most = s.model->d.context_length;
        status = cli_answerer_open(&c.answerer, &s, most > 0 && most < o.context ? most : o.context, &err);
    }
    if (!status) {
        struct sigaction action = {.sa_handler = on_interrupt}; /* without SA_RESTART: a read at the prompt ends */
        sigaction(SIGINT, &action, NULL);
        c.messages = json_array();
        c.system = o.system ? strdup(o.system) : NULL;
        talk(&c);
        ag_json_free(&c.messages);
        free(c.system);
    }
    cli_answerer_close(&c.answerer);
    cli_session_close(&s);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_chat = {
    .name = "chat", .summary = "a conversation in the terminal", .options = table, .run = run,
    .details = "In it: /reset begins anew, /system TEXT sets the system text, /save FILE writes the conversation as JSON.\n"
               "Ctrl-C stops an answer, Ctrl-D ends."};
