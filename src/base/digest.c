#define _GNU_SOURCE
#include "base/digest.h"

#include "base/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BLOCK_BYTES = 1 << 20 };

struct ag_sha256_state {
    EVP_MD_CTX *context;
};

struct ag_git_id_state {
    EVP_MD_CTX *context;
};

static EVP_MD_CTX *context_new(const EVP_MD *digest)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (!context) ag_out_of_memory(sizeof(void *));
    AG_ASSERT(EVP_DigestInit_ex(context, digest, NULL) == 1);
    return context;
}

/* Frees the context; hex takes two digits a byte and NUL. */
static void context_end(EVP_MD_CTX *context, char *hex, unsigned n_expected)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    AG_ASSERT(EVP_DigestFinal_ex(context, digest, &n) == 1 && n == n_expected);
    EVP_MD_CTX_free(context);
    for (unsigned i = 0; i < n; i++) {
        hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    hex[2 * n] = 0;
}

/* Looked up once: OpenSSL's implicit look-up costs more than hashing a short text. */
static const EVP_MD *sha256_method;
static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;
static void fetch_sha256(void) { sha256_method = EVP_MD_fetch(NULL, "SHA2-256", NULL); }

ag_sha256_state *ag_sha256_begin(void)
{
    pthread_once(&sha256_once, fetch_sha256);
    AG_ASSERT(sha256_method);
    ag_sha256_state *state = malloc(sizeof *state);
    if (!state) ag_out_of_memory(sizeof *state);
    state->context = context_new(sha256_method);
    return state;
}

void ag_sha256_add(ag_sha256_state *state, const void *bytes, size_t n)
{
    AG_ASSERT(EVP_DigestUpdate(state->context, bytes, n) == 1);
}

ag_sha256 ag_sha256_end(ag_sha256_state *state)
{
    ag_sha256 out;
    context_end(state->context, out.hex, 32);
    free(state);
    return out;
}

ag_git_id_state *ag_git_id_begin(uint64_t size)
{
    char head[48];
    ag_git_id_state *state = malloc(sizeof *state);
    if (!state) ag_out_of_memory(sizeof *state);
    state->context = context_new(EVP_sha1());
    const int n = snprintf(head, sizeof head, "blob %" PRIu64, size);
    ag_git_id_add(state, head, (size_t)n + 1); /* the NUL belongs to it */
    return state;
}

void ag_git_id_add(ag_git_id_state *state, const void *bytes, size_t n)
{
    AG_ASSERT(EVP_DigestUpdate(state->context, bytes, n) == 1);
}

ag_git_id ag_git_id_end(ag_git_id_state *state)
{
    ag_git_id out;
    context_end(state->context, out.hex, 20);
    free(state);
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
