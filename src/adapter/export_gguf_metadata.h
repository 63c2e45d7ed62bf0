#ifndef AG_EXPORT_GGUF_METADATA_H
#define AG_EXPORT_GGUF_METADATA_H

#include "adapter/export_tensors.h"
#include "adapter/gguf_recipe.h"
#include "format/gguf.h"

/* What llama.cpp calls the family: Mistral is a Llama there. */
const char *ag_export_gguf_architecture(const ag_description *d);
/* The head dim where q and k lie in rope pairs, else 0 (weight.h). */
int ag_export_gguf_rope_pairs(const ag_description *d);

/* general.*, <architecture>.* and tokenizer.* of the export. */
AG_MUST_USE ag_status ag_export_gguf_metadata(ag_gguf_writer *w, ag_gguf_recipe recipe, const ag_export_options *options, ag_arena *arena,
                                              ag_err *err);

#endif
