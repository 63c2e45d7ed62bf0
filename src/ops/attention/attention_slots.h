#ifndef AG_ATTENTION_SLOTS_H
#define AG_ATTENTION_SLOTS_H

#include "ops/attention/attention.h"
#include "ops/cpu_level.h"

/* What one kernel call works on: the queries [t0,t1) of a span with the query heads that read key/value head g. */
typedef struct {
    const ag_attention_span *span;
    int64_t g;
    int64_t t0, t1; /* counted from the span's first query */
} ag_attention_unit;

/* Keys that query t of a span sees: [first,end), counted from the span's first key. */
static inline int64_t ag_attention_keys_end(const ag_attention_span *s, int64_t t) { return t + s->n_kv - s->n_q + 1; }
static inline int64_t ag_attention_keys_first(const ag_attention_span *s, int64_t window, int64_t t)
{
    int64_t end = ag_attention_keys_end(s, t);
    return window > 0 && end > window ? end - window : 0;
}

/* `scratch` is the caller's alone, worker_bytes of it. */
typedef void ag_attention_fwd_fn(const ag_attention_fwd_args *args, const ag_attention_unit *unit, void *scratch);
/* Writes the dq rows of the unit and adds its part of dk and dv: the span's key j at dk + j·G·D + g·D, dv likewise. */
typedef void ag_attention_bwd_fn(const ag_attention_bwd_args *args, const ag_attention_unit *unit, float *dk, float *dv, void *scratch);
typedef size_t ag_attention_worker_bytes_fn(int64_t longest, int64_t H, int64_t G, int64_t D);

typedef struct {
    ag_attention_fwd_fn *fwd;
    ag_attention_bwd_fn *bwd;
    ag_attention_worker_bytes_fn *worker_bytes;
} ag_attention_slots;

void ag_attention_use(ag_attention_slots *slots, ag_cpu_level level);

ag_attention_fwd_fn ag_attention_fwd_ref;
ag_attention_bwd_fn ag_attention_bwd_ref;
ag_attention_worker_bytes_fn ag_attention_worker_bytes_ref;

#endif
