/* A model, its text side and maybe an adapter, opened as the commands' options say: what generate, chat, score and the tokenizer
 * commands begin with.
 *
 *     cli_session s;
 *     AG_TRY(cli_session_open(&s, &o.model, &o.compute, CLI_TEXT | CLI_WEIGHTS, err));
 *     …
 *     cli_session_close(&s);
 */
#ifndef AGOGE_CLI_SESSION_H
#define AGOGE_CLI_SESSION_H

#include "adapter/peft_io.h"
#include "cli/runtime.h"
#include "data/model_text.h"
#include "model/decoder.h"

typedef struct {
    const char *model, *adapter, *revision;
    bool allow_unsafe; /* read an adapter_model.bin */
    bool load_in_4bit; /* a folder's projections to NF4, as training saw them */
    const char *dtype; /* "f32" or "bf16": operands of the matrix products */
} cli_model_options;
extern const char *const cli_compute_dtypes[];
#define CLI_MODEL_DEFAULT {.dtype = "f32"}
#define CLI_MODEL(type, field)                                                                                              \
    CLI_STRING("model", type, field.model, "MODEL", "a model folder, a .gguf file, or org/name on the hub", CLI_REQUIRED),                          \
    CLI_STRING("revision", type, field.revision, "REV", "of a hub model", 0)
#define CLI_MODEL_WEIGHTS(type, field)                                                                                       \
    CLI_MODEL(type, field),                                                                                                  \
    CLI_STRING("adapter", type, field.adapter, "DIR", "a LoRA adapter in PEFT's layout, put on top", 0),                     \
    CLI_FLAG("allow-unsafe-serialization", type, field.allow_unsafe,                                                         \
             "read an adapter's adapter_model.bin where it has no safetensors (no code in it is run)"),                      \
    CLI_FLAG("load-in-4bit", type, field.load_in_4bit, "quantize a folder's projections to NF4, as QLoRA training does"),    \
    CLI_CHOICE("compute", type, field.dtype, "TYPE", "operands of the matrix products", cli_compute_dtypes)

enum { CLI_TEXT = 1, CLI_WEIGHTS = 2 };

typedef struct {
    ag_backend backend;
    ag_model_text *text;
    ag_model *model;
    ag_peft *peft; /* NULL without --adapter */
    ag_compute compute;
    const char *path; /* what was opened: the model that was named, or its place in the hub's cache */
    ag_arena arena;
} cli_session;
AG_MUST_USE ag_status cli_session_open(cli_session *s, const cli_model_options *model, const cli_compute_options *compute, int what,
                                       ag_err *err);
void cli_session_close(cli_session *s);

/* A decoder for calls of at most max_tokens rows and n_logits rows with logits or targets. */
AG_MUST_USE ag_status cli_session_decoder(ag_decoder **out, const cli_session *s, int64_t max_tokens, int64_t n_logits,
                                          int64_t max_positions, ag_err *err);

#endif
