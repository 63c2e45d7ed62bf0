/* Forward and backward by blocks: the queries of a unit (a key/value head's whole group) stay, blocks of keys pass by.
 *
 *     forward    st = K·Qᵀ · scale        softmax down the lanes       O = factor·O + Pᵀ·V
 *     backward   st = K·Qᵀ · scale, dst = V·dOᵀ       p, ds            dV += p·dO    dK += ds·(scale·Q)    dQ += dsᵀ·K
 * (st, p and ds are [key][row]; see attention_block.h.) Five products in backward and none of them twice: dq is the unit's
 * own, dk and dv go where the caller says, who adds what several units left in a fixed order. Of a block on the diagonal only
 * the tiles that somebody sees are computed. Keys and values are copied to rows of whole vectors, without gaps: reused for all
 * rows of the block, the copy costs little and spares the products cache conflicts and tails. */
#include "ops/attention/attention_block.h"
#include "ops/attention/attention_gemm.h"
#include "ops/simd_transpose.h"

enum { BLOCK_KEYS = 96 };

/* ---- scratch --------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t pitch;              /* rows of a block, whole vectors */
    int64_t width;              /* D in whole vectors */
    float *qt, *dot;            /* [D][pitch]: scale·Q and dO, transposed */
    float *q, *d_o, *acc;       /* [pitch][width]: scale·Q, dO, and O or dQ */
    float *st, *dst;            /* [BLOCK_KEYS][pitch] */
    float *k, *v;               /* [BLOCK_KEYS][width] */
    float *max, *sum, *factor;  /* [pitch]; backward keeps lse and delta in max and sum, and ones in factor */
    int32_t *ends;              /* [pitch] */
} work;

/* Lays the parts out in scratch (NULL: only counts) and returns the bytes they take. */
static size_t lay_out(work *w, void *scratch, int64_t n, int64_t D)
{
    const int64_t rows = ag_attention_block_tokens(n, D) * n, lanes = 16; /* of the widest level: one layout for all */
    w->pitch = (rows + lanes - 1) / lanes * lanes;
    w->width = (D + lanes - 1) / lanes * lanes;
    const int64_t square = w->pitch * w->width, scores = BLOCK_KEYS * w->pitch, keys = BLOCK_KEYS * w->width;
    const struct {
        float **part;
        int64_t size;
    } parts[] = {{&w->qt, square}, {&w->dot, square}, {&w->q, square}, {&w->d_o, square}, {&w->acc, square}, {&w->st, scores},
                 {&w->dst, scores}, {&w->k, keys}, {&w->v, keys}, {&w->max, w->pitch}, {&w->sum, w->pitch}, {&w->factor, w->pitch}};
    int64_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].part = scratch ? (float *)scratch + at : NULL;
        at += parts[i].size;
    }
    w->ends = scratch ? (int32_t *)((float *)scratch + at) : NULL;
    return (size_t)(at + w->pitch) * sizeof(float);
}

size_t AG_LEVEL(ag_attention_worker_bytes)(int64_t longest, int64_t H, int64_t G, int64_t D)
{
    (void)longest;
    work w;
    return lay_out(&w, NULL, H / G, D);
}

/* ---- packing --------------------------------------------------------------------------------------------------------- */

/* out[d][r] = scale · x[r][d]; rows from n_rows up to whole vectors become 0. */
static void pack_transposed(float *out, int64_t pitch, const ag_block_tensor *x, int64_t n_rows, float scale)
{
    for (int64_t r = 0; r < n_rows; r += VF_LANES) {
        const float *row[VF_LANES];
        const int64_t valid = ag_min(VF_LANES, n_rows - r);
        for (int64_t i = 0; i < valid; i++) row[i] = ag_block_row(x, r + i);
        for (int64_t d = 0; d < x->D; d += VF_LANES) {
            vf square[VF_LANES];
            const int64_t rest = ag_min(VF_LANES, x->D - d);
            for (int64_t i = 0; i < valid; i++) square[i] = vf_load_n(row[i] + d, rest) * vf_set1(scale);
            for (int64_t i = valid; i < VF_LANES; i++) square[i] = vf_zero();
            vf_transpose(square);
            for (int64_t i = 0; i < rest; i++) vf_store(out + (d + i) * pitch + r, square[i]);
        }
    }
}

/* out[r][d] = scale · x[r][d], 0 from D up to whole vectors. */
static void pack_rows(float *out, int64_t width, const ag_block_tensor *x, int64_t n_rows, float scale)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const float *row = ag_block_row(x, r);
        int64_t d = 0;
        for (; d < x->D; d += VF_LANES) vf_store(out + r * width + d, vf_load_n(row + d, x->D - d) * vf_set1(scale));
        for (; d < width; d += VF_LANES) vf_store(out + r * width + d, vf_zero());
    }
}

/* ---- products -------------------------------------------------------------------------------------------------------- */

/* n_vectors of the panel of tiles from row m0 to m1. */
AG_INLINE void tiles(const int n_vectors, const ag_product *p, int64_t m0, int64_t m1, int64_t n, int64_t k0, int64_t k1,
                     const float *factor)
{
    int64_t m = m0;
    for (; m + GEMM_ROWS <= m1; m += GEMM_ROWS) ag_gemm_tile(GEMM_ROWS, n_vectors, p, m, n, k0, k1, factor);
    for (; m + 2 <= m1; m += 2) ag_gemm_tile(2, n_vectors, p, m, n, k0, k1, factor);
    if (m < m1) ag_gemm_tile(1, n_vectors, p, m, n, k0, k1, factor);
}

/* c[key][row] = Σ_d keys[key][d] · rows_t[d][row], where some row of a tile sees some key of it. */
static void multiply_scores(const ag_block *b, const work *w, float *c, const float *keys, const float *rows_t, int64_t D)
{
    const ag_product p = {.c = c, .c_pitch = w->pitch, .a = keys, .a_row = w->width, .a_k = 1, .b = rows_t, .b_pitch = w->pitch};
    for (int64_t r = 0, left; (left = b->n_rows - r) > 0;) {
        const int n_vectors = left > (GEMM_VECTORS - 1) * VF_LANES ? GEMM_VECTORS : left > VF_LANES ? 2 : 1;
        int64_t lo, hi;
        ag_block_keys(b, r, r + n_vectors * VF_LANES, &lo, &hi);
        if (n_vectors == GEMM_VECTORS) tiles(GEMM_VECTORS, &p, lo, hi, r, 0, D, NULL);
        else if (n_vectors == 2) tiles(2, &p, lo, hi, r, 0, D, NULL);
        else tiles(1, &p, lo, hi, r, 0, D, NULL);
        r += n_vectors * VF_LANES;
    }
}

/* One panel of c[row][d] = factor[row]·c[row][d] + Σ_key p[key][row] · x[key][d]. */
AG_INLINE void row_panel(const int n_vectors, const ag_block *b, const ag_product *p, int64_t n, const float *factor)
{
    int64_t r = 0, lo, hi;
    for (; r + GEMM_ROWS <= b->n_rows; r += GEMM_ROWS) {
        ag_block_keys(b, r, r + GEMM_ROWS, &lo, &hi);
        ag_gemm_tile(GEMM_ROWS, n_vectors, p, r, n, lo, hi, factor);
    }
    for (; r < b->n_rows; r++) {
        ag_block_keys(b, r, r + 1, &lo, &hi);
        ag_gemm_tile(1, n_vectors, p, r, n, lo, hi, factor);
    }
}

/* acc[row] = factor[row]·acc[row] + Σ_key p[key][row] · x[key]. */
static void add_to_rows(const ag_block *b, const work *w, const float *probabilities, const float *x)
{
    const ag_product p = {.c = w->acc, .c_pitch = w->width, .a = probabilities, .a_row = 1, .a_k = w->pitch, .b = x, .b_pitch = w->width};
    int64_t d = 0;
    for (; d + GEMM_VECTORS * VF_LANES <= w->width; d += GEMM_VECTORS * VF_LANES) row_panel(GEMM_VECTORS, b, &p, d, w->factor);
    for (; d < w->width; d += VF_LANES) row_panel(1, b, &p, d, w->factor);
}

/* One panel of c[key][d] += Σ_row p[key][row] · x[row][d]; the last vector may be a part of one. */
AG_INLINE void key_panel(const int n_vectors, const ag_block *b, const ag_product *p, int64_t n, const float *ones)
{
    int64_t k = 0, lo, hi;
    for (; k + GEMM_ROWS <= b->n_keys; k += GEMM_ROWS) {
        ag_block_rows(b, k, k + GEMM_ROWS, &lo, &hi);
        ag_gemm_tile(GEMM_ROWS, n_vectors, p, k, n, lo, hi, ones);
    }
    for (; k < b->n_keys; k++) {
        ag_block_rows(b, k, k + 1, &lo, &hi);
        ag_gemm_tile(1, n_vectors, p, k, n, lo, hi, ones);
    }
}

/* dx[key] += Σ_row p[key][row] · x[row]. A head dim of broken vectors goes through the block `tmp` of whole ones. */
static void add_to_keys(const ag_block *b, const work *w, float *dx, int64_t dx_pitch, const float *probabilities, const float *x,
                        int64_t D, float *tmp)
{
    const bool whole = D % VF_LANES == 0;
    ag_product p = {.c = dx, .c_pitch = dx_pitch, .a = probabilities, .a_row = w->pitch, .a_k = 1, .b = x, .b_pitch = w->width};
    if (!whole) {
        p.c = tmp;
        p.c_pitch = w->width;
        for (int64_t k = 0; k < b->n_keys; k++)
            for (int64_t d = 0; d < w->width; d += VF_LANES)
                vf_store(tmp + k * w->width + d, d < D ? vf_load_n(dx + k * dx_pitch + d, D - d) : vf_zero());
    }
    int64_t d = 0;
    for (; d + GEMM_VECTORS * VF_LANES <= D; d += GEMM_VECTORS * VF_LANES) key_panel(GEMM_VECTORS, b, &p, d, w->factor);
    for (; d < D; d += VF_LANES) key_panel(1, b, &p, d, w->factor);
    if (!whole)
        for (int64_t k = 0; k < b->n_keys; k++)
            for (d = 0; d < D; d += VF_LANES) vf_store_n(dx + k * dx_pitch + d, vf_load(tmp + k * w->width + d), D - d);
}

/* ---- few rows -------------------------------------------------------------------------------------------------------- */

/* With few rows (decoding) lanes would be empty and a copy of the keys is as dear as the products: vectors lie along d instead,
 * keys and values are read once, where they are. */
enum { FEW_ROWS = VF_LANES / 2, FEW_KEYS = 64 };

/* p[key] of one row for VF_LANES keys from j on (counted from the block's): scores, -infinity for keys it does not see. */
static inline vf few_scores(const ag_block *b, const float *q, const float *keys, int64_t key_pitch, int64_t j, int64_t D, int64_t lo, int64_t hi)
{
    const float *key[VF_LANES];
    vf sum[VF_LANES], lane;
    float numbers[VF_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < VF_LANES; i++) {
        key[i] = keys + ag_min(j + i, b->n_keys - 1) * key_pitch;
        sum[i] = vf_zero();
        numbers[i] = (float)i;
    }
    for (int64_t d = 0; d < D; d += VF_LANES) {
        const vf x = vf_load(q + d);
#pragma GCC unroll 16
        for (int i = 0; i < VF_LANES; i++) sum[i] = vf_fma(x, vf_load(key[i] + d), sum[i]);
    }
    vf s = vf_sum_rows(sum);
    if (b->softcap > 0) s = ag_capped(s, b->softcap);
    if (j >= lo && j + VF_LANES <= hi) return s;
    memcpy(&lane, numbers, sizeof lane);
    const vi sees = (vi)(lane >= vf_set1((float)(lo - j))) & (vi)(lane < vf_set1((float)(hi - j)));
    return (vf)(((vi)s & sees) | ((vi)vf_set1(-INFINITY) & ~sees));
}

/* The online softmax of one row over FEW_KEYS scores. */
static void few_softmax(const work *w, int64_t r, float *p)
{
    vf top = vf_set1(w->max[r]), sum = vf_zero();
    for (int k = 0; k < FEW_KEYS; k += VF_LANES) top = vf_max(top, vf_load(p + k));
    const float max = vf_max_lane(top);
    for (int k = 0; k < FEW_KEYS; k += VF_LANES) {
        const vf e = vf_exp(vf_load(p + k) - vf_set1(max));
        vf_store(p + k, e);
        sum = sum + e;
    }
    w->factor[r] = expf(w->max[r] - max);
    w->sum[r] = w->sum[r] * w->factor[r] + vf_sum(sum);
    w->max[r] = max;
}

AG_INLINE void few_panel(const int n_vectors, const ag_product *p, int64_t n_rows, int64_t n, int64_t n_keys, const float *factor)
{
    int64_t r = 0;
    for (; r + 4 <= n_rows; r += 4) ag_gemm_tile(4, n_vectors, p, r, n, 0, n_keys, factor);
    if (n_rows - r == 3) ag_gemm_tile(3, n_vectors, p, r, n, 0, n_keys, factor);
    else if (n_rows - r == 2) ag_gemm_tile(2, n_vectors, p, r, n, 0, n_keys, factor);
    else if (n_rows - r == 1) ag_gemm_tile(1, n_vectors, p, r, n, 0, n_keys, factor);
}

/* One block of at most FEW_KEYS keys: scores, softmax and acc = factor·acc + p·v. D is whole vectors. */
static void few_rows(const ag_block *b, const work *w, const float *keys, const float *values, int64_t pitch, int64_t D)
{
    float *p = w->st;
    for (int64_t r = 0; r < b->n_rows; r++) {
        int64_t lo, hi;
        ag_block_keys(b, r, r + 1, &lo, &hi);
        for (int64_t j = 0; j < FEW_KEYS; j += VF_LANES)
            vf_store(p + r * FEW_KEYS + j, j < b->n_keys ? few_scores(b, w->q + r * w->width, keys, pitch, j, D, lo, hi) : vf_set1(-INFINITY));
        few_softmax(w, r, p + r * FEW_KEYS);
    }
    const ag_product product = {.c = w->acc, .c_pitch = w->width, .a = p, .a_row = FEW_KEYS, .a_k = 1, .b = values, .b_pitch = pitch};
    int64_t d = 0;
    for (; d + GEMM_VECTORS * VF_LANES <= D; d += GEMM_VECTORS * VF_LANES) few_panel(GEMM_VECTORS, &product, b->n_rows, d, b->n_keys, w->factor);
    for (; d < D; d += VF_LANES) few_panel(1, &product, b->n_rows, d, b->n_keys, w->factor);
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

static void store_rows(const ag_attention_fwd_args *a, const ag_attention_unit *u, const ag_block *b, const work *w)
{
    const int64_t H = a->q.dim[1], D = a->q.dim[2];
    for (int64_t r = 0; r < b->n_rows; r++) {
        const int64_t row = (u->span->q0 + b->t0 + r / b->n) * H + u->g * b->n + r % b->n;
        float *o = u->part ? u->part + (row - u->span->q0 * H) * (D + 2) : (float *)a->o.data + row * D;
        const vf factor = vf_set1(u->part ? 1 : 1 / w->sum[r]);
        for (int64_t d = 0; d < D; d += VF_LANES) vf_store_n(o + d, vf_load(w->acc + r * w->width + d) * factor, D - d);
        if (u->part) {
            o[D] = w->max[r];
            o[D + 1] = w->sum[r];
        } else if (a->lse.data) ((float *)a->lse.data)[row] = w->max[r] + logf(w->sum[r]);
    }
}

void AG_LEVEL(ag_attention_fwd)(const ag_attention_fwd_args *a, const ag_attention_unit *u, void *scratch)
{
    const int64_t H = a->q.dim[1], G = a->k.dim[1], D = a->q.dim[2], n = H / G;
    const ag_attention_span *s = u->span;
    ag_block b = {.n = n, .diagonal = s->n_kv - s->n_q + 1, .window = a->window < s->n_kv ? a->window : 0, .softcap = a->softcap};
    work w;
    lay_out(&w, scratch, n, D);
    const int64_t block_tokens = ag_attention_block_tokens(n, D);
    for (b.t0 = u->t0; b.t0 < u->t1; b.t0 += block_tokens) {
        b.n_rows = ag_min(block_tokens, u->t1 - b.t0) * n;
        const ag_block_tensor q = {(const float *)a->q.data + ((s->q0 + b.t0) * H + u->g * n) * D, n, H * D, D};
        const bool few = b.n_rows <= FEW_ROWS && D % VF_LANES == 0;
        if (few) pack_rows(w.q, w.width, &q, b.n_rows, a->scale);
        else pack_transposed(w.qt, w.pitch, &q, b.n_rows, a->scale);
        ag_block_ends(&b, w.ends, w.pitch);
        for (int64_t r = 0; r < w.pitch; r++) {
            w.max[r] = -FLT_MAX; /* not infinity: the difference of two of them is no number */
            w.sum[r] = 0;
        }
        memset(w.acc, 0, (size_t)(b.n_rows * w.width) * sizeof *w.acc);
        const int64_t first = ag_attention_keys_first(s, b.window, b.t0), end = ag_attention_keys_end(s, b.t0 + b.n_rows / n - 1);
        const int64_t j0 = first > u->j0 ? first : u->j0, j1 = ag_min(end, u->j1), step = few ? FEW_KEYS : BLOCK_KEYS;
        for (b.j0 = j0; b.j0 < j1; b.j0 += step) {
            b.n_keys = ag_min(step, j1 - b.j0);
            const int64_t key = ((s->kv0 + b.j0) * G + u->g) * D;
            const ag_block_tensor k = {(const float *)a->k.data + key, 1, G * D, D}, v = {(const float *)a->v.data + key, 1, G * D, D};
            if (few) {
                few_rows(&b, &w, k.data, v.data, G * D, D);
                continue;
            }
            pack_rows(w.k, w.width, &k, b.n_keys, 1);
            multiply_scores(&b, &w, w.st, w.k, w.qt, D);
            for (int64_t r = 0; r < b.n_rows; r += VF_LANES)
                vf_store(w.factor + r, ag_block_softmax(&b, w.st, w.pitch, r, w.ends, w.max, w.sum));
            pack_rows(w.v, w.width, &v, b.n_keys, 1);
            add_to_rows(&b, &w, w.st, w.v);
        }
        store_rows(a, u, &b, &w);
    }
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

/* lse and delta = do·o of the block's rows. */
static void load_rows(const ag_attention_bwd_args *a, const ag_attention_unit *u, const ag_block *b, const work *w)
{
    const int64_t H = a->q.dim[1], D = a->q.dim[2];
    for (int64_t r = 0; r < w->pitch; r++) {
        w->max[r] = w->sum[r] = 0;
        w->factor[r] = 1;
        if (r >= b->n_rows) continue;
        const int64_t row = (u->span->q0 + b->t0 + r / b->n) * H + u->g * b->n + r % b->n;
        const float *o = (const float *)a->o.data + row * D, *d_o = (const float *)a->d_o.data + row * D;
        vf delta = vf_zero();
        for (int64_t d = 0; d < D; d += VF_LANES) delta = vf_fma(vf_load_n(o + d, D - d), vf_load_n(d_o + d, D - d), delta);
        w->max[r] = ((const float *)a->lse.data)[row];
        w->sum[r] = vf_sum(delta);
    }
}

static void store_dq(const ag_attention_bwd_args *a, const ag_attention_unit *u, const ag_block *b, const work *w)
{
    const int64_t H = a->q.dim[1], D = a->q.dim[2];
    for (int64_t r = 0; r < b->n_rows; r++) {
        float *dq = (float *)a->dq.data + ((u->span->q0 + b->t0 + r / b->n) * H + u->g * b->n + r % b->n) * D;
        for (int64_t d = 0; d < D; d += VF_LANES) vf_store_n(dq + d, vf_load(w->acc + r * w->width + d) * vf_set1(a->scale), D - d);
    }
}

void AG_LEVEL(ag_attention_bwd)(const ag_attention_bwd_args *a, const ag_attention_unit *u, float *dk, float *dv, int64_t pitch,
                                void *scratch)
{
    const int64_t H = a->q.dim[1], G = a->k.dim[1], D = a->q.dim[2], n = H / G;
    const ag_attention_span *s = u->span;
    ag_block b = {.n = n, .diagonal = s->n_kv - s->n_q + 1, .window = a->window < s->n_kv ? a->window : 0, .softcap = a->softcap};
    work w;
    lay_out(&w, scratch, n, D);
    const int64_t block_tokens = ag_attention_block_tokens(n, D);
    for (b.t0 = u->t0; b.t0 < u->t1; b.t0 += block_tokens) {
        b.n_rows = ag_min(block_tokens, u->t1 - b.t0) * n;
        const int64_t query = ((s->q0 + b.t0) * H + u->g * n) * D;
        const ag_block_tensor q = {(const float *)a->q.data + query, n, H * D, D}, d_o = {(const float *)a->d_o.data + query, n, H * D, D};
        pack_transposed(w.qt, w.pitch, &q, b.n_rows, a->scale);
        pack_transposed(w.dot, w.pitch, &d_o, b.n_rows, 1);
        pack_rows(w.q, w.width, &q, b.n_rows, a->scale);
        pack_rows(w.d_o, w.width, &d_o, b.n_rows, 1);
        ag_block_ends(&b, w.ends, w.pitch);
        load_rows(a, u, &b, &w);
        memset(w.acc, 0, (size_t)(b.n_rows * w.width) * sizeof *w.acc);
        const int64_t end = ag_attention_keys_end(s, b.t0 + b.n_rows / n - 1);
        for (b.j0 = ag_attention_keys_first(s, b.window, b.t0); b.j0 < end; b.j0 += BLOCK_KEYS) {
            b.n_keys = ag_min(BLOCK_KEYS, end - b.j0);
            const int64_t key = ((s->kv0 + b.j0) * G + u->g) * D;
            const ag_block_tensor k = {(const float *)a->k.data + key, 1, G * D, D}, v = {(const float *)a->v.data + key, 1, G * D, D};
            pack_rows(w.k, w.width, &k, b.n_keys, 1);
            pack_rows(w.v, w.width, &v, b.n_keys, 1);
            multiply_scores(&b, &w, w.st, w.k, w.qt, D);
            multiply_scores(&b, &w, w.dst, w.v, w.dot, D);
            for (int64_t r = 0; r < b.n_rows; r += VF_LANES) ag_block_gradient(&b, w.st, w.dst, w.pitch, r, w.ends, w.max, w.sum);
            add_to_keys(&b, &w, dv + b.j0 * pitch, pitch, w.st, w.d_o, D, w.v);
            add_to_keys(&b, &w, dk + b.j0 * pitch, pitch, w.dst, w.q, D, w.v);
            add_to_rows(&b, &w, w.dst, w.k);
        }
        store_dq(a, u, &b, &w);
    }
}
