/* Post-processors of a tokenizer.json: special tokens around a text, and white space trimmed off offsets. */
#ifndef AG_POST_PROCESSOR_H
#define AG_POST_PROCESSOR_H

#include "base/json.h"
#include "text/token_vocab.h"
#include "text/tokenizer.h"

/* Steps in order: trim the offsets (as ByteLevel's trim_offsets does), or put ids before and after the text. */
typedef struct {
    bool trims, add_prefix_space;
    int32_t *before, *after;
    size_t n_before, n_after;
} ag_post_step;

typedef struct {
    ag_post_step *steps;
    size_t n;
} ag_post_processor;

AG_MUST_USE ag_status ag_post_processor_init(ag_post_processor *z, const json_t *value, const char *name, ag_err *err);
void ag_post_processor_deinit(ag_post_processor *z);

/* Trims the offsets of one token by the white space of its text: leading and trailing "Ġ" and spaces. `first` as in the
 * original: it stands at index 0. In code points; returns how far each end moves. */
void ag_post_trim(ag_text token, bool first, bool add_prefix_space, uint32_t start, uint32_t end, uint32_t *new_start,
                  uint32_t *new_end);

#endif
