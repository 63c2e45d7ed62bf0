/* All six products are one small tile: acc[i][v] += c[i,s]·p[s,v], c broadcast, p in vectors. What differs is what i, s and v are:
 *
 *     reduce      h[t,r] += Σ_k xd[t,k]·A[r,k]      i = t, s = k, v = r      c = panel of x     p = A, packed [K,Rp]
 *     accumulate  dA[r,k] += Σ_t dh[t,r]·xd[t,k]    i = r, s = t, v = k      c = dh             p = panel of x
 *     expand      dx[t,k] += Σ_r dh[t,r]·A[r,k]     i = t, s = r, v = k      c = dh             p = A, packed [panel][Rp][64]
 *
 * and the same three with y, B, N. A panel is 32 rows by 64 columns, copied once out of x or dy with dropout, rounding and zero
 * padding done on the way (8 KiB: it and the factors stay in the first cache for all that is done with it; and rows that lie
 * a power of two apart cannot push each other out). So forward reads x once and y once; backward reads dy and x once. */
#include "base/num.h"
#include "ops/lora/dropout_factors.h"
#include "ops/lora/lora_slots.h"
#include "ops/simd.h"

enum { PANEL = LORA_PANEL, ROWS = LORA_ROWS, LINE = 16 /* floats of a cache line */, ASKED = 16 /* lines at a time */ };

/* Tile sizes by registers: M·V sums, V vectors of p and one broadcast. With V = 4 of 16 lanes a tile is as wide as a panel. */
#if defined(AG_SIMD_AVX2)
enum { WIDE_V = 2, WIDE_M = 4, PAIR_M = 4, SINGLE_M = 8 };
#else
enum { WIDE_V = 4, WIDE_M = 4, PAIR_M = 8, SINGLE_M = 16 };
#endif
enum { WIDE = WIDE_V * VF_LANES };

#define INLINE static inline __attribute__((always_inline))

/* acc[M][V] += Σ_s c[i·ci + s·cs] · p[s·ps + v], s < n. M and V are constants where this is inlined. */
INLINE void tile(int M, int V, vf *acc, const float *c, int64_t ci, int64_t cs, int64_t n, const float *p, int64_t ps)
{
    for (int64_t s = 0; s < n; s++, c += cs, p += ps) {
        vf pv[4];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) pv[v] = vf_load(p + v * VF_LANES);
#pragma GCC unroll 16
        for (int i = 0; i < M; i++) {
            const vf b = vf_set1(c[i * ci]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) acc[i * V + v] = vf_fma(b, pv[v], acc[i * V + v]);
        }
    }
}

/* The same onto memory: out[i·ldo + v] = … where it is the first, += … where not. */
INLINE void tile_load(int M, int V, bool first, vf *acc, const float *out, int64_t ldo)
{
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) acc[i * V + v] = first ? vf_zero() : vf_load(out + i * ldo + v * VF_LANES);
}

INLINE void tile_store(int M, int V, const vf *acc, float *out, int64_t ldo)
{
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) vf_store(out + i * ldo + v * VF_LANES, acc[i * V + v]);
}

/* Asks for a line of each of a few rows of the panel that comes next. Sixteen at a time, between pieces of work: a core has about
 * as many misses under way, and asking for a whole panel at once would stall on them. */
INLINE void ask(const float *ahead, int64_t ld, int n_rows)
{
    for (int i = 0; i < n_rows; i++) __builtin_prefetch(ahead + i * ld);
}

INLINE void reduce_tile(int M, int V, bool first, float *out, int64_t Rp, const float *panel, const float *p, const float *ahead,
                        int64_t ld)
{
    vf acc[16];
    tile_load(M, V, first, acc, out, Rp);
    for (int line = 0; line < PANEL; line += LINE) {
        ask(ahead + line, ld, M);
        tile(M, V, acc, panel + line, PANEL, 1, LINE, p + line * Rp, Rp);
    }
    tile_store(M, V, acc, out, Rp);
}

/* out[t,Rp] += panel[t,64] · p[64,Rp], for `rows` rows, rounded up to a tile (the panel has zeros there, `out` has room). `ahead`,
 * with rows `ld` apart, is what the next panel will be filled from. */
static void reduce(float *out, bool first, int64_t rows, const float *panel, const float *p, int64_t Rp, const float *ahead,
                   int64_t ld)
{
    for (int64_t r = 0; r < Rp;) {
        const int64_t vectors = (Rp - r) / VF_LANES;
        if (WIDE_V == 4 && vectors >= 4) {
            for (int64_t t = 0; t < rows; t += WIDE_M)
                reduce_tile(WIDE_M, WIDE_V, first, out + t * Rp + r, Rp, panel + t * PANEL, p + r, ahead + t * ld, ld);
            r += 4 * VF_LANES;
        } else if (vectors >= 2) {
            for (int64_t t = 0; t < rows; t += PAIR_M)
                reduce_tile(PAIR_M, 2, first, out + t * Rp + r, Rp, panel + t * PANEL, p + r, ahead + t * ld, ld);
            r += 2 * VF_LANES;
        } else {
            for (int64_t t = 0; t < rows; t += SINGLE_M)
                reduce_tile(SINGLE_M, 1, first, out + t * Rp + r, Rp, panel + t * PANEL, p + r, ahead + t * ld, ld);
            r += VF_LANES;
        }
    }
}

/* out[Rp,64] += c[rows,Rp]ᵀ · panel[rows,64]; `ahead` as above, NULL: somebody else asks. */
static void accumulate(float *out, bool first, int64_t rows, const float *c, int64_t Rp, const float *panel, const float *ahead,
                       int64_t ld)
{
    for (int64_t r = 0; r < Rp; r += WIDE_M)
        for (int w = 0; w < PANEL; w += WIDE) {
            vf acc[WIDE_M * WIDE_V];
            const int64_t line = r / WIDE_M * LINE;
            tile_load(WIDE_M, WIDE_V, first, acc, out + r * PANEL + w, PANEL);
            for (int64_t t = 0; t < rows; t += ASKED) {
                if (ahead && line < PANEL) ask(ahead + t * ld + line, ld, ASKED);
                tile(WIDE_M, WIDE_V, acc, c + t * Rp + r, 1, Rp, rows - t < ASKED ? rows - t : ASKED, panel + t * PANEL + w, PANEL);
            }
            tile_store(WIDE_M, WIDE_V, acc, out + r * PANEL + w, PANEL);
        }
}

/* out[t,n] += scale · (c[rows,Rp] · p[R,64])·factor, where factor[rows,64] may be NULL; `columns` of the 64 are there. */
static void expand(float *out, int64_t ldo, int64_t rows, int64_t columns, const float *c, int64_t R, int64_t Rp, const float *p,
                   float scale, const float *factor)
{
    const vf s = vf_set1(scale);
    for (int64_t t = 0; t < rows; t += WIDE_M)
        for (int w = 0; w < PANEL && w < columns; w += WIDE) {
            vf acc[WIDE_M * WIDE_V];
#pragma GCC unroll 16
            for (int i = 0; i < WIDE_M * WIDE_V; i++) acc[i] = vf_zero();
            tile(WIDE_M, WIDE_V, acc, c + t * Rp, Rp, 1, R, p + w, PANEL);
            const bool whole = t + WIDE_M <= rows && w + WIDE <= columns;
#pragma GCC unroll 4
            for (int i = 0; i < WIDE_M; i++)
#pragma GCC unroll 4
                for (int v = 0; v < WIDE_V; v++) {
                    const int64_t at = w + v * VF_LANES, left = t + i < rows ? columns - at : 0;
                    const vf f = factor ? vf_load(factor + (t + i) * PANEL + at) : s;
                    float *y = out + (t + i) * ldo + at;
                    __builtin_prefetch(y + PANEL, 1);
                    if (whole)
                        vf_store(y, vf_fma(f, acc[i * WIDE_V + v], vf_load(y)));
                    else if (left > 0)
                        vf_store_n(y, vf_fma(f, acc[i * WIDE_V + v], vf_load_n(y, left)), left);
                }
        }
}

/* ---- panels ------------------------------------------------------------------------------------------------------- */

/* panel[32,64] = rows [0,rows) of x, columns [k0,k0+columns); zeros to the right of them and below, as far as a tile reaches. With
 * dropout, factor[32,64] are its factors for the elements, the first of which has `index`. */
static void fill_panel(float *panel, float *factor, const float *x, int64_t ld, int64_t rows, int64_t columns,
                       const dropout_plan *dropout, uint64_t index, bool bf16)
{
    for (int64_t t = 0; t < rows; t++, x += ld, panel += PANEL) {
        if (dropout) dropout_factors(factor + t * PANEL, dropout, index + (uint64_t)(t * ld), PANEL);
        for (int i = 0; i < PANEL; i += VF_LANES) {
            vf v = columns == PANEL ? vf_load(x + i) : i < columns ? vf_load_n(x + i, columns - i) : vf_zero();
            if (dropout) v = v * vf_load(factor + t * PANEL + i);
            vf_store(panel + i, bf16 ? vf_round_bf16(v) : v);
        }
    }
    for (int64_t t = rows; t % SINGLE_M; t++, panel += PANEL) memset(panel, 0, PANEL * sizeof *panel);
}

/* ---- slots -------------------------------------------------------------------------------------------------------- */

static float rounded(const ag_lora_plan *plan, float x) { return plan->bf16 ? ag_round_bf16(x) : x; }

/* [long,Rp] from src[long·sl + r·sr] */
static void pack_reduce(const ag_lora_plan *plan, float *out, const float *src, int64_t sl, int64_t sr, int64_t l0, int64_t l1)
{
    const int64_t R = plan->R, Rp = plan->Rp;
    for (int64_t l = l0; l < l1; l++) {
        for (int64_t r = 0; r < R; r++) out[l * Rp + r] = rounded(plan, src[l * sl + r * sr]);
        for (int64_t r = R; r < Rp; r++) out[l * Rp + r] = 0;
    }
    const int64_t end = (l1 + PANEL - 1) / PANEL * PANEL;
    memset(out + l1 * Rp, 0, (size_t)((end - l1) * Rp) * sizeof *out);
}

/* [panel][Rp][64]; rows R to Rp are never read. */
static void pack_expand(const ag_lora_plan *plan, float *out, const float *src, int64_t sl, int64_t sr, int64_t l0, int64_t l1)
{
    for (int64_t p = l0; p < l1; p += PANEL)
        for (int64_t r = 0; r < plan->R; r++) {
            float *to = out + p * plan->Rp + r * PANEL;
            const int64_t n = l1 - p < PANEL ? l1 - p : PANEL;
            for (int64_t l = 0; l < n; l++) to[l] = rounded(plan, src[(p + l) * sl + r * sr]);
            for (int64_t l = n; l < PANEL; l++) to[l] = 0;
        }
}

static void pack(const ag_lora_plan *plan, int64_t k0, int64_t k1, int64_t n0, int64_t n1)
{
    if (plan->fwd) {
        pack_reduce(plan, plan->a, plan->fwd->a.data, 1, plan->K, k0, k1);
        pack_expand(plan, plan->b, plan->fwd->b.data, plan->R, 1, n0, n1);
    } else {
        pack_expand(plan, plan->a, plan->bwd->a.data, 1, plan->K, k0, k1);
        pack_reduce(plan, plan->b, plan->bwd->b.data, plan->R, 1, n0, n1);
    }
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* Rounds what is about to be an operand. */
static void round_operand(const ag_lora_plan *plan, float *c, int64_t n)
{
    for (int64_t i = 0; plan->bf16 && i < n; i += VF_LANES) vf_store(c + i, vf_round_bf16(vf_load(c + i)));
}

static void forward(const ag_lora_plan *plan, int64_t t0, int64_t t1)
{
    float panel[ROWS * PANEL] __attribute__((aligned(64))), factor[ROWS * PANEL] __attribute__((aligned(64)));
    float sum[ROWS * AG_LORA_MAX_R] __attribute__((aligned(64)));
    const ag_lora_fwd_args *a = plan->fwd;
    const int64_t K = plan->K, N = plan->N, R = plan->R, Rp = plan->Rp, rows = t1 - t0;
    const dropout_plan *dropout = plan->dropout.drop ? &plan->dropout : NULL;
    const float *x = (const float *)a->x.data + t0 * K;
    float *y = (float *)a->y.data + t0 * N, *h = (float *)a->h.data + t0 * R;

    for (int64_t k = 0; k < K; k += PANEL) {
        fill_panel(panel, factor, x + k, K, rows, min64(PANEL, K - k), dropout, (uint64_t)(t0 * K + k), plan->bf16);
        reduce(sum, k == 0, rows, panel, plan->a + k * Rp, Rp, x + k + PANEL, K);
    }
    for (int64_t t = 0; t < rows; t++) memcpy(h + t * R, sum + t * Rp, (size_t)R * sizeof *h);
    round_operand(plan, sum, rows * Rp);
    for (int64_t t = 0; t < rows; t += WIDE_M) /* few rows at a time, so that y streams and B comes from the second cache */
        for (int64_t n = 0; n < N; n += PANEL)
            expand(y + t * N + n, N, min64(WIDE_M, rows - t), min64(PANEL, N - n), sum + t * Rp, R, Rp, plan->b + n * Rp, a->scale,
                   NULL);
}

/* Rows [t0,t0+rows) of a group; its first ones begin its partial sums. */
static void backward_rows(const ag_lora_plan *plan, int64_t t0, int64_t rows, float *da_part, float *db_part, bool first)
{
    float panel[ROWS * PANEL] __attribute__((aligned(64))), factor[ROWS * PANEL] __attribute__((aligned(64)));
    float h[ROWS * AG_LORA_MAX_R] __attribute__((aligned(64)));
    const ag_lora_bwd_args *a = plan->bwd;
    const int64_t K = plan->K, N = plan->N, R = plan->R, Rp = plan->Rp;
    const dropout_plan *dropout = plan->dropout.drop ? &plan->dropout : NULL;
    const float *dy = (const float *)a->dy.data + t0 * N, *x = (const float *)a->x.data + t0 * K;
    float *dx = a->dx.data ? (float *)a->dx.data + t0 * K : NULL, *dh = plan->dh + t0 * Rp;

    memset(h, 0, (size_t)(rows * Rp) * sizeof *h);
    for (int64_t t = 0; t < rows; t++) memcpy(h + t * Rp, (const float *)a->h.data + (t0 + t) * R, (size_t)R * sizeof *h);
    round_operand(plan, h, rows * Rp);
    for (int64_t n = 0; n < N; n += PANEL) {
        fill_panel(panel, NULL, dy + n, N, rows, min64(PANEL, N - n), NULL, 0, plan->bf16);
        reduce(dh, n == 0, rows, panel, plan->b + n * Rp, Rp, dy + n + PANEL, N);
        accumulate(db_part + n * Rp, first, rows, h, Rp, panel, NULL, 0);
    }
    for (int64_t i = 0; i < rows * Rp; i += VF_LANES) vf_store(dh + i, vf_load(dh + i) * vf_set1(a->scale));
    round_operand(plan, dh, rows * Rp);
    for (int64_t k = 0; k < K; k += PANEL) {
        fill_panel(panel, factor, x + k, K, rows, min64(PANEL, K - k), dropout, (uint64_t)(t0 * K + k), plan->bf16);
        accumulate(da_part + k * Rp, first, rows, dh, Rp, panel, x + k + PANEL, K);
        if (dx) expand(dx + k, K, rows, min64(PANEL, K - k), dh, R, Rp, plan->a + k * Rp, 1, dropout ? factor : NULL);
    }
}

static void backward(const ag_lora_plan *plan, int64_t group)
{
    const int64_t t0 = group * plan->rows_per_group, t1 = min64(t0 + plan->rows_per_group, plan->T);
    for (int64_t t = t0; t < t1; t += ROWS)
        backward_rows(plan, t, min64(ROWS, t1 - t), plan->da_part + group * plan->Rp * plan->Kp,
                      plan->db_part + group * plan->Rp * plan->Np, t == t0);
}

/* sum[Rp,64] = Σ over groups of one panel's partial sums, group by group. */
static void sum_groups(float *sum, const ag_lora_plan *plan, const float *part, int64_t group_floats)
{
    for (int64_t i = 0; i < plan->Rp * PANEL; i += VF_LANES) {
        vf s = vf_load(part + i);
        for (int64_t g = 1; g < plan->n_groups; g++) s = s + vf_load(part + g * group_floats + i);
        vf_store(sum + i, s);
    }
}

void AG_LEVEL(ag_lora_sums)(const ag_lora_plan *plan, int64_t k0, int64_t k1, int64_t n0, int64_t n1)
{
    float sum[AG_LORA_MAX_R * PANEL] __attribute__((aligned(64)));
    const int64_t K = plan->K, R = plan->R, Rp = plan->Rp;
    float *da = plan->bwd->da.data, *db = plan->bwd->db.data;
    if (plan->n_groups == 0) return;
    for (int64_t k = k0; k < k1; k += PANEL) {
        sum_groups(sum, plan, plan->da_part + k * Rp, Rp * plan->Kp);
        for (int64_t r = 0; r < R; r++)
            for (int64_t i = 0; k + i < k1 && i < PANEL; i++) da[r * K + k + i] += sum[r * PANEL + i];
    }
    for (int64_t n = n0; n < n1; n += PANEL) {
        sum_groups(sum, plan, plan->db_part + n * Rp, Rp * plan->Np);
        for (int64_t i = 0; n + i < n1 && i < PANEL; i++)
            for (int64_t r = 0; r < R; r++) db[(n + i) * R + r] += plan->bwd->scale * sum[r * PANEL + i];
    }
}

const ag_lora_kernel AG_LEVEL(ag_lora_kernel) = {.pack = pack, .fwd = forward, .bwd = backward, .sums = AG_LEVEL(ag_lora_sums),
                                                  .few = AG_LEVEL(ag_lora_few)};
