/* From what the user gave to token ids: a text, a file of messages, a list of numbers. */
#ifndef AGOGE_CLI_PROMPTING_H
#define AGOGE_CLI_PROMPTING_H

#include "cli/session.h"

/* "1,2,3", at least one. */
AG_MUST_USE ag_status cli_parse_ids(int32_t **ids, int64_t *n, const char *text, ag_arena *arena, ag_err *err);
/* Text as the tokenizer takes it, with the special tokens it adds. */
AG_MUST_USE ag_status cli_encode(int32_t **ids, int64_t *n, const ag_model_text *text, const char *bytes, size_t n_bytes, bool add_special,
                                 ag_arena *arena, ag_err *err);
/* A conversation (a JSON list of messages), rendered with a generation prompt. What users wrote inside it cannot become a special
 * token: only the template's own text can. */
AG_MUST_USE ag_status cli_encode_messages(int32_t **ids, int64_t *n, const ag_model_text *text, const json_t *messages, ag_arena *arena,
                                          ag_err *err);
/* A JSON list from a file; `what` names it in the sentence. The caller frees it with ag_json_free. */
AG_MUST_USE ag_status cli_load_list(json_t **list, const char *path, const char *what, ag_err *err);
/* A text file, or standard input for "-". */
AG_MUST_USE ag_status cli_read_text(char **text, size_t *n, const char *path, ag_arena *arena, ag_err *err);

/* The text, or {"text": …}. */
void cli_print_text(const ag_str *text, const cli_format_options *format);

#endif
