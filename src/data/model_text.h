/* A model's text side: the tokenizer and chat template that lie in its folder or its .gguf file.
 *
 *     ag_model_text *text;
 *     AG_TRY(ag_model_text_open(&text, "path/to/folder-or-file.gguf", err));
 *     … text->tokenizer, text->chat …
 *     ag_model_text_close(&text);
 *
 * Folder: tokenizer.json (needed), tokenizer_config.json, special_tokens_map.json, chat_template.jinja. GGUF: tokenizer.ggml.* and
 * tokenizer.chat_template. A template that does not compile is no failure of the open: chat is NULL and chat_error says why, for
 * whoever wants to use it. */
#ifndef AG_MODEL_TEXT_H
#define AG_MODEL_TEXT_H

#include "base/arena.h"
#include "base/status.h"
#include "data/examples.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

typedef struct {
    ag_tokenizer *tokenizer;
    const char *chat_source; /* the template's text, NULL: the model has none */
    ag_chat_template *chat;  /* compiled, or NULL */
    ag_err chat_error;       /* where chat is NULL and chat_source is not */
    ag_chat_special specials[AG_N_SPECIAL];
    size_t n_specials;
    ag_arena arena;
} ag_model_text;

AG_MUST_USE ag_status ag_model_text_open(ag_model_text **out, const char *path, ag_err *err);
void ag_model_text_close(ag_model_text **text);

/* The template as the data pipeline takes it; `text` must outlive it. AG_E_UNSUPPORTED where there is none, or none that
 * compiles. */
AG_MUST_USE ag_status ag_model_text_chat(ag_chat *out, const ag_model_text *text, ag_err *err);
/* Renders. args->specials are filled in from the model. */
AG_MUST_USE ag_status ag_model_text_render(const ag_model_text *text, const ag_chat_render_args *args, ag_str *out,
                                           ag_chat_marks *marks, ag_err *err);

/* The tokenizer's files beside an adapter or a merged model: a folder's own are copied unchanged; for a GGUF they are written from its
 * tokenizer. `path` is what the text was opened from. */
AG_MUST_USE ag_status ag_model_text_save(const ag_model_text *text, const char *path, const char *dir, ag_err *err);

#endif
