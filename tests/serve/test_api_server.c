/* The server over real connections: a tiny model, its protocol, its limits, and what badly behaved clients do to it. */
#define _GNU_SOURCE
#include "adapter/peft_io.h"
#include "base/fs.h"
#include "base/json.h"
#include "data/chat_prompt.h"
#include "model/generate.h"
#include "serve/api_server.h"
#include "support/http_peer.h"
#include "support/op_check.h"
#include "support/scratch_dir.h"
#include "support/tiny_folder.h"
#include "support/unit_test.h"

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONTEXT = 400, SLOTS = 6 };

static ag_backend backend;
static ag_model *model;
static ag_model_text *text;
static ag_peft *peft[2];
static ag_api_adapter adapters[2];
static ag_api_server *server;
static int64_t port;

/* Shows tools and asks for calls as Hermes does. */
static const char chat_template[] =
    "{% if tools %}tools: {{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

static void make_adapter(ag_peft **out, const char *name, uint64_t seed, int64_t r)
{
    ag_err err;
    ag_adapter a;
    ag_arena arena = {0};
    static const char *const targets[] = {"q_proj", "v_proj", "down_proj"};
    const ag_lora_config config = {.r = r, .alpha = 16, .targets = targets, .n_targets = 3};
    must(ag_adapter_plan(&a, &model->d, &config, &arena, &err));
    ag_adapter_bind(&a, ag_arena_array(&arena, a.n_params, sizeof(float)), NULL);
    check_fill(a.params, (int64_t)a.n_params, (uint32_t)seed, 0.4f);
    must(ag_make_dirs(scratch_path(name), &err));
    must(ag_peft_save(&a, scratch_path(name), NULL, NULL, &err));
    must(ag_peft_open(out, scratch_path(name), &model->d, &err));
    ag_arena_free(&arena);
}

static ag_api_options options(void)
{
    return (ag_api_options){.model = model, .text = text, .backend = &backend, .name = "tiny", .adapters = adapters, .n_adapters = 2, .context = CONTEXT,
                            .n_slots = SLOTS, .n_kept = 4, .max_waiting = 16, .version = "test",
                            .http = {.port = 0, .max_body = 20000, .max_connections = 64, .request_seconds = 1, .reply_seconds = 5}};
}

static void start(const ag_api_options *o)
{
    ag_err err;
    must(ag_api_server_start(&server, o, &err));
    port = ag_api_server_port(server);
}

static int set_up(void **state)
{
    (void)state;
    ag_err err;
    tiny_folder_make(scratch_dir_create());
    must(ag_file_publish(scratch_path("model/chat_template.jinja"), chat_template, sizeof chat_template - 1, &err));
    backend = check_backend(ag_cpu_best_level(), 2);
    must(ag_model_open(&model, scratch_path("model"), NULL, &err));
    must(ag_model_text_open(&text, scratch_path("model"), &err));
    make_adapter(&peft[0], "a", 1, 4);
    make_adapter(&peft[1], "b", 2, 8);
    adapters[0] = (ag_api_adapter){"first", peft[0]};
    adapters[1] = (ag_api_adapter){"second", peft[1]};
    const ag_api_options o = options();
    start(&o);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ag_api_server_stop(&server);
    ag_peft_close(&peft[0]);
    ag_peft_close(&peft[1]);
    ag_model_text_close(&text);
    ag_model_close(&model);
    scratch_dir_remove();
    return 0;
}

static void restart(const ag_api_options *o)
{
    ag_api_server_stop(&server);
    start(o);
}

/* ---- what generate says ---------------------------------------------------------------------------------------------------------- */
static char *generated(const char *question, int adapter, int64_t max_new)
{
    ag_err err;
    ag_arena arena = {0};
    int32_t *ids, out[CONTEXT];
    int64_t n;
    ag_decoder *dec;
    ag_kv_cache *cache;
    ag_generate_result result;
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", question);
    must(ag_chat_prompt_encode(&ids, &n, text, &(ag_chat_render_args){.messages = messages, .add_generation_prompt = true}, &arena, &err));
    must(ag_decoder_create(&dec, &(ag_decoder_options){.model = model, .backend = &backend, .lora = adapter < 0 ? NULL : peft[adapter]->adapter.layers,
                                 .max_tokens = CONTEXT, .max_targets = 1, .max_positions = CONTEXT, .longest_span = CONTEXT}, &err));
    must(ag_kv_cache_create(&cache, model, 1, CONTEXT, &err));
    must(ag_generate(dec, cache, ids, n, 0, &(ag_generate_options){.sampling = ag_sampling_greedy(), .max_new_tokens = max_new}, out, &result, &err));
    ag_str answer = {0};
    ag_str_add(&answer, "");
    ag_tokenizer_decode(text->tokenizer, out, (size_t)result.n_new, true, &answer);
    ag_kv_cache_free(&cache);
    ag_decoder_free(&dec);
    json_decref(messages);
    ag_arena_free(&arena);
    return answer.text;
}

static void every_answer_of_a_full_batch_is_what_generate_says(void **state)
{
    (void)state;
    enum { N = 12 };
    static const char *const names[] = {"tiny", "first", "second"};
    int fd[N];
    char question[N][128];
    for (int i = 0; i < N; i++) {
        snprintf(question[i], sizeof question[i], "the light holds a ship of salt, number %d%s", i % 9, i % 2 ? " and wind goes home by night, by night" : "");
        ag_str request = {0}, body = {0};
        ag_str_printf(&body, "{\"model\":\"%s\",\"temperature\":0,\"max_tokens\":%d,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", names[i % 3],
                      20 + i, question[i]);
        ag_str_printf(&request, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", body.n, body.text);
        fd[i] = http_peer_connect(port);
        http_peer_send(fd[i], request.text, request.n);
        ag_str_free(&request);
        ag_str_free(&body);
    }
    for (int i = 0; i < N; i++) {
        ag_err err;
        json_t *root;
        http_answer a = http_peer_read(fd[i]);
        assert_int_equal(a.status, 200);
        must(ag_json_parse(&root, a.body.text, a.body.n, "answer", &err));
        char *want = generated(question[i], i % 3 - 1, 20 + i);
        assert_string_equal(json_text(root, "choices.0.message.content"), want);
        assert_string_equal(json_text(root, "model"), names[i % 3]);
        free(want);
        ag_json_free(&root);
        http_answer_free(&a);
        close(fd[i]);
    }
}

/* ---- protocol ---------------------------------------------------------------------------------------------------------------------- */
#define CHAT(rest) "{\"messages\":[{\"role\":\"user\",\"content\":\"the light holds\"}]," rest "}"
static const char CHAT_PATH[] = "/v1/chat/completions";

static void models_health_and_tokens_are_told(void **state)
{
    (void)state;
    json_t *root = http_peer_json(port, "/v1/models", NULL, 200);
    assert_int_equal(json_array_size(json_at(root, "data")), 3);
    assert_string_equal(json_text(root, "data.1.id"), "first");
    assert_string_equal(json_text(root, "data.1.parent"), "tiny");
    ag_json_free(&root);
    root = http_peer_json(port, "/v1/models/second", NULL, 200);
    assert_string_equal(json_text(root, "id"), "second");
    ag_json_free(&root);
    root = http_peer_json(port, "/health", NULL, 200);
    assert_string_equal(json_text(root, "status"), "ok");
    ag_json_free(&root);
    root = http_peer_json(port, "/tokenize", "{\"prompt\":\"the light\"}", 200);
    assert_int_equal(json_integer_value(json_at(root, "count")), json_array_size(json_at(root, "tokens")));
    assert_true(json_array_size(json_at(root, "tokens")) > 1);
    ag_json_free(&root);
    http_answer page = http_peer_ask(port, "/", NULL, NULL);
    assert_int_equal(page.status, 200);
    assert_non_null(strstr(page.head.text, "Content-Security-Policy"));
    assert_null(strcasestr(page.head.text, "Access-Control-Allow-Origin"));
    assert_non_null(strstr(page.body.text, "<!doctype html>"));
    http_answer_free(&page);
}

/* The pieces of a stream put together, and how it ended. */
static char *streamed(const char *body, json_t **last, int *n_events)
{
    http_answer a = http_peer_ask(port, CHAT_PATH, body, NULL);
    if (a.status != 200) fail_msg("%d: %s", a.status, a.body.text);
    assert_non_null(strstr(a.head.text, "text/event-stream"));
    ag_str all = {0};
    ag_str_add(&all, "");
    *last = NULL;
    *n_events = 0;
    bool done = false;
    for (char *at = a.body.text, *end; (end = strstr(at, "\n\n")); at = end + 2) {
        assert_true(strncmp(at, "data: ", 6) == 0);
        if (strncmp(at + 6, "[DONE]", 6) == 0) {
            done = true;
            continue;
        }
        ag_err err;
        json_t *event;
        must(ag_json_parse(&event, at + 6, (size_t)(end - at) - 6, "event", &err));
        const char *piece = json_string_value(json_at(event, "choices.0.delta.content"));
        if (piece) ag_str_add(&all, piece);
        if (*last) json_decref(*last);
        *last = event;
        ++*n_events;
    }
    assert_true(done);
    http_answer_free(&a);
    return all.text;
}

static void a_stream_is_the_whole_answer_in_pieces(void **state)
{
    (void)state;
    json_t *whole = http_peer_json(port, CHAT_PATH, CHAT("\"temperature\":0,\"max_tokens\":30"), 200), *last;
    int n;
    char *all = streamed(CHAT("\"temperature\":0,\"max_tokens\":30,\"stream\":true,\"stream_options\":{\"include_usage\":true}"), &last, &n);
    assert_string_equal(all, json_text(whole, "choices.0.message.content"));
    assert_true(n > 5);
    assert_int_equal(json_integer_value(json_at(last, "usage.completion_tokens")), json_integer_value(json_at(whole, "usage.completion_tokens")));
    assert_int_equal(json_array_size(json_at(last, "choices")), 0);
    ag_json_free(&last);
    free(all);
    all = streamed(CHAT("\"temperature\":0,\"max_tokens\":30,\"stream\":true"), &last, &n);
    assert_string_equal(json_text(last, "choices.0.finish_reason"), json_text(whole, "choices.0.finish_reason"));
    ag_json_free(&last);
    free(all);
    ag_json_free(&whole);
}

static void a_stop_text_ends_the_answer_and_is_no_part_of_it(void **state)
{
    (void)state;
    json_t *whole = http_peer_json(port, CHAT_PATH, CHAT("\"temperature\":0,\"max_tokens\":40"), 200), *last;
    const char *text_of_whole = json_text(whole, "choices.0.message.content");
    const size_t n = strlen(text_of_whole);
    assert_true(n > 12);
    /* Two characters from the middle, wherever they first stand. */
    size_t from = n / 2;
    while (((unsigned char)text_of_whole[from] & 0xc0) == 0x80) from++;
    size_t to = from + 1;
    while (((unsigned char)text_of_whole[to] & 0xc0) == 0x80) to++;
    char *stop = strndup(text_of_whole + from, to - from);
    char *want = strndup(text_of_whole, (size_t)(strstr(text_of_whole, stop) - text_of_whole));
    json_t *request = json_pack("{s:[{s:s,s:s}],s:i,s:i,s:[s,s]}", "messages", "role", "user", "content", "the light holds", "temperature", 0, "max_tokens", 40,
                                "stop", stop, "never there");
    char *body = json_dumps(request, 0);
    json_t *cut = http_peer_json(port, CHAT_PATH, body, 200);
    assert_string_equal(json_text(cut, "choices.0.message.content"), want);
    assert_string_equal(json_text(cut, "choices.0.finish_reason"), "stop");
    json_object_set_new(request, "stream", json_true());
    free(body);
    body = json_dumps(request, 0);
    int n_events;
    char *all = streamed(body, &last, &n_events);
    assert_string_equal(all, want);
    free(all);
    free(body);
    free(stop);
    free(want);
    json_decref(request);
    ag_json_free(&last);
    ag_json_free(&cut);
    ag_json_free(&whole);
}

static void seeds_choices_and_logprobs_are_as_asked(void **state)
{
    (void)state;
    json_t *one = http_peer_json(port, CHAT_PATH, CHAT("\"temperature\":1,\"seed\":7,\"max_tokens\":12,\"n\":3,\"logprobs\":true,\"top_logprobs\":4"), 200);
    json_t *two = http_peer_json(port, CHAT_PATH, CHAT("\"temperature\":1,\"seed\":7,\"max_tokens\":12,\"n\":3"), 200);
    assert_int_equal(json_array_size(json_at(one, "choices")), 3);
    bool differ = false;
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "choices.%d.message.content", i);
        assert_string_equal(json_text(one, path), json_text(two, path));
        differ |= strcmp(json_text(one, path), json_text(one, "choices.0.message.content")) != 0;
    }
    assert_true(differ);
    const json_t *content = json_at(one, "choices.1.logprobs.content");
    assert_true(json_array_size(content) > 0 && json_array_size(content) <= 12);
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *entry = json_array_get(content, i);
        const json_t *top = json_at(entry, "top_logprobs");
        const double logprob = json_number_value(json_at(entry, "logprob"));
        assert_int_equal(json_array_size(top), 4);
        assert_true(logprob <= 0 && logprob <= json_number_value(json_at(entry, "top_logprobs.0.logprob")) + 1e-6);
        for (size_t k = 1; k < 4; k++)
            assert_true(json_number_value(json_object_get(json_array_get(top, k - 1), "logprob")) >= json_number_value(json_object_get(json_array_get(top, k), "logprob")));
    }
    ag_json_free(&one);
    ag_json_free(&two);
}

static void biases_and_penalties_change_the_choice(void **state)
{
    (void)state;
    json_t *a = http_peer_json(port, CHAT_PATH, CHAT("\"temperature\":0,\"max_tokens\":20,\"logprobs\":true"), 200);
    json_t *b = http_peer_json(port, CHAT_PATH, CHAT("\"temperature\":0,\"max_tokens\":20,\"logit_bias\":{\"40\":100}"), 200);
    const ag_text forced = ag_tokenizer_token_bytes(text->tokenizer, 40);
    const char *content = json_text(b, "choices.0.message.content");
    for (int i = 0; i < 20; i++) assert_memory_equal(content + (size_t)i * forced.n, forced.text, forced.n);
    json_t *c = http_peer_json(port, CHAT_PATH, CHAT("\"temperature\":0,\"max_tokens\":20,\"frequency_penalty\":2,\"presence_penalty\":2,\"logit_bias\":{\"40\":20}"), 200);
    assert_string_not_equal(json_text(c, "choices.0.message.content"), content); /* 20 - 4 a time: others come after some */
    ag_json_free(&a);
    ag_json_free(&b);
    ag_json_free(&c);
}

static void an_answer_keeps_to_its_schema(void **state)
{
    (void)state;
    json_t *a = http_peer_json(port, CHAT_PATH, CHAT("\"temperature\":1,\"seed\":3,\"max_tokens\":200,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
        "\"name\":\"x\",\"schema\":{\"type\":\"object\",\"properties\":{\"colour\":{\"enum\":[\"red\",\"green\"]},\"n\":{\"type\":\"boolean\"}},"
        "\"required\":[\"colour\",\"n\"],\"additionalProperties\":false}}}"), 200);
    ag_err err;
    json_t *value;
    const char *content = json_text(a, "choices.0.message.content");
    must(ag_json_parse(&value, content, strlen(content), "content", &err));
    assert_true(strcmp(json_text(value, "colour"), "red") == 0 || strcmp(json_text(value, "colour"), "green") == 0);
    assert_true(json_is_boolean(json_at(value, "n")));
    assert_string_equal(json_text(a, "choices.0.finish_reason"), "stop");
    ag_json_free(&value);
    ag_json_free(&a);
    a = http_peer_json(port, CHAT_PATH, CHAT("\"max_tokens\":8,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"string\",\"pattern\":\"x\"}}}"), 400);
    assert_non_null(strstr(json_text(a, "error.message"), "'pattern'"));
    ag_json_free(&a);
    a = http_peer_json(port, CHAT_PATH, CHAT("\"max_tokens\":8,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"$ref\":\"#\"}}}"), 400);
    assert_non_null(strstr(json_text(a, "error.message"), "allows nothing"));
    ag_json_free(&a);
    /* Where a grammar rules, the end is the end. */
    a = http_peer_json(port, CHAT_PATH, CHAT("\"max_tokens\":50,\"ignore_eos\":true,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"enum\":[1,2]}}}"), 200);
    assert_string_equal(json_text(a, "choices.0.finish_reason"), "stop");
    ag_json_free(&a);
}

#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"}}," \
              "\"required\":[\"a\"]}}}]"
static void a_required_call_is_made_and_read_back(void **state)
{
    (void)state;
    json_t *a = http_peer_json(port, CHAT_PATH, CHAT("\"temperature\":0,\"max_tokens\":200,\"tool_choice\":\"required\"," TOOLS), 200), *last;
    assert_string_equal(json_text(a, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(json_text(a, "choices.0.message.tool_calls.0.function.name"), "add");
    assert_true(json_is_null(json_at(a, "choices.0.message.content")));
    const char *arguments = json_text(a, "choices.0.message.tool_calls.0.function.arguments");
    assert_true(strcmp(arguments, "{\"a\": true}") == 0 || strcmp(arguments, "{\"a\": false}") == 0);
    ag_json_free(&a);
    int n;
    char *all = streamed(CHAT("\"temperature\":0,\"max_tokens\":200,\"stream\":true,\"tool_choice\":\"required\"," TOOLS), &last, &n);
    assert_string_equal(all, ""); /* nothing of the call leaked as text */
    assert_string_equal(json_text(last, "choices.0.finish_reason"), "tool_calls");
    ag_json_free(&last);
    free(all);
}

static void completions_take_texts_and_ids(void **state)
{
    (void)state;
    json_t *a = http_peer_json(port, "/v1/completions", "{\"prompt\":[\"the light\",[5,6,7]],\"n\":2,\"max_tokens\":6,\"temperature\":0,\"logprobs\":2}", 200);
    assert_int_equal(json_array_size(json_at(a, "choices")), 4);
    assert_string_equal(json_text(a, "choices.0.text"), json_text(a, "choices.1.text"));
    assert_int_equal(json_array_size(json_at(a, "choices.2.logprobs.tokens")), json_array_size(json_at(a, "choices.2.logprobs.token_logprobs")));
    assert_string_equal(json_text(a, "object"), "text_completion");
    ag_json_free(&a);
    a = http_peer_json(port, "/v1/completions", "{\"prompt\":\"the light\",\"echo\":true,\"max_tokens\":3,\"temperature\":0}", 200);
    assert_true(strncmp(json_text(a, "choices.0.text"), "the light", 9) == 0);
    ag_json_free(&a);
}

static void what_is_wrong_is_said(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *part;
        int status;
    } cases[] = {
        {CHAT_PATH, "{", "the request", 400}, {CHAT_PATH, "[]", "object", 400}, {CHAT_PATH, "{\"messages\":[]}", "messages", 400},
        {CHAT_PATH, CHAT("\"tempreature\":1"), "did you mean 'temperature'", 400}, {CHAT_PATH, CHAT("\"temperature\":\"hot\""), "'temperature'", 400},
        {CHAT_PATH, CHAT("\"temperature\":-1"), "'temperature'", 400}, {CHAT_PATH, CHAT("\"model\":\"gpt-9\""), "gpt-9", 404},
        {CHAT_PATH, CHAT("\"max_tokens\":0"), "'max_tokens'", 400}, {CHAT_PATH, CHAT("\"max_tokens\":1000"), "400", 400},
        {CHAT_PATH, CHAT("\"n\":1000"), "'n'", 400}, {CHAT_PATH, CHAT("\"top_logprobs\":3"), "logprobs", 400},
        {CHAT_PATH, CHAT("\"logit_bias\":{\"x\":1}"), "logit_bias", 400}, {CHAT_PATH, CHAT("\"stream_options\":{\"include_usage\":true}"), "stream", 400},
        {CHAT_PATH, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}", "image_url", 400},
        {CHAT_PATH, "{\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]}", "wizard", 400}, {CHAT_PATH, CHAT("\"tool_choice\":\"required\""), "tools", 400},
        {"/v1/completions", "{\"prompt\":[]}", "prompt", 400}, {"/v1/completions", "{\"prompt\":[1,-2]}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":[100000]}", "100000", 400}, {"/v1/completions", "{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", 400},
        {"/tokenize", "{}", "prompt", 400}, {"/v1/nothing", "{}", "/v1/models", 404}, {"/health", "{}", "GET", 405}, {CHAT_PATH, NULL, "POST", 405},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *a = http_peer_json(port, cases[i].path, cases[i].body, cases[i].status);
        if (!strstr(json_text(a, "error.message"), cases[i].part)) fail_msg("\"%s\" does not say \"%s\"", json_text(a, "error.message"), cases[i].part);
        assert_non_null(json_at(a, "error.type"));
        ag_json_free(&a);
    }
    json_t *a = http_peer_json(port, CHAT_PATH, CHAT("\"max_tokens\":1000"), 400);
    assert_string_equal(json_text(a, "error.code"), "context_length_exceeded");
    ag_json_free(&a);
}

/* ---- guards and limits ---------------------------------------------------------------------------------------------------------------- */
static int status_of(const char *path, const char *body, const char *headers)
{
    http_answer a = http_peer_ask(port, path, body, headers);
    const int status = a.status;
    http_answer_free(&a);
    return status;
}

static int raw_status(const char *request)
{
    const int fd = http_peer_connect(port);
    http_peer_send(fd, request, strlen(request));
    http_answer a = http_peer_read(fd);
    const int status = a.status;
    http_answer_free(&a);
    close(fd);
    return status;
}

static void pages_of_other_sites_and_rebound_names_are_refused(void **state)
{
    (void)state;
    assert_int_equal(403, raw_status("GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"));
    assert_int_equal(403, raw_status("GET /health HTTP/1.1\r\nHost: 127.0.0.1.evil.example:80\r\nConnection: close\r\n\r\n"));
    assert_int_equal(200, raw_status("GET /health HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\n\r\n"));
    assert_int_equal(200, raw_status("GET /health HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\n\r\n"));
    assert_int_equal(403, status_of(CHAT_PATH, CHAT("\"max_tokens\":1"), "Origin: https://evil.example\r\n"));
    assert_int_equal(403, status_of(CHAT_PATH, CHAT("\"max_tokens\":1"), "Origin: null\r\n"));
    char same[96];
    snprintf(same, sizeof same, "Origin: http://127.0.0.1:%d\r\n", (int)port);
    assert_int_equal(200, status_of(CHAT_PATH, CHAT("\"max_tokens\":1"), same));
    assert_int_equal(403, raw_status("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nConnection: close\r\n\r\n"));
}

static void a_key_is_asked_for_where_there_is_one(void **state)
{
    (void)state;
    ag_api_options o = options();
    o.keys = "\n  secret-one  \nsecret-two\r\n";
    o.n_keys_bytes = strlen(o.keys);
    restart(&o);
    assert_int_equal(401, status_of("/v1/models", NULL, NULL));
    assert_int_equal(401, status_of("/v1/models/tiny", NULL, NULL));
    assert_int_equal(401, status_of("/metrics", NULL, NULL));
    assert_int_equal(401, status_of(CHAT_PATH, CHAT("\"max_tokens\":1"), "Authorization: Bearer secret-on\r\n"));
    assert_int_equal(401, status_of(CHAT_PATH, CHAT("\"max_tokens\":1"), "Authorization: secret-one\r\n"));
    assert_int_equal(200, status_of(CHAT_PATH, CHAT("\"max_tokens\":1"), "Authorization: Bearer secret-one\r\n"));
    assert_int_equal(200, status_of("/v1/models", NULL, "Authorization: bearer secret-two\r\n"));
    assert_int_equal(200, status_of("/health", NULL, NULL));
    assert_int_equal(200, status_of("/", NULL, NULL));
    ag_err err;
    ag_api_server *none;
    o.keys = " \n";
    o.n_keys_bytes = 2;
    must_fail(AG_E_CONFIG, "no key", ag_api_server_start(&none, &o, &err));
    o = options();
    restart(&o);
}

static void what_is_too_large_is_refused(void **state)
{
    (void)state;
    ag_str body = {0};
    for (int i = 0; i < 30000; i++) ag_str_add_char(&body, 'x');
    assert_int_equal(413, status_of(CHAT_PATH, body.text, NULL));
    ag_str chunked = {0};
    ag_str_printf(&chunked, "POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n7530\r\n%s\r\n0\r\n\r\n", CHAT_PATH, body.text);
    assert_int_equal(413, raw_status(chunked.text));
    ag_str head = {0};
    ag_str_printf(&head, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: %s%s\r\n\r\n", body.text, body.text);
    const int status = raw_status(head.text);
    assert_true(status == 431 || status == 413 || status == 0 || status == 400);
    assert_int_equal(200, status_of("/health", NULL, NULL));
    ag_str_free(&body);
    ag_str_free(&chunked);
    ag_str_free(&head);
}

static double metric(const char *name)
{
    http_answer a = http_peer_ask(port, "/metrics", NULL, NULL);
    char line[96];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(a.body.text, line);
    if (!at) fail_msg("no metric %s", name);
    const double value = strtod(at + strlen(line), NULL);
    http_answer_free(&a);
    return value;
}

static void wait_until(const char *name, double value)
{
    for (int i = 0; i < 500 && metric(name) != value; i++) nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    if (metric(name) != value) fail_msg("%s is %g, not %g", name, metric(name), value);
}

static void send_chat(int fd, const char *body)
{
    ag_str request = {0};
    ag_str_printf(&request, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", CHAT_PATH, strlen(body), body);
    http_peer_send(fd, request.text, request.n);
    ag_str_free(&request);
}

static void clients_that_go_away_free_their_slots(void **state)
{
    (void)state;
    const double gone = metric("agoge_clients_gone_total");
    int fd[2 * SLOTS];
    for (int i = 0; i < 2 * SLOTS; i++) {
        fd[i] = http_peer_connect(port);
        send_chat(fd[i], i % 2 ? CHAT("\"max_tokens\":370,\"ignore_eos\":true,\"n\":2,\"stream\":true") : CHAT("\"max_tokens\":370,\"ignore_eos\":true"));
    }
    for (int i = 0; i < 2 * SLOTS; i++) close(fd[i]);
    wait_until("agoge_requests_running", 0);
    wait_until("agoge_requests_waiting", 0);
    assert_true(metric("agoge_clients_gone_total") > gone);
    assert_int_equal(200, status_of(CHAT_PATH, CHAT("\"max_tokens\":2"), NULL));
}

static void too_many_requests_are_refused_and_the_rest_answered(void **state)
{
    (void)state;
    ag_api_options o = options();
    o.n_slots = 1;
    o.max_waiting = 2;
    restart(&o);
    enum { N = 12 };
    int fd[N], answered = 0, refused = 0;
    for (int i = 0; i < N; i++) send_chat(fd[i] = http_peer_connect(port), CHAT("\"max_tokens\":300,\"ignore_eos\":true"));
    for (int i = 0; i < N; i++) {
        http_answer a = http_peer_read(fd[i]);
        answered += a.status == 200;
        refused += a.status == 429 && strcasestr(a.head.text, "Retry-After:");
        http_answer_free(&a);
        close(fd[i]);
    }
    assert_int_equal(answered + refused, N);
    assert_true(answered >= 3 && refused >= 1);
    o = options();
    restart(&o);
}

static void a_request_that_never_ends_is_cut_and_pipelined_ones_are_answered(void **state)
{
    (void)state;
    const int slow = http_peer_connect(port), fd = http_peer_connect(port);
    static const char part[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le";
    http_peer_send(slow, part, sizeof part - 1);
    static const char two[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    http_peer_send(fd, two, sizeof two - 1);
    for (int i = 0; i < 2; i++) {
        http_answer a = http_peer_read(fd);
        assert_int_equal(a.status, 200);
        http_answer_free(&a);
    }
    close(fd);
    char byte;
    assert_true(recv(slow, &byte, 1, 0) <= 0); /* within the socket's own patience */
    close(slow);
    static const char *const nonsense[] = {"\r\n\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01\x02", "GET / HTTP/9.9\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                                           "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        const int n = http_peer_connect(port);
        http_peer_send(n, nonsense[i], strlen(nonsense[i]));
        shutdown(n, SHUT_WR);
        http_answer a = http_peer_read(n);
        http_answer_free(&a);
        close(n);
    }
    assert_int_equal(200, status_of("/health", NULL, NULL));
}

static void prefixes_are_found_again_and_counted(void **state)
{
    (void)state;
    ag_str question = {0};
    for (int i = 0; i < 40; i++) ag_str_printf(&question, "light %d ", i);
    ag_str body = {0};
    ag_str_printf(&body, "{\"max_tokens\":2,\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", question.text);
    json_t *one = http_peer_json(port, CHAT_PATH, body.text, 200), *two = http_peer_json(port, CHAT_PATH, body.text, 200);
    assert_true(json_integer_value(json_at(two, "usage.prompt_tokens_details.cached_tokens")) * 2 > json_integer_value(json_at(two, "usage.prompt_tokens")));
    assert_string_equal(json_text(one, "choices.0.message.content"), json_text(two, "choices.0.message.content"));
    assert_true(metric("agoge_prefix_hits_total") >= 1);
    ag_json_free(&one);
    ag_json_free(&two);
    ag_str_free(&question);
    ag_str_free(&body);
}

static void draining_lets_answers_end_and_takes_no_new_ones(void **state)
{
    (void)state;
    const int running = http_peer_connect(port);
    send_chat(running, CHAT("\"max_tokens\":300,\"ignore_eos\":true"));
    wait_until("agoge_requests_running", 1);
    ag_api_server_drain(server, 20);
    http_answer a = http_peer_read(running);
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    const int later = http_peer_connect(port);
    send_chat(later, CHAT("\"max_tokens\":3"));
    a = http_peer_read(later);
    assert_int_equal(a.status, 503);
    http_answer_free(&a);
    close(running);
    close(later);
    const ag_api_options o = options();
    restart(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_health_and_tokens_are_told),
        cmocka_unit_test(every_answer_of_a_full_batch_is_what_generate_says),
        cmocka_unit_test(a_stream_is_the_whole_answer_in_pieces),
        cmocka_unit_test(a_stop_text_ends_the_answer_and_is_no_part_of_it),
        cmocka_unit_test(seeds_choices_and_logprobs_are_as_asked),
        cmocka_unit_test(biases_and_penalties_change_the_choice),
        cmocka_unit_test(an_answer_keeps_to_its_schema),
        cmocka_unit_test(a_required_call_is_made_and_read_back),
        cmocka_unit_test(completions_take_texts_and_ids),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(pages_of_other_sites_and_rebound_names_are_refused),
        cmocka_unit_test(a_key_is_asked_for_where_there_is_one),
        cmocka_unit_test(what_is_too_large_is_refused),
        cmocka_unit_test(clients_that_go_away_free_their_slots),
        cmocka_unit_test(too_many_requests_are_refused_and_the_rest_answered),
        cmocka_unit_test(a_request_that_never_ends_is_cut_and_pipelined_ones_are_answered),
        cmocka_unit_test(prefixes_are_found_again_and_counted),
        cmocka_unit_test(draining_lets_answers_end_and_takes_no_new_ones),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
