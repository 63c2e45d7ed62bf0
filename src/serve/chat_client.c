#include "serve/chat_client.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/json.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ANSWER = 64 << 20 };

typedef struct {
    ag_chat_reply *reply;
    bool stream;
    uint64_t start;
    ag_str body, line, chunks; /* line: of a stream, not yet whole */
    size_t n_chunks;
    bool broken;               /* a chunk that is no JSON, or too much */
    char server_error[512];
} transfer;

static double ms_since(uint64_t start) { return (double)(ag_clock_ns() - start) * 1e-6; }

static void copy_text(ag_str *out, const json_t *value)
{
    if (json_is_string(value)) ag_str_add_n(out, json_string_value(value), json_string_length(value));
}

/* A choice's message or delta. */
static void take_message(ag_chat_reply *r, const json_t *message)
{
    copy_text(&r->text, json_object_get(message, "content"));
    const json_t *reasoning = json_object_get(message, "reasoning_content");
    copy_text(&r->reasoning, reasoning ? reasoning : json_object_get(message, "reasoning"));
}

static int64_t count_of(const json_t *usage, const char *key)
{
    const json_t *value = json_object_get(usage, key);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static void take_answer(transfer *t, const json_t *root, const char *message_key)
{
    ag_chat_reply *r = t->reply;
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0), *usage = json_object_get(root, "usage");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason")),
               *sentence = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    take_message(r, json_object_get(choice, message_key));
    if (finish) snprintf(r->finish, sizeof r->finish, "%s", finish);
    if (sentence) snprintf(t->server_error, sizeof t->server_error, "%s", sentence);
    if (!json_is_object(usage)) return;
    r->input_tokens = count_of(usage, "prompt_tokens");
    r->output_tokens = count_of(usage, "completion_tokens");
    r->total_tokens = count_of(usage, "total_tokens");
}

static void take_line(transfer *t)
{
    while (t->line.n > 0 && strchr("\r\n", t->line.text[t->line.n - 1])) t->line.n--;
    if (t->line.n < 5 || memcmp(t->line.text, "data:", 5) != 0) return;
    const char *data = t->line.text + 5;
    size_t n = t->line.n - 5;
    while (n > 0 && *data == ' ') data++, n--;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) return;
    json_t *root;
    if (ag_json_parse(&root, data, n, "a piece of the answer", NULL)) {
        t->broken = true;
        return;
    }
    const size_t before = t->reply->text.n + t->reply->reasoning.n;
    take_answer(t, root, "delta");
    if (before == 0 && t->reply->text.n + t->reply->reasoning.n > 0) t->reply->first_token_ms = ms_since(t->start);
    ag_str_add(&t->chunks, t->n_chunks++ ? ", " : "");
    ag_str_add_n(&t->chunks, data, n);
    ag_json_free(&root);
}

static size_t on_bytes(char *bytes, size_t size, size_t n_items, void *user)
{
    transfer *t = user;
    const size_t n = size * n_items;
    if (t->body.n + n > MAX_ANSWER) {
        t->broken = true;
        return 0;
    }
    ag_str_add_n(&t->body, bytes, n);
    for (size_t i = 0; i < n && t->stream; i++) {
        ag_str_add_char(&t->line, bytes[i]);
        if (bytes[i] != '\n') continue;
        take_line(t);
        ag_str_clear(&t->line);
    }
    return n;
}

static void write_request(ag_str *out, const ag_chat_client *c, const char *system, const char *prompt)
{
    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "model", c->model);
    ag_jw_array(&w, "messages");
    const char *const roles[] = {"system", "user"}, *const texts[] = {system, prompt};
    for (int i = 0; i < 2; i++) {
        if (!texts[i]) continue;
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "role", roles[i]);
        ag_jw_string(&w, "content", texts[i]);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_int(&w, "max_tokens", c->max_tokens);
    ag_jw_double(&w, "temperature", c->temperature);
    ag_jw_bool(&w, "stream", c->stream);
    if (c->stream) {
        ag_jw_object(&w, "stream_options");
        ag_jw_bool(&w, "include_usage", true);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
}

static ag_status judge(transfer *t, const ag_chat_client *c, CURLcode code, long status, const char *reason, ag_err *err)
{
    ag_chat_reply *r = t->reply;
    if (t->broken) return ag_fail(err, AG_E_FORMAT, "%s: what came is not an answer of the OpenAI protocol", c->base_url);
    if (code) return ag_fail(err, AG_E_IO, "%s: %s", c->base_url, *reason ? reason : curl_easy_strerror(code));
    const bool is_stream = t->stream && status == 200;
    if (is_stream) {
        ag_str_printf(&r->raw, "{\"chunks\": [%s]}", t->chunks.text ? t->chunks.text : "");
    } else {
        json_t *root = NULL;
        const ag_status parsed = ag_json_parse(&root, t->body.text ? t->body.text : "", t->body.n, "the answer", NULL);
        if (!parsed) {
            take_answer(t, root, "message");
            ag_str_add_n(&r->raw, t->body.text, t->body.n);
        }
        const bool has_choices = json_array_size(json_object_get(root, "choices")) > 0;
        ag_json_free(&root);
        if (status == 200 && !has_choices) return ag_fail(err, AG_E_FORMAT, "%s: the answer has no choices", c->base_url);
    }
    if (status != 200) return ag_fail(err, AG_E_IO, "%s: status %ld%s%s", c->base_url, status, *t->server_error ? ": " : "", t->server_error);
    if (*t->server_error) return ag_fail(err, AG_E_IO, "%s: %s", c->base_url, t->server_error);
    if (is_stream && t->n_chunks == 0) return ag_fail(err, AG_E_FORMAT, "%s: the stream has no piece", c->base_url);
    return AG_OK;
}

ag_status ag_chat_client_ask(ag_chat_reply *out, const ag_chat_client *c, const char *system, const char *prompt, ag_err *err)
{
    *out = (ag_chat_reply){.input_tokens = -1, .output_tokens = -1, .total_tokens = -1, .first_token_ms = -1};
    CURL *curl = curl_easy_init();
    if (!curl) return ag_fail(err, AG_E_IO, "libcurl cannot begin");
    transfer t = {.reply = out, .stream = c->stream, .start = ag_clock_ns()};
    ag_str url = {0}, body = {0}, key = {0};
    char reason[CURL_ERROR_SIZE] = "";
    ag_str_printf(&url, "%s/chat/completions", c->base_url);
    write_request(&body, c, system, prompt);
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (c->api_key && *c->api_key) {
        ag_str_printf(&key, "Authorization: Bearer %s", c->api_key);
        headers = curl_slist_append(headers, key.text);
    }
    curl_easy_setopt(curl, CURLOPT_URL, url.text);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.text);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.n);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &t);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)(c->timeout_s * 1000));
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
    const CURLcode code = curl_easy_perform(curl);
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    out->latency_ms = ms_since(t.start);
    if (t.line.n) take_line(&t); /* a last line without its end */
    const ag_status result = judge(&t, c, code, status, reason, err);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    ag_str *const texts[] = {&url, &body, &key, &t.body, &t.line, &t.chunks};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) ag_str_free(texts[i]);
    return result;
}

void ag_chat_reply_free(ag_chat_reply *reply)
{
    ag_str_free(&reply->text);
    ag_str_free(&reply->reasoning);
    ag_str_free(&reply->raw);
}
