#ifndef AG_ATTENTION_SLOTS_H
#define AG_ATTENTION_SLOTS_H

#include "ops/attention/attention.h"
#include "ops/cpu_level.h"

/* What one kernel call works on: the queries [t0,t1) of a span with the query heads that read key/value head g. Forward looks
 * at the keys [j0,j1) alone. All are counted from the span's first. */
typedef struct {
    const ag_attention_span *span;
    int64_t g;
    int64_t t0, t1;
    int64_t j0, j1;
    float *part; /* forward: NULL writes o and lse; else [n_q,H][D+2]: the sum of e^(score - max)·v, max, and that of e^(score - max) */
} ag_attention_unit;

/* Keys that query t of a span sees: [first,end), counted from the span's first key. */
static inline int64_t ag_attention_keys_end(const ag_attention_span *s, int64_t t) { return t + s->n_kv - s->n_q + 1; }
static inline int64_t ag_attention_keys_first(const ag_attention_span *s, int64_t window, int64_t t)
{
    int64_t end = ag_attention_keys_end(s, t);
    return window > 0 && end > window ? end - window : 0;
}

/* Tokens whose n = H/G heads of a group make one block: about so many rows, fewer where D is large, so that the block and its
 * scores stay in the second cache. Pairs of bf16 are half as large and their products faster than packing keys, so more rows
 * share a packed block. */
static inline int64_t ag_attention_block_tokens(int64_t n, int64_t D)
{
    const int64_t rows = D <= 96 ? 192 : 96;
    return n < rows ? rows / n : 1;
}
static inline int64_t ag_attention_pairs_block_tokens(int64_t n, int64_t D)
{
    (void)D;
    return n < 384 ? 384 / n : 1;
}

/* `scratch` is the caller's alone, worker_bytes of it. */
typedef void ag_attention_fwd_fn(const ag_attention_fwd_args *args, const ag_attention_unit *unit, void *scratch);
/* Writes the dq rows of the unit and adds its part of dk and dv: the span's key j at dk + j·pitch, dv likewise. */
typedef void ag_attention_bwd_fn(const ag_attention_bwd_args *args, const ag_attention_unit *unit, float *dk, float *dv,
                                 int64_t pitch, void *scratch);
typedef size_t ag_attention_worker_bytes_fn(int64_t longest, int64_t H, int64_t G, int64_t D);

typedef int64_t ag_attention_block_tokens_fn(int64_t n, int64_t D);

typedef struct {
    ag_attention_fwd_fn *fwd;
    ag_attention_bwd_fn *bwd;
    ag_attention_worker_bytes_fn *worker_bytes;
    ag_attention_block_tokens_fn *block_tokens; /* NULL: the kernels want whole spans, not parts of them */
} ag_attention_kernels;

typedef struct {
    ag_attention_kernels by_compute[2]; /* ag_compute; only those of AG_COMPUTE_F32 know units with `part` */
} ag_attention_slots;

void ag_attention_use(ag_attention_slots *slots, ag_cpu_level level);

ag_attention_fwd_fn ag_attention_fwd_ref, ag_attention_fwd_neon, ag_attention_fwd_avx2, ag_attention_fwd_avx512,
    ag_attention_fwd_avx512bf16, ag_attention_fwd_amx;
ag_attention_bwd_fn ag_attention_bwd_ref, ag_attention_bwd_neon, ag_attention_bwd_avx2, ag_attention_bwd_avx512,
    ag_attention_bwd_avx512bf16, ag_attention_bwd_amx;
ag_attention_worker_bytes_fn ag_attention_worker_bytes_ref, ag_attention_worker_bytes_neon, ag_attention_worker_bytes_avx2,
    ag_attention_worker_bytes_avx512, ag_attention_pairs_worker_bytes;

#endif
