#include "data/batch.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

static int larger_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* No micro-batch is larger than the batch_size largest of n sizes together; `sizes` is reordered. */
static int64_t sum_of_largest(int64_t *sizes, int64_t n, int64_t batch_size)
{
    int64_t sum = 0;
    qsort(sizes, (size_t)n, sizeof *sizes, larger_first);
    for (int64_t i = 0; i < batch_size && i < n; i++) sum += sizes[i];
    return sum;
}

static int64_t row_tokens(const ag_batch *b, int64_t row) { return b->examples->offset[row + 1] - b->examples->offset[row]; }

static int64_t row_targets(const ag_batch *b, int64_t row)
{
    int64_t n = 0;
    for (int64_t t = b->examples->offset[row]; t < b->examples->offset[row + 1]; t++)
        n += ag_examples_is_target(b->examples, t);
    return n;
}

/* The documents of a row of the sampler: itself, or those of the packed row. */
static ag_row_span documents(const ag_batch *b, const int64_t *row)
{
    if (!b->packing) return (ag_row_span){row, 1};
    const int64_t *offset = b->packing->offset + *row;
    return (ag_row_span){b->packing->row + offset[0], offset[1] - offset[0]};
}

static void measure(ag_batch *b, int64_t batch_size)
{
    int64_t n = b->packing ? b->packing->n : b->examples->n;
    ag_arena scratch = {0};
    int64_t *tokens = ag_arena_array(&scratch, (size_t)n, sizeof *tokens),
            *targets = ag_arena_array(&scratch, (size_t)n, sizeof *targets);
    int64_t *spans = ag_arena_array(&scratch, (size_t)n, sizeof *spans);
    for (int64_t i = 0; i < n; i++) {
        ag_row_span d = documents(b, &i);
        spans[i] = d.n;
        for (int64_t j = 0; j < d.n; j++) {
            tokens[i] += row_tokens(b, d.row[j]);
            targets[i] += row_targets(b, d.row[j]);
        }
    }
    b->max_T = sum_of_largest(tokens, n, batch_size);
    b->max_M = sum_of_largest(targets, n, batch_size);
    b->max_spans = sum_of_largest(spans, n, batch_size);
    b->max_longest = b->examples->longest;
    ag_arena_free(&scratch);
}

static void place(ag_batch *b, ag_layout *l)
{
    b->ids = ag_layout_place(l, (size_t)b->max_T * sizeof *b->ids);
    b->positions = ag_layout_place(l, (size_t)b->max_T * sizeof *b->positions);
    b->targets = ag_layout_place(l, (size_t)b->max_T * sizeof *b->targets);
    b->target_row = ag_layout_place(l, (size_t)b->max_M * sizeof *b->target_row);
    b->target_id = ag_layout_place(l, (size_t)b->max_M * sizeof *b->target_id);
    b->span = ag_layout_place(l, (size_t)b->max_spans * sizeof *b->span);
}

ag_status ag_batch_init(ag_batch *b, const ag_examples *examples, const ag_packing *packing, int64_t batch_size, ag_err *err)
{
    *b = (ag_batch){.examples = examples, .packing = packing};
    measure(b, batch_size);
    if (b->max_T > INT32_MAX)
        return ag_fail(err, AG_E_DATA, "a micro-batch of %lld rows would have %lld tokens; lower batch_size or max_seq_length",
                       (long long)batch_size, (long long)b->max_T);
    ag_layout l = {0};
    place(b, &l);
    AG_TRY(ag_pages_alloc(&b->block, l.bytes, "a micro-batch", err));
    b->bytes = l.bytes;
    l = (ag_layout){.base = b->block};
    place(b, &l);
    return AG_OK;
}

void ag_batch_deinit(ag_batch *b)
{
    if (b->block) ag_pages_free(b->block, b->bytes);
    *b = (ag_batch){0};
}

static void add_document(ag_batch *b, int64_t row)
{
    const ag_examples *x = b->examples;
    int64_t n = row_tokens(b, row), from = x->offset[row], at = b->T;
    memcpy(b->ids + at, x->ids + from, (size_t)n * sizeof *b->ids);
    for (int64_t t = 0; t < n; t++) {
        b->positions[at + t] = (int32_t)t;
        bool has_target = t + 1 < n && ag_examples_is_target(x, from + t + 1);
        b->targets[at + t] = has_target ? x->ids[from + t + 1] : -1;
        if (!has_target) continue;
        b->target_row[b->M] = (int32_t)(at + t);
        b->target_id[b->M++] = x->ids[from + t + 1];
    }
    b->span[b->n_spans++] = (ag_attention_span){.q0 = at, .n_q = n, .kv0 = at, .n_kv = n};
    b->longest = n > b->longest ? n : b->longest;
    b->T += n;
}

void ag_batch_fill(ag_batch *b, ag_row_span rows)
{
    b->T = b->M = b->n_spans = b->longest = 0;
    for (int64_t i = 0; i < rows.n; i++) {
        ag_row_span d = documents(b, &rows.row[i]);
        for (int64_t j = 0; j < d.n; j++) add_document(b, d.row[j]);
    }
    AG_ASSERT(b->T <= b->max_T && b->M <= b->max_M && b->n_spans <= b->max_spans);
}

int64_t ag_batch_count_targets(const ag_batch *b, ag_row_span rows)
{
    int64_t n = 0;
    for (int64_t i = 0; i < rows.n; i++) {
        ag_row_span d = documents(b, &rows.row[i]);
        for (int64_t j = 0; j < d.n; j++) n += row_targets(b, d.row[j]);
    }
    return n;
}
