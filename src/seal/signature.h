/* Ed25519 signatures over a bundle's inventory, with keys as OpenSSL makes them:
 *
 *     openssl genpkey -algorithm ed25519 -out key.pem;  openssl pkey -in key.pem -pubout -out key.pub.pem
 *     openssl pkeyutl -verify -pubin -inkey key.pub.pem -rawin -in reproducibility-bundle.json -sigfile reproducibility-bundle.sig
 *
 * The last line checks a bundle's signature without agoge. */
#ifndef AG_SIGNATURE_H
#define AG_SIGNATURE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { AG_SIGNATURE_BYTES = 64 };

typedef struct ag_sign_key ag_sign_key;     /* a private key */
typedef struct ag_verify_key ag_verify_key; /* a public one */

/* PEM, without a passphrase. AG_E_FORMAT: no such key, or another algorithm. */
AG_MUST_USE ag_status ag_sign_key_load(ag_sign_key **out, const char *path, ag_err *err);
AG_MUST_USE ag_status ag_verify_key_load(ag_verify_key **out, const char *path, ag_err *err);
void ag_sign_key_free(ag_sign_key **key);
void ag_verify_key_free(ag_verify_key **key);

void ag_signature_make(unsigned char out[AG_SIGNATURE_BYTES], const ag_sign_key *key, const void *bytes, size_t n);
bool ag_signature_check(const unsigned char *signature, size_t n_signature, const ag_verify_key *key, const void *bytes, size_t n);

#endif
