/* A growing text. Owns its bytes; always ends in NUL; may hold NUL bytes inside (n counts them).
 *
 *     ag_str s = {0};
 *     ag_str_printf(&s, "%d of %d", i, n);
 *     ag_str_free(&s);
 *
 * Growing cannot fail (see arena.h). Callers bound what hostile input can make of it. */
#ifndef AG_STR_H
#define AG_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *text; /* NULL while nothing was ever added */
    size_t n, room;
} ag_str;

void ag_str_add(ag_str *s, const char *text);
void ag_str_add_n(ag_str *s, const char *bytes, size_t n);
void ag_str_add_char(ag_str *s, char c);
void ag_str_add_code_point(ag_str *s, uint32_t code_point); /* as UTF-8 */
void ag_str_printf(ag_str *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ag_str_clear(ag_str *s); /* keeps the memory */
void ag_str_free(ag_str *s);  /* and empty again */

bool ag_str_starts(const char *text, const char *start);
bool ag_str_ends(const char *text, const char *end);

/* The known word nearest to `word` (Damerau-Levenshtein distance at most a third of its length + 1), or NULL.
 * For "unknown key 'lerning_rate'; did you mean 'learning_rate'?". */
const char *ag_str_nearest(const char *word, const char *const *known, size_t n_known);

/* One code point at text[*at], which moves on. A malformed byte gives U+FFFD and moves on by the maximal invalid
 * subpart, as Python's errors="replace" does. Needs *at < n. */
uint32_t ag_utf8_next(const char *text, size_t n, size_t *at);
bool ag_utf8_valid(const char *text, size_t n);
size_t ag_utf8_count(const char *text, size_t n); /* code points */

#endif
