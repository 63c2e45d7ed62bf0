#include "serve/token_table.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

static int by_bytes(const void *a, const void *b)
{
    const ag_token_entry *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order) return order;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

ag_token_table *ag_token_table_create(const ag_tokenizer *tokenizer, int64_t V, const int32_t *ends, int n_ends)
{
    ag_token_table *t = calloc(1, sizeof *t);
    const int32_t n_ids = ag_tokenizer_vocab_size(tokenizer);
    if (t) t->entries = calloc((size_t)n_ids + 1, sizeof *t->entries);
    if (!t || !t->entries) ag_out_of_memory((size_t)n_ids * sizeof(ag_token_entry));
    t->tokenizer = tokenizer;
    t->V = V;
    t->n_ends = n_ends;
    memcpy(t->ends, ends, (size_t)n_ends * sizeof *ends);
    for (int32_t id = 0; id < n_ids && id < V; id++) {
        const ag_text bytes = ag_tokenizer_token_bytes(tokenizer, id);
        if (bytes.n == 0) continue;
        t->entries[t->n++] = (ag_token_entry){.bytes = bytes.text, .n = (uint32_t)bytes.n, .id = id, .special = ag_tokenizer_is_special(tokenizer, id)};
    }
    qsort(t->entries, t->n, sizeof *t->entries, by_bytes);
    for (size_t i = 1; i < t->n; i++) {
        const ag_token_entry *before = &t->entries[i - 1];
        ag_token_entry *e = &t->entries[i];
        while (e->shared < e->n && e->shared < before->n && e->bytes[e->shared] == before->bytes[e->shared]) e->shared++;
    }
    return t;
}

void ag_token_table_free(ag_token_table **table)
{
    if (!table || !*table) return;
    free((*table)->entries);
    free(*table);
    *table = NULL;
}
