#define _GNU_SOURCE
#include "serve/http_server.h"

#include "base/arena.h"
#include "base/clock.h"
#include "serve/http_guard.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WATCH_MS = 200, READ_BLOCK = 16 << 10, BACKLOG = 256 };

/* A connection as the watcher sees it. */
typedef struct connection {
    int fd;
    uint64_t since;            /* when it began to wait for a request, or when the answer was complete */
    ag_http_exchange *current; /* NULL: a request is awaited */
    struct connection *next, *previous;
} connection;

struct ag_http_exchange {
    atomic_int refs;
    ag_http_server *server;
    connection *on;            /* under the server's lock */
    atomic_bool dispatched;    /* the request is whole */

    /* The server's thread only. */
    char *method, *path;
    ag_str body;
    bool too_large, too_many;
    void (*release)(void *);
    void *attached;

    pthread_mutex_t lock;      /* of what follows */
    struct MHD_Connection *mhd; /* NULL once it is over */
    bool suspended, has_reply, queued, streams, ended, gone;
    int status, retry_after;
    const char *type;
    ag_str out;
    size_t n_sent;
    uint64_t ended_ns;
    void (*on_gone)(void *);
    void *on_gone_user;
};

struct ag_http_server {
    ag_http_options o;
    char *host;
    bool is_loopback;
    int64_t port;
    struct MHD_Daemon *daemon;
    int listen_fd;             /* after quiesce: ours to close; else -1 */
    pthread_t watcher;
    pthread_mutex_t lock;      /* of the list, and of fds against being closed */
    pthread_cond_t wake;
    bool stopping;
    connection *connections;
    atomic_long n_connections, n_open, body_bytes;
};

void ag_http_options_default(ag_http_options *o)
{
    if (!o->host) o->host = "127.0.0.1";
    if (!o->max_body) o->max_body = 8u << 20;
    if (!o->max_head) o->max_head = 32u << 10;
    if (!o->max_bodies) o->max_bodies = 64u << 20;
    if (!o->max_pending) o->max_pending = 4u << 20;
    if (!o->max_connections) o->max_connections = 256;
    if (!o->request_seconds) o->request_seconds = 30;
    if (!o->reply_seconds) o->reply_seconds = 60;
}

/* ---- exchanges ------------------------------------------------------------------------------------------------------------- */
void ag_http_hold(ag_http_exchange *x) { atomic_fetch_add(&x->refs, 1); }

void ag_http_release(ag_http_exchange *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1) return;
    if (x->release) x->release(x->attached);
    free(x->method);
    free(x->path);
    ag_str_free(&x->out);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

const char *ag_http_method(const ag_http_exchange *x) { return x->method; }
const char *ag_http_path(const ag_http_exchange *x) { return x->path; }
const char *ag_http_header(const ag_http_exchange *x, const char *name) { return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name); }

const char *ag_http_body(const ag_http_exchange *x, size_t *n)
{
    *n = x->body.n;
    return x->body.text ? x->body.text : "";
}

void ag_http_drop_body(ag_http_exchange *x)
{
    atomic_fetch_sub(&x->server->body_bytes, (long)x->body.n);
    ag_str_free(&x->body);
}

void ag_http_attach(ag_http_exchange *x, void (*release)(void *), void *data)
{
    x->release = release;
    x->attached = data;
}

/* With x->lock held. */
static void wake_up(ag_http_exchange *x)
{
    if (!x->suspended) return;
    x->suspended = false;
    MHD_resume_connection(x->mhd);
}

/* The reader is no more, or no use. Without x->lock. */
static void set_gone(ag_http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    const bool was = x->gone;
    x->gone = true;
    void (*on_gone)(void *) = was ? NULL : x->on_gone;
    ag_str_free(&x->out);
    x->n_sent = 0;
    wake_up(x);
    pthread_mutex_unlock(&x->lock);
    if (on_gone) on_gone(x->on_gone_user);
}

void ag_http_on_gone(ag_http_exchange *x, void (*on_gone)(void *), void *user)
{
    pthread_mutex_lock(&x->lock);
    x->on_gone = on_gone;
    x->on_gone_user = user;
    const bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    if (gone && on_gone) on_gone(user);
}

void ag_http_retry_after(ag_http_exchange *x, int seconds) { x->retry_after = seconds; }

static void begin(ag_http_exchange *x, int status, const char *type, bool streams)
{
    AG_ASSERT(!x->has_reply);
    x->status = status;
    x->type = type;
    x->has_reply = true;
    x->streams = streams;
}

void ag_http_reply(ag_http_exchange *x, int status, const char *type, const char *body, size_t n)
{
    pthread_mutex_lock(&x->lock);
    begin(x, status, type, false);
    if (!x->gone) ag_str_add_n(&x->out, body, n);
    x->ended = true;
    x->ended_ns = ag_clock_ns();
    wake_up(x);
    pthread_mutex_unlock(&x->lock);
}

void ag_http_begin(ag_http_exchange *x, int status, const char *type)
{
    pthread_mutex_lock(&x->lock);
    begin(x, status, type, true);
    wake_up(x);
    pthread_mutex_unlock(&x->lock);
}

void ag_http_write(ag_http_exchange *x, const char *bytes, size_t n)
{
    pthread_mutex_lock(&x->lock);
    if (!x->gone) ag_str_add_n(&x->out, bytes, n);
    const bool too_slow = x->out.n - x->n_sent > x->server->o.max_pending;
    wake_up(x);
    pthread_mutex_unlock(&x->lock);
    if (too_slow) set_gone(x);
}

void ag_http_end(ag_http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->ended = true;
    x->ended_ns = ag_clock_ns();
    wake_up(x);
    pthread_mutex_unlock(&x->lock);
}

/* ---- libmicrohttpd's side ---------------------------------------------------------------------------------------------------- */
static ssize_t read_stream(void *cls, uint64_t position, char *buffer, size_t max)
{
    (void)position;
    ag_http_exchange *x = cls;
    pthread_mutex_lock(&x->lock);
    ssize_t n = (ssize_t)(x->out.n - x->n_sent);
    if (x->gone) n = MHD_CONTENT_READER_END_WITH_ERROR;
    else if (n > 0) {
        if ((size_t)n > max) n = (ssize_t)max;
        memcpy(buffer, x->out.text + x->n_sent, (size_t)n);
        x->n_sent += (size_t)n;
        if (x->n_sent == x->out.n) {
            ag_str_clear(&x->out);
            x->n_sent = 0;
        }
    } else if (x->ended) n = MHD_CONTENT_READER_END_OF_STREAM;
    else {
        x->suspended = true;
        MHD_suspend_connection(x->mhd);
        n = 0;
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

static void add_headers(const ag_http_exchange *x, struct MHD_Response *response)
{
    MHD_add_response_header(response, "Content-Type", x->type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (ag_str_starts(x->type, "text/html"))
        MHD_add_response_header(response, "Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                                "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    if (x->server->o.cors_origin) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", x->server->o.cors_origin);
        MHD_add_response_header(response, "Access-Control-Allow-Headers", "Authorization, Content-Type");
        MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    }
    if (x->retry_after > 0) {
        char seconds[16] = {0};
        ag_http_format_int(seconds, sizeof seconds, x->retry_after);
        MHD_add_response_header(response, "Retry-After", seconds);
    }
}

/* The answer that is there, or sleep until it is. With x->lock held. */
static enum MHD_Result answer(ag_http_exchange *x)
{
    if (x->gone) return MHD_NO;
    if (!x->has_reply) {
        x->suspended = true;
        MHD_suspend_connection(x->mhd);
        return MHD_YES;
    }
    if (x->queued) return MHD_YES;
    x->queued = true;
    struct MHD_Response *response = x->streams
        ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, READ_BLOCK, read_stream, x, NULL)
        : MHD_create_response_from_buffer(x->out.n, x->out.text ? x->out.text : "", MHD_RESPMEM_MUST_COPY);
    if (!response) return MHD_NO;
    if (!x->streams) ag_str_free(&x->out);
    add_headers(x, response);
    const enum MHD_Result result = MHD_queue_response(x->mhd, (unsigned)x->status, response);
    MHD_destroy_response(response);
    return result;
}

static void refuse(ag_http_exchange *x, int status, const char *sentence)
{
    ag_str body = {0};
    if (x->server->o.refuse) x->server->o.refuse(x->server->o.user, status, sentence, &body);
    else ag_str_add(&body, sentence);
    ag_http_reply(x, status, x->server->o.refuse ? "application/json" : "text/plain; charset=utf-8", body.text, body.n);
    ag_str_free(&body);
}

static ag_http_exchange *open_exchange(ag_http_server *s, struct MHD_Connection *mhd, const char *url, const char *method)
{
    ag_http_exchange *x = calloc(1, sizeof *x);
    if (!x) ag_out_of_memory(sizeof *x);
    atomic_init(&x->refs, 1);
    x->server = s;
    x->mhd = mhd;
    x->method = strdup(method);
    x->path = strdup(url);
    if (!x->method || !x->path) ag_out_of_memory(strlen(url));
    pthread_mutex_init(&x->lock, NULL);
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    x->on = info ? info->socket_context : NULL;
    pthread_mutex_lock(&s->lock);
    if (x->on) x->on->current = x;
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_add(&s->n_open, 1);
    return x;
}

static void dispatch(ag_http_exchange *x)
{
    ag_http_server *s = x->server;
    const char *host = ag_http_header(x, "Host"), *origin = ag_http_header(x, "Origin");
    atomic_store(&x->dispatched, true);
    if (x->too_large)
        refuse(x, 413, "the request's body is larger than this server takes; start it with a larger --max-body, or send less");
    else if (x->too_many) {
        ag_http_retry_after(x, 1);
        refuse(x, 503, "the server is receiving as much as it may (--max-bodies); try again later");
    } else if (s->is_loopback && !ag_http_host_is_loopback(host))
        refuse(x, 403, "this server listens on a loopback address, but the request's Host is another name; a page of another site may "
               "have sent it");
    else if (!ag_http_origin_is_fine(origin, host, s->o.cors_origin))
        refuse(x, 403, "a page of another origin sent this request; start the server with --cors-origin to allow it");
    else if (strcmp(x->method, "OPTIONS") == 0)
        ag_http_reply(x, 204, "text/plain", "", 0);
    else
        s->o.handle(s->o.user, x);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
                                  const char *upload, size_t *n_upload, void **con_cls)
{
    (void)version;
    ag_http_server *s = cls;
    ag_http_exchange *x = *con_cls;
    if (!x) {
        *con_cls = x = open_exchange(s, mhd, url, method);
        const char *length = ag_http_header(x, "Content-Length");
        x->too_large = length && strtoull(length, NULL, 10) > s->o.max_body;
        if (!x->too_large) return MHD_YES;
    } else if (*n_upload > 0) {
        x->too_large |= *n_upload > s->o.max_body - x->body.n;
        x->too_many |= (size_t)atomic_load(&s->body_bytes) + *n_upload > s->o.max_bodies;
        if (!x->too_large && !x->too_many) {
            ag_str_add_n(&x->body, upload, *n_upload);
            atomic_fetch_add(&s->body_bytes, (long)*n_upload);
        }
        *n_upload = 0;
        return MHD_YES;
    }
    if (!atomic_load(&x->dispatched)) dispatch(x);
    pthread_mutex_lock(&x->lock);
    const enum MHD_Result result = answer(x);
    pthread_mutex_unlock(&x->lock);
    return result;
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **con_cls, enum MHD_RequestTerminationCode code)
{
    (void)mhd;
    ag_http_server *s = cls;
    ag_http_exchange *x = *con_cls;
    if (!x) return;
    *con_cls = NULL;
    pthread_mutex_lock(&s->lock);
    if (x->on) {
        x->on->current = NULL;
        x->on->since = ag_clock_ns();
        x->on = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&x->lock);
    x->mhd = NULL;
    x->suspended = false;
    pthread_mutex_unlock(&x->lock);
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK || !x->ended) set_gone(x);
    ag_http_drop_body(x);
    atomic_fetch_sub(&s->n_open, 1);
    ag_http_release(x);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **socket_context, enum MHD_ConnectionNotificationCode code)
{
    ag_http_server *s = cls;
    connection *c = *socket_context;
    pthread_mutex_lock(&s->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        c = calloc(1, sizeof *c);
        if (!c) ag_out_of_memory(sizeof *c);
        c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        c->since = ag_clock_ns();
        c->next = s->connections;
        if (c->next) c->next->previous = c;
        s->connections = c;
        atomic_fetch_add(&s->n_connections, 1);
    } else if (c) {
        if (c->next) c->next->previous = c->previous;
        *(c->previous ? &c->previous->next : &s->connections) = c->next;
        free(c);
        c = NULL;
        atomic_fetch_sub(&s->n_connections, 1);
    }
    *socket_context = c;
    pthread_mutex_unlock(&s->lock);
}

/* ---- the watcher: libmicrohttpd does not look at connections that sleep, and counts a byte a minute as activity ----------------- */
static bool peer_is_gone(int fd)
{
    char byte;
    const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

static void look_at(ag_http_server *s, connection *c, uint64_t now, ag_http_exchange **gone, int *n_gone, int max_gone)
{
    ag_http_exchange *x = c->current;
    if (!x || !atomic_load(&x->dispatched)) {
        if (now - c->since > (uint64_t)s->o.request_seconds * 1000000000u) shutdown(c->fd, SHUT_RDWR);
        return;
    }
    pthread_mutex_lock(&x->lock);
    const bool sleeps = x->suspended;
    const bool late = x->ended && now > x->ended_ns && now - x->ended_ns > (uint64_t)s->o.reply_seconds * 1000000000u;
    pthread_mutex_unlock(&x->lock);
    if (late) shutdown(c->fd, SHUT_RDWR);
    if (sleeps && *n_gone < max_gone && peer_is_gone(c->fd)) {
        ag_http_hold(x);
        gone[(*n_gone)++] = x;
    }
}

static void *watch(void *user)
{
    enum { MAX_GONE = 64 };
    ag_http_server *s = user;
    pthread_setname_np(pthread_self(), "agoge-watch");
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += WATCH_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
        pthread_cond_timedwait(&s->wake, &s->lock, &until);
        ag_http_exchange *gone[MAX_GONE];
        int n_gone = 0;
        const uint64_t now = ag_clock_ns();
        for (connection *c = s->connections; c; c = c->next) look_at(s, c, now, gone, &n_gone, MAX_GONE);
        pthread_mutex_unlock(&s->lock);
        for (int i = 0; i < n_gone; i++) {
            set_gone(gone[i]);
            ag_http_release(gone[i]);
        }
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------------------------------------------- */
static ag_status listen_on(ag_http_server *s, ag_err *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char port[16];
    ag_http_format_int(port, sizeof port, s->o.port);
    const int failed = getaddrinfo(s->host, port, &hints, &found);
    if (failed) return ag_fail(err, AG_E_IO, "--host %s: %s; give an address of this machine", s->host, gai_strerror(failed));
    s->is_loopback = ag_http_address_is_loopback(found->ai_addr);
    const unsigned v6 = found->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0;
    errno = 0;
    s->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | v6, 0, NULL, NULL,
        on_request, s, MHD_OPTION_SOCK_ADDR, found->ai_addr, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->o.max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, s->o.max_head, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->o.reply_seconds,
        MHD_OPTION_LISTEN_BACKLOG_SIZE, (unsigned)BACKLOG, MHD_OPTION_END);
    const int reason = errno;
    freeaddrinfo(found);
    if (!s->daemon) return ag_fail_errno(err, reason ? reason : EADDRINUSE, "%s:%lld cannot be listened on", s->host, (long long)s->o.port);
    s->port = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    return AG_OK;
}

ag_status ag_http_server_start(ag_http_server **out, const ag_http_options *options, ag_err *err)
{
    *out = NULL;
    ag_http_server *s = calloc(1, sizeof *s);
    if (!s) ag_out_of_memory(sizeof *s);
    s->o = *options;
    ag_http_options_default(&s->o);
    s->host = strdup(s->o.host);
    s->listen_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &clock);
    pthread_condattr_destroy(&clock);
    ag_status status = listen_on(s, err);
    if (!status) {
        const int failed = pthread_create(&s->watcher, NULL, watch, s);
        if (!failed) {
            *out = s;
            return AG_OK;
        }
        status = ag_fail_errno(err, failed, "the watching thread cannot be started");
        MHD_stop_daemon(s->daemon);
    }
    free(s->host);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    free(s);
    return status;
}

int64_t ag_http_server_port(const ag_http_server *s) { return s->port; }
int64_t ag_http_server_connections(const ag_http_server *s) { return atomic_load(&s->n_connections); }
int64_t ag_http_server_open_exchanges(ag_http_server *s) { return atomic_load(&s->n_open); }

void ag_http_server_quiesce(ag_http_server *s)
{
    if (s->listen_fd < 0) s->listen_fd = MHD_quiesce_daemon(s->daemon);
}

void ag_http_server_close_all(ag_http_server *s)
{
    if (!s) return;
    ag_http_server_quiesce(s);
    for (;;) {
        ag_http_exchange *x = NULL;
        pthread_mutex_lock(&s->lock);
        for (connection *c = s->connections; c && !x; c = c->next) {
            if (!c->current || !atomic_load(&c->current->dispatched)) continue;
            pthread_mutex_lock(&c->current->lock);
            if (c->current->suspended || !c->current->gone) ag_http_hold(x = c->current);
            pthread_mutex_unlock(&c->current->lock);
        }
        pthread_mutex_unlock(&s->lock);
        if (!x) return;
        set_gone(x);
        ag_http_release(x);
    }
}

void ag_http_server_stop(ag_http_server **server)
{
    if (!server || !*server) return;
    ag_http_server *s = *server;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->watcher, NULL);
    ag_http_server_close_all(s); /* libmicrohttpd wants no connection asleep when it stops */
    MHD_stop_daemon(s->daemon);
    if (s->listen_fd >= 0) close(s->listen_fd);
    free(s->host);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    free(s);
    *server = NULL;
}
