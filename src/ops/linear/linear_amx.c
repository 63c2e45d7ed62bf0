/* AG_COMPUTE_BF16 on the matrix unit. C in blocks of 32×32: four tiles, fed by two tiles of A and two of B, so one load a product.
 * Packed A: row blocks [depth/32][2][16][32], each tile in one piece; panels of pairs as for VDPBF16PS.
 *
 * With scale 1 the tiles start from what C and the bias hold; a block at an edge does the same through a copy, so that a row's bits
 * do not depend on where the edge is. */
#include "ops/amx_tile.h"
#include "ops/linear/linear_kernel.h"

enum { ROWS = 2 * AG_TILE_ROWS, COLS = AG_LINEAR_COLS, DEPTH_BLOCK = 768, TILE_BYTES = AG_TILE_ROWS * AG_TILE_ROW_BYTES };
enum { PANEL_ROW_BYTES = COLS * 2 * (int)sizeof(uint16_t) };

/* C[32,32] from `init` (NULL: zero) plus A·B, into c. */
static void product(float *c, int64_t c_stride, const float *init, int64_t init_stride, const char *a, const char *panel, int64_t depth)
{
    const int64_t out = c_stride * (int64_t)sizeof *c, in = init_stride * (int64_t)sizeof *c;
    if (init) {
        ag_tile_load(0, init, in);
        ag_tile_load(1, init + AG_TILE_COLS, in);
        ag_tile_load(2, init + AG_TILE_ROWS * init_stride, in);
        ag_tile_load(3, init + AG_TILE_ROWS * init_stride + AG_TILE_COLS, in);
    } else {
        ag_tile_zero(0);
        ag_tile_zero(1);
        ag_tile_zero(2);
        ag_tile_zero(3);
    }
    for (int64_t d = 0; d < depth; d += AG_TILE_DEPTH, a += 2 * TILE_BYTES, panel += AG_TILE_DEPTH / 2 * PANEL_ROW_BYTES) {
        ag_tile_load(4, a, AG_TILE_ROW_BYTES);
        ag_tile_load(6, panel, PANEL_ROW_BYTES);
        ag_tile_load(7, panel + AG_TILE_ROW_BYTES, PANEL_ROW_BYTES);
        ag_tile_load(5, a + TILE_BYTES, AG_TILE_ROW_BYTES);
        ag_tile_dpbf16(0, 4, 6);
        ag_tile_dpbf16(1, 4, 7);
        ag_tile_dpbf16(2, 5, 6);
        ag_tile_dpbf16(3, 5, 7);
    }
    ag_tile_store(0, c, out);
    ag_tile_store(1, c + AG_TILE_COLS, out);
    ag_tile_store(2, c + AG_TILE_ROWS * c_stride, out);
    ag_tile_store(3, c + AG_TILE_ROWS * c_stride + AG_TILE_COLS, out);
}

/* The block through a copy in the L1 cache: at edges, with a bias or a scale. */
static void product_by_copy(const ag_linear_block *b, float *c, int64_t n_rows, const char *a)
{
    float copy[ROWS][COLS] __attribute__((aligned(64)));
    const bool chain = b->scale == 1;
    memset(copy, 0, sizeof copy);
    if (chain)
        for (int64_t r = 0; r < n_rows; r++)
            for (int n = 0; n < b->n_cols; n++)
                copy[r][n] = (b->add ? c[r * b->c_stride + n] : 0) + (b->bias ? b->bias[n] : 0);
    product(copy[0], COLS, copy[0], COLS, a, b->panel, b->depth);
    for (int64_t r = 0; r < n_rows; r++)
        for (int n = 0; n < b->n_cols; n++) {
            float y = copy[r][n];
            if (!chain) {
                y = y * b->scale;
                if (b->add) y = y + c[r * b->c_stride + n];
                if (b->bias) y = y + b->bias[n];
            }
            c[r * b->c_stride + n] = y;
        }
}

static void multiply(const ag_linear_block *b)
{
    const char *a = b->a;
    for (int64_t r = 0; r < b->n_rows; r += ROWS, a += b->a_block_bytes) {
        float *c = b->c + r * b->c_stride;
        if (b->n_rows - r >= ROWS && b->n_cols == COLS && b->scale == 1 && !b->bias)
            product(c, b->c_stride, b->add ? c : NULL, b->c_stride, a, b->panel, b->depth);
        else
            product_by_copy(b, c, b->n_rows - r < ROWS ? b->n_rows - r : ROWS, a);
    }
}

static void pack_a(void *out, const float *a, int64_t stride, int64_t n_rows, int64_t depth)
{
    ag_linear_pack_tiles(out, a, stride, n_rows, ROWS, depth);
}

static void pack_fwd(void *panel, const ag_weight *w, int64_t n0, int n_cols, int64_t k0, int64_t k1)
{
    ag_linear_pack_pairs_fwd(panel, w, n0, n_cols, k0, k1, AG_TILE_DEPTH);
}

static void pack_bwd(void *panel, const ag_weight *w, int64_t k0, int n_cols, int64_t n0, int64_t n1)
{
    ag_linear_pack_pairs_bwd(panel, w, k0, n_cols, n0, n1, AG_TILE_DEPTH);
}

static void thread_begin(void) { ag_tile_begin(); }
static void thread_end(void) { ag_tile_end(); }

const ag_linear_kernel ag_linear_kernel_amx = {
    .row_block = ROWS, .depth_step = AG_TILE_DEPTH, .depth_block = DEPTH_BLOCK, .element_bytes = 2,
    .pack_a = pack_a, .pack_fwd = pack_fwd, .pack_bwd = pack_bwd, .multiply = multiply,
    .thread_begin = thread_begin, .thread_end = thread_end,
    .few_x = ag_linear_few_x_avx512bf16, .few = ag_linear_few_avx512bf16,
};
