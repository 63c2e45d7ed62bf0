/* What api_server.c and api_call.c share. */
#ifndef AG_API_INTERNAL_H
#define AG_API_INTERNAL_H

#include "serve/api_server.h"
#include "serve/batcher.h"
#include "serve/openai_request.h"
#include "serve/token_table.h"
#include "serve/tool_calls.h"

#include <pthread.h>
#include <stdatomic.h>

enum { AG_API_BUCKETS = 14 };
/* A histogram of seconds, as Prometheus counts them. */
typedef struct {
    uint64_t below[AG_API_BUCKETS], n;
    double sum;
} ag_api_histogram;

struct ag_api_server {
    ag_api_options o;
    ag_batcher *engine;
    ag_http_server *http;
    ag_token_table *tokens;
    const ag_layer_lora **adapters;
    unsigned char (*keys)[32];
    size_t n_keys;
    ag_call_style call_style;
    int64_t started;
    atomic_bool draining;
    pthread_mutex_t lock; /* of the counters */
    uint64_t by_status[6]; /* 0: other, 1xx … 5xx */
    uint64_t gone;
    ag_api_histogram first_token, whole;
};

/* -2: there is no such model; -1: the base. */
int ag_api_find_adapter(const ag_api_server *s, const char *name);
const char *ag_api_adapter_name(const ag_api_server *s, int adapter);

/* Replies with an error and counts it. */
void ag_api_refuse(ag_api_server *s, ag_http_exchange *x, int status, const char *code, const char *sentence);
void ag_api_count(ag_api_server *s, int status);
void ag_api_observe(ag_api_server *s, ag_api_histogram *h, double seconds);
/* Takes over the exchange's request and answers it. */
void ag_api_call_begin(ag_api_server *s, ag_http_exchange *x, bool is_chat);
/* The status for a failure that a request caused. */
int ag_api_status_of(const ag_api_server *s, ag_status status);

void ag_api_metrics_write(ag_api_server *s, ag_str *out);

#endif
