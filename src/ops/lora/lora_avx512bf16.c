/* The three products by VDPBF16PS: a lane adds two products of bf16 at a time, so all is as in lora_simd.c with pairs for
 * floats, at twice the rate. The instruction takes subnormals as zero. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "ops/lora/lora_pairs.h"

enum { PANEL = LORA_PANEL, ROWS = LORA_ROWS, LANES = 16 };

#define INLINE static inline __attribute__((always_inline))

/* acc[M][V] += Σ_s c[i·ci + s] · p[s·ps + v], in pairs. M and V are constants where this is inlined. */
INLINE void tile(int M, int V, __m512 *acc, const uint32_t *c, int64_t ci, int64_t n, const uint32_t *p, int64_t ps)
{
    for (int64_t s = 0; s < n; s++, c++, p += ps) {
        __m512bh pv[4];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) pv[v] = (__m512bh)_mm512_loadu_si512(p + v * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < M; i++) {
            const __m512bh b = (__m512bh)_mm512_set1_epi32((int)c[i * ci]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) acc[i * V + v] = _mm512_dpbf16_ps(acc[i * V + v], b, pv[v]);
        }
    }
}

INLINE void load(int M, int V, bool first, __m512 *acc, const float *out, int64_t ld)
{
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) acc[i * V + v] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + i * ld + v * LANES);
}

INLINE void store(int M, int V, const __m512 *acc, float *out, int64_t ld)
{
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) _mm512_storeu_ps(out + i * ld + v * LANES, acc[i * V + v]);
}

/* Sixteen lines at a time, as in lora_simd.c. */
INLINE void ask(const float *ahead, int64_t ld)
{
    for (int i = 0; i < 16; i++) __builtin_prefetch(ahead + i * ld);
}

static void reduce(float *out, bool first, int64_t Rp, const uint16_t *rows, const uint32_t *p, const float *ahead, int64_t ld)
{
    enum { M = 16, PAIRS = PANEL / 2, STEP = PAIRS / 4 };
    const uint32_t *c = (const uint32_t *)rows;
    for (int64_t r = 0; r < Rp; r += LANES)
        for (int t = 0; t < ROWS; t += M) {
            __m512 acc[M];
            load(M, 1, first, acc, out + t * Rp + r, Rp);
            for (int s = 0; s < PAIRS; s += STEP) {
                if (ahead && r == 0) ask(ahead + t * ld + s / STEP * LANES, ld);
                tile(M, 1, acc, c + t * PAIRS + s, PAIRS, STEP, p + s * Rp + r, Rp);
            }
            store(M, 1, acc, out + t * Rp + r, Rp);
        }
}

static void accumulate(float *out, bool first, int64_t Rp, const uint16_t *ct, const uint16_t *pairs, const float *ahead, int64_t ld)
{
    enum { M = 4, V = 4, PAIRS = ROWS / 2 };
    for (int64_t r = 0; r < Rp; r += M) {
        __m512 acc[M * V];
        load(M, V, first, acc, out + r * PANEL, PANEL);
        for (int s = 0; s < PAIRS; s += PAIRS / 2) {
            if (ahead && r < 4 * M) ask(ahead + 2 * s * ld + r / M * LANES, ld);
            tile(M, V, acc, (const uint32_t *)ct + r * PAIRS + s, PAIRS, PAIRS / 2, (const uint32_t *)pairs + s * PANEL, PANEL);
        }
        store(M, V, acc, out + r * PANEL, PANEL);
    }
}

static void expand(float *out, const uint16_t *c, int64_t Rq, int64_t n_pairs, const uint32_t *p)
{
    enum { M = 4, V = 4 };
    for (int t = 0; t < ROWS; t += M) {
        __m512 acc[M * V];
        load(M, V, true, acc, out, PANEL);
        tile(M, V, acc, (const uint32_t *)c + t * (Rq / 2), Rq / 2, n_pairs, p, PANEL);
        store(M, V, acc, out + t * PANEL, PANEL);
    }
}

static void begin(void) {}
static void end(void) {}

static const lora_products products = {begin, end, reduce, accumulate, expand};

static void forward(const ag_lora_plan *plan, int64_t t0, int64_t t1) { ag_lora_pairs_forward(&products, plan, t0, t1); }
static void backward(const ag_lora_plan *plan, int64_t group) { ag_lora_pairs_backward(&products, plan, group); }

const ag_lora_kernel ag_lora_kernel_avx512bf16 = {.pack = ag_lora_pairs_pack, .fwd = forward, .bwd = backward, .sums = ag_lora_sums_avx512,
                                                  .few = ag_lora_few_avx512};
