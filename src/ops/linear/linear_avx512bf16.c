/* AG_COMPUTE_BF16 by VDPBF16PS, which takes two steps of the depth at once: the f32 kernel's 14×32 block over pairs. On Zen 4 it
 * runs at the rate of the f32 FMA, so that it does twice the work. Packed A: row blocks [depth/2][ROWS][2]. */
#include "ops/linear/linear_kernel.h"
#include "ops/linear/linear_pairs.h"
#include "ops/linear/linear_transpose.h"

enum { ROWS = 14, COL_VECTORS = 2, DEPTH_STEP = 2, DEPTH_BLOCK = 1536, PREFETCH = 32 /* steps ahead, as in linear_simd.c */ };

static inline __attribute__((always_inline)) void tile(const ag_linear_block *b, const int n_rows, const uint32_t *restrict a, float *c)
{
    const uint32_t *panel = b->panel;
    vf sum[ROWS][COL_VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r++) sum[r][0] = sum[r][1] = vf_zero();
    for (int64_t d = 0; d < b->depth; d += 2, a += ROWS, panel += AG_LINEAR_COLS) {
        __builtin_prefetch(a + PREFETCH * ROWS);
        const __m512bh row0 = (__m512bh)_mm512_loadu_si512(panel), row1 = (__m512bh)_mm512_loadu_si512(panel + 16);
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; r++) {
            const __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[r]);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, row0);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, row1);
        }
    }
    const vf scale = vf_set1(b->scale);
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < COL_VECTORS; v++) {
            float *to = c + r * b->c_stride + v * VF_LANES;
            const int64_t n = b->n_cols - v * VF_LANES;
            if (n <= 0) continue;
            vf y = sum[r][v] * scale;
            if (b->add) y = y + vf_load_n(to, n);
            if (b->bias) y = y + vf_load_n(b->bias + v * VF_LANES, n);
            vf_store_n(to, y, n);
        }
}

static void multiply(const ag_linear_block *b)
{
    for (int64_t r = 0; r < b->n_rows; r += ROWS) {
        const uint32_t *a = (const uint32_t *)((const char *)b->a + (size_t)(r / ROWS) * b->a_block_bytes);
        float *c = b->c + r * b->c_stride;
        switch (b->n_rows - r) {
#define ROWS_CASE(n) \
    case n: tile(b, n, a, c); break;
            ROWS_CASE(1) ROWS_CASE(2) ROWS_CASE(3) ROWS_CASE(4) ROWS_CASE(5) ROWS_CASE(6) ROWS_CASE(7)
            ROWS_CASE(8) ROWS_CASE(9) ROWS_CASE(10) ROWS_CASE(11) ROWS_CASE(12) ROWS_CASE(13)
#undef ROWS_CASE
        default: tile(b, ROWS, a, c);
        }
    }
}

static void pack_a(void *out, const float *a, int64_t stride, int64_t n_rows, int64_t depth)
{
    uint32_t *pairs = out;
    for (int64_t d = 0; d < depth; d += CHUNK) {
        const int64_t n = depth - d;
        vf m[16];
        for (int r = 0; r < 16; r++) {
            const float *x = a + r * stride + d;
            if (r >= n_rows)
                m[r] = vf_zero();
            else
                m[r] = (vf)to_bf16(vf_load_n(x, n), n > 16 ? vf_load_n(x + 16, n - 16) : vf_zero());
        }
        transpose(m);
        for (int64_t j = 0; j < 16 && d + 2 * j < depth; j++) vf_store_n((float *)pairs + (d / 2 + j) * ROWS, m[j], ROWS);
    }
}

static void pack_fwd(void *panel, const ag_weight *w, int64_t n0, int n_cols, int64_t k0, int64_t k1)
{
    ag_linear_pack_pairs_fwd(panel, w, n0, n_cols, k0, k1, DEPTH_STEP);
}

static void pack_bwd(void *panel, const ag_weight *w, int64_t k0, int n_cols, int64_t n0, int64_t n1)
{
    ag_linear_pack_pairs_bwd(panel, w, k0, n_cols, n0, n1, DEPTH_STEP);
}

const ag_linear_kernel ag_linear_kernel_avx512bf16 = {
    .row_block = ROWS, .depth_step = DEPTH_STEP, .depth_block = DEPTH_BLOCK, .element_bytes = 2,
    .pack_a = pack_a, .pack_fwd = pack_fwd, .pack_bwd = pack_bwd, .multiply = multiply,
    .few_x = ag_linear_few_x_avx512bf16, .few = ag_linear_few_avx512bf16,
};
