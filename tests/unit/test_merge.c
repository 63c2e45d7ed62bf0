#include "support/golden.h"
#include "support/unit_test.h"

#include "adapter/merge.h"
#include "adapter/peft_io.h"

#include <math.h>

static const ag_description tiny = {.L = 2, .C = 48, .H = 4, .G = 2, .D = 12, .F = 56, .V = 64};
static const ag_projection merged[] = {AG_PROJ_Q, AG_PROJ_V, AG_PROJ_DOWN};

static const char *key(ag_projection p, const char *what)
{
    static char text[2][64];
    static int at;
    at = !at;
    snprintf(text[at], sizeof text[at], "%s.%s", ag_projection_name(p), what);
    return text[at];
}

static void merged_weights_are_those_of_peft(void **state)
{
    (void)state;
    ag_err err;
    golden g = golden_open("adapter/merged.safetensors");
    static const char *const adapters[][2] = {{"all7", "merged"}, {"rslora", "rslora_merged"}};
    for (int a = 0; a < 2; a++) {
        ag_peft *p;
        char dir[512];
        snprintf(dir, sizeof dir, "%s/golden/adapter/%s", AGOGE_TESTS_DIR, adapters[a][0]);
        must(ag_peft_open(&p, dir, &tiny, &err));
        for (size_t i = 0; i < sizeof merged / sizeof *merged; i++) {
            ag_weight w = {.type = AG_W_F32};
            ag_projection_size(&w.N, &w.K, &tiny, merged[i]);
            w.data = golden_get(&g, key(merged[i], "base"), "F32", w.N * w.K);
            const float *want = golden_get(&g, key(merged[i], adapters[a][1]), "F32", w.N * w.K);
            float *out = malloc((size_t)(w.N * w.K) * sizeof *out);
            for (int n_threads = 1; n_threads <= 2; n_threads++) {
                ag_deviation d = {0};
                ag_merge_rows(out, &w, &p->adapter.layers[1].pair[merged[i]], 0, w.N, n_threads);
                ag_deviation_add(&d, out, want, w.N * w.K);
                /* four products of numbers below 1, in f32, in another order */
                if (!(d.largest < 1e-6)) fail_msg("%s: %g apart", key(merged[i], adapters[a][1]), d.largest);
                d = (ag_deviation){0};
                ag_deviation_add(&d, want, w.data, w.N * w.K);
                assert_true(ag_deviation_mean(&d) > 0.01); /* the adapter does something */
            }
            free(out);
        }
        ag_peft_close(&p);
    }
    golden_close(&g);
}

typedef struct {
    float *all;
    int64_t K, next;
    int n_calls;
} collector;

static ag_status collect(void *user, float *rows, int64_t n0, int64_t n1, ag_err *err)
{
    collector *c = user;
    if (n0 != c->next) return ag_fail(err, AG_E_DATA, "rows out of order");
    memcpy(c->all + n0 * c->K, rows, (size_t)((n1 - n0) * c->K) * sizeof *rows);
    c->next = n1;
    c->n_calls++;
    return AG_OK;
}

static void blocks_of_any_size_give_the_same_rows(void **state)
{
    (void)state;
    ag_err err;
    enum { N = 7, K = 1500, R = 3 };
    float *base = malloc(N * K * sizeof *base), a[R * K], b[N * R];
    for (int i = 0; i < N * K; i++) base[i] = sinf((float)i);
    for (int i = 0; i < R * K; i++) a[i] = cosf((float)i);
    for (int i = 0; i < N * R; i++) b[i] = cosf((float)(i * i));
    const ag_weight w = {.type = AG_W_F32, .N = N, .K = K, .data = base};
    const ag_lora_view pair = {.R = R, .a = a, .b = b, .scale = 0.5f};
    float *want = malloc(N * K * sizeof *want), *buffer = malloc(3 * K * sizeof *buffer);
    ag_merge_rows(want, &w, &pair, 0, N, 1);
    for (int n_rows = 1; n_rows <= 3; n_rows++) {
        collector c = {.all = malloc(N * K * sizeof(float)), .K = K};
        must(ag_merge_weight(&w, &pair, buffer, n_rows * K + 5, 2, collect, &c, &err));
        assert_int_equal(N, c.next);
        assert_int_equal((N + n_rows - 1) / n_rows, c.n_calls);
        assert_memory_equal(want, c.all, N * K * sizeof *want);
        free(c.all);
    }
    double exact = base[6 * K + 1400];
    for (int r = 0; r < R; r++) exact += 0.5 * b[6 * R + r] * a[r * K + 1400];
    assert_true(fabs(exact - want[6 * K + 1400]) < 1e-6);
    ag_merge_rows(want, &w, NULL, 0, N, 1);
    assert_memory_equal(base, want, N * K * sizeof *want);
    free(base);
    free(want);
    free(buffer);
}

static ag_status fail_at_once(void *user, float *rows, int64_t n0, int64_t n1, ag_err *err)
{
    (void)user, (void)rows, (void)n0, (void)n1;
    return ag_fail(err, AG_E_NO_SPACE, "full");
}

static void a_sink_that_fails_ends_the_merge(void **state)
{
    (void)state;
    ag_err err;
    float base[4] = {0}, buffer[2];
    const ag_weight w = {.type = AG_W_F32, .N = 2, .K = 2, .data = base};
    must_fail(AG_E_NO_SPACE, "full", ag_merge_weight(&w, NULL, buffer, 2, 1, fail_at_once, NULL, &err));
}

static void deviations_are_measured(void **state)
{
    (void)state;
    const float x[4] = {1, 2, 3, -4}, y[4] = {1, 2.5f, 3, -2};
    ag_deviation d = {0};
    assert_true(ag_deviation_mean(&d) == 0 && ag_deviation_relative(&d) == 0);
    float buffer[4];
    const ag_weight a = {.type = AG_W_F32, .N = 2, .K = 2, .data = x}, b = {.type = AG_W_F32, .N = 2, .K = 2, .data = y};
    ag_deviation_add_weights(&d, &a, &b, buffer);
    assert_true(d.largest == 2 && d.n == 4 && ag_deviation_mean(&d) == 0.625 && fabs(ag_deviation_relative(&d) - 2.5 / 8.5) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_weights_are_those_of_peft),
        cmocka_unit_test(blocks_of_any_size_give_the_same_rows),
        cmocka_unit_test(a_sink_that_fails_ends_the_merge),
        cmocka_unit_test(deviations_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
