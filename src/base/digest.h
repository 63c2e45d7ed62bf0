/* SHA-256 (OpenSSL, which uses the processor's SHA instructions), and git's name of a file's content. */
#ifndef AG_DIGEST_H
#define AG_DIGEST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

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

/* The id that git gives a file of `size` bytes: SHA-1 of "blob <size>", NUL and the bytes. For names, not for security. */
typedef struct {
    char hex[41];
} ag_git_id;
typedef struct ag_git_id_state ag_git_id_state;
ag_git_id_state *ag_git_id_begin(uint64_t size);
void ag_git_id_add(ag_git_id_state *state, const void *bytes, size_t n);
ag_git_id ag_git_id_end(ag_git_id_state *state);

#endif
