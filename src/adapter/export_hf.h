/* A merged model as a Hugging Face folder in bf16: config.json, generation_config.json, model.safetensors or shards with an
 * index, and the tokenizer's files.
 *
 *     ag_dir_writer dir;                                              // whole or not at all
 *     AG_TRY(ag_dir_begin(&dir, out_dir, ".agoge-export-staging-", err));
 *     AG_TRY(ag_export_hf(dir.staging, &options, &report, err));      // on failure: ag_dir_abort
 *     … whatever else belongs into the folder, its artifact index last …
 *     AG_TRY(ag_dir_commit(&dir, err));
 *
 * A Hugging Face base's config is carried over as it is, but for the dtype and for a quantization_config (the weights are
 * no longer quantized); a GGUF base's is written from its description. Nothing is downloaded and no code of a model is copied. */
#ifndef AG_EXPORT_HF_H
#define AG_EXPORT_HF_H

#include "adapter/export_tensors.h"
#include "base/str.h"

/* Writes into a folder that is there and empty. AG_E_UNSUPPORTED where a GGUF says something that no config.json can. */
AG_MUST_USE ag_status ag_export_hf(const char *dir, const ag_export_options *options, ag_export_report *report, ag_err *err);

/* Which shard each of n tensors goes to: in order, a new one where the next would pass max_bytes; a tensor over the limit has
 * one for itself. Returns the number of shards; max_bytes 0 is no limit. */
int64_t ag_hf_shards(int64_t *shard, const uint64_t *bytes, int64_t n, uint64_t max_bytes);

/* The text of a config.json with its dtype set to bfloat16 (where it has one), without quantization_config, and with
 * tie_word_embeddings false where `untie` (the embedding or the head was trained); the same bytes where nothing changes. Appends. */
AG_MUST_USE ag_status ag_hf_config_carry_over(ag_str *out, const char *config, size_t n, const char *name, bool untie, ag_err *err);
/* A config.json and a generation_config.json for a description. AG_E_UNSUPPORTED: rope divisors that are not llama3's. */
AG_MUST_USE ag_status ag_hf_config_write(ag_str *out, const ag_description *d, ag_err *err);
void ag_hf_generation_config_write(ag_str *out, const ag_description *d);

#endif
