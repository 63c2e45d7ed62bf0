/* A block of queries against a block of keys: who sees whom, and the softmax between the products. For files that are compiled
 * for a level, as simd.h.
 *
 * A query row is a (token, head) pair of one key/value head's group, token by token: row r is token t0 + r/n, head r%n of the
 * group, so a block of keys and values serves all heads of its group at once. Scores are stored transposed, st[key][row]: a
 * vector holds one key for VF_LANES rows, the softmax of every row runs down its lane, and no sum across lanes is needed. */
#ifndef AG_ATTENTION_BLOCK_H
#define AG_ATTENTION_BLOCK_H

#include "ops/attention/attention_slots.h"
#include "ops/simd.h"

#include <float.h>

typedef struct {
    int64_t n;             /* query heads of a key/value head */
    int64_t n_rows;        /* tokens · n */
    int64_t t0;            /* first token of the rows, counted from the span's first */
    int64_t diagonal;      /* token t sees the keys before t + diagonal */
    int64_t window;        /* and at most so many of them; 0: all */
    float softcap;         /* of the scores; 0: none */
    int64_t j0, n_keys;    /* the block's keys, counted from the span's first */
} ag_block;

static inline int64_t ag_clamp(int64_t x, int64_t high) { return x < 0 ? 0 : x > high ? high : x; }
static inline int64_t ag_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Row r of a block in a [T,H,D] tensor: the heads of a group are neighbours, tokens H·D apart. */
typedef struct {
    const float *data; /* the block's first token, the group's first head */
    int64_t n, token;  /* heads of the group, floats from token to token */
    int64_t D;
} ag_block_tensor;

static inline const float *ag_block_row(const ag_block_tensor *x, int64_t r) { return x->data + r / x->n * x->token + r % x->n * x->D; }

/* Keys of the block that some of the rows [r0,r1) sees: [*lo,*hi), counted from j0; empty when *lo >= *hi. */
static inline void ag_block_keys(const ag_block *b, int64_t r0, int64_t r1, int64_t *lo, int64_t *hi)
{
    const int64_t first = b->t0 + r0 / b->n + b->diagonal, last = b->t0 + (ag_min(r1, b->n_rows) - 1) / b->n + b->diagonal;
    *lo = b->window > 0 ? ag_clamp(first - b->window - b->j0, b->n_keys) : 0;
    *hi = ag_clamp(last - b->j0, b->n_keys);
}

/* Keys of the block that all of the rows see. */
static inline void ag_block_common_keys(const ag_block *b, int64_t r0, int64_t r1, int64_t *lo, int64_t *hi)
{
    const int64_t first = b->t0 + r0 / b->n + b->diagonal, last = b->t0 + (ag_min(r1, b->n_rows) - 1) / b->n + b->diagonal;
    *lo = b->window > 0 ? ag_clamp(last - b->window - b->j0, b->n_keys) : 0;
    *hi = ag_clamp(first - b->j0, b->n_keys);
}

/* Rows that see some of the block's keys [k0,k1): [*lo,*hi). */
static inline void ag_block_rows(const ag_block *b, int64_t k0, int64_t k1, int64_t *lo, int64_t *hi)
{
    const int64_t first = b->j0 + k0 - b->diagonal + 1, last = b->j0 + k1 - b->diagonal + b->window;
    *lo = ag_clamp((first - b->t0) * b->n, b->n_rows);
    *hi = b->window > 0 ? ag_clamp((last - b->t0) * b->n, b->n_rows) : b->n_rows;
}

/* ends[r]: the first key that row r no longer sees, counted from the span's first; rows behind the last repeat it. */
static inline void ag_block_ends(const ag_block *b, int32_t *ends, int64_t n)
{
    for (int64_t r = 0; r < n; r++) ends[r] = (int32_t)(b->t0 + ag_min(r, b->n_rows - 1) / b->n + b->diagonal);
}

/* All ones in the lanes whose row sees key j of the span. */
static inline vi ag_block_sees(const ag_block *b, const int32_t *ends, int64_t j)
{
    vi end;
    memcpy(&end, ends, sizeof end);
    vi sees = (vi)(end > (int32_t)j);
    return b->window > 0 ? sees & (vi)(end - (int32_t)b->window <= (int32_t)j) : sees;
}

static inline vf ag_capped(vf s, float cap) { return vf_set1(cap) * vf_tanh(s * vf_set1(1 / cap)); }
/* The cap's slope where the capped score is s. */
static inline vf ag_cap_slope(vf s, float cap)
{
    const vf t = s * vf_set1(1 / cap);
    return vf_fnma(t, t, vf_set1(1));
}

/* Scores of VF_LANES rows and the keys [lo,hi), capped. */
static inline void ag_block_cap(const ag_block *b, float *st, int64_t pitch, int64_t r, int64_t lo, int64_t hi)
{
    for (int64_t k = lo; k < hi; k++) vf_store(st + k * pitch + r, ag_capped(vf_load(st + k * pitch + r), b->softcap));
}

/* One column of VF_LANES rows of the online softmax: scores become probabilities relative to the new maximum, 0 where a row
 * does not see a key. Returns the factor for what was summed before. */
static inline vf ag_block_softmax(const ag_block *b, float *st, int64_t pitch, int64_t r, const int32_t *ends, float *max, float *sum)
{
    int64_t lo, hi, common_lo, common_hi;
    ag_block_keys(b, r, r + VF_LANES, &lo, &hi);
    ag_block_common_keys(b, r, r + VF_LANES, &common_lo, &common_hi);
    if (b->softcap > 0) ag_block_cap(b, st, pitch, r, lo, hi);
    const vf old = vf_load(max + r);
    vf m0 = old, m1 = old;
    for (int64_t k = lo; k < hi; k++) {
        vf s = vf_load(st + k * pitch + r);
        if (k < common_lo || k >= common_hi) {
            const vi sees = ag_block_sees(b, ends + r, b->j0 + k);
            s = (vf)(((vi)s & sees) | ((vi)vf_set1(-INFINITY) & ~sees));
            vf_store(st + k * pitch + r, s);
        }
        if (k & 1) m1 = vf_max(m1, s);
        else m0 = vf_max(m0, s);
    }
    const vf m = vf_max(m0, m1), factor = vf_exp(old - m);
    vf s0 = vf_zero(), s1 = s0;
    int64_t k = lo;
    for (; k + 2 <= hi; k += 2) {
        const vf p0 = vf_exp(vf_load(st + k * pitch + r) - m), p1 = vf_exp(vf_load(st + (k + 1) * pitch + r) - m);
        vf_store(st + k * pitch + r, p0);
        vf_store(st + (k + 1) * pitch + r, p1);
        s0 = s0 + p0;
        s1 = s1 + p1;
    }
    if (k < hi) {
        const vf p = vf_exp(vf_load(st + k * pitch + r) - m);
        vf_store(st + k * pitch + r, p);
        s0 = s0 + p;
    }
    for (k = 0; k < lo; k++) vf_store(st + k * pitch + r, vf_zero());
    for (k = hi < lo ? lo : hi; k < b->n_keys; k++) vf_store(st + k * pitch + r, vf_zero());
    vf_store(max + r, m);
    vf_store(sum + r, vf_fma(vf_load(sum + r), factor, s0 + s1));
    return factor;
}

/* The same for backward: scores become p = exp(s - lse), dp becomes ds = p·(dp - delta), with a softcap times its slope; 0 where a row does not see a key. */
static inline void ag_block_gradient(const ag_block *b, float *st, float *dst, int64_t pitch, int64_t r, const int32_t *ends,
                                     const float *lse, const float *delta)
{
    int64_t lo, hi, common_lo, common_hi;
    ag_block_keys(b, r, r + VF_LANES, &lo, &hi);
    ag_block_common_keys(b, r, r + VF_LANES, &common_lo, &common_hi);
    const vf l = vf_load(lse + r), dl = vf_load(delta + r);
    if (b->softcap > 0) ag_block_cap(b, st, pitch, r, lo, hi);
    for (int64_t k = lo; k < hi; k++) {
        const vf s = vf_load(st + k * pitch + r);
        vf p = vf_exp(s - l);
        if (k < common_lo || k >= common_hi) p = (vf)((vi)p & ag_block_sees(b, ends + r, b->j0 + k));
        vf_store(st + k * pitch + r, p);
        if (b->softcap > 0) p = p * ag_cap_slope(s, b->softcap);
        vf_store(dst + k * pitch + r, p * (vf_load(dst + k * pitch + r) - dl));
    }
    for (int64_t k = 0; k < b->n_keys; k++) {
        if (k == lo && lo < hi) k = hi;
        if (k >= b->n_keys) break;
        vf_store(st + k * pitch + r, vf_zero());
        vf_store(dst + k * pitch + r, vf_zero());
    }
}

#endif
