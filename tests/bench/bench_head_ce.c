/* Time and scratch of the head with its loss, 512 rows, at the sizes of real models: the products alone (forward, dX), then the op
 * forward only, then with backward. What an op with recomputation would cost is once more the forward product.
 *
 *     bench_head_ce [level [threads]]           both default to the best there is */
#include "base/clock.h"
#include "ops/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 512, RUNS = 3 };

static void must(ag_status s, const ag_err *err)
{
    if (s) fprintf(stderr, "%s\n", err->text), exit(1);
}

static void *bytes_of(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) & ~(size_t)63);
    if (!p) exit(1);
    return p;
}

static float *floats(int64_t n)
{
    float *p = bytes_of((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = (float)((i * 2654435761u >> 8 & 0xffff) / 65536.0 - 0.5);
    return p;
}

static void bench(ag_backend *be, int64_t C, int64_t V, ag_compute compute)
{
    enum { IDS = 2048 }; /* the products' block */
    ag_err err;
    float *x = floats(M * C), *dx = floats(M * C), *nll = floats(M), *logits = floats(M * IDS), *row = floats(C);
    int32_t *targets = bytes_of(M * sizeof *targets);
    uint16_t *w = bytes_of((size_t)(V * C) * sizeof *w);
    for (int64_t v = 0; v < V; v++) {
        for (int64_t c = 0; c < C; c++) row[c] = (float)(((v * C + c) * 2654435761u >> 8 & 0xffff) / 65536.0 - 0.5) * 0.1f;
        must(ag_weight_quantize_row(w + v * C, AG_W_BF16, row, C, &err), &err);
    }
    for (int64_t m = 0; m < M; m++) targets[m] = (int32_t)(m * 7919 % V);
    const ag_weight weight = {.type = AG_W_BF16, .N = V, .K = C, .data = w};
    const size_t scratch = ag_head_ce_scratch_bytes(be, M, C, V), for_products = ag_linear_scratch_bytes(be, M, C, IDS);
    be->scratch.bytes = scratch > for_products ? scratch : for_products;
    be->scratch.data = bytes_of(be->scratch.bytes);
    double best[4] = {1e30, 1e30, 1e30, 1e30};
    for (int run = 0; run < RUNS; run++) {
        uint64_t t[5] = {ag_clock_ns()};
        for (int64_t v = 0; v < V; v += IDS) {
            const ag_weight part = ag_weight_rows(&weight, v, v + IDS < V ? v + IDS : V);
            must(ag_linear_fwd(be, &(ag_linear_fwd_args){.y = {ag_mat_f32(logits, M, part.N)}, .w = {&part}, .n = 1, .scale = 1,
                .x = ag_mat_f32(x, M, C), .compute = compute}, &err), &err);
        }
        t[1] = ag_clock_ns();
        for (int64_t v = 0; v < V; v += IDS) {
            const ag_weight part = ag_weight_rows(&weight, v, v + IDS < V ? v + IDS : V);
            must(ag_linear_bwd(be, &(ag_linear_bwd_args){.dx = ag_mat_f32(dx, M, C), .dy = {ag_mat_f32(logits, M, part.N)},
                .w = {&part}, .n = 1, .accumulate = true, .scale = 1, .compute = compute}, &err), &err);
        }
        t[2] = ag_clock_ns();
        ag_head_ce_args a = {.nll = ag_vec_f32(nll, M), .x = ag_mat_f32(x, M, C), .targets = ag_vec_i32(targets, M), .w = &weight,
                             .logit_scale = 1, .dloss = 1.0f / M, .compute = compute};
        must(ag_head_ce(be, &a, &err), &err);
        t[3] = ag_clock_ns();
        a.dx = ag_mat_f32(dx, M, C);
        must(ag_head_ce(be, &a, &err), &err);
        t[4] = ag_clock_ns();
        for (int i = 0; i < 4; i++)
            if ((double)(t[i + 1] - t[i]) < best[i]) best[i] = (double)(t[i + 1] - t[i]);
    }
    const double products = best[0] + best[1], flop = 4.0 * M * (double)C * (double)V;
    printf("C %5lld V %6lld %-4s  products %6.1f + %6.1f ms (%5.0f GFLOP/s)   forward %6.1f ms   whole %6.1f ms (%5.0f GFLOP/s), %.2f of "
           "the products; recomputing would be %.2f   scratch %.1f MiB\n", (long long)C, (long long)V, compute ? "bf16" : "f32",
           best[0] * 1e-6, best[1] * 1e-6, flop / products, best[2] * 1e-6, best[3] * 1e-6, flop / best[3], best[3] / products,
           (best[3] + best[0]) / products, (double)scratch / 1048576);
    void *all[] = {x, dx, nll, logits, row, targets, w, be->scratch.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

int main(int argc, char **argv)
{
    ag_err err;
    ag_backend be;
    ag_cpu_level level = ag_cpu_best_level();
    if (argc > 1) must(ag_cpu_level_parse(&level, argv[1], &err), &err);
    must(ag_backend_init_cpu(&be, level, argc > 2 ? atoi(argv[2]) : ag_physical_cores(), &err), &err);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s, %s, %d threads, %d rows, bf16 weights\n", ag_cpu_name(), ag_cpu_level_name(level), be.n_threads, M);
    for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++) {
        bench(&be, 576, 49152, (ag_compute)compute);
        bench(&be, 1536, 130560 / 4, (ag_compute)compute); /* a quarter of the ids: all blocks cost the same */
    }
    return 0;
}
