/* WordPiece: the longest token from the left, again and again; a word that cannot be covered is unknown as a whole.
 * WordLevel: a word is a token or unknown. */
#ifndef AG_WORDPIECE_H
#define AG_WORDPIECE_H

#include "base/str.h"
#include "text/token_vocab.h"
#include "text/word_tokens.h"

typedef struct {
    const ag_token_vocab *vocab; /* borrowed */
    char *prefix;                /* of tokens inside a word, "##" */
    size_t max_chars;            /* longer words are unknown */
    int32_t unk_id;
    bool whole_words;            /* WordLevel */
} ag_wordpiece;

void ag_wordpiece_deinit(ag_wordpiece *w);
/* Appends the tokens of a word. AG_E_DATA where it is unknown and there is no unknown token. */
AG_MUST_USE ag_status ag_wordpiece_word(const ag_wordpiece *w, const unsigned char *word, size_t n, ag_word_tokens *out,
                                        ag_err *err);

#endif
