/* The matrix unit of Intel's AMX in six words, so that a kernel file compiles twice: for the unit itself, and with
 * -DAG_AMX_EMULATE to plain C which computes the same, so that it can be checked on any machine.
 *
 * Eight tiles, 0..7, of 16 rows of 64 bytes: C holds 16×16 f32; A 16 rows × 32 bf16; B 16 rows of 16 pairs of bf16, row p
 * holding the pairs (B[2p][n], B[2p+1][n]) for n = 0..15.
 *
 *     ag_tile_begin();                                  // each thread, at the start of its region
 *     ag_tile_zero(0);
 *     ag_tile_load(4, a, a_row_bytes); ag_tile_load(6, b, b_row_bytes);
 *     ag_tile_dpbf16(0, 4, 6);                          // C[m][n] += Σ_p A[m][2p]·B[p][2n] + A[m][2p+1]·B[p][2n+1], sums in f32
 *     ag_tile_store(0, c, c_row_bytes);
 *     ag_tile_end();                                    // and at its end
 *
 * The configuration belongs to a thread, not to the process: a tile instruction in a thread that has not begun is an illegal
 * instruction (the emulation asserts the same). Tile numbers must be literals. Only files named *_amx.c, and tests with the
 * emulation, include this. The unit takes subnormals as zero and rounds each addition to nearest even. */
#ifndef AG_AMX_TILE_H
#define AG_AMX_TILE_H

#include <stdint.h>
#include <string.h>

enum { AG_TILE_ROWS = 16, AG_TILE_ROW_BYTES = 64, AG_TILE_DEPTH = 32 /* bf16 in a row of A */, AG_TILE_COLS = 16 /* f32 in a row of C */ };

#ifndef AG_AMX_EMULATE
#include <immintrin.h>

static inline void ag_tile_begin(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = AG_TILE_ROW_BYTES;
        config.rows[i] = AG_TILE_ROWS;
    }
    _tile_loadconfig(&config);
}

static inline void ag_tile_end(void) { _tile_release(); }

#define ag_tile_zero(tile) _tile_zero(tile)
#define ag_tile_load(tile, from, row_stride_bytes) _tile_loadd(tile, from, row_stride_bytes)
#define ag_tile_store(tile, to, row_stride_bytes) _tile_stored(tile, to, row_stride_bytes)
#define ag_tile_dpbf16(c, a, b) _tile_dpbf16ps(c, a, b)

#else
#include "base/num.h"
#include "base/status.h"

static _Thread_local struct {
    unsigned char begun, bytes[8][AG_TILE_ROWS][AG_TILE_ROW_BYTES];
} ag_tiles_;

static inline void ag_tile_begin(void) { ag_tiles_.begun = 1; }

static inline void ag_tile_end(void)
{
    AG_ASSERT(ag_tiles_.begun);
    memset(&ag_tiles_, 0, sizeof ag_tiles_);
}

static inline void ag_tile_zero(int tile)
{
    AG_ASSERT(ag_tiles_.begun);
    memset(ag_tiles_.bytes[tile], 0, sizeof ag_tiles_.bytes[tile]);
}

static inline void ag_tile_load(int tile, const void *from, long row_stride_bytes)
{
    AG_ASSERT(ag_tiles_.begun);
    for (int r = 0; r < AG_TILE_ROWS; r++)
        memcpy(ag_tiles_.bytes[tile][r], (const char *)from + r * row_stride_bytes, AG_TILE_ROW_BYTES);
}

static inline void ag_tile_store(int tile, void *to, long row_stride_bytes)
{
    AG_ASSERT(ag_tiles_.begun);
    for (int r = 0; r < AG_TILE_ROWS; r++)
        memcpy((char *)to + r * row_stride_bytes, ag_tiles_.bytes[tile][r], AG_TILE_ROW_BYTES);
}

static inline void ag_tile_dpbf16(int c, int a, int b)
{
    AG_ASSERT(ag_tiles_.begun);
    for (int m = 0; m < AG_TILE_ROWS; m++) {
        float sum[AG_TILE_COLS];
        uint16_t row[2 * AG_TILE_COLS], pairs[2 * AG_TILE_COLS];
        memcpy(sum, ag_tiles_.bytes[c][m], sizeof sum);
        memcpy(row, ag_tiles_.bytes[a][m], sizeof row);
        for (int p = 0; p < AG_TILE_ROWS; p++) {
            memcpy(pairs, ag_tiles_.bytes[b][p], sizeof pairs);
            for (int n = 0; n < AG_TILE_COLS; n++) {
                sum[n] += ag_bf16_to_f32(row[2 * p]) * ag_bf16_to_f32(pairs[2 * n]);
                sum[n] += ag_bf16_to_f32(row[2 * p + 1]) * ag_bf16_to_f32(pairs[2 * n + 1]);
            }
        }
        memcpy(ag_tiles_.bytes[c][m], sum, sizeof sum);
    }
}
#endif

#endif
