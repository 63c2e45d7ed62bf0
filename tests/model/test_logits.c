/* Whole models against transformers: every family that can be described, from folders and from GGUF files, to the last logit.
 */
#include "model/decoder.h"

#include "support/golden.h"
#include "support/op_check.h"
#include "support/unit_test.h"

#define GGUF_DIR AGOGE_TESTS_DIR "/golden/gguf/"
static ag_err err;

/* The largest difference to the golden's logits, as a part of the largest logit. */
static double difference(const char *path, const char *golden_folder, ag_cpu_level level)
{
    enum { MAX_POSITIONS = 32 };
    char name[128];
    ag_model *m;
    ag_decoder *dec;
    ag_kv_cache *cache;
    ag_backend be = check_backend(level, 1);
    must(ag_model_open(&m, path, NULL, &err));
    must(ag_decoder_create(&dec,
                           &(ag_decoder_options){.model = m,
                                                 .backend = &be,
                                                 .max_tokens = MAX_POSITIONS,
                                                 .max_positions = MAX_POSITIONS,
                                                 .longest_span = MAX_POSITIONS},
                           &err));
    must(ag_kv_cache_create(&cache, m, 1, MAX_POSITIONS, &err));
    snprintf(name, sizeof name, "gguf/%s/logits.safetensors", golden_folder);
    golden g = golden_open(name);
    const int64_t T = golden_n(&g, "ids");
    const int32_t *ids = golden_get(&g, "ids", "I32", T);
    const float *want = golden_get(&g, "logits", "F32", T * m->d.V);
    float *got = malloc((size_t)m->d.V * sizeof *got);
    double worst = 0, largest = 0;
    for (int64_t t = 0; t < T; t++) {
        must(ag_decoder_infer(dec, cache, &(ag_decoder_run){.slot = 0, .n_new = 1}, 1, ids + t, got, &err));
        for (int64_t v = 0; v < m->d.V; v++) {
            worst = fmax(worst, fabs((double)got[v] - (double)want[t * m->d.V + v]));
            largest = fmax(largest, fabs((double)want[t * m->d.V + v]));
            assert_true(isfinite(got[v]));
        }
    }
    free(got);
    golden_close(&g);
    ag_kv_cache_free(&cache);
    ag_decoder_free(&dec);
    ag_model_close(&m);
    assert_true(largest > 1);
    return worst / largest;
}

static void check(const char *path, const char *golden_folder, double tolerance)
{
    for (const ag_cpu_level *level = check_levels();; level++) {
        const double d = difference(path, golden_folder, *level);
        if (!(d <= tolerance)) fail_msg("%s at level %d: %g of the largest logit away", path, (int)*level, d);
        if (*level == AG_CPU_REF) return;
    }
}

static void every_family_gives_transformers_logits(void **state)
{
    (void)state;
    static const char *const models[] = {"tiny", "qwen2", "biased", "granite", "mistral"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[512];
        snprintf(path, sizeof path, GGUF_DIR "%s", models[i]);
        check(path, models[i], 1e-5); /* both sides sum in f32, in orders of their own */
    }
}

static void gguf_files_give_the_same_logits(void **state)
{
    (void)state;
    check(GGUF_DIR "tiny.f32.gguf", "tiny", 1e-5);
    check(GGUF_DIR "qwen2.f32.gguf", "qwen2", 1e-5);
    check(GGUF_DIR "biased.f32.gguf", "biased", 1e-5);
    check(GGUF_DIR "granite.f32.gguf", "granite", 1e-5);
    check(GGUF_DIR "tiny.f16.gguf", "tiny", 2e-3);
    check(GGUF_DIR "tiny.q8_0.gguf", "tiny", 0.05);
}

static void a_model_that_bitsandbytes_quantized_gives_its_logits(void **state)
{
    (void)state;
    check(GGUF_DIR "tiny-nf4", "tiny-nf4", 1e-5);
    assert_true(difference(GGUF_DIR "tiny", "tiny-nf4", AG_CPU_REF) > 1e-2); /* which are not the original's */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_gives_transformers_logits),
        cmocka_unit_test(gguf_files_give_the_same_logits),
        cmocka_unit_test(a_model_that_bitsandbytes_quantized_gives_its_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
