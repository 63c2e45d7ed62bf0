/* Attention of one new token for each of B sequences against their caches. A block has 256 keys of one sequence and one
 * key/value head, for all query heads that read it, so that a cache is read once; a second kernel joins the stretches, in
 * order.
 *
 *     o[b,h] = Σ_j softmax_j(scale·q[b,h]·k[b,j])·v[b,j]      j over the last `window` of lengths[b] keys
 * Scores and sums are f32 over bf16 keys and values: there are too few queries for tensor cores to matter. */
#include "device.h"
#include "lab.h"

enum { THREADS = 128, WARPS = THREADS / WARP, KEYS = 256, HEADS = 8 /* of a group, at once */, D_MAX = 128 };

#define LOG2_E 1.4426950408889634f

/* What a stretch leaves for each query head: the largest score (base 2), the sum of 2^(score - largest), and that times v. */
typedef struct {
    float *largest, *total; /* [B,H,n_stretches] */
    float *sums;            /* [B,H,n_stretches,D] */
    int n_stretches;
} stretch_parts;

__global__ void __launch_bounds__(THREADS) attention_decode_kernel(bkl_attention_decode_args a, stretch_parts to)
{
    BKL_SHARED(float, q, [HEADS][D_MAX]);
    BKL_SHARED(float, p, [HEADS][KEYS]);
    const int D = (int)a.D, of_group = (int)(a.H / a.G), lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int groups_of_heads = (of_group + HEADS - 1) / HEADS, b = (int)blockIdx.z, g = (int)blockIdx.y / groups_of_heads;
    const int h0 = g * of_group + (int)blockIdx.y % groups_of_heads * HEADS, h_end = (g + 1) * of_group,
              n_heads = h_end - h0 < HEADS ? h_end - h0 : HEADS;
    const int length = a.lengths[b], first = a.window > 0 && length > a.window ? length - (int)a.window : 0;
    const int j0 = (int)blockIdx.x * KEYS, begin = j0 > first ? j0 : first, end = j0 + KEYS < length ? j0 + KEYS : length;
    const bf16 *const k = a.k + b * a.sequence_pitch + (int64_t)g * D, *const v = a.v + b * a.sequence_pitch + (int64_t)g * D;

    for (int i = (int)threadIdx.x; i < n_heads * D; i += THREADS)
        q[i / D][i % D] = bf16_to_f32(a.q[((int64_t)b * a.H + h0) * D + i]) * (a.scale * LOG2_E);
    __syncthreads();
    /* Scores: sixteen lanes a key, eight values a lane. Every lane goes through every turn, because shuffles take whole warps.
     */
    const int part = lane % 16 * 8;
    for (int turn = 0; turn < KEYS / (2 * WARPS); turn++) {
        const int j = j0 + 2 * (turn * WARPS + warp) + lane / 16;
        const bool inside = j >= begin && j < end;
        float x[8];
        BKL_UNROLL
        for (int i = 0; i < 8; i++) x[i] = 0;
        if (inside && part < D) load8(x, k + j * a.kv_pitch + part);
        for (int h = 0; h < n_heads; h++) {
            float score = 0;
            if (part < D)
                BKL_UNROLL
                for (int i = 0; i < 8; i++) score += x[i] * q[h][part + i];
            BKL_UNROLL
            for (int lanes = 8; lanes; lanes /= 2) score += shuffle_xor(score, lanes);
            if (lane % 16 == 0) p[h][j - j0] = inside ? score : -INFINITY;
        }
    }
    __syncthreads();
    /* Softmax over the stretch: a warp a head. */
    for (int h = warp; h < n_heads; h += WARPS) {
        float most = -INFINITY, total = 0;
        for (int j = lane; j < KEYS; j += WARP) most = fmaxf(most, p[h][j]);
        most = warp_max(most);
        for (int j = lane; j < KEYS; j += WARP) {
            const float e = most == -INFINITY ? 0 : exp2f(p[h][j] - most);
            p[h][j] = e, total += e;
        }
        total = warp_sum(total);
        const int64_t at = ((int64_t)b * a.H + h0 + h) * to.n_stretches + blockIdx.x;
        if (lane == 0) to.largest[at] = most, to.total[at] = total;
    }
    __syncthreads();
    if ((int)threadIdx.x >= D) return;
    float sums[HEADS];
    BKL_UNROLL
    for (int h = 0; h < HEADS; h++) sums[h] = 0;
    for (int j = begin; j < end; j++) {
        const float x = bf16_to_f32(v[j * a.kv_pitch + threadIdx.x]);
        BKL_UNROLL
        for (int h = 0; h < HEADS; h++)
            if (h < n_heads) sums[h] += p[h][j - j0] * x;
    }
    BKL_UNROLL
    for (int h = 0; h < HEADS; h++)
        if (h < n_heads) to.sums[(((int64_t)b * a.H + h0 + h) * to.n_stretches + blockIdx.x) * D + threadIdx.x] = sums[h];
}

/* A block a query head. */
__global__ void __launch_bounds__(THREADS) attention_join_kernel(bkl_attention_decode_args a, stretch_parts from)
{
    const int64_t row = blockIdx.x;
    if ((int)threadIdx.x >= a.D) return;
    float most = -INFINITY, total = 0, sum = 0;
    for (int s = 0; s < from.n_stretches; s++) most = fmaxf(most, from.largest[row * from.n_stretches + s]);
    for (int s = 0; s < from.n_stretches; s++) {
        const int64_t at = row * from.n_stretches + s;
        const float weight = from.largest[at] == -INFINITY ? 0 : exp2f(from.largest[at] - most);
        total += weight * from.total[at], sum += weight * from.sums[at * a.D + threadIdx.x];
    }
    a.o[row * a.D + threadIdx.x] = f32_to_bf16(total > 0 ? sum / total : 0);
}

static stretch_parts parts_in(const bkl_attention_decode_args *a, float *workspace)
{
    const int64_t n = ceil_div(a->S, KEYS), rows = a->B * a->H;
    return {workspace, workspace + rows * n, workspace + 2 * rows * n, (int)n};
}

size_t bkl_attention_decode_workspace(const bkl_attention_decode_args *a)
{
    if (a->B <= 0 || a->S <= 0 || a->H <= 0 || a->D <= 0) return 0;
    return (size_t)(a->B * a->H) * (size_t)ceil_div(a->S, KEYS) * (size_t)(a->D + 2) * sizeof(float);
}

bkl_status bkl_attention_decode(bkl_stream *stream, const bkl_attention_decode_args *a, void *workspace, size_t workspace_bytes)
{
    BKL_EXPECT(stream,
               a->B > 0 && a->B < 65536 && a->S > 0 && a->S < INT32_MAX / 2 && a->G > 0 && a->H > 0 && a->H % a->G == 0 &&
                   a->H < 65536 && a->window >= 0,
               "attention_decode: B = %lld, S = %lld, H = %lld, G = %lld, window %lld", (long long)a->B, (long long)a->S,
               (long long)a->H, (long long)a->G, (long long)a->window);
    BKL_EXPECT(stream,
               a->D > 0 && a->D % 8 == 0 && a->kv_pitch >= a->G * a->D && a->kv_pitch % 8 == 0 && a->sequence_pitch % 8 == 0,
               "attention_decode: D = %lld, a pitch of %lld; D a multiple of 8", (long long)a->D, (long long)a->kv_pitch);
    if (a->D > D_MAX)
        return bkl_fail(stream->context, BKL_E_UNSUPPORTED, "attention_decode: heads of %lld values; %d at most",
                        (long long)a->D, (int)D_MAX);
    BKL_NEED_WORKSPACE(stream, attention_decode, a, workspace_bytes);
    const stretch_parts parts = parts_in(a, (float *)workspace);
    const dim3 grid((unsigned)parts.n_stretches, (unsigned)(a->G * ceil_div(a->H / a->G, HEADS)), (unsigned)a->B);
    BKL_TRY(BKL_LAUNCH(stream, attention_decode_kernel, grid, THREADS, 0, *a, parts));
    return BKL_LAUNCH(stream, attention_join_kernel, (unsigned)(a->B * a->H), THREADS, 0, *a, parts);
}
