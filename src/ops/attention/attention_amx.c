/* The products of pairs on the matrix unit: 32×32 in four tiles, fed by two of a and two of b, so one load a product. */
#include "ops/amx_tile.h"
#include "ops/attention/attention_pairs.h"

static void product(float *c, int64_t c_pitch, const uint16_t *a, int64_t a_pitch, int64_t a_step, const uint16_t *b, int64_t b_pitch,
                    int64_t b_step, int64_t n_steps, bool add)
{
    const int64_t c_bytes = c_pitch * (int64_t)sizeof *c, a_bytes = a_pitch * (int64_t)sizeof *a, b_bytes = b_pitch * (int64_t)sizeof *b;
    float *const lower = c + AG_TILE_ROWS * c_pitch;
    if (add) {
        ag_tile_load(0, c, c_bytes);
        ag_tile_load(1, c + AG_TILE_COLS, c_bytes);
        ag_tile_load(2, lower, c_bytes);
        ag_tile_load(3, lower + AG_TILE_COLS, c_bytes);
    } else {
        ag_tile_zero(0);
        ag_tile_zero(1);
        ag_tile_zero(2);
        ag_tile_zero(3);
    }
    for (int64_t i = 0; i < n_steps; i++, a += a_step, b += b_step) {
        ag_tile_load(4, a, a_bytes);
        ag_tile_load(6, b, b_bytes);
        ag_tile_load(7, b + 2 * AG_TILE_COLS, b_bytes);
        ag_tile_load(5, a + AG_TILE_ROWS * a_pitch, a_bytes);
        ag_tile_dpbf16(0, 4, 6);
        ag_tile_dpbf16(1, 4, 7);
        ag_tile_dpbf16(2, 5, 6);
        ag_tile_dpbf16(3, 5, 7);
    }
    ag_tile_store(0, c, c_bytes);
    ag_tile_store(1, c + AG_TILE_COLS, c_bytes);
    ag_tile_store(2, lower, c_bytes);
    ag_tile_store(3, lower + AG_TILE_COLS, c_bytes);
}

static const ag_attention_pairs_unit matrix_unit = {.begin = ag_tile_begin, .end = ag_tile_end, .product = product};

void ag_attention_fwd_amx(const ag_attention_fwd_args *a, const ag_attention_unit *u, void *scratch)
{
    ag_attention_pairs_fwd(&matrix_unit, a, u, scratch);
}

void ag_attention_bwd_amx(const ag_attention_bwd_args *a, const ag_attention_unit *u, float *dk, float *dv, int64_t pitch, void *scratch)
{
    ag_attention_pairs_bwd(&matrix_unit, a, u, dk, dv, pitch, scratch);
}
