/* Whether a base model, or a merged one, is there and whole: for reports, so that no weight is read, nothing is fetched, and
 * nothing that came with the model is run.
 *
 *     local folder   no symbolic link in it
 *     hub snapshot   <hub_cache>/models--<org>--<name>/snapshots/<40 hex>, whose links end in that repository's blobs
 *     .gguf file     the file itself
 *
 * A folder must have: config.json of a known architecture within bounds; its weights in one complete safetensors layout with
 * exactly the tensors that the architecture implies; a tokenizer that loads, has tokens and a pad or end token. */
#ifndef AG_BASE_CHECK_H
#define AG_BASE_CHECK_H

#include "base/arena.h"
#include "base/status.h"
#include "model/description.h"

/* Sentences say what is amiss; AG_E_NOT_FOUND where there is no such model here. */
AG_MUST_USE ag_status ag_base_check(ag_description *d, const char *name, const char *revision, const char *hub_cache,
                                    ag_arena *arena, ag_err *err);
/* A folder of its own (merged/<run>). */
AG_MUST_USE ag_status ag_model_folder_check(ag_description *d, const char *dir, ag_arena *arena, ag_err *err);

#endif
