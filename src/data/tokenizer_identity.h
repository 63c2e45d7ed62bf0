/* What two tokenizers that give the same ids have in common, whatever files they came from and however those were spelt. */
#ifndef AG_TOKENIZER_IDENTITY_H
#define AG_TOKENIZER_IDENTITY_H

#include "base/digest.h"
#include "text/tokenizer.h"

/* SHA-256 over the canonical JSON of tokenizer.json, tokenizer_config.json and special_tokens_map.json as agoge writes them for
 * it. */
AG_MUST_USE ag_status ag_tokenizer_fingerprint(ag_sha256 *out, const ag_tokenizer *t, ag_err *err);

#endif
