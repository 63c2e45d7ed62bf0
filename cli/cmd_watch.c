/* agoge watch: a live page of a run. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/fs.h"
#include "runs/run_place.h"
#include "serve/watch_server.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *run_dir, *host;
    cli_list others;
    int64_t port;
} options;

static const cli_option table[] = {
    CLI_POSITIONAL("RUN_DIR", options, run_dir, "the run: adapters/<run_name>, or the folder with its metrics.jsonl",
                   CLI_REQUIRED),
    CLI_REPEATED("with", options, others, "RUN_DIR", "another run in the same curves"),
    CLI_INT("port", options, port, "N", "0: any that is free", 0, 65535),
    CLI_STRING("host", options, host, "ADDRESS",
               "where to listen; other machines reach it only where this is not a loopback address", 0),
    CLI_END,
};

static volatile sig_atomic_t received;
static void on_signal(int signal) { received = signal; }

/* The run's records: in the folder itself, else in the sibling runs/<run_name>, which need not be there yet. */
static ag_status find_run(ag_watch_run *out, const char *run_dir, ag_arena *arena, ag_err *err)
{
    static const char file[] = "metrics.jsonl";
    ag_run_place place;
    AG_TRY(ag_run_place_find(&place, run_dir, NULL, arena, err));
    const char *own = ag_path_join(arena, place.real, file), *root = ag_path_dir(arena, ag_path_dir(arena, place.logical));
    out->name = place.name;
    out->metrics = ag_path_is_file(own) ? own : ag_arena_printf(arena, "%s/runs/%s/%s", root, place.name, file);
    return AG_OK;
}

static ag_status watch(const options *o, ag_arena *arena, ag_err *err)
{
    ag_watch_run runs[CLI_LIST_MAX + 1];
    ag_watch_server *server;
    sigset_t set, before;
    AG_TRY(find_run(&runs[0], o->run_dir, arena, err));
    for (int i = 0; i < o->others.n; i++) AG_TRY(find_run(&runs[1 + i], o->others.items[i], arena, err));
    sigemptyset(&set); /* the server's thread inherits the mask: the signals are for this thread alone */
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    const ag_status status = ag_watch_server_start(&server, runs, 1 + (size_t)o->others.n, o->host, o->port, err);
    if (!status) {
        const bool is_v6 = strchr(o->host, ':') != NULL;
        printf("watching %s at http://%s%s%s:%lld\n", runs[0].metrics, is_v6 ? "[" : "", o->host, is_v6 ? "]" : "",
               (long long)ag_watch_server_port(server));
        fflush(stdout);
        while (!received) sigsuspend(&before);
        ag_watch_server_stop(&server);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static int run(int argc, char **argv)
{
    options o = {.host = "127.0.0.1", .port = 8080};
    ag_err err;
    ag_arena arena = {0};
    CLI_PARSE(&cli_watch, &o, argc, argv);
    const ag_status status = watch(&o, &arena, &err);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_watch = {.name = "watch",
                               .summary = "a live page of one run or several: loss, evaluation, speed, time left",
                               .options = table,
                               .run = run};
