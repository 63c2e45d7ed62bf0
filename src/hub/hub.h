/* The model hub: repositories fetched into huggingface_hub's own cache, and found there again.
 *
 *     ag_hub_options o = {.cache_dir = "/home/me/.cache/huggingface/hub", .token = token};
 *     ag_hub_snapshot s;
 *     AG_TRY(ag_hub_pull(&s, &o, &(ag_hub_request){.id = "org/name", .include = globs, .n_include = 2}, &arena, err));
 *     … s.path is the snapshot's folder …
 *     AG_TRY(ag_hub_model(&path, &o, "org/name", NULL, &arena, err));      // whatever ag_model_open takes
 *
 * Cache (shared with Python both ways; layout in docs/hub.md): models--<org>--<name>/{blobs,refs,snapshots,.no_exist}, locks in
 * .locks/. A blob is named by its content (SHA-256, or git's id), and appears under that name only when size and digest are right; a
 * snapshot's links come when all blobs of a pull are there, the ref last. An <etag>.incomplete file is only ever gone on with, and its
 * digest is taken as a whole. Links that lead out of the cache are refused.
 *
 * Network: HTTP and HTTPS only, proxies as curl takes them from the environment. The token goes to the endpoint's own origin
 * (scheme, host, port) and nowhere else. What may pass (cut connections, time-outs, 408, 429, 5xx) is tried again, with the waits
 * that the server asks for; what will not pass is a sentence. Nothing here reads the environment otherwise, or prints. */
#ifndef AG_HUB_H
#define AG_HUB_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AG_HUB_DEFAULT_ENDPOINT "https://huggingface.co"

typedef enum { AG_HUB_MODEL, AG_HUB_DATASET } ag_hub_kind;

typedef struct {
    const char *cache_dir;      /* huggingface_hub's HF_HUB_CACHE; made where it is missing */
    const char *endpoint;       /* NULL: AG_HUB_DEFAULT_ENDPOINT */
    const char *token;          /* NULL: none */
    const char *user_agent;     /* NULL: "agoge" */
    const char *ca_file;        /* certificates to trust (PEM); NULL: the system's */
    bool offline;               /* no network: what is not in the cache is AG_E_NOT_FOUND */
    bool verify;                /* take the digests of blobs that are there already, too, and fetch damaged ones again */
    int n_parallel;             /* requests at a time; 0: 8 */
    int n_attempts;             /* without a byte gained, before giving up; 0: 5 */
    double first_wait_s;        /* before the second attempt; doubles each time; 0: 1 s */
    double stall_s;             /* without a byte, after which a connection counts as cut; 0: 30 s */
    double longest_wait_s;      /* of what a server may ask for (Retry-After), beyond which we give up and say so; 0: 300 s */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, size_t done_files, size_t total_files); /* or NULL */
    void *progress_user;
} ag_hub_options;

typedef struct {
    ag_hub_kind kind;
    const char *id;             /* "org/name" */
    const char *revision;       /* a branch, tag or commit; NULL: "main" */
    const char *const *include; /* patterns (hub_names.h); none: all files */
    size_t n_include;
} ag_hub_request;

typedef struct {
    const char *path;           /* the snapshot's folder */
    char commit[41];
    size_t n_files;             /* that were asked for and are there now */
    uint64_t bytes;             /* of those */
    size_t n_fetched;           /* of those files' blobs, fetched by this call */
    uint64_t fetched_bytes;
} ag_hub_snapshot;

/* Brings all files of the request into the cache. AG_E_USAGE: a wrong id or revision; AG_E_NOT_FOUND: no such repository, revision or
 * file, or offline and not all in the cache; AG_E_CONFIG: gated or private; AG_E_NO_SPACE, said before anything is fetched; AG_E_VERIFY:
 * a size or digest that stays wrong; AG_E_FORMAT: the server's answer is none; AG_E_IO: the network. */
AG_MUST_USE ag_status ag_hub_pull(ag_hub_snapshot *out, const ag_hub_options *options, const ag_hub_request *request, ag_arena *arena,
                                  ag_err *err);

/* Whether `text` reads as a hub id (not whether there is one). */
bool ag_hub_names_model(const char *text);

/* A model's folder (or its one .gguf file) in the cache: what is there is taken without asking anyone, be it that the branch has moved
 * on; what is missing of it (config, tokenizer, template, weights) is fetched. Where the network fails and config and weights are
 * there, a warning, and what there is. Repositories without weights that we read are refused before anything is fetched. */
AG_MUST_USE ag_status ag_hub_model(const char **path, const ag_hub_options *options, const char *id, const char *revision, ag_arena *arena,
                                   ag_err *err);

#endif
