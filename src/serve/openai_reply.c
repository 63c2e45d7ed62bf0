#define _GNU_SOURCE
#include "serve/openai_reply.h"

#include "base/arena.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

const char *ag_api_error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 503: return "service_unavailable_error";
    default: return "invalid_request_error";
    }
}

void ag_api_error_write(ag_str *out, int status, const char *code, const char *sentence)
{
    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_object(&w, NULL);
    ag_jw_object(&w, "error");
    ag_jw_string(&w, "message", sentence);
    ag_jw_string(&w, "type", ag_api_error_type(status));
    ag_jw_null(&w, "param");
    ag_jw_string(&w, "code", code);
    ag_jw_end(&w);
    ag_jw_end(&w);
}

void ag_api_head_init(ag_api_head *head, bool is_chat, const char *model, const ag_tokenizer *tokenizer)
{
    uint64_t random[2] = {0};
    if (getrandom(random, sizeof random, GRND_NONBLOCK) != sizeof random) random[0] = (uint64_t)time(NULL), random[1] = (uintptr_t)head;
    *head = (ag_api_head){.is_chat = is_chat, .created = (int64_t)time(NULL), .model = model, .tokenizer = tokenizer};
    snprintf(head->id, sizeof head->id, "%s-%016" PRIx64 "%08" PRIx32, is_chat ? "chatcmpl" : "cmpl", random[0], (uint32_t)random[1]);
}

/* ---- log-probabilities -------------------------------------------------------------------------------------------------------- */
/* A token's bytes as text; what is no UTF-8 as U+FFFD. */
static void token_text(ag_str *out, const ag_tokenizer *tokenizer, int32_t id)
{
    const ag_text bytes = ag_tokenizer_token_bytes(tokenizer, id);
    ag_str_clear(out);
    ag_str_add(out, "");
    for (size_t at = 0; at < bytes.n;) ag_str_add_code_point(out, ag_utf8_next(bytes.text, bytes.n, &at));
}

static void write_token(ag_json_writer *w, const ag_api_head *head, int32_t id, float logprob, ag_str *text)
{
    const ag_text bytes = ag_tokenizer_token_bytes(head->tokenizer, id);
    token_text(text, head->tokenizer, id);
    ag_jw_string_n(w, "token", text->text, text->n);
    ag_jw_double(w, "logprob", (double)logprob);
    ag_jw_array(w, "bytes");
    for (size_t i = 0; i < bytes.n; i++) ag_jw_int(w, NULL, (unsigned char)bytes.text[i]);
    ag_jw_end(w);
}

static void write_chat_logprobs(ag_json_writer *w, const ag_api_head *head, const ag_api_piece *p)
{
    ag_str text = {0};
    ag_jw_object(w, "logprobs");
    ag_jw_array(w, "content");
    for (size_t i = 0; i < p->n_logprobs; i++) {
        const ag_api_logprob *l = &p->logprobs[i];
        ag_jw_object(w, NULL);
        write_token(w, head, l->id, l->logprob, &text);
        ag_jw_array(w, "top_logprobs");
        for (int k = 0; k < l->n_top; k++) {
            ag_jw_object(w, NULL);
            write_token(w, head, l->top[k].id, l->top[k].logprob, &text);
            ag_jw_end(w);
        }
        ag_jw_end(w);
        ag_jw_end(w);
    }
    ag_jw_end(w);
    ag_jw_end(w);
    ag_str_free(&text);
}

static void write_completion_logprobs(ag_json_writer *w, const ag_api_head *head, const ag_api_piece *p)
{
    ag_str text = {0};
    ag_jw_object(w, "logprobs");
    ag_jw_array(w, "tokens");
    for (size_t i = 0; i < p->n_logprobs; i++) {
        token_text(&text, head->tokenizer, p->logprobs[i].id);
        ag_jw_string_n(w, NULL, text.text, text.n);
    }
    ag_jw_end(w);
    ag_jw_array(w, "token_logprobs");
    for (size_t i = 0; i < p->n_logprobs; i++) ag_jw_double(w, NULL, (double)p->logprobs[i].logprob);
    ag_jw_end(w);
    ag_jw_array(w, "top_logprobs");
    for (size_t i = 0; i < p->n_logprobs; i++) {
        ag_jw_object(w, NULL);
        for (int k = 0; k < p->logprobs[i].n_top; k++) {
            token_text(&text, head->tokenizer, p->logprobs[i].top[k].id);
            ag_jw_double(w, text.text, (double)p->logprobs[i].top[k].logprob);
        }
        ag_jw_end(w);
    }
    ag_jw_end(w);
    ag_jw_array(w, "text_offset");
    for (size_t i = 0; i < p->n_logprobs; i++) ag_jw_uint(w, NULL, p->logprobs[i].offset);
    ag_jw_end(w);
    ag_jw_end(w);
    ag_str_free(&text);
}

/* ---- choices -------------------------------------------------------------------------------------------------------------------- */
static void write_calls(ag_json_writer *w, const ag_api_piece *p, bool streams)
{
    ag_jw_array(w, "tool_calls");
    for (size_t i = 0; i < p->calls->n; i++) {
        const ag_tool_call *call = &p->calls->calls[i];
        char id[64];
        snprintf(id, sizeof id, "call_%016" PRIx64 "%02zu", p->call_ids, i);
        ag_jw_object(w, NULL);
        if (streams) ag_jw_uint(w, "index", i);
        ag_jw_string(w, "id", id);
        ag_jw_string(w, "type", "function");
        ag_jw_object(w, "function");
        ag_jw_string(w, "name", call->name);
        ag_jw_string_n(w, "arguments", call->arguments.text ? call->arguments.text : "", call->arguments.n);
        ag_jw_end(w);
        ag_jw_end(w);
    }
    ag_jw_end(w);
}

static void write_message(ag_json_writer *w, const ag_api_piece *p, bool streams)
{
    ag_jw_object(w, streams ? "delta" : "message");
    if (p->is_first || !streams) ag_jw_string(w, "role", "assistant");
    const bool has_calls = p->calls && p->calls->n > 0;
    if (p->text && (p->n > 0 || (!has_calls && (!streams || p->is_first)))) ag_jw_string_n(w, "content", p->text, p->n);
    else if (!streams) ag_jw_null(w, "content");
    if (!streams) ag_jw_null(w, "refusal");
    if (has_calls) write_calls(w, p, streams);
    ag_jw_end(w);
}

void ag_api_choice_write(ag_json_writer *w, const ag_api_head *head, int64_t index, const ag_api_piece *p, bool streams)
{
    ag_jw_object(w, NULL);
    ag_jw_int(w, "index", index);
    if (head->is_chat) write_message(w, p, streams);
    else ag_jw_string_n(w, "text", p->text ? p->text : "", p->n);
    if (!p->logprobs) ag_jw_null(w, "logprobs");
    else if (head->is_chat) write_chat_logprobs(w, head, p);
    else write_completion_logprobs(w, head, p);
    ag_jw_string(w, "finish_reason", p->finish);
    ag_jw_end(w);
}

void ag_api_usage_write(ag_json_writer *w, int64_t prompt, int64_t completion, int64_t cached)
{
    ag_jw_object(w, "usage");
    ag_jw_int(w, "prompt_tokens", prompt);
    ag_jw_int(w, "completion_tokens", completion);
    ag_jw_int(w, "total_tokens", prompt + completion);
    ag_jw_object(w, "prompt_tokens_details");
    ag_jw_int(w, "cached_tokens", cached);
    ag_jw_end(w);
    ag_jw_end(w);
}

void ag_api_begin(ag_json_writer *w, const ag_api_head *head, bool streams)
{
    ag_jw_object(w, NULL);
    ag_jw_string(w, "id", head->id);
    ag_jw_string(w, "object", !head->is_chat ? "text_completion" : streams ? "chat.completion.chunk" : "chat.completion");
    ag_jw_int(w, "created", head->created);
    ag_jw_string(w, "model", head->model);
    ag_jw_array(w, "choices");
}

void ag_api_event_write(ag_str *out, const ag_api_head *head, int64_t index, const ag_api_piece *piece, bool usage_follows)
{
    ag_str_add(out, "data: ");
    ag_json_writer w = {.out = out, .indent = -1};
    ag_api_begin(&w, head, true);
    ag_api_choice_write(&w, head, index, piece, true);
    ag_jw_end(&w);
    if (usage_follows) ag_jw_null(&w, "usage");
    ag_jw_end(&w);
    ag_str_add(out, "\n\n");
}
