/* agoge smoke-vllm: a few questions to a server of the OpenAI protocol that runs already; what came of them under runs/. */
#define _GNU_SOURCE
#include "cli/commands.h"
#include "cli/yaml_keys.h"

#include "base/arena.h"
#include "base/digest.h"
#include "base/fs.h"
#include "serve/chat_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNSET = -1, MAX_PROMPTS = 1000, TABLE_TEXT = 60 };
static const char DEFAULT_SYSTEM[] = "You are a helpful assistant.", DEFAULT_PROMPT[] = "What is the capital of France?",
                  DEFAULT_URL[] = "http://localhost:8000/v1";

typedef struct {
    const char *config, *base_url, *model, *api_key, *prompt, *system, *prompt_set, *run_name;
    int64_t max_tokens;
    double temperature, timeout_s;
    bool stream, dry_run;
} options;

static const cli_option table[] = {
    CLI_STRING("config", options, config, "YAML", "provider, base_url, model, api_key, timeout_s, stream, max_tokens, temperature", 0),
    CLI_STRING("base-url", options, base_url, "URL", "of the server (default AGOGE_SMOKE_BASE_URL, else http://localhost:8000/v1)", 0),
    CLI_STRING("model", options, model, "NAME", "to ask (default AGOGE_SMOKE_MODEL)", 0),
    CLI_STRING("api-key", options, api_key, "KEY", "for the server (default OPENAI_API_KEY, else VLLM_API_KEY; better there than here)", 0),
    CLI_FLAG("stream", options, stream, "take the answer as a stream"),
    CLI_INT("max-tokens", options, max_tokens, "N", "of an answer (default 512)", 1, 1 << 24),
    CLI_DOUBLE("temperature", options, temperature, "T", "of the choice (default 0.7)"),
    CLI_DOUBLE("timeout-s", options, timeout_s, "S", "for an answer (default 120)"),
    CLI_STRING("prompt", options, prompt, "TEXT", "to ask (default AGOGE_SMOKE_PROMPT, else one question)", 0),
    CLI_STRING("system", options, system, "TEXT", "system prompt (default AGOGE_SMOKE_SYSTEM, else the prompt set's)", 0),
    CLI_STRING("prompt-set", options, prompt_set, "YAML", "system (a text) and prompts (a list)", 0),
    CLI_STRING("run-name", options, run_name, "NAME", "folder under runs/ (default vllm_smoke)", 0),
    CLI_FLAG("dry-run", options, dry_run, "write the results' form without asking anything"),
    CLI_END,
};

typedef struct {
    const char *prompt, *status;
    char hash[17], *raw_path; /* NULL: none */
    ag_chat_reply reply;
    char *error;              /* NULL: none */
} result;

/* ---- what is asked ---------------------------------------------------------------------------------------------------------------- */
static const char *environment(const char *a, const char *b)
{
    const char *value = getenv(a);
    if ((!value || !*value) && b) value = getenv(b);
    return value && *value ? value : NULL;
}

static ag_status read_config(options *o, const json_t *file, bool stream_given, ag_err *err)
{
    const char *provider = "chat_completions", *model = NULL, *base_url = NULL, *api_key = NULL;
    const char *name = o->config;
    bool stream = true;
    AG_TRY(ag_json_get_string(file, "provider", &provider, name, err));
    if (strcmp(provider, "chat_completions") != 0)
        return ag_fail(err, AG_E_CONFIG, "%s: the provider '%.32s' is not known; there is chat_completions", name, provider);
    AG_TRY(ag_json_get_string(file, "model", &model, name, err));
    AG_TRY(ag_json_get_string(file, "base_url", &base_url, name, err));
    AG_TRY(ag_json_get_string(file, "api_key", &api_key, name, err));
    AG_TRY(ag_json_get_bool(file, "stream", &stream, name, err));
    if (o->timeout_s < 0) AG_TRY(ag_json_get_double(file, "timeout_s", &o->timeout_s, name, err));
    if (o->max_tokens == UNSET) AG_TRY(ag_json_get_int(file, "max_tokens", 1, 1 << 24, &o->max_tokens, name, err));
    if (o->temperature < 0) AG_TRY(ag_json_get_double(file, "temperature", &o->temperature, name, err));
    if (!stream_given) o->stream = stream;
    if (!o->model && model && *model) o->model = model;
    if (!o->base_url && base_url && *base_url) o->base_url = base_url;
    if (!o->api_key && api_key && *api_key) o->api_key = api_key;
    return AG_OK;
}

static void fill_in(options *o, ag_arena *arena)
{
    if (!o->base_url) o->base_url = environment("AGOGE_SMOKE_BASE_URL", NULL);
    if (!o->base_url) o->base_url = DEFAULT_URL;
    if (!o->model) o->model = environment("AGOGE_SMOKE_MODEL", NULL);
    if (!o->api_key) o->api_key = environment("OPENAI_API_KEY", "VLLM_API_KEY");
    if (!o->prompt) o->prompt = environment("AGOGE_SMOKE_PROMPT", NULL);
    if (!o->system) o->system = environment("AGOGE_SMOKE_SYSTEM", NULL);
    if (o->timeout_s < 0) o->timeout_s = 120;
    if (o->max_tokens == UNSET) o->max_tokens = 512;
    if (o->temperature < 0) o->temperature = 0.7;
    char *url = ag_arena_strdup(arena, o->base_url);
    for (size_t n = strlen(url); n > 0 && url[n - 1] == '/'; n--) url[n - 1] = 0;
    o->base_url = url;
}

/* A key in argv stands in every list of processes: it is copied and wiped. */
static void hide_key(options *o, ag_arena *arena)
{
    if (!o->api_key) return;
    char *given = (char *)(uintptr_t)o->api_key;
    o->api_key = ag_arena_strdup(arena, given);
    memset(given, 'x', strlen(given));
}

static ag_status list_prompts(const options *o, const json_t *set, const char **system, const char ***prompts, int64_t *n, ag_arena *arena, ag_err *err)
{
    const json_t *list = json_object_get(set, "prompts");
    if (set) AG_TRY(ag_json_get_string(set, "system", system, o->prompt_set, err));
    if (list && !json_is_null(list) && (!json_is_array(list) || json_array_size(list) > MAX_PROMPTS))
        return ag_fail(err, AG_E_CONFIG, "%s: 'prompts' must be a list of at most %d texts", o->prompt_set, MAX_PROMPTS);
    const size_t n_list = o->prompt ? 0 : json_array_size(list);
    *prompts = ag_arena_array(arena, n_list + 1, sizeof **prompts);
    for (size_t i = 0; i < n_list; i++)
        if (!((*prompts)[i] = json_string_value(json_array_get(list, i)))) return ag_fail(err, AG_E_CONFIG, "%s: a prompt is no text", o->prompt_set);
    *n = (int64_t)n_list;
    if (n_list == 0) (*prompts)[(*n)++] = o->prompt ? o->prompt : DEFAULT_PROMPT;
    if (o->system) *system = o->system;
    if (!*system && n_list == 0) *system = DEFAULT_SYSTEM;
    return AG_OK;
}

/* ---- what came of it ------------------------------------------------------------------------------------------------------------------ */
static void write_count(ag_json_writer *w, const char *key, int64_t count)
{
    if (count < 0) ag_jw_null(w, key);
    else ag_jw_int(w, key, count);
}

static void write_time(ag_json_writer *w, const char *key, double ms, bool is_there)
{
    if (is_there) ag_jw_double(w, key, ms);
    else ag_jw_null(w, key);
}

static void write_text(ag_json_writer *w, const char *key, const ag_str *text) { ag_jw_string_n(w, key, text->text ? text->text : "", text->n); }

static void write_results(ag_str *out, const options *o, const result *r, int64_t n)
{
    ag_json_writer w = {.out = out, .indent = 2};
    ag_jw_array(&w, NULL);
    for (int64_t i = 0; i < n; i++) {
        const bool was_asked = strcmp(r[i].status, "dry_run") != 0;
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "provider", "chat_completions");
        ag_jw_string(&w, "base_url", o->base_url);
        ag_jw_string(&w, "model", o->model);
        ag_jw_int(&w, "request_id", i + 1);
        ag_jw_string(&w, "prompt_hash", r[i].hash);
        write_text(&w, "response_text", &r[i].reply.text);
        write_text(&w, "reasoning_text", &r[i].reply.reasoning);
        ag_jw_string(&w, "finish_reason", *r[i].reply.finish ? r[i].reply.finish : NULL);
        write_count(&w, "input_tokens", r[i].reply.input_tokens);
        write_count(&w, "output_tokens", r[i].reply.output_tokens);
        write_count(&w, "total_tokens", r[i].reply.total_tokens);
        write_time(&w, "latency_ms", r[i].reply.latency_ms, was_asked);
        write_time(&w, "time_to_first_token_ms", r[i].reply.first_token_ms, was_asked && r[i].reply.first_token_ms >= 0);
        ag_jw_string(&w, "raw_response_path", r[i].raw_path);
        ag_jw_string(&w, "error", r[i].error);
        ag_jw_string(&w, "prompt", r[i].prompt);
        ag_jw_string(&w, "status", r[i].status);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_str_add(out, "\n");
}

static void write_rows(ag_str *out, const options *o, const result *r, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        ag_json_writer w = {.out = out};
        ag_jw_object(&w, NULL);
        ag_jw_int(&w, "request_id", i + 1);
        ag_jw_string(&w, "model_id", o->model);
        ag_jw_string(&w, "status", r[i].status);
        ag_jw_bool(&w, "stream", o->stream);
        write_count(&w, "prompt_tokens", r[i].reply.input_tokens);
        write_count(&w, "completion_tokens", r[i].reply.output_tokens);
        write_time(&w, "latency_ms", r[i].reply.latency_ms, strcmp(r[i].status, "dry_run") != 0);
        ag_jw_string(&w, "error", r[i].error);
        ag_jw_string(&w, "workload", "smoke");
        ag_jw_end(&w);
        ag_str_add(out, "\n");
    }
}

/* A cell of a Markdown table: one line, pipes escaped, at most 60 characters. */
static void add_cell(ag_str *out, const char *text, size_t n)
{
    size_t at = 0;
    int count = 0;
    for (; at < n && count < TABLE_TEXT; count++) {
        const uint32_t c = ag_utf8_next(text, n, &at);
        if (c == '|') ag_str_add(out, "\\|");
        else if (c == '\n' || c == '\r') ag_str_add_char(out, ' ');
        else ag_str_add_code_point(out, c);
    }
    if (at < n) ag_str_add(out, "…");
}

static void write_summary(ag_str *out, const options *o, const result *r, int64_t n)
{
    int64_t ok = 0, failed = 0, dry = 0, n_first = 0, in = 0, out_tokens = 0;
    double latency = 0, first = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool is_ok = strcmp(r[i].status, "ok") == 0;
        ok += is_ok;
        failed += strcmp(r[i].status, "error") == 0;
        dry += strcmp(r[i].status, "dry_run") == 0;
        if (r[i].reply.input_tokens > 0) in += r[i].reply.input_tokens;
        if (r[i].reply.output_tokens > 0) out_tokens += r[i].reply.output_tokens;
        if (!is_ok) continue;
        latency += r[i].reply.latency_ms;
        if (r[i].reply.first_token_ms >= 0) first += r[i].reply.first_token_ms, n_first++;
    }
    ag_str_printf(out, "# Smoke of %s\n\n- server: %s\n- requests: %lld, of them ok %lld, error %lld, dry run %lld\n", o->model, o->base_url, (long long)n,
                  (long long)ok, (long long)failed, (long long)dry);
    if (ok) ag_str_printf(out, "- mean latency: %.1f ms\n", latency / (double)ok);
    if (n_first) ag_str_printf(out, "- mean time to first token: %.1f ms\n", first / (double)n_first);
    ag_str_printf(out, "- tokens: %lld in, %lld out\n\n| # | status | prompt | answer | ms |\n| --- | --- | --- | --- | --- |\n", (long long)in, (long long)out_tokens);
    for (int64_t i = 0; i < n; i++) {
        ag_str_printf(out, "| %lld | %s | ", (long long)i + 1, r[i].status);
        add_cell(out, r[i].prompt, strlen(r[i].prompt));
        ag_str_add(out, " | ");
        if (r[i].error) add_cell(out, r[i].error, strlen(r[i].error));
        else add_cell(out, r[i].reply.text.text ? r[i].reply.text.text : "", r[i].reply.text.n);
        ag_str_printf(out, " | %.1f |\n", r[i].reply.latency_ms);
    }
}

static ag_status publish(const char *dir, const char *name, ag_str *text, ag_arena *arena, ag_err *err)
{
    const ag_status status = ag_file_publish(ag_path_join(arena, dir, name), text->text ? text->text : "", text->n, err);
    ag_str_free(text);
    return status;
}

static ag_status write_all(const options *o, const char *dir, const result *r, int64_t n, ag_arena *arena, ag_err *err)
{
    ag_str results = {0}, rows = {0}, summary = {0};
    write_rows(&rows, o, r, n);
    write_summary(&summary, o, r, n);
    write_results(&results, o, r, n);
    ag_status status = publish(dir, "results.jsonl", &rows, arena, err);
    if (!status) status = publish(dir, "summary.md", &summary, arena, err);
    else ag_str_free(&summary);
    if (!status) return publish(dir, "smoke_vllm_result.json", &results, arena, err);
    ag_str_free(&results);
    return status;
}

/* ---- asking --------------------------------------------------------------------------------------------------------------------------- */
static ag_status ask(result *r, const options *o, const char *dir, const char *system, const char *prompt, int64_t number, ag_arena *arena, ag_err *err)
{
    const ag_sha256 digest = ag_sha256_bytes(prompt, strlen(prompt));
    *r = (result){.prompt = prompt, .status = "dry_run", .reply = {.input_tokens = -1, .output_tokens = -1, .total_tokens = -1, .first_token_ms = -1}};
    memcpy(r->hash, digest.hex, 16);
    if (o->dry_run) return AG_OK;
    const ag_chat_client client = {.base_url = o->base_url, .model = o->model, .api_key = o->api_key, .timeout_s = o->timeout_s, .stream = o->stream,
                                   .max_tokens = o->max_tokens, .temperature = o->temperature};
    ag_err failure;
    if (ag_chat_client_ask(&r->reply, &client, system, prompt, &failure)) {
        r->error = ag_arena_strdup(arena, failure.text);
        r->status = "error";
    } else r->status = "ok";
    fprintf(stderr, "%lld %s %.0f ms%s%s\n", (long long)number, r->status, r->reply.latency_ms, r->error ? ": " : "", r->error ? r->error : "");
    if (r->reply.raw.n == 0) return AG_OK;
    r->raw_path = ag_arena_printf(arena, "%s/raw/%lld.json", dir, (long long)number);
    return ag_file_publish(r->raw_path, r->reply.raw.text, r->reply.raw.n, err);
}

static ag_status smoke(const options *o, const json_t *set, bool *any_error, ag_arena *arena, ag_err *err)
{
    const char *system = NULL, **prompts;
    int64_t n = 0;
    AG_TRY(list_prompts(o, set, &system, &prompts, &n, arena, err));
    char *absolute;
    const char *dir = ag_arena_printf(arena, "runs/%s", o->run_name);
    AG_TRY(ag_path_output_dir(&absolute, dir, arena, err));
    AG_TRY(ag_make_dirs(ag_path_join(arena, dir, "raw"), err));
    result *results = ag_arena_array(arena, (size_t)n, sizeof *results);
    ag_status status = AG_OK;
    for (int64_t i = 0; i < n && !status; i++) {
        status = ask(&results[i], o, dir, system, prompts[i], i + 1, arena, err);
        *any_error |= results[i].error != NULL;
    }
    if (!status) status = write_all(o, dir, results, n, arena, err);
    if (!status) printf("%s\n", dir);
    for (int64_t i = 0; i < n; i++) ag_chat_reply_free(&results[i].reply);
    return status;
}

static int run(int argc, char **argv)
{
    static const char *const config_keys[] = {"provider", "base_url", "model", "api_key", "timeout_s", "stream", "max_tokens", "temperature", NULL},
                      *const set_keys[] = {"system", "prompts", NULL};
    options o = {.max_tokens = UNSET, .temperature = UNSET, .timeout_s = UNSET, .run_name = "vllm_smoke"};
    bool stream_given = false, any_error = false;
    for (int i = 0; i < argc; i++) stream_given |= strcmp(argv[i], "--stream") == 0 || strcmp(argv[i], "--no-stream") == 0;
    ag_err err;
    ag_arena arena = {0};
    json_t *config = NULL, *set = NULL;
    CLI_PARSE(&cli_smoke_vllm, &o, argc, argv);
    hide_key(&o, &arena);
    ag_status status = o.config ? cli_yaml_load(&config, o.config, config_keys, &err) : AG_OK;
    if (!status && config) status = read_config(&o, config, stream_given, &err);
    if (!status && o.prompt_set) status = cli_yaml_load(&set, o.prompt_set, set_keys, &err);
    if (!status) fill_in(&o, &arena);
    if (!status && (!o.model || !*o.model)) status = ag_fail(&err, AG_E_USAGE, "agoge smoke-vllm needs a model: --model NAME, 'model' in --config, or AGOGE_SMOKE_MODEL");
    if (!status && !(o.timeout_s > 0 && o.timeout_s <= 86400)) status = ag_fail(&err, AG_E_USAGE, "timeout-s is %g; give seconds above 0", o.timeout_s);
    if (!status && strchr(o.run_name, '/')) status = ag_fail(&err, AG_E_USAGE, "--run-name is '%s'; give one folder's name", o.run_name);
    if (!status) status = smoke(&o, set, &any_error, &arena, &err);
    ag_json_free(&config);
    ag_json_free(&set);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : any_error;
}

const cli_command cli_smoke_vllm = {
    .name = "smoke-vllm", .summary = "a few questions to a server of the OpenAI protocol, and what came of them", .options = table, .run = run};
