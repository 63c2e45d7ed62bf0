#define _GNU_SOURCE
/* Rates of linear, to be read by people and not judged by a test.
 *
 *     bench_linear [--cpu LEVEL] [--threads N] [--type NAME] [--tokens T] [--bf16] [--decode] [--big]
 *
 * Training: GFLOP/s forward and backward for each shape of linear_cases.h at T tokens (512), and as a share of this machine's
 * dense rate (2048³, f32 weights) measured in the same run. --decode: one token; GB/s of stored weights, and the machine's read
 * bandwidth. The heads (N > 10,000) and the 1 B shapes run with --big. With one thread the clock is the process's own processor
 * time, which neighbours on a busy machine do not stretch. */
#include "base/clock.h"
#include "ops/linear/linear_cases.h"
#include "support/op_check.h"
#include "support/weight_make.h"

#include <stdio.h>
#include <time.h>

typedef struct {
    ag_cpu_level level;
    int n_threads, type; /* type -1: all */
    int64_t T;
    ag_compute compute;
    bool decode, big;
} options;

static uint64_t now_ns(const ag_backend *be)
{
    struct timespec t;
    if (be->n_threads > 1) return ag_clock_ns();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double best_seconds(const ag_backend *be, const ag_linear_fwd_args *fwd, const ag_linear_bwd_args *bwd)
{
    ag_err err;
    uint64_t best = UINT64_MAX, begin = now_ns(be);
    for (int run = 0; run < 200 && (run < 3 || now_ns(be) - begin < 300000000u); run++) {
        const uint64_t start = now_ns(be);
        if (fwd ? ag_linear_fwd(be, fwd, &err) : ag_linear_bwd(be, bwd, &err)) fail_msg("%s", err.text);
        const uint64_t took = now_ns(be) - start;
        if (took < best) best = took;
    }
    return (double)best * 1e-9;
}

static double dense_gflops(ag_backend *be, ag_compute compute)
{
    enum { SIZE = 2048 };
    const int64_t n = (int64_t)SIZE * SIZE;
    float *x = check_floats(n), *w = check_floats(n), *y = check_floats(n);
    check_fill(x, n, 1, 1);
    check_fill(w, n, 2, 1);
    check_backend_scratch(be, ag_linear_scratch_bytes(be, SIZE, SIZE, SIZE));
    const ag_weight weight = {.type = AG_W_F32, .N = SIZE, .K = SIZE, .data = w};
    const double seconds = best_seconds(be, &(ag_linear_fwd_args){
        .y = {ag_mat_f32(y, SIZE, SIZE)}, .w = {&weight}, .n = 1, .scale = 1, .x = ag_mat_f32(x, SIZE, SIZE), .compute = compute}, NULL);
    check_free(x);
    check_free(w);
    check_free(y);
    return 2e-9 * SIZE * (double)n / seconds;
}

static void bench_shape(const options *o, ag_backend *be, ag_weight_type type, int64_t N, int64_t K, double peak)
{
    if (K % ag_weight_block_weights(type) != 0 || (!o->big && (N > 10000 || N == 2048 || K > 1536 || (K == 1536 && N != 576)))) return;
    const int64_t T = o->decode ? 1 : o->T;
    ag_weight w = weight_make(type, N, K, 1, true);
    float *x = check_floats(T * K), *y = check_floats(T * N), *dx = check_floats(T * K);
    check_fill(x, T * K, 1, 1);
    check_fill(y, T * N, 2, 1);
    check_backend_scratch(be, ag_linear_scratch_bytes(be, T, K, N));
    const ag_linear_fwd_args fwd = {.y = {ag_mat_f32(y, T, N)}, .w = {&w}, .n = 1, .scale = 1, .x = ag_mat_f32(x, T, K),
                                    .compute = o->compute};
    const ag_linear_bwd_args bwd = {.dx = ag_mat_f32(dx, T, K), .dy = {ag_mat_f32(y, T, N)}, .w = {&w}, .n = 1, .scale = 1,
                                    .compute = o->compute};
    const double seconds = best_seconds(be, &fwd, NULL), flop = 2.0 * (double)T * (double)N * (double)K;
    if (o->decode) {
        printf("%-5s N %6lld K %5lld  %8.1f us  %6.2f GB/s\n", ag_weight_type_name(type), (long long)N, (long long)K, seconds * 1e6,
               (double)ag_weight_bytes(&w) / seconds * 1e-9);
    } else {
        const double back = best_seconds(be, NULL, &bwd);
        printf("%-5s N %6lld K %5lld  forward %6.1f GFLOP/s %5.1f %%  backward %6.1f GFLOP/s %5.1f %%\n", ag_weight_type_name(type),
               (long long)N, (long long)K, flop / seconds * 1e-9, 100e-9 * flop / seconds / peak, flop / back * 1e-9,
               100e-9 * flop / back / peak);
    }
    fflush(stdout);
    weight_free(&w);
    check_free(x);
    check_free(y);
    check_free(dx);
}

/* GB/s of reading 256 MB once, all threads, the best of five. */
static double read_bandwidth(int n_threads)
{
    const int64_t n = 64 << 20;
    float *p = check_floats(n);
    uint64_t best = UINT64_MAX;
    for (int run = 0; run < 5; run++) {
        const uint64_t start = ag_clock_ns();
        uint64_t sums = 0;
#pragma omp parallel for schedule(static) num_threads(n_threads) reduction(+ : sums)
        for (int64_t block = 0; block < n / 4096; block++) {
            const uint64_t *q = (const uint64_t *)(p + block * 4096);
            uint64_t s[8] = {0};
            for (int i = 0; i < 2048; i += 8)
                for (int j = 0; j < 8; j++) s[j] += q[i + j];
            for (int j = 0; j < 8; j++) sums += s[j];
        }
        const uint64_t took = ag_clock_ns() - start;
        if (took < best && sums != 1) best = took;
    }
    check_free(p);
    return 4.0 * (double)n / (double)best;
}

static options parse(int argc, char **argv)
{
    ag_err err = {0};
    options o = {.level = ag_cpu_best_level(), .n_threads = 2, .type = -1, .T = 512};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        ag_weight_type type;
        if (strcmp(argv[i], "--bf16") == 0) o.compute = AG_COMPUTE_BF16;
        else if (strcmp(argv[i], "--decode") == 0) o.decode = true;
        else if (strcmp(argv[i], "--big") == 0) o.big = true;
        else if (strcmp(argv[i], "--cpu") == 0 && ++i && ag_cpu_level_parse(&o.level, value, &err) == AG_OK) continue;
        else if (strcmp(argv[i], "--threads") == 0 && ++i && (o.n_threads = atoi(value)) > 0) continue;
        else if (strcmp(argv[i], "--tokens") == 0 && ++i && (o.T = atoll(value)) > 0) continue;
        else if (strcmp(argv[i], "--type") == 0 && ++i && ag_weight_type_parse(&type, value, &err) == AG_OK) o.type = (int)type;
        else {
            fprintf(stderr, "bench_linear: cannot use '%s %s' %s\n", argv[i < argc ? i : argc - 1], value, err.text);
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    const options o = parse(argc, argv);
    ag_backend be = check_backend(o.level, o.n_threads);
    double peak = dense_gflops(&be, AG_COMPUTE_F32);
    printf("%s, %s, %d threads: dense f32 %.1f GFLOP/s", ag_cpu_name(), ag_cpu_level_name(o.level), o.n_threads, peak);
    if (o.compute == AG_COMPUTE_BF16) {
        peak = dense_gflops(&be, AG_COMPUTE_BF16);
        printf(", bf16 %.1f GFLOP/s", peak);
    }
    if (o.decode) printf(", read bandwidth %.1f GB/s", read_bandwidth(o.n_threads));
    printf("\n");
    for (int type = 0; type < AG_N_WEIGHT_TYPES; type++) {
        if (o.type >= 0 && o.type != type) continue;
#define X(N, K) bench_shape(&o, &be, (ag_weight_type)type, N, K, peak);
        AG_LINEAR_SHAPES(X)
#undef X
    }
    check_backend_free(&be);
    return 0;
}
