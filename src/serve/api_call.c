/* One request of /v1/chat/completions or /v1/completions, from its body to the last byte of its answer. */
#include "data/chat_prompt.h"
#include "serve/answer_text.h"
#include "serve/api_internal.h"
#include "serve/constraint.h"
#include "serve/openai_reply.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef struct call call;
enum { CLIENT_GONE = 499 }; /* in the log: nobody was there to read the answer */

typedef struct {
    call *of;
    int64_t index;
    ag_batcher_job job;
    ag_answer_text text;
    size_t n_out;              /* bytes that were sent */
    ag_constraint *constraint; /* NULL: none */
    int32_t *ids;              /* of the answer so far, for the penalties */
    int64_t n_ids, room;
    ag_api_logprob *logprobs;  /* that were not sent */
    size_t n_logprobs, logprob_room;
    bool is_open;              /* its first piece was sent */
    bool failed;
    const char *finish;
    ag_tool_calls calls;
    int64_t n_new, n_reused;
} choice;

struct call {
    ag_api_server *server;
    ag_http_exchange *exchange;
    ag_api_request request;
    ag_api_head head;
    ag_arena arena;
    struct {
        int32_t *ids;
        int64_t n;
        const char *text; /* for echo */
        size_t n_text;
    } prompt[AG_API_MAX_PROMPTS];
    int n_prompts;
    int adapter;
    bool with_tools;
    ag_grammar *grammar;
    choice *choices;
    int64_t n_choices, n_left;
    bool has_begun, was_given_up;
    uint64_t start_ns, call_ids;
    ag_str out; /* scratch */
    char error[1024];
};

static void free_call(void *data)
{
    call *c = data;
    for (int64_t i = 0; i < c->n_choices; i++) {
        choice *ch = &c->choices[i];
        ag_answer_text_free(&ch->text);
        ag_constraint_free(&ch->constraint);
        ag_tool_calls_free(&ch->calls);
        free(ch->ids);
        free(ch->logprobs);
    }
    ag_grammar_free(&c->grammar);
    free(c->choices);
    ag_api_request_free(&c->request);
    ag_arena_free(&c->arena);
    ag_str_free(&c->out);
    free(c);
}

static void on_gone(void *user)
{
    call *c = user;
    for (int64_t i = 0; i < c->n_choices; i++) ag_batcher_cancel(c->server->engine, &c->choices[i].job);
}

/* ---- pieces of a stream (the engine's thread) ------------------------------------------------------------------------------------- */
static const char *text_of(const choice *ch) { return ch->text.text.text ? ch->text.text.text : ""; }

static void send_event(choice *ch, const ag_api_piece *piece)
{
    call *c = ch->of;
    if (!c->has_begun) ag_http_begin(c->exchange, 200, "text/event-stream");
    c->has_begun = true;
    ag_str_clear(&c->out);
    ag_api_event_write(&c->out, &c->head, ch->index, piece, c->request.include_usage);
    ag_http_write(c->exchange, c->out.text, c->out.n);
}

/* What of the text is certain and was not sent, with the log-probabilities that wait. */
static void send_text(choice *ch, size_t until)
{
    call *c = ch->of;
    const bool wants_logprobs = c->request.n_top >= 0;
    if (c->head.is_chat && !ch->is_open) {
        send_event(ch, &(ag_api_piece){.text = "", .is_first = true, .logprobs = NULL});
        ch->is_open = true;
    }
    if (c->request.echo && !ch->is_open) {
        send_event(ch, &(ag_api_piece){.text = c->prompt[ch->index / c->request.n].text, .n = c->prompt[ch->index / c->request.n].n_text});
        ch->is_open = true;
    }
    if (until <= ch->n_out && ch->n_logprobs == 0) return;
    if (until < ch->n_out) until = ch->n_out;
    send_event(ch, &(ag_api_piece){.text = text_of(ch) + ch->n_out, .n = until - ch->n_out, .logprobs = wants_logprobs ? ch->logprobs : NULL,
                                   .n_logprobs = ch->n_logprobs});
    ch->n_out = until;
    ch->n_logprobs = 0;
}

static size_t sendable(const choice *ch)
{
    const size_t certain = ch->text.certain;
    if (!ch->of->with_tools) return certain;
    const size_t no_call = ag_tool_text_certain(ch->of->server->call_style, text_of(ch), ch->text.text.n);
    return no_call < certain ? no_call : certain;
}

static void keep_logprob(choice *ch, const ag_batcher_token *token)
{
    if (ch->n_logprobs == ch->logprob_room) {
        ch->logprob_room = ch->logprob_room ? 2 * ch->logprob_room : 16;
        ch->logprobs = realloc(ch->logprobs, ch->logprob_room * sizeof *ch->logprobs);
        if (!ch->logprobs) ag_out_of_memory(ch->logprob_room * sizeof *ch->logprobs);
    }
    ag_api_logprob *l = &ch->logprobs[ch->n_logprobs++];
    *l = (ag_api_logprob){.id = token->id, .logprob = token->logprob, .n_top = token->n_top, .offset = ch->text.text.n};
    if (token->n_top > 0) memcpy(l->top, token->top, (size_t)token->n_top * sizeof *l->top);
}

static void keep_id(choice *ch, int32_t id)
{
    if (ch->n_ids == ch->room) {
        ch->room = ch->room ? 2 * ch->room : 64;
        ch->ids = realloc(ch->ids, (size_t)ch->room * sizeof *ch->ids);
        if (!ch->ids) ag_out_of_memory((size_t)ch->room * sizeof *ch->ids);
    }
    ch->ids[ch->n_ids++] = id;
}

static bool on_token(void *user, const ag_batcher_token *token)
{
    choice *ch = user;
    call *c = ch->of;
    if (token->index == 0) ag_api_observe(c->server, &c->server->first_token, (double)(ag_clock_ns() - c->start_ns) * 1e-9);
    if (c->request.n_top >= 0) keep_logprob(ch, token);
    if (c->request.frequency_penalty != 0 || c->request.presence_penalty != 0) keep_id(ch, token->id);
    if (ch->constraint) ag_constraint_accept(ch->constraint, token->id);
    ag_answer_text_add(&ch->text, token->id);
    if (c->request.stream) send_text(ch, sendable(ch));
    return !ch->text.stopped;
}

/* The penalties count the answer's ids, as OpenAI's documentation and vLLM have it. */
static void penalize(const choice *ch, float *logits)
{
    const ag_api_request *r = &ch->of->request;
    for (int64_t i = 0; i < ch->n_ids; i++) {
        logits[ch->ids[i]] -= (float)r->frequency_penalty;
        bool is_first = true;
        for (int64_t j = 0; j < i && is_first && r->presence_penalty != 0; j++) is_first = ch->ids[j] != ch->ids[i];
        if (is_first) logits[ch->ids[i]] -= (float)r->presence_penalty;
    }
}

static void on_logits(void *user, float *logits)
{
    choice *ch = user;
    const ag_api_request *r = &ch->of->request;
    for (int i = 0; i < r->n_biases; i++)
        if (r->biases[i].id < ch->of->server->o.model->d.V) logits[r->biases[i].id] += r->biases[i].bias;
    penalize(ch, logits);
    if (ch->constraint) ag_constraint_mask(ch->constraint, logits);
}

/* ---- the end ----------------------------------------------------------------------------------------------------------------------- */
static void log_call(const call *c, int status, int64_t n_new, int64_t n_reused)
{
    if (!c->server->o.log) return;
    int64_t n_prompt = 0;
    for (int i = 0; i < c->n_prompts; i++) n_prompt += c->prompt[i].n;
    char line[256];
    snprintf(line, sizeof line, "%s %s %d: %lld + %lld tokens (%lld reused), %.2f s", c->head.id, c->head.model, status, (long long)n_prompt,
             (long long)n_new, (long long)n_reused, (double)(ag_clock_ns() - c->start_ns) * 1e-9);
    c->server->o.log(line);
}

static void write_usage(const call *c, ag_json_writer *w)
{
    int64_t n_prompt = 0, n_new = 0, n_reused = 0;
    for (int i = 0; i < c->n_prompts; i++) n_prompt += c->prompt[i].n;
    for (int64_t i = 0; i < c->n_choices; i++) {
        n_new += c->choices[i].n_new;
        if (i % c->request.n == 0) n_reused += c->choices[i].n_reused; /* of each prompt's first answer */
    }
    ag_api_usage_write(w, n_prompt, n_new, n_reused);
}

static void end_stream(call *c, const char *failure)
{
    ag_str_clear(&c->out);
    if (failure) {
        ag_str_add(&c->out, "data: ");
        ag_api_error_write(&c->out, 500, "server_error", failure);
        ag_str_add(&c->out, "\n\n");
    } else if (c->request.include_usage) {
        ag_str_add(&c->out, "data: ");
        ag_json_writer w = {.out = &c->out, .indent = -1};
        ag_api_begin(&w, &c->head, true);
        ag_jw_end(&w);
        write_usage(c, &w);
        ag_jw_end(&w);
        ag_str_add(&c->out, "\n\n");
    }
    ag_str_add(&c->out, "data: [DONE]\n\n");
    ag_http_write(c->exchange, c->out.text, c->out.n);
    ag_http_end(c->exchange);
}

static void reply_whole(call *c)
{
    ag_str_clear(&c->out);
    ag_json_writer w = {.out = &c->out, .indent = -1};
    ag_api_begin(&w, &c->head, false);
    for (int64_t i = 0; i < c->n_choices; i++) {
        choice *ch = &c->choices[i];
        ag_str text = {0};
        if (c->request.echo) ag_str_add_n(&text, c->prompt[i / c->request.n].text, c->prompt[i / c->request.n].n_text);
        ag_str_add_n(&text, text_of(ch), ch->calls.n ? ch->calls.n_content : ch->text.text.n);
        ag_api_choice_write(&w, &c->head, i, &(ag_api_piece){.text = text.text, .n = text.n, .logprobs = c->request.n_top >= 0 ? ch->logprobs : NULL,
                            .n_logprobs = ch->n_logprobs, .calls = &ch->calls, .call_ids = c->call_ids + (uint64_t)i, .finish = ch->finish}, false);
        ag_str_free(&text);
    }
    ag_jw_end(&w);
    write_usage(c, &w);
    ag_jw_end(&w);
    ag_http_reply(c->exchange, 200, "application/json", c->out.text, c->out.n);
}

/* All choices have ended. */
static void finish_call(call *c)
{
    ag_http_exchange *x = c->exchange;
    int64_t n_new = 0, n_reused = 0;
    for (int64_t i = 0; i < c->n_choices; i++) n_new += c->choices[i].n_new, n_reused += c->choices[i].n_reused;
    ag_api_observe(c->server, &c->server->whole, (double)(ag_clock_ns() - c->start_ns) * 1e-9);
    const bool stopping = strcmp(c->error, "stopping") == 0;
    const int status = c->was_given_up ? CLIENT_GONE : !*c->error ? 200 : stopping ? 503 : 500;
    if (c->was_given_up) ag_api_count(c->server, CLIENT_GONE);
    if (c->has_begun) {
        if (!c->was_given_up) ag_api_count(c->server, 200);
        end_stream(c, stopping ? "the server is shutting down" : *c->error ? c->error : NULL);
    } else if (c->was_given_up) {
        ag_http_reply(x, 500, "text/plain", "", 0); /* nobody reads it */
    } else if (status != 200) {
        ag_api_refuse(c->server, x, status, stopping ? "shutting_down" : "server_error", stopping ? "the server is shutting down" : c->error);
    } else {
        ag_api_count(c->server, 200);
        reply_whole(c);
    }
    log_call(c, status, n_new, n_reused);
    ag_http_on_gone(x, NULL, NULL);
    ag_http_release(x); /* may free the call */
}

static const char *finish_of(const choice *ch, ag_batcher_end end)
{
    if (ch->calls.n > 0) return "tool_calls";
    return end == AG_END_LENGTH && !ch->text.stopped ? "length" : "stop";
}

static void on_end(void *user, const ag_batcher_result *result)
{
    choice *ch = user;
    call *c = ch->of;
    ch->n_new = result->n_new;
    ch->n_reused = result->n_reused;
    if (result->end == AG_END_FAILED) snprintf(c->error, sizeof c->error, "%s", result->text ? result->text : "the engine failed");
    if (result->end == AG_END_STOPPING) snprintf(c->error, sizeof c->error, "stopping");
    if (result->end == AG_END_CANCELLED) c->was_given_up = true;
    const char *broken = ch->constraint ? ag_constraint_error(ch->constraint) : NULL;
    if (broken) snprintf(c->error, sizeof c->error, "%s", broken);
    ag_answer_text_end(&ch->text);
    if (c->with_tools && result->end <= AG_END_CALLER) ag_tool_calls_parse(&ch->calls, c->server->call_style, text_of(ch), ch->text.text.n);
    ch->finish = finish_of(ch, result->end);
    if (c->request.stream && !*c->error && !c->was_given_up) {
        send_text(ch, ch->calls.n ? ch->calls.n_content : ch->text.certain);
        const bool wants_logprobs = c->request.n_top >= 0;
        if (ch->calls.n) send_event(ch, &(ag_api_piece){.calls = &ch->calls, .call_ids = c->call_ids + (uint64_t)ch->index});
        send_event(ch, &(ag_api_piece){.logprobs = wants_logprobs ? ch->logprobs : NULL, .finish = ch->finish});
    }
    if (--c->n_left == 0) finish_call(c);
}

/* ---- the beginning (the server's thread) --------------------------------------------------------------------------------------------- */
static ag_status encode_ids(call *c, int i, const json_t *list)
{
    c->prompt[i].n = (int64_t)json_array_size(list);
    c->prompt[i].ids = ag_arena_array(&c->arena, json_array_size(list) + 1, sizeof(int32_t));
    for (size_t k = 0; k < json_array_size(list); k++) c->prompt[i].ids[k] = (int32_t)json_integer_value(json_array_get(list, k));
    ag_str text = {0};
    if (c->request.echo) ag_tokenizer_decode(c->server->o.text->tokenizer, c->prompt[i].ids, (size_t)c->prompt[i].n, false, &text);
    c->prompt[i].text = ag_arena_strndup(&c->arena, text.text ? text.text : "", text.n);
    c->prompt[i].n_text = text.n;
    ag_str_free(&text);
    return AG_OK;
}

static ag_status encode_prompts(call *c, ag_err *err)
{
    const ag_api_request *r = &c->request;
    const ag_model_text *text = c->server->o.text;
    if (r->is_chat) {
        c->n_prompts = 1;
        return ag_chat_prompt_encode(&c->prompt[0].ids, &c->prompt[0].n, text,
                                     &(ag_chat_render_args){.messages = r->messages, .tools = r->tools, .variables = r->template_values,
                                                            .add_generation_prompt = true}, &c->arena, err);
    }
    c->n_prompts = r->n_prompts;
    for (int i = 0; i < r->n_prompts; i++) {
        const json_t *prompt = r->prompts[i];
        if (!json_is_string(prompt)) {
            AG_TRY(encode_ids(c, i, prompt));
            continue;
        }
        c->prompt[i].text = json_string_value(prompt);
        c->prompt[i].n_text = json_string_length(prompt);
        AG_TRY(ag_text_prompt_encode(&c->prompt[i].ids, &c->prompt[i].n, text, c->prompt[i].text, c->prompt[i].n_text, true, &c->arena, err));
    }
    return AG_OK;
}

static ag_status make_grammar(call *c, ag_err *err)
{
    const ag_api_request *r = &c->request;
    if (r->format == AG_FORMAT_JSON_OBJECT) return ag_grammar_of_any_object(&c->grammar, err);
    if (r->format == AG_FORMAT_JSON_SCHEMA) return ag_grammar_of_schema(&c->grammar, r->schema, err);
    if (!r->tools || r->tool_choice == AG_TOOLS_AUTO) return AG_OK;
    return ag_grammar_of_call(&c->grammar, r->tools, r->tool_choice == AG_TOOLS_NAMED ? r->tool_name : NULL, c->server->call_style, err);
}

static ag_status prepare(call *c, ag_err *err)
{
    const ag_api_request *r = &c->request;
    const ag_api_server *s = c->server;
    if (r->tools && s->call_style == AG_CALLS_NONE)
        return ag_fail(err, AG_E_UNSUPPORTED, "'tools': this model's chat template takes none, or writes calls in a form that is not known "
                       "here (known are those of Hermes and Qwen, Llama 3, Mistral and Granite)");
    c->with_tools = r->tools != NULL;
    AG_TRY(make_grammar(c, err));
    AG_TRY(encode_prompts(c, err));
    c->n_choices = c->n_left = c->n_prompts * r->n;
    c->choices = calloc((size_t)c->n_choices, sizeof *c->choices);
    if (!c->choices) ag_out_of_memory((size_t)c->n_choices * sizeof *c->choices);
    const int64_t most_tokens = r->max_tokens > 0 ? r->max_tokens : s->o.context;
    if (r->n_top >= 0 && (r->n_top + 1) * c->n_choices > AG_API_MAX_LOGPROBS / most_tokens)
        return ag_fail(err, AG_E_USAGE, "%lld answers of %lld tokens with %lld log-probabilities each are more than the %d that one reply may have; ask for fewer",
                       (long long)c->n_choices, (long long)most_tokens, (long long)r->n_top + 1, AG_API_MAX_LOGPROBS);
    uint64_t seed = r->sampling.seed;
    if (!r->has_seed && getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) seed = ag_clock_ns();
    c->call_ids = ag_clock_ns();
    for (int64_t i = 0; i < c->n_choices; i++) {
        choice *ch = &c->choices[i];
        const int64_t n_prompt = c->prompt[i / r->n].n, left = s->o.context - n_prompt;
        ch->of = c;
        ch->index = i;
        ag_answer_text_init(&ch->text, s->o.text->tokenizer, !c->with_tools, r->stops, r->n_stops);
        if (c->grammar) ch->constraint = ag_constraint_create(c->grammar, s->tokens);
        ch->job.request = (ag_batcher_request){
            .prompt = c->prompt[i / r->n].ids, .n_prompt = n_prompt, .adapter = c->adapter, .sampling = r->sampling, .ignore_eos = r->ignore_eos && !ch->constraint,
            .max_new_tokens = r->max_tokens > 0 ? r->max_tokens : left > 0 ? left : 1, .n_top = (int)r->n_top,
            .on_logits = r->n_biases || r->frequency_penalty != 0 || r->presence_penalty != 0 || ch->constraint ? on_logits : NULL,
            .on_token = on_token, .on_end = on_end, .user = ch};
        ch->job.request.sampling.seed = seed + (uint64_t)(i % r->n);
    }
    return AG_OK;
}

static ag_status submit(call *c, ag_err *err)
{
    ag_batcher_job **jobs = ag_arena_array(&c->arena, (size_t)c->n_choices, sizeof *jobs);
    for (int64_t i = 0; i < c->n_choices; i++) jobs[i] = &c->choices[i].job;
    return ag_batcher_submit(c->server->engine, jobs, c->n_choices, err);
}

void ag_api_call_begin(ag_api_server *s, ag_http_exchange *x, bool is_chat)
{
    call *c = calloc(1, sizeof *c);
    if (!c) ag_out_of_memory(sizeof *c);
    c->server = s;
    c->exchange = x;
    c->start_ns = ag_clock_ns();
    ag_http_attach(x, free_call, c);
    size_t n;
    const char *body = ag_http_body(x, &n);
    ag_err err;
    ag_status status = ag_api_request_parse(&c->request, is_chat, body, n, &err);
    ag_http_drop_body(x);
    if (!status) {
        c->adapter = ag_api_find_adapter(s, c->request.model);
        if (c->adapter < -1) {
            snprintf(err.text, sizeof err.text, "the model '%.200s' does not exist here; GET /v1/models lists what does", c->request.model);
            ag_api_refuse(s, x, 404, "model_not_found", err.text);
            return;
        }
        ag_api_head_init(&c->head, is_chat, ag_api_adapter_name(s, c->adapter), s->o.text->tokenizer);
        status = prepare(c, &err);
    }
    const bool was_submitted = !status;
    if (!status) {
        /* From here on the engine's thread may answer at any time. */
        ag_http_hold(x);
        status = submit(c, &err);
        if (!status) {
            ag_http_on_gone(x, on_gone, c);
            return;
        }
        ag_http_release(x);
    }
    const int code = ag_api_status_of(s, status);
    if (code == 429 || code == 503) ag_http_retry_after(x, 1);
    ag_api_refuse(s, x, code, was_submitted && status == AG_E_DATA ? "context_length_exceeded" : status == AG_E_BUSY ? "overloaded" : NULL, err.text);
}
