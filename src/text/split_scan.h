/* Hand-written scanners for the split patterns that most published models use: the same cuts as the regular expression, many
 * times as fast, and independent of the Unicode version of the system's regular expression library. */
#ifndef AG_SPLIT_SCAN_H
#define AG_SPLIT_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The next match in text[at, n), valid UTF-8; false: there is none. `kinds` is ag_unicode_kinds(). A match is never empty. */
typedef bool ag_split_scanner(const uint16_t *kinds, const unsigned char *text, size_t n, size_t at, size_t *start,
                              size_t *end);

ag_split_scanner ag_scan_gpt2;     /* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
ag_split_scanner ag_scan_number_1; /* \p{N} */
ag_split_scanner ag_scan_number_3; /* \p{N}{1,3} */

/* The scanner for a regular expression, or NULL where there is none. */
ag_split_scanner *ag_split_scanner_find(const char *pattern);

#endif
