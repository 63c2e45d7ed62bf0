/* Decoders of a tokenizer.json: from the texts of tokens to the text. */
#ifndef AG_TOKEN_DECODER_H
#define AG_TOKEN_DECODER_H

#include "base/json.h"
#include "text/pattern.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

typedef enum {
    AG_DECODE_BYTE_LEVEL, AG_DECODE_BPE, AG_DECODE_WORDPIECE, AG_DECODE_METASPACE, AG_DECODE_CTC, AG_DECODE_REPLACE, AG_DECODE_FUSE,
    AG_DECODE_STRIP, AG_DECODE_BYTE_FALLBACK
} ag_decode_kind;

typedef struct {
    ag_decode_kind kind;
    ag_pattern pattern;        /* Replace; BPE's suffix, WordPiece's prefix, Metaspace's replacement, CTC's pad token */
    char *text;                /* Replace: what is put there; CTC: the word delimiter; Strip: the character */
    size_t n_text;
    bool cleanup;              /* WordPiece, CTC */
    bool drop_first;           /* Metaspace: the mark in the first token stands for nothing */
    size_t start, stop;        /* Strip */
} ag_decode_rule;

typedef struct {
    ag_decode_rule *rules;
    size_t n;
    bool none; /* the file has no decoder: tokens are joined by spaces */
} ag_decoder;

AG_MUST_USE ag_status ag_decoder_init(ag_decoder *z, const json_t *value, const char *name, ag_err *err);
void ag_decoder_deinit(ag_decoder *z);

/* A list of texts, end to end. */
typedef struct {
    ag_str text;
    size_t *ends;
    size_t n, room;
} ag_texts;
void ag_texts_push(ag_texts *t, const char *text, size_t n);
void ag_texts_free(ag_texts *t);

/* Consumes the tokens' texts and appends the text. */
void ag_decoder_apply(const ag_decoder *z, ag_texts *tokens, ag_str *out);
/* Appends bytes as text, malformed parts as U+FFFD. */
void ag_add_lossy(ag_str *out, const char *bytes, size_t n);
/* The bytes that a byte-level token's text stands for; the text itself where it holds other characters. Appended. */
void ag_byte_level_unmap(ag_str *out, const char *text, size_t n);
/* The byte that "<0x41>" stands for; -1 for any other text. */
int ag_byte_token(ag_text token);

#endif
