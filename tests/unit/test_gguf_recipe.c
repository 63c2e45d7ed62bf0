/* Which type each tensor gets, against what llama.cpp's quantizer chose for two models (tools/golden/gguf_quantized.py). */
#include "support/unit_test.h"

#include "adapter/gguf_recipe.h"
#include "base/fs.h"

static void tensors_get_the_types_that_llama_cpp_gives_them(void **state)
{
    (void)state;
    ag_arena arena = {0};
    ag_err err;
    char *text, *lines, *words;
    size_t n;
    int n_seen = 0;
    must(ag_file_read(&text, &n, AGOGE_TESTS_DIR "/golden/gguf/recipes.txt", 1 << 20, &arena, &err));
    for (char *line = strtok_r(text, "\n", &lines); line; line = strtok_r(NULL, "\n", &lines)) {
        const char *model = strtok_r(line, " ", &words), *recipe_name = strtok_r(NULL, " ", &words), *kind = strtok_r(NULL, " ", &words);
        const bool is_wide = strcmp(model, "wide") == 0, is_down = strcmp(kind, "ffn_down.weight") == 0;
        const ag_description d = {.L = 30, .H = 9, .G = 3, .tied = !is_wide};
        const bool is_in_layer = strncmp(kind, "attn", 4) == 0 || strncmp(kind, "ffn", 3) == 0;
        ag_gguf_recipe recipe;
        must(ag_gguf_recipe_parse(&recipe, recipe_name, &err));
        int layer = 0;
        for (const char *type; (type = strtok_r(NULL, " ", &words)); layer++, n_seen++) {
            char name[64];
            if (is_in_layer)
                snprintf(name, sizeof name, "blk.%d.%s", layer, kind);
            else
                snprintf(name, sizeof name, "%s", kind);
            const char *got = ag_weight_type_name(ag_gguf_recipe_type(recipe, name, is_down ? 1536 : is_wide ? 768 : 576, &d));
            if (strcmp(got, type) != 0) fail_msg("%s %s %s: %s, llama.cpp takes %s", model, recipe_name, name, got, type);
        }
    }
    assert_int_equal(n_seen, 4 * (7 * 30 + 1) + 4 * (7 * 30 + 2));
    ag_arena_free(&arena);
}

static void rows_of_odd_widths_fall_back(void **state)
{
    (void)state;
    const ag_description d = {.L = 4, .H = 4, .G = 2, .tied = true}, large = {.L = 80, .H = 64, .G = 8};
    assert_int_equal(ag_gguf_recipe_type(AG_RECIPE_Q4_K_M, "blk.1.attn_q.weight", 40, &d), AG_W_F16);
    assert_int_equal(ag_gguf_recipe_type(AG_RECIPE_Q8_0, "blk.1.attn_q.weight", 40, &d), AG_W_F16);
    assert_int_equal(ag_gguf_recipe_type(AG_RECIPE_Q6_K, "token_embd.weight", 40, &d), AG_W_F16);
    assert_int_equal(ag_gguf_recipe_type(AG_RECIPE_BF16, "token_embd.weight", 40, &d), AG_W_BF16);
    assert_int_equal(ag_gguf_recipe_type(AG_RECIPE_Q4_K_M, "blk.10.attn_v.weight", 8192, &large), AG_W_Q5_K); /* a 70B model's */
    assert_int_equal(ag_gguf_recipe_type(AG_RECIPE_Q4_K_M, "blk.9.attn_v.weight", 8192, &large), AG_W_Q6_K);
    assert_int_equal(ag_gguf_recipe_type(AG_RECIPE_Q4_K_M, "blk.10.attn_k.weight", 8192, &large), AG_W_Q4_K);
}

static void names_of_types_are_the_known_ones(void **state)
{
    (void)state;
    ag_err err;
    ag_gguf_recipe recipe;
    must(ag_gguf_recipe_parse(&recipe, "q5_k_m", &err));
    assert_int_equal(recipe, AG_RECIPE_Q5_K_M);
    assert_int_equal(ag_gguf_recipe_file_type(recipe), 17);
    must_fail(AG_E_USAGE, "f32 f16 bf16 q8_0 q4_0 q4_k_m q5_k_m q6_k", ag_gguf_recipe_parse(&recipe, "q4_k", &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_get_the_types_that_llama_cpp_gives_them),
        cmocka_unit_test(rows_of_odd_widths_fall_back),
        cmocka_unit_test(names_of_types_are_the_known_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
