/* The walk over pairs of bf16 is that of lora_simd.c: panels of 32 rows by 64 columns, one reading of x, y and dy. Here is all of it
 * but the products. */
#include "ops/lora/lora_pairs.h"

#include "ops/lora/dropout_factors.h"
#include "ops/simd.h"

enum { MAX_RANKS = AG_LORA_MAX_R, RANK_STEP = 32 };

static int64_t ranks_of(const ag_lora_plan *plan) { return (plan->R + RANK_STEP - 1) / RANK_STEP * RANK_STEP; }
static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static inline __m256i to_bf16_16(vf x) { return (__m256i)_mm512_cvtneps_pbh(x); }

/* (low[i], high[i]) as neighbours. */
static inline __m512i interleave(__m256i low, __m256i high)
{
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

/* ---- packing A and B ---------------------------------------------------------------------------------------------- */

/* Up to 64 values of a row, zeros behind them, as bf16. NULL: all zeros. */
static void row_to_bf16(uint16_t out[LORA_PANEL], const float *x, int64_t n)
{
    for (int i = 0; i < LORA_PANEL; i += VF_LANES)
        _mm256_storeu_si256((__m256i *)(out + i), to_bf16_16(x && i < n ? vf_load_n(x + i, n - i) : vf_zero()));
}

/* Pairs along a row's own direction: out[pair][row], rows `step` pairs apart in out, from rows[n_rows][n] of src, ld apart. */
static void pack_along(uint32_t *out, int64_t step, int64_t n_rows, const float *src, int64_t ld, int64_t n)
{
    for (int64_t r = 0; r < n_rows; r++) {
        uint16_t row[LORA_PANEL];
        row_to_bf16(row, src + r * ld, n);
        for (int64_t p = 0; p < (n + 1) / 2; p++) memcpy(out + p * step + r, row + 2 * p, sizeof *out);
    }
}

/* Pairs of one row with the next: out[row pair][n]; n up to 64. */
static void pack_across(uint32_t *out, int64_t step, int64_t n_rows, const float *src, int64_t ld, int64_t n)
{
    for (int64_t r = 0; r < n_rows; r += 2) {
        uint16_t low[LORA_PANEL], high[LORA_PANEL];
        row_to_bf16(low, src + r * ld, n);
        row_to_bf16(high, r + 1 < n_rows ? src + (r + 1) * ld : NULL, n);
        for (int i = 0; i < n; i += VF_LANES)
            _mm512_storeu_si512(out + r / 2 * step + i, interleave(_mm256_loadu_si256((const __m256i *)(low + i)),
                                                                   _mm256_loadu_si256((const __m256i *)(high + i))));
    }
}

static uint32_t *reduce_panel(const ag_lora_plan *plan, float *packed, int64_t at) { return (uint32_t *)packed + at / 2 * plan->Rp; }
static uint32_t *expand_panel(const ag_lora_plan *plan, float *packed, int64_t at)
{
    return (uint32_t *)packed + at * (ranks_of(plan) / 2);
}

/* `src` is A [R,K] (`by_rank`) or B [N,R]; its columns or rows [l0,l1) become panels. */
static void pack_panels(const ag_lora_plan *plan, float *packed, const float *src, bool by_rank, bool for_reduce, int64_t l0,
                        int64_t l1)
{
    const int64_t R = plan->R, Rp = plan->Rp;
    for (int64_t l = l0; l < l1; l += LORA_PANEL) {
        const int64_t n = min64(LORA_PANEL, l1 - l);
        const size_t words = (size_t)(for_reduce ? LORA_PANEL / 2 * Rp : ranks_of(plan) / 2 * LORA_PANEL);
        uint32_t *out = for_reduce ? reduce_panel(plan, packed, l) : expand_panel(plan, packed, l);
        memset(out, 0, words * sizeof *out);
        if (for_reduce && by_rank) pack_along(out, Rp, R, src + l, plan->K, n);
        if (!for_reduce && by_rank) pack_across(out, LORA_PANEL, R, src + l, plan->K, n);
        for (int64_t r = 0; !by_rank && r < R; r += LORA_PANEL) {
            const float *from = src + l * R + r;
            if (for_reduce)
                pack_across(out + r, Rp, n, from, R, min64(LORA_PANEL, R - r));
            else
                pack_along(out + r / 2 * LORA_PANEL, LORA_PANEL, n, from, R, min64(LORA_PANEL, R - r));
        }
    }
}

void ag_lora_pairs_pack(const ag_lora_plan *plan, int64_t k0, int64_t k1, int64_t n0, int64_t n1)
{
    const bool forward_call = plan->fwd != NULL;
    pack_panels(plan, plan->a, forward_call ? plan->fwd->a.data : plan->bwd->a.data, true, forward_call, k0, k1);
    pack_panels(plan, plan->b, forward_call ? plan->fwd->b.data : plan->bwd->b.data, false, !forward_call, n0, n1);
}

/* ---- panels of x and dy ------------------------------------------------------------------------------------------- */

typedef struct {
    uint16_t rows[LORA_ROWS * LORA_PANEL] __attribute__((aligned(64)));
    uint16_t pairs[LORA_ROWS * LORA_PANEL] __attribute__((aligned(64)));
    float factor[LORA_ROWS * LORA_PANEL] __attribute__((aligned(64)));
} panel_room;

static inline vf panel_value(const float *x, int i, int64_t columns, const float *factor)
{
    vf v = columns == LORA_PANEL ? vf_load(x + i) : i < columns ? vf_load_n(x + i, columns - i) : vf_zero();
    if (factor) v = v * vf_load(factor + i);
    return v;
}

/* As fill_panel of lora_simd.c, into `rows`, `pairs` or both. */
static void fill(panel_room *room, bool want_rows, bool want_pairs, const float *x, int64_t ld, int64_t n_rows, int64_t columns,
                 const dropout_plan *dropout, uint64_t index)
{
    for (int64_t t = 0; t < LORA_ROWS; t += 2) {
        uint16_t *low_row = room->rows + t * LORA_PANEL, *high_row = low_row + LORA_PANEL;
        float *factor = dropout ? room->factor + t * LORA_PANEL : NULL;
        for (int half = 0; dropout && half < 2 && t + half < n_rows; half++)
            dropout_factors(factor + half * LORA_PANEL, dropout, index + (uint64_t)((t + half) * ld), LORA_PANEL);
        for (int i = 0; i < LORA_PANEL; i += VF_LANES) {
            const __m256i low = to_bf16_16(t < n_rows ? panel_value(x + t * ld, i, columns, factor) : vf_zero());
            const __m256i high = to_bf16_16(
                t + 1 < n_rows ? panel_value(x + (t + 1) * ld, i, columns, factor ? factor + LORA_PANEL : NULL) : vf_zero());
            if (want_rows) {
                _mm256_store_si256((__m256i *)(low_row + i), low);
                _mm256_store_si256((__m256i *)(high_row + i), high);
            }
            if (want_pairs) _mm512_store_si512(room->pairs + t * LORA_PANEL + 2 * i, interleave(low, high));
        }
    }
}

/* c[32,Rq] as bf16 from sums[n_rows,Rp], for expand; and ct[Rp,32], for accumulate. */
static void operand_rows(uint16_t *c, int64_t Rq, const float *sums, int64_t Rp, int64_t n_rows)
{
    memset(c, 0, (size_t)(LORA_ROWS * Rq) * sizeof *c);
    for (int64_t t = 0; t < n_rows; t++)
        for (int64_t r = 0; r < Rp; r += VF_LANES)
            _mm256_storeu_si256((__m256i *)(c + t * Rq + r), to_bf16_16(vf_load(sums + t * Rp + r)));
}

static void operand_columns(uint16_t *ct, const uint16_t *c, int64_t Rq, int64_t Rp)
{
    for (int64_t t = 0; t < LORA_ROWS; t++)
        for (int64_t r = 0; r < Rp; r++) ct[r * LORA_ROWS + t] = c[t * Rq + r];
}

/* out[t,n] += scale · product · factor, for the rows and columns that are there. */
static void add_product(float *out, int64_t ld, int64_t n_rows, int64_t columns, const float *product, float scale,
                        const float *factor)
{
    for (int64_t t = 0; t < n_rows; t++, out += ld)
        for (int i = 0; i < LORA_PANEL && i < columns; i += VF_LANES) {
            const vf f = factor ? vf_load(factor + t * LORA_PANEL + i) : vf_set1(scale), p = vf_load(product + t * LORA_PANEL + i);
            __builtin_prefetch(out + i + LORA_PANEL, 1);
            if (columns == LORA_PANEL)
                vf_store(out + i, vf_fma(f, p, vf_load(out + i)));
            else
                vf_store_n(out + i, vf_fma(f, p, vf_load_n(out + i, columns - i)), columns - i);
        }
}

/* ---- the walks ---------------------------------------------------------------------------------------------------- */

void ag_lora_pairs_forward(const lora_products *products, const ag_lora_plan *plan, int64_t t0, int64_t t1)
{
    panel_room room;
    float sum[LORA_ROWS * MAX_RANKS] __attribute__((aligned(64))), product[LORA_ROWS * LORA_PANEL] __attribute__((aligned(64)));
    uint16_t c[LORA_ROWS * MAX_RANKS] __attribute__((aligned(64)));
    const ag_lora_fwd_args *a = plan->fwd;
    const int64_t K = plan->K, N = plan->N, R = plan->R, Rp = plan->Rp, Rq = ranks_of(plan), n_rows = t1 - t0;
    const dropout_plan *dropout = plan->dropout.drop ? &plan->dropout : NULL;
    const float *x = (const float *)a->x.data + t0 * K;
    float *y = (float *)a->y.data + t0 * N, *h = (float *)a->h.data + t0 * R;

    products->begin();
    for (int64_t k = 0; k < K; k += LORA_PANEL) {
        fill(&room, true, false, x + k, K, n_rows, min64(LORA_PANEL, K - k), dropout, (uint64_t)(t0 * K + k));
        products->reduce(sum, k == 0, Rp, room.rows, reduce_panel(plan, plan->a, k), x + k + LORA_PANEL, K);
    }
    for (int64_t t = 0; t < n_rows; t++) memcpy(h + t * R, sum + t * Rp, (size_t)R * sizeof *h);
    operand_rows(c, Rq, sum, Rp, n_rows);
    for (int64_t n = 0; n < N; n += LORA_PANEL) {
        products->expand(product, c, Rq, (R + 1) / 2, expand_panel(plan, plan->b, n));
        add_product(y + n, N, n_rows, min64(LORA_PANEL, N - n), product, a->scale, NULL);
    }
    products->end();
}

static void backward_rows(const lora_products *products, const ag_lora_plan *plan, int64_t t0, int64_t n_rows, float *da_part,
                          float *db_part, bool first)
{
    panel_room room;
    float product[LORA_ROWS * LORA_PANEL] __attribute__((aligned(64))), h[LORA_ROWS * MAX_RANKS] __attribute__((aligned(64)));
    uint16_t c[LORA_ROWS * MAX_RANKS] __attribute__((aligned(64))), ct[LORA_ROWS * MAX_RANKS] __attribute__((aligned(64)));
    const ag_lora_bwd_args *a = plan->bwd;
    const int64_t K = plan->K, N = plan->N, R = plan->R, Rp = plan->Rp, Rq = ranks_of(plan);
    const dropout_plan *dropout = plan->dropout.drop ? &plan->dropout : NULL;
    const float *dy = (const float *)a->dy.data + t0 * N, *x = (const float *)a->x.data + t0 * K;
    float *dx = a->dx.data ? (float *)a->dx.data + t0 * K : NULL, *dh = plan->dh + t0 * Rp;

    memset(h, 0, (size_t)(n_rows * Rp) * sizeof *h);
    for (int64_t t = 0; t < n_rows; t++) memcpy(h + t * Rp, (const float *)a->h.data + (t0 + t) * R, (size_t)R * sizeof *h);
    operand_rows(c, Rq, h, Rp, n_rows);
    operand_columns(ct, c, Rq, Rp);
    for (int64_t n = 0; n < N; n += LORA_PANEL) {
        fill(&room, true, true, dy + n, N, n_rows, min64(LORA_PANEL, N - n), NULL, 0);
        products->reduce(dh, n == 0, Rp, room.rows, reduce_panel(plan, plan->b, n), dy + n + LORA_PANEL, N);
        products->accumulate(db_part + n * Rp, first, Rp, ct, room.pairs, NULL, 0);
    }
    for (int64_t i = 0; i < n_rows * Rp; i += VF_LANES) vf_store(dh + i, vf_load(dh + i) * vf_set1(a->scale));
    operand_rows(c, Rq, dh, Rp, n_rows);
    operand_columns(ct, c, Rq, Rp);
    for (int64_t k = 0; k < K; k += LORA_PANEL) {
        fill(&room, false, true, x + k, K, n_rows, min64(LORA_PANEL, K - k), dropout, (uint64_t)(t0 * K + k));
        products->accumulate(da_part + k * Rp, first, Rp, ct, room.pairs, x + k + LORA_PANEL, K);
        if (!dx) continue;
        products->expand(product, c, Rq, (R + 1) / 2, expand_panel(plan, plan->a, k));
        add_product(dx + k, K, n_rows, min64(LORA_PANEL, K - k), product, 1, dropout ? room.factor : NULL);
    }
}

void ag_lora_pairs_backward(const lora_products *products, const ag_lora_plan *plan, int64_t group)
{
    const int64_t t0 = group * plan->rows_per_group, t1 = min64(t0 + plan->rows_per_group, plan->T);
    products->begin();
    for (int64_t t = t0; t < t1; t += LORA_ROWS)
        backward_rows(products, plan, t, min64(LORA_ROWS, t1 - t), plan->da_part + group * plan->Rp * plan->Kp,
                      plan->db_part + group * plan->Rp * plan->Np, t == t0);
    products->end();
}
