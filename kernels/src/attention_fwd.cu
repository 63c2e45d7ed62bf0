/* Causal attention, forward: a block has 64 queries of one head and walks the keys they see, 64 at a time, with the running
 * maximum and sum of Milakov & Gimelshein 2018 and the layout of FlashAttention-2: scores and sums stay in registers.
 *
 *     s[i,j] = scale·q[i]·k[j]      p = softmax_j(s)      o[i] = Σ_j p[i,j]·v[j]      lse[i] = log Σ_j e^s[i,j] */
#include "attention_tile.h"
#include "lab.h"

enum { KEYS = 64 };

template <int D_MAX> __global__ void __launch_bounds__(ATTENTION_THREADS) attention_fwd_kernel(bkl_attention_fwd_args a)
{
    BKL_DYNAMIC_SHARED(memory);
    bf16 *const q_tile = (bf16 *)memory, *const k_tile = q_tile + ATTENTION_ROWS * D_MAX, *const v_tile = k_tile + KEYS * D_MAX;
    const int T = (int)a.T, S = (int)a.S, D = (int)a.D, h = (int)blockIdx.y, g = h / (int)(a.H / a.G);
    const int t0 = ((int)gridDim.x - 1 - (int)blockIdx.x) * ATTENTION_ROWS; /* the longest first */
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, window = (int)a.window;
    const bf16 *const q = a.q + (int64_t)h * D, *const k = a.k + (int64_t)g * D, *const v = a.v + (int64_t)g * D;

    const int low_a = lowest_key(a.first_key, t0 + lane, T, S, window),
              low_b = lowest_key(a.first_key, t0 + WARP + lane, T, S, window);
    const int lowest = warp_min(low_a < low_b ? low_a : low_b), highest_low = warp_max(low_a > low_b ? low_a : low_b);
    const int t[2] = {t0 + 16 * warp + lane / 4, t0 + 16 * warp + lane / 4 + 8};
    const int low[2] = {lowest_key(a.first_key, t[0], T, S, window), lowest_key(a.first_key, t[1], T, S, window)};
    const int end = lowest == INT32_MAX ? 0 : (t0 + ATTENTION_ROWS < T ? t0 + ATTENTION_ROWS : T) + S - T;
    const int begin = lowest == INT32_MAX ? 0 : lowest / KEYS * KEYS;

    float sums[D_MAX / 8][4], largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    sums_clear<D_MAX>(sums);
    const float scale = a.scale * LOG2_E;
    if (begin < end) {
        rows_copy<D_MAX, ATTENTION_ROWS>(q_tile, q, a.q_pitch, t0, T, D);
        rows_copy<D_MAX, KEYS>(k_tile, k, a.kv_pitch, begin, S, D);
        copy_commit();
    }
    for (int j0 = begin; j0 < end; j0 += KEYS) {
        rows_copy<D_MAX, KEYS>(v_tile, v, a.kv_pitch, j0, S, D);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float s[KEYS / 8][4];
        multiply_rows<D_MAX, KEYS / 8>(s, q_tile, 16 * warp, k_tile, D);
        __syncthreads();
        if (j0 + KEYS < end) rows_copy<D_MAX, KEYS>(k_tile, k, a.kv_pitch, j0 + KEYS, S, D);
        copy_commit();

        const bool whole = j0 >= highest_low && j0 + KEYS - 1 <= t0 + S - T; /* every query sees every key of the block */
        BKL_UNROLL
        for (int half = 0; half < 2; half++) {
            float most = largest[half];
            BKL_UNROLL
            for (int j = 0; j < KEYS / 8; j++)
                BKL_UNROLL
                for (int x = 0; x < 2; x++) {
                    const int key = j0 + 8 * j + lane % 4 * 2 + x;
                    float *const score = &s[j][2 * half + x];
                    *score = whole || (key >= low[half] && key <= t[half] + S - T) ? *score * scale : -INFINITY;
                    most = fmaxf(most, *score);
                }
            most = fmaxf(most, shuffle_xor(most, 1));
            most = fmaxf(most, shuffle_xor(most, 2));
            const float subtract = most == -INFINITY ? 0 : most, shrink = exp2f(largest[half] - subtract);
            largest[half] = most, total[half] *= shrink;
            BKL_UNROLL
            for (int j = 0; j < D_MAX / 8; j++) sums[j][2 * half] *= shrink, sums[j][2 * half + 1] *= shrink;
            BKL_UNROLL
            for (int j = 0; j < KEYS / 8; j++)
                BKL_UNROLL
                for (int x = 0; x < 2; x++) {
                    float *const p = &s[j][2 * half + x];
                    *p = exp2f(*p - subtract);
                    total[half] += *p;
                }
        }
        copy_wait<1>();
        __syncthreads();
        multiply_columns<D_MAX, KEYS / 8>(sums, s, v_tile, D);
        __syncthreads();
    }
    copy_wait<0>();

    BKL_UNROLL
    for (int half = 0; half < 2; half++) {
        float sum = total[half];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (t[half] >= T) continue;
        const float by = sum > 0 ? 1 / sum : 0;
        bf16 *const o = a.o + (int64_t)t[half] * a.o_pitch + (int64_t)h * D + lane % 4 * 2;
        BKL_UNROLL
        for (int j = 0; j < D_MAX / 8; j++)
            if (8 * j < D) store4(o + 8 * j, bf16_pair(sums[j][2 * half] * by, sums[j][2 * half + 1] * by));
        if (a.lse && lane % 4 == 0)
            a.lse[(int64_t)t[half] * a.H + h] = sum > 0 ? (largest[half] + log2f(sum)) * LN_2 : -INFINITY;
    }
}

BKL_NO_WORKSPACE(attention_fwd)
bkl_status bkl_attention_fwd(bkl_stream *stream, const bkl_attention_fwd_args *a, void *, size_t)
{
    BKL_EXPECT(stream,
               a->T > 0 && a->S >= a->T && a->S < INT32_MAX / 2 && a->G > 0 && a->H > 0 && a->H % a->G == 0 && a->H < 65536 &&
                   a->window >= 0,
               "attention: T = %lld, S = %lld, H = %lld, G = %lld, window %lld", (long long)a->T, (long long)a->S,
               (long long)a->H, (long long)a->G, (long long)a->window);
    BKL_EXPECT(stream,
               a->D > 0 && a->D % 16 == 0 && a->q_pitch >= a->H * a->D && a->o_pitch >= a->H * a->D &&
                   a->kv_pitch >= a->G * a->D && a->q_pitch % 8 == 0 && a->kv_pitch % 8 == 0 && a->o_pitch % 2 == 0,
               "attention: D = %lld, pitches of %lld (q), %lld (k, v), %lld (o); D a multiple of 16", (long long)a->D,
               (long long)a->q_pitch, (long long)a->kv_pitch, (long long)a->o_pitch);
    if (a->D > 128)
        return bkl_fail(stream->context, BKL_E_UNSUPPORTED, "attention: heads of %lld values; 128 at most", (long long)a->D);
    const dim3 grid((unsigned)ceil_div(a->T, ATTENTION_ROWS), (unsigned)a->H);
    if (a->D <= 64)
        return BKL_LAUNCH(stream, attention_fwd_kernel<64>, grid, ATTENTION_THREADS, 3 * 64 * 64 * sizeof(bf16), *a);
    return BKL_LAUNCH(stream, attention_fwd_kernel<128>, grid, ATTENTION_THREADS, 3 * 64 * 128 * sizeof(bf16), *a);
}
