/* The training config: one flat YAML file, its defaults and its refusals. docs/configuration.md lists every key.
 *
 *     ag_train_config *config;
 *     AG_TRY(ag_train_config_load(&config, "configs/demo.yaml", sets, n_sets, err));   // sets: "learning_rate=1e-4", …
 *     … config->learning_rate …
 *     ag_train_config_free(&config);
 *
 * Owns all of its text (one arena). The keys stand in one table, train_config_keys.h: type, default, bounds, section and help
 * text; the struct below has a member of the same name for each. A key that is unknown, twice there, of the wrong type or out
 * of bounds is an error that names file, line, key and what was expected; no key is ever ignored. Anchors, aliases, tags and
 * several documents are refused: nothing in this file needs them.
 *
 * `--set key=value` replaces one key after the file was read; the value is parsed like the file's own, and is recorded. */
#ifndef AG_TRAIN_CONFIG_H
#define AG_TRAIN_CONFIG_H

#include "adapter/adapter.h"
#include "base/arena.h"
#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Enums follow the order of the words in train_config_keys.h; so do ag_targets_mode and ag_bias_mode (adapter). */
typedef enum { AG_COMPUTE_DTYPE_BFLOAT16, AG_COMPUTE_DTYPE_FLOAT32 } ag_compute_dtype;
typedef enum { AG_QUANT_TYPE_NF4 } ag_quant_type;
typedef enum {
    AG_LR_SCHEDULE_LINEAR,
    AG_LR_SCHEDULE_COSINE,
    AG_LR_SCHEDULE_CONSTANT,
    AG_LR_SCHEDULE_CONSTANT_WITH_WARMUP
} ag_lr_schedule;
typedef enum { AG_OPTIM_ADAMW_TORCH, AG_OPTIM_ADAMW_8BIT } ag_optim;
typedef enum { AG_PROFILE_PHASE_TRAIN } ag_profile_phase;

typedef struct {
    const char **item; /* n texts */
    size_t n;
    bool is_pattern;   /* written as one text, not as a list: a pattern */
} ag_text_list;
typedef struct {
    int64_t *item;
    size_t n;
} ag_int_list;

typedef struct {
    ag_lora_override *item;
    size_t n;
} ag_lora_override_list;

typedef struct {
    const char *key, *value; /* as given after --set */
} ag_config_override;

typedef struct ag_train_config {
    /* top level */
    const char *model_id, *revision;              /* revision may be NULL */
    const char *model_path;                       /* what is opened: model_id itself; where that is a hub id, the program puts the place
                                                   * in the cache here, which must live as long as the configuration */
    bool trust_remote_code;                       /* always false: true is refused */
    const char *dataset_path, *eval_dataset_path; /* as written; eval may be NULL. Open dataset_file, eval_dataset_file */
    const char *dataset_text_field, *output_dir, *run_name;

    /* quantization */
    bool load_in_4bit, bnb_4bit_use_double_quant;
    ag_quant_type bnb_4bit_quant_type;
    ag_compute_dtype bnb_4bit_compute_dtype; /* ask ag_train_config_computes_bf16 */

    /* training */
    int64_t max_seq_length, batch_size, gradient_accumulation_steps;
    bool gradient_checkpointing, bf16;
    double learning_rate;
    int64_t num_train_epochs, max_steps /* -1: epochs decide */;
    ag_lr_schedule lr_scheduler_type;
    int64_t warmup_steps;
    double warmup_ratio;
    double weight_decay, adam_beta1, adam_beta2, adam_epsilon, max_grad_norm /* 0: no clipping */;
    double neftune_noise_alpha, loraplus_lr_ratio; /* 0: none */
    ag_optim optim;
    bool packing, completion_only_loss, assistant_only_loss;
    int64_t seed, eval_steps /* 0: no evaluation while training */, eval_prompt_tokens;
    int64_t save_steps /* 0: no checkpoint but the last */, save_total_limit /* 0: no limit */;
    bool resume_from_latest_checkpoint;
    const char *resume_checkpoint_path; /* may be NULL; path rules are the resumer's */

    /* lora */
    int64_t lora_r, lora_alpha;
    double lora_dropout;
    bool use_rslora, use_dora;
    ag_bias_mode bias;
    ag_text_list target_modules, exclude_modules;
    ag_targets_mode target_modules_mode;
    ag_text_list modules_to_save, layers_pattern, eval_prompts;
    ag_int_list layers_to_transform;
    ag_lora_override_list rank_pattern, alpha_pattern;

    /* runtime */
    bool save_safetensors, allow_unsafe_serialization, save_on_signal;
    const char *max_shard_size; /* bytes: ag_byte_size_parse */
    double disk_free_warning_gb, checkpoint_disk_buffer_gb;
    const char *logging_dir; /* never NULL after parsing: "runs/<run_name>" where the file says nothing */

    struct {
        const char *run_id; /* may be NULL */
        bool emit_markers;
        struct {
            bool enabled;
            ag_profile_phase phase;
            int64_t start_step, end_step;
            const char *backend;
        } profile_window;
    } telemetry;

    /* Not keys: */
    const char *path;                             /* the YAML file, absolute; NULL after ag_train_config_parse */
    const char *dataset_file, *eval_dataset_file; /* absolute, existing files; NULL after ag_train_config_parse */
    const char *run_dir;                          /* "<output_dir>/<run_name>", relative to the working directory */
    ag_config_override *overrides;                /* n_overrides, in the order given */
    size_t n_overrides;
    ag_arena arena; /* of everything above */
} ag_train_config;

/* Reads the file (at most 1 MiB), applies `sets` ("key=value", n_sets of them), checks everything, and resolves
 * paths: dataset_path and eval_dataset_path against the YAML's own folder ("../data/x.jsonl" is allowed there), the rest
 * against the working directory. The dataset files must exist. */
AG_MUST_USE ag_status ag_train_config_load(ag_train_config **out, const char *path, const char *const *sets, size_t n_sets,
                                           ag_err *err);
/* The same from memory, without looking at the file system; `name` stands in sentences. */
AG_MUST_USE ag_status ag_train_config_parse(ag_train_config **out, const char *bytes, size_t n, const char *name,
                                            const char *const *sets, size_t n_sets, ag_err *err);
void ag_train_config_free(ag_train_config **config);

/* Whether GEMM operands are rounded to bf16 (sums stay f32): with load_in_4bit bnb_4bit_compute_dtype decides, else bf16. */
bool ag_train_config_computes_bf16(const ag_train_config *config);

/* The config as the run manifest and the locked config hold it: an object with the top-level keys and the objects
 * quantization, training, lora, runtime, telemetry. Every key is there, defaults too; dataset paths as resolved. */
void ag_train_config_write(const ag_train_config *config, ag_json_writer *w, const char *key);
/* What --set changed: a list of {"key": …, "value": …}, both texts. */
void ag_train_config_write_overrides(const ag_train_config *config, ag_json_writer *w, const char *key);

/* "4GB", "500MB", "200KiB", "1048576": bytes. KB, MB, GB, TB are powers of 1000, KiB … TiB of 1024, as in transformers. */
AG_MUST_USE ag_status ag_byte_size_parse(uint64_t *bytes, const char *text, ag_err *err);

/* The table, for help texts and documentation. `type` is "string", "integer", …; `fallback` the default as YAML. */
typedef struct {
    const char *key, *section, *type, *fallback, *allowed, *help;
} ag_config_key_info;
size_t ag_train_config_keys(const ag_config_key_info **info); /* static storage */

#endif
