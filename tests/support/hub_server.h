/* A hub of one repository on 127.0.0.1, over real HTTP, which can be told to misbehave. Files of the large store (lfs) come from a second
 * port, another origin, as the hub's come from another host.
 *
 *     hub_server *s = hub_server_start(files, n, hook, user);
 *     … options.endpoint = hub_server_url(s) …
 *     hub_server_stop(s); */
#ifndef AG_TEST_HUB_SERVER_H
#define AG_TEST_HUB_SERVER_H

#include <stdbool.h>
#include <stddef.h>

#define HUB_COMMIT "0123456789abcdef0123456789abcdef01234567"

typedef struct {
    const char *name, *bytes;
    size_t n;
    bool is_lfs;
} hub_file;

typedef struct {
    char method[8], path[2048], range[64], token[128];
    bool is_store;  /* came to the second port */
    int n_times;    /* how often method, path and port came, with this one */
} hub_asked;

/* What is about to be sent; a hook changes what it likes. */
typedef struct {
    int status;
    char headers[4096];      /* lines with \r\n, without the length */
    char body[70000];
    size_t n;
    long long length;        /* Content-Length; -1: n */
    size_t cut_after;        /* bytes of the body, then the connection is closed; SIZE_MAX: all */
    int stall_ms;            /* before the second half of the body */
} hub_reply;
typedef void hub_hook(void *user, const hub_asked *asked, hub_reply *reply);

typedef struct hub_server hub_server;
hub_server *hub_server_start(const hub_file *files, int n_files, hub_hook *hook, void *user);
void hub_server_stop(hub_server *s);
const char *hub_server_url(const hub_server *s);
const char *hub_server_store_url(const hub_server *s);
/* Requests whose method and path begin so ("GET /cdn/"); "" counts all. */
int hub_server_count(hub_server *s, const char *begins);
/* The n-th of those, or NULL. Valid until the server is stopped. */
const hub_asked *hub_server_asked(hub_server *s, const char *begins, int n);
/* A file's blob name: SHA-256 of one of the large store, git's id of others. */
const char *hub_file_etag(const hub_file *file, char out[65]);

#endif
