/* Unigram: the way through a piece with the highest sum of log probabilities (Viterbi). */
#ifndef AG_UNIGRAM_H
#define AG_UNIGRAM_H

#include "text/added_tokens.h"
#include "text/token_vocab.h"
#include "text/word_tokens.h"

typedef struct {
    const ag_token_vocab *vocab; /* borrowed */
    double *scores;              /* by id */
    ag_added_trie trie;          /* the texts of the vocabulary; values are ids */
    double min_score;
    int32_t unk_id;              /* -1: none */
    bool byte_fallback;
    int32_t fallback_ids[256];
} ag_unigram;

/* Takes over `scores` (malloc'ed, one for each id of the complete vocabulary). */
void ag_unigram_init(ag_unigram *u, const ag_token_vocab *vocab, double *scores, int32_t unk_id, bool byte_fallback);
void ag_unigram_deinit(ag_unigram *u);
/* Appends the tokens of a piece. AG_E_DATA where a character has no token and there is no unknown token. */
AG_MUST_USE ag_status ag_unigram_piece(const ag_unigram *u, const unsigned char *text, size_t n, ag_word_tokens *out,
                                       ag_err *err);

#endif
