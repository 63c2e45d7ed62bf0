/* A live page of training runs, from their metrics.jsonl alone: it works while they train and afterwards, and starts and stops
 * nothing.
 *
 *     GET /                     the page (src/serve/page/watch.html); it asks for nothing outside this server
 *     GET /runs                 {"runs": ["demo", …]}
 *     GET /runs/<i>/<offset>    {"next": …, "lines": [{…}, …]}: the whole lines from that byte on, at most a mebibyte of them.
 * A file that is shorter than the offset was begun anew: "restarted" is true and lines come from its begin
 *
 * No request names a path. A run whose file is not there yet has no lines. */
#ifndef AG_WATCH_SERVER_H
#define AG_WATCH_SERVER_H

#include "serve/http_server.h"

typedef struct {
    const char *name, *metrics; /* the file; both stay the caller's */
} ag_watch_run;

typedef struct ag_watch_server ag_watch_server;
AG_MUST_USE ag_status ag_watch_server_start(ag_watch_server **out, const ag_watch_run *runs, size_t n_runs, const char *host,
                                            int64_t port, ag_err *err);
int64_t ag_watch_server_port(const ag_watch_server *server);
void ag_watch_server_stop(ag_watch_server **server);

#endif
