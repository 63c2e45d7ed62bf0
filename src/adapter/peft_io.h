/* Adapters on disk in PEFT's layout, read and written.
 *
 *     <dir>/adapter_config.json           JSON, keys sorted, indent 2: peft_type "LORA", r, lora_alpha, target_modules …
 *     <dir>/adapter_model.safetensors     base_model.model.<module path>.lora_A.weight [r,in] and .lora_B.weight [out,r]
 *
 *                                          .lora_magnitude_vector [out] (DoRA), .base_layer.bias or .bias [out] (bias), .weight
 *                                          (modules_to_save); embed_tokens.lora_embedding_A [r,V], .lora_embedding_B [C,r]
 *
 *     ag_peft *p;
 *     AG_TRY(ag_peft_open_on(&p, "outputs/run", model, &(ag_peft_options){0}, err));
 *     ag_adapter_use(&decoder_options, &p->adapter);
 *     ag_peft_close(&p);
 *
 * Older layouts of the names are read, too: without base_model.model., with the adapter's name (.default.), with modules_to_save. or a
 * magnitude's .weight in them; original_module, which PEFT does not use either, is passed over.
 *
 * PEFT itself only warns where weights are missing or a key is unknown. Here the tensors must be exactly those that the config
 * selects, in the shapes of the base model, and what would change the numbers and is not computed here (LoHa, IA3, trainable tokens …)
 * is refused by the name of its key. */
#ifndef AG_PEFT_IO_H
#define AG_PEFT_IO_H

#include "adapter/adapter.h"
#include "base/str.h"

#define AG_PEFT_CONFIG_FILE "adapter_config.json"
#define AG_PEFT_WEIGHTS_FILE "adapter_model.safetensors"
#define AG_PEFT_PICKLED_FILE "adapter_model.bin"

typedef struct {
    ag_lora_config lora;
    const char *base_model; /* base_model_name_or_path, or NULL */
    const char *revision;   /* or NULL */
} ag_peft_config;

/* AG_E_FORMAT: no JSON object, or a value of the wrong kind; AG_E_UNSUPPORTED: a key that this version cannot follow. Texts go to
 * the arena; `name` stands in sentences. */
AG_MUST_USE ag_status ag_peft_config_parse(ag_peft_config *out, const char *bytes, size_t n, const char *name, ag_arena *arena,
                                           ag_err *err);
AG_MUST_USE ag_status ag_peft_config_load(ag_peft_config *out, const char *dir, ag_arena *arena, ag_err *err);
/* The config of an adapter as adapter_config.json has it, for ag_file_publish; `out` is appended to. */
void ag_peft_config_write(ag_str *out, const ag_lora_config *lora, const char *base_model, const char *revision);

typedef struct {
    const char *path; /* of the folder, as given */
    ag_peft_config config;
    ag_adapter adapter; /* bound to memory that this owns, without gradients */
    size_t params_bytes;
    ag_arena arena;
} ag_peft;

typedef struct {
    bool allow_pickle; /* read adapter_model.bin (torch's archive, by a reader that runs nothing) where there are no safetensors */
} ag_peft_options;

/* Config and weights, held against the base, on which the adapter is attached; the base must outlive it. F16 and BF16 weights become f32.
 * AG_E_SHAPE, AG_E_FORMAT and AG_E_DATA name file, tensor, found and expected. `options` may be NULL. */
AG_MUST_USE ag_status ag_peft_open_on(ag_peft **out, const char *dir, const ag_model *base, const ag_peft_options *options, ag_err *err);
/* The same for an adapter that is used beside an unchanged model (adapter.is_plain: pairs beside projections, DoRA or not): AG_E_UNSUPPORTED
 * for any other. */
AG_MUST_USE ag_status ag_peft_open(ag_peft **out, const char *dir, const ag_description *d, ag_err *err);
void ag_peft_close(ag_peft **peft);

/* The weights of <dir> into params [adapter->n_params], for an adapter that was planned before (resume). The base's embedding, which PEFT
 * saves beside a pair of the embedding, must be what `base` has; `base` may be NULL where adapter->is_plain. */
AG_MUST_USE ag_status ag_peft_read_weights(float *params, const ag_adapter *adapter, const ag_model *base, const char *dir,
                                           const ag_peft_options *options, ag_err *err);

/* Both files into a folder that is there; each appears whole or not at all. base_model and revision may be NULL. */
AG_MUST_USE ag_status ag_peft_save(const ag_adapter *adapter, const char *dir, const char *base_model, const char *revision,
                                   ag_err *err);

#endif
