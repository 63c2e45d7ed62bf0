/* GEMMs whose right side is an NF4 weight that stays NF4 in memory: each block dequantizes the tile it is about to multiply
 * into shared memory, from registers that were loaded a tile ahead. The LoRA pair beside the weight is a further stretch of the
 * same sum, so that the result is written once:
 *
 *     forward    y[T,N]  (= or +=) scale·(x·Wᵀ + h·Bᵀ) + bias           h[T,R] = s·x·Aᵀ comes from lora_down
 *     backward   dx[T,K] (= or +=) scale·Σ_i (dy_i·W_i + drop'_i(dh_i·A_i))      dh[T,R] = s·dy·B comes from lora_down, too
 *
 * W[N,K] has blocks of 64 along K, each scale is map[absmax_q]·nested + offset (double quantization) or absmax; a weight is
 * bf16(code·scale), the product taken in f32, as the CPU's linear op rounds it. */
#include "dropout.h"
#include "gemm_tile.h"
#include "lab.h"
#include "nf4_code.h"
#include "nf4_few.h"

enum { STAGES = 3, SHARED_BYTES = (STAGES + 2) * TILE_BYTES, MAX_STRETCHES = 2 * BKL_NF4_MAX };

/* A stretch of the inner dimension. */
typedef struct {
    const bf16 *left;        /* [M, length] */
    int64_t left_pitch, length;
    const bf16 *right;       /* LoRA: [N, length] forward, [length, N] backward, dense; NULL: w */
    bkl_nf4_weight w;
    bkl_dropout dropout;     /* of the product, by its index in [M,N] */
} stretch;

typedef struct {
    stretch part[MAX_STRETCHES];
    int n_parts;
} stretches;

/* A place in the stretches. */
typedef struct {
    int part;
    int64_t k;
} cursor;

BKL_FN void cursor_advance(cursor *at, const stretches *s)
{
    at->k += TILE_K;
    if (at->k >= s->part[at->part].length) at->k = 0, at->part++;
}

/* 32 weights of one row and their scale, as loaded. */
typedef struct {
    uint4 codes;
    float scale;
} packed32;

BKL_FN packed32 packed_load(const bkl_nf4_weight *w, int64_t row, int64_t column)
{
    packed32 p;
    p.codes.x = p.codes.y = p.codes.z = p.codes.w = 0x77777777u; /* zeros */
    p.scale = 0;
    if (row < w->N && column < w->K) {
        const int64_t at = row * w->K + column;
        p.codes = load16(w->packed + at / 2);
        p.scale = nf4_scale(w, at / 64);
    }
    return p;
}

/* Which 32 values of the right tile are this thread's: of a row of the tile, from a column on. */
template <bool is_kn> BKL_FN int own_row() { return is_kn ? (int)threadIdx.x / 4 : (int)threadIdx.x / 2; }
template <bool is_kn> BKL_FN int own_column() { return is_kn ? (int)threadIdx.x % 4 * 32 : (int)threadIdx.x % 2 * 32; }

template <bool is_kn> BKL_FN bf16 *right_at(bf16 *tile, int row, int chunk)
{
    return is_kn ? tile128_at(tile, row, chunk) : tile64_at(tile, row, chunk);
}

template <bool is_kn> BKL_FN packed32 right_load(const stretches *s, cursor at, int64_t n0)
{
    const bkl_nf4_weight *w = &s->part[at.part].w;
    if (is_kn) return packed_load(w, at.k + own_row<true>(), n0 + own_column<true>());
    return packed_load(w, n0 + own_row<false>(), at.k + own_column<false>());
}

template <bool is_kn> BKL_FN void right_store(bf16 *tile, packed32 p, const float *code)
{
    const uint32_t words[4] = {p.codes.x, p.codes.y, p.codes.z, p.codes.w};
    BKL_UNROLL
    for (int i = 0; i < 4; i++)
        store16(right_at<is_kn>(tile, own_row<is_kn>(), own_column<is_kn>() / 8 + i), nf4_dequantize8(words[i], p.scale, code));
}

/* The same from a bf16 matrix: the stretch of a LoRA pair. */
template <bool is_kn> BKL_FN void right_copy(bf16 *tile, const stretch *s, int64_t k, int64_t n0, int64_t N)
{
    const int64_t row = (is_kn ? k : n0) + own_row<is_kn>(), n_rows = is_kn ? s->length : N, n_columns = is_kn ? N : s->length;
    BKL_UNROLL
    for (int i = 0; i < 4; i++) {
        const int64_t column = (is_kn ? n0 : k) + own_column<is_kn>() + 8 * i;
        uint4 v;
        v.x = v.y = v.z = v.w = 0;
        if (row < n_rows && column < n_columns) v = load16(s->right + row * n_columns + column);
        store16(right_at<is_kn>(tile, own_row<is_kn>(), own_column<is_kn>() / 8 + i), v);
    }
}

/* sums += drop'(left·right). The mask is the sum's too: dropping each tile's product drops the whole. */
BKL_FN void multiply_dropped(float sums[4][4][4], bf16 *left, bf16 *right, int depth, const bkl_dropout *d, int64_t block_m0,
                             int64_t block_n0, int64_t N)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, matrix = lane / 8, in_matrix = lane % 8;
    const int m_of_warp = warp / 4 * 64, n_of_warp = warp % 4 * 32;
    const int64_t m0 = block_m0 + m_of_warp + lane / 4, n0 = block_n0 + n_of_warp + lane % 4 * 2;
    BKL_UNROLL
    for (int i = 0; i < 4; i++) { /* sixteen rows at a time: few registers, for the few turns that come here */
        const int64_t index =
            opaque((m0 + 16 * i) * N + n0); /* else the compiler hashes all 64 indices before the loop, and spills them */
        float product[4][4];
        BKL_UNROLL
        for (int j = 0; j < 4; j++) product[j][0] = product[j][1] = product[j][2] = product[j][3] = 0;
        for (int k = 0; 16 * k < depth; k++) {
            uint32_t a[4], b[2][4];
            load_matrices(a, tile64_at(left, m_of_warp + 16 * i + matrix % 2 * 8 + in_matrix, 2 * k + matrix / 2));
            BKL_UNROLL
            for (int j = 0; j < 2; j++)
                load_matrices_transposed(
                    b[j], tile128_at(right, 16 * k + matrix % 2 * 8 + in_matrix, n_of_warp / 8 + 2 * j + matrix / 2));
            BKL_UNROLL
            for (int j = 0; j < 4; j++) mma_bf16(product[j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
        BKL_UNROLL
        for (int j = 0; j < 4; j++)
            BKL_UNROLL
            for (int x = 0; x < 4; x++)
                if (dropout_keeps(d, index + x / 2 * 8 * N + 8 * j + x % 2)) sums[i][j][x] += d->scale * product[j][x];
    }
}

template <bool is_kn>
__global__ void __launch_bounds__(TILE_THREADS, 1) nf4_gemm_kernel(stretches s, tile_result to, int n_tiles)
{
    BKL_SHARED(float, code, [16]);
    BKL_DYNAMIC_SHARED(memory);
    bf16 *const left = (bf16 *)memory, *const right = left + STAGES * TILE_BYTES / 2;
    const int64_t m0 = (int64_t)blockIdx.x * TILE_M, n0 = (int64_t)blockIdx.y * TILE_N;
    float sums[4][4][4];
    tile_clear(sums);
    if (threadIdx.x < 16) code[threadIdx.x] = nf4_codes[threadIdx.x];
    __syncthreads();

    cursor ahead = {0, 0}, now = {0, 0};
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n_tiles) {
            const stretch *part = &s.part[ahead.part];
            tile64_copy(left + i * (TILE_BYTES / 2), part->left, part->left_pitch, m0, to.M, ahead.k, part->length);
            cursor_advance(&ahead, &s);
        }
        copy_commit();
    }
    packed32 next = right_load<is_kn>(&s, now, n0); /* the first stretch is a weight */
    for (int i = 0; i < n_tiles; i++) {
        /* Right tiles take turns in two places: the one written now was read two tiles ago, before the last barrier. */
        bf16 *const r = right + i % 2 * (TILE_BYTES / 2);
        const stretch *part = &s.part[now.part];
        if (part->right)
            right_copy<is_kn>(r, part, now.k, n0, to.N);
        else
            right_store<is_kn>(r, next, code);
        const int64_t depth = part->length - now.k;
        cursor_advance(&now, &s);
        if (i + 1 < n_tiles && !s.part[now.part].right) next = right_load<is_kn>(&s, now, n0);
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < n_tiles) { /* into the place that was read in the last turn */
            const stretch *far = &s.part[ahead.part];
            tile64_copy(left + (i + STAGES - 1) % STAGES * (TILE_BYTES / 2), far->left, far->left_pitch, m0, to.M, ahead.k,
                        far->length);
            cursor_advance(&ahead, &s);
        }
        copy_commit();
        if (is_kn && part->dropout.drop)
            multiply_dropped(sums, left + i % STAGES * (TILE_BYTES / 2), r, depth < TILE_K ? (int)depth : TILE_K,
                             &part->dropout, m0, n0, to.N);
        else
            tile_multiply<is_kn>(sums, left + i % STAGES * (TILE_BYTES / 2), r, depth < TILE_K ? (int)depth : TILE_K);
    }
    copy_wait<0>();
    tile_finish(&to, sums, m0, n0);
}

static bkl_status check_weight(bkl_stream *stream, const bkl_nf4_weight *w)
{
    BKL_EXPECT(stream, w->N > 0 && w->K > 0 && w->K % 64 == 0 && w->N % 8 == 0,
               "nf4: a weight of %lld rows of %lld; rows a multiple of 8, their length a multiple of 64", (long long)w->N,
               (long long)w->K);
    BKL_EXPECT(stream, w->absmax || (w->absmax_q && w->nested_absmax && w->map),
               "nf4: a weight with neither absmax nor its quantized form");
    return BKL_OK;
}

static bkl_status check_lora(bkl_stream *stream, const bkl_bf16 *left, const bkl_bf16 *right, int64_t R)
{
    BKL_EXPECT(stream, !left == !right && (!left || (R > 0 && R % 8 == 0)),
               "nf4: a LoRA pair needs both its matrices and a rank that is a "
               "multiple of 8, not %lld",
               (long long)R);
    return BKL_OK;
}

static int count_tiles(const stretches *s)
{
    int64_t n = 0;
    for (int i = 0; i < s->n_parts; i++) n += ceil_div(s->part[i].length, TILE_K);
    return (int)n;
}

BKL_NO_WORKSPACE(nf4_fwd)
bkl_status bkl_nf4_fwd(bkl_stream *stream, const bkl_nf4_fwd_args *a, void *, size_t)
{
    BKL_TRY(check_weight(stream, &a->w));
    BKL_TRY(check_lora(stream, a->lora_h, a->lora_b, a->R));
    BKL_EXPECT(stream, a->T > 0 && a->x_pitch >= a->w.K && a->x_pitch % 8 == 0 && a->y_pitch >= a->w.N && a->y_pitch % 2 == 0,
               "nf4_fwd: T = %lld, pitches of %lld (x) and %lld (y) for rows of %lld and %lld", (long long)a->T,
               (long long)a->x_pitch, (long long)a->y_pitch, (long long)a->w.K, (long long)a->w.N);
    if (a->T <= NF4_FEW) return bkl_nf4_few(stream, a);
    stretches s = {};
    s.part[s.n_parts++] = {a->x, a->x_pitch, a->w.K, nullptr, a->w, {}};
    if (a->lora_h) s.part[s.n_parts++] = {a->lora_h, a->R, a->R, a->lora_b, {}, {}};
    const tile_result to = {a->y, a->bias, a->T, a->w.N, a->y_pitch, a->scale, false, a->accumulate};
    const dim3 grid((unsigned)ceil_div(a->T, TILE_M), (unsigned)ceil_div(a->w.N, TILE_N));
    return BKL_LAUNCH(stream, nf4_gemm_kernel<false>, grid, TILE_THREADS, SHARED_BYTES, s, to, count_tiles(&s));
}

BKL_NO_WORKSPACE(nf4_bwd)
bkl_status bkl_nf4_bwd(bkl_stream *stream, const bkl_nf4_bwd_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->n >= 1 && a->n <= BKL_NF4_MAX, "nf4_bwd: %d weights; 1 to %d", a->n, BKL_NF4_MAX);
    const int64_t K = a->w[0].K;
    BKL_EXPECT(stream, a->T > 0 && a->dx_pitch >= K && a->dx_pitch % 2 == 0,
               "nf4_bwd: T = %lld, a pitch of %lld for rows of %lld", (long long)a->T, (long long)a->dx_pitch, (long long)K);
    stretches s = {};
    for (int i = 0; i < a->n; i++) {
        BKL_TRY(check_weight(stream, &a->w[i]));
        BKL_EXPECT(stream, a->w[i].K == K && a->dy_pitch[i] >= a->w[i].N && a->dy_pitch[i] % 8 == 0,
                   "nf4_bwd: weight %d has rows of %lld, the first of %lld; dy's pitch is %lld", i, (long long)a->w[i].K,
                   (long long)K, (long long)a->dy_pitch[i]);
        s.part[s.n_parts++] = {a->dy[i], a->dy_pitch[i], a->w[i].N, nullptr, a->w[i], {}};
    }
    for (int i = 0; i < a->n; i++) {
        BKL_TRY(check_lora(stream, a->lora_dh[i], a->lora_a[i], a->R));
        if (a->lora_dh[i]) s.part[s.n_parts++] = {a->lora_dh[i], a->R, a->R, a->lora_a[i], {}, a->lora_dropout[i]};
    }
    const tile_result to = {a->dx, nullptr, a->T, K, a->dx_pitch, a->scale, false, a->accumulate};
    const dim3 grid((unsigned)ceil_div(a->T, TILE_M), (unsigned)ceil_div(K, TILE_N));
    return BKL_LAUNCH(stream, nf4_gemm_kernel<true>, grid, TILE_THREADS, SHARED_BYTES, s, to, count_tiles(&s));
}
