/* Every family and rope scaling against transformers, from folders and from the GGUF files that llama.cpp's converter makes of
 * them; and adapters with their gradients against PEFT. */
#include "adapter/peft_io.h"
#include "base/json.h"
#include "model/generate.h"
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
    static const char *const models[] = {"qwen3",   "smollm3", "phi3",   "phi4mini", "granite4",
                                         "minicpm", "gemma2",  "gemma3", "dynamic"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[512];
        snprintf(path, sizeof path, FAMILIES "%s", models[i]);
        on_every_level(path, models[i], NULL);
    }
}

static void gguf_files_of_them_give_the_same(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3", "smollm3", "phi3", "phi4mini", "granite4", "minicpm", "gemma3"};
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

/* transformers' generate: longrope starts over where the answer passes the original context, dynamic scaling keeps old keys as
 * they were. */
static void answers_follow_the_rope_scaling_as_transformers_does(void **state)
{
    (void)state;
    json_t *all;
    const char *name;
    json_t *one;
    must(ag_json_load(&all, FAMILIES "generated.json", 1 << 16, &err));
    assert_int_equal(4, json_object_size(all));
    json_object_foreach(all, name, one)
    {
        enum { MAX = 64, ROWS = 3 }; /* prompts come in parts */
        const json_t *prompt = json_object_get(one, "prompt"), *want = json_object_get(one, "answer");
        const int64_t n_prompt = (int64_t)json_array_size(prompt), n_want = (int64_t)json_array_size(want);
        int32_t ids[MAX], out[MAX];
        char path[512];
        ag_model *m;
        ag_decoder *dec;
        ag_kv_cache *cache;
        ag_generate_result result;
        const ag_backend be = check_backend(ag_cpu_best_level(), 2);
        snprintf(path, sizeof path, FAMILIES "%s", name);
        must(ag_model_open(&m, path, NULL, &err));
        must(ag_decoder_create(
            &dec,
            &(ag_decoder_options){.model = m, .backend = &be, .max_tokens = ROWS, .max_positions = MAX, .longest_span = MAX},
            &err));
        must(ag_kv_cache_create(&cache, m, 1, MAX, &err));
        for (int64_t i = 0; i < n_prompt; i++) ids[i] = (int32_t)json_integer_value(json_array_get(prompt, (size_t)i));
        for (int again = 0; again < 2; again++) { /* the second time the cache holds a longer sequence, of another age */
            const ag_generate_options o = {.sampling = ag_sampling_greedy(), .max_new_tokens = n_want, .ignore_eos = true};
            must(ag_generate(dec, cache, ids, n_prompt, again ? n_prompt : 0, &o, out, &result, &err));
            assert_int_equal(n_want, result.n_new);
            for (int64_t i = 0; i < n_want; i++)
                if (out[i] != json_integer_value(json_array_get(want, (size_t)i)))
                    fail_msg("%s: token %d is %d", name, (int)i, out[i]);
        }
        ag_kv_cache_free(&cache);
        ag_decoder_free(&dec);
        ag_model_close(&m);
    }
    ag_json_free(&all);
}

/* bitsandbytes quantizes what transformers has as one matrix: blocks and scales of scales run over all of it. */
static void a_fused_matrix_is_quantized_as_one(void **state)
{
    (void)state;
    ag_model *plain, *nf4;
    must(ag_model_open(&plain, FAMILIES "phi3", NULL, &err));
    must(ag_model_open(&nf4, FAMILIES "phi3", &(ag_model_options){.quantize_nf4 = true, .double_quant = true, .n_threads = 2},
                       &err));
    const ag_weight *parts = plain->layers[1].proj, *got = nf4->layers[1].proj;
    enum { MAX_WEIGHTS = 32 * 16 };
    const int64_t K = parts[AG_PROJ_Q].K, n = (parts[AG_PROJ_Q].N + 2 * parts[AG_PROJ_K].N) * K, n_blocks = n / AG_NF4_BLOCK;
    float all[MAX_WEIGHTS], absmax[MAX_WEIGHTS / AG_NF4_BLOCK], nested[1], offset, want[16], have[16], *at = all;
    uint8_t packed[MAX_WEIGHTS / 2], absmax_q[MAX_WEIGHTS / AG_NF4_BLOCK];
    assert_true(n == MAX_WEIGHTS && K == 16);
    for (int p = AG_PROJ_Q; p <= AG_PROJ_V; p++)
        for (int64_t r = 0; r < parts[p].N; r++, at += K) ag_weight_row(at, &parts[p], r, 0, K);
    ag_nf4_quantize(packed, absmax, all, n);
    ag_nf4_double_quantize(absmax_q, nested, &offset, absmax, n_blocks);
    const ag_weight whole = {
        .type = AG_W_NF4, .N = n / K, .K = K, .data = packed, .absmax_q = absmax_q, .nested_absmax = nested, .offset = offset};
    int64_t row = 0;
    for (int p = AG_PROJ_Q; p <= AG_PROJ_V; p++)
        for (int64_t r = 0; r < got[p].N; r++, row++) {
            ag_weight_row(want, &whole, row, 0, K);
            ag_weight_row(have, &got[p], r, 0, K);
            assert_memory_equal(want, have, sizeof want);
        }
    assert_true(nf4->weight_bytes < plain->weight_bytes);
    ag_model_close(&plain);
    ag_model_close(&nf4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_give_transformers_logits_and_losses),
        cmocka_unit_test(gguf_files_of_them_give_the_same),
        cmocka_unit_test(answers_follow_the_rope_scaling_as_transformers_does),
        cmocka_unit_test(a_fused_matrix_is_quantized_as_one),
        cmocka_unit_test(adapters_give_pefts_logits_and_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
