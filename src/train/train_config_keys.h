/* The keys of the training config: one row each, in the order in which they are documented and written.
 *
 *     TEXT   (section, member, default, nullable, help)          default NULL: null in the file's words, or required
 *     FLAG   (section, member, default, help)
 *     INT    (section, member, default, min, max, help)
 *     COUNT  (section, member, default, max, help)               like INT, but null is allowed and means 0: no limit
 *     REAL   (section, member, default, min, below, help)        min <= value < below
 *     CHOICE (section, member, default, words, help)             words divided by '|', in the order of the enum
 *     OPTION (section, member, min, below, help)                 like REAL, but null is the default and means 0: off
 *     LIST   (section, member, default, help)                    of texts; default is its first items divided by '|', NULL: null
 *     NAMES  (section, member, default, help)                    like LIST, or one text, which is a pattern
 *     INTS   (section, member, help)                             of whole numbers >= 0, or one; the default is null
 *     MAP    (section, member, help)                             of names to numbers over 0; the default is null
 *
 * `member` is the member of ag_train_config, and its text is the key. Private to train_config*.c. */
#ifndef AG_TRAIN_CONFIG_KEYS_H
#define AG_TRAIN_CONFIG_KEYS_H

#include "train/train_config.h"

#define AG_TRAIN_KEYS(TEXT, FLAG, INT, COUNT, REAL, OPTION, CHOICE, LIST, NAMES, INTS, MAP)                                         \
    TEXT(TOP, model_id, NULL, false,                                                                                          \
         "Model: a Hugging Face folder, a .gguf file, or a hub id. Required. Of a .gguf the weights stay in the file's own"   \
         " quantization.")                                                                                                    \
    TEXT(TOP, revision, NULL, true, "Commit, tag or branch of a hub model. A number is taken as text; blank is null.")        \
    FLAG(TOP, trust_remote_code, false, "Only `false`: agoge runs no code that comes with a model.")                          \
    TEXT(TOP, dataset_path, NULL, false,                                                                                      \
         "JSONL file to train on. Required. A relative path starts at the folder of the YAML file, so `../data/x.jsonl` "     \
         "works from anywhere.")                                                                                              \
    TEXT(TOP, dataset_text_field, "text", false, "Column that holds the text of rows that are plain text.")                   \
    TEXT(TOP, output_dir, "adapters", false, "Folder of runs, relative to the working directory.")                            \
    TEXT(TOP, run_name, "run", false,                                                                                         \
         "Name of this run: one path component. The adapter goes to `<output_dir>/<run_name>`, the manifest to "              \
         "`runs/<run_name>`.")                                                                                                \
    FLAG(QUANTIZATION, load_in_4bit, true, "Quantize the projections of a Hugging Face model to 4 bits while loading.")       \
    CHOICE(QUANTIZATION, bnb_4bit_quant_type, AG_QUANT_TYPE_NF4, "nf4", "The 4-bit format.")                                  \
    CHOICE(QUANTIZATION, bnb_4bit_compute_dtype, AG_COMPUTE_DTYPE_BFLOAT16, "bfloat16|float32",                               \
         "With `load_in_4bit`: matrix products take operands rounded to bf16, or f32 ones. Sums are f32 in both. `float16`"   \
         " is refused: its range is too small for gradients without a loss scale.")                                           \
    FLAG(QUANTIZATION, bnb_4bit_use_double_quant, true, "Quantize the scales of the 4-bit blocks, too.")                      \
    INT(TRAINING, max_seq_length, 2048, 2, 1 << 20,                                                                           \
         "Most tokens of a row. Longer plain rows are cut and counted; with `completion_only_loss` they are refused. With "   \
         "`packing` it is the length of a packed row.")                                                                       \
    INT(TRAINING, batch_size, 1, 1, 65536, "Rows of a micro-batch.")                                                          \
    INT(TRAINING, gradient_accumulation_steps, 8, 1, 1000000,                                                                 \
         "Micro-batches of an optimizer step. The loss is one mean over all supervised tokens of the step.")                  \
    FLAG(TRAINING, gradient_checkpointing, true, "Recompute activations in the backward pass: less memory, more time.")       \
    REAL(TRAINING, learning_rate, 0.0002, 0, 1000, "Peak learning rate.")                                                     \
    INT(TRAINING, num_train_epochs, 1, 1, 1000000, "Passes over the dataset.")                                                \
    INT(TRAINING, max_steps, -1, -1, 1000000000,                                                                              \
         "Optimizer steps; > 0 ends there whatever the epochs, -1 leaves it to them.")                                        \
    CHOICE(TRAINING, lr_scheduler_type, AG_LR_SCHEDULE_LINEAR, "linear|cosine|constant|constant_with_warmup",                 \
         "How the learning rate moves, as in transformers. `constant` has no warm-up.")                                       \
    INT(TRAINING, warmup_steps, 0, 0, 1000000000,                                                                             \
         "Steps in which the learning rate rises from 0. Goes before `warmup_ratio`.")                                        \
    REAL(TRAINING, warmup_ratio, 0.0, 0, 1.0, "The same as a share of all steps, rounded up.")                                \
    REAL(TRAINING, weight_decay, 0.0, 0, 1000, "AdamW's decoupled weight decay, on matrices: not on biases and norms.")                    \
    REAL(TRAINING, adam_beta1, 0.9, 0, 1.0, "AdamW's first-moment decay.")                                                    \
    REAL(TRAINING, adam_beta2, 0.999, 0, 1.0, "AdamW's second-moment decay.")                                                 \
    REAL(TRAINING, adam_epsilon, 1e-8, 0, 1.0, "AdamW's epsilon.")                                                            \
    REAL(TRAINING, max_grad_norm, 1.0, 0, 1e30, "Gradients are scaled down to this norm; 0 switches clipping off.")           \
    CHOICE(TRAINING, optim, AG_OPTIM_ADAMW_TORCH, "adamw_torch|adamw_8bit",                                                   \
         "Optimizer. `adamw_8bit` holds the moments of tensors with 4096 numbers or more in 8 bits, as bitsandbytes does.")     \
    FLAG(TRAINING, bf16, true,                                                                                                \
         "Without `load_in_4bit`: matrix products take operands rounded to bf16 (`false`: f32). With it "                     \
         "`bnb_4bit_compute_dtype` decides.")                                                                                 \
    INT(TRAINING, seed, 42, 0, 4294967295, "Seed of row order, adapter start values and dropout.")                            \
    FLAG(TRAINING, packing, false, "Put several rows into one of `max_seq_length` tokens; they do not see each other.")       \
    FLAG(TRAINING, completion_only_loss, false, "Loss on the text behind each row's `completion_start_char` only.")           \
    FLAG(TRAINING, assistant_only_loss, false,                                                                                \
         "Loss on the assistant's turns of `messages` rows only, their ends included.")                                       \
    OPTION(TRAINING, neftune_noise_alpha, 0, 1e6,                                                                             \
           "NEFTune: noise on the embeddings while training, uniform in ±alpha / sqrt(tokens × width); 5 is usual.")           \
    OPTION(TRAINING, loraplus_lr_ratio, 1e-6, 1e6,                                                                            \
           "LoRA+: B, magnitudes, biases and norms learn so many times as fast as A; a pair beside the embedding learns at"    \
           " 1e-6. Groups as PEFT's `create_loraplus_optimizer` makes them.")                                                  \
    TEXT(TRAINING, eval_dataset_path, NULL, true,                                                                             \
         "JSONL file whose loss is measured while training; path as `dataset_path`.")                                         \
    INT(TRAINING, eval_steps, 0, 0, 1000000000, "Steps between two evaluations; 0: at the end only, if there is a file.")     \
    LIST(TRAINING, eval_prompts, NULL,                                                                                        \
         "Prompts answered greedily before the first step and at every evaluation, as user turns where the model has a chat"  \
         " template; `agoge watch` and `report` show the answers.")                                                           \
    INT(TRAINING, eval_prompt_tokens, 48, 1, 4096, "Longest of these answers.")                                               \
    INT(TRAINING, save_steps, 50, 0, 1000000000, "Optimizer steps between checkpoints; 0: none but the last.")                \
    COUNT(TRAINING, save_total_limit, 2, 1000000, "Checkpoints kept, the oldest go first; null or 0: all.")                   \
    FLAG(TRAINING, resume_from_latest_checkpoint, false, "Go on from the run's newest valid checkpoint, if there is one.")    \
    TEXT(TRAINING, resume_checkpoint_path, NULL, true, "Go on from this checkpoint; goes before the key above.")              \
    INT(LORA, lora_r, 16, 1, 65536, "Rank of the adapters.")                                                                  \
    INT(LORA, lora_alpha, 32, 1, 1000000, "Adapters are scaled by alpha / r, with `use_rslora` by alpha / sqrt(r).")          \
    REAL(LORA, lora_dropout, 0.05, 0, 1.0, "Share of adapter inputs set to 0 while training.")                                \
    FLAG(LORA, use_rslora, false, "Rank-stabilized scale.")                                                                   \
    FLAG(LORA, use_dora, false, "DoRA: a trained magnitude for every row, the sum of weight and adapter gives its direction.") \
    CHOICE(LORA, bias, AG_BIAS_NONE, "none|all|lora_only",                                                                    \
           "Which of the model's own biases are trained: none, all, those of modules with an adapter.")                        \
    NAMES(LORA, target_modules, "q_proj|v_proj",                                                                              \
          "Modules that get an adapter: leaf names (`agoge inspect-lora-targets` lists a model's), or ends of paths. As one"   \
          " text: `all-linear`, or a regular expression for whole paths.")                                                                                                \
    NAMES(LORA, exclude_modules, NULL, "Modules that get none although `target_modules` names them; names or a pattern.")      \
    CHOICE(LORA, target_modules_mode, AG_TARGETS_AUTO_COMMON, "auto_common|discover_required|explicit",                       \
         "`auto_common`: those of the list (or of the common seven, if empty) that exist. `discover_required`: the list "     \
         "must not be empty; a missing one is dropped with a warning. `explicit`: a missing one is an error.")                \
    LIST(LORA, modules_to_save, NULL,                                                                                         \
         "Modules trained in full and saved with the adapter: ends of paths, such as `lm_head`, `embed_tokens`, `norm`. A tied" \
         " embedding or head is untied.")                                                                                      \
    INTS(LORA, layers_to_transform, "Layers that get adapters, by index; null: all.")                                          \
    LIST(LORA, layers_pattern, NULL, "Name of the list of layers that `layers_to_transform` counts; null: any.")               \
    MAP(LORA, rank_pattern, "Ranks of the modules whose paths end with a key (a regular expression); the first counts.")       \
    MAP(LORA, alpha_pattern, "Alphas of such modules.")                                                                        \
    FLAG(RUNTIME, save_safetensors, true, "Only `true`: agoge writes no pickled weights.")                                    \
    FLAG(RUNTIME, allow_unsafe_serialization, false, "Let checks on resume and export accept `.bin` weight files.")           \
    TEXT(RUNTIME, max_shard_size, "4GB", false, "Largest file of an exported model: `500MB`, `4GB`, `2GiB`, or bytes.")       \
    REAL(RUNTIME, disk_free_warning_gb, 20.0, 0, 1e9, "Warn when less is free under `output_dir`.")                           \
    REAL(RUNTIME, checkpoint_disk_buffer_gb, 8.0, 0, 1e9, "Warn when less than this is left for checkpoints.")                \
    TEXT(RUNTIME, logging_dir, NULL, true, "Where `metrics.jsonl` and TensorBoard events go; null: `runs/<run_name>`.")       \
    FLAG(RUNTIME, save_on_signal, true,                                                                                       \
         "SIGINT or SIGTERM: finish the step, write a checkpoint, exit 130 or 143. A second one ends at once.")               \
    TEXT(TELEMETRY, telemetry.run_id, NULL, true, "Correlation id; null: `run_name`.")                                        \
    FLAG(TELEMETRY, telemetry.emit_markers, true, "Write the marker stream of the run.")                                      \
    FLAG(PROFILE, telemetry.profile_window.enabled, false, "Profile a window of steps (docs/run-telemetry.md).")        \
    CHOICE(PROFILE, telemetry.profile_window.phase, AG_PROFILE_PHASE_TRAIN, "train", "Phase of the window.")                  \
    INT(PROFILE, telemetry.profile_window.start_step, 1, 1, 1000000000, "First step of the window.")                          \
    INT(PROFILE, telemetry.profile_window.end_step, 2, 1, 1000000000, "Last step of the window; not before the first.")       \
    TEXT(PROFILE, telemetry.profile_window.backend, "torch", false, "Profiler of the window.")

typedef enum {
    AG_CONFIG_TEXT,
    AG_CONFIG_FLAG,
    AG_CONFIG_INT,
    AG_CONFIG_COUNT,
    AG_CONFIG_REAL,
    AG_CONFIG_OPTION,
    AG_CONFIG_CHOICE,
    AG_CONFIG_LIST,
    AG_CONFIG_NAMES,
    AG_CONFIG_INTS,
    AG_CONFIG_MAP
} ag_config_kind;

typedef enum {
    AG_SECTION_TOP,
    AG_SECTION_QUANTIZATION,
    AG_SECTION_TRAINING,
    AG_SECTION_LORA,
    AG_SECTION_RUNTIME,
    AG_SECTION_TELEMETRY,
    AG_SECTION_PROFILE,
    AG_N_SECTIONS
} ag_config_section;

typedef struct {
    ag_config_kind kind;
    ag_config_section section;
    const char *key;
    size_t offset; /* of the member */
    const char *text; /* TEXT's default, CHOICE's words, LIST's and NAMES' default */
    bool nullable, flag;
    int64_t whole, min_whole, max_whole; /* INT, COUNT; whole is CHOICE's default, too */
    double real, min_real, below_real;
    const char *help;
} ag_config_row;

extern const ag_config_row ag_config_rows[];
extern const size_t ag_n_config_rows;
extern const char *const ag_config_sections[AG_N_SECTIONS]; /* "", "quantization", …, "profile_window" */

void ag_config_row_set_default(const ag_config_row *row, ag_train_config *config);
/* The i-th of "a|b|c" as text in the arena; NULL behind the last. */
const char *ag_config_word(const char *words, size_t i, ag_arena *arena);

/* train_config_yaml.c: reads a whole file, or the value of one key, into the config. */
AG_MUST_USE ag_status ag_config_read_yaml(ag_train_config *config, const char *bytes, size_t n, const char *name, ag_err *err);
AG_MUST_USE ag_status ag_config_read_override(ag_train_config *config, const char *set, ag_err *err);

#endif
