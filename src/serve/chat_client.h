/* One question to a server of the OpenAI protocol, over libcurl. */
#ifndef AG_CHAT_CLIENT_H
#define AG_CHAT_CLIENT_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *base_url, *model; /* "http://127.0.0.1:8000/v1", without '/' at the end */
    const char *api_key;          /* NULL or empty: none */
    double timeout_s;
    bool stream;
    int64_t max_tokens;
    double temperature;
} ag_chat_client;

typedef struct {
    ag_str text, reasoning;
    char finish[32];                         /* empty: not told */
    int64_t input_tokens, output_tokens, total_tokens; /* -1: not told */
    double latency_ms, first_token_ms;       /* the latter < 0: not streamed, or no text came */
    ag_str raw;                              /* the answer's JSON; streamed: {"chunks": […]} */
} ag_chat_reply;

/* system may be NULL. AG_E_IO: no connection, time out, or a status other than 200 (with the server's own sentence); AG_E_FORMAT: the
 * answer is not one of the protocol. latency and raw are filled then, too, as far as they came. */
AG_MUST_USE ag_status ag_chat_client_ask(ag_chat_reply *out, const ag_chat_client *client, const char *system, const char *prompt, ag_err *err);
void ag_chat_reply_free(ag_chat_reply *reply);

#endif
