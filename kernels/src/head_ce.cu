/* Output head and cross-entropy, forward and backward, 256 rows at a time: their logits (f32) and the gradient of the logits
 * (bf16) are all that is ever in memory, not T×V.
 *
 *     logits = logit_scale·x·Wᵀ      nll[m] = log Σ_v e^logit - logit[target]
 *     dx[m] = dloss·logit_scale·Σ_v (softmax[v] - [v = target])·W[v]
 * The target's own softmax - 1 is taken as -(Σ others / Σ all), which does not cancel where the model is sure. */
#include "device.h"
#include "lab.h"

enum { THREADS = 512 };
static const int64_t ROWS = 256;

/* A maximum so far, the sum of e^(x - maximum) without the target, and the first place of the maximum. */
typedef struct {
    float most, others;
    int best;
} running;

BKL_FN running join(running a, running b)
{
    const bool b_leads = b.most > a.most || (b.most == a.most && b.best < a.best);
    const float most = b.most > a.most ? b.most : a.most;
    running r;
    r.most = most, r.best = b_leads ? b.best : a.best;
    r.others =
        (a.most == -INFINITY ? 0 : a.others * expf(a.most - most)) + (b.most == -INFINITY ? 0 : b.others * expf(b.most - most));
    return r;
}

__global__ void __launch_bounds__(THREADS)
    cross_entropy_kernel(const float *logits, bf16 *dlogits, float *nll, int32_t *best, const int32_t *targets, int64_t V)
{
    BKL_SHARED(float, mosts, [THREADS / WARP]);
    BKL_SHARED(float, sums, [THREADS / WARP]);
    BKL_SHARED(int, bests, [THREADS / WARP]);
    const float *const row = logits + (int64_t)blockIdx.x * V;
    const int target = targets[blockIdx.x], lane = (int)threadIdx.x % WARP;
    running r = {-INFINITY, 0, INT32_MAX};
    for (int v = (int)threadIdx.x; v < V; v += THREADS) {
        const float x = row[v];
        if (x > r.most) r.others = r.most == -INFINITY ? 0 : r.others * expf(r.most - x), r.most = x, r.best = v;
        if (v != target) r.others += expf(x - r.most);
    }
    for (int lanes = WARP / 2; lanes; lanes /= 2) {
        running other;
        other.most = shuffle_xor(r.most, lanes), other.others = shuffle_xor(r.others, lanes),
        other.best = shuffle_xor(r.best, lanes);
        r = lane & lanes ? join(other, r) : join(r, other);
    }
    if (lane == 0) mosts[threadIdx.x / WARP] = r.most, sums[threadIdx.x / WARP] = r.others, bests[threadIdx.x / WARP] = r.best;
    __syncthreads();
    r.most = mosts[0], r.others = sums[0], r.best = bests[0];
    for (int w = 1; w < THREADS / WARP; w++) {
        running other;
        other.most = mosts[w], other.others = sums[w], other.best = bests[w];
        r = join(r, other);
    }
    const float own = expf(row[target] - r.most), total = r.others + own;
    if (threadIdx.x == 0) {
        nll[blockIdx.x] = logf(total) + r.most - row[target];
        if (best) best[blockIdx.x] = r.best;
    }
    if (!dlogits) return;
    const float by = 1 / total;
    for (int v = 2 * (int)threadIdx.x; v < V; v += 2 * THREADS) {
        const float low = v == target ? -(r.others * by) : expf(row[v] - r.most) * by;
        const float high = v + 1 == target ? -(r.others * by) : expf(row[v + 1] - r.most) * by;
        store4(dlogits + (int64_t)blockIdx.x * V + v, bf16_pair(low, high));
    }
}

static bkl_gemm_args logits_gemm(const bkl_head_ce_args *a, int64_t row, int64_t n, float *logits)
{
    bkl_gemm_args gemm = {};
    gemm.y = logits, gemm.a = a->x + row * a->C, gemm.b = a->w, gemm.M = n, gemm.N = a->V, gemm.K = a->C;
    gemm.y_pitch = a->V, gemm.a_pitch = gemm.b_pitch = a->C, gemm.scale = a->logit_scale, gemm.y_is_f32 = true;
    return gemm;
}

static bkl_gemm_args dx_gemm(const bkl_head_ce_args *a, int64_t row, int64_t n, const bf16 *dlogits)
{
    bkl_gemm_args gemm = {};
    gemm.y = a->dx + row * a->C, gemm.a = dlogits, gemm.b = a->w, gemm.M = n, gemm.N = a->C, gemm.K = a->V;
    gemm.y_pitch = gemm.b_pitch = a->C, gemm.a_pitch = a->V, gemm.scale = a->dloss * a->logit_scale, gemm.b_is_kn = true;
    return gemm;
}

static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* logits | dlogits | what the two GEMMs need */
size_t bkl_head_ce_workspace(const bkl_head_ce_args *a)
{
    if (a->M <= 0 || a->C <= 0 || a->V <= 0) return 0;
    const int64_t n = a->M < ROWS ? a->M : ROWS;
    const bkl_gemm_args forward = logits_gemm(a, 0, n, nullptr), backward = dx_gemm(a, 0, n, nullptr);
    size_t gemm = bkl_gemm_workspace(&forward);
    if (a->dx && bkl_gemm_workspace(&backward) > gemm) gemm = bkl_gemm_workspace(&backward);
    return aligned((size_t)(n * a->V) * sizeof(float)) + (a->dx ? aligned((size_t)(n * a->V) * sizeof(bf16)) : 0) + gemm;
}

bkl_status bkl_head_ce(bkl_stream *stream, const bkl_head_ce_args *a, void *workspace, size_t workspace_bytes)
{
    BKL_EXPECT(stream, a->M > 0 && a->C > 0 && a->V > 0 && a->V < INT32_MAX && a->C % 8 == 0 && a->V % 8 == 0,
               "head_ce: M = %lld, C = %lld, V = %lld; C and V multiples of 8", (long long)a->M, (long long)a->C,
               (long long)a->V);
    BKL_NEED_WORKSPACE(stream, head_ce, a, workspace_bytes);
    const int64_t at_once = a->M < ROWS ? a->M : ROWS;
    unsigned char *const base = (unsigned char *)workspace;
    float *const logits = (float *)base;
    const size_t logits_bytes = aligned((size_t)(at_once * a->V) * sizeof(float)),
                 dlogits_bytes = aligned((size_t)(at_once * a->V) * sizeof(bf16));
    bf16 *const dlogits = a->dx ? (bf16 *)(base + logits_bytes) : nullptr;
    unsigned char *const rest = base + logits_bytes + (a->dx ? dlogits_bytes : 0);
    const size_t rest_bytes = workspace_bytes - (size_t)(rest - base);
    for (int64_t row = 0; row < a->M; row += ROWS) {
        const int64_t n = a->M - row < ROWS ? a->M - row : ROWS;
        const bkl_gemm_args forward = logits_gemm(a, row, n, logits);
        BKL_TRY(bkl_gemm(stream, &forward, rest, rest_bytes));
        BKL_TRY(BKL_LAUNCH(stream, cross_entropy_kernel, (unsigned)n, THREADS, 0, (const float *)logits, dlogits, a->nll + row,
                           a->best ? a->best + row : nullptr, a->targets + row, a->V));
        if (!a->dx) continue;
        const bkl_gemm_args backward = dx_gemm(a, row, n, dlogits);
        BKL_TRY(bkl_gemm(stream, &backward, rest, rest_bytes));
    }
    return BKL_OK;
}
