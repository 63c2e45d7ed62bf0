/* Reports about models and weight files, character by character. */
#include "model/inspect.h"

#include "support/unit_test.h"

static ag_err err;
#define GOLDEN AGOGE_TESTS_DIR "/golden/"

static void safetensors_are_listed_by_name_with_their_metadata(void **state)
{
    (void)state;
    ag_str s = {0};
    must(ag_inspect_safetensors(&s, GOLDEN "safetensors/library.safetensors", &err));
    static const char head[] = "{\n  \"metadata\": {\n    \"format\": \"pt\"\n  },\n  \"tensors\": {\n    \"a.f32\": {\n      \"shape\": [],\n"
                               "      \"dtype\": \"F32\"\n    },\n    \"b.f32\": {\n      \"shape\": [\n        2,\n        3\n      ],\n"
                               "      \"dtype\": \"F32\"\n    },\n";
    assert_memory_equal(head, s.text, sizeof head - 1);
    ag_str_clear(&s);
    must_fail(AG_E_NOT_FOUND, "/nothing", ag_inspect_safetensors(&s, "/nothing", &err));
    must_fail(AG_E_FORMAT, "config.json", ag_inspect_safetensors(&s, GOLDEN "gguf/tiny/config.json", &err));
    assert_int_equal(0, s.n);
    ag_str_free(&s);
}

static void metadata_come_from_the_config_alone(void **state)
{
    (void)state;
    ag_str s = {0};
    must(ag_inspect_model_metadata(&s, GOLDEN "gguf/tiny", "some/model", NULL, &err));
    assert_string_equal("{\n  \"model_id\": \"some/model\",\n  \"revision\": null,\n  \"model_type\": \"llama\",\n  \"architectures\": [\n"
                        "    \"LlamaForCausalLM\"\n  ],\n  \"torch_dtype\": \"bfloat16\",\n  \"vocab_size\": 48,\n  \"hidden_size\": 32,\n"
                        "  \"num_hidden_layers\": 2,\n  \"num_attention_heads\": 4,\n  \"has_safetensors\": true,\n  \"has_bin\": false,\n"
                        "  \"has_custom_code\": false\n}", s.text);
    ag_str_clear(&s);
    must(ag_inspect_model_metadata(&s, GOLDEN "gguf/qwen2.f32.gguf", "q", "main", &err));
    assert_string_equal("{\n  \"model_id\": \"q\",\n  \"revision\": \"main\",\n  \"model_type\": \"qwen2\",\n  \"architectures\": [\n"
                        "    \"Qwen2ForCausalLM\"\n  ],\n  \"torch_dtype\": \"unknown\",\n  \"vocab_size\": 40,\n  \"hidden_size\": 32,\n"
                        "  \"num_hidden_layers\": 1,\n  \"num_attention_heads\": 4,\n  \"has_safetensors\": false,\n  \"has_bin\": false,\n"
                        "  \"has_custom_code\": false\n}", s.text);
    ag_str_clear(&s);
    must_fail(AG_E_NOT_FOUND, "no config.json", ag_inspect_model_metadata(&s, GOLDEN "safetensors", "x", NULL, &err));
    ag_str_free(&s);
}

#define LEAF(name, count) "    \"" name "\": {\n      \"count\": " count ",\n      \"types\": [\n        \"Linear\"\n      ]\n    }"
#define SEVEN(count)                                                                                                              \
    LEAF("q_proj", count) ",\n" LEAF("k_proj", count) ",\n" LEAF("v_proj", count) ",\n" LEAF("o_proj", count) ",\n"               \
    LEAF("gate_proj", count) ",\n" LEAF("up_proj", count) ",\n" LEAF("down_proj", count)
#define RECOMMENDED                                                                                                               \
    "  \"recommended_common_targets\": [\n    \"q_proj\",\n    \"k_proj\",\n    \"v_proj\",\n    \"o_proj\",\n    \"gate_proj\",\n" \
    "    \"up_proj\",\n    \"down_proj\"\n  ],\n  \"custom_architecture_warnings\": [\n    \"Modules named gka"

static void check_targets(const char *path, const char *expected_begin)
{
    ag_str s = {0};
    must(ag_inspect_lora_targets(&s, path, "m", &err));
    if (strncmp(s.text, expected_begin, strlen(expected_begin)) != 0) assert_string_equal(expected_begin, s.text);
    ag_str_free(&s);
}

static void lora_targets_are_counted_in_the_models_order(void **state)
{
    (void)state;
    static const char tiny[] = "{\n  \"model_id\": \"m\",\n  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ],\n  \"candidate_leaf_names\": {\n"
                               SEVEN("2") ",\n" LEAF("lm_head", "1") "\n  },\n  \"full_module_matches_count\": 15,\n" RECOMMENDED;
    check_targets(GOLDEN "gguf/tiny", tiny);
    check_targets(GOLDEN "gguf/tiny.q4_1.gguf", tiny);
    /* A tied head is a module, though the file has no tensor for it. */
    check_targets(GOLDEN "gguf/qwen2", "{\n  \"model_id\": \"m\",\n  \"architectures\": [\n    \"Qwen2ForCausalLM\"\n  ],\n"
                                       "  \"candidate_leaf_names\": {\n" SEVEN("1") ",\n" LEAF("lm_head", "1")
                                       "\n  },\n  \"full_module_matches_count\": 8,\n" RECOMMENDED);
    /* Fused projections, from a folder and from a GGUF file. */
    static const char phi3[] = "{\n  \"model_id\": \"m\",\n  \"architectures\": [\n    \"Phi3ForCausalLM\"\n  ],\n  \"candidate_leaf_names\": {\n";
    check_targets(GOLDEN "families/phi3", phi3);
    check_targets(GOLDEN "families/phi3.gguf", phi3);
    for (int i = 0; i < 2; i++) {
        ag_str s = {0};
        must(ag_inspect_lora_targets(&s, i ? GOLDEN "families/phi3.gguf" : GOLDEN "families/phi3", "m", &err));
        assert_non_null(strstr(s.text, LEAF("qkv_proj", "2")));
        assert_non_null(strstr(s.text, LEAF("gate_up_proj", "2")));
        assert_non_null(strstr(s.text, "\"qkv_proj\",\n"));
        assert_null(strstr(s.text, "\"q_proj\""));
        ag_str_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors_are_listed_by_name_with_their_metadata),
        cmocka_unit_test(metadata_come_from_the_config_alone),
        cmocka_unit_test(lora_targets_are_counted_in_the_models_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
