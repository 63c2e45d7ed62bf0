/* SHA-256 (OpenSSL, which uses the processor's SHA instructions). */
#ifndef AG_DIGEST_H
#define AG_DIGEST_H

#include "base/status.h"

#include <stddef.h>

typedef struct {
    char hex[65]; /* 64 lowercase digits and NUL */
} ag_sha256;

ag_sha256 ag_sha256_bytes(const void *bytes, size_t n);
AG_MUST_USE ag_status ag_sha256_file(ag_sha256 *out, const char *path, ag_err *err);

/* In pieces: begin, add …, end (which frees the state). */
typedef struct ag_sha256_state ag_sha256_state;
ag_sha256_state *ag_sha256_begin(void);
void ag_sha256_add(ag_sha256_state *state, const void *bytes, size_t n);
ag_sha256 ag_sha256_end(ag_sha256_state *state);

#endif
