/* JSONL datasets: one JSON object a line, mapped and not copied; rows are parsed one at a time, from any thread.
 *
 *     ag_rows *rows;
 *     AG_TRY(ag_rows_open(&rows, path, err));
 *     ag_row row = {0};
 *     AG_TRY(ag_row_read(&row, rows, i, &(ag_row_rules){.text_field = "text"}, err));   // 0 <= i < rows->n
 *     … row.text[0 … row.n_text), or row.messages …
 *     ag_row_clear(&row);
 *     ag_rows_close(&rows);
 *
 * A row has one of three forms; the first that fits wins:
 *     text         "text" is there: a string. With another text_field, a row may have that column instead.
 *     messages     a list of {"role": user|assistant|system|tool, "content": string}
 *     instruction  "instruction", and maybe "input" and "output": strings
 * Every sentence about a row begins "<file>: line <n>: ", counted from 1; one about a message names it, too. */
#ifndef AG_ROWS_H
#define AG_ROWS_H

#include "base/fs.h"
#include "base/status.h"
#include "base/str.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A longer line is refused: no row that a model can take needs it, and a parsed line takes many times its size. */
#define AG_ROW_MAX_BYTES ((size_t)64 << 20)

typedef struct {
    size_t start, n; /* bytes in the file, white space around it left out */
    size_t number;   /* of the line, from 1 */
} ag_row_line;

typedef struct {
    const char *path;  /* for sentences; owned */
    ag_row_line *line; /* n lines that are not blank */
    size_t n;
    const char *bytes; /* the file */
    ag_map map;
} ag_rows;

/* Finds the lines; does not parse them. AG_E_DATA for a file that is empty or blank. A byte order mark is skipped. */
AG_MUST_USE ag_status ag_rows_open(ag_rows **out, const char *path, ag_err *err);
/* The same over bytes that stay the caller's. */
AG_MUST_USE ag_status ag_rows_over(ag_rows **out, const char *bytes, size_t n, const char *name, ag_err *err);
void ag_rows_close(ag_rows **rows);

typedef struct {
    const char *text_field; /* the config's dataset_text_field */
    bool completion_only;   /* rows must be text with completion_start_char; see below */
    bool assistant_only;    /* rows must be messages */
} ag_row_rules;

typedef enum { AG_ROW_TEXT, AG_ROW_MESSAGES, AG_ROW_INSTRUCTION } ag_row_form;

typedef struct {
    ag_row_form form;
    size_t number;    /* of its line */
    const char *text; /* text and instruction rows; NULL for messages. Borrowed from root or made */
    size_t n_text;
    const json_t *messages;  /* messages rows, checked; borrowed from root */
    const json_t *tools;     /* messages rows: a list for the chat template, or NULL; borrowed from root */
    size_t completion_start; /* completion_only: code points in front of the completion */
    json_t *root;            /* owned */
    ag_str made;             /* owned */
} ag_row;

/* Reads row i into *row, which must be {0} or cleared. AG_E_FORMAT for what is no JSON object, AG_E_DATA for a wrong row.
 * With completion_only it must be a text row; completion_start_char an integer (not a boolean) with
 * 0 <= start < code points of the text and something but white space behind it; and the columns labels, assistant_masks and
 * seq_lengths, which would steer the loss, must not be there. */
AG_MUST_USE ag_status ag_row_read(ag_row *row, const ag_rows *rows, size_t i, const ag_row_rules *rules, ag_err *err);
void ag_row_clear(ag_row *row);

/* A conversation without a chat template: "Role: content" a message, the role's first letter in upper case, lines joined by
 * '\n'. Appended. */
void ag_messages_write_plain(const json_t *messages, ag_str *out);

#endif
