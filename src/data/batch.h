/* A micro-batch as the model takes it: rows joined end to end, no padding anywhere. Each row, and each document of a packed
 * row, is its own attention span with positions from 0.
 *
 *     ag_batch b;
 *     ag_batch_init(&b, x, packing_or_NULL, batch_size);        // the only allocation
 *     ag_batch_fill(&b, ag_sampler_micro(s, step, m));
 *     … forward over b.ids, b.positions [b.T], spans b.span [b.n_spans];
 *       loss of row b.target_row[i] against b.target_id[i], i < b.M …
 *     ag_batch_deinit(&b);
 *
 * Row t of the hidden states predicts token t+1 of its own document: target_row says which rows have a target at all. */
#ifndef AG_BATCH_H
#define AG_BATCH_H

#include "base/status.h"
#include "data/examples.h"
#include "data/packing.h"
#include "data/sampler.h"
#include "ops/attention/attention.h"

#include <stdint.h>

typedef struct {
    int64_t T;                /* tokens */
    int64_t M;                /* targets; may be 0 only where rows without a target were allowed */
    int64_t n_spans, longest; /* documents, and the longest one's tokens */
    int32_t *ids, *positions; /* [T] */
    int32_t *targets;         /* [T], the id that row t predicts, -1: none */
    int32_t *target_row;      /* [M], ascending: the rows whose targets[t] is not -1 */
    int32_t *target_id;       /* [M], targets[target_row[i]] */
    ag_attention_span *span;  /* [n_spans] */

    int64_t max_T, max_M, max_spans, max_longest; /* no micro-batch of this data is larger: what to plan for */
    const ag_examples *examples;
    const ag_packing *packing;
    void *block;
    size_t bytes;
} ag_batch;

/* Makes room for any micro-batch of batch_size rows (packed rows where packing is not NULL). The examples and the packing must
 * outlive the batch. AG_E_DATA where a micro-batch would have 2^31 tokens or more, AG_E_MEMORY. */
AG_MUST_USE ag_status ag_batch_init(ag_batch *b, const ag_examples *examples, const ag_packing *packing, int64_t batch_size,
                                    ag_err *err);
void ag_batch_fill(ag_batch *b, ag_row_span rows);
void ag_batch_deinit(ag_batch *b);
/* Targets of some rows, without filling anything: the loss's denominator is the sum over a step's micro-batches. */
int64_t ag_batch_count_targets(const ag_batch *b, ag_row_span rows);

#endif
