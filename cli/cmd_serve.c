/* agoge serve: a model and its adapters over HTTP, in the OpenAI protocol, with a page to talk to them. */
#define _GNU_SOURCE
#include "agoge_version.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "cli/terminal.h"

#include "base/clock.h"
#include "base/fs.h"
#include "serve/api_server.h"
#include "serve/batcher.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_KEY_FILE = 1 << 20, DEFAULT_CONTEXT = 4096 };

typedef struct {
    cli_model_options model;
    cli_compute_options compute;
    cli_list adapters;
    const char *host, *api_key_file, *served_name, *cors_origin;
    int64_t port, ctx, slots, kept, queue, max_body, max_bodies, max_head, max_pending, max_connections, request_timeout, reply_timeout, drain_timeout;
    bool quiet;
} options;

static const cli_option table[] = {
    CLI_MODEL(options, model),
    CLI_REPEATED("adapter", options, adapters, "NAME=DIR", "a LoRA adapter in PEFT's layout, served as the model NAME; may be given several times"),
    CLI_FLAG("load-in-4bit", options, model.load_in_4bit, "quantize a folder's projections to NF4, as QLoRA training does"),
    CLI_CHOICE("compute", options, model.dtype, "TYPE", "operands of the matrix products", cli_compute_dtypes),
    CLI_STRING("served-model-name", options, served_name, "NAME", "the base's name for clients (default: the file's or folder's)", 0),
    CLI_STRING("host", options, host, "HOST", "address to listen on (default 127.0.0.1; others reach the server only with another)", 0),
    CLI_INT("port", options, port, "PORT", "port to listen on (default 8000; 0: any that is free)", 0, 65535),
    CLI_STRING("api-key-file", options, api_key_file, "FILE", "keys that clients may give, one a line (default: none is asked for)", 0),
    CLI_INT("ctx", options, ctx, "N", "tokens of a prompt and its answer (default 4096, or the model's if less)", 16, 1 << 22),
    CLI_INT("slots", options, slots, "N", "answers computed at once (default 8)", 1, AG_BATCHER_MAX_SLOTS),
    CLI_INT("kept", options, kept, "N", "finished conversations kept in memory for their next turn, besides (default 8)", 0, 128),
    CLI_INT("queue", options, queue, "N", "answers that may wait for a slot; more are refused with 429 (default 128)", 0, 1 << 16),
    CLI_INT("max-body", options, max_body, "BYTES", "of a request's body (default 4 MiB)", 1024, 1 << 30),
    CLI_INT("max-bodies", options, max_bodies, "BYTES", "of all bodies that are being received (default 64 MiB)", 1024, INT64_C(1) << 40),
    CLI_INT("max-head", options, max_head, "BYTES", "of a request's line and headers (default 32 KiB)", 4096, 1 << 24),
    CLI_INT("max-pending", options, max_pending, "BYTES", "of an answer that wait for its reader (default 4 MiB)", 1024, 1 << 30),
    CLI_INT("max-connections", options, max_connections, "N", "open at once (default 256)", 1, 60000),
    CLI_INT("request-timeout", options, request_timeout, "SECONDS", "for a request to arrive whole (default 30)", 1, 86400),
    CLI_INT("reply-timeout", options, reply_timeout, "SECONDS", "for a reader to take what is there (default 60)", 1, 86400),
    CLI_INT("drain-timeout", options, drain_timeout, "SECONDS", "for running answers to end after SIGTERM (default 30)", 0, 86400),
    CLI_STRING("cors-origin", options, cors_origin, "ORIGIN", "pages of this origin may use the server, '*': of any (default: none)", 0),
    CLI_FLAG("quiet", options, quiet, "no line for each answer"),
    CLI_COMPUTE(options, compute),
    CLI_END,
};

/* ---- adapters --------------------------------------------------------------------------------------------------------------------- */
typedef struct {
    ag_api_adapter list[CLI_LIST_MAX];
    ag_peft *peft[CLI_LIST_MAX];
    int64_t n;
    ag_arena arena;
} adapters;

static ag_status open_adapter(adapters *a, const char *word, const char *base, const cli_session *s, ag_err *err)
{
    const char *equals = strchr(word, '=');
    if (!equals || equals == word || !equals[1]) return ag_fail(err, AG_E_USAGE, "--adapter is '%s'; give NAME=DIR", word);
    const char *name = ag_arena_strndup(&a->arena, word, (size_t)(equals - word));
    bool is_taken = strcmp(name, base) == 0;
    for (int64_t i = 0; i < a->n; i++) is_taken |= strcmp(name, a->list[i].name) == 0;
    if (is_taken) return ag_fail(err, AG_E_USAGE, "--adapter %s: the name '%s' is taken already; names must differ", word, name);
    AG_TRY(ag_peft_open(&a->peft[a->n], equals + 1, &s->model->d, err));
    if (a->peft[a->n]->config.lora.dora)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: is DoRA (use_dora), which cannot share a batch with other adapters; merge it into a model of its own",
                       equals + 1);
    a->list[a->n] = (ag_api_adapter){name, a->peft[a->n]};
    a->n++;
    return AG_OK;
}

static void close_adapters(adapters *a)
{
    for (int64_t i = 0; i < a->n; i++) ag_peft_close(&a->peft[i]);
    ag_arena_free(&a->arena);
}

/* ---- running ------------------------------------------------------------------------------------------------------------------------ */
static volatile sig_atomic_t received;
static void on_signal(int signal)
{
    if (received) _exit(128 + signal); /* the second one means it */
    received = signal;
}

static void log_line(const char *line)
{
    char now[32];
    ag_clock_utc(now);
    fprintf(stderr, "%s %s\n", now, line);
}

static const char *base_name(const options *o, ag_arena *arena)
{
    if (o->served_name) return o->served_name;
    char *path = ag_arena_strdup(arena, o->model.model);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = 0;
    char *name = ag_arena_strdup(arena, ag_path_base(path));
    if (ag_str_ends(name, ".gguf")) name[strlen(name) - 5] = 0;
    return name;
}

static ag_status check_memory(const options *o, const cli_session *s, int64_t context, ag_err *err)
{
    const size_t needed = ag_kv_cache_bytes(s->model, o->slots + o->kept, context), there = ag_memory_available();
    if (needed <= there) return AG_OK;
    return ag_fail(err, AG_E_MEMORY, "%lld + %lld conversations of %lld tokens need %.1f GB for keys and values, %.1f GB are there; give a smaller "
                   "--ctx, --slots or --kept", (long long)o->slots, (long long)o->kept, (long long)context, (double)needed * 1e-9, (double)there * 1e-9);
}

static ag_status serve(const options *o, cli_session *s, adapters *a, ag_arena *arena, ag_err *err)
{
    const char *name = base_name(o, arena);
    for (int i = 0; i < o->adapters.n; i++) AG_TRY(open_adapter(a, o->adapters.items[i], name, s, err));
    int64_t context = o->ctx;
    const int64_t most = s->model->d.context_length;
    if (o->ctx == 0) context = most > 0 && most < DEFAULT_CONTEXT ? most : DEFAULT_CONTEXT;
    else if (most > 0 && context > most)
        return ag_fail(err, AG_E_USAGE, "--ctx %lld: the model's context has %lld tokens", (long long)context, (long long)most);
    AG_TRY(check_memory(o, s, context, err));
    char *keys = NULL;
    size_t n_keys = 0;
    if (o->api_key_file) AG_TRY(ag_file_read(&keys, &n_keys, o->api_key_file, MAX_KEY_FILE, arena, err));

    /* The server's threads inherit the mask: the signals are for this thread alone, and until it waits they wait. */
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    ag_api_server *server;
    AG_TRY(ag_api_server_start(&server, &(ag_api_options){
        .model = s->model, .text = s->text, .backend = &s->backend, .compute = s->compute, .name = name, .adapters = a->list, .n_adapters = a->n,
        .context = context, .n_slots = o->slots, .n_kept = o->kept, .max_waiting = o->queue, .keys = keys, .n_keys_bytes = n_keys,
        .version = AGOGE_VERSION, .log = o->quiet ? NULL : log_line,
        .http = {.host = o->host, .port = o->port, .max_body = (size_t)o->max_body, .max_bodies = (size_t)o->max_bodies,
                 .max_head = (size_t)o->max_head, .max_pending = (size_t)o->max_pending, .max_connections = o->max_connections, .request_seconds = o->request_timeout,
                 .reply_seconds = o->reply_timeout, .cors_origin = o->cors_origin}}, err));
    printf("serving %s", name);
    for (int64_t i = 0; i < a->n; i++) printf(", %s", a->list[i].name);
    printf(" at http://%s%s%s:%lld (%lld tokens of context, %lld at once%s)\n", strchr(o->host, ':') ? "[" : "", o->host, strchr(o->host, ':') ? "]" : "",
           (long long)ag_api_server_port(server), (long long)context, (long long)o->slots, n_keys ? ", with a key" : "");
    fflush(stdout);
    while (!received) sigsuspend(&before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    fprintf(stderr, "shutting down; running answers may end (%lld s at most)\n", (long long)o->drain_timeout);
    ag_api_server_drain(server, o->drain_timeout);
    ag_api_server_stop(&server);
    return AG_OK;
}

static int run(int argc, char **argv)
{
    options o = {.model = CLI_MODEL_DEFAULT, .host = "127.0.0.1", .port = 8000, .slots = 8, .kept = 8, .queue = 128, .max_body = 4 << 20,
                 .max_bodies = 64 << 20, .max_head = 32 << 10, .max_pending = 4 << 20, .max_connections = 256, .request_timeout = 30, .reply_timeout = 60, .drain_timeout = 30};
    ag_err err;
    cli_session s;
    ag_arena arena = {0};
    adapters a = {0};
    CLI_PARSE(&cli_serve, &o, argc, argv);
    ag_status status = cli_session_open(&s, &o.model, &o.compute, CLI_TEXT | CLI_WEIGHTS, &err);
    if (!status) status = serve(&o, &s, &a, &arena, &err);
    close_adapters(&a);
    cli_session_close(&s);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_serve = {
    .name = "serve", .summary = "a model and its adapters over HTTP: the OpenAI protocol, and a page to talk to them", .options = table, .run = run};
