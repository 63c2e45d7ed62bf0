/* What the hub's server says, read with distrust: the list of a repository's files, and the heads of its answers.
 *
 * Facts: huggingface_hub's file_download.py and hf_api.py. A repository's state comes as JSON from
 * /api/models/<id>/revision/<revision> ("sha", and "siblings" with an "rfilename" each); a file's from the head of the answer to
 * /<id>/resolve/<revision>/<file>: X-Repo-Commit, X-Linked-Etag before ETag, X-Linked-Size before Content-Length. */
#ifndef AG_HUB_ANSWER_H
#define AG_HUB_ANSWER_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AG_HUB_MAX_FILES = 100000 };

typedef struct {
    char commit[41];
    const char **files; /* checked names, sorted, none twice; in the arena */
    size_t n_files;
} ag_hub_listing;
/* AG_E_FORMAT where it is not what such an answer must be; one bad name spoils the whole. `name` stands in sentences. */
AG_MUST_USE ag_status ag_hub_listing_parse(ag_hub_listing *out, const char *bytes, size_t n, const char *name, ag_arena *arena, ag_err *err);

/* The heads of one request's answers. begin is called for each answer in a chain of redirects. */
typedef struct {
    char commit[41];        /* "" where none was given, or none that is a commit */
    char etag[65];          /* a blob's name: X-Linked-Etag of any answer, else ETag of the last; "" where it is none */
    bool has_linked_etag;
    int64_t size;           /* X-Linked-Size of any answer, else Content-Length of the last; -1: not said */
    bool has_linked_size;
    int64_t content_length; /* of the last answer; -1: not said */
    int64_t range_first, range_total; /* of the last answer's Content-Range; -1: not said */
    ag_str location;        /* of the last answer */
    char error_code[64], error_message[256]; /* X-Error-Code and -Message, printable characters only */
    size_t n_bytes;         /* of all lines */
} ag_hub_head;
void ag_hub_head_begin(ag_hub_head *h);
/* One line, with or without its line end; what is not known is passed over. */
void ag_hub_head_add(ag_hub_head *h, const char *line, size_t n);
void ag_hub_head_free(ag_hub_head *h);

/* A sentence and a code for an answer that is no success. `what` is what was asked for, `has_token` whether a token went with it. */
ag_status ag_hub_answer_fail(ag_err *err, long http_status, const ag_hub_head *head, const char *what, bool has_token);

#endif
