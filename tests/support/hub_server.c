#define _GNU_SOURCE
#include "support/hub_server.h"

#include "base/digest.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_ASKED = 4000, MOST_CONNECTIONS = 4000 };

struct hub_server {
    const hub_file *files;
    int n_files;
    hub_hook *hook;
    void *user;
    int sockets[2], stop_pipe[2]; /* endpoint and store */
    char urls[2][64];
    pthread_t thread, connections[MOST_CONNECTIONS];
    int n_connections;
    pthread_mutex_t mutex;
    hub_asked *asked;
    int n_asked;
};

typedef struct {
    hub_server *server;
    int fd;
    bool is_store;
} connection;

const char *hub_file_etag(const hub_file *file, char out[65])
{
    if (file->is_lfs) {
        memcpy(out, ag_sha256_bytes(file->bytes, file->n).hex, 65);
    } else {
        ag_git_id_state *state = ag_git_id_begin(file->n);
        ag_git_id_add(state, file->bytes, file->n);
        memcpy(out, ag_git_id_end(state).hex, 41);
    }
    return out;
}

static const hub_file *file_of(const hub_server *s, const char *name)
{
    for (int i = 0; i < s->n_files; i++)
        if (strcmp(s->files[i].name, name) == 0) return &s->files[i];
    return NULL;
}

__attribute__((format(printf, 2, 3))) static void add_header(hub_reply *r, const char *format, ...)
{
    va_list args;
    const size_t n = strlen(r->headers);
    va_start(args, format);
    vsnprintf(r->headers + n, sizeof r->headers - n, format, args);
    va_end(args);
    strcat(r->headers, "\r\n");
}

static void fail_with(hub_reply *r, int status, const char *code)
{
    r->status = status;
    add_header(r, "X-Error-Code: %s", code);
    add_header(r, "X-Repo-Commit: " HUB_COMMIT);
}

static void give_bytes(hub_reply *r, const hub_asked *asked, const hub_file *file)
{
    size_t from = 0;
    if (asked->range[0]) from = strtoul(asked->range + strlen("bytes="), NULL, 10);
    if (asked->range[0] && from >= file->n) {
        r->status = 416;
        return;
    }
    if (asked->range[0]) {
        r->status = 206;
        add_header(r, "Content-Range: bytes %zu-%zu/%zu", from, file->n - 1, file->n);
    }
    r->n = file->n - from;
    memcpy(r->body, file->bytes + from, r->n);
}

static void list_files(const hub_server *s, hub_reply *r)
{
    ag_str text = {0};
    ag_str_add(&text, "{\"id\":\"org/name\",\"sha\":\"" HUB_COMMIT "\",\"siblings\":[");
    for (int i = 0; i < s->n_files; i++) ag_str_printf(&text, "%s{\"rfilename\":\"%s\"}", i ? "," : "", s->files[i].name);
    ag_str_add(&text, "]}");
    memcpy(r->body, text.text, r->n = text.n);
    ag_str_free(&text);
}

/* "%20" to ' ', but for a '/' that was written so. */
static const hub_file *file_at(const hub_server *s, const char *path)
{
    char name[2048];
    size_t n = 0;
    for (; *path; path++) {
        unsigned code;
        if (*path == '%' && sscanf(path + 1, "%2x", &code) == 1)
            name[n++] = (char)code, path += 2;
        else
            name[n++] = *path;
    }
    name[n] = 0;
    return file_of(s, name);
}

static void answer(const hub_server *s, const hub_asked *asked, hub_reply *r)
{
    char etag[65];
    const char *at;
    r->status = 200;
    if (asked->is_store) {
        const hub_file *file = file_at(s, asked->path + strlen("/cdn/"));
        if (file)
            give_bytes(r, asked, file);
        else
            r->status = 404;
    } else if (strncmp(asked->path, "/api/", 5) == 0) {
        const char *revision = strstr(asked->path, "/revision/");
        if (!strstr(asked->path, "/org/name/"))
            fail_with(r, 404, "RepoNotFound");
        else if (!revision || (strcmp(revision + 10, "main") != 0 && strcmp(revision + 10, "v1%2Fx") != 0 && strcmp(revision + 10, HUB_COMMIT) != 0))
            fail_with(r, 404, "RevisionNotFound");
        else
            list_files(s, r);
    } else if ((at = strstr(asked->path, "/org/name/resolve/" HUB_COMMIT "/"))) {
        const hub_file *file = file_at(s, at + strlen("/org/name/resolve/" HUB_COMMIT "/"));
        if (!file) {
            fail_with(r, 404, "EntryNotFound");
            return;
        }
        add_header(r, "X-Repo-Commit: " HUB_COMMIT);
        hub_file_etag(file, etag);
        if (file->is_lfs) {
            r->status = 302;
            add_header(r, "X-Linked-Etag: \"%s\"", etag);
            add_header(r, "X-Linked-Size: %zu", file->n);
            add_header(r, "ETag: \"not-this-one\"");
            add_header(r, "Location: %s/cdn/%s", s->urls[1], file->name);
        } else {
            add_header(r, "ETag: W/\"%s\"", etag);
            give_bytes(r, asked, file);
        }
    } else {
        fail_with(r, 404, "RepoNotFound");
    }
}

/* ---- connections ------------------------------------------------------------------------------------------------------------- */
static bool send_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t put = send(fd, bytes, n, MSG_NOSIGNAL);
        if (put <= 0) return false;
        bytes += put;
        n -= (size_t)put;
    }
    return true;
}

static void take_header(const char *head, const char *name, char *out, size_t room)
{
    const char *line = strcasestr(head, name);
    out[0] = 0;
    if (line) snprintf(out, room, "%.*s", (int)strcspn(line + strlen(name), "\r\n"), line + strlen(name));
}

/* One request read and answered; false ends the connection. */
static bool serve_one(const connection *c, hub_reply *r)
{
    hub_server *s = c->server;
    char head[8192];
    size_t n = 0;
    while (n < sizeof head - 1) {
        const ssize_t got = recv(c->fd, head + n, sizeof head - 1 - n, 0);
        if (got <= 0) return false;
        head[n += (size_t)got] = 0;
        if (strstr(head, "\r\n\r\n")) break;
    }
    hub_asked asked = {.is_store = c->is_store};
    if (sscanf(head, "%7s %2047s", asked.method, asked.path) != 2) return false;
    take_header(head, "\r\nRange: ", asked.range, sizeof asked.range);
    take_header(head, "\r\nAuthorization: Bearer ", asked.token, sizeof asked.token);

    *r = (hub_reply){.length = -1, .cut_after = SIZE_MAX};
    pthread_mutex_lock(&s->mutex);
    asked.n_times = 1;
    for (int i = 0; i < s->n_asked; i++)
        asked.n_times += strcmp(s->asked[i].path, asked.path) == 0 && strcmp(s->asked[i].method, asked.method) == 0 &&
                         s->asked[i].is_store == asked.is_store;
    if (s->n_asked < MOST_ASKED) s->asked[s->n_asked++] = asked;
    answer(s, &asked, r);
    if (s->hook) s->hook(s->user, &asked, r);
    pthread_mutex_unlock(&s->mutex);

    ag_str text = {0};
    ag_str_printf(&text, "HTTP/1.1 %d Test\r\n%sContent-Length: %lld\r\n\r\n", r->status, r->headers, r->length >= 0 ? r->length : (long long)r->n);
    bool is_sent = send_all(c->fd, text.text, text.n);
    ag_str_free(&text);
    if (strcmp(asked.method, "HEAD") == 0 || !is_sent) return is_sent;
    const size_t whole = r->n < r->cut_after ? r->n : r->cut_after, first = r->stall_ms ? whole / 2 : whole;
    is_sent = send_all(c->fd, r->body, first);
    if (r->stall_ms) usleep((useconds_t)r->stall_ms * 1000);
    return is_sent && send_all(c->fd, r->body + first, whole - first) && r->cut_after == SIZE_MAX &&
           (r->length < 0 || (size_t)r->length == r->n);
}

static void *serve(void *user)
{
    connection *c = user;
    hub_reply *r = malloc(sizeof *r);
    while (serve_one(c, r)) continue;
    free(r);
    shutdown(c->fd, SHUT_RDWR);
    close(c->fd);
    free(c);
    return NULL;
}

static void *accept_all(void *user)
{
    hub_server *s = user;
    for (;;) {
        struct pollfd fds[3] = {{s->sockets[0], POLLIN, 0}, {s->sockets[1], POLLIN, 0}, {s->stop_pipe[0], POLLIN, 0}};
        poll(fds, 3, -1);
        if (fds[2].revents) return NULL;
        for (int i = 0; i < 2; i++) {
            if (!fds[i].revents) continue;
            const int fd = accept(s->sockets[i], NULL, NULL);
            if (fd < 0) continue;
            struct timeval idle = {.tv_sec = 5};
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
            connection *c = malloc(sizeof *c);
            *c = (connection){s, fd, i == 1};
            if (s->n_connections == MOST_CONNECTIONS || pthread_create(&s->connections[s->n_connections++], NULL, serve, c)) abort();
        }
    }
}

hub_server *hub_server_start(const hub_file *files, int n_files, hub_hook *hook, void *user)
{
    hub_server *s = calloc(1, sizeof *s);
    *s = (hub_server){.files = files, .n_files = n_files, .hook = hook, .user = user, .asked = calloc(MOST_ASKED, sizeof *s->asked)};
    pthread_mutex_init(&s->mutex, NULL);
    if (pipe(s->stop_pipe)) abort();
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof at;
        s->sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(s->sockets[i], (struct sockaddr *)&at, sizeof at) || listen(s->sockets[i], 64) ||
            getsockname(s->sockets[i], (struct sockaddr *)&at, &n)) abort();
        snprintf(s->urls[i], sizeof s->urls[i], "http://127.0.0.1:%d", ntohs(at.sin_port));
    }
    if (pthread_create(&s->thread, NULL, accept_all, s)) abort();
    return s;
}

void hub_server_stop(hub_server *s)
{
    if (write(s->stop_pipe[1], "x", 1) != 1) abort();
    pthread_join(s->thread, NULL);
    for (int i = 0; i < s->n_connections; i++) pthread_join(s->connections[i], NULL); /* clients have closed */
    for (int i = 0; i < 2; i++) {
        close(s->sockets[i]);
        close(s->stop_pipe[i]);
    }
    free(s->asked);
    free(s);
}

const char *hub_server_url(const hub_server *s) { return s->urls[0]; }
const char *hub_server_store_url(const hub_server *s) { return s->urls[1]; }

const hub_asked *hub_server_asked(hub_server *s, const char *begins, int n)
{
    const hub_asked *found = NULL;
    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < s->n_asked && !found; i++) {
        char line[2100];
        snprintf(line, sizeof line, "%s %s", s->asked[i].method, s->asked[i].path);
        if (ag_str_starts(line, begins) && n-- == 0) found = &s->asked[i];
    }
    pthread_mutex_unlock(&s->mutex);
    return found;
}

int hub_server_count(hub_server *s, const char *begins)
{
    int n = 0;
    while (hub_server_asked(s, begins, n)) n++;
    return n;
}
