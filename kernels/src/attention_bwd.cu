/* Causal attention, backward, without atomics: one kernel sums dk and dv over the queries that see its keys, another dq over
 * the keys that its queries see. Scores are made again in both, which is less than sums whose order would change from run to
 * run are worth.
 *
 *     δ[i] = do[i]·o[i]      p[i,j] = e^(s[i,j] - lse[i])      ds[i,j] = p[i,j]·(do[i]·v[j] - δ[i])
 *     dv[j] = Σ_i p[i,j]·do[i]      dk[j] = scale·Σ_i ds[i,j]·q[i]      dq[i] = scale·Σ_j ds[i,j]·k[j]
 *
 * dk and dv sum over the query heads of their group. Where that leaves too few blocks for a GPU, the heads are dealt to `parts`
 * blocks whose sums a last kernel adds, in order; how many depends on shapes alone. */
#include "attention_tile.h"
#include "lab.h"

enum { FEW_BLOCKS = 256 };

static int parts_of(const bkl_attention_bwd_args *a)
{
    const int64_t heads = a->H / a->G, blocks = ceil_div(a->S, ATTENTION_ROWS) * a->G;
    int64_t parts = 1;
    while (parts < heads && (blocks * parts < FEW_BLOCKS || heads % parts != 0)) parts++;
    return (int)parts;
}

/* ---- δ: a warp a row ------------------------------------------------------------------------------------------------------
 */
__global__ void __launch_bounds__(ATTENTION_THREADS) attention_delta_kernel(bkl_attention_bwd_args a, float *delta)
{
    const int64_t row = (int64_t)blockIdx.x * (ATTENTION_THREADS / WARP) + threadIdx.x / WARP;
    if (row >= a.T * a.H) return; /* whole warps */
    const int64_t at = row / a.H * a.o_pitch + row % a.H * a.D;
    float sum = 0;
    for (int64_t d = 8 * (int64_t)(threadIdx.x % WARP); d < a.D; d += 8 * WARP) {
        float x[8], y[8];
        load8(x, a.d_o + at + d);
        load8(y, a.o + at + d);
        BKL_UNROLL
        for (int i = 0; i < 8; i++) sum += x[i] * y[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) delta[row] = sum;
}

/* ---- dk and dv: 64 keys of a group, the queries of some of its heads ------------------------------------------------------
 */
template <int D_MAX, int QUERIES>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    attention_dkv_kernel(bkl_attention_bwd_args a, const float *delta, float *dk, float *dv, int parts)
{
    BKL_SHARED(int, lows, [QUERIES]);
    BKL_SHARED(float, lses, [QUERIES]);
    BKL_SHARED(float, deltas, [QUERIES]);
    BKL_DYNAMIC_SHARED(memory);
    bf16 *const k_tile = (bf16 *)memory, *const v_tile = k_tile + ATTENTION_ROWS * D_MAX,
                *const q_tile = v_tile + ATTENTION_ROWS * D_MAX;
    bf16 *const o_tile = q_tile + QUERIES * D_MAX; /* do */
    const int T = (int)a.T, S = (int)a.S, D = (int)a.D, n_heads = (int)(a.H / a.G) / parts;
    const int j0 = (int)blockIdx.x * ATTENTION_ROWS, g = (int)blockIdx.y, h0 = g * (int)(a.H / a.G) + (int)blockIdx.z * n_heads;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, window = (int)a.window;
    const float scale = a.scale * LOG2_E;

    int end = T; /* of the queries that see any of the keys */
    if (a.last_query) {
        const int key_a = j0 + lane, key_b = key_a + WARP;
        const int last_a = key_a < S ? a.last_query[key_a] : -1, last_b = key_b < S ? a.last_query[key_b] : -1;
        end = warp_max(last_a > last_b ? last_a : last_b) + 1;
    }
    if (window > 0 && end > j0 + ATTENTION_ROWS - 1 + window - (S - T)) end = j0 + ATTENTION_ROWS - 1 + window - (S - T);
    const int begin = j0 - (S - T) > 0 ? (j0 - (S - T)) / QUERIES * QUERIES : 0;

    rows_copy<D_MAX, ATTENTION_ROWS>(k_tile, a.k + (int64_t)g * D, a.kv_pitch, j0, S, D);
    rows_copy<D_MAX, ATTENTION_ROWS>(v_tile, a.v + (int64_t)g * D, a.kv_pitch, j0, S, D);
    copy_commit();
    float sum_k[D_MAX / 8][4], sum_v[D_MAX / 8][4];
    sums_clear<D_MAX>(sum_k);
    sums_clear<D_MAX>(sum_v);

    for (int h = h0; h < h0 + n_heads; h++)
        for (int t0 = begin; t0 < end; t0 += QUERIES) {
            __syncthreads();
            rows_copy<D_MAX, QUERIES>(q_tile, a.q + (int64_t)h * D, a.q_pitch, t0, T, D);
            rows_copy<D_MAX, QUERIES>(o_tile, a.d_o + (int64_t)h * D, a.o_pitch, t0, T, D);
            copy_commit();
            if (threadIdx.x < QUERIES) {
                const int t = t0 + (int)threadIdx.x;
                lows[threadIdx.x] = lowest_key(a.first_key, t, T, S, window);
                lses[threadIdx.x] = t < T ? a.lse[(int64_t)t * a.H + h] * LOG2_E : 0;
                deltas[threadIdx.x] = t < T ? delta[(int64_t)t * a.H + h] : 0;
            }
            copy_wait<0>();
            __syncthreads();
            float p[QUERIES / 8][4], ds[QUERIES / 8][4]; /* transposed: 16 keys a warp, by queries */
            multiply_rows<D_MAX, QUERIES / 8>(p, k_tile, 16 * warp, q_tile, D);
            multiply_rows<D_MAX, QUERIES / 8>(ds, v_tile, 16 * warp, o_tile, D);
            BKL_UNROLL
            for (int j = 0; j < QUERIES / 8; j++)
                BKL_UNROLL
                for (int x = 0; x < 4; x++) {
                    const int i = 8 * j + lane % 4 * 2 + x % 2, key = j0 + 16 * warp + lane / 4 + x / 2 * 8;
                    const bool sees = key >= lows[i] && key <= t0 + i + S - T;
                    p[j][x] = sees ? exp2f(p[j][x] * scale - lses[i]) : 0;
                    ds[j][x] = p[j][x] * (ds[j][x] - deltas[i]);
                }
            multiply_columns<D_MAX, QUERIES / 8>(sum_v, p, o_tile, D);
            multiply_columns<D_MAX, QUERIES / 8>(sum_k, ds, q_tile, D);
        }
    copy_wait<0>();

    BKL_UNROLL
    for (int half = 0; half < 2; half++) {
        const int key = j0 + 16 * warp + lane / 4 + 8 * half;
        if (key >= S) continue;
        const int64_t at = (((int64_t)blockIdx.z * S + key) * a.G + g) * D + lane % 4 * 2;
        BKL_UNROLL
        for (int j = 0; j < D_MAX / 8; j++) {
            if (8 * j >= D) continue;
            dk[at + 8 * j] = a.scale * sum_k[j][2 * half], dk[at + 8 * j + 1] = a.scale * sum_k[j][2 * half + 1];
            dv[at + 8 * j] = sum_v[j][2 * half], dv[at + 8 * j + 1] = sum_v[j][2 * half + 1];
        }
    }
}

/* Adds the parts and rounds once. */
__global__ void __launch_bounds__(ATTENTION_THREADS)
    attention_parts_kernel(bkl_attention_bwd_args a, const float *dk, const float *dv, int parts)
{
    const int64_t n = a.S * a.G * a.D, i = 8 * ((int64_t)blockIdx.x * ATTENTION_THREADS + threadIdx.x);
    if (i >= n) return;
    float k[8] = {0, 0, 0, 0, 0, 0, 0, 0}, v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int part = 0; part < parts; part++)
        BKL_UNROLL
        for (int j = 0; j < 8; j++) k[j] += dk[part * n + i + j], v[j] += dv[part * n + i + j];
    const int64_t to = i / (a.G * a.D) * a.dkv_pitch + i % (a.G * a.D);
    store8(a.dk + to, k);
    store8(a.dv + to, v);
}

/* ---- dq: 64 queries of a head ---------------------------------------------------------------------------------------------
 */
template <int D_MAX, int KEYS>
__global__ void __launch_bounds__(ATTENTION_THREADS) attention_dq_kernel(bkl_attention_bwd_args a, const float *delta)
{
    BKL_DYNAMIC_SHARED(memory);
    bf16 *const q_tile = (bf16 *)memory, *const o_tile = q_tile + ATTENTION_ROWS * D_MAX,
                *const k_tile = o_tile + ATTENTION_ROWS * D_MAX;
    bf16 *const v_tile = k_tile + KEYS * D_MAX;
    const int T = (int)a.T, S = (int)a.S, D = (int)a.D, h = (int)blockIdx.y, g = h / (int)(a.H / a.G);
    const int t0 = ((int)gridDim.x - 1 - (int)blockIdx.x) * ATTENTION_ROWS;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, window = (int)a.window;
    const float scale = a.scale * LOG2_E;

    const int low_a = lowest_key(a.first_key, t0 + lane, T, S, window),
              low_b = lowest_key(a.first_key, t0 + WARP + lane, T, S, window);
    const int lowest = warp_min(low_a < low_b ? low_a : low_b);
    const int end = lowest == INT32_MAX ? 0 : (t0 + ATTENTION_ROWS < T ? t0 + ATTENTION_ROWS : T) + S - T;
    const int begin = lowest == INT32_MAX ? 0 : lowest / KEYS * KEYS;
    const int t[2] = {t0 + 16 * warp + lane / 4, t0 + 16 * warp + lane / 4 + 8};
    int low[2];
    float lse[2], shift[2];
    BKL_UNROLL
    for (int half = 0; half < 2; half++) {
        low[half] = lowest_key(a.first_key, t[half], T, S, window);
        lse[half] = t[half] < T ? a.lse[(int64_t)t[half] * a.H + h] * LOG2_E : 0;
        shift[half] = t[half] < T ? delta[(int64_t)t[half] * a.H + h] : 0;
    }
    rows_copy<D_MAX, ATTENTION_ROWS>(q_tile, a.q + (int64_t)h * D, a.q_pitch, t0, T, D);
    rows_copy<D_MAX, ATTENTION_ROWS>(o_tile, a.d_o + (int64_t)h * D, a.o_pitch, t0, T, D);
    copy_commit();
    float sums[D_MAX / 8][4];
    sums_clear<D_MAX>(sums);

    for (int j0 = begin; j0 < end; j0 += KEYS) {
        __syncthreads();
        rows_copy<D_MAX, KEYS>(k_tile, a.k + (int64_t)g * D, a.kv_pitch, j0, S, D);
        rows_copy<D_MAX, KEYS>(v_tile, a.v + (int64_t)g * D, a.kv_pitch, j0, S, D);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        float p[KEYS / 8][4], ds[KEYS / 8][4];
        multiply_rows<D_MAX, KEYS / 8>(p, q_tile, 16 * warp, k_tile, D);
        multiply_rows<D_MAX, KEYS / 8>(ds, o_tile, 16 * warp, v_tile, D);
        BKL_UNROLL
        for (int j = 0; j < KEYS / 8; j++)
            BKL_UNROLL
            for (int x = 0; x < 4; x++) {
                const int key = j0 + 8 * j + lane % 4 * 2 + x % 2, half = x / 2;
                const bool sees = key >= low[half] && key <= t[half] + S - T;
                ds[j][x] = sees ? exp2f(p[j][x] * scale - lse[half]) * (ds[j][x] - shift[half]) : 0;
            }
        multiply_columns<D_MAX, KEYS / 8>(sums, ds, k_tile, D);
    }
    copy_wait<0>();

    BKL_UNROLL
    for (int half = 0; half < 2; half++) {
        if (t[half] >= T) continue;
        bf16 *const dq = a.dq + (int64_t)t[half] * a.dq_pitch + (int64_t)h * D + lane % 4 * 2;
        BKL_UNROLL
        for (int j = 0; j < D_MAX / 8; j++)
            if (8 * j < D) store4(dq + 8 * j, bf16_pair(a.scale * sums[j][2 * half], a.scale * sums[j][2 * half + 1]));
    }
}

template <int D_MAX, int AT_ONCE>
static bkl_status run(bkl_stream *stream, const bkl_attention_bwd_args *a, float *delta, float *dk, float *dv)
{
    const int parts = parts_of(a);
    const size_t shared = 2 * (ATTENTION_ROWS + AT_ONCE) * D_MAX * sizeof(bf16);
    const dim3 by_keys((unsigned)ceil_div(a->S, ATTENTION_ROWS), (unsigned)a->G, (unsigned)parts);
    const dim3 by_queries((unsigned)ceil_div(a->T, ATTENTION_ROWS), (unsigned)a->H);
    BKL_TRY(BKL_LAUNCH(stream, attention_delta_kernel, (unsigned)ceil_div(a->T * a->H, ATTENTION_THREADS / WARP),
                       ATTENTION_THREADS, 0, *a, delta));
    BKL_TRY(BKL_LAUNCH(stream, (attention_dkv_kernel<D_MAX, AT_ONCE>), by_keys, ATTENTION_THREADS, shared, *a, delta, dk, dv,
                       parts));
    BKL_TRY(BKL_LAUNCH(stream, attention_parts_kernel, (unsigned)ceil_div(a->S * a->G * a->D, 8 * ATTENTION_THREADS),
                       ATTENTION_THREADS, 0, *a, dk, dv, parts));
    return BKL_LAUNCH(stream, (attention_dq_kernel<D_MAX, AT_ONCE>), by_queries, ATTENTION_THREADS, shared, *a, delta);
}

size_t bkl_attention_bwd_workspace(const bkl_attention_bwd_args *a)
{
    if (a->T <= 0 || a->S <= 0 || a->H <= 0 || a->G <= 0 || a->D <= 0) return 0;
    return ((size_t)(a->T * a->H) + 2 * (size_t)parts_of(a) * (size_t)(a->S * a->G * a->D)) * sizeof(float);
}

bkl_status bkl_attention_bwd(bkl_stream *stream, const bkl_attention_bwd_args *a, void *workspace, size_t workspace_bytes)
{
    BKL_EXPECT(stream,
               a->T > 0 && a->S >= a->T && a->S < INT32_MAX / 2 && a->G > 0 && a->H > 0 && a->H % a->G == 0 && a->H < 65536 &&
                   a->window >= 0,
               "attention: T = %lld, S = %lld, H = %lld, G = %lld, window %lld", (long long)a->T, (long long)a->S,
               (long long)a->H, (long long)a->G, (long long)a->window);
    BKL_EXPECT(
        stream,
        a->D > 0 && a->D % 16 == 0 && a->q_pitch >= a->H * a->D && a->o_pitch >= a->H * a->D && a->kv_pitch >= a->G * a->D &&
            a->dq_pitch >= a->H * a->D && a->dkv_pitch >= a->G * a->D && a->q_pitch % 8 == 0 && a->kv_pitch % 8 == 0 &&
            a->o_pitch % 8 == 0 && a->dq_pitch % 2 == 0 && a->dkv_pitch % 8 == 0,
        "attention: D = %lld, pitches of %lld (q), %lld (k, v), %lld (o, do), %lld (dq), %lld (dk, dv); D a multiple of 16",
        (long long)a->D, (long long)a->q_pitch, (long long)a->kv_pitch, (long long)a->o_pitch, (long long)a->dq_pitch,
        (long long)a->dkv_pitch);
    BKL_EXPECT(stream, !a->first_key == !a->last_query, "attention: first_key and last_query come together or not at all");
    if (a->D > 128)
        return bkl_fail(stream->context, BKL_E_UNSUPPORTED, "attention: heads of %lld values; 128 at most", (long long)a->D);
    BKL_NEED_WORKSPACE(stream, attention_bwd, a, workspace_bytes);
    float *const delta = (float *)workspace, *const dk = delta + a->T * a->H,
                 *const dv = dk + (int64_t)parts_of(a) * a->S * a->G * a->D;
    if (a->D <= 64) return run<64, 64>(stream, a, delta, dk, dv);
    return run<128, 32>(stream, a, delta, dk, dv);
}
