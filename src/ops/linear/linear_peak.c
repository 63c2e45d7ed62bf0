#include "ops/linear/linear_peak.h"

#include "base/arena.h"
#include "base/clock.h"
#include "ops/backend.h"

enum { SIZE = 2048, MAX_RUNS = 16 };
static const uint64_t BUDGET_NS = 1000000000u;

static void fill(float *x, int64_t n)
{
    uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
}

ag_status ag_linear_peak(double *gflops, const ag_backend *be, ag_compute compute, ag_err *err)
{
    const size_t n = (size_t)SIZE * SIZE, scratch = ag_linear_scratch_bytes(be, SIZE, SIZE, SIZE);
    const size_t bytes = 3 * n * sizeof(float) + scratch;
    void *block;
    AG_TRY(ag_pages_alloc(&block, bytes, "the matrix product's yardstick", err));
    float *x = block, *w = x + n, *y = w + n;
    fill(x, (int64_t)n);
    fill(w, (int64_t)n);
    ag_backend own = *be;
    own.scratch.data = y + n;
    own.scratch.bytes = scratch;
    const ag_weight weight = {.type = AG_W_F32, .N = SIZE, .K = SIZE, .data = w};
    const ag_linear_fwd_args args = {.y = {ag_mat_f32(y, SIZE, SIZE)}, .w = {&weight}, .n = 1, .scale = 1,
                                     .x = ag_mat_f32(x, SIZE, SIZE), .compute = compute};
    ag_status status = AG_OK;
    uint64_t best = UINT64_MAX;
    const uint64_t begin = ag_clock_ns();
    for (int run = 0; run < MAX_RUNS && !status && (run < 2 || ag_clock_ns() - begin < BUDGET_NS); run++) {
        const uint64_t start = ag_clock_ns();
        status = ag_linear_fwd(&own, &args, err);
        const uint64_t took = ag_clock_ns() - start;
        if (took < best) best = took;
    }
    if (!status) *gflops = 2.0 * SIZE * SIZE * SIZE / (double)best;
    ag_pages_free(block, bytes);
    return status;
}
