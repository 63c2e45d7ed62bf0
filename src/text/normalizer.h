/* Normalizers of a tokenizer.json: rewriting the text before it is cut. A Sequence is a list of rules, applied one by one. */
#ifndef AG_NORMALIZER_H
#define AG_NORMALIZER_H

#include "base/json.h"
#include "text/pattern.h"
#include "text/pieces.h"

typedef enum {
    AG_NORM_NFC, AG_NORM_NFD, AG_NORM_NFKC, AG_NORM_NFKD, AG_NORM_LOWERCASE, AG_NORM_STRIP, AG_NORM_STRIP_ACCENTS, AG_NORM_PREPEND,
    AG_NORM_REPLACE, AG_NORM_BERT, AG_NORM_NMT, AG_NORM_PRECOMPILED, AG_NORM_BYTE_LEVEL
} ag_norm_kind;

typedef struct {
    ag_norm_kind kind;
    bool left, right;                                  /* Strip */
    bool clean_text, chinese, strip_accents, lowercase; /* BertNormalizer */
    ag_pattern pattern;                                /* Replace */
    char *text;                                        /* Prepend, Replace: what is put there */
    size_t n_text;
    struct ag_charsmap *charsmap;                      /* Precompiled */
} ag_norm_rule;

typedef struct {
    ag_norm_rule *rules;
    size_t n;
} ag_normalizer;

/* From the "normalizer" value of a tokenizer.json; NULL or null is none. Unknown kinds are AG_E_UNSUPPORTED. */
AG_MUST_USE ag_status ag_normalizer_init(ag_normalizer *z, const json_t *value, const char *name, ag_err *err);
void ag_normalizer_deinit(ag_normalizer *z);
/* Every piece without a token. */
AG_MUST_USE ag_status ag_normalizer_apply(const ag_normalizer *z, ag_pieces *p, ag_err *err);

/* The code point that stands for a byte in byte-level vocabularies (GPT-2's table), and back: -1 where it stands for none. */
uint32_t ag_byte_level_char(unsigned char byte);
int ag_byte_level_byte(uint32_t c);
/* One pass that writes every byte of every piece as its code point; shared with the ByteLevel pre-tokenizer. */
void ag_byte_level_map(ag_pieces *p);
/* One pass that puts a text in front of each piece that does not start with it (as NormalizedString::prepend aligns it). With
 * at_start_only, only before a piece whose original starts at 0. */
void ag_prepend(ag_pieces *p, const char *text, size_t n, bool even_if_there, bool at_start_only);
/* One pass that puts `text` in the place of what the pattern finds. */
AG_MUST_USE ag_status ag_replace(ag_pieces *p, const ag_pattern *pattern, const char *text, size_t n, ag_err *err);

/* Reading rules: the "type" of a rule ("" where it has none); a {"String": …} or {"Regex": …} pattern; texts copied. */
const char *ag_rule_type(const json_t *rule);
AG_MUST_USE ag_status ag_rule_pattern(ag_pattern *out, const json_t *rule, const char *key, const char *name, ag_err *err);
AG_MUST_USE ag_status ag_rule_text(char **out, size_t *n, const json_t *rule, const char *key, const char *name, ag_err *err);
/* Lists of a Sequence or the rule itself, in *n and *at(i); AG_E_FORMAT where a Sequence holds no list. */
AG_MUST_USE ag_status ag_rule_list(size_t *n, const json_t *rule, const char *list_key, const char *name, ag_err *err);
const json_t *ag_rule_at(const json_t *rule, const char *list_key, size_t i);

/* ---- Precompiled: the character map of a SentencePiece model (precompiled.c) ------------------------------------ */
AG_MUST_USE ag_status ag_charsmap_create(struct ag_charsmap **out, const char *base64, size_t n, const char *name, ag_err *err);
void ag_charsmap_free(struct ag_charsmap **map);
void ag_charsmap_apply(const struct ag_charsmap *map, ag_pieces *p);

#endif
