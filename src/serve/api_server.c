#define _GNU_SOURCE
#include "serve/api_internal.h"

#include "base/clock.h"
#include "data/chat_prompt.h"
#include "serve/chat_page.h"
#include "serve/http_guard.h"
#include "serve/openai_reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- models --------------------------------------------------------------------------------------------------------------------- */
int ag_api_find_adapter(const ag_api_server *s, const char *name)
{
    if (!name || strcmp(name, s->o.name) == 0) return -1;
    for (int64_t i = 0; i < s->o.n_adapters; i++)
        if (strcmp(name, s->o.adapters[i].name) == 0) return (int)i;
    return -2;
}

const char *ag_api_adapter_name(const ag_api_server *s, int adapter) { return adapter < 0 ? s->o.name : s->o.adapters[adapter].name; }

static void write_model(ag_json_writer *w, const ag_api_server *s, int adapter)
{
    ag_jw_object(w, NULL);
    ag_jw_string(w, "id", ag_api_adapter_name(s, adapter));
    ag_jw_string(w, "object", "model");
    ag_jw_int(w, "created", s->started);
    ag_jw_string(w, "owned_by", "agoge");
    ag_jw_string(w, "root", s->o.name);
    ag_jw_string(w, "parent", adapter < 0 ? NULL : s->o.name);
    ag_jw_int(w, "max_model_len", s->o.context);
    ag_jw_end(w);
}

static void reply_json(ag_api_server *s, ag_http_exchange *x, ag_str *out)
{
    ag_api_count(s, 200);
    ag_http_reply(x, 200, "application/json", out->text, out->n);
    ag_str_free(out);
}

static void handle_models(ag_api_server *s, ag_http_exchange *x, const char *name)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out, .indent = -1};
    if (*name) {
        const int adapter = ag_api_find_adapter(s, name);
        if (adapter < -1) {
            ag_api_refuse(s, x, 404, "model_not_found", "there is no such model here; GET /v1/models lists what there is");
            return;
        }
        write_model(&w, s, adapter);
    } else {
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "object", "list");
        ag_jw_array(&w, "data");
        for (int i = -1; i < s->o.n_adapters; i++) write_model(&w, s, i);
        ag_jw_end(&w);
        ag_jw_end(&w);
    }
    reply_json(s, x, &out);
}

/* ---- tokens --------------------------------------------------------------------------------------------------------------------- */
static ag_status tokenize(ag_api_server *s, const json_t *root, ag_str *out, ag_err *err)
{
    static const char *const known[] = {"model", "prompt", "content", "messages", "add_special_tokens", "add_generation_prompt"};
    for (void *it = json_object_iter((json_t *)(uintptr_t)root); it; it = json_object_iter_next((json_t *)(uintptr_t)root, it)) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i], json_object_iter_key(it)) != 0) i++;
        if (i == sizeof known / sizeof *known) return ag_fail(err, AG_E_USAGE, "unknown key '%.64s'", json_object_iter_key(it));
    }
    const json_t *text = json_object_get(root, "prompt"), *messages = json_object_get(root, "messages");
    if (!text) text = json_object_get(root, "content");
    if (json_is_string(text) == json_is_array(messages)) return ag_fail(err, AG_E_FORMAT, "give either 'prompt', a text, or 'messages', a list");
    bool add_special = true, add_generation_prompt = true;
    AG_TRY(ag_json_get_bool(root, "add_special_tokens", &add_special, "the request", err));
    AG_TRY(ag_json_get_bool(root, "add_generation_prompt", &add_generation_prompt, "the request", err));
    ag_arena arena = {0};
    int32_t *ids = NULL;
    int64_t n = 0;
    ag_status status = messages
        ? ag_chat_prompt_encode(&ids, &n, s->o.text, &(ag_chat_render_args){.messages = messages, .add_generation_prompt = add_generation_prompt}, &arena, err)
        : ag_text_prompt_encode(&ids, &n, s->o.text, json_string_value(text), json_string_length(text), add_special, &arena, err);
    if (!status) {
        ag_json_writer w = {.out = out, .indent = -1};
        ag_jw_object(&w, NULL);
        ag_jw_int(&w, "count", n);
        ag_jw_int(&w, "max_model_len", s->o.context);
        ag_jw_array(&w, "tokens");
        for (int64_t i = 0; i < n; i++) ag_jw_int(&w, NULL, ids[i]);
        ag_jw_end(&w);
        ag_jw_end(&w);
    }
    ag_arena_free(&arena);
    return status;
}

static void handle_tokenize(ag_api_server *s, ag_http_exchange *x)
{
    size_t n;
    const char *body = ag_http_body(x, &n);
    json_t *root = NULL;
    ag_str out = {0};
    ag_err err;
    ag_status status = ag_json_parse_exact(&root, body, n, "the request", &err);
    ag_http_drop_body(x);
    if (!status && !json_is_object(root)) status = ag_fail(&err, AG_E_FORMAT, "the request must be a JSON object");
    if (!status) status = tokenize(s, root, &out, &err);
    ag_json_free(&root);
    if (!status) {
        reply_json(s, x, &out);
        return;
    }
    ag_str_free(&out);
    ag_api_refuse(s, x, 400, NULL, err.text);
}

/* ---- routes ----------------------------------------------------------------------------------------------------------------------- */
int ag_api_status_of(const ag_api_server *s, ag_status status)
{
    if (status == AG_E_BUSY) return atomic_load(&s->draining) ? 503 : 429;
    switch (status) {
    case AG_E_USAGE:
    case AG_E_FORMAT:
    case AG_E_DATA:
    case AG_E_CONFIG:
    case AG_E_UNSUPPORTED: return 400;
    default: return 500;
    }
}

void ag_api_refuse(ag_api_server *s, ag_http_exchange *x, int status, const char *code, const char *sentence)
{
    ag_str out = {0};
    ag_api_error_write(&out, status, code, sentence);
    ag_api_count(s, status);
    ag_http_reply(x, status, "application/json", out.text, out.n);
    ag_str_free(&out);
}

static void refuse_early(void *user, int status, const char *sentence, ag_str *out)
{
    ag_api_count(user, status);
    ag_api_error_write(out, status, NULL, sentence);
}

typedef enum { ROUTE_PAGE, ROUTE_HEALTH, ROUTE_METRICS, ROUTE_MODELS, ROUTE_CHAT, ROUTE_COMPLETIONS, ROUTE_TOKENIZE, N_ROUTES } route_id;
static const struct {
    const char *path, *method;
    bool open; /* without a key */
} routes[N_ROUTES] = {
    [ROUTE_PAGE] = {"/", "GET", true},
    [ROUTE_HEALTH] = {"/health", "GET", true},
    [ROUTE_METRICS] = {"/metrics", "GET", false},
    [ROUTE_MODELS] = {"/v1/models", "GET", false},
    [ROUTE_CHAT] = {"/v1/chat/completions", "POST", false},
    [ROUTE_COMPLETIONS] = {"/v1/completions", "POST", false},
    [ROUTE_TOKENIZE] = {"/tokenize", "POST", false},
};

static void answer(ag_api_server *s, ag_http_exchange *x, route_id route)
{
    ag_str out = {0};
    switch (route) {
    case ROUTE_PAGE:
        ag_api_count(s, 200);
        ag_http_reply(x, 200, "text/html; charset=utf-8", ag_chat_page, ag_chat_page_bytes);
        return;
    case ROUTE_HEALTH:
        ag_str_add(&out, "{\"status\":\"ok\"}");
        reply_json(s, x, &out);
        return;
    case ROUTE_METRICS:
        ag_api_metrics_write(s, &out);
        ag_api_count(s, 200);
        ag_http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.text, out.n);
        ag_str_free(&out);
        return;
    case ROUTE_MODELS: handle_models(s, x, ""); return;
    case ROUTE_CHAT: ag_api_call_begin(s, x, true); return;
    case ROUTE_COMPLETIONS: ag_api_call_begin(s, x, false); return;
    case ROUTE_TOKENIZE: handle_tokenize(s, x); return;
    case N_ROUTES: break;
    }
}

static bool may_ask(const ag_api_server *s, const ag_http_exchange *x)
{
    return !s->n_keys || ag_http_key_is_known(ag_http_header(x, "Authorization"), s->keys, s->n_keys);
}

static void handle(void *user, ag_http_exchange *x)
{
    ag_api_server *s = user;
    static const char models[] = "/v1/models/";
    const char *path = ag_http_path(x), *method = ag_http_method(x);
    route_id route = ROUTE_PAGE;
    while (route < N_ROUTES && strcmp(routes[route].path, path) != 0) route++;
    const bool one_model = ag_str_starts(path, models);
    if (route < N_ROUTES && !routes[route].open && !may_ask(s, x)) route = N_ROUTES + 1;
    else if (one_model && !may_ask(s, x)) route = N_ROUTES + 1;
    if (route > N_ROUTES) ag_api_refuse(s, x, 401, "invalid_api_key", "this server wants a key: Authorization: Bearer KEY");
    else if (one_model) handle_models(s, x, path + sizeof models - 1);
    else if (route == N_ROUTES) ag_api_refuse(s, x, 404, NULL, "there is nothing at this path; /v1/models, /v1/chat/completions, "
                                              "/v1/completions, /tokenize, /health, /metrics and the page at / are there");
    else if (strcmp(method, routes[route].method) != 0 && !(strcmp(method, "HEAD") == 0 && strcmp(routes[route].method, "GET") == 0))
        ag_api_refuse(s, x, 405, NULL, strcmp(routes[route].method, "GET") == 0 ? "this path takes GET" : "this path takes POST");
    else if (atomic_load(&s->draining) && strcmp(routes[route].method, "POST") == 0) {
        ag_http_retry_after(x, 5);
        ag_api_refuse(s, x, 503, "shutting_down", "the server is shutting down");
    } else if (atomic_load(&s->draining) && route == ROUTE_HEALTH)
        ag_api_refuse(s, x, 503, "shutting_down", "the server is shutting down");
    else answer(s, x, route);
}

/* ---- start and stop ------------------------------------------------------------------------------------------------------------------- */
static ag_status read_keys(ag_api_server *s, ag_err *err)
{
    const char *at = s->o.keys, *end = at ? at + s->o.n_keys_bytes : NULL;
    size_t room = 1;
    for (const char *c = at; c < end; c++) room += *c == '\n';
    s->keys = calloc(room, sizeof *s->keys);
    if (!s->keys) ag_out_of_memory(room * sizeof *s->keys);
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (!line_end) line_end = end;
        const char *first = at, *last = line_end;
        while (first < last && strchr(" \t\r", *first)) first++;
        while (last > first && strchr(" \t\r", last[-1])) last--;
        if (last > first) ag_http_key_digest(s->keys[s->n_keys++], first, (size_t)(last - first));
        at = line_end + 1;
    }
    if (s->o.keys && !s->n_keys) return ag_fail(err, AG_E_CONFIG, "the file of API keys has no key; write one on a line of its own");
    return AG_OK;
}

static ag_status start_engine(ag_api_server *s, ag_err *err)
{
    const ag_api_options *o = &s->o;
    int64_t max_rank = 0;
    s->adapters = calloc((size_t)o->n_adapters + 1, sizeof *s->adapters);
    if (!s->adapters) ag_out_of_memory((size_t)o->n_adapters * sizeof *s->adapters);
    for (int64_t i = 0; i < o->n_adapters; i++) {
        const ag_adapter *a = &o->adapters[i].peft->adapter;
        s->adapters[i] = a->layers;
        for (size_t p = 0; p < a->n_pairs; p++)
            if (a->pairs[p].R > max_rank) max_rank = a->pairs[p].R;
    }
    return ag_batcher_create(&s->engine, &(ag_batcher_options){
        .model = o->model, .backend = o->backend, .compute = o->compute, .adapters = s->adapters, .n_adapters = o->n_adapters,
        .max_rank = max_rank, .context = o->context, .n_slots = o->n_slots, .n_kept = o->n_kept, .max_waiting = o->max_waiting}, err);
}

ag_status ag_api_server_start(ag_api_server **out, const ag_api_options *options, ag_err *err)
{
    *out = NULL;
    ag_api_server *s = calloc(1, sizeof *s);
    if (!s) ag_out_of_memory(sizeof *s);
    s->o = *options;
    s->started = (int64_t)time(NULL);
    pthread_mutex_init(&s->lock, NULL);
    const ag_description *d = &s->o.model->d;
    s->tokens = ag_token_table_create(s->o.text->tokenizer, d->V, d->eos_ids, d->n_eos_ids);
    s->call_style = ag_call_style_of(s->o.text->chat_source);
    s->o.http.handle = handle;
    s->o.http.refuse = refuse_early;
    s->o.http.user = s;
    ag_status status = read_keys(s, err);
    if (!status) status = start_engine(s, err);
    if (!status) status = ag_http_server_start(&s->http, &s->o.http, err);
    *out = s;
    if (status) ag_api_server_stop(out);
    return status;
}

int64_t ag_api_server_port(const ag_api_server *s) { return ag_http_server_port(s->http); }

void ag_api_server_drain(ag_api_server *s, int64_t seconds)
{
    atomic_store(&s->draining, true);
    const uint64_t until = ag_clock_ns() + (uint64_t)seconds * 1000000000u;
    while (ag_clock_ns() < until) {
        ag_batcher_stats stats;
        ag_batcher_read_stats(s->engine, &stats);
        if (stats.n_running + stats.n_waiting == 0 && ag_http_server_open_exchanges(s->http) == 0) return;
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
}

void ag_api_server_stop(ag_api_server **server)
{
    if (!server || !*server) return;
    ag_api_server *s = *server;
    atomic_store(&s->draining, true);
    /* Connections first: whatever still runs is given up with them. */
    ag_http_server_close_all(s->http);
    if (s->engine) ag_batcher_stop(s->engine);
    ag_http_server_stop(&s->http);
    ag_batcher_free(&s->engine);
    ag_token_table_free(&s->tokens);
    free(s->adapters);
    free(s->keys);
    pthread_mutex_destroy(&s->lock);
    free(s);
    *server = NULL;
}
