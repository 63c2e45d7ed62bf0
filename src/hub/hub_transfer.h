/* Many HTTP requests at a time, each brought to its end: redirects followed, what may pass tried again.
 *
 * One thread drives them all (curl's multi interface); all callbacks come on it. Redirects are followed here and not by curl: the
 * token goes only to the endpoint's origin, https never leads to http, and a HEAD ends where another origin begins, for what the hub
 * says stands in the answer that sends one there. */
#ifndef AG_HUB_TRANSFER_H
#define AG_HUB_TRANSFER_H

#include "hub/hub.h"
#include "hub/hub_answer.h"

#include <curl/curl.h>

typedef enum { AG_HUB_START, AG_HUB_SKIP, AG_HUB_LATER } ag_hub_go;

typedef struct ag_hub_transfer ag_hub_transfer;
struct ag_hub_transfer {
    /* ---- the caller's */
    const char *url;         /* at the endpoint */
    const char *what;        /* for sentences: "org/name@main, config.json" */
    bool head;               /* ask for the head alone */
    bool is_text;            /* begins anew when it was cut, for it may be another then */
    void *user;
    /* Before the first byte is asked for: may say that nothing is to be done, or not now (tried again a little later). NULL: start. */
    ag_status (*start)(ag_hub_transfer *t, ag_hub_go *go, ag_err *err);
    /* A body comes, from `offset` on (0, or `from`). Where it does not follow on what is there, forget that. */
    ag_status (*begin)(ag_hub_transfer *t, uint64_t offset, ag_err *err);
    ag_status (*write)(ag_hub_transfer *t, const void *bytes, size_t n, ag_err *err);
    /* All is there. AG_E_VERIFY has it fetched anew, once. */
    ag_status (*finish)(ag_hub_transfer *t, ag_err *err);
    uint64_t from;           /* bytes that are there; the engine counts on */
    uint64_t expected;       /* bytes that the whole has; UINT64_MAX: not known (then max_bytes bounds it) */
    uint64_t max_bytes;

    /* ---- the engine's; the caller may read */
    ag_hub_head answer;
    bool is_done, is_skipped, is_missing_entry; /* the last: failed because the hub has no such file */
    CURL *curl;              /* while it runs */
    char *at_url;            /* where redirects led */
    int n_hops, n_failed, n_failed_in_all, n_verify_failures;
    uint64_t from_at_failure, wait_until_ns, last_ns; /* the last: when something came */
    bool body_began;
    ag_err failure;          /* of a callback */
    struct curl_slist *headers;
    struct ag_hub_client *client;
};

typedef struct ag_hub_client ag_hub_client;
/* The options must outlive it. */
AG_MUST_USE ag_status ag_hub_client_create(ag_hub_client **out, const ag_hub_options *options, ag_err *err);
void ag_hub_client_free(ag_hub_client **client);
const char *ag_hub_client_endpoint(const ag_hub_client *client); /* without '/' at the end */

/* All of them, or the first failure, which stops the others. `tick` (may be NULL) is called some times a second. */
AG_MUST_USE ag_status ag_hub_transfers_run(ag_hub_client *client, ag_hub_transfer *transfers, size_t n, void (*tick)(void *user), void *user,
                                           ag_err *err);
void ag_hub_transfer_free(ag_hub_transfer *t); /* what the engine made; t may be used again when zeroed */

#endif
