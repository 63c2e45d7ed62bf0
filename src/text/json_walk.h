/* Walking through JSON text without building it: for vocabularies and merges, which are most of a tokenizer.json and need no
 * tree. What is walked over is checked as far as it is read; the rest of the file goes to the JSON library. */
#ifndef AG_JSON_WALK_H
#define AG_JSON_WALK_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *text, *at, *end; /* the whole text, the next byte, the end */
    const char *name;            /* for sentences */
    ag_err *err;
} ag_json_walk;

/* Skips white space; the next byte, or 0 at the end. */
char ag_json_walk_peek(ag_json_walk *w);
/* The next thing must be this byte. */
AG_MUST_USE ag_status ag_json_walk_byte(ag_json_walk *w, char c);
/* Takes the byte if it is next. */
bool ag_json_walk_take(ag_json_walk *w, char c);
/* A string, unescaped, replaces what is in *out. Lone surrogates and malformed UTF-8 are AG_E_FORMAT. */
AG_MUST_USE ag_status ag_json_walk_string(ag_json_walk *w, ag_str *out);
AG_MUST_USE ag_status ag_json_walk_int(ag_json_walk *w, int64_t *out);
AG_MUST_USE ag_status ag_json_walk_double(ag_json_walk *w, double *out);
/* Over one value of any kind, at most 512 deep. */
AG_MUST_USE ag_status ag_json_walk_skip(ag_json_walk *w);

#endif
