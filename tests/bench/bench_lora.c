/* Time of LoRA forward and backward over the seven projections of one layer, 512 tokens, rank 16, beside the frozen linear layers
 * that they stand next to (NF4 weights, forward and dX), in the order in which a step runs them.
 *
 *     bench_lora [level [threads]]           both default to the best there is */
#include "base/clock.h"
#include "ops/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = 512, R = 16, RUNS = 12 };

typedef struct {
    const char *name;
    int64_t N, K;
    int n; /* how many of them a layer has */
} projection;

static const projection small[] = {{"q,o", 576, 576, 2}, {"k,v", 192, 576, 2}, {"gate,up", 1536, 576, 2}, {"down", 576, 1536, 1}};
static const projection large[] = {{"q,o", 2048, 1536, 2}, {"k,v", 256, 1536, 2}, {"gate,up", 4608, 1536, 2}, {"down", 1536, 4608, 1}};

static float *floats(int64_t n)
{
    float *p = malloc((size_t)n * sizeof *p);
    if (!p) exit(1);
    for (int64_t i = 0; i < n; i++) p[i] = (float)((i * 2654435761u >> 8 & 0xffff) / 65536.0 - 0.5);
    return p;
}

static void must(ag_status s, const ag_err *err)
{
    if (s) fprintf(stderr, "%s\n", err->text), exit(1);
}

typedef struct {
    double fwd, bwd, base;
} times;

static times measure(ag_backend *be, const projection *of, float p, ag_compute compute)
{
    const int64_t K = of->K, N = of->N;
    ag_err err;
    float *x = floats(T * K), *dx = floats(T * K), *y = floats(T * N), *dy = floats(T * N), *h = floats(T * R), *a = floats(R * K),
          *b = floats(N * R), *da = floats(R * K), *db = floats(N * R), *w = floats(N * K), *absmax = floats(N * K / 64);
    uint8_t *codes = malloc((size_t)(N * K / 2));
    if (!codes) exit(1);
    ag_nf4_quantize(codes, absmax, w, N * K);
    const ag_weight weight = {.type = AG_W_NF4, .N = N, .K = K, .data = codes, .absmax = absmax};
    size_t bytes = ag_lora_scratch_bytes(be, T, K, N, R), linear_bytes = ag_linear_scratch_bytes(be, T, K, N);
    be->scratch.bytes = ((bytes > linear_bytes ? bytes : linear_bytes) + 63) & ~(size_t)63;
    be->scratch.data = aligned_alloc(64, be->scratch.bytes);
    times best = {1e9, 1e9, 1e9};
    for (int run = 0; run < RUNS; run++) {
        const ag_dropout dropout = {p, 1, 2};
        const uint64_t t0 = ag_clock_ns();
        must(ag_linear_fwd(be, &(ag_linear_fwd_args){
            .y = {ag_mat_f32(y, T, N)}, .w = {&weight}, .n = 1, .scale = 1, .x = ag_mat_f32(x, T, K), .compute = compute}, &err), &err);
        const uint64_t t1 = ag_clock_ns();
        must(ag_lora_fwd(be, &(ag_lora_fwd_args){
            .y = ag_mat_f32(y, T, N), .h = ag_mat_f32(h, T, R), .x = ag_mat_f32(x, T, K), .a = ag_mat_f32(a, R, K),
            .b = ag_mat_f32(b, N, R), .scale = 2, .dropout = dropout, .compute = compute}, &err), &err);
        const uint64_t t2 = ag_clock_ns();
        must(ag_linear_bwd(be, &(ag_linear_bwd_args){
            .dx = ag_mat_f32(dx, T, K), .dy = {ag_mat_f32(dy, T, N)}, .w = {&weight}, .n = 1, .scale = 1, .compute = compute}, &err), &err);
        const uint64_t t3 = ag_clock_ns();
        must(ag_lora_bwd(be, &(ag_lora_bwd_args){
            .dx = ag_mat_f32(dx, T, K), .da = ag_mat_f32(da, R, K), .db = ag_mat_f32(db, N, R), .dy = ag_mat_f32(dy, T, N),
            .x = ag_mat_f32(x, T, K), .h = ag_mat_f32(h, T, R), .a = ag_mat_f32(a, R, K), .b = ag_mat_f32(b, N, R), .scale = 2,
            .dropout = dropout, .compute = compute}, &err), &err);
        const uint64_t t4 = ag_clock_ns();
        if ((double)(t2 - t1) < best.fwd) best.fwd = (double)(t2 - t1);
        if ((double)(t4 - t3) < best.bwd) best.bwd = (double)(t4 - t3);
        if ((double)(t1 - t0 + t3 - t2) < best.base) best.base = (double)(t1 - t0 + t3 - t2);
    }
    void *all[] = {x, dx, y, dy, h, a, b, da, db, w, absmax, codes, be->scratch.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    return best;
}

static void bench_layer(ag_backend *be, const char *name, const projection *of, float p, ag_compute compute)
{
    double lora = 0, base = 0;
    printf("%s, dropout %g, %s\n", name, (double)p, compute == AG_COMPUTE_BF16 ? "bf16" : "f32");
    for (int i = 0; i < 4; i++) {
        const times t = measure(be, &of[i], p, compute);
        const double mflop = 2e-6 * T * R * (double)(of[i].K + of[i].N), base_mflop = 4e-6 * T * (double)(of[i].K * of[i].N);
        printf("  %-8s forward %7.1f us %6.1f GFLOP/s   backward %7.1f us %6.1f GFLOP/s   base %8.1f us %6.1f GFLOP/s\n", of[i].name,
               t.fwd * 1e-3, mflop / t.fwd * 1e6, t.bwd * 1e-3, 2 * mflop / t.bwd * 1e6, t.base * 1e-3, base_mflop / t.base * 1e6);
        lora += of[i].n * (t.fwd + t.bwd);
        base += of[i].n * t.base;
    }
    printf("  layer    LoRA %.1f us, base %.1f us: %.1f %%\n", lora * 1e-3, base * 1e-3, 100 * lora / base);
}

int main(int argc, char **argv)
{
    ag_err err;
    ag_backend be;
    ag_cpu_level level = ag_cpu_best_level();
    if (argc > 1) must(ag_cpu_level_parse(&level, argv[1], &err), &err);
    must(ag_backend_init_cpu(&be, level, argc > 2 ? atoi(argv[2]) : ag_physical_cores(), &err), &err);
    printf("%s, %s, %d threads, %d tokens, rank %d\n", ag_cpu_name(), ag_cpu_level_name(level), be.n_threads, T, R);
    for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++) {
        bench_layer(&be, "135M", small, 0, (ag_compute)compute);
        bench_layer(&be, "135M", small, 0.05f, (ag_compute)compute);
        bench_layer(&be, "1B", large, 0.05f, (ag_compute)compute);
    }
    return 0;
}
