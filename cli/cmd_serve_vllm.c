/* agoge serve-vllm: vLLM's server with the options of a file and of the command line. */
#define _GNU_SOURCE
#include "cli/commands.h"
#include "cli/yaml_keys.h"

#include "base/arena.h"
#include "base/fs.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

enum { UNSET = -1, MAX_WORDS = 2 * CLI_LIST_MAX + 16, NOT_FOUND = 127 };

typedef struct {
    const char *config, *model, *host, *dtype;
    int64_t port, max_model_len;
    double gpu_memory_utilization;
    bool dry_run;
    cli_list extra_args;
} options;

static const cli_option table[] = {
    CLI_STRING("config", options, config, "YAML", "model, host, port, max_model_len, dtype, gpu_memory_utilization, extra_args, dry_run", 0),
    CLI_STRING("model", options, model, "MODEL", "a hub id, or a merged model's folder", 0),
    CLI_STRING("host", options, host, "HOST", "address to listen on", 0),
    CLI_INT("port", options, port, "PORT", "port to listen on (default 8000)", 1, 65535),
    CLI_INT("max-model-len", options, max_model_len, "N", "tokens of a prompt and its answer", 1, 1 << 30),
    CLI_STRING("dtype", options, dtype, "TYPE", "of the weights, as vLLM names it", 0),
    CLI_DOUBLE("gpu-memory-utilization", options, gpu_memory_utilization, "X", "share of the GPU's memory, above 0 and at most 1"),
    CLI_FLAG("dry-run", options, dry_run, "print the command line and end"),
    CLI_REPEATED("extra-arg", options, extra_args, "ARG", "one more word for vLLM; replaces the file's list"),
    CLI_END,
};

static const char *const keys[] = {"model", "host", "port", "max_model_len", "dtype", "gpu_memory_utilization", "extra_args", "dry_run", NULL};

static ag_status read_file(options *o, const json_t *file, bool dry_run_given, ag_err *err)
{
    const char *name = o->config;
    if (!o->model) AG_TRY(ag_json_get_string(file, "model", &o->model, name, err));
    if (!o->host) AG_TRY(ag_json_get_string(file, "host", &o->host, name, err));
    if (!o->dtype) AG_TRY(ag_json_get_string(file, "dtype", &o->dtype, name, err));
    if (o->port == UNSET) AG_TRY(ag_json_get_int(file, "port", 1, 65535, &o->port, name, err));
    if (o->max_model_len == UNSET) AG_TRY(ag_json_get_int(file, "max_model_len", 1, 1 << 30, &o->max_model_len, name, err));
    if (o->gpu_memory_utilization < 0) AG_TRY(ag_json_get_double(file, "gpu_memory_utilization", &o->gpu_memory_utilization, name, err));
    if (!dry_run_given) AG_TRY(ag_json_get_bool(file, "dry_run", &o->dry_run, name, err));
    const json_t *list = json_object_get(file, "extra_args");
    if (o->extra_args.n > 0 || !list || json_is_null(list)) return AG_OK;
    if (!json_is_array(list) || json_array_size(list) > CLI_LIST_MAX)
        return ag_fail(err, AG_E_CONFIG, "%s: 'extra_args' must be a list of at most %d words", name, CLI_LIST_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *word = json_string_value(json_array_get(list, i));
        if (!word) return ag_fail(err, AG_E_CONFIG, "%s: 'extra_args' has a value that is no text; put it in quotes", name);
        o->extra_args.items[o->extra_args.n++] = word;
    }
    return AG_OK;
}

/* A folder must be a whole model: vLLM cannot serve an adapter alone, and a 4-bit base not at all. */
static ag_status check_folder(const char *model, ag_arena *arena, ag_err *err)
{
    if (!ag_path_is_dir(model)) return AG_OK;
    const bool has_config = ag_path_is_file(ag_path_join(arena, model, "config.json"));
    if (!has_config && ag_path_is_file(ag_path_join(arena, model, "adapter_config.json")))
        return ag_fail(err, AG_E_FORMAT, "%s: is an adapter; merge it first (agoge export-final-model), or serve its base and give "
                       "--extra-arg --enable-lora --extra-arg --lora-modules --extra-arg NAME=%s", model, model);
    if (!has_config) return ag_fail(err, AG_E_FORMAT, "%s: has no config.json; give a merged model's folder", model);
    if (ag_path_is_file(ag_path_join(arena, model, "model.safetensors")) || ag_path_is_file(ag_path_join(arena, model, "model.safetensors.index.json")))
        return AG_OK;
    return ag_fail(err, AG_E_FORMAT, "%s: has no model.safetensors and no model.safetensors.index.json; give a merged model's folder", model);
}

static void build(const options *o, const char **words, ag_arena *arena)
{
    int n = 0;
    words[n++] = "vllm";
    words[n++] = "serve";
    words[n++] = o->model;
    if (o->host) words[n++] = "--host", words[n++] = o->host;
    words[n++] = "--port", words[n++] = ag_arena_printf(arena, "%lld", (long long)(o->port == UNSET ? 8000 : o->port));
    if (o->max_model_len != UNSET) words[n++] = "--max-model-len", words[n++] = ag_arena_printf(arena, "%lld", (long long)o->max_model_len);
    if (o->dtype) words[n++] = "--dtype", words[n++] = o->dtype;
    if (o->gpu_memory_utilization >= 0) words[n++] = "--gpu-memory-utilization", words[n++] = ag_arena_printf(arena, "%g", o->gpu_memory_utilization);
    for (int i = 0; i < o->extra_args.n; i++) words[n++] = o->extra_args.items[i];
    words[n] = NULL;
}

/* As a shell would read it again. */
static void print_command(const char *const *words)
{
    for (int i = 0; words[i]; i++) {
        if (i) putchar(' ');
        const bool is_plain = *words[i] && strspn(words[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+") == strlen(words[i]);
        if (!is_plain) putchar('\'');
        for (const char *c = words[i]; *c; c++) {
            if (*c == '\'') printf("'\\''");
            else putchar(*c);
        }
        if (!is_plain) putchar('\'');
    }
    putchar('\n');
}

static ag_status run_command(const char *const *words, int *code, ag_err *err)
{
    pid_t child;
    /* An interrupt reaches the server, too; this program then waits for how it ends. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGTERM);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    const int failed = posix_spawnp(&child, words[0], NULL, &attributes, (char *const *)(uintptr_t)words, environ);
    posix_spawnattr_destroy(&attributes);
    if (failed == ENOENT) return ag_fail(err, AG_E_NOT_FOUND, "vllm is not on the PATH; install it, or serve the model with `agoge serve`");
    if (failed) return ag_fail_errno(err, failed, "vllm cannot be started");
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : NOT_FOUND;
    return AG_OK;
}

static int run(int argc, char **argv)
{
    options o = {.port = UNSET, .max_model_len = UNSET, .gpu_memory_utilization = UNSET};
    bool dry_run_given = false;
    for (int i = 0; i < argc; i++) dry_run_given |= strcmp(argv[i], "--dry-run") == 0 || strcmp(argv[i], "--no-dry-run") == 0;
    ag_err err;
    ag_arena arena = {0};
    json_t *file = NULL;
    int code = 0;
    CLI_PARSE(&cli_serve_vllm, &o, argc, argv);
    ag_status status = o.config ? cli_yaml_load(&file, o.config, keys, &err) : AG_OK;
    if (!status && file) status = read_file(&o, file, dry_run_given, &err);
    if (!status && (!o.model || !*o.model)) status = ag_fail(&err, AG_E_USAGE, "agoge serve-vllm needs a model: --model MODEL, or 'model' in --config");
    if (!status && o.gpu_memory_utilization >= 0 && !(o.gpu_memory_utilization > 0 && o.gpu_memory_utilization <= 1))
        status = ag_fail(&err, AG_E_USAGE, "gpu-memory-utilization is %g; give a number above 0, at most 1", o.gpu_memory_utilization);
    if (!status) status = check_folder(o.model, &arena, &err);
    if (!status) {
        const char *words[MAX_WORDS];
        build(&o, words, &arena);
        if (o.dry_run) print_command(words);
        else status = run_command(words, &code, &err);
    }
    ag_json_free(&file);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : code;
}

const cli_command cli_serve_vllm = {
    .name = "serve-vllm", .summary = "vLLM's server for a merged model, from a file and options", .options = table, .run = run};
