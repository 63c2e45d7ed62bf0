#include "support/attention_problem.h"

void attention_problem_lay_out(attention_problem *p, ag_attention_layout layout)
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
    } else if (layout == AG_ATTENTION_EQUAL) {
        p->longest = p->T / 3;
        for (int i = 0; i < 3; i++) p->spans[i] = (ag_attention_span){i * p->longest, p->longest, i * p->longest, p->longest};
        p->n_spans = 3;
    } else {
        for (int64_t t = 0; t < p->T; t++) p->spans[t] = (ag_attention_span){t, 1, t * (p->S / p->T), p->S / p->T - t};
        p->n_spans = p->T;
        p->longest = p->S / p->T;
    }
}

attention_problem attention_problem_create(int64_t T, int64_t S, int64_t H, int64_t G, int64_t D, ag_attention_layout layout, int64_t window,
                              double largest_score)
{
    attention_problem p = {.T = T, .S = S, .H = H, .G = G, .D = D, .window = window, .scale = 1 / sqrtf((float)D), .largest_score = largest_score};
    attention_problem_lay_out(&p, layout);
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

attention_problem attention_problem_like(const attention_problem *p)
{
    attention_problem like = attention_problem_create(p->T, p->S, p->H, p->G, p->D, AG_ATTENTION_WHOLE, p->window, p->largest_score);
    like.softcap = p->softcap;
    memcpy(like.spans, p->spans, sizeof like.spans);
    like.n_spans = p->n_spans;
    like.longest = p->longest;
    return like;
}

void attention_problem_free(attention_problem *p)
{
    float *all[] = {p->q, p->k, p->v, p->d_o, p->o, p->lse, p->dq, p->dk, p->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_free(all[i]);
}

ag_attention_fwd_args attention_problem_fwd_args(attention_problem *p)
{
    return (ag_attention_fwd_args){
        .o = ag_cube_f32(p->o, p->T, p->H, p->D), .lse = ag_mat_f32(p->lse, p->T, p->H), .q = ag_cube_f32(p->q, p->T, p->H, p->D),
        .k = ag_cube_f32(p->k, p->S, p->G, p->D), .v = ag_cube_f32(p->v, p->S, p->G, p->D), .spans = p->spans,
        .n_spans = p->n_spans, .window = p->window, .scale = p->scale, .softcap = p->softcap};
}

ag_attention_bwd_args attention_problem_bwd_args(attention_problem *p)
{
    return (ag_attention_bwd_args){
        .dq = ag_cube_f32(p->dq, p->T, p->H, p->D), .dk = ag_cube_f32(p->dk, p->S, p->G, p->D),
        .dv = ag_cube_f32(p->dv, p->S, p->G, p->D), .d_o = ag_cube_f32(p->d_o, p->T, p->H, p->D),
        .o = ag_cube_f32(p->o, p->T, p->H, p->D), .lse = ag_mat_f32(p->lse, p->T, p->H), .q = ag_cube_f32(p->q, p->T, p->H, p->D),
        .k = ag_cube_f32(p->k, p->S, p->G, p->D), .v = ag_cube_f32(p->v, p->S, p->G, p->D), .spans = p->spans,
        .n_spans = p->n_spans, .window = p->window, .scale = p->scale, .softcap = p->softcap};
}

void attention_problem_scratch(const attention_problem *p, ag_backend *be)
{
    check_backend_scratch(be, ag_attention_scratch_bytes(be, p->T, p->longest, p->H, p->G, p->D));
    if (be->scratch.data) memset(be->scratch.data, 0xff, be->scratch.bytes);
}

void attention_problem_run(attention_problem *p, ag_backend *be, ag_compute compute)
{
    ag_err err;
    attention_problem_scratch(p, be);
    ag_attention_fwd_args fwd = attention_problem_fwd_args(p);
    ag_attention_bwd_args bwd = attention_problem_bwd_args(p);
    fwd.compute = bwd.compute = compute;
    if (ag_attention_fwd(be, &fwd, &err) || ag_attention_bwd(be, &bwd, &err)) fail_msg("%s", err.text);
    check_backend_free(be);
}

void attention_problem_check_guards(const attention_problem *p)
{
    check_guards(p->o, p->T * p->H * p->D, "o");
    check_guards(p->lse, p->T * p->H, "lse");
    check_guards(p->dq, p->T * p->H * p->D, "dq");
    check_guards(p->dk, p->S * p->G * p->D, "dk");
    check_guards(p->dv, p->S * p->G * p->D, "dv");
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

void attention_problem_check_close(const attention_problem *got, const attention_problem *want, double tolerance)
{
    const int64_t T = got->T, S = got->S, H = got->H, G = got->G, D = got->D;
    check_close(got->o, want->o, T * H * D, tolerance, "o");
    check_near(got->lse, want->lse, T * H, tolerance, 1, "lse");
    check_near(got->dq, want->dq, T * H * D, tolerance, 2, "dq");
    check_near(got->dk, want->dk, S * G * D, tolerance, 2, "dk");
    check_close(got->dv, want->dv, S * G * D, tolerance, "dv");
}

static void check_same(const float *a, const float *b, int64_t n, const char *what, const char *than)
{
    if (memcmp(a, b, (size_t)n * sizeof *a)) fail_msg("%s: other bits than %s", what, than);
}

void attention_problem_check_same_bits(const attention_problem *got, const attention_problem *want, const char *than)
{
    const int64_t T = got->T, S = got->S, H = got->H, G = got->G, D = got->D;
    check_same(got->o, want->o, T * H * D, "o", than);
    check_same(got->lse, want->lse, T * H, "lse", than);
    check_same(got->dq, want->dq, T * H * D, "dq", than);
    check_same(got->dk, want->dk, S * G * D, "dk", than);
    check_same(got->dv, want->dv, S * G * D, "dv", than);
}
