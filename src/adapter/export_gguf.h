/* A merged model as one GGUF file, in any of llama.cpp's types that gguf_recipe.h names.
 *
 *     AG_TRY(ag_export_gguf("model.gguf", AG_RECIPE_Q4_K_M, &options, &report, err));      // whole or not at all
 *
 * Names, order of q and k rows and metadata are those of llama.cpp's converter, the type of each tensor that of its quantizer. The
 * bytes are the same for any number of threads and on every CPU level. A GGUF base's metadata are carried over (all of it but
 * what tells its quantization and its splitting); a Hugging Face base's are written from the description, the tokenizer and the
 * chat template. */
#ifndef AG_EXPORT_GGUF_H
#define AG_EXPORT_GGUF_H

#include "adapter/adapter.h"
#include "adapter/export_tensors.h"
#include "adapter/gguf_recipe.h"

/* AG_E_UNSUPPORTED: a model or tokenizer that llama.cpp's format cannot describe; AG_E_NUMERIC: a weight that the type cannot hold. */
AG_MUST_USE ag_status ag_export_gguf(const char *path, ag_gguf_recipe recipe, const ag_export_options *options, ag_export_report *report,
                                     ag_err *err);

/* The adapter alone, as llama.cpp's --lora takes it: <tensor>.lora_a [R,K] and .lora_b [N,R] in f32 or f16, rows of q's and k's B in
 * the order of the base's own rows. d is the base's description; the report counts tensors and bytes. Its alpha is scale·R, because
 * llama.cpp knows no other scale than alpha/R. */
AG_MUST_USE ag_status ag_export_gguf_lora(const char *path, ag_weight_type type, const ag_adapter *adapter, const ag_description *d,
                                          const char *name, ag_export_report *report, ag_err *err);

#endif
