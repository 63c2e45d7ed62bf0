#define _GNU_SOURCE
#include "support/http_peer.h"

#include "base/json.h"
#include "support/cmocka_all.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

int http_peer_connect(int64_t port)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) fail_msg("port %d cannot be reached", (int)port);
    return fd;
}

void http_peer_send(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        bytes += sent;
        n -= (size_t)sent;
    }
}

static bool read_line(int fd, ag_str *line)
{
    ag_str_clear(line);
    ag_str_add(line, "");
    for (char c; recv(fd, &c, 1, 0) == 1;) {
        ag_str_add_char(line, c);
        if (c == '\n') return true;
    }
    return false;
}

static bool read_bytes(int fd, ag_str *out, size_t n)
{
    char buffer[4096];
    while (n > 0) {
        const ssize_t got = recv(fd, buffer, n < sizeof buffer ? n : sizeof buffer, 0);
        if (got <= 0) return false;
        ag_str_add_n(out, buffer, (size_t)got);
        n -= (size_t)got;
    }
    return true;
}

http_answer http_peer_read(int fd)
{
    http_answer a = {0};
    ag_str line = {0};
    size_t length = 0;
    bool chunked = false;
    if (!read_line(fd, &line) || sscanf(line.text, "HTTP/1.%*c %d", &a.status) != 1) {
        ag_str_free(&line);
        return (http_answer){0};
    }
    while (read_line(fd, &line) && strcmp(line.text, "\r\n") != 0) {
        ag_str_add(&a.head, line.text);
        if (strncasecmp(line.text, "Content-Length:", 15) == 0) length = strtoul(line.text + 15, NULL, 10);
        if (strncasecmp(line.text, "Transfer-Encoding: chunked", 26) == 0) chunked = true;
    }
    ag_str_add(&a.body, "");
    if (!chunked) read_bytes(fd, &a.body, length);
    while (chunked && read_line(fd, &line)) {
        const size_t n = strtoul(line.text, NULL, 16);
        read_bytes(fd, &a.body, n);
        read_line(fd, &line);
        if (n == 0) break;
    }
    ag_str_free(&line);
    return a;
}

void http_answer_free(http_answer *a)
{
    ag_str_free(&a->head);
    ag_str_free(&a->body);
}

http_answer http_peer_ask(int64_t port, const char *path, const char *body, const char *headers)
{
    ag_str request = {0};
    ag_str_printf(&request, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s", body ? "POST" : "GET", path, (int)port, headers ? headers : "");
    if (body) ag_str_printf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    ag_str_add(&request, "Connection: close\r\n\r\n");
    if (body) ag_str_add(&request, body);
    const int fd = http_peer_connect(port);
    http_peer_send(fd, request.text, request.n);
    http_answer a = http_peer_read(fd);
    close(fd);
    ag_str_free(&request);
    return a;
}

json_t *http_peer_json(int64_t port, const char *path, const char *body, int status)
{
    ag_err err;
    json_t *value;
    http_answer a = http_peer_ask(port, path, body, NULL);
    if (a.status != status) fail_msg("%s: status %d for %s: %s", path, a.status, body ? body : "GET", a.body.text ? a.body.text : "");
    if (ag_json_parse(&value, a.body.text, a.body.n, "answer", &err)) fail_msg("%s: %s", err.text, a.body.text);
    http_answer_free(&a);
    return value;
}

json_t *json_at(json_t *root, const char *path)
{
    char key[64];
    while (root && *path) {
        size_t n = strcspn(path, ".");
        assert_true(n < sizeof key);
        memcpy(key, path, n);
        key[n] = 0;
        root = json_is_array(root) ? json_array_get(root, strtoul(key, NULL, 10)) : json_object_get(root, key);
        path += n + (path[n] == '.');
    }
    return root;
}

const char *json_text(json_t *root, const char *path)
{
    const char *text = json_string_value(json_at(root, path));
    if (!text) {
        char *all = json_dumps(root, 0);
        fail_msg("no text at %s in %s", path, all);
    }
    return text;
}
