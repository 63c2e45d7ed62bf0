/* The text of an answer while its ids come: whole characters, cut in front of a stop text, and how much of it is certain. */
#ifndef AG_ANSWER_TEXT_H
#define AG_ANSWER_TEXT_H

#include "text/tokenizer.h"

typedef struct {
    ag_decode_stream stream;
    const char *const *stops; /* borrowed */
    int n_stops;
    ag_str text;              /* all so far; `certain` bytes of it cannot change any more */
    size_t certain;
    bool stopped;             /* a stop text came; text ends in front of it */
} ag_answer_text;

void ag_answer_text_init(ag_answer_text *a, const ag_tokenizer *tokenizer, bool skip_special, const char *const *stops, int n_stops);
void ag_answer_text_add(ag_answer_text *a, int32_t id);
void ag_answer_text_end(ag_answer_text *a); /* all of it is certain then */
void ag_answer_text_free(ag_answer_text *a);

/* Bytes at the end of text[0,n) that could be the beginning of `word`. */
size_t ag_text_held_back(const char *text, size_t n, const char *word);

#endif
