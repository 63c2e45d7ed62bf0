/* The next token of each row of logits, as agoge's CPU sampler chooses it: repetition penalty, temperature, top-k, top-p,
 * min-p, one draw. One block a row, without sorting: "the candidate, from the largest logit on and the lowest id of equals, at
 * which a sum passes a target" is found byte by byte of the logit's bits, over 256 bins of a histogram.
 *
 * Weights e^(logit - largest) are counted in units of 2^-40, as integers, so that no order of additions matters. */
#include "device.h"
#include "lab.h"

enum { THREADS = 1024, BINS = 256 };

/* Bits that are ordered as the numbers are. */
BKL_FN uint32_t key_of(float x)
{
    const uint32_t u = __float_as_uint(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
BKL_FN float value_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

typedef struct {
    const float *logits;
    const int32_t *marks;   /* 1 where the id was seen */
    float penalty, inverse; /* 1/temperature */
    int V;
    float most;             /* the largest, scaled */
} row_view;

BKL_FN float scaled(const row_view *r, int v)
{
    float x = r->logits[v];
    if (r->marks && r->marks[v]) x = x > 0 ? x / r->penalty : x * r->penalty;
    return x * r->inverse;
}
BKL_FN uint64_t weight_of(const row_view *r, float x) { return (uint64_t)(expf(x - r->most) * 1099511627776.0f); }

/* The candidates that are left: keys above `key`, and the first `ties` ids of those with this key. */
typedef struct {
    uint32_t key;
    uint32_t ties;
} boundary;

typedef struct {
    uint64_t *bins;  /* [BINS] shared */
    uint64_t *found; /* [3] shared: the bin, what came before it, the sum of all */
} histogram;

/* A candidate's share: 1 each for counts, its weight else. */
BKL_FN uint64_t share_of(const row_view *r, float x, bool by_count) { return by_count ? 1 : weight_of(r, x); }

/* Sum of the shares of all that are left. */
BKL_FN uint64_t sum_of(const row_view *r, boundary left, bool by_count, const histogram *h)
{
    __syncthreads();
    if (threadIdx.x == 0) h->bins[0] = left.ties ? left.ties * share_of(r, value_of(left.key), by_count) : 0;
    __syncthreads();
    uint64_t own = 0;
    for (int v = (int)threadIdx.x; v < r->V; v += THREADS) {
        const float x = scaled(r, v);
        if (key_of(x) > left.key) own += share_of(r, x, by_count);
    }
    atomic_add(&h->bins[0], own);
    __syncthreads();
    return h->bins[0];
}

/* The candidate at which the sum of shares, from the largest on, passes `target` (is greater than it): its key, and in ties how
 * many of that key are passed, itself included. The target is below the sum of what is left. */
BKL_FN boundary pass(const row_view *r, boundary left, uint64_t target, bool by_count, const histogram *h)
{
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < BINS) h->bins[threadIdx.x] = 0;
        __syncthreads();
        const uint32_t above = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
        for (int v = (int)threadIdx.x; v < r->V; v += THREADS) {
            const float x = scaled(r, v);
            const uint32_t key = key_of(x);
            if (key > left.key && (key & above) == prefix) atomic_add(&h->bins[key >> shift & 255], share_of(r, x, by_count));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            if (left.ties && (left.key & above) == prefix)
                h->bins[left.key >> shift & 255] += left.ties * share_of(r, value_of(left.key), by_count);
            uint64_t before = 0;
            int bin = BINS - 1;
            while (bin > 0 && before + h->bins[bin] <= target) before += h->bins[bin--];
            h->found[0] = (uint64_t)bin, h->found[1] = before;
        }
        __syncthreads();
        prefix |= (uint32_t)h->found[0] << shift, target -= h->found[1];
    }
    const uint64_t each = share_of(r, value_of(prefix), by_count);
    return {prefix, (uint32_t)(each ? target / each : 0) + 1};
}

/* The id of the `nth` (from 1) candidate with this key, in the order of ids. */
BKL_FN int nth_of_key(const row_view *r, uint32_t key, uint32_t nth, uint32_t *counts, int *answer)
{
    __syncthreads();
    uint32_t before = 0;
    for (int v0 = 0; v0 < r->V; v0 += THREADS) {
        const int v = v0 + (int)threadIdx.x;
        const bool is = v < r->V && key_of(scaled(r, v)) == key;
        const uint32_t lanes = vote_ballot(is), lane = threadIdx.x % WARP;
        if (lane == 0) counts[threadIdx.x / WARP] = (uint32_t)bits_set(lanes);
        __syncthreads();
        uint32_t rank = before, all = before;
        for (unsigned w = 0; w < THREADS / WARP; w++) {
            if (w < threadIdx.x / WARP) rank += counts[w];
            all += counts[w];
        }
        rank += (uint32_t)bits_set(lanes & ((1u << lane) - 1));
        if (is && rank + 1 == nth) *answer = v;
        before = all;
        __syncthreads();
        if (before >= nth) break; /* the same for all */
    }
    return *answer;
}

__global__ void __launch_bounds__(THREADS) mark_kernel(bkl_sample_args a, int32_t *marks)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (i >= a.n_seen) return;
    const int32_t id = a.seen[row * a.n_seen + i];
    if (id >= 0 && id < a.V) atomic_max(&marks[row * a.V + id], 1);
}

__global__ void __launch_bounds__(THREADS, 1) sample_kernel(bkl_sample_args a, const int32_t *marks)
{
    BKL_SHARED(uint64_t, bins, [BINS]);
    BKL_SHARED(uint64_t, found, [3]);
    BKL_SHARED(float, partial, [WARP]);
    BKL_SHARED(uint32_t, counts, [WARP]);
    BKL_SHARED(int, answer, [1]);
    const histogram h = {bins, found};
    row_view r = {a.logits + (int64_t)blockIdx.x * a.V, marks ? marks + (int64_t)blockIdx.x * a.V : nullptr, a.repeat_penalty,
                  a.temperature > 0 ? 1 / a.temperature : 1.0f, (int)a.V, 0};
    float most = -INFINITY;
    for (int v = (int)threadIdx.x; v < r.V; v += THREADS) most = fmaxf(most, scaled(&r, v));
    r.most = block_max(most, partial);
    if (a.temperature == 0) {
        const int best = nth_of_key(&r, key_of(r.most), 1, counts, answer);
        if (threadIdx.x == 0) a.out[blockIdx.x] = best;
        return;
    }
    boundary left = {0, 0}; /* all: no number's key is 0 */
    if (a.top_k > 0 && a.top_k < a.V) left = pass(&r, left, (uint64_t)a.top_k - 1, true, &h);
    if (a.top_p < 1) {
        const double target =
            ceil((double)a.top_p * (double)sum_of(&r, left, false, &h)); /* reached, where pass() is after passing */
        left = pass(&r, left, target > 1 ? (uint64_t)target - 1 : 0, false, &h);
    }
    if (a.min_p > 0) {
        /* The first key whose weight is below min_p: halve the range of keys, since weights grow with them. */
        uint32_t low = 0, high = key_of(r.most); /* high is kept */
        while (high - low > 1) {
            const uint32_t middle = low + (high - low) / 2;
            if (expf(value_of(middle) - r.most) >= a.min_p)
                high = middle;
            else
                low = middle;
        }
        if (high > left.key) left = {high - 1, 0};
    }
    const uint64_t sum = sum_of(&r, left, false, &h);
    uint64_t target = (uint64_t)(a.uniform[blockIdx.x] * (double)sum);
    if (target >= sum) target = sum - 1;
    const boundary chosen = pass(&r, left, target, false, &h);
    const int id = nth_of_key(&r, chosen.key, chosen.ties, counts, answer);
    if (threadIdx.x == 0) a.out[blockIdx.x] = id;
}

size_t bkl_sample_workspace(const bkl_sample_args *a)
{
    return a->repeat_penalty != 1 && a->n_seen > 0 && a->n_rows > 0 && a->V > 0 ? (size_t)(a->n_rows * a->V) * sizeof(int32_t)
                                                                                : 0;
}

bkl_status bkl_sample(bkl_stream *stream, const bkl_sample_args *a, void *workspace, size_t workspace_bytes)
{
    BKL_EXPECT(stream, a->n_rows > 0 && a->n_rows < 65536 && a->V > 0 && a->V < INT32_MAX && a->n_seen >= 0,
               "sample: %lld rows of %lld logits, %lld ids seen", (long long)a->n_rows, (long long)a->V, (long long)a->n_seen);
    BKL_EXPECT(stream,
               a->temperature >= 0 && a->top_k >= 0 && a->top_p > 0 && a->top_p <= 1 && a->min_p >= 0 && a->min_p <= 1 &&
                   a->repeat_penalty > 0,
               "sample: temperature %g, top-k %lld, top-p %g, min-p %g, repeat-penalty %g", (double)a->temperature,
               (long long)a->top_k, (double)a->top_p, (double)a->min_p, (double)a->repeat_penalty);
    BKL_NEED_WORKSPACE(stream, sample, a, workspace_bytes);
    const bool marks = bkl_sample_workspace(a) > 0;
    if (marks) {
        BKL_TRY(bkl_fill(stream, workspace, 0, bkl_sample_workspace(a)));
        const dim3 grid((unsigned)ceil_div(a->n_seen, THREADS), (unsigned)a->n_rows);
        BKL_TRY(BKL_LAUNCH(stream, mark_kernel, grid, THREADS, 0, *a, (int32_t *)workspace));
    }
    return BKL_LAUNCH(stream, sample_kernel, (unsigned)a->n_rows, THREADS, 0, *a, marks ? (const int32_t *)workspace : nullptr);
}
