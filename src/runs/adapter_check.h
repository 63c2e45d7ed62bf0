/* An adapter's folder held against its base, for a readiness report. Headers are read, weights never.
 *
 * Usable config: a regular file, a JSON object; a base model's name; peft_type LORA; revision absent or with something in it; r
 * a whole number over 0, lora_alpha finite, lora_dropout in [0, 1], rank_pattern and alpha_pattern with dotted names and good
 * values; no key that PEFT's LoraConfig does not know.
 *
 * Usable weights: a config that agoge can follow (peft_io.h), whose patterns of modules are plain (targets.h); the base here
 * and whole; and a regular file whose tensors are floating and are, to the last one, what the config trains in the base, in
 * their shapes: pairs, DoRA's magnitudes, biases, saved modules. Beside them only <module>.base_layer.weight of a targeted
 * embedding. */
#ifndef AG_ADAPTER_CHECK_H
#define AG_ADAPTER_CHECK_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A trained tensor, in the order of the base's modules: bias, A, B, magnitude. */
typedef struct {
    int rank;
    int64_t dim[2];
    int group, plus_group; /* of the optimizer: of the Trainer's two, of LoRA+'s four */
} ag_trained_shape;

typedef struct {
    const char *base_model, *revision; /* as the config names them; NULL: it does not, or cannot be read */
    bool config_usable, weights_usable;
    const ag_trained_shape *shapes;    /* where weights_usable */
    size_t n_shapes;
    ag_err why;                        /* the first thing that is amiss where not both are usable */
} ag_adapter_report;

typedef struct {
    bool allow_unsafe;     /* adapter_model.bin, read by the bounded reader, where there is no adapter_model.safetensors */
    const char *hub_cache; /* NULL: none */
} ag_adapter_check_options;

/* `dir` is where the adapter's files are read; `shown` is what sentences call it. Never fails: what cannot be read is not
 * usable. */
void ag_adapter_check(ag_adapter_report *out, const char *dir, const char *shown, const ag_adapter_check_options *options,
                      ag_arena *arena);

/* Only what adapter_config.json says of the base: base_model and revision. */
void ag_adapter_check_names(ag_adapter_report *out, const char *dir, const char *shown, ag_arena *arena);

/* Whether the adapter is whole by itself: a usable config, and a weights file that is as long as its header says and has only
 * complete pairs. The base need not be there. */
bool ag_adapter_is_sound(const char *dir, const char *shown, const ag_adapter_check_options *options, ag_arena *arena);

#endif
