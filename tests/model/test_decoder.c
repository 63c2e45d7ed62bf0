/* The whole decoder on a tiny model: its gradient by finite differences, and what must be equal to the bit or nearly so. */
#include "support/op_check.h"
#include "support/tiny_model.h"

enum { T = 11 };
static const int32_t ids[T] = {3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 50};
static const int32_t positions[T] = {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3}; /* two documents */
static const int32_t targets[T] = {14, 15, -1, 26, 5, 35, -1, 9, 7, 50, 1};
static const ag_attention_span spans[] = {{0, 7, 0, 7}, {7, 4, 7, 4}};
static const ag_decoder_batch batch = {.T = T, .ids = ids, .positions = positions, .targets = targets, .spans = spans, .n_spans = 2};

typedef struct {
    ag_cpu_level level;
    int n_threads;
    bool recompute;
    ag_compute compute;
    float dropout;
} setting;

static ag_decoder *decoder(const tiny_model *tiny, const ag_backend *be, setting s, bool train)
{
    ag_err err;
    ag_decoder *dec;
    if (ag_decoder_create(&dec, &(ag_decoder_options){.model = &tiny->model, .backend = be, .lora = tiny->lora, .compute = s.compute,
                                .train = train, .recompute = s.recompute, .dropout = s.dropout, .dropout_key = 42,
                                .max_tokens = 16, .max_positions = 64, .longest_span = 64}, &err))
        fail_msg("%s", err.text);
    return dec;
}

static double loss_and_gradient(tiny_model *tiny, setting s)
{
    ag_err err;
    ag_backend be = check_backend(s.level, s.n_threads);
    ag_decoder *dec = decoder(tiny, &be, s, true);
    memset(tiny->grads, 0, (size_t)tiny->n_params * sizeof(float));
    double loss;
    int64_t n;
    if (ag_decoder_train(dec, &batch, 1.0 / 9, 7, &loss, &n, &err)) fail_msg("%s", err.text);
    assert_int_equal(n, 9);
    ag_decoder_free(&dec);
    return loss / 9;
}

static void check_differences(tiny_model tiny)
{
    const setting s = {AG_CPU_REF, 1, false, AG_COMPUTE_F32, 0.25f};
    loss_and_gradient(&tiny, s);
    float *gradient = malloc((size_t)tiny.n_params * sizeof *gradient), *direction = malloc((size_t)tiny.n_params * sizeof *direction),
          *start = malloc((size_t)tiny.n_params * sizeof *start);
    memcpy(gradient, tiny.grads, (size_t)tiny.n_params * sizeof *gradient);
    memcpy(start, tiny.params, (size_t)tiny.n_params * sizeof *start);

    /* Along a random direction within each A and each B by itself, so that every matrix is tried. */
    int64_t at = 0;
    for (int64_t l = 0; l < 3; l++)
        for (int p = 0; p < AG_N_PROJ; p++)
            for (int is_b = 0; is_b < 2; is_b++) {
                const ag_weight *w = &tiny.model.layers[l].proj[p];
                const int64_t n = 4 * (is_b ? w->N : w->K);
                check_fill(direction, n, (uint32_t)at, 1);
                double expected = 0, size = 0;
                for (int64_t i = 0; i < n; i++) {
                    expected += (double)direction[i] * (double)gradient[at + i];
                    size += (double)gradient[at + i] * (double)gradient[at + i];
                }
                assert_true(size > 0);
                const double h = 2e-3;
                for (int64_t i = 0; i < n; i++) tiny.params[at + i] = start[at + i] + (float)h * direction[i];
                double above = loss_and_gradient(&tiny, s);
                for (int64_t i = 0; i < n; i++) tiny.params[at + i] = start[at + i] - (float)h * direction[i];
                double below = loss_and_gradient(&tiny, s);
                memcpy(tiny.params + at, start + at, (size_t)n * sizeof *start);
                double found = (above - below) / (2 * h);
                /* f32 activations leave the loss with about 1e-7 of noise, divided by 2h. */
                if (!(fabs(found - expected) <= 2e-4 + 2e-3 * sqrt(size)))
                    fail_msg("layer %d, %s, %c: %g by differences, %g by backward", (int)l, ag_projection_name((ag_projection)p),
                             is_b ? 'B' : 'A', found, expected);
                at += n;
            }
    assert_int_equal(at, tiny.n_params);
    free(gradient);
    free(direction);
    free(start);
    tiny_model_free(&tiny);
}

static void the_gradient_of_every_adapter_equals_finite_differences(void **state)
{
    (void)state;
    check_differences(tiny_model_create(1, 3, 4));
    check_differences(tiny_model_create_with_everything(1, 4));
}

static void check_recomputation(tiny_model a, tiny_model b)
{
    const ag_cpu_level best = ag_cpu_best_level();
    double loss_a = loss_and_gradient(&a, (setting){best, 1, false, AG_COMPUTE_F32, 0.25f});
    double loss_b = loss_and_gradient(&b, (setting){best, 1, true, AG_COMPUTE_F32, 0.25f});
    assert_true(loss_a == loss_b);
    assert_memory_equal(a.grads, b.grads, (size_t)a.n_params * sizeof(float));
    tiny_model_free(&a);
    tiny_model_free(&b);
}

static void recomputation_changes_no_bit(void **state)
{
    (void)state;
    check_recomputation(tiny_model_create(1, 3, 4), tiny_model_create(1, 3, 4));
    check_recomputation(tiny_model_create_with_everything(1, 4), tiny_model_create_with_everything(1, 4));
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    (void)state;
    for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++) {
        tiny_model a = tiny_model_create(1, 3, 4);
        double loss_a = loss_and_gradient(&a, (setting){ag_cpu_best_level(), 1, true, (ag_compute)compute, 0.1f});
        for (int n_threads = 2; n_threads <= 3; n_threads++) {
            tiny_model b = tiny_model_create(1, 3, 4);
            double loss_b = loss_and_gradient(&b, (setting){ag_cpu_best_level(), n_threads, true, (ag_compute)compute, 0.1f});
            assert_true(loss_a == loss_b);
            assert_memory_equal(a.grads, b.grads, (size_t)a.n_params * sizeof(float));
            tiny_model_free(&b);
        }
        tiny_model_free(&a);
    }
}

static void check_levels_of(tiny_model (*make)(void))
{
    tiny_model want = make();
    double loss_want = loss_and_gradient(&want, (setting){AG_CPU_REF, 1, false, AG_COMPUTE_F32, 0.25f});
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
        tiny_model got = make();
        double loss = loss_and_gradient(&got, (setting){*level, 2, false, AG_COMPUTE_F32, 0.25f});
        assert_true(fabs(loss - loss_want) < 1e-5 * fabs(loss_want));
        check_close(got.grads, want.grads, want.n_params, 2e-5, ag_cpu_level_name(*level));
        tiny_model_free(&got);
    }
    tiny_model_free(&want);
}

static tiny_model make_plain(void) { return tiny_model_create(1, 3, 4); }
static tiny_model make_with_everything(void) { return tiny_model_create_with_everything(1, 4); }

static void every_level_agrees_with_the_reference(void **state)
{
    (void)state;
    check_levels_of(make_plain);
    check_levels_of(make_with_everything);
}

static void documents_of_a_packed_row_do_not_see_each_other(void **state)
{
    (void)state;
    ag_err err;
    tiny_model tiny = tiny_model_create(1, 3, 4);
    ag_backend be = check_backend(ag_cpu_best_level(), 2);
    ag_decoder *dec = decoder(&tiny, &be, (setting){.compute = AG_COMPUTE_F32}, false);
    float packed[T], alone[T];
    assert_int_equal(AG_OK, ag_decoder_score(dec, &batch, packed, NULL, &err));
    const ag_decoder_batch first = {.T = 7, .ids = ids, .positions = positions, .targets = targets, .spans = spans, .n_spans = 1};
    const ag_attention_span whole = {0, 4, 0, 4};
    const ag_decoder_batch second = {.T = 4, .ids = ids + 7, .positions = positions + 7, .targets = targets + 7, .spans = &whole, .n_spans = 1};
    assert_int_equal(AG_OK, ag_decoder_score(dec, &first, alone, NULL, &err));
    assert_int_equal(AG_OK, ag_decoder_score(dec, &second, alone + 5, NULL, &err));
    check_close(packed, alone, 9, 1e-5, "nll");
    ag_decoder_free(&dec);
    tiny_model_free(&tiny);
}

static void one_token_at_a_time_against_the_cache_equals_all_at_once(void **state)
{
    (void)state;
    ag_err err;
    tiny_model tiny = tiny_model_create(1, 3, 4);
    const int64_t V = tiny.model.d.V;
    ag_backend be = check_backend(ag_cpu_best_level(), 2);
    ag_decoder *dec = decoder(&tiny, &be, (setting){.compute = AG_COMPUTE_F32}, false);
    ag_kv_cache *one, *two;
    assert_int_equal(AG_OK, ag_kv_cache_create(&one, &tiny.model, 1, 16, &err));
    assert_int_equal(AG_OK, ag_kv_cache_create(&two, &tiny.model, 3, 16, &err));
    float *step = check_floats(V), *at_once = check_floats(2 * V);
    for (int t = 0; t < T; t++)
        assert_int_equal(AG_OK, ag_decoder_infer(dec, one, &(ag_decoder_run){.slot = 0, .n_new = 1}, 1, ids + t, step, &err));

    /* The same in slot 2 of another cache, in two pieces, the second beside another sequence's. */
    assert_int_equal(AG_OK, ag_decoder_infer(dec, two, &(ag_decoder_run){.slot = 2, .n_new = 6}, 1, ids, NULL, &err));
    int32_t both[T];
    memcpy(both, (const int32_t[]){1, 2, 3}, 3 * sizeof *both);
    memcpy(both + 3, ids + 6, 5 * sizeof *both);
    assert_int_equal(AG_OK, ag_decoder_infer(dec, two, (const ag_decoder_run[]){{.slot = 0, .n_new = 3}, {.slot = 2, .n_new = 5}}, 2, both, at_once, &err));
    check_close(at_once + V, step, V, 1e-5, "logits");
    assert_int_equal(11, ag_kv_cache_length(two, 2));
    check_guards(step, V, "logits");
    check_guards(at_once, 2 * V, "logits");

    assert_int_equal(AG_E_DATA, ag_decoder_infer(dec, one, &(ag_decoder_run){.slot = 0, .n_new = 6}, 1, ids, NULL, &err));
    check_free(step);
    check_free(at_once);
    ag_kv_cache_free(&one);
    ag_kv_cache_free(&two);
    ag_decoder_free(&dec);
    tiny_model_free(&tiny);
}

static void rows_without_a_target_leave_everything_as_it_was(void **state)
{
    (void)state;
    ag_err err;
    tiny_model tiny = tiny_model_create(1, 2, 4);
    ag_backend be = check_backend(ag_cpu_best_level(), 1);
    ag_decoder *dec = decoder(&tiny, &be, (setting){.compute = AG_COMPUTE_F32}, true);
    int32_t none[T];
    for (int t = 0; t < T; t++) none[t] = -1;
    ag_decoder_batch without = batch;
    without.targets = none;
    double loss = 1;
    int64_t n = 1;
    assert_int_equal(AG_OK, ag_decoder_train(dec, &without, 1, 0, &loss, &n, &err));
    assert_true(loss == 0 && n == 0);
    for (int64_t i = 0; i < tiny.n_params; i++) assert_true(tiny.grads[i] == 0);
    ag_decoder_free(&dec);
    tiny_model_free(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradient_of_every_adapter_equals_finite_differences),
        cmocka_unit_test(recomputation_changes_no_bit),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(every_level_agrees_with_the_reference),
        cmocka_unit_test(documents_of_a_packed_row_do_not_see_each_other),
        cmocka_unit_test(one_token_at_a_time_against_the_cache_equals_all_at_once),
        cmocka_unit_test(rows_without_a_target_leave_everything_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
