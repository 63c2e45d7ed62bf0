/* The f32 kernel. C is computed in register blocks of ROWS × (COL_VECTORS vectors): 14×32 on AVX-512, 6×16 on AVX2 and NEON, so
 * that sums, one row of the panel and one broadcast fill the registers. Packed A: row blocks [depth][ROWS]; panel:
 * [depth][AG_LINEAR_COLS]. */
#include "ops/linear/linear_kernel.h"
#include "ops/linear/linear_transpose.h"

#if defined(AG_SIMD_AVX512)
enum { ROWS = 14, COL_VECTORS = 2, DEPTH_BLOCK = 768 };
#elif defined(AG_SIMD_AVX2)
enum { ROWS = 6, COL_VECTORS = 2, DEPTH_BLOCK = 512 };
#else
enum { ROWS = 6, COL_VECTORS = 4, DEPTH_BLOCK = 512 };
#endif
enum { COLS = COL_VECTORS * VF_LANES };
/* A streams from a far cache, and a processor's own prefetching begins anew at every page: ask so many steps ahead. */
enum { PREFETCH = 32 };

/* ---- the product -------------------------------------------------------------------------------------------------------- */
static inline __attribute__((always_inline)) void tile(const ag_linear_block *b, const int n_rows, const float *restrict a,
                                                       const float *restrict panel, float *c, int n_cols, const float *bias)
{
    vf sum[ROWS][COL_VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < COL_VECTORS; v++) sum[r][v] = vf_zero();
    for (int64_t d = 0; d < b->depth; d++, a += ROWS, panel += AG_LINEAR_COLS) {
        vf row[COL_VECTORS];
        __builtin_prefetch(a + PREFETCH * ROWS);
#pragma GCC unroll 4
        for (int v = 0; v < COL_VECTORS; v++) row[v] = vf_load(panel + v * VF_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; r++) {
            const vf x = vf_set1(a[r]);
#pragma GCC unroll 4
            for (int v = 0; v < COL_VECTORS; v++) sum[r][v] = vf_fma(x, row[v], sum[r][v]);
        }
    }
    const vf scale = vf_set1(b->scale);
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < COL_VECTORS; v++) {
            float *to = c + r * b->c_stride + v * VF_LANES;
            const int64_t n = n_cols - v * VF_LANES;
            if (n <= 0) continue;
            vf y = sum[r][v] * scale;
            if (b->add) y = y + vf_load_n(to, n);
            if (bias) y = y + vf_load_n(bias + v * VF_LANES, n);
            vf_store_n(to, y, n);
        }
}

static void tile_rows(const ag_linear_block *b, int n_rows, const float *a, const float *panel, float *c, int n_cols, const float *bias)
{
    switch (n_rows) {
#define ROWS_CASE(n) \
    case n: tile(b, n <= ROWS ? n : ROWS, a, panel, c, n_cols, bias); break;
        ROWS_CASE(1) ROWS_CASE(2) ROWS_CASE(3) ROWS_CASE(4) ROWS_CASE(5) ROWS_CASE(6)
#if defined(AG_SIMD_AVX512)
        ROWS_CASE(7) ROWS_CASE(8) ROWS_CASE(9) ROWS_CASE(10) ROWS_CASE(11) ROWS_CASE(12) ROWS_CASE(13) ROWS_CASE(14)
#endif
#undef ROWS_CASE
    }
}

static void multiply(const ag_linear_block *b)
{
    for (int64_t r = 0; r < b->n_rows; r += ROWS) {
        const float *a = (const float *)((const char *)b->a + (size_t)(r / ROWS) * b->a_block_bytes);
        const int n_rows = (int)(b->n_rows - r < ROWS ? b->n_rows - r : ROWS);
        for (int col = 0; col < b->n_cols; col += COLS)
            tile_rows(b, n_rows, a, (const float *)b->panel + col, b->c + r * b->c_stride + col, b->n_cols - col,
                      b->bias ? b->bias + col : NULL);
    }
}

/* ---- packing ------------------------------------------------------------------------------------------------------------ */
static inline void pack_a(float *out, const float *a, int64_t stride, int64_t n_rows, int64_t depth, bool round)
{
    for (int64_t d = 0; d < depth; d += VF_LANES)
        for (int r0 = 0; r0 < ROWS; r0 += VF_LANES) {
            const int64_t n_depth = depth - d < VF_LANES ? depth - d : VF_LANES;
            vf m[VF_LANES];
            for (int r = 0; r < VF_LANES; r++) {
                m[r] = r0 + r < n_rows ? vf_load_n(a + (r0 + r) * stride + d, n_depth) : vf_zero();
                if (round) m[r] = vf_round_bf16(m[r]);
            }
            transpose(m);
            for (int64_t j = 0; j < n_depth; j++) vf_store_n(out + (d + j) * ROWS + r0, m[j], ROWS - r0);
        }
}

/* Rows of W are decoded piece by piece into a buffer in the L1 cache and transposed into the panel. */
static inline void pack_fwd(float *panel, const ag_weight *w, int64_t n0, int n_cols, int64_t k0, int64_t k1, bool round)
{
    enum { PIECE = 64 };
    float rows[AG_LINEAR_COLS][PIECE] __attribute__((aligned(64)));
    if (n_cols < AG_LINEAR_COLS) memset(rows[n_cols], 0, sizeof rows[0] * (size_t)(AG_LINEAR_COLS - n_cols));
    for (int64_t k = k0; k < k1; k += PIECE, panel += PIECE * AG_LINEAR_COLS) {
        const int64_t n = k1 - k < PIECE ? k1 - k : PIECE;
        AG_LEVEL(ag_linear_decode)(rows[0], PIECE, w, n0, n_cols, k, n);
        for (int64_t i = 0; i < n; i += VF_LANES)
            for (int c = 0; c < AG_LINEAR_COLS; c += VF_LANES) {
                vf m[VF_LANES];
                for (int j = 0; j < VF_LANES; j++) {
                    m[j] = vf_load(&rows[c + j][i]);
                    if (round) m[j] = vf_round_bf16(m[j]);
                }
                transpose(m);
                for (int64_t j = 0; j < VF_LANES && i + j < n; j++) vf_store(panel + (i + j) * AG_LINEAR_COLS + c, m[j]);
            }
    }
}

static inline void pack_bwd(float *panel, const ag_weight *w, int64_t k0, int n_cols, int64_t n0, int64_t n1, bool round)
{
    enum { PIECE = 64 };
    for (int64_t n = n0; n < n1; n += PIECE, panel += PIECE * AG_LINEAR_COLS) {
        const int64_t n_rows = n1 - n < PIECE ? n1 - n : PIECE;
        if (n_cols < AG_LINEAR_COLS) memset(panel, 0, (size_t)n_rows * AG_LINEAR_COLS * sizeof *panel);
        AG_LEVEL(ag_linear_decode)(panel, AG_LINEAR_COLS, w, n, n_rows, k0, n_cols);
        if (round)
            for (int64_t i = 0; i < n_rows * AG_LINEAR_COLS; i += VF_LANES) vf_store(panel + i, vf_round_bf16(vf_load(panel + i)));
    }
}

#define PACKERS(name, round)                                                                                          \
    static void pack_a_##name(void *out, const float *a, int64_t stride, int64_t n_rows, int64_t depth)               \
    {                                                                                                                 \
        pack_a(out, a, stride, n_rows, depth, round);                                                                 \
    }                                                                                                                 \
    static void pack_fwd_##name(void *panel, const ag_weight *w, int64_t n0, int n_cols, int64_t k0, int64_t k1)      \
    {                                                                                                                 \
        pack_fwd(panel, w, n0, n_cols, k0, k1, round);                                                                \
    }                                                                                                                 \
    static void pack_bwd_##name(void *panel, const ag_weight *w, int64_t k0, int n_cols, int64_t n0, int64_t n1)      \
    {                                                                                                                 \
        pack_bwd(panel, w, k0, n_cols, n0, n1, round);                                                                \
    }
PACKERS(f32, false)
PACKERS(round, true)

#define KERNEL(name, few_x_)                                                                                          \
    {                                                                                                                 \
        .row_block = ROWS, .depth_step = 1, .depth_block = DEPTH_BLOCK, .element_bytes = sizeof(float),               \
        .pack_a = pack_a_##name, .pack_fwd = pack_fwd_##name, .pack_bwd = pack_bwd_##name, .multiply = multiply,      \
        .few_x = few_x_, .few = AG_LEVEL(ag_linear_few_##name),                                                       \
    }
const ag_linear_kernel AG_LEVEL(ag_linear_kernels)[2] = {
    [AG_COMPUTE_F32] = KERNEL(f32, NULL),
    [AG_COMPUTE_BF16] = KERNEL(round, AG_LEVEL(ag_linear_few_x_round)),
};
