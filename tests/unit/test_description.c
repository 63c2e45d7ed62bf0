/* What a config.json or GGUF metadata says about a model, and what is refused by name. */
#include "model/description_gguf.h"

#include "base/json.h"
#include "support/golden.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include <math.h>

static ag_err err;
static ag_arena arena;

#define LLAMA_SIZES                                                                                                            \
    "\"hidden_size\":48,\"intermediate_size\":88,\"num_hidden_layers\":2,\"num_attention_heads\":6,\"num_key_value_heads\":2," \
    "\"vocab_size\":307,\"max_position_embeddings\":128,\"rms_norm_eps\":0.001"
#define LLAMA "\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"]," LLAMA_SIZES

#define GRANITE_4 \
    "\"model_type\":\"granitemoehybrid\",\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"shared_intermediate_size\":72," LLAMA_SIZES

static ag_status read_with(ag_description *d, const char *config, const char *generation)
{
    return ag_description_from_config(d, config, strlen(config), "config.json", generation, generation ? strlen(generation) : 0,
                                      &arena, &err);
}

static ag_status read(const char *config)
{
    ag_description d;
    return read_with(&d, config, NULL);
}

static void both_spellings_of_a_config_mean_the_same(void **state)
{
    (void)state;
    ag_description old, new;
    must(read_with(&old,
                   "{" LLAMA
                   ",\"rope_theta\":500.0,\"torch_dtype\":\"bfloat16\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}",
                   NULL));
    must(read_with(
        &new,
        "{" LLAMA ",\"dtype\":\"bfloat16\",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":500.0}}",
        NULL));
    for (int i = 0; i < 2; i++) {
        const ag_description *d = i ? &new : &old;
        assert_int_equal(AG_ROPE_LINEAR, d->rope_kind);
        assert_true(d->rope_theta == 500 && d->rope_factor == 4);
        assert_int_equal(8, d->D); /* 48 / 6 */
        assert_int_equal(2, d->G);
        assert_false(d->tied);
        assert_true(d->rms_eps == 0.001f && d->attention_scale == (float)(1 / sqrt(8)));
        assert_true(d->embedding_scale == 1 && d->residual_scale == 1 && d->logit_scale == 1);
        assert_int_equal(-1, d->eos_id);
        assert_string_equal("llama", d->model_type);
        for (int p = 0; p < AG_N_PROJ; p++) assert_false(d->has_bias[p]);
    }
}

static void parameters_are_counted_from_the_shapes(void **state)
{
    (void)state;
    ag_description d;
    must(read_with(
        &d,
        "{\"model_type\":\"llama\",\"hidden_size\":576,\"intermediate_size\":1536,\"num_hidden_layers\":30,\"num_attention_"
        "heads\":9,"
        "\"num_key_value_heads\":3,\"vocab_size\":49152,\"max_position_embeddings\":8192,\"tie_word_embeddings\":true}",
        NULL));
    assert_int_equal(134515008, ag_description_parameters(&d)); /* SmolLM2-135M, as published */
    must(read_with(&d,
                   "{\"model_type\":\"llama\",\"hidden_size\":1536,\"intermediate_size\":4608,\"num_hidden_layers\":24,\"num_"
                   "attention_heads\":16,"
                   "\"num_key_value_heads\":2,\"head_dim\":128,\"vocab_size\":130560,\"max_position_embeddings\":131072}",
                   NULL));
    assert_int_equal(1080632832, ag_description_parameters(&d)); /* MiniCPM5-1B, as published */
    must(read_with(
        &d,
        "{\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864,\"num_hidden_layers\":24,\"num_attention_"
        "heads\":14,"
        "\"num_key_value_heads\":2,\"vocab_size\":151936,\"max_position_embeddings\":32768,\"tie_word_embeddings\":true}",
        NULL));
    assert_int_equal(494032768, ag_description_parameters(&d)); /* Qwen2.5-0.5B, as published: with its biases */
}

static void generation_configs_eos_comes_first_and_configs_is_added(void **state)
{
    (void)state;
    ag_description d;
    must(read_with(&d, "{" LLAMA ",\"bos_token_id\":5,\"eos_token_id\":1,\"pad_token_id\":-1}", "{\"eos_token_id\":[7,1,9]}"));
    assert_int_equal(7, d.eos_id);
    assert_int_equal(3, d.n_eos_ids);
    assert_int_equal(1, d.eos_ids[1]);
    assert_int_equal(9, d.eos_ids[2]);
    assert_int_equal(5, d.bos_id);
    assert_int_equal(-1, d.pad_id);
    must(read_with(&d, "{" LLAMA ",\"eos_token_id\":[3,4]}", "{}"));
    assert_int_equal(3, d.eos_id);
    assert_int_equal(2, d.n_eos_ids);
    must(read_with(&d, "{" LLAMA ",\"eos_token_id\":null}", NULL));
    assert_int_equal(0, d.n_eos_ids);
    must_fail(AG_E_FORMAT, "'eos_token_id'", read("{" LLAMA ",\"eos_token_id\":\"</s>\"}"));
    must_fail(AG_E_FORMAT, "'eos_token_id'", read("{" LLAMA ",\"eos_token_id\":[1,true]}"));
    must_fail(AG_E_UNSUPPORTED, "more than 16",
              read("{" LLAMA ",\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}"));
}

static void families_add_their_scales_biases_and_window(void **state)
{
    (void)state;
    ag_description d;
    must(read_with(&d,
                   "{\"model_type\":\"granite\",\"architectures\":[\"GraniteForCausalLM\"],\"embedding_multiplier\":12,"
                   "\"residual_multiplier\":0.22,"
                   "\"attention_multiplier\":0.015625,\"logits_scaling\":8," LLAMA_SIZES "}",
                   NULL));
    assert_true(d.embedding_scale == 12 && d.residual_scale == 0.22f && d.attention_scale == 0.015625f &&
                d.logit_scale == 0.125f);
    must(read_with(&d, "{\"model_type\":\"qwen2\"," LLAMA_SIZES "}", NULL));
    assert_true(d.has_bias[AG_PROJ_Q] && d.has_bias[AG_PROJ_V] && !d.has_bias[AG_PROJ_O] && !d.has_bias[AG_PROJ_DOWN]);
    must(read_with(&d, "{\"model_type\":\"mistral\",\"sliding_window\":5," LLAMA_SIZES "}", NULL));
    assert_int_equal(5, d.sliding_window);
    must(read_with(&d, "{\"model_type\":\"mistral\",\"sliding_window\":null," LLAMA_SIZES "}", NULL));
    assert_int_equal(0, d.sliding_window);
    must(read_with(&d, "{" LLAMA ",\"attention_bias\":true,\"mlp_bias\":true}", NULL));
    for (int p = 0; p < AG_N_PROJ; p++) assert_true(d.has_bias[p]);
}

static void layers_differ_as_their_family_says(void **state)
{
    (void)state;
    ag_description d;
    must(read_with(&d, "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":1," LLAMA_SIZES "}", NULL));
    assert_true(ag_layer_window(&d, 0) == 0 && ag_layer_window(&d, 1) == 7);
    must(read_with(&d, "{\"model_type\":\"qwen3\",\"sliding_window\":7,\"max_window_layers\":1," LLAMA_SIZES "}", NULL));
    assert_true(d.sliding_window == 0 && d.has_qk_norm && d.D == 128);
    must(read_with(&d, "{\"model_type\":\"smollm3\",\"no_rope_layer_interval\":2," LLAMA_SIZES "}", NULL));
    assert_true(ag_layer_rotates(&d, 0) && !ag_layer_rotates(&d, 1) && d.tied && d.rope_theta == 2e6);
    must(read_with(&d, "{\"model_type\":\"smollm3\",\"no_rope_layers\":[0,1]," LLAMA_SIZES "}", NULL));
    assert_true(!ag_layer_rotates(&d, 0) && ag_layer_rotates(&d, 1));
    must(read_with(&d, "{" GRANITE_4 ",\"layer_types\":[\"attention\",\"full_attention\"]}", NULL));
    assert_true(!ag_layer_rotates(&d, 0) && !ag_layer_rotates(&d, 1) && d.F == 72); /* position_embedding_type must say rope */
    must(read_with(&d, "{\"model_type\":\"phi3\",\"partial_rotary_factor\":0.75," LLAMA_SIZES "}", NULL));
    assert_true(d.rope_dims == 6 && ag_rope_dims(&d) == 6 && d.D == 8 && d.sliding_window == 0 && d.rms_eps == 0.001f);
    must_fail(AG_E_UNSUPPORTED, "5 of 8 dimensions rotate", read("{\"model_type\":\"phi3\",\"partial_rotary_factor\":0.7," LLAMA_SIZES "}"));
    must_fail(AG_E_FORMAT, "partial_rotary_factor is -1", read("{\"model_type\":\"phi3\",\"partial_rotary_factor\":-1," LLAMA_SIZES "}"));
    must(read_with(&d, "{\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":64," LLAMA_SIZES "}", NULL));
    assert_true(ag_layer_window(&d, 0) == 4096 && ag_layer_window(&d, 1) == 0 && d.attention_scale == 0.125f && d.D == 256);
    assert_true(d.attention_softcap == 50 && d.logit_softcap == 30 && d.gate == AG_GATE_GELU_TANH && d.has_post_norms && !d.has_qk_norm);
    must(read_with(&d, "{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":null," LLAMA_SIZES "}", NULL));
    assert_true(d.attention_softcap == 0 && d.logit_softcap == 30);
    must(read_with(&d, "{\"model_type\":\"gemma3_text\",\"sliding_window_pattern\":2,\"rope_theta\":5e5,\"rope_local_base_freq\":77," LLAMA_SIZES "}", NULL));
    assert_true(ag_layer_is_local(&d, 0) && !ag_layer_is_local(&d, 1) && d.rope_local_theta == 77 && d.rope_theta == 5e5);
    must(read_with(&d, "{\"model_type\":\"minicpm\",\"scale_emb\":12,\"scale_depth\":1.4,\"dim_model_base\":16," LLAMA_SIZES "}", NULL));
    assert_true(d.embedding_scale == 12 && d.residual_scale == (float)(1.4 / sqrt(2)) && d.logit_scale == (float)(16.0 / 48) && d.tied);
}

static void what_cannot_be_described_is_refused_by_name(void **state)
{
    (void)state;
    must_fail(AG_E_UNSUPPORTED, "'gemma3' (Gemma3ForConditionalGeneration) is not supported; llama",
              read("{\"model_type\":\"gemma3\",\"architectures\":[\"Gemma3ForConditionalGeneration\"]}"));
    must_fail(AG_E_UNSUPPORTED, "LlamaForSequenceClassification",
              read("{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]}"));
    must_fail(AG_E_UNSUPPORTED, "'qwen3_moe' (Qwen3MoeForCausalLM) is not supported (a mixture of 128 experts)",
              read("{\"model_type\":\"qwen3_moe\",\"architectures\":[\"Qwen3MoeForCausalLM\"],\"num_experts\":128}"));
    must_fail(AG_E_UNSUPPORTED, "'mamba2' is not supported (a state-space model)", read("{\"model_type\":\"mamba2\",\"state_size\":128}"));
    must_fail(AG_E_UNSUPPORTED, "this minicpm model is a mixture of 8 experts",
              read("{\"model_type\":\"minicpm\",\"num_experts\":8," LLAMA_SIZES "}"));
    must_fail(AG_E_UNSUPPORTED, "layer 1 is of the type 'mamba' (state-space)",
              read("{" GRANITE_4 ",\"layer_types\":[\"attention\",\"mamba\"]}"));
    must_fail(AG_E_UNSUPPORTED, "all layers are state-space", read("{" GRANITE_4 "}"));
    must_fail(AG_E_UNSUPPORTED, "this granitemoehybrid model is a mixture of 64 experts",
              read("{" GRANITE_4 ",\"num_local_experts\":64,\"layer_types\":[\"attention\",\"attention\"]}"));
    must_fail(AG_E_UNSUPPORTED, "rope scaling 'mrope'", read("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"mrope\",\"factor\":4.0}}"));
    must_fail(AG_E_UNSUPPORTED, "for each layer type", read("{" LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}"));
    must_fail(AG_E_UNSUPPORTED, "of sliding layers",
              read("{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"yarn\"}}," LLAMA_SIZES "}"));
    must_fail(AG_E_UNSUPPORTED, "use_bidirectional_attention",
              read("{\"model_type\":\"gemma3_text\",\"use_bidirectional_attention\":true," LLAMA_SIZES "}"));
    must_fail(AG_E_UNSUPPORTED, "hidden_activation 'gelu'",
              read("{\"model_type\":\"gemma2\",\"hidden_activation\":\"gelu\"," LLAMA_SIZES "}"));
    must_fail(AG_E_UNSUPPORTED, "hidden_act 'gelu'", read("{" LLAMA ",\"hidden_act\":\"gelu\"}"));
    must_fail(AG_E_UNSUPPORTED, "partial_rotary_factor 0.5", read("{" LLAMA ",\"partial_rotary_factor\":0.5}"));
    must_fail(AG_E_UNSUPPORTED, "quantized with 'gptq'",
              read("{" LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\"}}"));
    must_fail(AG_E_UNSUPPORTED, "in 8 bits",
              read("{" LLAMA ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true}}"));
    must_fail(AG_E_UNSUPPORTED, "type 'fp4'",
              read("{" LLAMA ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}}"));
    must_fail(AG_E_UNSUPPORTED, "an even one", read("{" LLAMA ",\"head_dim\":7}"));
}

static void values_that_are_missing_or_make_no_sense_are_named(void **state)
{
    (void)state;
    must_fail(AG_E_FORMAT, "'layer_types' must be a list of 2 texts",
              read("{\"model_type\":\"qwen2\",\"layer_types\":[\"sliding_attention\"]," LLAMA_SIZES "}"));
    must_fail(AG_E_FORMAT, "no 'sliding_window' in use",
              read("{\"model_type\":\"qwen2\",\"layer_types\":[\"sliding_attention\",\"full_attention\"]," LLAMA_SIZES "}"));
    must_fail(AG_E_FORMAT, "'no_rope_layers' must be a list of 2", read("{\"model_type\":\"smollm3\",\"no_rope_layers\":[1]," LLAMA_SIZES "}"));
    must_fail(AG_E_FORMAT, "'short_factor' of the rope scaling must be a list of 4 numbers",
              read("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1],\"long_factor\":[1,1,1,1]}}"));
    must_fail(AG_E_FORMAT, "rope factor is -1",
              read("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,1,-1]}}"));
    must_fail(AG_E_FORMAT, "factor is 0", read("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"dynamic\"}}"));
    must_fail(AG_E_FORMAT, "dim_model_base is 0", read("{\"model_type\":\"minicpm\",\"dim_model_base\":0," LLAMA_SIZES "}"));
    must_fail(AG_E_FORMAT, "query_pre_attn_scalar is -1", read("{\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":-1," LLAMA_SIZES "}"));
    must_fail(AG_E_FORMAT, "config.json", read("{"));
    must_fail(AG_E_FORMAT, "must be an object", read("[]"));
    must_fail(AG_E_FORMAT, "no 'model_type'", read("{}"));
    must_fail(AG_E_FORMAT, "hidden_size", read("{\"model_type\":\"llama\"}"));
    must_fail(AG_E_FORMAT, "'num_key_value_heads'",
              read("{\"model_type\":\"mistral\",\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":2}"));
    must_fail(AG_E_FORMAT, "head_dim", read("{" LLAMA ",\"head_dim\":\"8\"}"));
    must_fail(AG_E_FORMAT, "cannot share 4",
              read("{\"model_type\":\"llama\",\"hidden_size\":48,\"intermediate_size\":88,\"num_hidden_layers\":2,"
                   "\"num_attention_heads\":6,\"num_key_value_heads\":4,\"vocab_size\":9,\"max_position_embeddings\":9}"));
    must_fail(AG_E_FORMAT, "no multiple of 5 heads",
              read("{\"model_type\":\"llama\",\"hidden_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":5}"));
    must_fail(
        AG_E_FORMAT, "original_max_position_embeddings",
        read("{" LLAMA
             ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0}}"));
    must_fail(AG_E_FORMAT, "ascending",
              read("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":4.0,"
                   "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":32}}"));
    must_fail(AG_E_FORMAT, "factor is 0", read("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\"}}"));
    must_fail(AG_E_FORMAT, "rope_theta is -1", read("{" LLAMA ",\"rope_theta\":-1.0}"));
    must_fail(AG_E_FORMAT, "generation_config.json", read_with(&(ag_description){0}, "{" LLAMA "}", "[]"));
}

static void check_frequencies(const golden *g, const char *name, int64_t D, const char *rope)
{
    char config[1024];
    double freq[128], mscale = 0;
    ag_description d;
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"hidden_size\":%d,\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_"
             "heads\":2,"
             "\"vocab_size\":9,\"max_position_embeddings\":131072,\"rope_parameters\":{%s}}",
             (int)(2 * D), rope);
    must(read_with(&d, config, NULL));
    ag_description_rope(freq, &mscale, &d, 0);
    const float *want = golden_get(g, name, "F32", D / 2);
    assert_true(mscale == 1);
    for (int i = 0; i < D / 2; i++) /* theirs is computed in f32: pow, a product and a quotient */
        if (!(fabs(freq[i] - (double)want[i]) <= 4e-7 * (double)want[i]))
            fail_msg("%s: freq[%d] is %.9g, expected %.9g", name, i, freq[i], (double)want[i]);
}

static void rope_frequencies_equal_transformers(void **state)
{
    (void)state;
    golden g = golden_open("description/rope.safetensors");
    check_frequencies(&g, "default", 64, "\"rope_type\":\"default\",\"rope_theta\":1e5");
    check_frequencies(&g, "linear", 64, "\"rope_type\":\"linear\",\"rope_theta\":1e4,\"factor\":4.0");
    check_frequencies(
        &g, "llama3.2", 64,
        "\"rope_type\":\"llama3\",\"rope_theta\":5e5,\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192");
    check_frequencies(
        &g, "small", 16,
        "\"rope_type\":\"llama3\",\"rope_theta\":100.0,\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":32");
    golden_close(&g);
}

static void scalings_equal_transformers_for_every_length(void **state)
{
    (void)state;
    json_t *rows;
    must(ag_json_load(&rows, AGOGE_TESTS_DIR "/golden/description/rope_scalings.json", 1 << 20, &err));
    assert_true(json_array_size(rows) > 20);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *want = json_object_get(row, "freq");
        char *config = json_dumps(json_object_get(row, "config"), 0);
        double freq[128], mscale;
        ag_description d;
        must(read_with(&d, config, NULL));
        assert_int_equal(d.D / 2, json_array_size(want));
        ag_description_rope(freq, &mscale, &d, json_integer_value(json_object_get(row, "length")));
        if (fabs(mscale - json_real_value(json_object_get(row, "attention_factor"))) > 1e-12)
            fail_msg("row %zu: the factor is %.9g: %s", i, mscale, config);
        for (size_t j = 0; j < json_array_size(want); j++) { /* theirs are computed in f32 */
            const double f = json_number_value(json_array_get(want, j));
            if (!(fabs(freq[j] - f) <= 2e-6 * f)) fail_msg("row %zu: freq[%zu] is %.9g, expected %.9g: %s", i, j, freq[j], f, config);
        }
        free(config);
    }
    ag_json_free(&rows);
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------------- */
static ag_status read_gguf(ag_description *d, const char *file)
{
    ag_gguf g;
    char path[512];
    snprintf(path, sizeof path, "%s/golden/gguf/%s", AGOGE_TESTS_DIR, file);
    must(ag_gguf_open(&g, path, &err));
    ag_status status = ag_description_from_gguf(d, &g, &arena, &err);
    ag_gguf_close(&g);
    return status;
}

static void read_golden_config(ag_description *d, const char *folder)
{
    char path[512], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/golden/gguf/%s/config.json", AGOGE_TESTS_DIR, folder);
    must(ag_file_read(&text, &n, path, 1 << 20, &arena, &err));
    must(ag_description_from_config(d, text, n, path, NULL, 0, &arena, &err));
}

static void gguf_metadata_say_what_the_config_says(void **state)
{
    (void)state;
    static const char *const models[] = {"tiny", "qwen2", "biased", "granite"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        ag_description a, b;
        char file[64];
        snprintf(file, sizeof file, "%s.f32.gguf", models[m]);
        must(read_gguf(&a, file));
        read_golden_config(&b, models[m]);
        assert_string_equal(b.model_type, a.model_type);
        assert_string_equal(b.architecture, a.architecture);
        assert_true(a.C == b.C && a.L == b.L && a.H == b.H && a.G == b.G && a.D == b.D && a.F == b.F && a.V == b.V);
        assert_true(a.context_length == b.context_length && a.tied == b.tied && a.rms_eps == b.rms_eps);
        assert_true(a.attention_scale == b.attention_scale && a.residual_scale == b.residual_scale &&
                    a.logit_scale == b.logit_scale && a.embedding_scale == b.embedding_scale);
        assert_memory_equal(a.has_bias, b.has_bias, sizeof a.has_bias);
        assert_true(a.bos_id == b.bos_id && a.eos_id == b.eos_id && a.pad_id == b.pad_id && a.n_eos_ids == 1);
        double f[8], h[8], mscale;
        ag_description_rope(f, &mscale, &a, 0);
        ag_description_rope(h, &mscale, &b, 0);
        for (int i = 0; i < a.D / 2; i++) assert_true(fabs(f[i] - h[i]) <= 4e-7 * h[i]); /* factors are stored in f32 */
        assert_int_equal(m == 0 ? AG_ROPE_FACTORS : b.rope_kind, a.rope_kind);
    }
}

/* model_type and architecture: Granite 4's dense form becomes a Granite. */
static void gguf_metadata_of_further_families_say_what_the_config_says(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3", "smollm3", "phi3", "phi4mini", "granite4", "minicpm", "gemma3"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        ag_description a, b;
        char file[64];
        snprintf(file, sizeof file, "../families/%s.gguf", models[m]);
        must(read_gguf(&a, file));
        snprintf(file, sizeof file, "../families/%s", models[m]);
        read_golden_config(&b, file);
        assert_string_equal(strcmp(models[m], "granite4") == 0 ? "granite" : b.model_type, a.model_type);
        assert_true(a.C == b.C && a.L == b.L && a.H == b.H && a.G == b.G && a.D == b.D && a.F == b.F && a.V == b.V && a.tied == b.tied);
        assert_true(fabsf(a.attention_scale - b.attention_scale) < 1e-7f && a.residual_scale == b.residual_scale &&
                    a.embedding_scale == b.embedding_scale && fabsf(a.logit_scale - b.logit_scale) < 1e-7f);
        assert_true(a.has_qk_norm == b.has_qk_norm && a.has_post_norms == b.has_post_norms && a.gate == b.gate);
        assert_true(a.attention_softcap == b.attention_softcap && a.logit_softcap == b.logit_softcap);
        assert_true(a.sliding_window == b.sliding_window && a.rope_local_theta == b.rope_local_theta);
        for (int64_t l = 0; l < a.L; l++)
            assert_true(ag_layer_window(&a, l) == ag_layer_window(&b, l) && ag_layer_rotates(&a, l) == ag_layer_rotates(&b, l) &&
                        ag_layer_is_local(&a, l) == ag_layer_is_local(&b, l));
        for (int64_t length = 0; length <= 64; length += 64) {
            double f[8], h[8], at, bt;
            ag_description_rope(f, &at, &a, length);
            ag_description_rope(h, &bt, &b, length);
            assert_true(fabs(at - bt) < 1e-7);
            for (int i = 0; i < a.D / 2; i++) assert_true(fabs(f[i] - h[i]) <= 4e-7 * h[i]);
        }
    }
}

static ag_status read_made(void (*change)(ag_gguf_writer *w), uint32_t key_length)
{
    static const float zeros[64];
    ag_gguf_writer w = {0};
    ag_gguf g;
    ag_description d;
    ag_gguf_put_text(&w, "general.architecture", "llama");
    static const char *const keys[] = {"llama.embedding_length", "llama.block_count", "llama.attention.head_count",
                                       "llama.feed_forward_length", "llama.context_length"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) ag_gguf_put_u32(&w, keys[i], 4);
    ag_gguf_put_f32(&w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    ag_gguf_put_u32(&w, "llama.attention.key_length", key_length);
    if (change) change(&w);
    ag_gguf_writer_tensor(&w, "token_embd.weight", AG_GGML_F32, 2, (int64_t[]){4, 16});
    must(ag_gguf_writer_begin(&w, scratch_path("made.gguf"), &err));
    must(ag_gguf_writer_add(&w, zeros, sizeof zeros, &err));
    must(ag_gguf_writer_commit(&w, &err));
    must(ag_gguf_open(&g, scratch_path("made.gguf"), &err));
    ag_status status = ag_description_from_gguf(&d, &g, &arena, &err);
    ag_gguf_close(&g);
    return status;
}

static void experts(ag_gguf_writer *w) { ag_gguf_put_u32(w, "llama.expert_count", 8); }
static void unscaled_yarn(ag_gguf_writer *w) { ag_gguf_put_text(w, "llama.rope.scaling.type", "yarn"); }
static void mrope(ag_gguf_writer *w) { ag_gguf_put_text(w, "llama.rope.scaling.type", "mrope"); }
static void longrope(ag_gguf_writer *w) { ag_gguf_put_text(w, "llama.rope.scaling.type", "longrope"); }
static void partial(ag_gguf_writer *w) { ag_gguf_put_u32(w, "llama.rope.dimension_count", 1); }
static void vocabulary(ag_gguf_writer *w) { ag_gguf_put_u32(w, "llama.vocab_size", 17); }
static void window(ag_gguf_writer *w) { ag_gguf_put_u32(w, "llama.attention.sliding_window", 17); }
static void adapter(ag_gguf_writer *w) { ag_gguf_put_text(w, "general.type", "adapter"); }

static void architectures_are_refused_by_name_before_anything_else(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *key, *says;
    } others[] = {{"qwen3moe", "qwen3moe.expert_count", "'qwen3moe' is not supported (a mixture of 128 experts); llama"},
                  {"granitehybrid", "granitehybrid.ssm.state_size", "'granitehybrid' is not supported (a state-space model)"},
                  {"falcon", "falcon.block_count", "'falcon' is not supported; llama"}};
    scratch_dir_create();
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ag_gguf_writer w = {0};
        ag_gguf g;
        ag_description d;
        ag_gguf_put_text(&w, "general.architecture", others[i].architecture);
        ag_gguf_put_u32(&w, others[i].key, 128);
        must(ag_gguf_writer_begin(&w, scratch_path("other.gguf"), &err));
        must(ag_gguf_writer_commit(&w, &err));
        must(ag_gguf_open(&g, scratch_path("other.gguf"), &err));
        must_fail(AG_E_UNSUPPORTED, others[i].says, ag_description_from_gguf(&d, &g, &arena, &err));
        ag_gguf_close(&g);
    }
    scratch_dir_remove();
}

static void gguf_models_of_another_kind_are_refused(void **state)
{
    (void)state;
    scratch_dir_create();
    must(read_made(NULL, 2));
    must_fail(AG_E_UNSUPPORTED, "head dim is 1", read_made(NULL, 1));
    must_fail(AG_E_UNSUPPORTED, "8 experts", read_made(experts, 2));
    must_fail(AG_E_FORMAT, "llama.rope.scaling.factor", read_made(unscaled_yarn, 2));
    must_fail(AG_E_UNSUPPORTED, "'mrope'", read_made(mrope, 2));
    must_fail(AG_E_FORMAT, "longrope needs the tensors", read_made(longrope, 2));
    must_fail(AG_E_UNSUPPORTED, "1 rotated dimensions", read_made(partial, 2));
    must_fail(AG_E_FORMAT, "vocab_size is 17, token_embd.weight has 16 rows", read_made(vocabulary, 2));
    must_fail(AG_E_UNSUPPORTED, "sliding_window' 17", read_made(window, 2));
    must_fail(AG_E_UNSUPPORTED, "'adapter', not a model", read_made(adapter, 2));
    scratch_dir_remove();
}

static int free_arena(void **state)
{
    (void)state;
    ag_arena_free(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings_of_a_config_mean_the_same),
        cmocka_unit_test(parameters_are_counted_from_the_shapes),
        cmocka_unit_test(generation_configs_eos_comes_first_and_configs_is_added),
        cmocka_unit_test(families_add_their_scales_biases_and_window),
        cmocka_unit_test(layers_differ_as_their_family_says),
        cmocka_unit_test(what_cannot_be_described_is_refused_by_name),
        cmocka_unit_test(values_that_are_missing_or_make_no_sense_are_named),
        cmocka_unit_test(rope_frequencies_equal_transformers),
        cmocka_unit_test(scalings_equal_transformers_for_every_length),
        cmocka_unit_test(gguf_metadata_of_further_families_say_what_the_config_says),
        cmocka_unit_test(gguf_metadata_say_what_the_config_says),
        cmocka_unit_test(architectures_are_refused_by_name_before_anything_else),
        cmocka_unit_test(gguf_models_of_another_kind_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, free_arena);
}
