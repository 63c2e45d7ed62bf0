/* Pre-tokenizers of a tokenizer.json: where the text is cut before the model sees it. */
#ifndef AG_PRETOKENIZER_H
#define AG_PRETOKENIZER_H

#include "base/json.h"
#include "text/pattern.h"
#include "text/pieces.h"

typedef enum {
    AG_PRE_BYTE_LEVEL, AG_PRE_SPLIT, AG_PRE_DIGITS, AG_PRE_PUNCTUATION, AG_PRE_WHITESPACE, AG_PRE_WHITESPACE_SPLIT, AG_PRE_BERT,
    AG_PRE_METASPACE, AG_PRE_DELIMITER, AG_PRE_FIXED_LENGTH
} ag_pre_kind;

typedef enum { AG_PREPEND_ALWAYS, AG_PREPEND_FIRST, AG_PREPEND_NEVER } ag_prepend_scheme;

typedef struct {
    ag_pre_kind kind;
    bool add_prefix_space, use_regex;  /* ByteLevel */
    ag_split behavior;                 /* Split, Punctuation */
    bool invert;                       /* Split */
    bool individual;                   /* Digits */
    ag_pattern pattern;                /* Split, Metaspace's replacement, Delimiter, ByteLevel's own rule */
    ag_prepend_scheme scheme;          /* Metaspace */
    bool split;                        /* Metaspace */
    size_t length;                     /* FixedLength, in characters */
} ag_pre_rule;

typedef struct {
    ag_pre_rule *rules;
    size_t n;
} ag_pretokenizer;

/* From the "pre_tokenizer" value of a tokenizer.json; NULL or null is none. Unknown kinds are AG_E_UNSUPPORTED. */
AG_MUST_USE ag_status ag_pretokenizer_init(ag_pretokenizer *z, const json_t *value, const char *name, ag_err *err);
void ag_pretokenizer_deinit(ag_pretokenizer *z);
AG_MUST_USE ag_status ag_pretokenizer_apply(const ag_pretokenizer *z, ag_pieces *p, ag_err *err);

/* Metaspace, read once for the pre-tokenizer and once for the decoder. */
AG_MUST_USE ag_status ag_metaspace_read(ag_prepend_scheme *scheme, bool *split, const char **replacement, const json_t *rule,
                                        const char *name, ag_err *err);

#endif
