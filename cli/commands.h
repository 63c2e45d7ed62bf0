/* Every command of the program, in the order of `agoge help`. One file per command: cli/cmd_<name>.c defines cli_<name>. */
#ifndef AGOGE_CLI_COMMANDS_H
#define AGOGE_CLI_COMMANDS_H

#include "cli/options.h"

#define CLI_COMMANDS(X) \
    X(check)             \
    X(bench)             \
    X(plan)              \
    X(train_qlora)       \
    X(train_lora)        \
    X(generate)          \
    X(chat)              \
    X(serve)             \
    X(serve_vllm)        \
    X(smoke_vllm)        \
    X(score)             \
    X(run_status)        \
    X(cleanup_run)       \
    X(watch)             \
    X(report)            \
    X(export_final_model) \
    X(merge_adapter)     \
    X(export_gguf)       \
    X(quantize)          \
    X(seal_bundle)       \
    X(verify_bundle)     \
    X(replay)            \
    X(pull)              \
    X(tokenize)          \
    X(detokenize)        \
    X(render_chat)       \
    X(model_metadata)    \
    X(inspect_lora_targets) \
    X(inspect_safetensors) \
    X(dataset_stats)     \
    X(freeze_split)      \
    X(held_out_eval)     \
    X(g0_held_out_eval)  \
    X(smoke_eval)        \
    X(consumer_contract) \
    X(token_statistics)  \
    X(compose_mixture)   \
    X(freeze_granite_first_sft) \
    X(run_granite_first_sft)


#define X(name) extern const cli_command cli_##name;
CLI_COMMANDS(X)
#undef X

#endif
