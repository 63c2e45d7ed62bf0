#include "support/linear_problem.h"

problem problem_create(ag_weight_type type, int64_t T, int64_t K, int64_t N, variant v)
{
    const int64_t block = ag_weight_block_weights(type);
    K = (K + block - 1) / block * block;
    problem p = {.T = T, .K = K, .v = v, .x = check_floats(T * K), .dx = check_floats(T * K)};
    const uint32_t seed = (uint32_t)(T * 31 + K * 7 + N);
    check_fill(p.x, T * K, seed, 2);
    check_fill(p.dx, T * K, seed + 1, 1);
    for (int i = 0; i < v.n; i++) {
        p.N[i] = i == 0 ? N : N / 2 + i;
        p.w[i] = weight_make(type, p.N[i], K, seed + 10 + (uint32_t)i, i != 1);
        p.bias[i] = check_floats(p.N[i]);
        p.y[i] = check_floats(T * p.N[i]);
        p.dy[i] = check_floats(T * p.N[i]);
        check_fill(p.bias[i], p.N[i], seed + 20 + (uint32_t)i, 1);
        check_fill(p.y[i], T * p.N[i], seed + 30 + (uint32_t)i, 1);
        check_fill(p.dy[i], T * p.N[i], seed + 40 + (uint32_t)i, 1);
    }
    return p;
}

void problem_free(problem *p)
{
    check_free(p->x);
    check_free(p->dx);
    for (int i = 0; i < p->v.n; i++) {
        weight_free(&p->w[i]);
        check_free(p->bias[i]);
        check_free(p->y[i]);
        check_free(p->dy[i]);
    }
}

static int64_t largest_n(const problem *p)
{
    int64_t N = 0;
    for (int i = 0; i < p->v.n; i++) N = p->N[i] > N ? p->N[i] : N;
    return N;
}

ag_linear_fwd_args fwd_args(problem *p, int64_t T)
{
    ag_linear_fwd_args a = {.x = ag_mat_f32(p->x, T, p->K), .n = p->v.n, .accumulate = p->v.accumulate, .scale = p->v.scale,
                            .compute = p->v.compute};
    for (int i = 0; i < p->v.n; i++) {
        a.y[i] = ag_mat_f32(p->y[i], T, p->N[i]);
        a.w[i] = &p->w[i];
        a.bias[i] = p->v.bias ? p->bias[i] : NULL;
    }
    return a;
}

ag_linear_bwd_args bwd_args(problem *p, int64_t T)
{
    ag_linear_bwd_args a = {.dx = ag_mat_f32(p->dx, T, p->K), .n = p->v.n, .accumulate = p->v.accumulate, .scale = p->v.scale,
                            .compute = p->v.compute};
    for (int i = 0; i < p->v.n; i++) {
        a.dy[i] = ag_mat_f32(p->dy[i], T, p->N[i]);
        a.w[i] = &p->w[i];
    }
    return a;
}

void run_rows(problem *p, ag_backend *be, int64_t T)
{
    ag_err err;
    const size_t bytes = ag_linear_scratch_bytes(be, T, p->K, largest_n(p));
    check_backend_free(be);
    check_backend_scratch(be, bytes);
    if (bytes > 0) memset(be->scratch.data, 0xff, be->scratch.bytes);
    be->scratch.bytes = bytes;
    const ag_linear_fwd_args fwd = fwd_args(p, T);
    const ag_linear_bwd_args bwd = bwd_args(p, T);
    if (ag_linear_fwd(be, &fwd, &err)) fail_msg("%s", err.text);
    if (bytes > 0) memset(be->scratch.data, 0xff, bytes);
    if (ag_linear_bwd(be, &bwd, &err)) fail_msg("%s", err.text);
}

/* The table's tolerance is relative to the largest output. Where there are only a few and their terms happen to cancel, it is
 * relative to what such a sum is usually: the root of the terms' squares (values of x or dy up to `size`, weights up to 1). */
static double tolerance_of(const float *want, int64_t n, double terms, double size)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    return tolerance_f32_sum(terms) * fmax(1, n < 64 ? size / 3 * sqrt(terms) / largest : 1);
}

void check_problem(problem *got, const problem *want)
{
    double terms = 0;
    for (int i = 0; i < want->v.n; i++) {
        const int64_t n = want->T * want->N[i];
        check_close(got->y[i], want->y[i], n, tolerance_of(want->y[i], n, (double)want->K, 2 * want->v.scale), "y");
        check_guards(got->y[i], n, "y");
        terms += (double)want->N[i];
    }
    const int64_t n = want->T * want->K;
    check_close(got->dx, want->dx, n, tolerance_of(want->dx, n, terms, want->v.scale), "dx");
    check_guards(got->dx, want->T * want->K, "dx");
}

void check_same_bits(const problem *a, const problem *b, int64_t rows)
{
    for (int i = 0; i < a->v.n; i++) assert_memory_equal(a->y[i], b->y[i], (size_t)(rows * a->N[i]) * sizeof(float));
    assert_memory_equal(a->dx, b->dx, (size_t)(rows * a->K) * sizeof(float));
}

variant variant_of(int number)
{
    return (variant){.compute = number % 2 ? AG_COMPUTE_BF16 : AG_COMPUTE_F32, .n = 1 + number / 2 % 3, .accumulate = number / 3 % 2,
                     .bias = number / 4 % 2, .scale = number / 5 % 2 ? 0.25f : 1.0f};
}
