/* What kind of character a code point is, as the regular expressions, digits, white space and punctuation rules of tokenizers
 * see it (unicode_ranges.h holds the answers of that library). Look-ups are one load from a flat table, which the first call of
 * ag_unicode_kinds fills. */
#ifndef AG_UNICODE_CLASS_H
#define AG_UNICODE_CLASS_H

#include "text/unicode_ranges.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AG_CODE_POINTS = 0x110000 };

/* kinds[c]: general category in the low five bits (AG_CAT_…), flags above (AG_CHAR_…). Thread-safe; never NULL. */
const uint16_t *ag_unicode_kinds(void);

/* Sets of general categories as bit masks: (AG_CATS_LETTER >> (kind & 31)) & 1. */
#define AG_CAT_BIT(cat) ((uint32_t)1 << (cat))
#define AG_CATS_LETTER \
    (AG_CAT_BIT(AG_CAT_LU) | AG_CAT_BIT(AG_CAT_LL) | AG_CAT_BIT(AG_CAT_LT) | AG_CAT_BIT(AG_CAT_LM) | AG_CAT_BIT(AG_CAT_LO))
#define AG_CATS_NUMBER (AG_CAT_BIT(AG_CAT_ND) | AG_CAT_BIT(AG_CAT_NL) | AG_CAT_BIT(AG_CAT_NO))
#define AG_CATS_MARK (AG_CAT_BIT(AG_CAT_MN) | AG_CAT_BIT(AG_CAT_MC) | AG_CAT_BIT(AG_CAT_ME))

static inline bool ag_kind_in(unsigned kind, uint32_t cats) { return cats >> (kind & 31) & 1; }

/* The code point at text[at] of valid UTF-8 and the bytes it takes. */
static inline uint32_t ag_utf8_peek(const unsigned char *text, size_t at, size_t *bytes)
{
    uint32_t b = text[at];
    if (b < 0x80) return *bytes = 1, b;
    if (b < 0xe0) return *bytes = 2, (b & 0x1f) << 6 | (text[at + 1] & 0x3f);
    if (b < 0xf0) return *bytes = 3, (b & 0x0f) << 12 | (uint32_t)(text[at + 1] & 0x3f) << 6 | (text[at + 2] & 0x3f);
    return *bytes = 4, (b & 0x07) << 18 | (uint32_t)(text[at + 1] & 0x3f) << 12 | (uint32_t)(text[at + 2] & 0x3f) << 6 |
                       (text[at + 3] & 0x3f);
}
/* The code point that ends at text[at], at > 0. */
static inline uint32_t ag_utf8_before(const unsigned char *text, size_t at, size_t *bytes)
{
    size_t start = at - 1;
    while (start > 0 && (text[start] & 0xc0) == 0x80) start--;
    return ag_utf8_peek(text, start, bytes);
}
/* Writes one code point, returns its length. */
static inline size_t ag_utf8_put(unsigned char *out, uint32_t c)
{
    if (c < 0x80) return out[0] = (unsigned char)c, 1;
    if (c < 0x800) return out[0] = (unsigned char)(0xc0 | c >> 6), out[1] = (unsigned char)(0x80 | (c & 0x3f)), 2;
    if (c < 0x10000)
        return out[0] = (unsigned char)(0xe0 | c >> 12), out[1] = (unsigned char)(0x80 | (c >> 6 & 0x3f)),
               out[2] = (unsigned char)(0x80 | (c & 0x3f)), 3;
    return out[0] = (unsigned char)(0xf0 | c >> 18), out[1] = (unsigned char)(0x80 | (c >> 12 & 0x3f)),
           out[2] = (unsigned char)(0x80 | (c >> 6 & 0x3f)), out[3] = (unsigned char)(0x80 | (c & 0x3f)), 4;
}

/* ---- normal forms ---------------------------------------------------------------------------------------------- */
/* True where no character of the text can change or be composed under NFC: cheap, and says no too often. */
bool ag_nfc_surely(const unsigned char *text, size_t n);
/* Canonical (or compatibility) decomposition of one code point; at most 18 code points. */
size_t ag_unicode_decompose(uint32_t c, bool compat, uint32_t out[32]);
unsigned ag_unicode_combining_class(uint32_t c);
uint32_t ag_unicode_compose(uint32_t a, uint32_t b); /* 0: they do not compose */
/* As Rust's char::to_lowercase: one code point, or two for U+0130. */
size_t ag_unicode_lower(uint32_t c, uint32_t out[2]);

#endif
