/* Proof of attention: the reference by finite differences, every level by the reference over one list of cases, the same bits
 * for any number of threads. */
#include "ops/attention/attention_cases.h"
#include "support/op_check.h"
#include "support/tolerance.h"

enum { MAX_SPANS = 8 };

typedef struct {
    int64_t T, S, H, G, D, window;
    float scale;
    double largest_score;
    ag_attention_span spans[MAX_SPANS];
    int64_t n_spans, longest;
    float *q, *k, *v, *d_o, *o, *lse, *dq, *dk, *dv;
} problem;

static void lay_out(problem *p, ag_attention_layout layout)
{
    if (layout == AG_ATTENTION_WHOLE) {
        p->spans[0] = (ag_attention_span){0, p->T, 0, p->S};
        p->n_spans = 1;
        p->longest = p->S;
    } else if (layout == AG_ATTENTION_PACKED) {
        const int64_t n[] = {p->T / 6, 1, p->T / 2, p->T / 6}, gap[] = {1, 0, 2, 0};
        int64_t row = 0;
        for (int i = 0; i < 4; i++) {
            row += gap[i];
            p->spans[i] = (ag_attention_span){row, n[i], row, n[i]};
            row += n[i];
        }
        p->n_spans = 4;
        p->longest = n[2];
    } else {
        for (int64_t t = 0; t < p->T; t++) p->spans[t] = (ag_attention_span){t, 1, t * (p->S / p->T), p->S / p->T - t};
        p->n_spans = p->T;
        p->longest = p->S / p->T;
    }
}

static problem problem_create(int64_t T, int64_t S, int64_t H, int64_t G, int64_t D, ag_attention_layout layout, int64_t window,
                              double largest_score)
{
    problem p = {.T = T, .S = S, .H = H, .G = G, .D = D, .window = window, .scale = 1 / sqrtf((float)D), .largest_score = largest_score};
    lay_out(&p, layout);
    p.q = check_floats(T * H * D);
    p.d_o = check_floats(T * H * D);
    p.o = check_floats(T * H * D);
    p.dq = check_floats(T * H * D);
    p.lse = check_floats(T * H);
    p.k = check_floats(S * G * D);
    p.v = check_floats(S * G * D);
    p.dk = check_floats(S * G * D);
    p.dv = check_floats(S * G * D);
    const uint32_t seed = (uint32_t)(T * 31 + S * 7 + D);
    check_fill(p.q, T * H * D, seed, (float)largest_score);
    check_fill(p.k, S * G * D, seed + 1, 1);
    check_fill(p.v, S * G * D, seed + 2, 2);
    check_fill(p.d_o, T * H * D, seed + 3, 1);
    return p;
}

static void problem_free(problem *p)
{
    float *all[] = {p->q, p->k, p->v, p->d_o, p->o, p->lse, p->dq, p->dk, p->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_free(all[i]);
}

static ag_attention_fwd_args fwd_args(problem *p)
{
    return (ag_attention_fwd_args){
        .o = ag_cube_f32(p->o, p->T, p->H, p->D), .lse = ag_mat_f32(p->lse, p->T, p->H), .q = ag_cube_f32(p->q, p->T, p->H, p->D),
        .k = ag_cube_f32(p->k, p->S, p->G, p->D), .v = ag_cube_f32(p->v, p->S, p->G, p->D), .spans = p->spans,
        .n_spans = p->n_spans, .window = p->window, .scale = p->scale};
}

static ag_attention_bwd_args bwd_args(problem *p)
{
    return (ag_attention_bwd_args){
        .dq = ag_cube_f32(p->dq, p->T, p->H, p->D), .dk = ag_cube_f32(p->dk, p->S, p->G, p->D),
        .dv = ag_cube_f32(p->dv, p->S, p->G, p->D), .d_o = ag_cube_f32(p->d_o, p->T, p->H, p->D),
        .o = ag_cube_f32(p->o, p->T, p->H, p->D), .lse = ag_mat_f32(p->lse, p->T, p->H), .q = ag_cube_f32(p->q, p->T, p->H, p->D),
        .k = ag_cube_f32(p->k, p->S, p->G, p->D), .v = ag_cube_f32(p->v, p->S, p->G, p->D), .spans = p->spans,
        .n_spans = p->n_spans, .window = p->window, .scale = p->scale};
}

static ag_backend backend_for(const problem *p, ag_cpu_level level, int n_threads)
{
    ag_backend be = check_backend(level, n_threads);
    check_backend_scratch(&be, ag_attention_scratch_bytes(&be, p->T, p->longest, p->H, p->G, p->D));
    if (be.scratch.data) memset(be.scratch.data, 0xff, be.scratch.bytes); /* NaNs: what is not written must not be read */
    return be;
}

static void run(problem *p, ag_cpu_level level, int n_threads, ag_compute compute)
{
    ag_err err;
    ag_backend be = backend_for(p, level, n_threads);
    ag_attention_fwd_args fwd = fwd_args(p);
    ag_attention_bwd_args bwd = bwd_args(p);
    fwd.compute = bwd.compute = compute;
    if (ag_attention_fwd(&be, &fwd, &err) || ag_attention_bwd(&be, &bwd, &err)) fail_msg("%s", err.text);
    check_backend_free(&be);
}

static void check_guards_of(const problem *p)
{
    check_guards(p->o, p->T * p->H * p->D, "o");
    check_guards(p->lse, p->T * p->H, "lse");
    check_guards(p->dq, p->T * p->H * p->D, "dq");
    check_guards(p->dk, p->S * p->G * p->D, "dk");
    check_guards(p->dv, p->S * p->G * p->D, "dv");
}

static void check_same_bits(const float *a, const float *b, int64_t n, const char *what, int n_threads)
{
    if (memcmp(a, b, (size_t)n * sizeof *a)) fail_msg("%s: other bits with %d threads than with 1", what, n_threads);
}

/* dq and dk vanish where a query sees one key only: p·(dp - delta) of two equal sums, whose size is `floor`. */
static void check_near(const float *got, const float *want, int64_t n, double tolerance, double floor, const char *what)
{
    double largest = floor;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tolerance * largest))
            fail_msg("%s: [%lld] is %.9g, want %.9g (largest %.3g, tolerance %.3g)", what, (long long)i, (double)got[i],
                     (double)want[i], largest, tolerance);
}

static void check_case(ag_cpu_level level, problem want, problem got)
{
    const int64_t T = got.T, S = got.S, H = got.H, G = got.G, D = got.D;
    const double tolerance = tolerance_attention_f32((double)(D + S), got.largest_score);
    problem one = want;
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        run(&got, level, n_threads, AG_COMPUTE_F32);
        check_guards_of(&got);
        if (n_threads == 1) {
            check_close(got.o, want.o, T * H * D, tolerance, "o");
            check_near(got.lse, want.lse, T * H, tolerance, 1, "lse");
            check_near(got.dq, want.dq, T * H * D, tolerance, 2, "dq");
            check_near(got.dk, want.dk, S * G * D, tolerance, 2, "dk");
            check_close(got.dv, want.dv, S * G * D, tolerance, "dv");
            one = got;
            got = problem_create(T, S, H, G, D, AG_ATTENTION_WHOLE, got.window, got.largest_score);
            memcpy(got.spans, one.spans, sizeof got.spans);
            got.n_spans = one.n_spans;
            got.longest = one.longest;
        } else {
            check_same_bits(got.o, one.o, T * H * D, "o", n_threads);
            check_same_bits(got.lse, one.lse, T * H, "lse", n_threads);
            check_same_bits(got.dq, one.dq, T * H * D, "dq", n_threads);
            check_same_bits(got.dk, one.dk, S * G * D, "dk", n_threads);
            check_same_bits(got.dv, one.dv, S * G * D, "dv", n_threads);
        }
    }
    problem_free(&one);
    problem_free(&got);
}

static void every_level_equals_the_reference_with_the_same_bits_for_any_number_of_threads(void **state)
{
    (void)state;
#define X(T, S, H, G, D, layout, window, largest)                                                                     \
    do {                                                                                                              \
        problem want = problem_create(T, S, H, G, D, AG_ATTENTION_##layout, window, largest);                         \
        run(&want, AG_CPU_REF, 2, AG_COMPUTE_F32);                                                                    \
        check_guards_of(&want);                                                                                       \
        for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++)                               \
            check_case(*level, want, problem_create(T, S, H, G, D, AG_ATTENTION_##layout, window, largest));          \
        problem_free(&want);                                                                                          \
    } while (0);
    AG_ATTENTION_CASES(X)
#undef X
}

/* ---- the reference by finite differences ----------------------------------------------------------------------------- */

/* Σ d_o·o in double; q, k and v are doubles. */
static double loss(const problem *p, const double *q, const double *k, const double *v)
{
    double total = 0;
    for (int64_t i = 0; i < p->n_spans; i++)
        for (int64_t t = 0; t < p->spans[i].n_q; t++)
            for (int64_t h = 0; h < p->H; h++) {
                const ag_attention_span s = p->spans[i];
                const int64_t row = (s.q0 + t) * p->H + h, last = t + s.n_kv - s.n_q;
                double sum = 0, weighted = 0;
                for (int64_t j = 0; j < s.n_kv; j++) {
                    if (j > last || (p->window && j <= last - p->window)) continue;
                    const int64_t key = (s.kv0 + j) * p->G + h / (p->H / p->G);
                    double score = 0, value = 0;
                    for (int64_t d = 0; d < p->D; d++) {
                        score += q[row * p->D + d] * k[key * p->D + d];
                        value += (double)p->d_o[row * p->D + d] * v[key * p->D + d];
                    }
                    sum += exp(p->scale * score);
                    weighted += exp(p->scale * score) * value;
                }
                total += weighted / sum;
            }
    return total;
}

static double *doubles(const float *x, int64_t n)
{
    double *y = malloc((size_t)n * sizeof *y);
    assert_non_null(y);
    for (int64_t i = 0; i < n; i++) y[i] = x[i];
    return y;
}

static void check_differences(problem *p)
{
    run(p, AG_CPU_REF, 1, AG_COMPUTE_F32);
    const int64_t n[] = {p->T * p->H * p->D, p->S * p->G * p->D, p->S * p->G * p->D};
    double *x[] = {doubles(p->q, n[0]), doubles(p->k, n[1]), doubles(p->v, n[2])};
    const float *gradient[] = {p->dq, p->dk, p->dv};
    const double h = 1e-5;
    for (int which = 0; which < 3; which++)
        for (int64_t i = 0; i < n[which]; i++) {
            const double saved = x[which][i];
            x[which][i] = saved + h;
            const double above = loss(p, x[0], x[1], x[2]);
            x[which][i] = saved - h;
            const double below = loss(p, x[0], x[1], x[2]);
            x[which][i] = saved;
            if (!(fabs((above - below) / (2 * h) - gradient[which][i]) < 3e-6))
                fail_msg("d%c[%lld] is %.9g, finite differences say %.9g", "qkv"[which], (long long)i, (double)gradient[which][i],
                         (above - below) / (2 * h));
        }
    for (int which = 0; which < 3; which++) free(x[which]);
    problem_free(p);
}

static void reference_backward_equals_finite_differences(void **state)
{
    (void)state;
    problem whole = problem_create(7, 7, 4, 2, 5, AG_ATTENTION_WHOLE, 0, 2), window = problem_create(9, 9, 2, 1, 3, AG_ATTENTION_WHOLE, 4, 2);
    problem packed = problem_create(25, 25, 3, 3, 3, AG_ATTENTION_PACKED, 0, 2), prefix = problem_create(3, 8, 4, 2, 4, AG_ATTENTION_WHOLE, 0, 2);
    check_differences(&whole);
    check_differences(&window);
    check_differences(&packed);
    check_differences(&prefix);
}

/* ---- what the contract says beside the numbers ------------------------------------------------------------------------ */

static void rows_in_no_span_are_zero_and_lse_may_be_left_out(void **state)
{
    (void)state;
    static const ag_cpu_level ref[] = {AG_CPU_REF, AG_CPU_REF};
    problem p = problem_create(128, 128, 2, 1, 16, AG_ATTENTION_PACKED, 0, 4);
    for (const ag_cpu_level *level = check_levels();; level++) {
        problem got = problem_create(128, 128, 2, 1, 16, AG_ATTENTION_PACKED, 0, 4);
        run(&got, *level, 2, AG_COMPUTE_F32);
        const int64_t gap = p.spans[2].q0 - 1;
        for (int64_t i = 0; i < 2 * 16; i++) {
            assert_true(got.o[i] == 0 && got.dq[i] == 0);
            assert_true(got.o[gap * 32 + i] == 0 && got.dq[gap * 32 + i] == 0 && got.o[127 * 32 + i] == 0);
        }
        for (int64_t i = 0; i < 16; i++) assert_true(got.dk[gap * 16 + i] == 0 && got.dv[gap * 16 + i] == 0);
        assert_true(got.lse[gap * 2] == 0);

        /* In place, without lse: the same o. */
        ag_err err;
        ag_backend be = backend_for(&p, *level, 2);
        problem alone = problem_create(128, 128, 2, 1, 16, AG_ATTENTION_PACKED, 0, 4);
        ag_attention_fwd_args args = fwd_args(&alone);
        args.lse = (ag_tensor){0};
        args.o = args.q;
        assert_int_equal(AG_OK, ag_attention_fwd(&be, &args, &err));
        check_same_bits(alone.q, got.o, 128 * 2 * 16, "o in place", 2);
        check_backend_free(&be);
        problem_free(&alone);
        problem_free(&got);
        if (*level == ref[0]) break;
    }
    problem_free(&p);
}

static void wrong_shapes_and_spans_are_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    problem p = problem_create(25, 25, 4, 2, 8, AG_ATTENTION_PACKED, 0, 1);
    ag_backend be = backend_for(&p, AG_CPU_REF, 1);
    ag_attention_fwd_args fwd = fwd_args(&p);
    fwd.k.dim[1] = fwd.v.dim[1] = 3;
    assert_int_equal(AG_E_SHAPE, ag_attention_fwd(&be, &fwd, &err));
    assert_string_equal("attention: 4 query heads do not divide into 3 key/value heads", err.text);
    fwd = fwd_args(&p);
    p.spans[1].q0 = 0;
    assert_int_equal(AG_E_SHAPE, ag_attention_fwd(&be, &fwd, &err));
    assert_string_equal("attention: span 1 has queries 0+1; they must lie after row 4 and before row 25", err.text);
    lay_out(&p, AG_ATTENTION_PACKED);
    p.spans[3].n_kv = 25;
    fwd = fwd_args(&p);
    assert_int_equal(AG_E_SHAPE, ag_attention_fwd(&be, &fwd, &err));
    lay_out(&p, AG_ATTENTION_PACKED);
    p.spans[3].kv0 = 1; /* shared keys: fine to read, not to collect gradients for */
    fwd = fwd_args(&p);
    assert_int_equal(AG_OK, ag_attention_fwd(&be, &fwd, &err));
    ag_attention_bwd_args bwd = bwd_args(&p);
    assert_int_equal(AG_E_SHAPE, ag_attention_bwd(&be, &bwd, &err));
    lay_out(&p, AG_ATTENTION_PACKED);
    bwd = bwd_args(&p);
    bwd.lse = (ag_tensor){0};
    assert_int_equal(AG_E_SHAPE, ag_attention_bwd(&be, &bwd, &err));
    assert_string_equal("attention: lse must be [T,H] f32", err.text);
    check_backend_free(&be);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_backward_equals_finite_differences),
        cmocka_unit_test(every_level_equals_the_reference_with_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(rows_in_no_span_are_zero_and_lse_may_be_left_out),
        cmocka_unit_test(wrong_shapes_and_spans_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
