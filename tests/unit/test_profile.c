/* What ops say of their cost, and windows as they are asked for. */
#include "support/unit_test.h"

#include "ops/attention/attention.h"
#include "ops/backend.h"
#include "ops/linear/linear.h"
#include "ops/profile.h"
#include "train/profile_request.h"

#include <string.h>

static ag_backend backend_with(ag_profile *profile, void *scratch, size_t bytes)
{
    ag_err err;
    ag_backend be;
    must(ag_backend_init_cpu(&be, AG_CPU_REF, 1, &err));
    be.profile = profile;
    be.scratch.data = scratch;
    be.scratch.bytes = bytes;
    return be;
}

static void a_linear_layer_counts_its_products_and_each_byte_once(void **state)
{
    (void)state;
    enum { T = 3, K = 8, N = 5 };
    float x[T * K] = {0}, y[T * N], weights[N * K] = {0};
    ag_profile_event events[2];
    ag_profile profile = {.events = events, .room = 2};
    ag_err err;
    ag_backend be = backend_with(&profile, NULL, 0);
    const ag_weight w = {.type = AG_W_F32, .N = N, .K = K, .data = weights};
    const ag_linear_fwd_args args = {.y = {ag_mat_f32(y, T, N)}, .w = {&w}, .n = 1, .scale = 1, .x = ag_mat_f32(x, T, K)};
    must(ag_linear_fwd(&be, &args, &err)); /* not on: nothing is counted */
    assert_int_equal(profile.total[AG_PROFILE_LINEAR_FWD].n, 0);
    profile.is_on = true;
    for (int i = 0; i < 3; i++) must(ag_linear_fwd(&be, &args, &err));
    const ag_profile_total *t = &profile.total[AG_PROFILE_LINEAR_FWD];
    assert_int_equal(t->n, 3);
    assert_true(t->flop == 3 * 2.0 * T * K * N && t->bytes == 3 * 4.0 * (T * K + T * N + N * K));
    assert_true(t->ns > 0);
    assert_int_equal(profile.n_events, 2); /* no more room, but it was counted */
    assert_int_equal(profile.n_dropped, 1);
    assert_int_equal(profile.depth, 0);
    assert_string_equal(ag_profile_op_name(AG_PROFILE_LINEAR_FWD), "linear.forward");
}

static void attention_counts_the_pairs_that_see_each_other(void **state)
{
    (void)state;
    enum { H = 1, D = 4, MOST = 16 };
    static float q[MOST * D], o[MOST * D], k[MOST * D], v[MOST * D];
    static unsigned char scratch[1 << 20] __attribute__((aligned(64)));
    ag_err err;
    for (int64_t n_kv = 1; n_kv <= MOST; n_kv++)
        for (int64_t n_q = 1; n_q <= n_kv; n_q++)
            for (int64_t window = 0; window <= 6; window++) {
                ag_profile profile = {.is_on = true};
                ag_backend be = backend_with(&profile, scratch, sizeof scratch);
                const ag_attention_span span = {0, n_q, 0, n_kv};
                must(ag_attention_fwd(&be,
                                      &(ag_attention_fwd_args){.o = ag_cube_f32(o, n_q, H, D),
                                                               .q = ag_cube_f32(q, n_q, H, D),
                                                               .k = ag_cube_f32(k, n_kv, 1, D),
                                                               .v = ag_cube_f32(v, n_kv, 1, D),
                                                               .spans = &span,
                                                               .n_spans = 1,
                                                               .window = window,
                                                               .scale = 1},
                                      &err));
                double pairs = 0;
                for (int64_t i = 0; i < n_q; i++)
                    for (int64_t j = 0; j < n_kv; j++) pairs += j <= i + n_kv - n_q && (window == 0 || j > i + n_kv - n_q - window);
                if (profile.total[AG_PROFILE_ATTENTION_FWD].flop != 4.0 * H * D * pairs)
                    fail_msg("%d queries, %d keys, window %d: %g, want %g pairs", (int)n_q, (int)n_kv, (int)window,
                             profile.total[AG_PROFILE_ATTENTION_FWD].flop / (4.0 * H * D), pairs);
            }
}

static void an_op_inside_an_op_is_counted_once(void **state)
{
    (void)state;
    ag_profile_event events[4];
    ag_profile profile = {.is_on = true, .events = events, .room = 4};
    ag_profile_scope outer, inner;
    ag_profile_scope_begin(&outer, &profile, AG_PROFILE_GRAD_WEIGHT, 10, 1);
    ag_profile_scope_begin(&inner, &profile, AG_PROFILE_LINEAR_FWD, 10, 1);
    ag_profile_scope_end(&inner);
    ag_profile_scope_end(&outer);
    assert_int_equal(profile.total[AG_PROFILE_LINEAR_FWD].n, 0);
    assert_int_equal(profile.total[AG_PROFILE_GRAD_WEIGHT].n, 1);
    assert_int_equal(profile.n_events, 2);
    assert_int_equal(events[0].depth, 1);
    assert_int_equal(events[1].depth, 0);
}

static void windows_are_read_in_every_form(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t start, end;
        bool enabled;
        const char *backend;
    } cases[] = {{"train:1-2", 1, 2, true, "torch"},
                 {"train/3..5", 3, 5, true, "torch"},
                 {" train : 4 : 4 ", 4, 4, true, "torch"},
                 {"start=7", 7, 7, true, "torch"},
                 {"end=3", 1, 3, true, "torch"},
                 {"phase=train, from=2, to=9, backend=cupti", 2, 9, true, "cupti"},
                 {"start_step=1,end_step=1,enabled=FALSE", 1, 1, false, "torch"}};
    ag_err err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ag_profile_request r;
        must(ag_profile_request_parse(&r, cases[i].text, "test", &err));
        assert_int_equal(r.start_step, cases[i].start);
        assert_int_equal(r.end_step, cases[i].end);
        assert_int_equal(r.enabled, cases[i].enabled);
        assert_string_equal(r.backend, cases[i].backend);
    }
    char id[AG_PROFILE_ID_MAX];
    ag_profile_window_id(id, "run", 2, 3);
    assert_string_equal(id, "run:train:2-3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_layer_counts_its_products_and_each_byte_once),
        cmocka_unit_test(attention_counts_the_pairs_that_see_each_other),
        cmocka_unit_test(an_op_inside_an_op_is_counted_once),
        cmocka_unit_test(windows_are_read_in_every_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
