/* What a Split, Replace or the like looks for: a fixed text, a regular expression, or one of the hand-written scanners.
 *
 * Regular expressions are written for Oniguruma (that is what tokenizers uses) and run by PCRE2 with JIT. What the two read
 * differently is rewritten: \s, \w and \h become the sets that Oniguruma means, ^ and $ are per line, (?m) makes the dot match
 * line ends. What cannot be rewritten is refused by name. Matching is bounded: a pattern that explodes on a text is an error. */
#ifndef AG_PATTERN_H
#define AG_PATTERN_H

#include "base/status.h"
#include "base/str.h"
#include "text/pieces.h"
#include "text/split_scan.h"

typedef struct {
    char *text;                /* the fixed text, or the regular expression as the file has it */
    size_t n;
    bool is_regex;
    ag_split_scanner *scanner; /* where one is known for the regular expression */
    struct ag_regex *regex;    /* NULL where a scanner serves */
} ag_pattern;

/* no_scanner: use the regular expression engine even where a scanner is known (tests compare the two). */
AG_MUST_USE ag_status ag_pattern_init(ag_pattern *p, const char *text, size_t n, bool is_regex, bool no_scanner,
                                      const char *name, ag_err *err);
void ag_pattern_deinit(ag_pattern *p);

/* Replaces the spans of `pieces` by what the pattern finds in text[0, n). */
AG_MUST_USE ag_status ag_pattern_find(const ag_pattern *p, const unsigned char *text, size_t n, bool invert,
                                      ag_pieces *pieces, ag_err *err);

/* The pattern as PCRE2 gets it; for tests. Appended to *out. */
AG_MUST_USE ag_status ag_regex_translate(const char *pattern, ag_str *out, const char *name, ag_err *err);

#endif
