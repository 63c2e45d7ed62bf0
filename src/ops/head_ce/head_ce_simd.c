/* A row is read twice, from the nearest cache the second time: for the largest logit, then for the exponentials. Four sums hide
 * the latency of the additions; their order depends on the block's length alone. */
#include "ops/head_ce/head_ce_slots.h"
#include "ops/simd.h"

static float largest_of(const float *x, int64_t n)
{
    float largest = -INFINITY;
    int64_t i = 0;
    if (n >= 4 * VF_LANES) {
        vf m[4];
        for (int u = 0; u < 4; u++) m[u] = vf_load(x + u * VF_LANES);
        for (i = 4 * VF_LANES; i + 4 * VF_LANES <= n; i += 4 * VF_LANES)
            for (int u = 0; u < 4; u++) m[u] = vf_max(m[u], vf_load(x + i + u * VF_LANES));
        largest = vf_max_lane(vf_max(vf_max(m[0], m[1]), vf_max(m[2], m[3])));
    }
    for (; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

static void cap(float *x, int64_t n, float softcap)
{
    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store_n(x + i, vf_set1(softcap) * vf_tanh(vf_load_n(x + i, n - i) * vf_set1(1 / softcap)), n - i);
}

/* Σ exp(x - largest) of capped logits; the terms times the cap's slope stay in x where `keep`. */
static float exponentials_capped(float *x, int64_t n, float largest, bool keep, float softcap)
{
    float total = 0;
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const int64_t left = n - i < VF_LANES ? n - i : VF_LANES;
        float e[VF_LANES];
        const vf logit = vf_load_n(x + i, left), t = logit * vf_set1(1 / softcap), v = vf_exp(logit - vf_set1(largest));
        vf_store(e, v);
        for (int64_t l = 0; l < left; l++) total += e[l];
        if (keep) vf_store_n(x + i, v * vf_fnma(t, t, vf_set1(1)), left);
    }
    return total;
}

/* Σ exp(x - largest); the terms stay in x where `keep`. */
static float exponentials(float *x, int64_t n, float largest, bool keep)
{
    const vf m = vf_set1(largest);
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VF_LANES <= n; i += 4 * VF_LANES)
        for (int u = 0; u < 4; u++) {
            const vf e = vf_exp(vf_load(x + i + u * VF_LANES) - m);
            sum[u] = sum[u] + e;
            if (keep) vf_store(x + i + u * VF_LANES, e);
        }
    float total = vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; i += VF_LANES) {
        const int64_t left = n - i < VF_LANES ? n - i : VF_LANES;
        float e[VF_LANES];
        const vf v = vf_exp(vf_load_n(x + i, left) - m);
        vf_store(e, v);
        for (int64_t l = 0; l < left; l++) total += e[l];
        if (keep) vf_store_n(x + i, v, left);
    }
    return total;
}

void AG_LEVEL(ag_head_ce_block)(ag_head_ce_row *row, float *logits, int64_t v0, int64_t n, int32_t target, bool want_best,
                                float *dx, int64_t C, float softcap)
{
    if (softcap > 0) cap(logits, n, softcap);
    const float largest = largest_of(logits, n);
    if (largest > row->largest) {
        if (want_best) {
            int64_t i = 0;
            while (logits[i] != largest) i++;
            row->best = (int32_t)(v0 + i);
        }
        if (v0 > 0) {
            const float shrink = expf(row->largest - largest);
            row->others *= shrink;
            for (int64_t c = 0; dx && c < C; c += VF_LANES)
                vf_store_n(dx + c, vf_load_n(dx + c, C - c) * vf_set1(shrink), C - c);
        }
        row->largest = largest;
    }
    const bool has_target = target >= v0 && target < v0 + n;
    if (has_target) {
        row->target_logit = logits[target - v0];
        logits[target - v0] = -INFINITY; /* whose exponential is 0 */
    }
    if (softcap == 0) {
        row->others += exponentials(logits, n, row->largest, dx != NULL);
        return;
    }
    row->others += exponentials_capped(logits, n, row->largest, dx != NULL, softcap);
    if (has_target) logits[target - v0] = 0; /* 0 times an infinite slope was no number */
}

void AG_LEVEL(ag_head_ce_finish)(float *dx, float from_others, float from_target, const float *w, int64_t C)
{
    for (int64_t c = 0; c < C; c += VF_LANES) {
        const vf others = vf_load_n(dx + c, C - c) * vf_set1(from_others);
        vf_store_n(dx + c, vf_fma(vf_set1(from_target), vf_load_n(w + c, C - c), others), C - c);
    }
}
