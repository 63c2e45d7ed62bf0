/* A training step allocates nothing: every allocation of the process is counted while steps run. Not under sanitizers, which bring an
 * allocator of their own: there this test skips, and says so. */
#define _GNU_SOURCE
#include "support/op_check.h"
#include "support/tiny_model.h"

#include "train/step.h"

#include <stdatomic.h>
#include <stdio.h>

static atomic_long n_allocations;

#if defined(__has_feature) /* clang's way to say what gcc says with macros */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#if defined(IS_SANITIZED) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
static const bool is_counting = false;
#else
static const bool is_counting = true;

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
__attribute__((visibility("default"))) void *malloc(size_t n)
{
    n_allocations++;
    return __libc_malloc(n);
}
__attribute__((visibility("default"))) void *calloc(size_t n, size_t size)
{
    n_allocations++;
    return __libc_calloc(n, size);
}
__attribute__((visibility("default"))) void *realloc(void *p, size_t n)
{
    n_allocations++;
    return __libc_realloc(p, n);
}
__attribute__((visibility("default"))) void *aligned_alloc(size_t align, size_t n)
{
    n_allocations++;
    return __libc_memalign(align, n);
}
#endif

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    enum { T = 12 };
    static const int32_t ids[T] = {3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 50, 1}, positions[T] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
                         targets[T] = {14, 15, 9, 26, 5, 35, 8, 9, 7, 50, 1, -1};
    static const ag_attention_span span = {0, T, 0, T};
    const ag_decoder_batch batch = {.T = T, .ids = ids, .positions = positions, .targets = targets, .spans = &span, .n_spans = 1};
    if (!is_counting) skip();
    for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++)
        for (int recompute = 0; recompute < 2; recompute++) {
            ag_err err;
            tiny_model tiny = tiny_model_create(1, 2, 4);
            ag_backend be = check_backend(ag_cpu_best_level(), 2);
            ag_decoder *dec;
            assert_int_equal(AG_OK, ag_decoder_create(&dec, &(ag_decoder_options){
                .model = &tiny.model, .backend = &be, .lora = tiny.lora, .compute = (ag_compute)compute, .train = true,
                .recompute = recompute, .dropout = 0.1f, .max_tokens = T, .max_positions = T}, &err));
            float *m = calloc((size_t)tiny.n_params, sizeof *m), *v = calloc((size_t)tiny.n_params, sizeof *v);
            const ag_stepper stepper = {.decoder = dec, .backend = &be, .params = tiny.params, .grads = tiny.grads, .exp_avg = m,
                                        .exp_avg_sq = v, .n_params = tiny.n_params, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                        .max_grad_norm = 1};
            ag_step_result result;
            assert_int_equal(AG_OK, ag_train_step(&stepper, &batch, 1, 1, 1e-3, 0, &result, &err)); /* OpenMP makes its threads */
            const long before = n_allocations;
            assert_true(before > 0); /* the counter counts */
            for (int step = 2; step < 5; step++)
                assert_int_equal(AG_OK, ag_train_step(&stepper, &batch, 1, step, 1e-3, (uint64_t)step, &result, &err));
            assert_int_equal(n_allocations - before, 0);
            free(m);
            free(v);
            ag_decoder_free(&dec);
            tiny_model_free(&tiny);
        }
}

/* DoRA with dropout, copies of tables, norms and a matrix, biases, noise, moments in 8 bits, LoRA+. */
static void a_step_of_everything_that_can_be_trained_allocates_nothing(void **state)
{
    (void)state;
    enum { T = 12 };
    static const int32_t ids[T] = {3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 40, 1}, positions[T] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
                         targets[T] = {14, 15, 9, 26, 5, 35, 8, 9, 7, 40, 1, -1};
    static const ag_attention_span span = {0, T, 0, T};
    static const char yaml[] = "model_id: m\ndataset_path: d\noptim: adamw_8bit\nloraplus_lr_ratio: 4\nweight_decay: 0.1\n";
    static const char *const targets_of[] = {"q_proj", "o_proj", "up_proj"}, *const saved[] = {"lm_head", "embed_tokens", "norm", "1.mlp.down_proj"};
    const ag_decoder_batch batch = {.T = T, .ids = ids, .positions = positions, .targets = targets, .spans = &span, .n_spans = 1};
    if (!is_counting) skip();
    ag_err err;
    ag_arena arena = {0};
    ag_model *base;
    ag_adapter adapter;
    ag_optimizer optimizer;
    ag_train_config *config;
    ag_decoder *dec;
    assert_int_equal(AG_OK, ag_model_open(&base, AGOGE_TESTS_DIR "/golden/adapter_kinds/base", NULL, &err));
    assert_int_equal(AG_OK, ag_train_config_parse(&config, yaml, strlen(yaml), "c", NULL, 0, &err));
    assert_int_equal(AG_OK, ag_adapter_plan(&adapter, &base->d, &(ag_lora_config){
        .r = 300, .alpha = 600, .dora = true, .bias = AG_BIAS_ALL, .targets = targets_of, .n_targets = 3, .modules_to_save = saved,
        .n_modules_to_save = 4}, &arena, &err));
    ag_optimizer_plan(&optimizer, &adapter, config, &arena);
    ag_layout layout = {0};
    float *params = NULL, *grads = NULL;
    for (int pass = 0; pass < 2; pass++) {
        params = ag_layout_place(&layout, adapter.n_params * sizeof *params);
        grads = ag_layout_place(&layout, adapter.n_params * sizeof *grads);
        ag_optimizer_place(&optimizer, &layout);
        if (pass == 0) layout = (ag_layout){.base = ag_arena_alloc(&arena, layout.bytes)};
    }
    ag_adapter_bind(&adapter, params, grads);
    ag_adapter_attach(&adapter, base);
    assert_int_equal(AG_OK, ag_adapter_draw(&adapter, base, 42, 1, &err));
    ag_backend be = check_backend(ag_cpu_best_level(), 2);
    ag_decoder_options o = {.model = base, .backend = &be, .train = true, .recompute = true, .dropout = 0.1f, .neftune_alpha = 5, .max_tokens = T,
                            .max_positions = T};
    ag_adapter_use(&o, &adapter);
    assert_int_equal(AG_OK, ag_decoder_create(&dec, &o, &err));
    const ag_stepper stepper = {.decoder = dec, .backend = &be, .params = params, .grads = grads, .n_params = (int64_t)adapter.n_params,
                                .max_grad_norm = 1, .optimizer = &optimizer};
    ag_step_result result;
    assert_int_equal(AG_OK, ag_train_step(&stepper, &batch, 1, 1, 1e-3, 0, &result, &err));
    const long before = n_allocations;
    for (int step = 2; step < 5; step++)
        assert_int_equal(AG_OK, ag_train_step(&stepper, &batch, 1, step, 1e-3, (uint64_t)step, &result, &err));
    assert_int_equal(n_allocations - before, 0);
    ag_decoder_free(&dec);
    ag_train_config_free(&config);
    ag_model_close(&base);
    ag_arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(a_step_of_everything_that_can_be_trained_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
