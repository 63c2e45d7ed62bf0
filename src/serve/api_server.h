/* The server: routes, models by name, keys, counters; answers through the engine. docs/serving.md describes what clients see.
 *
 *     ag_api_server *s;
 *     AG_TRY(ag_api_server_start(&s, &(ag_api_options){.model = m, .text = text, .backend = &be, .context = 4096, …}, err));
 *     … until a signal comes …
 *     ag_api_server_drain(s, 30);
 *     ag_api_server_stop(&s);
 */
#ifndef AG_API_SERVER_H
#define AG_API_SERVER_H

#include "adapter/peft_io.h"
#include "data/model_text.h"
#include "serve/http_server.h"

typedef struct {
    const char *name;
    const ag_peft *peft;
} ag_api_adapter;

typedef struct {
    const ag_model *model;         /* all of these are borrowed */
    const ag_model_text *text;
    const ag_backend *backend;
    ag_compute compute;
    const char *name;              /* of the base in /v1/models */
    const ag_api_adapter *adapters;
    int64_t n_adapters;
    int64_t context, n_slots, n_kept, max_waiting;
    const char *keys;              /* a line each; NULL: everybody may ask */
    size_t n_keys_bytes;
    const char *version;
    ag_http_options http;          /* handle, refuse and user are the server's */
    void (*log)(const char *line); /* a line per request; NULL: none */
} ag_api_options;

typedef struct ag_api_server ag_api_server;
AG_MUST_USE ag_status ag_api_server_start(ag_api_server **out, const ag_api_options *options, ag_err *err);
int64_t ag_api_server_port(const ag_api_server *server);
/* Takes no new requests (503), waits at most so many seconds for those that run. */
void ag_api_server_drain(ag_api_server *server, int64_t seconds);
void ag_api_server_stop(ag_api_server **server);

#endif
