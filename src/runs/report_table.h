/* Reports for people: "label:   value" lines whose values begin in one column, and whose cells can move no cursor. */
#ifndef AG_REPORT_TABLE_H
#define AG_REPORT_TABLE_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

enum { AG_TABLE_MAX_ROWS = 32, AG_TABLE_CELL_BYTES = 64 };
typedef struct {
    size_t n;
    struct {
        const char *label, *value; /* value NULL prints as "-" */
        char own[AG_TABLE_CELL_BYTES];
    } row[AG_TABLE_MAX_ROWS];
} ag_table;

void ag_table_text(ag_table *t, const char *label, const char *value); /* borrowed until the table is written */
void ag_table_int(ag_table *t, const char *label, long long value);
void ag_table_bool(ag_table *t, const char *label, bool value); /* yes, no */
void ag_table_write(ag_str *out, const ag_table *t);             /* ends in a newline */

/* Every code point of the Unicode categories Cc, Cf and Cs as \uXXXX or \UXXXXXXXX; a byte that is no UTF-8 as \udcXX, the way
 * Python keeps such bytes of a file name. */
void ag_str_add_visible(ag_str *out, const char *text);

#endif
