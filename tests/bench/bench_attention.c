/* Rates of attention, to be read by people and not judged by a test.
 *
 *     bench_attention [--cpu LEVEL] [--threads N] [--bf16] [--decode]
 *
 * Training: milliseconds and GFLOP/s of the causal half, forward (2 products) and backward (5), and as a share of the machine's
 * dense rate measured in the same run. --decode: one query against a cache; GB/s of the cache, and the machine's read
 * bandwidth. */
#include "base/clock.h"
#include "ops/linear/linear_peak.h"
#include "support/op_check.h"

#include <stdio.h>

typedef struct {
    ag_cpu_level level;
    int n_threads;
    ag_compute compute;
    bool decode;
} options;

/* n_q queries at the end of n_kv keys. */
static void bench(const options *o, ag_backend *be, int64_t n_q, int64_t n_kv, int64_t H, int64_t G, int64_t D, double peak)
{
    const ag_attention_span span = {0, n_q, 0, n_kv};
    float *q[5], *k[4], *lse = check_floats(n_q * H);
    for (int i = 0; i < 5; i++) check_fill(q[i] = check_floats(n_q * H * D), n_q * H * D, (uint32_t)i, 1);
    for (int i = 0; i < 4; i++) check_fill(k[i] = check_floats(n_kv * G * D), n_kv * G * D, (uint32_t)i + 9, 1);
    const ag_attention_fwd_args fwd = {
        .o = ag_cube_f32(q[1], n_q, H, D), .lse = ag_mat_f32(lse, n_q, H), .q = ag_cube_f32(q[0], n_q, H, D), .k = ag_cube_f32(k[0], n_kv, G, D),
        .v = ag_cube_f32(k[1], n_kv, G, D), .spans = &span, .n_spans = 1, .scale = 1 / sqrtf((float)D), .compute = o->compute};
    const ag_attention_bwd_args bwd = {
        .dq = ag_cube_f32(q[2], n_q, H, D), .dk = ag_cube_f32(k[2], n_kv, G, D), .dv = ag_cube_f32(k[3], n_kv, G, D),
        .d_o = ag_cube_f32(q[3], n_q, H, D), .o = fwd.o, .lse = fwd.lse, .q = fwd.q, .k = fwd.k, .v = fwd.v, .spans = &span,
        .n_spans = 1, .scale = fwd.scale, .compute = o->compute};
    const size_t scratch = ag_attention_scratch_bytes(be, n_q, n_kv, H, G, D);
    check_backend_scratch(be, scratch);
    double best[2] = {1e9, 1e9};
    const uint64_t begin = ag_clock_ns();
    for (int run = 0; run < 300 && (run < 4 || ag_clock_ns() - begin < 800000000u); run++)
        for (int backward = 0; backward < (o->decode ? 1 : 2); backward++) {
            ag_err err;
            const uint64_t start = ag_clock_ns();
            if (backward ? ag_attention_bwd(be, &bwd, &err) : ag_attention_fwd(be, &fwd, &err)) fail_msg("%s", err.text);
            best[backward] = fmin(best[backward], 1e-9 * (double)(ag_clock_ns() - start));
        }
    printf("%5lld queries %5lld keys  H %2lld G %2lld D %3lld  scratch %5.2f MB  ", (long long)n_q, (long long)n_kv, (long long)H, (long long)G,
           (long long)D, (double)scratch * 1e-6);
    if (o->decode) printf("%7.1f us  %6.2f GB/s\n", best[0] * 1e6, 8e-9 * (double)(n_kv * G * D) / best[0]);
    else {
        const double pairs = (double)H * ((double)n_q * (double)(n_kv - n_q) + (double)n_q * (double)(n_q + 1) / 2), flop = 2 * (double)D * pairs;
        printf("forward %7.2f ms %6.1f GFLOP/s %5.1f %%  backward %7.2f ms %6.1f GFLOP/s %5.1f %%\n", best[0] * 1e3, 2e-9 * flop / best[0],
               2e-7 * flop / best[0] / peak, best[1] * 1e3, 5e-9 * flop / best[1], 5e-7 * flop / best[1] / peak);
    }
    for (int i = 0; i < 5; i++) check_free(q[i]);
    for (int i = 0; i < 4; i++) check_free(k[i]);
    check_free(lse);
}

/* GB/s of reading 256 MB once, all threads, the best of five. */
static double read_bandwidth(int n_threads)
{
    const int64_t n = 64 << 20;
    float *p = check_floats(n);
    double best = 1e9;
    for (int run = 0; run < 5; run++) {
        const uint64_t start = ag_clock_ns();
        uint64_t sum = 0;
#pragma omp parallel for schedule(static) num_threads(n_threads) reduction(+ : sum)
        for (int64_t block = 0; block < n / 16; block++) { /* one word of each line: reading is bound by lines */
            uint64_t word;
            memcpy(&word, p + 16 * block, sizeof word);
            sum += word;
        }
        const double took = 1e-9 * (double)(ag_clock_ns() - start);
        if (took < best && sum != 1) best = took;
    }
    check_free(p);
    return 4e-9 * (double)n / best;
}

static options parse(int argc, char **argv)
{
    ag_err err = {0};
    options o = {.level = ag_cpu_best_level(), .n_threads = 2};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--bf16") == 0) o.compute = AG_COMPUTE_BF16;
        else if (strcmp(argv[i], "--decode") == 0) o.decode = true;
        else if (strcmp(argv[i], "--cpu") == 0 && ++i && ag_cpu_level_parse(&o.level, value, &err) == AG_OK) continue;
        else if (strcmp(argv[i], "--threads") == 0 && ++i && (o.n_threads = atoi(value)) > 0) continue;
        else {
            fprintf(stderr, "bench_attention: cannot use '%s' %s\n", argv[i < argc ? i : argc - 1], err.text);
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    const options o = parse(argc, argv);
    ag_err err;
    ag_backend be = check_backend(o.level, o.n_threads);
    double peak;
    if (ag_linear_peak(&peak, &be, AG_COMPUTE_F32, &err)) fail_msg("%s", err.text);
    printf("%s, %s, %d threads: dense f32 %.1f GFLOP/s", ag_cpu_name(), ag_cpu_level_name(o.level), o.n_threads, peak);
    if (o.decode) printf(", read bandwidth %.1f GB/s", read_bandwidth(o.n_threads));
    printf("\n");
    if (o.decode) {
        static const int64_t keys[] = {128, 512, 2048, 8192};
        for (int i = 0; i < 4; i++) bench(&o, &be, 1, keys[i], 9, 3, 64, peak);
        for (int i = 0; i < 4; i++) bench(&o, &be, 1, keys[i], 16, 2, 128, peak);
        bench(&o, &be, 8, 2048, 9, 3, 64, peak);
        bench(&o, &be, 8, 2048, 16, 2, 128, peak);
    } else {
        bench(&o, &be, 512, 512, 9, 3, 64, peak);
        bench(&o, &be, 2048, 2048, 9, 3, 64, peak);
        bench(&o, &be, 512, 512, 16, 2, 128, peak);
        bench(&o, &be, 2048, 2048, 16, 2, 128, peak);
    }
    check_backend_free(&be);
    return 0;
}
