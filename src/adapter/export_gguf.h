/* A merged model as one GGUF file: f32, f16, bf16 or q8_0.
 *
 *     AG_TRY(ag_export_gguf("model.gguf", AG_W_Q8_0, &options, &report, err));      // whole or not at all
 *
 * Names, order of q and k rows and metadata are those of llama.cpp's converter. Vectors are f32; a matrix whose rows are no
 * multiple of 32 is f16 where q8_0 was asked for, as llama.cpp does it. A GGUF base's metadata are carried over (all of it but
 * what tells its quantization and its splitting); a Hugging Face base's are written from the description, the tokenizer and the
 * chat template. */
#ifndef AG_EXPORT_GGUF_H
#define AG_EXPORT_GGUF_H

#include "adapter/export_tensors.h"

/* AG_E_UNSUPPORTED: another type, or a model or tokenizer that llama.cpp's format cannot describe. */
AG_MUST_USE ag_status ag_export_gguf(const char *path, ag_weight_type type, const ag_export_options *options, ag_export_report *report,
                                     ag_err *err);

#endif
