#include "runs/report_table.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

void ag_table_text(ag_table *t, const char *label, const char *value)
{
    AG_ASSERT(t->n < AG_TABLE_MAX_ROWS);
    t->row[t->n].label = label;
    t->row[t->n++].value = value;
}

void ag_table_int(ag_table *t, const char *label, long long value)
{
    ag_table_text(t, label, t->row[t->n].own);
    snprintf(t->row[t->n - 1].own, AG_TABLE_CELL_BYTES, "%lld", value);
}

void ag_table_bool(ag_table *t, const char *label, bool value) { ag_table_text(t, label, value ? "yes" : "no"); }

static bool is_hidden(utf8proc_int32_t c)
{
    const utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CS;
}

void ag_str_add_visible(ag_str *out, const char *text)
{
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text;
    while (*at) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n = utf8proc_iterate(at, -1, &c);
        if (n <= 0) {
            ag_str_printf(out, "\\udc%02x", *at++);
            continue;
        }
        if (!is_hidden(c)) ag_str_add_n(out, (const char *)at, (size_t)n);
        else ag_str_printf(out, c > 0xffff ? "\\U%08x" : "\\u%04x", (unsigned)c);
        at += n;
    }
}

void ag_table_write(ag_str *out, const ag_table *t)
{
    size_t width = 0;
    for (size_t i = 0; i < t->n; i++)
        if (strlen(t->row[i].label) > width) width = strlen(t->row[i].label);
    for (size_t i = 0; i < t->n; i++) {
        ag_str_printf(out, "%s:%*s ", t->row[i].label, (int)(width - strlen(t->row[i].label)), "");
        ag_str_add_visible(out, t->row[i].value ? t->row[i].value : "-");
        ag_str_add_char(out, '\n');
    }
}
