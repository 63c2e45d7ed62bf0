/* One row to ids and target flags: the rules of examples.h. Private to data/. One encoder per thread. */
#ifndef AG_ROW_ENCODER_H
#define AG_ROW_ENCODER_H

#include "data/examples.h"

typedef struct {
    const ag_examples_options *options;
    const char *path; /* of the dataset, for sentences */
    /* The result of ag_row_encode: n ids, and for each whether it is a target. */
    int32_t *ids;
    uint8_t *target;
    size_t n, room;
    bool plain_chat; /* a messages row that was written without a template */

    ag_tokenizer_scratch *scratch;
    ag_encoding encoding;
    ag_str text, before, upto;
    ag_range_list marks;
} ag_row_encoder;

void ag_row_encoder_init(ag_row_encoder *encoder, const ag_examples_options *options, const char *path);
void ag_row_encoder_deinit(ag_row_encoder *encoder);
/* The row uncut; a completion-only row that is too long is refused here. */
AG_MUST_USE ag_status ag_row_encode(ag_row_encoder *encoder, const ag_row *row, ag_err *err);

/* For row_encoder.c and completion.c: */
void ag_row_encoder_add(ag_row_encoder *encoder, int32_t id, bool target);
ag_status ag_row_encoder_fail(const ag_row_encoder *encoder, const ag_row *row, ag_err *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* completion.c: a completion-only row by forge.md §1.5. */
AG_MUST_USE ag_status ag_completion_encode(ag_row_encoder *encoder, const ag_row *row, ag_err *err);
/* The row as prepared_sha256 counts it, with '\n', appended to *out. */
void ag_completion_write(const ag_row *row, const ag_examples *x, int64_t r, ag_str *out);

#endif
