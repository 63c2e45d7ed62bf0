/* The bytes of every token, sorted, for finding out which tokens a grammar allows. Made once for a tokenizer, read by any thread. */
#ifndef AG_TOKEN_TABLE_H
#define AG_TOKEN_TABLE_H

#include "text/tokenizer.h"

typedef struct {
    const char *bytes;
    uint32_t n;
    uint32_t shared; /* leading bytes that the entry before has, too */
    int32_t id;
    bool special;
} ag_token_entry;

typedef struct {
    const ag_tokenizer *tokenizer;
    ag_token_entry *entries; /* tokens without bytes are left out */
    size_t n;
    int64_t V;               /* logits of the model */
    int32_t ends[16];        /* ids that end an answer */
    int n_ends;
} ag_token_table;

ag_token_table *ag_token_table_create(const ag_tokenizer *tokenizer, int64_t V, const int32_t *ends, int n_ends);
void ag_token_table_free(ag_token_table **table);

#endif
