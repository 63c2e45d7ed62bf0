/* Attention with products of bf16 pairs: the blocks of attention_simd.c, in an order that such products can read.
 *
 * Query rows go in panels of 32. All scores of a panel with a block of keys are made, become probabilities and are used while
 * they lie in the first cache. Products take a as rows and b as pairs of rows (the sum runs along a's row and down b's pairs),
 * so each operand is packed to bf16 once for each role it plays:
 *
 *     st = K·Qᵀ, dst = V·dOᵀ      k, v [key][d]            q_cols, do_cols: pairs of d, [panel][d/2][32 rows][2]
 *     Oᵀ = Vᵀ·P, dQᵀ = Kᵀ·ds      turned [d][key]          pairs of keys,   [key/2][32 rows][2], of one panel
 *     dV = P·dO, dK = ds·Q        p, ds [panel][key][32]   q_pairs, do_pairs: pairs of rows, [row/2][d][2]
 * Softmax, lse, delta and all sums are f32. */
#include "ops/attention/attention_block.h"
#include "ops/attention/attention_pairs.h"
#include "ops/simd_transpose.h"

enum { TILE = AG_PAIRS_TILE, BLOCK_KEYS = 128, PAIR_ROW = 2 * TILE /* bf16 in a row of pairs of a panel */ };

/* ---- scratch --------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t rows, depth;            /* rows of a block, D: whole tiles */
    uint16_t *q_cols, *do_cols, *q_pairs, *do_pairs;
    uint16_t *p, *ds;               /* [panel][BLOCK_KEYS][TILE] */
    uint16_t *pairs;                /* [BLOCK_KEYS/2][TILE][2] */
    uint16_t *k, *v, *turned;       /* [BLOCK_KEYS][depth], and [depth][BLOCK_KEYS] */
    float *st, *dst;                /* [BLOCK_KEYS][TILE] */
    float *acc;                     /* Oᵀ or dQᵀ [panel][depth][TILE] */
    float *product;                 /* dV or dK of the block [BLOCK_KEYS][depth] */
    float *max, *sum;               /* [rows]; backward keeps lse and delta there */
    int32_t *ends;                  /* [rows] */
} work;

static int64_t to_tiles(int64_t n) { return (n + TILE - 1) / TILE * TILE; }

/* Lays the parts out in scratch (NULL: only counts) and returns the bytes they take. */
static size_t lay_out(work *w, void *scratch, int64_t n, int64_t D)
{
    w->rows = to_tiles(ag_attention_pairs_block_tokens(n, D) * n);
    w->depth = to_tiles(D);
    const int64_t square = 2 * w->rows * w->depth, scores = 2 * w->rows * BLOCK_KEYS, keys = 2 * BLOCK_KEYS * w->depth;
    const struct {
        void *part;
        int64_t bytes;
    } parts[] = {{&w->q_cols, square}, {&w->do_cols, square}, {&w->q_pairs, square}, {&w->do_pairs, square}, {&w->p, scores},
                 {&w->ds, scores}, {&w->pairs, 2 * BLOCK_KEYS * TILE}, {&w->k, keys}, {&w->v, keys}, {&w->turned, keys},
                 {&w->st, 4 * BLOCK_KEYS * TILE}, {&w->dst, 4 * BLOCK_KEYS * TILE}, {&w->acc, 2 * square}, {&w->product, 2 * keys},
                 {&w->max, 4 * w->rows}, {&w->sum, 4 * w->rows}, {&w->ends, 4 * w->rows}};
    int64_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        void *p = scratch ? (char *)scratch + at : NULL;
        memcpy(parts[i].part, &p, sizeof p);
        at += parts[i].bytes;
    }
    return (size_t)at;
}

size_t ag_attention_pairs_worker_bytes(int64_t longest, int64_t H, int64_t G, int64_t D)
{
    (void)longest;
    work w;
    return lay_out(&w, NULL, H / G, D);
}

/* ---- packing --------------------------------------------------------------------------------------------------------- */

static inline __m512i load_pairs(const uint16_t *p) { return _mm512_loadu_si512(p); }
static inline void store_pairs(uint16_t *p, __m512i x) { _mm512_storeu_si512(p, x); }

/* 32 values as bf16, nearest even. */
static inline __m512i round_pair(vf lower, vf upper) { return (__m512i)_mm512_cvtne2ps_pbh(upper, lower); }

/* Two rows of 32 bf16 as 32 pairs. */
static inline void store_zipped(uint16_t *out, __m512i even, __m512i odd)
{
    static const uint16_t zip[2][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    store_pairs(out, _mm512_permutex2var_epi16(even, load_pairs(zip[0]), odd));
    store_pairs(out + TILE, _mm512_permutex2var_epi16(even, load_pairs(zip[1]), odd));
}

/* Pointers to n rows from r on, NULL behind the last: found once, for it takes divisions. */
static void find_rows(const float **row, int n, const ag_block_tensor *x, int64_t r, int64_t n_rows)
{
    for (int i = 0; i < n; i++) row[i] = r + i < n_rows ? ag_block_row(x, r + i) : NULL;
}

/* 32 values of a row (NULL: 0) from d on, 0 behind D. */
static inline __m512i load_row(const float *row, int64_t d, int64_t D, float scale)
{
    if (!row) return _mm512_setzero_si512();
    const int64_t left = D - d;
    if (left >= TILE) return round_pair(vf_load(row + d) * vf_set1(scale), vf_load(row + d + VF_LANES) * vf_set1(scale));
    if (left <= VF_LANES) return round_pair(vf_load_n(row + d, left) * vf_set1(scale), vf_zero());
    return round_pair(vf_load(row + d) * vf_set1(scale), vf_load_n(row + d + VF_LANES, left - VF_LANES) * vf_set1(scale));
}

/* out[row][d] */
static void pack_rows(uint16_t *out, const ag_block_tensor *x, int64_t n_rows, int64_t depth)
{
    for (int64_t r = 0; r < to_tiles(n_rows); r++) {
        const float *row;
        find_rows(&row, 1, x, r, n_rows);
        for (int64_t d = 0; d < depth; d += TILE) store_pairs(out + r * depth + d, load_row(row, d, x->D, 1));
    }
}

/* out[d][row], rows `pitch` apart */
static void pack_turned(uint16_t *out, int64_t pitch, const ag_block_tensor *x, int64_t n_rows, int64_t depth)
{
    for (int64_t r = 0; r < to_tiles(n_rows); r += TILE) {
        const float *row[TILE];
        find_rows(row, TILE, x, r, n_rows);
        for (int64_t d = 0; d < depth; d += VF_LANES) {
            vf square[2][VF_LANES];
            for (int half = 0; half < 2; half++) {
                for (int i = 0; i < VF_LANES; i++) {
                    const float *from = row[half * VF_LANES + i];
                    square[half][i] = vf_zero();
                    if (from && d < x->D) square[half][i] = vf_load_n(from + d, x->D - d);
                }
                vf_transpose(square[half]);
            }
            for (int i = 0; i < VF_LANES; i++) store_pairs(out + (d + i) * pitch + r, round_pair(square[0][i], square[1][i]));
        }
    }
}

/* out[row/2][d][2] */
static void pack_pairs_of_rows(uint16_t *out, const ag_block_tensor *x, int64_t n_rows, int64_t depth, float scale)
{
    for (int64_t r = 0; r < to_tiles(n_rows); r += 2) {
        const float *row[2];
        find_rows(row, 2, x, r, n_rows);
        for (int64_t d = 0; d < depth; d += TILE)
            store_zipped(out + (r * depth + 2 * d), load_row(row[0], d, x->D, scale), load_row(row[1], d, x->D, scale));
    }
}

/* out[panel][d/2][32 rows][2]: pairs of d, which lie side by side, move as one. */
static void pack_pairs_of_depth(uint16_t *out, const ag_block_tensor *x, int64_t n_rows, int64_t depth, float scale)
{
    for (int64_t r = 0; r < to_tiles(n_rows); r += VF_LANES) {
        const float *row[VF_LANES];
        find_rows(row, VF_LANES, x, r, n_rows);
        for (int64_t d = 0; d < depth; d += TILE) {
            vf square[VF_LANES];
            for (int i = 0; i < VF_LANES; i++) square[i] = (vf)load_row(row[i], d, x->D, scale);
            vf_transpose(square);
            uint16_t *at = out + r / TILE * TILE * depth + d / 2 * PAIR_ROW + r % TILE * 2;
            for (int i = 0; i < VF_LANES; i++) store_pairs(at + i * PAIR_ROW, (__m512i)square[i]);
        }
    }
}

/* Panel of acc [depth][32 rows] to the rows of a [T,H,D] tensor, times factor[row]. */
static void unpack_panel(float *const *rows, int64_t n_rows, const float *acc, const float *factor, int64_t D)
{
    for (int64_t r = 0; r < n_rows; r += VF_LANES)
        for (int64_t d = 0; d < D; d += VF_LANES) {
            vf square[VF_LANES];
            for (int i = 0; i < VF_LANES; i++) square[i] = vf_load(acc + (d + i) * TILE + r);
            vf_transpose(square);
            for (int64_t i = 0; i < VF_LANES && r + i < n_rows; i++) vf_store_n(rows[r + i] + d, square[i] * vf_set1(factor[r + i]), D - d);
        }
}

/* ---- the panel between its products ---------------------------------------------------------------------------------- */

/* Whole tiles of keys that some row of the panel sees, and the keys that all see. */
typedef struct {
    int64_t lo, hi, common_lo, common_hi;
} key_range;

static key_range keys_of_panel(const ag_block *b, int64_t r)
{
    key_range k;
    ag_block_keys(b, r, r + TILE, &k.lo, &k.hi);
    ag_block_common_keys(b, r, r + TILE, &k.common_lo, &k.common_hi);
    k.lo = k.lo / TILE * TILE;
    k.hi = to_tiles(k.hi);
    return k;
}

static void cap_panel(const ag_block *b, const work *w, const key_range *range)
{
    for (int64_t i = range->lo * TILE; i < range->hi * TILE; i += VF_LANES) vf_store(w->st + i, ag_capped(vf_load(w->st + i), b->softcap));
}

static inline vf masked(vf x, vi sees, float otherwise) { return (vf)(((vi)x & sees) | ((vi)vf_set1(otherwise) & ~sees)); }

/* The online softmax of 32 rows: scores to pairs of probabilities; acc is brought to the new maximum. */
static void softmax_panel(const ag_block *b, const work *w, int64_t r, const key_range *range)
{
    if (b->softcap > 0) cap_panel(b, w, range);
    vf m0 = vf_load(w->max + r), m1 = vf_load(w->max + r + VF_LANES);
    const vf old0 = m0, old1 = m1;
    for (int64_t k = range->lo; k < range->hi; k++) {
        float *st = w->st + k * TILE;
        vf x0 = vf_load(st), x1 = vf_load(st + VF_LANES);
        if (k < range->common_lo || k >= range->common_hi) {
            x0 = masked(x0, ag_block_sees(b, w->ends + r, b->j0 + k), -INFINITY);
            x1 = masked(x1, ag_block_sees(b, w->ends + r + VF_LANES, b->j0 + k), -INFINITY);
            vf_store(st, x0);
            vf_store(st + VF_LANES, x1);
        }
        m0 = vf_max(m0, x0);
        m1 = vf_max(m1, x1);
    }
    vf s0 = vf_zero(), s1 = s0;
    for (int64_t k = range->lo; k < range->hi; k += 2) {
        const float *st = w->st + k * TILE;
        const vf p0 = vf_exp(vf_load(st) - m0), p1 = vf_exp(vf_load(st + VF_LANES) - m1);
        const vf p2 = vf_exp(vf_load(st + TILE) - m0), p3 = vf_exp(vf_load(st + TILE + VF_LANES) - m1);
        store_zipped(w->pairs + k / 2 * PAIR_ROW, round_pair(p0, p1), round_pair(p2, p3));
        s0 = s0 + (p0 + p2);
        s1 = s1 + (p1 + p3);
    }
    const vf factor0 = vf_exp(old0 - m0), factor1 = vf_exp(old1 - m1);
    vf_store(w->max + r, m0);
    vf_store(w->max + r + VF_LANES, m1);
    vf_store(w->sum + r, vf_fma(vf_load(w->sum + r), factor0, s0));
    vf_store(w->sum + r + VF_LANES, vf_fma(vf_load(w->sum + r + VF_LANES), factor1, s1));
    float *acc = w->acc + r * w->depth;
    for (int64_t d = 0; d < w->depth; d++, acc += TILE) {
        vf_store(acc, vf_load(acc) * factor0);
        vf_store(acc + VF_LANES, vf_load(acc + VF_LANES) * factor1);
    }
}

/* p and ds of one key for 32 rows, as bf16. */
static inline void gradient_row(const ag_block *b, const work *w, int64_t r, const key_range *range, int64_t k, __m512i *p, __m512i *ds)
{
    vf p_of[2], ds_of[2];
    for (int i = 0; i < 2; i++) {
        const int64_t at = r + i * VF_LANES, cell = k * TILE + i * VF_LANES;
        p_of[i] = vf_exp(vf_load(w->st + cell) - vf_load(w->max + at));
        if (k < range->common_lo || k >= range->common_hi) p_of[i] = masked(p_of[i], ag_block_sees(b, w->ends + at, b->j0 + k), 0);
        ds_of[i] = p_of[i] * (vf_load(w->dst + cell) - vf_load(w->sum + at));
        if (b->softcap > 0) ds_of[i] = ds_of[i] * ag_cap_slope(vf_load(w->st + cell), b->softcap);
    }
    *p = round_pair(p_of[0], p_of[1]);
    *ds = round_pair(ds_of[0], ds_of[1]);
}

static void gradient_panel(const ag_block *b, const work *w, int64_t r, const key_range *range)
{
    if (b->softcap > 0) cap_panel(b, w, range);
    for (int64_t k = range->lo; k < range->hi; k += 2) {
        __m512i p0, p1, ds0, ds1;
        gradient_row(b, w, r, range, k, &p0, &ds0);
        gradient_row(b, w, r, range, k + 1, &p1, &ds1);
        const int64_t at = r * BLOCK_KEYS + k * TILE;
        store_pairs(w->p + at, p0);
        store_pairs(w->p + at + TILE, p1);
        store_pairs(w->ds + at, ds0);
        store_pairs(w->ds + at + TILE, ds1);
        store_zipped(w->pairs + k / 2 * PAIR_ROW, ds0, ds1);
    }
}

/* ---- products -------------------------------------------------------------------------------------------------------- */

/* st[key][32 rows] = keys · cols for the panel at row r. */
static void multiply_scores(const ag_attention_pairs_unit *unit, const work *w, float *st, const uint16_t *keys, const uint16_t *cols,
                            int64_t r, const key_range *range)
{
    for (int64_t k = range->lo; k < range->hi; k += TILE)
        unit->product(st + k * TILE, TILE, keys + k * w->depth, w->depth, TILE, cols + r * w->depth, PAIR_ROW, TILE / 2 * PAIR_ROW,
                      w->depth / TILE, false);
}

/* acc[d][32 rows] += turned · pairs for the panel at row r. */
static void add_to_panel(const ag_attention_pairs_unit *unit, const work *w, int64_t r, const key_range *range)
{
    for (int64_t d = 0; d < w->depth; d += TILE)
        unit->product(w->acc + r * w->depth + d * TILE, TILE, w->turned + d * BLOCK_KEYS + range->lo, BLOCK_KEYS, TILE,
                      w->pairs + range->lo / 2 * PAIR_ROW, PAIR_ROW, TILE / 2 * PAIR_ROW, (range->hi - range->lo) / TILE, true);
}

/* dx[key] += scale · Σ_row p[key][row] · x[row]. */
static void add_to_keys(const ag_attention_pairs_unit *unit, const ag_block *b, const work *w, float *dx, int64_t dx_pitch,
                        const uint16_t *p, const uint16_t *row_pairs, int64_t D)
{
    for (int64_t k = 0; k < b->n_keys; k += TILE) {
        int64_t lo, hi;
        ag_block_rows(b, k, ag_min(k + TILE, b->n_keys), &lo, &hi);
        lo = lo / TILE * TILE;
        const int64_t n_panels = (hi - lo + TILE - 1) / TILE;
        if (n_panels <= 0) continue;
        for (int64_t d = 0; d < w->depth; d += TILE)
            unit->product(w->product + d, w->depth, p + lo * BLOCK_KEYS + k * TILE, TILE, TILE * BLOCK_KEYS, row_pairs + lo * w->depth + 2 * d,
                          2 * w->depth, TILE * w->depth, n_panels, false);
        for (int64_t j = 0; j < ag_min(TILE, b->n_keys - k); j++) {
            float *to = dx + (k + j) * dx_pitch;
            for (int64_t d = 0; d < D; d += VF_LANES)
                vf_store_n(to + d, vf_load_n(to + d, D - d) + vf_load(w->product + j * w->depth + d), D - d);
        }
    }
}

/* ---- forward and backward -------------------------------------------------------------------------------------------- */

static ag_block block_of(const ag_attention_span *s, int64_t n, int64_t window, float softcap)
{
    return (ag_block){.n = n, .diagonal = s->n_kv - s->n_q + 1, .window = window < s->n_kv ? window : 0, .softcap = softcap};
}

/* Row of token·H + head that row r of the block is. */
static int64_t tensor_row(const ag_attention_unit *u, const ag_block *b, int64_t H, int64_t r)
{
    return (u->span->q0 + b->t0 + r / b->n) * H + u->g * b->n + r % b->n;
}

void ag_attention_pairs_fwd(const ag_attention_pairs_unit *unit, const ag_attention_fwd_args *a, const ag_attention_unit *u, void *scratch)
{
    const int64_t H = a->q.dim[1], G = a->k.dim[1], D = a->q.dim[2], n = H / G;
    const ag_attention_span *s = u->span;
    ag_block b = block_of(s, n, a->window, a->softcap);
    work w;
    lay_out(&w, scratch, n, D);
    const int64_t block_tokens = ag_attention_pairs_block_tokens(n, D);
    unit->begin();
    for (b.t0 = u->t0; b.t0 < u->t1; b.t0 += block_tokens) {
        b.n_rows = ag_min(block_tokens, u->t1 - b.t0) * n;
        const ag_block_tensor q = {(const float *)a->q.data + tensor_row(u, &b, H, 0) * D, n, H * D, D};
        pack_pairs_of_depth(w.q_cols, &q, b.n_rows, w.depth, a->scale);
        ag_block_ends(&b, w.ends, w.rows);
        for (int64_t r = 0; r < w.rows; r++) {
            w.max[r] = -FLT_MAX; /* not infinity: the difference of two of them is no number */
            w.sum[r] = 0;
        }
        memset(w.acc, 0, (size_t)(w.rows * w.depth) * sizeof *w.acc);
        const int64_t end = ag_attention_keys_end(s, b.t0 + b.n_rows / n - 1);
        for (b.j0 = ag_attention_keys_first(s, b.window, b.t0); b.j0 < end; b.j0 += BLOCK_KEYS) {
            b.n_keys = ag_min(BLOCK_KEYS, end - b.j0);
            const int64_t key = ((s->kv0 + b.j0) * G + u->g) * D;
            const ag_block_tensor k = {(const float *)a->k.data + key, 1, G * D, D}, v = {(const float *)a->v.data + key, 1, G * D, D};
            pack_rows(w.k, &k, b.n_keys, w.depth);
            pack_turned(w.turned, BLOCK_KEYS, &v, b.n_keys, w.depth);
            for (int64_t r = 0; r < b.n_rows; r += TILE) {
                const key_range range = keys_of_panel(&b, r);
                if (range.lo >= range.hi) continue;
                multiply_scores(unit, &w, w.st, w.k, w.q_cols, r, &range);
                softmax_panel(&b, &w, r, &range);
                add_to_panel(unit, &w, r, &range);
            }
        }
        for (int64_t r = 0; r < b.n_rows; r += TILE) {
            float *rows[TILE], factor[TILE];
            for (int64_t i = 0; i < ag_min(TILE, b.n_rows - r); i++) {
                const int64_t row = tensor_row(u, &b, H, r + i);
                rows[i] = (float *)a->o.data + row * D;
                factor[i] = 1 / w.sum[r + i];
                if (a->lse.data) ((float *)a->lse.data)[row] = w.max[r + i] + logf(w.sum[r + i]);
            }
            unpack_panel(rows, ag_min(TILE, b.n_rows - r), w.acc + r * w.depth, factor, D);
        }
    }
    unit->end();
}

/* lse and delta = do·o of the rows, with the rounded do that the product with v reads: where p is 1, dp - delta must vanish. */
static void load_rows(const ag_attention_bwd_args *a, const ag_attention_unit *u, const ag_block *b, const work *w)
{
    const int64_t H = a->q.dim[1], D = a->q.dim[2];
    for (int64_t r = 0; r < w->rows; r++) {
        w->max[r] = w->sum[r] = 0;
        if (r >= b->n_rows) continue;
        const int64_t row = tensor_row(u, b, H, r);
        const float *o = (const float *)a->o.data + row * D, *d_o = (const float *)a->d_o.data + row * D;
        vf delta = vf_zero();
        for (int64_t d = 0; d < D; d += VF_LANES) delta = vf_fma(vf_load_n(o + d, D - d), vf_round_bf16(vf_load_n(d_o + d, D - d)), delta);
        w->max[r] = ((const float *)a->lse.data)[row];
        w->sum[r] = vf_sum(delta);
    }
}

void ag_attention_pairs_bwd(const ag_attention_pairs_unit *unit, const ag_attention_bwd_args *a, const ag_attention_unit *u, float *dk,
                            float *dv, int64_t pitch, void *scratch)
{
    const int64_t H = a->q.dim[1], G = a->k.dim[1], D = a->q.dim[2], n = H / G;
    const ag_attention_span *s = u->span;
    ag_block b = block_of(s, n, a->window, a->softcap);
    work w;
    lay_out(&w, scratch, n, D);
    const int64_t block_tokens = ag_attention_pairs_block_tokens(n, D);
    unit->begin();
    for (b.t0 = u->t0; b.t0 < u->t1; b.t0 += block_tokens) {
        b.n_rows = ag_min(block_tokens, u->t1 - b.t0) * n;
        const int64_t query = tensor_row(u, &b, H, 0) * D;
        const ag_block_tensor q = {(const float *)a->q.data + query, n, H * D, D}, d_o = {(const float *)a->d_o.data + query, n, H * D, D};
        pack_pairs_of_depth(w.q_cols, &q, b.n_rows, w.depth, a->scale);
        pack_pairs_of_depth(w.do_cols, &d_o, b.n_rows, w.depth, 1);
        pack_pairs_of_rows(w.q_pairs, &q, b.n_rows, w.depth, a->scale);
        pack_pairs_of_rows(w.do_pairs, &d_o, b.n_rows, w.depth, 1);
        ag_block_ends(&b, w.ends, w.rows);
        load_rows(a, u, &b, &w);
        memset(w.acc, 0, (size_t)(w.rows * w.depth) * sizeof *w.acc);
        const int64_t end = ag_attention_keys_end(s, b.t0 + b.n_rows / n - 1);
        for (b.j0 = ag_attention_keys_first(s, b.window, b.t0); b.j0 < end; b.j0 += BLOCK_KEYS) {
            b.n_keys = ag_min(BLOCK_KEYS, end - b.j0);
            const int64_t key = ((s->kv0 + b.j0) * G + u->g) * D;
            const ag_block_tensor k = {(const float *)a->k.data + key, 1, G * D, D}, v = {(const float *)a->v.data + key, 1, G * D, D};
            pack_rows(w.k, &k, b.n_keys, w.depth);
            pack_rows(w.v, &v, b.n_keys, w.depth);
            pack_turned(w.turned, BLOCK_KEYS, &k, b.n_keys, w.depth);
            for (int64_t r = 0; r < b.n_rows; r += TILE) {
                const key_range range = keys_of_panel(&b, r);
                if (range.lo >= range.hi) continue;
                multiply_scores(unit, &w, w.st, w.k, w.q_cols, r, &range);
                multiply_scores(unit, &w, w.dst, w.v, w.do_cols, r, &range);
                gradient_panel(&b, &w, r, &range);
                add_to_panel(unit, &w, r, &range);
            }
            add_to_keys(unit, &b, &w, dv + b.j0 * pitch, pitch, w.p, w.do_pairs, D);
            add_to_keys(unit, &b, &w, dk + b.j0 * pitch, pitch, w.ds, w.q_pairs, D);
        }
        for (int64_t r = 0; r < b.n_rows; r += TILE) {
            float *rows[TILE], factor[TILE];
            for (int64_t i = 0; i < ag_min(TILE, b.n_rows - r); i++) {
                rows[i] = (float *)a->dq.data + tensor_row(u, &b, H, r + i) * D;
                factor[i] = a->scale;
            }
            unpack_panel(rows, ag_min(TILE, b.n_rows - r), w.acc + r * w.depth, factor, D);
        }
    }
    unit->end();
}

/* ---- the unit of AVX512-BF16 ------------------------------------------------------------------------------------------ */

enum { ROWS = 8 }; /* of sums at a time: 16 registers */

static void product(float *c, int64_t c_pitch, const uint16_t *a, int64_t a_pitch, int64_t a_step, const uint16_t *b, int64_t b_pitch,
                    int64_t b_step, int64_t n_steps, bool add)
{
    for (int m = 0; m < TILE; m += ROWS, c += ROWS * c_pitch, a += ROWS * a_pitch) {
        vf sum[ROWS][2];
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            sum[i][0] = sum[i][1] = vf_zero();
            if (!add) continue;
            sum[i][0] = vf_load(c + i * c_pitch);
            sum[i][1] = vf_load(c + i * c_pitch + VF_LANES);
        }
        for (int64_t step = 0; step < n_steps; step++)
            for (int p = 0; p < TILE / 2; p++) {
                const uint16_t *x = a + step * a_step + 2 * p, *y = b + step * b_step + p * b_pitch;
                const __m512bh y0 = (__m512bh)load_pairs(y), y1 = (__m512bh)load_pairs(y + TILE);
#pragma GCC unroll 8
                for (int i = 0; i < ROWS; i++) {
                    int32_t pair;
                    memcpy(&pair, x + i * a_pitch, sizeof pair);
                    const __m512bh z = (__m512bh)_mm512_set1_epi32(pair);
                    sum[i][0] = _mm512_dpbf16_ps(sum[i][0], z, y0);
                    sum[i][1] = _mm512_dpbf16_ps(sum[i][1], z, y1);
                }
            }
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            vf_store(c + i * c_pitch, sum[i][0]);
            vf_store(c + i * c_pitch + VF_LANES, sum[i][1]);
        }
    }
}

static void nothing(void) {}

static const ag_attention_pairs_unit vector_unit = {.begin = nothing, .end = nothing, .product = product};

void ag_attention_fwd_avx512bf16(const ag_attention_fwd_args *a, const ag_attention_unit *u, void *scratch)
{
    ag_attention_pairs_fwd(&vector_unit, a, u, scratch);
}

void ag_attention_bwd_avx512bf16(const ag_attention_bwd_args *a, const ag_attention_unit *u, float *dk, float *dv, int64_t pitch,
                                 void *scratch)
{
    ag_attention_pairs_bwd(&vector_unit, a, u, dk, dv, pitch, scratch);
}
