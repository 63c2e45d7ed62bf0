/* From a conversation or a text to the ids that a model answers: one way for the command line and the server. */
#ifndef AG_CHAT_PROMPT_H
#define AG_CHAT_PROMPT_H

#include "base/arena.h"
#include "data/model_text.h"

/* The conversation of `args`, rendered and encoded. What users wrote inside it (the messages' contents) cannot become a special token:
 * only the template's own text can. ids live in the arena. */
AG_MUST_USE ag_status ag_chat_prompt_encode(int32_t **ids, int64_t *n, const ag_model_text *text, const ag_chat_render_args *args,
                                            ag_arena *arena, ag_err *err);
/* A text as the tokenizer takes it; with the special tokens it adds, where they are wanted. */
AG_MUST_USE ag_status ag_text_prompt_encode(int32_t **ids, int64_t *n, const ag_model_text *text, const char *bytes, size_t n_bytes,
                                            bool add_special, ag_arena *arena, ag_err *err);

#endif
