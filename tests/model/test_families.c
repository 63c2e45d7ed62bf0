/* Every family and rope scaling against transformers, from folders and from the GGUF files that llama.cpp's converter makes of them; and
 * adapters with their gradients against PEFT. */
#include "adapter/peft_io.h"
#include "support/model_golden.h"
#include "support/op_check.h"
#include "support/unit_test.h"

#define FAMILIES AGOGE_TESTS_DIR "/golden/families/"
static ag_err err;

static void check(const char *path, const char *name, const char *adapter_path, ag_cpu_level level)
{
    char file[128];
    ag_model *m;
    ag_peft *adapter = NULL;
    must(ag_model_open(&m, path, NULL, &err));
    if (adapter_path) must(ag_peft_open(&adapter, adapter_path, &m->d, &err));
    snprintf(file, sizeof file, "families/%s/vectors.safetensors", name);
    golden rows = golden_open(file);
    snprintf(file, sizeof file, "families/%s/%svectors.safetensors", name, adapter ? "adapter/" : "");
    golden want = golden_open(file);
    const model_difference d = model_compare(m, adapter ? &adapter->adapter : NULL, &rows, &want, level);
    /* Both sides sum in f32, in orders of their own; gradients of the golden are f64. */
    if (!(d.decoded <= 1e-4 && d.prefilled <= 1e-4 && d.loss <= 1e-5 && d.gradient <= 1e-4 && d.largest > 1))
        fail_msg("%s %s at level %d: decoded %g, prefilled %g, loss %g, gradient %g (largest logit %g)", path,
                 adapter_path ? adapter_path : "", (int)level, d.decoded, d.prefilled, d.loss, d.gradient, d.largest);
    if (adapter) assert_true(d.gradient > 0);
    golden_close(&rows);
    golden_close(&want);
    ag_peft_close(&adapter);
    ag_model_close(&m);
}

static void on_every_level(const char *path, const char *name, const char *adapter_path)
{
    for (const ag_cpu_level *level = check_levels();; level++) {
        check(path, name, adapter_path, *level);
        if (*level == AG_CPU_REF) return;
    }
}

static void families_give_transformers_logits_and_losses(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3", "smollm3", "phi3", "granite4", "minicpm", "gemma2", "gemma3", "dynamic"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[512];
        snprintf(path, sizeof path, FAMILIES "%s", models[i]);
        on_every_level(path, models[i], NULL);
    }
}

static void gguf_files_of_them_give_the_same(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3", "smollm3", "phi3", "granite4", "minicpm", "gemma3"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[512];
        snprintf(path, sizeof path, FAMILIES "%s.gguf", models[i]);
        check(path, models[i], NULL, ag_cpu_best_level());
    }
}

static void adapters_give_pefts_logits_and_gradients(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3", "gemma2", "gemma3", "granite4"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[512], adapter[512];
        snprintf(path, sizeof path, FAMILIES "%s", models[i]);
        snprintf(adapter, sizeof adapter, FAMILIES "%s/adapter", models[i]);
        on_every_level(path, models[i], adapter);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_give_transformers_logits_and_losses),
        cmocka_unit_test(gguf_files_of_them_give_the_same),
        cmocka_unit_test(adapters_give_pefts_logits_and_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
