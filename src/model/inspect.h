/* Reports about models and weight files that load no weights, as JSON (indent 2). The commands model-metadata,
 * inspect-lora-targets and inspect-safetensors print them; docs say what each field means.
 *
 *     ag_str json = {0};
 *     AG_TRY(ag_inspect_safetensors(&json, "model.safetensors", err));
 *     … json.text …
 *     ag_str_free(&json);
 *
 * A report is added to the text only when it is whole. Sentences name the file that was at fault. */
#ifndef AG_INSPECT_H
#define AG_INSPECT_H

#include "base/status.h"
#include "base/str.h"

/* {"metadata": object or null, "tensors": {name: {"shape", "dtype"}}}, tensors by name. */
AG_MUST_USE ag_status ag_inspect_safetensors(ag_str *json, const char *path, ag_err *err);

/* model_id, revision (NULL: null), model_type, architectures, torch_dtype, sizes, has_safetensors, has_bin, has_custom_code. Any
 * architecture will do; what a config does not say is "unknown". `path` is a Hugging Face folder or a .gguf file. */
AG_MUST_USE ag_status ag_inspect_model_metadata(ag_str *json, const char *path, const char *model_id, const char *revision, ag_err *err);

/* Modules that adapters can go to, by the last part of their name: model_id, architectures, candidate_leaf_names,
 * full_module_matches_count, recommended_common_targets, custom_architecture_warnings. Of any architecture: a module is what owns
 * a matrix, and what is no embedding is Linear. */
AG_MUST_USE ag_status ag_inspect_lora_targets(ag_str *json, const char *path, const char *model_id, ag_err *err);

#endif
