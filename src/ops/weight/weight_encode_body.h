/* The encoders' one source (weight_encode.h), included by weight_encode_ref.c and weight_encode_simd.c, which define AG_ENCODE(name).
 *
 * A vector is 16 floats whatever the machine has, and sums go over lanes as a tree, so that every level does the same arithmetic. */
#ifndef AG_WEIGHT_ENCODE_BODY_H
#define AG_WEIGHT_ENCODE_BODY_H

#include "base/num.h"
#include "ops/weight/weight_blocks.h"
#include "ops/weight/weight_encode.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LANES = 16 };
typedef float v16 __attribute__((vector_size(4 * LANES)));
typedef int32_t i16 __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))

INLINE v16 load(const float *p)
{
    v16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Lane by lane `a` where the mask is set, else `b`. */
INLINE v16 choose(i16 mask, v16 a, v16 b) { return (v16)(((i16)a & mask) | ((i16)b & ~mask)); }
INLINE v16 smaller(v16 a, v16 b) { return choose(a < b, a, b); }
INLINE v16 larger(v16 a, v16 b) { return choose(a > b, a, b); }
INLINE v16 magnitude(v16 a) { return (v16)((i16)a & 0x7fffffff); }

INLINE float sum_of(v16 v)
{
    float x[LANES];
    memcpy(x, &v, sizeof x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

INLINE float largest_of(v16 v)
{
    float x[LANES];
    memcpy(x, &v, sizeof x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}

/* The nearest whole number within lo..hi, ties to even: 1.5·2^23 has no bits for a fraction. */
INLINE v16 nearest(v16 v, float lo, float hi)
{
    const float magic = 12582912.0f;
    return (smaller(larger(v, (v16){0} + lo), (v16){0} + hi) + magic) - magic;
}

INLINE float as_f16(float x) { return ag_f16_to_f32(ag_f32_to_f16(x)); }
INLINE float inverse_of(float x) { return x != 0 ? 1 / x : 0; }

/* Weights that share a scale: up to 32 of them, what each counts, and sums that do not change. */
typedef struct {
    v16 x[2], w[2];
    int n; /* vectors: 1 or 2 */
    float lowest, highest, sum_w, sum_wx, sum_wxx;
} group;

INLINE void group_init(group *g, const float *x, int n)
{
    v16 sum = {0}, lowest, highest, w = {0}, wx = {0}, wxx = {0};
    g->n = n;
    for (int i = 0; i < n; i++) {
        g->x[i] = load(x + LANES * i);
        sum += g->x[i] * g->x[i];
    }
    lowest = highest = g->x[0];
    const float rms = sqrtf(sum_of(sum) / (float)(LANES * n));
    for (int i = 0; i < n; i++) {
        lowest = smaller(lowest, g->x[i]);
        highest = larger(highest, g->x[i]);
        g->w[i] = rms + magnitude(g->x[i]);
        w += g->w[i];
        wx += g->w[i] * g->x[i];
        wxx += g->w[i] * g->x[i] * g->x[i];
    }
    g->lowest = -largest_of(-lowest);
    g->highest = largest_of(highest);
    g->sum_w = sum_of(w);
    g->sum_wx = sum_of(wx);
    g->sum_wxx = sum_of(wxx);
}

/* The group's Σ w·(x − s·q − b)² with the nearest codes to that scale and offset, which go to codes (may be NULL). */
INLINE float error_of(const group *g, float s, float b, float lo, float hi, v16 *codes)
{
    const float inverse = inverse_of(s);
    v16 error = {0};
    for (int i = 0; i < g->n; i++) {
        const v16 q = nearest((g->x[i] - b) * inverse, lo, hi), off = g->x[i] - s * q - b;
        if (codes) codes[i] = q;
        error += g->w[i] * off * off;
    }
    return sum_of(error);
}

/* ---- values d·q, codes -m..m-1 ------------------------------------------------------------------------------------------------- */
/* What the best scale for the codes of `inverse` takes off Σ w·x²; *scale is that scale. */
INLINE float gain_of(const group *g, float inverse, float m, float *scale)
{
    v16 wxq = {0}, wqq = {0};
    for (int i = 0; i < g->n; i++) {
        const v16 q = nearest(g->x[i] * inverse, -m, m - 1), wq = g->w[i] * q;
        wxq += wq * g->x[i];
        wqq += wq * q;
    }
    const float xq = sum_of(wxq), qq = sum_of(wqq);
    *scale = qq > 0 ? xq / qq : 0;
    return *scale * xq;
}

/* How the fan of first scales is laid: `steps` to each side, by `step` codes. */
typedef struct {
    int steps;
    float step;
} fan;

/* The scale (of either sign) with the smallest error; 0 for a group of zeros. */
INLINE float fit_scale(const group *g, float m, fan f)
{
    const float extreme = -g->lowest > g->highest ? g->lowest : g->highest;
    float best = 0, best_gain = 0, scale;
    if (extreme == 0) return 0;
    for (int side = 0; side < 2; side++)
        for (int i = -f.steps; i <= f.steps; i++) { /* the extreme weight on code -m, or on m-1 */
            const float code = side ? m - 1 + (float)i * f.step : -m + (float)i * f.step;
            const float gain = gain_of(g, code / extreme, m, &scale);
            if (gain > best_gain) {
                best_gain = gain;
                best = scale;
            }
        }
    enum { MOST_ROUNDS = 6 };
    for (int round = 0; round < MOST_ROUNDS && best != 0; round++) {
        const float gain = gain_of(g, 1 / best, m, &scale);
        if (!(gain > best_gain)) break;
        best_gain = gain;
        best = scale;
    }
    return best;
}

/* ---- values s·q + b, codes 0..m ---------------------------------------------------------------------------------------------------- */
/* The best scale and offset for the nearest codes to `inverse` and `offset`; what is left of the error is returned. */
INLINE float refit(const group *g, float inverse, float offset, float m, bool b_not_above_0, float *s, float *b)
{
    v16 wq = {0}, wqq = {0}, wxq = {0};
    for (int i = 0; i < g->n; i++) {
        const v16 q = nearest((g->x[i] - offset) * inverse, 0, m), t = g->w[i] * q;
        wq += t;
        wqq += t * q;
        wxq += t * g->x[i];
    }
    const float q = sum_of(wq), qq = sum_of(wqq), xq = sum_of(wxq), determinant = g->sum_w * qq - q * q;
    if (determinant > 0) {
        *s = (g->sum_w * xq - g->sum_wx * q) / determinant;
        *b = (qq * g->sum_wx - q * xq) / determinant;
    } else { /* one code for all */
        *s = 0;
        *b = g->sum_wx / g->sum_w;
    }
    if (b_not_above_0 && *b > 0) {
        *b = 0;
        *s = qq > 0 ? xq / qq : 0;
    }
    return *s * (*s * qq + 2 * *b * q - 2 * xq) + *b * (*b * g->sum_w - 2 * g->sum_wx) + g->sum_wxx;
}

INLINE void fit_affine(const group *g, float m, bool b_not_above_0, fan f, float *best_s, float *best_b)
{
    const float lo = b_not_above_0 && g->lowest > 0 ? 0 : g->lowest, span = g->highest - lo;
    float best = INFINITY, s, b;
    *best_s = 0;
    *best_b = lo;
    if (!(span > 0)) return;
    for (int i = -f.steps; i <= f.steps; i++) {
        const float error = refit(g, (m + (float)i * f.step) / span, lo, m, b_not_above_0, &s, &b);
        if (error < best) best = error, *best_s = s, *best_b = b;
    }
    enum { MOST_ROUNDS = 6 };
    for (int round = 0; round < MOST_ROUNDS && *best_s > 0; round++) {
        const float error = refit(g, 1 / *best_s, *best_b, m, b_not_above_0, &s, &b);
        if (!(error < best)) break;
        best = error, *best_s = s, *best_b = b;
    }
}

/* ---- blocks of 32 -------------------------------------------------------------------------------------------------------------------- */
INLINE void put_f16(uint8_t *p, float x)
{
    const uint16_t half = ag_f32_to_f16(fmaxf(fminf(x, AG_LARGEST_ENCODED), -AG_LARGEST_ENCODED));
    p[0] = (uint8_t)half;
    p[1] = (uint8_t)(half >> 8);
}

/* A scale's nearest f16 may not be the best one, and where it is subnormal not even near: its neighbours are tried, too. */
INLINE float best_f16(const group *g, float scale, float m, v16 *codes)
{
    float best = INFINITY, chosen = 0;
    const uint16_t middle = ag_f32_to_f16(scale);
    for (int step = -1; step <= 1; step++) {
        const float d = ag_f16_to_f32((uint16_t)(middle + step));
        v16 q[2];
        if (!(fabsf(d) <= 65504)) continue;
        const float error = error_of(g, d, 0, -m, m - 1, q);
        if (error < best) best = error, chosen = d, codes[0] = q[0], codes[1] = q[1];
    }
    return chosen;
}

/* The least squares leave a block a little too small: what is lost is at right angles to what is kept, so that the decoded block's share
 * of x is 1 - ε² for an error of ε. In one matrix that is best; but all matrices of a model would shrink together, where other errors
 * are of either sign and average out. The scales grow by the factor that gives x its whole share, which adds ε² to 1 of the error. */
INLINE float whole_share(float xx, float x_decoded)
{
    const float most = 1.1f;
    return x_decoded > 0 && xx > x_decoded ? (xx < most * x_decoded ? xx / x_decoded : most) : 1;
}

/* Adds a group's Σ x·x and Σ x·decoded. */
INLINE void add_share(const group *g, float s, float b, const v16 *codes, float *xx, float *x_decoded)
{
    v16 a = {0}, c = {0};
    for (int i = 0; i < g->n; i++) {
        a += g->x[i] * g->x[i];
        c += g->x[i] * (s * codes[i] + b);
    }
    *xx += sum_of(a);
    *x_decoded += sum_of(c);
}

/* A block with one scale: that scale, and the codes. */
INLINE float fit_block(const group *g, float m, fan f, v16 *codes)
{
    float xx = 0, x_decoded = 0;
    const float d = best_f16(g, fit_scale(g, m, f), m, codes);
    add_share(g, d, 0, codes, &xx, &x_decoded);
    return d * whole_share(xx, x_decoded);
}

INLINE void store_codes(int8_t *out, const v16 *codes, int n, int add)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < LANES; k++) out[LANES * i + k] = (int8_t)((int)codes[i][k] + add);
}

void AG_ENCODE(ag_q4_0_encode)(uint8_t *block, const float *x)
{
    group g;
    v16 codes[2];
    int8_t q[32];
    group_init(&g, x, 2);
    put_f16(block, fit_block(&g, 8, (fan){12, 0.2f}, codes));
    store_codes(q, codes, 2, 8);
    for (int j = 0; j < 16; j++) block[2 + j] = (uint8_t)(q[j] | q[j + 16] << 4);
}

/* Fifth bits, then nibbles. */
INLINE void put_5_bits(uint8_t *p, const int8_t q[32])
{
    uint32_t fifth = 0;
    for (int j = 0; j < 32; j++) fifth |= (uint32_t)(q[j] >> 4) << j;
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(fifth >> 8 * i);
    for (int j = 0; j < 16; j++) p[4 + j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
}

void AG_ENCODE(ag_q5_0_encode)(uint8_t *block, const float *x)
{
    group g;
    v16 codes[2];
    int8_t q[32];
    group_init(&g, x, 2);
    put_f16(block, fit_block(&g, 16, (fan){12, 0.2f}, codes));
    store_codes(q, codes, 2, 16);
    put_5_bits(block + 2, q);
}

void AG_ENCODE(ag_q5_1_encode)(uint8_t *block, const float *x)
{
    group g;
    v16 codes[2];
    int8_t q[32];
    float s, b;
    group_init(&g, x, 2);
    fit_affine(&g, 31, false, (fan){12, 0.2f}, &s, &b);
    s = as_f16(s);
    b = as_f16(b);
    (void)error_of(&g, s, b, 0, 31, codes);
    float xx = 0, x_decoded = 0;
    add_share(&g, s, b, codes, &xx, &x_decoded);
    const float share = whole_share(xx, x_decoded);
    put_f16(block, s * share);
    put_f16(block + 2, b * share);
    store_codes(q, codes, 2, 0);
    put_5_bits(block + 4, q);
}

/* ---- blocks of 256 ---------------------------------------------------------------------------------------------------------------------- */
enum { N_SUB = 8, N_SIX = 16, MOST_SIX_BITS = 63 };

/* A Q4_K or Q5_K block while it is made. */
typedef struct {
    group g[N_SUB];
    float d, dmin; /* f16 numbers */
    int scale[N_SUB], min[N_SUB];
    v16 codes[N_SUB][2];
    float error;
} k_block;

INLINE int clamped(float x, int lo, int hi) { return x < (float)lo ? lo : x > (float)hi ? hi : (int)lrintf(x); }

/* For d and dmin as they are: each sub-block's integers, among those near (s, b), and its codes. */
INLINE void choose_integers(k_block *k, const float s[N_SUB], const float b[N_SUB], float m)
{
    k->error = 0;
    for (int j = 0; j < N_SUB; j++) {
        const int scale = clamped(s[j] * inverse_of(k->d), 0, MOST_SIX_BITS), min = clamped(-b[j] * inverse_of(k->dmin), 0, MOST_SIX_BITS);
        float best = INFINITY;
        for (int u = scale - 1; u <= scale + 1; u++)
            for (int v = min - 1; v <= min + 1; v++) {
                v16 q[2];
                if (u < 0 || v < 0 || u > MOST_SIX_BITS || v > MOST_SIX_BITS) continue;
                const float error = error_of(&k->g[j], k->d * (float)u, -(k->dmin * (float)v), 0, m, q);
                if (!(error < best)) continue;
                best = error;
                k->scale[j] = u, k->min[j] = v;
                k->codes[j][0] = q[0], k->codes[j][1] = q[1];
            }
        k->error += best;
    }
}

/* The d and dmin that are best for the integers and codes: two linear equations over the whole block. */
INLINE void fit_factors(const k_block *k, float *d, float *dmin)
{
    float aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (int j = 0; j < N_SUB; j++) {
        const group *g = &k->g[j];
        v16 wq = {0}, wqq = {0}, wxq = {0};
        for (int i = 0; i < g->n; i++) {
            const v16 t = g->w[i] * k->codes[j][i];
            wq += t;
            wqq += t * k->codes[j][i];
            wxq += t * g->x[i];
        }
        const float u = (float)k->scale[j], v = -(float)k->min[j];
        aa += u * u * sum_of(wqq);
        ab += u * v * sum_of(wq);
        bb += v * v * g->sum_w;
        xa += u * sum_of(wxq);
        xb += v * g->sum_wx;
    }
    const float determinant = aa * bb - ab * ab;
    if (determinant > 1e-6f * aa * bb) {
        *d = (bb * xa - ab * xb) / determinant;
        *dmin = (aa * xb - ab * xa) / determinant;
    } else {
        *d = aa > 0 ? xa / aa : 0;
        *dmin = 0;
    }
    if (*dmin < 0) {
        *dmin = 0;
        *d = aa > 0 ? xa / aa : 0;
    }
}

INLINE void make_k_block(k_block *best, const float *x, float m, fan f)
{
    float s[N_SUB], b[N_SUB], largest_s = 0, largest_b = 0;
    for (int j = 0; j < N_SUB; j++) {
        group_init(&best->g[j], x + 32 * j, 2);
        fit_affine(&best->g[j], m, true, f, &s[j], &b[j]);
        largest_s = s[j] > largest_s ? s[j] : largest_s;
        largest_b = -b[j] > largest_b ? -b[j] : largest_b;
    }
    best->d = as_f16(largest_s / MOST_SIX_BITS);
    best->dmin = as_f16(largest_b / MOST_SIX_BITS);
    choose_integers(best, s, b, m);
    enum { MOST_ROUNDS = 3 };
    for (int round = 0; round < MOST_ROUNDS; round++) {
        k_block next = *best;
        fit_factors(best, &next.d, &next.dmin);
        next.d = as_f16(next.d);
        next.dmin = as_f16(next.dmin);
        if (!(next.d >= 0 && next.d <= 65504 && next.dmin <= 65504)) return;
        for (int j = 0; j < N_SUB; j++) { /* near what they were */
            s[j] = next.d * (float)best->scale[j];
            b[j] = -(next.dmin * (float)best->min[j]);
        }
        choose_integers(&next, s, b, m);
        if (!(next.error < best->error)) return;
        *best = next;
    }
}

/* d, dmin and the twelve bytes of 6-bit numbers. */
INLINE void put_k_head(uint8_t *p, const k_block *k)
{
    float xx = 0, x_decoded = 0;
    for (int j = 0; j < N_SUB; j++)
        add_share(&k->g[j], k->d * (float)k->scale[j], -(k->dmin * (float)k->min[j]), k->codes[j], &xx, &x_decoded);
    const float share = whole_share(xx, x_decoded);
    put_f16(p, k->d * share);
    put_f16(p + 2, k->dmin * share);
    for (int j = 0; j < 4; j++) {
        p[4 + j] = (uint8_t)(k->scale[j] | k->scale[j + 4] >> 4 << 6);
        p[8 + j] = (uint8_t)(k->min[j] | k->min[j + 4] >> 4 << 6);
        p[12 + j] = (uint8_t)((k->scale[j + 4] & 15) | (k->min[j + 4] & 15) << 4);
    }
}

void AG_ENCODE(ag_q4_k_encode)(uint8_t *block, const float *x)
{
    k_block k;
    int8_t q[256];
    make_k_block(&k, x, 15, (fan){12, 0.15f});
    put_k_head(block, &k);
    for (int j = 0; j < N_SUB; j++) store_codes(q + 32 * j, k.codes[j], 2, 0);
    for (int i = 0; i < 128; i++) block[16 + i] = (uint8_t)(q[64 * (i / 32) + i % 32] | q[64 * (i / 32) + 32 + i % 32] << 4);
}

void AG_ENCODE(ag_q5_k_encode)(uint8_t *block, const float *x)
{
    k_block k;
    int8_t q[256];
    make_k_block(&k, x, 31, (fan){10, 0.2f});
    put_k_head(block, &k);
    for (int j = 0; j < N_SUB; j++) store_codes(q + 32 * j, k.codes[j], 2, 0);
    memset(block + 16, 0, 32);
    for (int i = 0; i < 256; i++) block[16 + i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
    for (int i = 0; i < 128; i++)
        block[48 + i] = (uint8_t)((q[64 * (i / 32) + i % 32] & 15) | (q[64 * (i / 32) + 32 + i % 32] & 15) << 4);
}

/* A Q6_K block while it is made. */
typedef struct {
    group g[N_SIX];
    float d;
    int scale[N_SIX];
    v16 codes[N_SIX];
    float error;
} six_block;

INLINE void choose_six_integers(six_block *k, const float s[N_SIX])
{
    k->error = 0;
    for (int j = 0; j < N_SIX; j++) {
        const int scale = clamped(s[j] * inverse_of(k->d), -128, 127);
        float best = INFINITY;
        for (int u = scale - 1; u <= scale + 1; u++) {
            v16 q = {0};
            if (u < -128 || u > 127) continue;
            const float error = error_of(&k->g[j], k->d * (float)u, 0, -32, 31, &q);
            if (!(error < best)) continue;
            best = error;
            k->scale[j] = u;
            k->codes[j] = q;
        }
        k->error += best;
    }
}

INLINE float fit_six_factor(const six_block *k)
{
    float aa = 0, xa = 0;
    for (int j = 0; j < N_SIX; j++) {
        const v16 t = k->g[j].w[0] * k->codes[j];
        const float u = (float)k->scale[j];
        aa += u * u * sum_of(t * k->codes[j]);
        xa += u * sum_of(t * k->g[j].x[0]);
    }
    return aa > 0 ? xa / aa : 0;
}

void AG_ENCODE(ag_q6_k_encode)(uint8_t *block, const float *x)
{
    six_block best;
    float s[N_SIX], largest = 0;
    for (int j = 0; j < N_SIX; j++) {
        group_init(&best.g[j], x + 16 * j, 1);
        s[j] = fit_scale(&best.g[j], 32, (fan){6, 0.25f});
        if (fabsf(s[j]) > fabsf(largest)) largest = s[j];
    }
    best.d = as_f16(largest / -128);
    choose_six_integers(&best, s);
    enum { MOST_ROUNDS = 2 };
    for (int round = 0; round < MOST_ROUNDS; round++) {
        six_block next = best;
        next.d = as_f16(fit_six_factor(&best));
        if (!(fabsf(next.d) <= 65504)) break;
        for (int j = 0; j < N_SIX; j++) s[j] = next.d * (float)best.scale[j];
        choose_six_integers(&next, s);
        if (!(next.error < best.error)) break;
        best = next;
    }
    int8_t q[256];
    for (int j = 0; j < N_SIX; j++) store_codes(q + 16 * j, &best.codes[j], 1, 32);
    for (int i = 0; i < 64; i++)
        for (int half = 0; half < 2; half++)
            block[64 * half + i] = (uint8_t)((q[128 * half + i] & 15) | (q[128 * half + 64 + i] & 15) << 4);
    for (int i = 0; i < 32; i++)
        for (int half = 0; half < 2; half++) {
            const int8_t *p = q + 128 * half + i;
            block[128 + 32 * half + i] = (uint8_t)(p[0] >> 4 | p[32] >> 4 << 2 | p[64] >> 4 << 4 | p[96] >> 4 << 6);
        }
    for (int j = 0; j < N_SIX; j++) block[192 + j] = (uint8_t)(int8_t)best.scale[j];
    float xx = 0, x_decoded = 0;
    for (int j = 0; j < N_SIX; j++) add_share(&best.g[j], best.d * (float)best.scale[j], 0, &best.codes[j], &xx, &x_decoded);
    put_f16(block + 208, best.d * whole_share(xx, x_decoded));
}

#endif
