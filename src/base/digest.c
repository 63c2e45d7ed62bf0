#define _GNU_SOURCE
#include "base/digest.h"

#include "base/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BLOCK_BYTES = 1 << 20 };

struct ag_sha256_state {
    EVP_MD_CTX *context;
};

ag_sha256_state *ag_sha256_begin(void)
{
    ag_sha256_state *state = malloc(sizeof *state);
    if (!state) ag_out_of_memory(sizeof *state);
    state->context = EVP_MD_CTX_new();
    if (!state->context) ag_out_of_memory(sizeof *state);
    AG_ASSERT(EVP_DigestInit_ex(state->context, EVP_sha256(), NULL) == 1);
    return state;
}

void ag_sha256_add(ag_sha256_state *state, const void *bytes, size_t n)
{
    AG_ASSERT(EVP_DigestUpdate(state->context, bytes, n) == 1);
}

ag_sha256 ag_sha256_end(ag_sha256_state *state)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    AG_ASSERT(EVP_DigestFinal_ex(state->context, digest, &n) == 1 && n == 32);
    EVP_MD_CTX_free(state->context);
    free(state);
    ag_sha256 out = {{0}};
    for (unsigned i = 0; i < n; i++) {
        out.hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        out.hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    return out;
}

ag_sha256 ag_sha256_bytes(const void *bytes, size_t n)
{
    ag_sha256_state *state = ag_sha256_begin();
    ag_sha256_add(state, bytes, n);
    return ag_sha256_end(state);
}

static ag_status sha256_fd(ag_sha256 *out, int fd, const char *path, ag_err *err)
{
    struct stat st;
    if (fstat(fd, &st)) return ag_fail_errno(err, errno, "%s cannot be looked at", path);
    if (!S_ISREG(st.st_mode)) return ag_fail(err, AG_E_IO, "%s is not a regular file; its digest cannot be taken", path);
    unsigned char *block = malloc(FILE_BLOCK_BYTES);
    if (!block) ag_out_of_memory(FILE_BLOCK_BYTES);
    ag_sha256_state *state = ag_sha256_begin();
    ssize_t got;
    do {
        got = read(fd, block, FILE_BLOCK_BYTES);
        if (got > 0) ag_sha256_add(state, block, (size_t)got);
    } while (got > 0 || (got < 0 && errno == EINTR));
    int errnum = errno;
    *out = ag_sha256_end(state);
    free(block);
    return got < 0 ? ag_fail_errno(err, errnum, "%s cannot be read", path) : AG_OK;
}

ag_status ag_sha256_file(ag_sha256 *out, const char *path, ag_err *err)
{
    *out = (ag_sha256){{0}};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not make us wait */
    if (fd < 0) return ag_fail_errno(err, errno, "%s cannot be opened", path);
    ag_status status = sha256_fd(out, fd, path, err);
    close(fd);
    return status;
}
