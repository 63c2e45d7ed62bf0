#define _GNU_SOURCE
#include "ops/attention/attention.h"

#include "ops/backend.h"
#include "ops/profile.h"
#include "ops/simd_levels.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* How a call is dealt to threads. None of it depends on how many threads there are, so neither do the bits. */
enum {
    BACKWARD_UNITS = 16, /* parts of backward per span, over all key/value heads: enough for the threads to share evenly */
    SPLIT_QUERIES = 8,   /* a span of at most so many queries (decoding) is split by keys instead */
    SPLIT_KEYS = 64,     /* keys of a split at least */
    MAX_SPLITS = 64,
};

void ag_attention_use(ag_attention_slots *slots, ag_cpu_level level)
{
    ag_attention_kernels kernels = {.fwd = ag_attention_fwd_ref, .bwd = ag_attention_bwd_ref, .worker_bytes = ag_attention_worker_bytes_ref};
    AG_USE_SIMD(kernels.fwd, ag_attention_fwd, level);
    AG_USE_SIMD(kernels.bwd, ag_attention_bwd, level);
    AG_USE_SIMD(kernels.worker_bytes, ag_attention_worker_bytes, level);
    if (kernels.fwd != ag_attention_fwd_ref) kernels.block_tokens = ag_attention_block_tokens;
    slots->by_compute[AG_COMPUTE_F32] = slots->by_compute[AG_COMPUTE_BF16] = kernels;
#if defined(__x86_64__)
    const ag_attention_kernels matrix = {ag_attention_fwd_amx, ag_attention_bwd_amx, ag_attention_pairs_worker_bytes,
                                         ag_attention_pairs_block_tokens};
    const ag_attention_kernels pairs = {ag_attention_fwd_avx512bf16, ag_attention_bwd_avx512bf16, ag_attention_pairs_worker_bytes,
                                        ag_attention_pairs_block_tokens};
    if (level >= AG_CPU_AMX) slots->by_compute[AG_COMPUTE_BF16] = matrix;
    else if (level >= AG_CPU_AVX512 && ag_cpu_has_avx512_bf16()) slots->by_compute[AG_COMPUTE_BF16] = pairs;
#endif
}

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

/* What all dealing needs to know of a call. */
typedef struct {
    const ag_attention_kernels *kernels, *split; /* split: for units with `part` */
    bool whole, no_splits;
    int64_t H, G, D, window;
    int64_t block; /* tokens */
    const ag_attention_span *spans;
    int64_t n_spans;
    size_t worker_bytes;
    char *workers;        /* scratch of the threads */
    float *parts;         /* behind it: what units leave for others to add up */
    int64_t parts_floats;
} call;

/* ---- sizes ----------------------------------------------------------------------------------------------------------- */

static int64_t chunk_tokens(const call *c, int64_t n_q)
{
    return c->whole ? n_q : ceil_div(ceil_div(n_q, c->block), ceil_div(BACKWARD_UNITS, c->G)) * c->block;
}

/* Floats of parts for a span in backward: dk and dv of every chunk of queries but the last. */
static int64_t backward_floats(const call *c, int64_t n_q, int64_t n_kv)
{
    const int64_t chunk = chunk_tokens(c, n_q), n = ceil_div(n_q, chunk) - 1; /* chunk i sees keys up to its own last */
    return 2 * c->G * c->D * (n * (n_kv - n_q) + chunk * n * (n + 1) / 2);
}

static int64_t split_keys(int64_t n_keys) { return max_of(SPLIT_KEYS, ceil_div(ceil_div(n_keys, MAX_SPLITS), 32) * 32); }

/* 1: not split. */
static int64_t splits(const call *c, const ag_attention_span *s)
{
    const int64_t n_keys = s->n_kv - ag_attention_keys_first(s, c->window, 0);
    return c->whole || c->no_splits || s->n_q > SPLIT_QUERIES ? 1 : ceil_div(n_keys, split_keys(n_keys));
}

static int64_t forward_floats(const call *c, const ag_attention_span *s)
{
    const int64_t n = splits(c, s);
    return n > 1 ? n * s->n_q * c->H * (c->D + 2) : 0;
}

/* Enough parts for any one span of at most T queries and `longest` keys. */
static int64_t parts_floats(const call *c, int64_t T, int64_t longest)
{
    if (c->whole) return 0;
    int64_t most = min_of(MAX_SPLITS, ceil_div(longest, SPLIT_KEYS)) * min_of(T, SPLIT_QUERIES) * c->H * (c->D + 2);
    /* Most for the fewest queries of so many blocks: all but them are keys that every chunk sees. */
    for (int64_t n_q = c->block + 1; n_q <= min_of(T, longest); n_q += c->block) most = max_of(most, backward_floats(c, n_q, longest));
    return most;
}

static call call_of(const ag_backend *be, ag_compute compute, int64_t T, int64_t longest, int64_t H, int64_t G, int64_t D)
{
    const ag_attention_kernels *all = be->attention.by_compute;
    call c = {.kernels = &all[compute], .split = &all[AG_COMPUTE_F32], .H = H, .G = G, .D = D, .whole = !all[compute].block_tokens};
    for (int i = 0; i < 2; i++) {
        const size_t bytes = align64(all[i].worker_bytes(longest, H, G, D));
        if (bytes > c.worker_bytes) c.worker_bytes = bytes;
    }
    if (!c.whole) c.block = c.kernels->block_tokens(H / G, D);
    c.workers = be->scratch.data;
    c.parts_floats = parts_floats(&c, T, longest);
    return c;
}

static size_t scratch_bytes(const ag_backend *be, const call *c)
{
    return (size_t)be->n_threads * c->worker_bytes + align64((size_t)c->parts_floats * sizeof(float));
}

size_t ag_attention_scratch_bytes(const ag_backend *be, int64_t T, int64_t longest, int64_t H, int64_t G, int64_t D)
{
    const call f32 = call_of(be, AG_COMPUTE_F32, T, longest, H, G, D), bf16 = call_of(be, AG_COMPUTE_BF16, T, longest, H, G, D);
    const size_t a = scratch_bytes(be, &f32), b = scratch_bytes(be, &bf16);
    return a > b ? a : b;
}

int64_t ag_attention_granule(const ag_backend *be, ag_compute compute, int64_t H, int64_t G, int64_t D)
{
    const ag_attention_kernels *kernels = &be->attention.by_compute[compute];
    return kernels->block_tokens ? kernels->block_tokens(H / G, D) : 1;
}

/* ---- checks --------------------------------------------------------------------------------------------------------- */

static ag_status check_tensors(ag_tensor q, ag_tensor k, ag_tensor v, ag_err *err)
{
    const int64_t T = q.dim[0], H = q.dim[1], D = q.dim[2], S = k.dim[0], G = k.dim[1];
    if (!ag_tensor_is_cube(q, T, H, D) || T < 0 || H < 1 || D < 1)
        return ag_fail(err, AG_E_SHAPE, "attention: q must be a [T,H,D] f32 tensor");
    if (!ag_tensor_is_cube(k, S, G, D) || S < 0 || G < 1)
        return ag_fail(err, AG_E_SHAPE, "attention: k must be a [S,G,D] f32 tensor with the head dim %lld of q", (long long)D);
    if (!ag_tensor_is_cube(v, S, G, D)) return ag_fail(err, AG_E_SHAPE, "attention: v must have the shape of k");
    if (H % G)
        return ag_fail(err, AG_E_SHAPE, "attention: %lld query heads do not divide into %lld key/value heads", (long long)H, (long long)G);
    return AG_OK;
}

static ag_status check_spans(const ag_attention_span *spans, int64_t n, int64_t T, int64_t S, bool keys_apart, int64_t *longest, ag_err *err)
{
    int64_t q_end = 0, kv_end = 0;
    *longest = 0;
    for (int64_t i = 0; i < n; i++) {
        const ag_attention_span s = spans[i];
        if (s.q0 < q_end || s.n_q < 1 || s.n_q > T - s.q0)
            return ag_fail(err, AG_E_SHAPE, "attention: span %lld has queries %lld+%lld; they must lie after row %lld and before row %lld",
                           (long long)i, (long long)s.q0, (long long)s.n_q, (long long)q_end - 1, (long long)T);
        if (s.kv0 < (keys_apart ? kv_end : 0) || s.n_kv < s.n_q || s.n_kv > S - s.kv0)
            return ag_fail(err, AG_E_SHAPE, "attention: span %lld has keys %lld+%lld for %lld queries; keys must be as many at least, "
                           "lie inside %lld rows and, for gradients, after those of the span before", (long long)i, (long long)s.kv0,
                           (long long)s.n_kv, (long long)s.n_q, (long long)S);
        q_end = s.q0 + s.n_q;
        kv_end = s.kv0 + s.n_kv;
        if (s.n_kv > *longest) *longest = s.n_kv;
    }
    return AG_OK;
}

/* Rows of t ([T] rows of `width` floats) that are in no span; data NULL: nothing. */
static void zero_gaps(ag_tensor t, const ag_attention_span *spans, int64_t n_spans, int64_t width)
{
    if (!t.data) return;
    for (int64_t i = 0, row = 0; i <= n_spans; i++) {
        const int64_t next = i < n_spans ? spans[i].q0 : t.dim[0];
        memset((float *)t.data + row * width, 0, (size_t)((next - row) * width) * sizeof(float));
        if (i < n_spans) row = next + spans[i].n_q;
    }
}

/* Completes a call whose shapes were checked. */
static call call_begin(const ag_backend *be, ag_compute compute, int64_t T, int64_t longest, ag_tensor q, ag_tensor k, const ag_attention_span *spans,
                       int64_t n_spans, int64_t window)
{
    call c = call_of(be, compute, T, longest, q.dim[1], k.dim[1], q.dim[2]);
    AG_ASSERT(be->scratch.bytes >= scratch_bytes(be, &c));
    c.spans = spans;
    c.n_spans = n_spans;
    c.window = window;
    c.parts = (float *)(void *)(c.workers + (size_t)be->n_threads * c.worker_bytes);
    return c;
}

static void *worker_scratch(const call *c) { return c->workers + (size_t)omp_get_thread_num() * c->worker_bytes; }

/* Spans [i, end) whose parts fit into the scratch together. */
static int64_t wave_end(const call *c, int64_t i, int64_t (*floats)(const call *, const ag_attention_span *))
{
    int64_t used = floats(c, &c->spans[i]);
    for (i++; i < c->n_spans && (used += floats(c, &c->spans[i])) <= c->parts_floats; i++) continue;
    return i;
}

/* Item i of those that the spans from `at` on have together: which span, and which of its own. *parts grows by what the spans
 * before it take. */
static int64_t locate(const call *c, int64_t *at, int64_t i, float **parts, int64_t (*count)(const call *, const ag_attention_span *),
                      int64_t (*floats)(const call *, const ag_attention_span *))
{
    *parts = c->parts;
    for (int64_t n; i >= (n = count(c, &c->spans[*at])); i -= n) *parts += floats(c, &c->spans[(*at)++]);
    return i;
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

static int64_t forward_units(const call *c, const ag_attention_span *s)
{
    const int64_t n = splits(c, s);
    return n > 1 ? n : c->whole ? c->G : ceil_div(s->n_q, c->block) * c->G;
}

static void forward_unit(const call *c, const ag_attention_fwd_args *a, int64_t at, int64_t i)
{
    float *parts;
    i = locate(c, &at, i, &parts, forward_units, forward_floats);
    const ag_attention_span *s = &c->spans[at];
    ag_attention_unit u = {.span = s, .t1 = s->n_q, .j1 = s->n_kv};
    if (splits(c, s) > 1) { /* the heads of a split one after the other: their keys are neighbours in memory */
        const int64_t first = ag_attention_keys_first(s, c->window, 0), n = split_keys(s->n_kv - first);
        u.part = parts + i * s->n_q * c->H * (c->D + 2);
        u.j0 = first + i * n;
        u.j1 = min_of(u.j0 + n, s->n_kv);
        for (u.g = 0; u.g < c->G; u.g++) c->split->fwd(a, &u, worker_scratch(c));
        return;
    }
    if (!c->whole) { /* the last block sees most keys: begin with it */
        u.t0 = (ceil_div(s->n_q, c->block) - 1 - i / c->G) * c->block;
        u.t1 = min_of(u.t0 + c->block, s->n_q);
    }
    u.g = i % c->G;
    c->kernels->fwd(a, &u, worker_scratch(c));
}

static int64_t forward_joins(const call *c, const ag_attention_span *s) { return splits(c, s) > 1 ? s->n_q * c->H : 0; }

/* Adds up what the splits left of one query row: each relative to its own maximum. */
static void forward_join(const call *c, const ag_attention_fwd_args *a, int64_t at, int64_t i)
{
    float *parts;
    i = locate(c, &at, i, &parts, forward_joins, forward_floats);
    const ag_attention_span *s = &c->spans[at];
    const int64_t D = c->D, n = splits(c, s), next = s->n_q * c->H * (D + 2);
    const float *part = parts + i * (D + 2);
    float *o = (float *)a->o.data + (s->q0 * c->H + i) * D, max = part[D], sum = 0;
    for (int64_t k = 1; k < n; k++) max = fmaxf(max, part[k * next + D]);
    for (int64_t d = 0; d < D; d++) o[d] = 0;
    for (int64_t k = 0; k < n; k++) {
        const float factor = expf(part[k * next + D] - max);
        sum += factor * part[k * next + D + 1];
        for (int64_t d = 0; d < D; d++) o[d] += factor * part[k * next + d];
    }
    for (int64_t d = 0; d < D; d++) o[d] /= sum;
    if (a->lse.data) ((float *)a->lse.data)[s->q0 * c->H + i] = max + logf(sum);
}

/* Pairs of query and key that see each other. */
static double pairs_of(const ag_attention_span *spans, int64_t n_spans, int64_t window)
{
    double sum = 0;
    for (int64_t i = 0; i < n_spans; i++) {
        const double n_q = (double)spans[i].n_q, n_kv = (double)spans[i].n_kv, w = (double)window;
        double pairs = n_q * n_kv - n_q * (n_q - 1) / 2; /* query i sees n_kv - n_q + 1 + i keys */
        const double first = n_kv - n_q + 1;
        if (window > 0 && n_kv > w) { /* those of the last queries, or of all, that see more than the window */
            const double over = first > w ? n_q : n_kv - w, smallest = first > w ? first - w : 1;
            pairs -= over * smallest + over * (over - 1) / 2;
        }
        sum += pairs;
    }
    return sum;
}

ag_status ag_attention_fwd(const ag_backend *be, const ag_attention_fwd_args *a, ag_err *err)
{
    const int64_t T = a->q.dim[0], H = a->q.dim[1], D = a->q.dim[2];
    int64_t longest;
    AG_TRY(check_tensors(a->q, a->k, a->v, err));
    if (!ag_tensor_is_cube(a->o, T, H, D)) return ag_fail(err, AG_E_SHAPE, "attention: o must have the shape of q");
    if (a->lse.data && !ag_tensor_is(a->lse, AG_F32, 2, T, H)) return ag_fail(err, AG_E_SHAPE, "attention: lse must be [T,H] f32");
    AG_TRY(check_spans(a->spans, a->n_spans, T, a->k.dim[0], false, &longest, err));
    AG_PROFILE(be, AG_PROFILE_ATTENTION_FWD, 4.0 * (double)(H * D) * pairs_of(a->spans, a->n_spans, a->window),
               8.0 * (double)(T * H * D + a->k.dim[0] * a->k.dim[1] * D));
    zero_gaps(a->o, a->spans, a->n_spans, H * D);
    zero_gaps(a->lse, a->spans, a->n_spans, H);
    call c = call_begin(be, a->compute, T, longest, a->q, a->k, a->spans, a->n_spans, a->window);
    /* Splits multiply in f32. Where lse is for a backward of rounded products, forward must be of the same. */
    c.no_splits = a->lse.data && c.kernels->fwd != c.split->fwd;
    for (int64_t at = 0, end; at < c.n_spans; at = end) {
        end = wave_end(&c, at, forward_floats);
        int64_t n_units = 0, n_joins = 0;
        for (int64_t i = at; i < end; i++) {
            n_units += forward_units(&c, &c.spans[i]);
            n_joins += forward_joins(&c, &c.spans[i]);
        }
#pragma omp parallel num_threads(be->n_threads)
        {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < n_units; i++) forward_unit(&c, a, at, i);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < n_joins; i++) forward_join(&c, a, at, i);
        }
    }
    return AG_OK;
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

static int64_t backward_span_floats(const call *c, const ag_attention_span *s) { return backward_floats(c, s->n_q, s->n_kv); }
static int64_t backward_units(const call *c, const ag_attention_span *s) { return ceil_div(s->n_q, chunk_tokens(c, s->n_q)) * c->G; }

/* dk, and dv behind it, that chunk i of the span's queries leaves for head g: [keys it may see][D] each. */
static float *chunk_part(const call *c, const ag_attention_span *s, float *parts, int64_t i, int64_t g)
{
    const int64_t chunk = chunk_tokens(c, s->n_q), before = i * (s->n_kv - s->n_q) + chunk * i * (i + 1) / 2;
    return parts + 2 * c->D * (c->G * before + g * (s->n_kv - s->n_q + (i + 1) * chunk));
}

static void backward_unit(const call *c, const ag_attention_bwd_args *a, int64_t at, int64_t i)
{
    float *parts;
    i = locate(c, &at, i, &parts, backward_units, backward_span_floats);
    const ag_attention_span *s = &c->spans[at];
    const int64_t chunk = chunk_tokens(c, s->n_q), n = ceil_div(s->n_q, chunk), which = n - 1 - i / c->G, D = c->D;
    const ag_attention_unit u = {.span = s, .g = i % c->G, .t0 = which * chunk, .t1 = min_of((which + 1) * chunk, s->n_q)};
    if (which == n - 1) {
        const int64_t first = (s->kv0 * c->G + u.g) * D;
        c->kernels->bwd(a, &u, (float *)a->dk.data + first, (float *)a->dv.data + first, c->G * D, worker_scratch(c));
        return;
    }
    const int64_t end = ag_attention_keys_end(s, u.t1 - 1);
    float *part = chunk_part(c, s, parts, which, u.g);
    memset(part, 0, (size_t)(2 * end * D) * sizeof *part);
    c->kernels->bwd(a, &u, part, part + end * D, D, worker_scratch(c));
}

static int64_t backward_joins(const call *c, const ag_attention_span *s)
{
    return s->n_q > chunk_tokens(c, s->n_q) ? ceil_div(s->n_kv, SPLIT_KEYS) * c->G : 0;
}

/* Adds what the chunks left to dk and dv of SPLIT_KEYS keys of a head, chunk by chunk. */
static void backward_join(const call *c, const ag_attention_bwd_args *a, int64_t at, int64_t i)
{
    float *parts;
    i = locate(c, &at, i, &parts, backward_joins, backward_span_floats);
    const ag_attention_span *s = &c->spans[at];
    const int64_t chunk = chunk_tokens(c, s->n_q), n = ceil_div(s->n_q, chunk), g = i % c->G, j0 = i / c->G * SPLIT_KEYS, D = c->D;
    for (int64_t which = 0; which < n - 1; which++) {
        const int64_t end = ag_attention_keys_end(s, (which + 1) * chunk - 1);
        const float *dk = chunk_part(c, s, parts, which, g), *dv = dk + end * D;
        for (int64_t j = j0; j < min_of(j0 + SPLIT_KEYS, end); j++) {
            float *to_k = (float *)a->dk.data + ((s->kv0 + j) * c->G + g) * D, *to_v = (float *)a->dv.data + ((s->kv0 + j) * c->G + g) * D;
            for (int64_t d = 0; d < D; d++) to_k[d] += dk[j * D + d];
            for (int64_t d = 0; d < D; d++) to_v[d] += dv[j * D + d];
        }
    }
}

ag_status ag_attention_bwd(const ag_backend *be, const ag_attention_bwd_args *a, ag_err *err)
{
    const int64_t T = a->q.dim[0], H = a->q.dim[1], D = a->q.dim[2], S = a->k.dim[0], G = a->k.dim[1];
    int64_t longest;
    AG_TRY(check_tensors(a->q, a->k, a->v, err));
    if (!ag_tensor_is_cube(a->o, T, H, D) || !ag_tensor_is_cube(a->d_o, T, H, D) || !ag_tensor_is_cube(a->dq, T, H, D))
        return ag_fail(err, AG_E_SHAPE, "attention: o, d_o and dq must have the shape of q");
    if (!ag_tensor_is_cube(a->dk, S, G, D) || !ag_tensor_is_cube(a->dv, S, G, D))
        return ag_fail(err, AG_E_SHAPE, "attention: dk and dv must have the shape of k");
    if (!ag_tensor_is(a->lse, AG_F32, 2, T, H)) return ag_fail(err, AG_E_SHAPE, "attention: lse must be [T,H] f32");
    AG_TRY(check_spans(a->spans, a->n_spans, T, S, true, &longest, err));
    AG_PROFILE(be, AG_PROFILE_ATTENTION_BWD, 10.0 * (double)(H * D) * pairs_of(a->spans, a->n_spans, a->window),
               16.0 * (double)(T * H * D + S * G * D));
    zero_gaps(a->dq, a->spans, a->n_spans, H * D);
    memset(a->dk.data, 0, (size_t)(S * G * D) * sizeof(float));
    memset(a->dv.data, 0, (size_t)(S * G * D) * sizeof(float));
    const call c = call_begin(be, a->compute, T, longest, a->q, a->k, a->spans, a->n_spans, a->window);
    for (int64_t at = 0, end; at < c.n_spans; at = end) {
        end = wave_end(&c, at, backward_span_floats);
        int64_t n_units = 0, n_joins = 0;
        for (int64_t i = at; i < end; i++) {
            n_units += backward_units(&c, &c.spans[i]);
            n_joins += backward_joins(&c, &c.spans[i]);
        }
#pragma omp parallel num_threads(be->n_threads)
        {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < n_units; i++) backward_unit(&c, a, at, i);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < n_joins; i++) backward_join(&c, a, at, i);
        }
    }
    return AG_OK;
}
