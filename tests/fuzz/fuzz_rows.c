/* A JSONL dataset of any bytes, read by all rules; rows that pass are written as plain conversations. */
#include "data/rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_all(const ag_rows *rows, const ag_row_rules *rules)
{
    for (size_t i = 0; i < rows->n && i < 64; i++) {
        ag_row row = {0};
        ag_err err = {0};
        if (ag_row_read(&row, rows, i, rules, &err)) {
            AG_ASSERT(!row.root && err.text[0]);
            continue;
        }
        AG_ASSERT(row.form == AG_ROW_MESSAGES ? row.messages != NULL : row.text != NULL);
        ag_str text = {0};
        if (row.messages) ag_messages_write_plain(row.messages, &text);
        ag_str_free(&text);
        ag_row_clear(&row);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ag_rows *rows;
    ag_err err = {0};
    if (ag_rows_over(&rows, (const char *)data, n, "fuzz.jsonl", &err)) return 0;
    read_all(rows, &(ag_row_rules){.text_field = "text"});
    read_all(rows, &(ag_row_rules){.text_field = "body"});
    read_all(rows, &(ag_row_rules){.text_field = "text", .completion_only = true});
    read_all(rows, &(ag_row_rules){.text_field = "text", .assistant_only = true});
    ag_rows_close(&rows);
    return 0;
}
