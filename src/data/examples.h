/* A dataset as token ids: every row tokenized once, in one compact block, with a bit for each token that is a target.
 *
 *     ag_examples *x;
 *     AG_TRY(ag_examples_make(&x, rows, &(ag_examples_options){.tokenizer = t, .chat = &chat, .text_field = "text",
 *                             .max_seq_length = 512, .n_vocab = d.V, .n_threads = 4}, err));
 *     … x->ids[x->offset[r] … x->offset[r+1]) is row r; ag_examples_is_target(x, x->offset[r] + t) …
 *     ag_examples_free(&x);
 *
 * Token t of a row is a target when it is to be predicted from tokens 0 … t-1 of the row; the first token never is one. So the
 * number of targets is the number of terms of the loss ("supervised tokens after the shift").
 *
 * How a row becomes ids (Hugging Face's conventions):
 *     text, instruction   the tokenizer's own special tokens (a BOS where it adds one), then one EOS unless the text
 *                         ends with it (never two, where both the text and the tokenizer bring one). A tokenizer without
 *                         EOS: none is added. Every token but the first is a target.
 *     messages            the chat template's text, without a generation prompt, tokenized as it is: the template writes BOS
 *                         and end-of-turn tokens itself, so nothing is added. Without a template: as text, a line
 *                         "Role: content" for each message.
 *     completion_only     forge.md §1.5: only the completion and the terminal EOS are targets.
 *     assistant_only      only what the assistant says, the token that ends its turn included: by the template's
 *                         {% generation %} marks where it has them, else by rendering the conversation up to each
 *                         assistant message, which must begin the rendering up to and with it; a template for which it does
 *                         not is refused. What follows the last special token of a turn (the "\n" behind <|im_end|>) is no
 *                         target.
 *
 * A row longer than max_seq_length is cut behind it and counted (n_cut, n_cut_tokens, first_cut_line: say so to the user);
 * with completion_only it is refused. A row without any target is an error that names its line: it would train nothing.
 *
 * Rows are read and tokenized by all threads; the result does not depend on their number, nor does the error: it is that of
 * the first wrong row. */
#ifndef AG_EXAMPLES_H
#define AG_EXAMPLES_H

#include "base/digest.h"
#include "base/status.h"
#include "data/rows.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A chat template, as the caller has it. render is called from several threads at once, with messages a list of role and
 * content, and tools a list or NULL; it appends to *out. Where marks_assistant is set and marks is not NULL, it appends the
 * byte ranges of *out that the template marked as the assistant's to *marks (pairs of ag_text_range, ascending). */
typedef struct {
    ag_text_range *range;
    size_t n, room;
} ag_range_list;
void ag_range_list_add(ag_range_list *list, size_t start, size_t end);
void ag_range_list_free(ag_range_list *list);

typedef ag_status ag_chat_render_fn(void *user, const json_t *messages, const json_t *tools, bool add_generation_prompt,
                                    ag_str *out, ag_range_list *marks, ag_err *err);
typedef struct {
    ag_chat_render_fn *render;
    void *user;
    bool marks_assistant; /* the template has {% generation %} */
} ag_chat;

typedef struct {
    const ag_tokenizer *tokenizer;
    const ag_chat *chat;    /* NULL: the model has no chat template */
    const char *text_field; /* dataset_text_field */
    int64_t max_seq_length; /* INT64_MAX: no limit */
    int64_t n_vocab;        /* rows of the embedding: an id beyond is an error; 0: not checked */
    bool completion_only, assistant_only;
    bool allow_no_target; /* for counting tokens: rows without a target are no error */
    int n_threads;        /* 0 is 1 */
} ag_examples_options;

typedef struct {
    int32_t *ids;          /* [n_tokens] */
    uint64_t *target_bits; /* bit t: token t of the block is a target */
    int64_t *offset;       /* [n + 1]; row r is [offset[r], offset[r+1]) */
    uint32_t *line;        /* [n], the line that row r stands in, from 1 */
    int64_t n, n_tokens, n_targets;
    int64_t shortest, longest;
    int64_t n_cut, n_cut_tokens, first_cut_line; /* rows that were longer, tokens lost, the first one's line */
    int64_t n_chat, n_plain_chat;                /* messages rows, and those among them written without a template */
    ag_sha256 prepared;                          /* completion_only: see ag_examples_write_evidence */
    size_t bytes;                                /* of memory, all arrays */
} ag_examples;

AG_MUST_USE ag_status ag_examples_make(ag_examples **out, const ag_rows *rows, const ag_examples_options *options, ag_err *err);
void ag_examples_free(ag_examples **examples);

static inline bool ag_examples_is_target(const ag_examples *x, int64_t token)
{
    return x->target_bits[token >> 6] >> (token & 63) & 1u;
}

/* completion_preprocessing.json of forge.md §1.5, published at `path` (its folder must exist). prepared_sha256 is over every
 * row in order: the row's own columns and input_ids, completion_mask and labels, as JSON with sorted keys and Python's default
 * separators, and a '\n'. */
AG_MUST_USE ag_status ag_examples_write_evidence(const ag_examples *x, int64_t max_seq_length, const char *path, ag_err *err);

#endif
