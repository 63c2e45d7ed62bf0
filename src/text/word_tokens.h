/* The tokens that a model makes of one piece, with the bytes of the piece that each covers; one list per thread. */
#ifndef AG_WORD_TOKENS_H
#define AG_WORD_TOKENS_H

#include "base/arena.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    int32_t id;
    uint32_t start, end;
    bool surface; /* shown as the text it covers, not as the vocabulary's */
} ag_word_token;

typedef struct {
    ag_word_token *tokens;
    size_t n, room;
} ag_word_tokens;

static inline void ag_word_tokens_push(ag_word_tokens *w, ag_word_token token)
{
    if (w->n == w->room) {
        w->room = w->room ? w->room * 2 : 64;
        w->tokens = realloc(w->tokens, w->room * sizeof *w->tokens);
        if (!w->tokens) ag_out_of_memory(w->room * sizeof *w->tokens);
    }
    w->tokens[w->n++] = token;
}

#endif
