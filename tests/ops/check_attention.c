/* Proof of attention: the reference by finite differences, every level by the reference over one list of cases, the same bits
 * for any number of threads. */
#include "golden/attention/sdpa.h"
#include "support/attention_problem.h"
#include "support/tolerance.h"

static void check_case(ag_cpu_level level, ag_compute compute, const attention_problem *want)
{
    attention_problem one = attention_problem_like(want);
    ag_backend be = check_backend(level, 1);
    attention_problem_run(&one, &be, compute);
    attention_problem_check_guards(&one);
    if (compute == AG_COMPUTE_F32)
        attention_problem_check_close(&one, want, tolerance_attention_f32((double)(one.D + one.S), one.largest_score));
    else if (one.largest_score < 100) /* beyond, rounding a score to bf16 makes another maximum */
        attention_problem_check_close(&one, want, tolerance_attention_bf16(one.largest_score));
    for (int64_t i = 0; i < one.T * one.H * one.D; i++) assert_true(isfinite(one.o[i]) && isfinite(one.dq[i]));
    for (int64_t i = 0; i < one.S * one.G * one.D; i++) assert_true(isfinite(one.dk[i]) && isfinite(one.dv[i]));
    for (int n_threads = 2; n_threads <= 3; n_threads++) {
        attention_problem more = attention_problem_like(want);
        be = check_backend(level, n_threads);
        attention_problem_run(&more, &be, compute);
        attention_problem_check_guards(&more);
        attention_problem_check_same_bits(&more, &one, "with one thread");
        attention_problem_free(&more);
    }
    attention_problem_free(&one);
}

static void every_level_equals_the_reference_with_the_same_bits_for_any_number_of_threads(void **state)
{
    (void)state;
#define X(T, S, H, G, D, layout, window, largest)                                                      \
    do {                                                                                               \
        attention_problem want = attention_problem_create(T, S, H, G, D, AG_ATTENTION_##layout, window, largest);          \
        ag_backend ref = check_backend(AG_CPU_REF, 2);                                                 \
        attention_problem_run(&want, &ref, AG_COMPUTE_F32);                                                      \
        attention_problem_check_guards(&want);                                                                   \
        for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {              \
            check_case(*level, AG_COMPUTE_F32, &want);                                                 \
            check_case(*level, AG_COMPUTE_BF16, &want);                                                \
        }                                                                                              \
        attention_problem_free(&want);                                                                           \
    } while (0);
    AG_ATTENTION_CASES(X)
#undef X
}

/* Scores around the cap, where its slope is neither 1 nor 0; a whole span, a window, documents, and few queries split by keys. */
static void softcapped_scores_equal_the_reference(void **state)
{
    (void)state;
    const struct {
        int64_t T, S;
        ag_attention_layout layout;
        int64_t window;
    } cases[] = {{259, 259, AG_ATTENTION_WHOLE, 70}, {130, 130, AG_ATTENTION_WHOLE, 0}, {128, 128, AG_ATTENTION_PACKED, 0},
                 {5, 900, AG_ATTENTION_WHOLE, 0},    {12, 2400, AG_ATTENTION_CACHE, 0}, {1, 1000, AG_ATTENTION_WHOLE, 300}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attention_problem want = attention_problem_create(cases[i].T, cases[i].S, 6, 2, i % 2 ? 64 : 20, cases[i].layout, cases[i].window, 4);
        want.softcap = 2;
        ag_backend ref = check_backend(AG_CPU_REF, 2);
        attention_problem_run(&want, &ref, AG_COMPUTE_F32);
        for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
            check_case(*level, AG_COMPUTE_F32, &want);
            check_case(*level, AG_COMPUTE_BF16, &want);
        }
        attention_problem_free(&want);
    }
}

/* ---- the reference by finite differences ----------------------------------------------------------------------------- */

/* Σ d_o·o in double; q, k and v are doubles. */
static double loss(const attention_problem *p, const double *q, const double *k, const double *v)
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
                    score *= p->scale;
                    if (p->softcap > 0) score = p->softcap * tanh(score / p->softcap);
                    sum += exp(score);
                    weighted += exp(score) * value;
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

static void check_differences(attention_problem *p)
{
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    attention_problem_run(p, &ref, AG_COMPUTE_F32);
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
    attention_problem_free(p);
}

static void reference_backward_equals_finite_differences(void **state)
{
    (void)state;
    attention_problem whole = attention_problem_create(7, 7, 4, 2, 5, AG_ATTENTION_WHOLE, 0, 2);
    attention_problem window = attention_problem_create(9, 9, 2, 1, 3, AG_ATTENTION_WHOLE, 4, 2);
    attention_problem packed = attention_problem_create(25, 25, 3, 3, 3, AG_ATTENTION_PACKED, 0, 2);
    attention_problem prefix = attention_problem_create(3, 8, 4, 2, 4, AG_ATTENTION_WHOLE, 0, 2);
    attention_problem capped = attention_problem_create(9, 9, 4, 2, 5, AG_ATTENTION_WHOLE, 4, 3);
    capped.softcap = 1.5f;
    check_differences(&whole);
    check_differences(&window);
    check_differences(&packed);
    check_differences(&prefix);
    check_differences(&capped);
}

/* ---- goldens --------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t T, S, window, n_spans;
    ag_attention_span spans[3];
    const float *q, *k, *v, *d_o, *o, *lse, *dq, *dk, *dv;
} golden;

#define GOLDEN(name)                                                                                                   \
    golden_##name##_q, golden_##name##_k, golden_##name##_v, golden_##name##_do, golden_##name##_o, golden_##name##_lse, \
        golden_##name##_dq, golden_##name##_dk, golden_##name##_dv

static void check_golden(const golden *g, ag_cpu_level level)
{
    attention_problem p = attention_problem_create(g->T, g->S, GOLDEN_H, GOLDEN_G, GOLDEN_D, AG_ATTENTION_WHOLE, g->window, 4);
    memcpy(p.spans, g->spans, sizeof g->spans);
    p.n_spans = g->n_spans;
    const int64_t n_q = g->T * GOLDEN_H * GOLDEN_D, n_kv = g->S * GOLDEN_G * GOLDEN_D;
    memcpy(p.q, g->q, (size_t)n_q * sizeof *p.q);
    memcpy(p.d_o, g->d_o, (size_t)n_q * sizeof *p.q);
    memcpy(p.k, g->k, (size_t)n_kv * sizeof *p.q);
    memcpy(p.v, g->v, (size_t)n_kv * sizeof *p.q);
    ag_backend be = check_backend(level, 1);
    attention_problem_run(&p, &be, AG_COMPUTE_F32);
    const double tolerance = tolerance_attention_f32(GOLDEN_D + (double)g->S, 4);
    check_close(p.o, g->o, n_q, tolerance, "o");
    check_close(p.lse, g->lse, g->T * GOLDEN_H, tolerance, "lse");
    check_close(p.dq, g->dq, n_q, tolerance, "dq");
    check_close(p.dk, g->dk, n_kv, tolerance, "dk");
    check_close(p.dv, g->dv, n_kv, tolerance, "dv");
    attention_problem_free(&p);
}

static void every_level_gives_what_torch_gives(void **state)
{
    (void)state;
    const golden goldens[] = {{11, 11, 0, 1, {{0, 11, 0, 11}}, GOLDEN(causal)},
                              {13, 13, 4, 3, {{0, 6, 0, 6}, {6, 1, 6, 1}, {8, 5, 8, 5}}, GOLDEN(packed)},
                              {3, 9, 0, 1, {{0, 3, 0, 9}}, GOLDEN(cached)}};
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        check_golden(&goldens[i], AG_CPU_REF);
        for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) check_golden(&goldens[i], *level);
    }
}

/* ---- what the contract says beside the numbers ------------------------------------------------------------------------ */

static void check_gaps(ag_cpu_level level, ag_compute compute)
{
    attention_problem got = attention_problem_create(128, 128, 2, 1, 16, AG_ATTENTION_PACKED, 0, 4), alone = attention_problem_like(&got);
    ag_backend be = check_backend(level, 2);
    attention_problem_run(&got, &be, compute);
    const int64_t gap = got.spans[2].q0 - 1;
    for (int64_t i = 0; i < 2 * 16; i++) {
        assert_true(got.o[i] == 0 && got.dq[i] == 0);
        assert_true(got.o[gap * 32 + i] == 0 && got.dq[gap * 32 + i] == 0 && got.o[127 * 32 + i] == 0);
    }
    for (int64_t i = 0; i < 16; i++) assert_true(got.dk[gap * 16 + i] == 0 && got.dv[gap * 16 + i] == 0);
    assert_true(got.lse[gap * 2] == 0);

    /* In place, without lse: the same o. */
    ag_err err;
    attention_problem_scratch(&alone, &be);
    ag_attention_fwd_args args = attention_problem_fwd_args(&alone);
    args.lse = (ag_tensor){0};
    args.o = args.q;
    args.compute = compute;
    assert_int_equal(AG_OK, ag_attention_fwd(&be, &args, &err));
    assert_memory_equal(alone.q, got.o, 128 * 2 * 16 * sizeof(float));
    check_backend_free(&be);
    attention_problem_free(&alone);
    attention_problem_free(&got);
}

static void rows_in_no_span_are_zero_and_lse_may_be_left_out(void **state)
{
    (void)state;
    check_gaps(AG_CPU_REF, AG_COMPUTE_F32);
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
        check_gaps(*level, AG_COMPUTE_F32);
        check_gaps(*level, AG_COMPUTE_BF16);
    }
}

static void few_queries_without_lse_are_f32_whatever_the_compute(void **state)
{
    (void)state;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
        ag_err err;
        ag_backend be = check_backend(*level, 2);
        attention_problem f32 = attention_problem_create(12, 2400, 6, 2, 64, AG_ATTENTION_CACHE, 0, 4), bf16 = attention_problem_like(&f32);
        attention_problem_run(&f32, &be, AG_COMPUTE_F32);
        attention_problem_scratch(&bf16, &be);
        ag_attention_fwd_args args = attention_problem_fwd_args(&bf16);
        args.lse = (ag_tensor){0};
        args.o = args.q;
        args.compute = AG_COMPUTE_BF16;
        assert_int_equal(AG_OK, ag_attention_fwd(&be, &args, &err));
        assert_memory_equal(bf16.q, f32.o, 12 * 6 * 64 * sizeof(float));
        check_backend_free(&be);
        attention_problem_free(&f32);
        attention_problem_free(&bf16);
    }
}

static void wrong_shapes_and_spans_are_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    attention_problem p = attention_problem_create(25, 25, 4, 2, 8, AG_ATTENTION_PACKED, 0, 1);
    ag_backend be = check_backend(AG_CPU_REF, 1);
    attention_problem_scratch(&p, &be);
    ag_attention_fwd_args fwd = attention_problem_fwd_args(&p);
    fwd.k.dim[1] = fwd.v.dim[1] = 3;
    assert_int_equal(AG_E_SHAPE, ag_attention_fwd(&be, &fwd, &err));
    assert_string_equal("attention: 4 query heads do not divide into 3 key/value heads", err.text);
    fwd = attention_problem_fwd_args(&p);
    p.spans[1].q0 = 0;
    assert_int_equal(AG_E_SHAPE, ag_attention_fwd(&be, &fwd, &err));
    assert_string_equal("attention: span 1 has queries 0+1; they must lie after row 4 and before row 25", err.text);
    attention_problem_lay_out(&p, AG_ATTENTION_PACKED);
    p.spans[3].n_kv = 25;
    fwd = attention_problem_fwd_args(&p);
    assert_int_equal(AG_E_SHAPE, ag_attention_fwd(&be, &fwd, &err));
    attention_problem_lay_out(&p, AG_ATTENTION_PACKED);
    p.spans[3].kv0 = 1; /* shared keys: fine to read, not to collect gradients for */
    fwd = attention_problem_fwd_args(&p);
    assert_int_equal(AG_OK, ag_attention_fwd(&be, &fwd, &err));
    ag_attention_bwd_args bwd = attention_problem_bwd_args(&p);
    assert_int_equal(AG_E_SHAPE, ag_attention_bwd(&be, &bwd, &err));
    attention_problem_lay_out(&p, AG_ATTENTION_PACKED);
    bwd = attention_problem_bwd_args(&p);
    bwd.lse = (ag_tensor){0};
    assert_int_equal(AG_E_SHAPE, ag_attention_bwd(&be, &bwd, &err));
    assert_string_equal("attention: lse must be [T,H] f32", err.text);
    check_backend_free(&be);
    attention_problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softcapped_scores_equal_the_reference),
        cmocka_unit_test(reference_backward_equals_finite_differences),
        cmocka_unit_test(every_level_gives_what_torch_gives),
        cmocka_unit_test(every_level_equals_the_reference_with_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(rows_in_no_span_are_zero_and_lse_may_be_left_out),
        cmocka_unit_test(few_queries_without_lse_are_f32_whatever_the_compute),
        cmocka_unit_test(wrong_shapes_and_spans_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
