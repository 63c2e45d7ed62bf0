#define _GNU_SOURCE
#include "serve/watch_server.h"

#include "base/fs.h"
#include "base/json.h"
#include "serve/watch_page.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 20 };

struct ag_watch_server {
    const ag_watch_run *runs;
    size_t n_runs;
    ag_http_server *http;
};

static void reply(ag_http_exchange *x, int status, ag_str *out)
{
    ag_http_reply(x, status, "application/json", out->text, out->n);
    ag_str_free(out);
}

static void refuse(ag_http_exchange *x, int status, const char *sentence)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "error", sentence);
    ag_jw_end(&w);
    reply(x, status, &out);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */
/* Whole lines from *offset on; *offset moves behind them. The caller frees *bytes. */
static size_t read_lines(char **bytes, uint64_t *offset, bool *restarted, const char *path)
{
    struct stat st;
    size_t n = 0;
    *bytes = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        *restarted = *offset > (uint64_t)st.st_size;
        if (*restarted) *offset = 0;
        *bytes = malloc(MOST_BYTES);
        if (!*bytes) ag_out_of_memory(MOST_BYTES);
        const ssize_t got = pread(fd, *bytes, MOST_BYTES, (off_t)*offset);
        const char *end = got > 0 ? memrchr(*bytes, '\n', (size_t)got) : NULL; /* the last line may still be being written */
        n = end ? (size_t)(end - *bytes) + 1 : got == MOST_BYTES ? MOST_BYTES : 0;
    }
    close(fd);
    *offset += n;
    return n;
}

static void add_lines(ag_json_writer *w, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t n_line = end ? (size_t)(end - text) - at : n - at;
        json_t *line = NULL;
        ag_err ignored; /* what is no JSON is not shown */
        if (n_line > 0 && ag_json_parse_nan(&line, text + at, n_line, "metrics", &ignored) == AG_OK && json_is_object(line))
            ag_jw_value(w, NULL, line);
        ag_json_free(&line);
        at += n_line + 1;
    }
}

static void handle_run(ag_watch_server *s, ag_http_exchange *x, const char *rest)
{
    char *slash, *end, *text;
    const unsigned long long run = strtoull(rest, &slash, 10);
    if (rest[0] < '0' || rest[0] > '9' || *slash != '/' || slash[1] < '0' || slash[1] > '9' || run >= s->n_runs) {
        refuse(x, 404, "there is no such run; GET /runs lists them");
        return;
    }
    uint64_t offset = strtoull(slash + 1, &end, 10);
    if (*end || offset > INT64_MAX) {
        refuse(x, 404, "the offset must be a number of bytes");
        return;
    }
    bool restarted = false;
    const size_t n = read_lines(&text, &offset, &restarted, s->runs[run].metrics);
    ag_str out = {0};
    ag_json_writer w = {.out = &out, .indent = -1};
    ag_jw_object(&w, NULL);
    ag_jw_uint(&w, "next", offset);
    if (restarted) ag_jw_bool(&w, "restarted", true);
    ag_jw_array(&w, "lines");
    add_lines(&w, text, n);
    ag_jw_end(&w);
    ag_jw_end(&w);
    free(text);
    reply(x, 200, &out);
}

static void handle_list(ag_watch_server *s, ag_http_exchange *x)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out, .indent = -1};
    ag_jw_object(&w, NULL);
    ag_jw_array(&w, "runs");
    for (size_t i = 0; i < s->n_runs; i++) ag_jw_string(&w, NULL, s->runs[i].name);
    ag_jw_end(&w);
    ag_jw_end(&w);
    reply(x, 200, &out);
}

/* ---- the server -------------------------------------------------------------------------------------------------- */
static void handle(void *user, ag_http_exchange *x)
{
    ag_watch_server *s = user;
    const char *path = ag_http_path(x);
    if (strcmp(ag_http_method(x), "GET") != 0 && strcmp(ag_http_method(x), "HEAD") != 0)
        refuse(x, 405, "only GET is answered here");
    else if (strcmp(path, "/") == 0) ag_http_reply(x, 200, "text/html; charset=utf-8", ag_watch_page, ag_watch_page_bytes);
    else if (strcmp(path, "/runs") == 0) handle_list(s, x);
    else if (ag_str_starts(path, "/runs/")) handle_run(s, x, path + strlen("/runs/"));
    else refuse(x, 404, "there is nothing here; the page is at /");
}

ag_status ag_watch_server_start(ag_watch_server **out, const ag_watch_run *runs, size_t n_runs, const char *host, int64_t port,
                                ag_err *err)
{
    ag_watch_server *s = calloc(1, sizeof *s);
    if (!s) ag_out_of_memory(sizeof *s);
    s->runs = runs;
    s->n_runs = n_runs;
    *out = s;
    const ag_status status = ag_http_server_start(
        &s->http,
        &(ag_http_options){.host = host, .port = port, .max_body = 1024, .max_connections = 64, .handle = handle, .user = s},
        err);
    if (status) {
        free(s);
        *out = NULL;
    }
    return status;
}

int64_t ag_watch_server_port(const ag_watch_server *s) { return ag_http_server_port(s->http); }

void ag_watch_server_stop(ag_watch_server **server)
{
    if (!*server) return;
    ag_http_server_stop(&(*server)->http);
    free(*server);
    *server = NULL;
}
