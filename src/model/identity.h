/* What a model on this machine is, as a digest: for provenance where no hub commit names it. */
#ifndef AG_IDENTITY_H
#define AG_IDENTITY_H

#include "base/digest.h"
#include "base/status.h"

/* A file's SHA-256; of a folder the SHA-256 over a line "<sha256>  <name>\n" for each regular file directly in it whose name
 * does not begin with '.', sorted bytewise – what `sha256sum * | sha256sum` prints there in the C locale. Links are followed.
 */
AG_MUST_USE ag_status ag_model_content_revision(ag_sha256 *out, const char *path, int n_threads, ag_err *err);

#endif
