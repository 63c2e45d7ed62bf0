/* What pull and model share: a pull whose files are chosen when the server's list is there. */
#ifndef AG_HUB_PULL_H
#define AG_HUB_PULL_H

#include "hub/hub_answer.h"
#include "hub/hub_store.h"

typedef struct {
    const ag_hub_options *options;
    const ag_hub_request *request;
    const char *revision;    /* never NULL */
    ag_hub_store store;
    ag_hub_listing listing;
    /* Fills chosen[] (room for all of listing.files) and *n. */
    ag_status (*choose)(void *user, const char **chosen, size_t *n, const ag_hub_listing *listing, ag_err *err);
    void *user;
} ag_hub_job;

AG_MUST_USE ag_status ag_hub_job_open(ag_hub_job *job, const ag_hub_options *options, const ag_hub_request *request, ag_arena *arena,
                                      ag_err *err);
/* Over the network; job->choose must be set. */
AG_MUST_USE ag_status ag_hub_job_run(ag_hub_snapshot *out, ag_hub_job *job, ag_err *err);

#endif
