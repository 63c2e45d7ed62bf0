#include "seal/signature.h"

#include "base/arena.h"
#include "base/fs.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>

enum { KEY_MAX_BYTES = 16 << 10 };

static EVP_PKEY *sign_pkey(const ag_sign_key *key) { return (EVP_PKEY *)key; }
static EVP_PKEY *verify_pkey(const ag_verify_key *key) { return (EVP_PKEY *)key; }

/* Never asks anybody for a passphrase. */
static int no_passphrase(char *buffer, int size, int writing, void *user)
{
    (void)buffer, (void)size, (void)writing, (void)user;
    return 0;
}

static ag_status load(EVP_PKEY **out, const char *path, bool is_private, ag_err *err)
{
    ag_arena arena = {0};
    char *text;
    size_t n;
    *out = NULL;
    ag_status status = ag_file_read(&text, &n, path, KEY_MAX_BYTES, &arena, err);
    if (!status) {
        BIO *bio = BIO_new_mem_buf(text, (int)n);
        if (!bio) ag_out_of_memory(n);
        *out = is_private ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : PEM_read_bio_PUBKEY(bio, NULL, no_passphrase, NULL);
        BIO_free(bio);
        memset(text, 0, n); /* a private key stays in no memory that others get */
        const char *kind = is_private ? "private" : "public";
        const char *how =
            is_private ? "openssl genpkey -algorithm ed25519 -out key.pem" : "openssl pkey -in key.pem -pubout -out key.pub.pem";
        if (!*out)
            status = ag_fail(err, AG_E_FORMAT, "%s: holds no %s key in PEM without a passphrase; make one with `%s`", path, kind, how);
        else if (EVP_PKEY_get_base_id(*out) != EVP_PKEY_ED25519)
            status = ag_fail(err, AG_E_FORMAT, "%s: is a %s key of another algorithm than Ed25519; make one with `%s`", path, kind, how);
    }
    if (status && *out) {
        EVP_PKEY_free(*out);
        *out = NULL;
    }
    ag_arena_free(&arena);
    return status;
}

ag_status ag_sign_key_load(ag_sign_key **out, const char *path, ag_err *err) { return load((EVP_PKEY **)out, path, true, err); }
ag_status ag_verify_key_load(ag_verify_key **out, const char *path, ag_err *err) { return load((EVP_PKEY **)out, path, false, err); }

void ag_sign_key_free(ag_sign_key **key)
{
    if (!key || !*key) return;
    EVP_PKEY_free(sign_pkey(*key));
    *key = NULL;
}

void ag_verify_key_free(ag_verify_key **key)
{
    if (!key || !*key) return;
    EVP_PKEY_free(verify_pkey(*key));
    *key = NULL;
}

static EVP_MD_CTX *context(void)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (!c) ag_out_of_memory(sizeof c);
    return c;
}

void ag_signature_make(unsigned char out[AG_SIGNATURE_BYTES], const ag_sign_key *key, const void *bytes, size_t n)
{
    EVP_MD_CTX *c = context();
    size_t length = AG_SIGNATURE_BYTES;
    AG_ASSERT(EVP_DigestSignInit(c, NULL, NULL, NULL, sign_pkey(key)) == 1);
    AG_ASSERT(EVP_DigestSign(c, out, &length, bytes, n) == 1 && length == AG_SIGNATURE_BYTES);
    EVP_MD_CTX_free(c);
}

bool ag_signature_check(const unsigned char *signature, size_t n_signature, const ag_verify_key *key, const void *bytes, size_t n)
{
    if (n_signature != AG_SIGNATURE_BYTES) return false;
    EVP_MD_CTX *c = context();
    const bool good = EVP_DigestVerifyInit(c, NULL, NULL, NULL, verify_pkey(key)) == 1 &&
                      EVP_DigestVerify(c, signature, n_signature, bytes, n) == 1;
    EVP_MD_CTX_free(c);
    return good;
}
