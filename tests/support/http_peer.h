/* The other end of an HTTP connection, for tests: raw bytes out, answers parsed. */
#ifndef AG_TEST_HTTP_PEER_H
#define AG_TEST_HTTP_PEER_H

#include "base/str.h"

#include <jansson.h>

int http_peer_connect(int64_t port); /* a socket to 127.0.0.1 that gives up after 20 s of silence */
void http_peer_send(int fd, const char *bytes, size_t n); /* whatever the server thinks of it */

typedef struct {
    int status;  /* 0: no answer came */
    ag_str head; /* headers as they came */
    ag_str body; /* chunks put together */
} http_answer;
/* One answer from the socket, which may then be used again. */
http_answer http_peer_read(int fd);
void http_answer_free(http_answer *a);

/* A request of its own connection. body NULL: GET. headers: more lines, each with its CRLF, or NULL. */
http_answer http_peer_ask(int64_t port, const char *path, const char *body, const char *headers);
/* The same for JSON: fails the test where status or kind differ; the caller frees the value. */
json_t *http_peer_json(int64_t port, const char *path, const char *body, int status);
/* Value at a path like "choices.0.message.content"; NULL: nothing there. */
json_t *json_at(json_t *root, const char *path);
const char *json_text(json_t *root, const char *path); /* fails the test where there is none */

#endif
