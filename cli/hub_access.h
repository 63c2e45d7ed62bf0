/* The hub as this user reaches it: huggingface_hub's environment, read here and handed down. */
#ifndef AGOGE_CLI_HUB_ACCESS_H
#define AGOGE_CLI_HUB_ACCESS_H

#include "hub/hub.h"

/* HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME; HF_ENDPOINT; HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_TOKEN_PATH or
 * $HF_HOME/token; HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE; CURL_CA_BUNDLE, SSL_CERT_FILE: as docs/hub.md says. Texts lie in the arena. */
AG_MUST_USE ag_status cli_hub_options(ag_hub_options *out, ag_arena *arena, ag_err *err);

/* What the library can open of a model that the user named: a folder or .gguf file as it is; a hub id from the cache, or fetched into it,
 * with a progress bar. `revision` (may be NULL) belongs to a hub id and is no error beside a path. */
AG_MUST_USE ag_status cli_find_model(const char **path, const char *model, const char *revision, ag_arena *arena, ag_err *err);

/* How many bytes of disk the cache of models takes, on stderr; nothing where there is no cache. */
void cli_tell_cache_size(void);

/* A bar over the bytes of a pull; end it in any case. */
typedef struct cli_hub_bar cli_hub_bar;
cli_hub_bar *cli_hub_bar_begin(ag_hub_options *options, ag_arena *arena);
void cli_hub_bar_end(cli_hub_bar *bar);

#endif
