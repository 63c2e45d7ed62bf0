/* HTTP over libmicrohttpd: one thread for all connections, bounded in every direction, answers from any thread.
 *
 *     ag_http_server *s;
 *     AG_TRY(ag_http_server_start(&s, &(ag_http_options){.host = "127.0.0.1", .port = 8000, .handle = handle, .user = app}, err));
 *     …
 *     ag_http_server_stop(&s);
 *
 *     static void handle(void *app, ag_http_exchange *x)       // on the server's thread; must not block
 *     {
 *         if (!strcmp(ag_http_path(x), "/health")) { ag_http_reply(x, 200, "application/json", "{}", 2); return; }
 *         ag_http_hold(x);                                      // answered later, from another thread, which releases it
 *     }
 *
 * A client that went away, or that reads so slowly that more than max_pending bytes wait for it, is "gone": on_gone is called once
 * and whatever is written afterwards is dropped. A client must send a request whole within request_seconds and read an answer that
 * is complete within reply_seconds; otherwise its connection is closed.
 *
 * A server that listens on a loopback address answers only requests whose Host is one, too, and no server answers a request that a
 * browser sent for a page of another origin (403): a web site must not reach a server that its visitor runs. */
#ifndef AG_HTTP_SERVER_H
#define AG_HTTP_SERVER_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ag_http_server ag_http_server;
typedef struct ag_http_exchange ag_http_exchange;

typedef struct {
    const char *host;          /* an address or a name; NULL: 127.0.0.1 */
    int64_t port;              /* 0: any that is free */
    size_t max_body, max_head; /* bytes of a request's body; of its line and headers */
    size_t max_bodies;         /* bytes of all bodies together that are being received; more: 503 */
    size_t max_pending;        /* bytes of an answer that wait for their reader */
    int64_t max_connections;
    int64_t request_seconds, reply_seconds;
    const char *cors_origin;   /* answers may be read by pages of this origin ("*": of any); NULL: by none */
    void (*handle)(void *user, ag_http_exchange *x);
    /* Refusals that come before handle (413 …): appends their body to *out, JSON. NULL: the sentence as text. */
    void (*refuse)(void *user, int status, const char *sentence, ag_str *out);
    void *user;
} ag_http_options;
/* Fills what is 0 with its default. */
void ag_http_options_default(ag_http_options *o);

/* AG_E_IO names host and port where they cannot be listened on. */
AG_MUST_USE ag_status ag_http_server_start(ag_http_server **out, const ag_http_options *options, ag_err *err);
int64_t ag_http_server_port(const ag_http_server *server);
int64_t ag_http_server_connections(const ag_http_server *server);
void ag_http_server_quiesce(ag_http_server *server); /* takes no new connections; those that are there go on */
int64_t ag_http_server_open_exchanges(ag_http_server *server); /* requests whose answer is not written to its end */
void ag_http_server_close_all(ag_http_server *server); /* every open exchange is gone; NULL is none */
void ag_http_server_stop(ag_http_server **server);   /* closes what is open */

/* In handle only. */
const char *ag_http_method(const ag_http_exchange *x);
const char *ag_http_path(const ag_http_exchange *x);
const char *ag_http_header(const ag_http_exchange *x, const char *name); /* NULL: not there */
const char *ag_http_body(const ag_http_exchange *x, size_t *n);
void ag_http_drop_body(ag_http_exchange *x); /* it is read; its memory can go */

/* From any thread that holds the exchange (handle does while it runs). */
void ag_http_hold(ag_http_exchange *x);
void ag_http_release(ag_http_exchange *x);
/* `release` is called with `data` when nobody holds the exchange any more. */
void ag_http_attach(ag_http_exchange *x, void (*release)(void *), void *data);
void ag_http_on_gone(ag_http_exchange *x, void (*on_gone)(void *), void *user); /* called at once where it is gone already */
void ag_http_reply(ag_http_exchange *x, int status, const char *type, const char *body, size_t n);
void ag_http_begin(ag_http_exchange *x, int status, const char *type); /* then pieces, then the end */
void ag_http_write(ag_http_exchange *x, const char *bytes, size_t n);
void ag_http_end(ag_http_exchange *x);
void ag_http_retry_after(ag_http_exchange *x, int seconds); /* before reply */

#endif
