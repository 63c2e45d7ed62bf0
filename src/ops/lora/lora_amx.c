/* The three products on the matrix unit. Little work for each tile that is loaded (R is small), so what counts is that operands lie
 * as tiles want them: rows of 32 bf16 for A, rows of pairs for B, C in f32. */
#include "ops/amx_tile.h"
#include "ops/lora/lora_pairs.h"

enum { PANEL = LORA_PANEL, ROWS = LORA_ROWS, SIDE = AG_TILE_ROWS };
enum { PANEL_PAIR_BYTES = PANEL * 4, PANEL_BYTES = PANEL * 2, ROW_BYTES = ROWS * 2, OUT_BYTES = PANEL * 4 };

/* Rows of the next panel, all its lines; the unit works meanwhile. */
static inline void ask(const float *ahead, int64_t ld, int n_rows)
{
    for (int i = 0; i < n_rows; i++)
        for (int line = 0; line < PANEL; line += SIDE) __builtin_prefetch(ahead + i * ld + line);
}

static void reduce(float *out, bool first, int64_t Rp, const uint16_t *rows, const uint32_t *p, const float *ahead, int64_t ld)
{
    const int64_t out_bytes = Rp * (int64_t)sizeof *out, p_bytes = Rp * (int64_t)sizeof *p;
    for (int64_t r = 0; r < Rp; r += SIDE) {
        if (first) {
            ag_tile_zero(0);
            ag_tile_zero(1);
        } else {
            ag_tile_load(0, out + r, out_bytes);
            ag_tile_load(1, out + SIDE * Rp + r, out_bytes);
        }
        for (int d = 0; d < PANEL; d += AG_TILE_DEPTH) {
            ag_tile_load(4, rows + d, PANEL_BYTES);
            ag_tile_load(5, rows + SIDE * PANEL + d, PANEL_BYTES);
            ag_tile_load(6, p + d / 2 * Rp + r, p_bytes);
            ag_tile_dpbf16(0, 4, 6);
            ag_tile_dpbf16(1, 5, 6);
            if (ahead && r == 0) ask(ahead + d / 2 * ld, ld, ROWS / 2);
        }
        ag_tile_store(0, out + r, out_bytes);
        ag_tile_store(1, out + SIDE * Rp + r, out_bytes);
    }
}

static void accumulate(float *out, bool first, int64_t Rp, const uint16_t *ct, const uint16_t *pairs, const float *ahead, int64_t ld)
{
    for (int64_t r = 0; r < Rp; r += SIDE, out += SIDE * PANEL) {
        if (first) {
            ag_tile_zero(0);
            ag_tile_zero(1);
            ag_tile_zero(2);
            ag_tile_zero(3);
        } else {
            ag_tile_load(0, out, OUT_BYTES);
            ag_tile_load(1, out + SIDE, OUT_BYTES);
            ag_tile_load(2, out + 2 * SIDE, OUT_BYTES);
            ag_tile_load(3, out + 3 * SIDE, OUT_BYTES);
        }
        ag_tile_load(4, ct + r * ROWS, ROW_BYTES);
        ag_tile_load(5, pairs, PANEL_PAIR_BYTES);
        ag_tile_load(6, pairs + 2 * SIDE, PANEL_PAIR_BYTES);
        ag_tile_dpbf16(0, 4, 5);
        ag_tile_dpbf16(1, 4, 6);
        ag_tile_load(5, pairs + 4 * SIDE, PANEL_PAIR_BYTES);
        ag_tile_load(6, pairs + 6 * SIDE, PANEL_PAIR_BYTES);
        ag_tile_dpbf16(2, 4, 5);
        ag_tile_dpbf16(3, 4, 6);
        if (ahead && r == 0) ask(ahead, ld, ROWS);
        ag_tile_store(0, out, OUT_BYTES);
        ag_tile_store(1, out + SIDE, OUT_BYTES);
        ag_tile_store(2, out + 2 * SIDE, OUT_BYTES);
        ag_tile_store(3, out + 3 * SIDE, OUT_BYTES);
    }
}

static void expand(float *out, const uint16_t *c, int64_t Rq, int64_t n_pairs, const uint32_t *p)
{
    const int64_t c_bytes = Rq * (int64_t)sizeof *c;
    for (int at = 0; at < PANEL; at += 2 * SIDE) {
        ag_tile_zero(0);
        ag_tile_zero(1);
        ag_tile_zero(2);
        ag_tile_zero(3);
        for (int64_t d = 0; d < n_pairs; d += SIDE) {
            ag_tile_load(4, c + 2 * d, c_bytes);
            ag_tile_load(5, c + SIDE * Rq + 2 * d, c_bytes);
            ag_tile_load(6, p + d * PANEL + at, PANEL_PAIR_BYTES);
            ag_tile_load(7, p + d * PANEL + at + SIDE, PANEL_PAIR_BYTES);
            ag_tile_dpbf16(0, 4, 6);
            ag_tile_dpbf16(1, 4, 7);
            ag_tile_dpbf16(2, 5, 6);
            ag_tile_dpbf16(3, 5, 7);
        }
        ag_tile_store(0, out + at, OUT_BYTES);
        ag_tile_store(1, out + at + SIDE, OUT_BYTES);
        ag_tile_store(2, out + SIDE * PANEL + at, OUT_BYTES);
        ag_tile_store(3, out + SIDE * PANEL + at + SIDE, OUT_BYTES);
    }
}

static void begin(void) { ag_tile_begin(); }
static void end(void) { ag_tile_end(); }

static const lora_products products = {begin, end, reduce, accumulate, expand};

static void forward(const ag_lora_plan *plan, int64_t t0, int64_t t1) { ag_lora_pairs_forward(&products, plan, t0, t1); }
static void backward(const ag_lora_plan *plan, int64_t group) { ag_lora_pairs_backward(&products, plan, group); }

const ag_lora_kernel ag_lora_kernel_amx = {.pack = ag_lora_pairs_pack, .fwd = forward, .bwd = backward, .sums = ag_lora_sums_avx512,
                                           .few = ag_lora_few_avx512};
