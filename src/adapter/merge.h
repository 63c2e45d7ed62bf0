/* The merged weight, row by row: W' = dequant(W) + scale·B·A, with DoRA scaled to the row's magnitude (its length in double), in f32,
 * rounded once when a row is written out.
 *
 * No merged matrix exists in memory: rows come in blocks, as many as the caller's buffer holds, and go to a sink.
 *
 *     float *buffer = …;                                             // n_buffer floats, at least K
 *     AG_TRY(ag_merge_weight(w, &adapter.layers[l].pair[p], buffer, n_buffer, n_threads, write_rows, file, err));
 *
 * A merge of a quantized base that is rounded to the same 4 bits would lose most of the adapter (a code's step is far larger than
 * a usual change), so merged weights are written in f32, f16, bf16 or q8_0 only. What the merge cost is measured and told: how
 * far the quantized base was from the original weights, and how far rounding moved the merged ones. */
#ifndef AG_MERGE_H
#define AG_MERGE_H

#include "base/status.h"
#include "model/decoder.h"
#include "ops/weight/weight.h"

#include <stddef.h>
#include <stdint.h>

/* Logical rows [n0,n1) of W' into out [(n1-n0), K]. pair NULL or of rank 0: the base's rows. The sum over R runs in the order of
 * the rank, so a row's bits depend on neither threads nor blocks. */
void ag_merge_rows(float *out, const ag_weight *w, const ag_lora_view *pair, int64_t n0, int64_t n1, int n_threads);

/* Takes rows [n0,n1), [(n1-n0), K]; may change them. */
typedef ag_status ag_merge_sink(void *user, float *rows, int64_t n0, int64_t n1, ag_err *err);
/* All of w's rows, in order, a block at a time. n_buffer (floats) must be at least K: an assertion. Forwards the sink's error. */
AG_MUST_USE ag_status ag_merge_weight(const ag_weight *w, const ag_lora_view *pair, float *buffer, int64_t n_buffer, int n_threads,
                                      ag_merge_sink *sink, void *user, ag_err *err);

/* How far two sets of numbers lie apart. Start with {0}. */
typedef struct {
    double largest;    /* max |a - b| */
    double sum;        /* Σ |a - b| */
    double sum_wanted; /* Σ |b| */
    int64_t n;
} ag_deviation;
void ag_deviation_add(ag_deviation *d, const float *a, const float *b, int64_t n);
double ag_deviation_mean(const ag_deviation *d);          /* Σ|a-b|/n, 0 for nothing */
double ag_deviation_relative(const ag_deviation *d);      /* Σ|a-b|/Σ|b|, 0 for nothing */
/* What quantizing changed: the rows of `quantized` against those of `original`, which have the same shape. buffer: 2·K floats. */
void ag_deviation_add_weights(ag_deviation *d, const ag_weight *quantized, const ag_weight *original, float *buffer);

#endif
