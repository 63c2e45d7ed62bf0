/* Forward of a few rows, as in decoding: A and B are read once where they lie, because packing them would cost more than the
 * products. A row of A against a row of x is a sum over K in vectors; a row of B against h is so short that what counts is the sum of
 * its lanes: as many rows as there are lanes are summed together, two vectors to one at a time, so that the outputs end as neighbours
 * in one vector. */
#include "ops/lora/dropout_factors.h"
#include "ops/lora/lora_slots.h"
#include "ops/simd.h"

enum { CHUNK = 64, RANKS_AT_ONCE = 4 };

static inline vf operand(const ag_lora_plan *plan, vf x) { return plan->bf16 ? vf_round_bf16(x) : x; }

/* Sums of neighbouring lanes, those of a in the lower half, those of b in the upper. */
static inline vf sum_neighbours(vf a, vf b)
{
#if defined(AG_SIMD_AVX512)
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, even, b) + _mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
#elif defined(AG_SIMD_AVX2)
    const __m256d sums = _mm256_castps_pd(_mm256_hadd_ps(a, b)); /* a, b, a, b by quarters */
    return _mm256_castpd_ps(_mm256_permute4x64_pd(sums, 0xd8));
#else
    return vpaddq_f32(a, b);
#endif
}

/* x[T,Kp]: rows as operands, zeros behind them. */
static void operands_of_x(float *x, const ag_lora_plan *plan)
{
    const int64_t K = plan->K, Kp = plan->Kp;
    for (int64_t t = 0; t < plan->T; t++)
        for (int64_t k = 0; k < Kp; k += CHUNK) {
            const float *from = (const float *)plan->fwd->x.data + t * K + k;
            float factor[CHUNK];
            if (plan->dropout.drop) dropout_factors(factor, &plan->dropout, (uint64_t)(t * K + k), CHUNK);
            for (int64_t i = 0; i < CHUNK; i += VF_LANES) {
                vf v = k + i < K ? vf_load_n(from + i, K - k - i) : vf_zero();
                if (plan->dropout.drop) v = v * vf_load(factor + i);
                vf_store(x + t * Kp + k + i, operand(plan, v));
            }
        }
}

static void down(const ag_lora_plan *plan, const float *x)
{
    const int64_t K = plan->K, R = plan->R;
    for (int64_t r = 0; r < R; r += RANKS_AT_ONCE)
        for (int64_t t = 0; t < plan->T; t++) {
            const int64_t n = R - r < RANKS_AT_ONCE ? R - r : RANKS_AT_ONCE;
            const float *a = (const float *)plan->fwd->a.data + r * K, *row = x + t * plan->Kp;
            vf sum[RANKS_AT_ONCE] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
            for (int64_t k = 0; k < K; k += VF_LANES) {
                const vf xk = vf_load(row + k);
                for (int i = 0; i < RANKS_AT_ONCE; i++)
                    if (i < n) sum[i] = vf_fma(operand(plan, vf_load_n(a + i * K + k, K - k)), xk, sum[i]);
            }
            for (int64_t i = 0; i < n; i++) ((float *)plan->fwd->h.data)[t * R + r + i] = vf_sum(sum[i]);
        }
}

static void up(const ag_lora_plan *plan)
{
    const int64_t N = plan->N, R = plan->R;
    const vf scale = vf_set1(plan->fwd->scale);
    for (int64_t n = 0; n < N; n += VF_LANES)
        for (int64_t t = 0; t < plan->T; t++) {
            const float *h = (const float *)plan->fwd->h.data + t * R, *b = (const float *)plan->fwd->b.data + n * R;
            float *y = (float *)plan->fwd->y.data + t * N + n;
            vf sum[VF_LANES];
            for (int i = 0; i < VF_LANES; i++) {
                sum[i] = vf_zero();
                for (int64_t r = 0; r < R && n + i < N; r += VF_LANES)
                    sum[i] = vf_fma(operand(plan, vf_load_n(b + i * R + r, R - r)), operand(plan, vf_load_n(h + r, R - r)), sum[i]);
            }
            for (int width = VF_LANES; width > 1; width /= 2)
                for (int i = 0; i < width / 2; i++) sum[i] = sum_neighbours(sum[2 * i], sum[2 * i + 1]);
            vf_store_n(y, vf_fma(scale, sum[0], vf_load_n(y, N - n)), N - n);
        }
}

void AG_LEVEL(ag_lora_few)(const ag_lora_plan *plan)
{
    operands_of_x(plan->a, plan);
    down(plan, plan->a);
    up(plan);
}
