#define _GNU_SOURCE
#include "hub/hub_transfer.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DEFAULT_PARALLEL = 8, DEFAULT_ATTEMPTS = 5, MOST_HOPS = 10, MOST_FAILURES = 100, MOST_HEAD_BYTES = 256 << 10, TICK_MS = 200 };
static const double DEFAULT_FIRST_WAIT_S = 1, DEFAULT_STALL_S = 30, DEFAULT_LONGEST_WAIT_S = 300, LONGEST_OWN_WAIT_S = 30;
static const uint64_t LATER_NS = 200000000ull; /* until a start that said "not now" is asked again */

struct ag_hub_client {
    const ag_hub_options *options;
    char *endpoint;
    char *agent_line, *token_line; /* of headers; the latter may be NULL */
    CURLM *multi;
    int n_parallel, n_attempts;
    double first_wait_s, stall_s, longest_wait_s;
};

/* In its own memory. */
__attribute__((format(printf, 1, 2))) static char *text_of(const char *format, ...)
{
    va_list args;
    char *text;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) ag_out_of_memory(strlen(format));
    va_end(args);
    return text;
}

/* ---- addresses -------------------------------------------------------------------------------------------------------------- */
/* "https://host:443" of an address, which the caller frees; NULL where it is no http or https address. */
static char *origin_of(const char *address)
{
    CURLU *url = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL, *origin = NULL;
    if (url && !curl_url_set(url, CURLUPART_URL, address, 0) && !curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) &&
        !curl_url_get(url, CURLUPART_HOST, &host, 0) && !curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) &&
        (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0))
        origin = text_of("%s://%s:%s", scheme, host, port);
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(url);
    return origin;
}

static bool is_same_origin(const char *a, const char *b)
{
    char *x = origin_of(a), *y = origin_of(b);
    const bool is_same = x && y && strcasecmp(x, y) == 0;
    free(x);
    free(y);
    return is_same;
}

/* Where `location`, which may be relative, leads from `from`; the caller frees it with curl_free. NULL: nowhere. */
static char *resolved(const char *from, const char *location)
{
    CURLU *url = curl_url();
    char *to = NULL;
    if (url && !curl_url_set(url, CURLUPART_URL, from, 0) && !curl_url_set(url, CURLUPART_URL, location, 0))
        (void)curl_url_get(url, CURLUPART_URL, &to, 0);
    curl_url_cleanup(url);
    return to;
}

/* ---- the client ---------------------------------------------------------------------------------------------------------------- */
static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static void start_curl(void) { (void)curl_global_init(CURL_GLOBAL_DEFAULT); }

static bool is_header_value(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text <= ' ' || (unsigned char)*text > '~') return false;
    return true;
}

ag_status ag_hub_client_create(ag_hub_client **out, const ag_hub_options *o, ag_err *err)
{
    *out = NULL;
    const char *endpoint = o->endpoint && *o->endpoint ? o->endpoint : AG_HUB_DEFAULT_ENDPOINT;
    (void)pthread_once(&curl_once, start_curl);
    char *origin = origin_of(endpoint);
    if (!origin || endpoint[strcspn(endpoint, "?#")])
        return ag_fail(err, AG_E_CONFIG, "the hub's address '%s' is none; it must begin with https:// or http://", endpoint);
    free(origin);
    if (o->token && !is_header_value(o->token))
        return ag_fail(err, AG_E_CONFIG, "the token for the hub holds a space or a sign that no token has; copy it again, on one line");
    ag_hub_client *c = calloc(1, sizeof *c);
    if (!c) ag_out_of_memory(sizeof *c);
    *c = (ag_hub_client){.options = o, .n_parallel = o->n_parallel > 0 ? o->n_parallel : DEFAULT_PARALLEL,
                         .n_attempts = o->n_attempts > 0 ? o->n_attempts : DEFAULT_ATTEMPTS,
                         .first_wait_s = o->first_wait_s > 0 ? o->first_wait_s : DEFAULT_FIRST_WAIT_S,
                         .stall_s = o->stall_s > 0 ? o->stall_s : DEFAULT_STALL_S,
                         .longest_wait_s = o->longest_wait_s > 0 ? o->longest_wait_s : DEFAULT_LONGEST_WAIT_S,
                         .endpoint = strdup(endpoint), .multi = curl_multi_init()};
    c->agent_line = text_of("User-Agent: %s", o->user_agent ? o->user_agent : "agoge");
    if (o->token && *o->token) c->token_line = text_of("Authorization: Bearer %s", o->token);
    if (!c->endpoint || !c->multi) ag_out_of_memory(sizeof *c);
    for (size_t n = strlen(c->endpoint); n > 0 && c->endpoint[n - 1] == '/'; n--) c->endpoint[n - 1] = 0;
    curl_multi_setopt(c->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)c->n_parallel);
    *out = c;
    return AG_OK;
}

void ag_hub_client_free(ag_hub_client **client)
{
    ag_hub_client *c = *client;
    if (!c) return;
    curl_multi_cleanup(c->multi);
    free(c->endpoint);
    free(c->agent_line);
    free(c->token_line);
    free(c);
    *client = NULL;
}

const char *ag_hub_client_endpoint(const ag_hub_client *client) { return client->endpoint; }

/* ---- one request ------------------------------------------------------------------------------------------------------------------ */
static const char *address_of(const ag_hub_transfer *t) { return t->at_url ? t->at_url : t->url; }

static size_t on_header(char *bytes, size_t size, size_t n, void *user)
{
    ag_hub_transfer *t = user;
    n *= size;
    t->last_ns = ag_clock_ns();
    if (n > 5 && memcmp(bytes, "HTTP/", 5) == 0) ag_hub_head_begin(&t->answer);
    ag_hub_head_add(&t->answer, bytes, n);
    if (t->answer.n_bytes <= MOST_HEAD_BYTES) return n;
    (void)ag_fail(&t->failure, AG_E_FORMAT, "%s: the head of the server's answer does not end", t->what);
    return 0;
}

/* Where the body that comes belongs; a 206 that begins elsewhere, or is of another whole, is refused. */
static ag_status begin_body(ag_hub_transfer *t, long http_status)
{
    const ag_hub_head *h = &t->answer;
    ag_err *err = &t->failure;
    uint64_t offset = 0;
    if (http_status == 206) {
        if (h->range_first < 0 || (uint64_t)h->range_first != t->from)
            return ag_fail(err, AG_E_VERIFY, "%s: the server was asked to go on at byte %llu and does so elsewhere", t->what,
                           (unsigned long long)t->from);
        if (t->expected != UINT64_MAX && h->range_total >= 0 && (uint64_t)h->range_total != t->expected)
            return ag_fail(err, AG_E_VERIFY, "%s: %llu bytes were promised, the server now says %lld", t->what,
                           (unsigned long long)t->expected, (long long)h->range_total);
        offset = t->from;
    }
    t->body_began = true;
    t->from = offset;
    return t->begin ? t->begin(t, offset, err) : AG_OK;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *user)
{
    ag_hub_transfer *t = user;
    long http_status = 0;
    n *= size;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http_status);
    if (http_status != 200 && http_status != 206) return n; /* an error's page */
    if (!t->body_began && begin_body(t, http_status)) return 0;
    const uint64_t most = t->expected != UINT64_MAX ? t->expected : t->max_bytes;
    if (n > most - t->from) { /* from never is beyond most */
        (void)ag_fail(&t->failure, AG_E_VERIFY, "%s: the server sends more than the %llu bytes that %s", t->what, (unsigned long long)most,
                      t->expected != UINT64_MAX ? "it promised" : "such an answer may have");
        return 0;
    }
    if (t->write && t->write(t, bytes, n, &t->failure)) return 0;
    t->from += n;
    t->last_ns = ag_clock_ns();
    return n;
}

static void add_header(ag_hub_transfer *t, const char *line)
{
    struct curl_slist *longer = curl_slist_append(t->headers, line);
    if (!longer) ag_out_of_memory(strlen(line));
    t->headers = longer;
}

static void begin_request(ag_hub_transfer *t)
{
    ag_hub_client *c = t->client;
    char range[32];
    CURL *e = t->curl = curl_easy_init();
    if (!e) ag_out_of_memory(sizeof *t);
    t->body_began = false;
    t->answer.n_bytes = 0;
    t->last_ns = ag_clock_ns();
    t->failure = (ag_err){0};
    add_header(t, c->agent_line);
    add_header(t, "Accept-Encoding: identity");
    if (c->token_line && is_same_origin(address_of(t), c->endpoint)) add_header(t, c->token_line);
    curl_easy_setopt(e, CURLOPT_URL, address_of(t));
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(e, CURLOPT_PRIVATE, t);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 256L << 10);
    if (c->options->ca_file) curl_easy_setopt(e, CURLOPT_CAINFO, c->options->ca_file);
    if (t->head) curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
    if (!t->head && t->from > 0) {
        snprintf(range, sizeof range, "%llu-", (unsigned long long)t->from);
        curl_easy_setopt(e, CURLOPT_RANGE, range); /* copied */
    }
    if (curl_multi_add_handle(c->multi, e)) ag_out_of_memory(sizeof *t);
}

static void end_request(ag_hub_transfer *t)
{
    if (t->curl) {
        curl_multi_remove_handle(t->client->multi, t->curl);
        curl_easy_cleanup(t->curl);
    }
    t->curl = NULL;
    curl_slist_free_all(t->headers);
    t->headers = NULL;
}

void ag_hub_transfer_free(ag_hub_transfer *t)
{
    if (t->client) end_request(t);
    curl_free(t->at_url);
    t->at_url = NULL;
    ag_hub_head_free(&t->answer);
}

/* ---- what an answer means ----------------------------------------------------------------------------------------------------------- */
/* Has it tried again after a wait, unless that was often enough. The failure stands in *err already. */
static ag_status try_again(ag_hub_transfer *t, double asked_wait_s, ag_err *err)
{
    const ag_hub_client *c = t->client;
    if (t->from > t->from_at_failure && !t->is_text) t->n_failed = 0; /* it got on */
    if (t->is_text) t->from = 0;
    t->from_at_failure = t->from;
    if (++t->n_failed >= c->n_attempts || ++t->n_failed_in_all >= MOST_FAILURES) {
        if (t->n_failed < 2) return err->code;
        const ag_status code = err->code;
        ag_err last = *err;
        return ag_fail(err, code, "%.800s (tried %d times)", last.text, t->n_failed);
    }
    double wait_s = c->first_wait_s * (double)(1u << (t->n_failed - 1 < 16 ? t->n_failed - 1 : 16));
    if (wait_s > LONGEST_OWN_WAIT_S) wait_s = LONGEST_OWN_WAIT_S;
    if (asked_wait_s > c->longest_wait_s) {
        ag_err last = *err;
        return ag_fail(err, last.code, "%.800s; it asks to wait %.0f s", last.text, asked_wait_s);
    }
    if (asked_wait_s > wait_s) wait_s = asked_wait_s;
    ag_log(AG_LOG_INFO, "%s; trying again in %.1f s", err->text, wait_s);
    t->wait_until_ns = ag_clock_ns() + (uint64_t)(wait_s * 1e9);
    curl_free(t->at_url); /* signed addresses expire: ask the hub again */
    t->at_url = NULL;
    t->n_hops = 0;
    err->code = AG_OK;
    return AG_OK;
}

static ag_status follow(ag_hub_transfer *t, ag_err *err)
{
    const char *from = address_of(t);
    char *to = t->answer.location.n > 0 ? resolved(from, t->answer.location.text) : NULL;
    char *origin = to ? origin_of(to) : NULL;
    ag_status status = AG_OK;
    if (!origin)
        status = ag_fail(err, AG_E_FORMAT, "%s: the server sends us to an address that is none, or no http(s)", t->what);
    else if (strncasecmp(from, "https:", 6) == 0 && strncasecmp(to, "http:", 5) == 0)
        status = ag_fail(err, AG_E_VERIFY, "%s: the server sends us from https to http; refused, for anyone could then change what comes", t->what);
    else if (++t->n_hops > MOST_HOPS)
        status = ag_fail(err, AG_E_IO, "%s: the server sends us on and on (%d redirects)", t->what, MOST_HOPS);
    free(origin);
    if (!status && t->head && !is_same_origin(to, t->client->endpoint)) {
        t->is_done = true;
    } else if (!status) {
        curl_free(t->at_url);
        t->at_url = to;
        to = NULL;
    }
    curl_free(to);
    return status;
}

static bool may_pass(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return true;
    default: return false;
    }
}

static ag_status whole(ag_hub_transfer *t, ag_err *err)
{
    if (!t->body_began && begin_body(t, t->from > 0 ? 206 : 200)) { /* a body without a byte */
        *err = t->failure;
        return err->code;
    }
    if (t->expected != UINT64_MAX && t->from < t->expected) {
        (void)ag_fail(err, AG_E_VERIFY, "%s: %llu of the %llu bytes came that the server promised", t->what, (unsigned long long)t->from,
                      (unsigned long long)t->expected);
        return try_again(t, 0, err);
    }
    const ag_status status = t->finish ? t->finish(t, err) : AG_OK;
    if (status == AG_E_VERIFY && t->n_verify_failures++ == 0) {
        t->from = t->from_at_failure = 0;
        return try_again(t, 0, err);
    }
    if (!status) t->is_done = true;
    return status;
}

/* Decides what becomes of a request that has ended: done, waiting or running again, or failed. */
static ag_status settle(ag_hub_transfer *t, CURLcode result, ag_err *err)
{
    long http_status = 0;
    curl_off_t wait_s = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http_status);
    curl_easy_getinfo(t->curl, CURLINFO_RETRY_AFTER, &wait_s);
    const bool had_token = t->client->token_line != NULL;
    end_request(t);
    if (t->failure.code) {
        *err = t->failure;
        return err->code;
    }
    if (result != CURLE_OK && t->body_began && t->from == t->expected) return whole(t, err); /* all is there: the digest decides */
    if (result != CURLE_OK) {
        const char *words = result == CURLE_PARTIAL_FILE || result == CURLE_RECV_ERROR ? "the connection was cut"
                            : result == CURLE_PEER_FAILED_VERIFICATION
                                ? "the server's certificate is not one that this machine trusts; CURL_CA_BUNDLE or SSL_CERT_FILE can name a file with others"
                                : curl_easy_strerror(result);
        (void)ag_fail(err, AG_E_IO, "%s: %s", t->what, words);
        return may_pass(result) ? try_again(t, 0, err) : err->code;
    }
    if (http_status == 200 || (http_status == 206 && !t->head)) {
        if (!t->head) return whole(t, err);
        t->is_done = true;
        return AG_OK;
    }
    if (http_status == 301 || http_status == 302 || http_status == 303 || http_status == 307 || http_status == 308) return follow(t, err);
    const bool is_foreign = !is_same_origin(address_of(t), t->client->endpoint);
    (void)ag_hub_answer_fail(err, http_status, &t->answer, t->what, had_token);
    t->is_missing_entry = strcmp(t->answer.error_code, "EntryNotFound") == 0;
    if (http_status == 416 && t->from > 0) { /* what is there is longer than the whole */
        t->from = t->from_at_failure = 0;
        return try_again(t, 0, err);
    }
    /* A signed address of a store that has expired is asked for anew. */
    if (http_status == 408 || http_status == 429 || http_status >= 500 || (is_foreign && http_status == 403))
        return try_again(t, (double)wait_s, err);
    return err->code;
}

/* ---- all requests ------------------------------------------------------------------------------------------------------------------- */
static bool is_waiting(const ag_hub_transfer *t) { return !t->is_done && !t->curl; }

/* Starts what may start now; tells how long the next waits, at most a second. */
static ag_status start_some(ag_hub_client *c, ag_hub_transfer *transfers, size_t n, int *n_running, int *wait_ms, ag_err *err)
{
    const uint64_t now = ag_clock_ns();
    *wait_ms = 1000;
    for (size_t i = 0; i < n && *n_running < c->n_parallel; i++) {
        ag_hub_transfer *t = &transfers[i];
        if (!is_waiting(t)) continue;
        ag_hub_go go = AG_HUB_START;
        if (t->wait_until_ns <= now) {
            t->client = c;
            if (t->start && t->at_url == NULL && t->n_failed_in_all == 0) AG_TRY(t->start(t, &go, err));
            if (go == AG_HUB_START) {
                begin_request(t);
                ++*n_running;
            } else if (go == AG_HUB_SKIP) {
                t->is_done = t->is_skipped = true;
            } else {
                t->wait_until_ns = now + LATER_NS;
            }
        }
        if (is_waiting(t)) {
            const int ms = (int)((t->wait_until_ns - now) / 1000000) + 1;
            if (ms < *wait_ms) *wait_ms = ms;
        }
    }
    return AG_OK;
}

static ag_status settle_all(ag_hub_client *c, int *n_running, ag_err *err)
{
    CURLMsg *message;
    int n_left;
    while ((message = curl_multi_info_read(c->multi, &n_left))) {
        if (message->msg != CURLMSG_DONE) continue;
        ag_hub_transfer *t = NULL;
        const CURLcode result = message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        --*n_running;
        AG_TRY(settle(t, result, err));
    }
    return AG_OK;
}

/* Those through which nothing came for too long, be it that no connection came about. (curl's own low-speed limit looks at an average,
 * and so notices some seconds late.) */
static ag_status settle_stalled(ag_hub_client *c, ag_hub_transfer *transfers, size_t n, int *n_running, ag_err *err)
{
    const uint64_t now = ag_clock_ns(), longest = (uint64_t)(c->stall_s * 1e9);
    for (size_t i = 0; i < n; i++) {
        if (!transfers[i].curl || now - transfers[i].last_ns <= longest) continue;
        --*n_running;
        AG_TRY(settle(&transfers[i], CURLE_OPERATION_TIMEDOUT, err));
    }
    return AG_OK;
}

static bool all_done(const ag_hub_transfer *transfers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!transfers[i].is_done) return false;
    return true;
}

ag_status ag_hub_transfers_run(ag_hub_client *c, ag_hub_transfer *transfers, size_t n, void (*tick)(void *user), void *user, ag_err *err)
{
    int n_running = 0, wait_ms = 0;
    ag_status status = AG_OK;
    while (!status && !all_done(transfers, n)) {
        int n_alive = 0;
        status = start_some(c, transfers, n, &n_running, &wait_ms, err);
        if (status) break;
        if (curl_multi_perform(c->multi, &n_alive)) {
            status = ag_fail(err, AG_E_IO, "the HTTP library cannot go on");
            break;
        }
        const int n_before = n_running;
        status = settle_all(c, &n_running, err);
        if (!status) status = settle_stalled(c, transfers, n, &n_running, err);
        if (tick) tick(user);
        if (!status && n_running == n_before && !all_done(transfers, n)) /* else something can start at once */
            (void)curl_multi_poll(c->multi, NULL, 0, wait_ms < TICK_MS ? wait_ms : TICK_MS, NULL);
    }
    for (size_t i = 0; i < n; i++)
        if (transfers[i].curl) end_request(&transfers[i]);
    return status;
}
