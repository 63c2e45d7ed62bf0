/* What a client of the OpenAI protocol asks for: the bodies of /v1/chat/completions and /v1/completions, checked and with defaults.
 *
 * A key that is not known is refused with the nearest known one; what is known and cannot be done is refused by name. Keys that change
 * nothing here (user, metadata, store, service_tier, …) are taken and have no effect. */
#ifndef AG_OPENAI_REQUEST_H
#define AG_OPENAI_REQUEST_H

#include "base/arena.h"
#include "base/json.h"
#include "base/status.h"
#include "model/sampling.h"

enum {
    AG_API_MAX_STOPS = 16, AG_API_MAX_BIASES = 1024, AG_API_MAX_CHOICES = 32, AG_API_MAX_PROMPTS = 32, AG_API_MAX_MESSAGES = 4096,
    AG_API_MAX_TOOLS = 128,
    AG_API_MAX_LOGPROBS = 1 << 18 /* entries in one answer: about a hundred bytes each */
};

typedef struct {
    int32_t id;
    float bias;
} ag_api_bias;

typedef enum { AG_FORMAT_TEXT, AG_FORMAT_JSON_OBJECT, AG_FORMAT_JSON_SCHEMA } ag_api_format;
typedef enum { AG_TOOLS_AUTO, AG_TOOLS_OFF, AG_TOOLS_REQUIRED, AG_TOOLS_NAMED } ag_api_tool_choice;

typedef struct {
    ag_arena arena;
    json_t *root;
    bool is_chat;
    const char *model;             /* NULL: the server's own */

    json_t *messages;              /* chat: with contents as texts; owned */
    const json_t *tools;           /* a list, or NULL */
    const json_t *template_values; /* chat_template_kwargs: an object, or NULL */
    ag_api_tool_choice tool_choice;
    const char *tool_name;         /* of AG_TOOLS_NAMED */
    const json_t *prompts[AG_API_MAX_PROMPTS]; /* completions: each a text or a list of ids */
    int n_prompts;
    bool echo;

    int64_t max_tokens;            /* -1: as many as fit */
    int64_t n;                     /* answers to each prompt */
    int64_t n_top;                 /* alternatives with each token; -1: no log-probabilities */
    bool stream, include_usage, ignore_eos;
    ag_sampling sampling;
    bool has_seed;
    double frequency_penalty, presence_penalty;
    const char *stops[AG_API_MAX_STOPS];
    int n_stops;
    ag_api_bias *biases;
    int n_biases;
    ag_api_format format;
    const json_t *schema;          /* of AG_FORMAT_JSON_SCHEMA */
} ag_api_request;

/* AG_E_FORMAT, AG_E_USAGE or AG_E_UNSUPPORTED with a sentence for the client. Free it in any case. Keeps nothing of the bytes. */
AG_MUST_USE ag_status ag_api_request_parse(ag_api_request *r, bool is_chat, const char *body, size_t n, ag_err *err);
void ag_api_request_free(ag_api_request *r);

#endif
