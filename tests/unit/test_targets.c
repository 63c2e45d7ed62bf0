#include "support/unit_test.h"

#include "adapter/targets.h"
#include "base/log.h"

static const ag_description tiny = {.L = 12, .C = 48, .H = 4, .G = 2, .D = 12, .F = 56, .V = 64};
static char logged[4096];

static void keep(void *user, ag_log_level level, const char *text)
{
    (void)user;
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s%s\n", level == AG_LOG_WARN ? "warn: " : "", text);
}

static ag_status of_names(ag_target_set *set, const char *const *names, size_t n, const int64_t *layers, size_t n_layers, ag_arena *arena,
                          ag_err *err)
{
    return ag_targets_select(set, &(ag_target_rules){.names = names, .n_names = n, .layers = layers, .n_layers = n_layers}, &tiny, arena, err);
}

static ag_status of_pattern(ag_target_set *set, const char *pattern, ag_arena *arena, ag_err *err)
{
    return ag_targets_select(set, &(ag_target_rules){.pattern = pattern}, &tiny, arena, err);
}

static bool is_in(const bool *modules, const char *path)
{
    for (int64_t i = 0; i < ag_modules_count(&tiny); i++)
        if (strcmp(ag_modules_get(&tiny, i).path, path) == 0) return modules[i];
    fail_msg("there is no module %s", path);
    return false;
}

static void names_select_whole_paths_and_dotted_ends(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    must(of_names(&set, (const char *const[]){"q_proj"}, 1, NULL, 0, &arena, &err));
    assert_int_equal(12, set.n_lora);
    must(of_names(&set, (const char *const[]){"model.layers.1.self_attn.v_proj", "layers.11.mlp.down_proj", "mlp.up_proj"}, 3,
                             NULL, 0, &arena, &err));
    assert_int_equal(14, set.n_lora);
    assert_true(is_in(set.lora, "model.layers.1.self_attn.v_proj") && is_in(set.lora, "model.layers.11.mlp.down_proj") && !is_in(set.lora, "model.layers.1.mlp.down_proj"));
    ag_arena_free(&arena);
}

static void names_that_select_nothing_or_too_much_are_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    must_fail(AG_E_CONFIG, "'proj' selects no module", of_names(&set, (const char *const[]){"proj"}, 1, NULL, 0, &arena, &err));
    must_fail(AG_E_CONFIG, "'' selects no module", of_names(&set, (const char *const[]){""}, 1, NULL, 0, &arena, &err));
    must_fail(AG_E_CONFIG, "'lm_head' selects 'lm_head'; only q_proj",
              of_names(&set, (const char *const[]){"q_proj", "lm_head"}, 2, NULL, 0, &arena, &err));
    must_fail(AG_E_CONFIG, "'self_attn' selects 'model.layers.0.self_attn'",
              of_names(&set, (const char *const[]){"self_attn"}, 1, NULL, 0, &arena, &err));
    must_fail(AG_E_CONFIG, "is empty", of_names(&set, NULL, 0, NULL, 0, &arena, &err));
    ag_arena_free(&arena);
}

static void the_embedding_can_have_a_pair(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    must(of_names(&set, (const char *const[]){"embed_tokens", "v_proj"}, 2, NULL, 0, &arena, &err));
    assert_int_equal(13, set.n_lora);
    assert_true(is_in(set.lora, "model.embed_tokens") && !is_in(set.lora, "lm_head"));
    must(of_pattern(&set, ".*(embed_tokens|11.*q_proj)", &arena, &err));
    assert_int_equal(2, set.n_lora);
    ag_arena_free(&arena);
}

static void saved_and_excluded_modules_get_no_pair(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    const char *const names[] = {"q_proj", "v_proj"}, *const saved[] = {"lm_head", "norm", "0.self_attn.q_proj"}, *const excluded[] = {"layers.3.self_attn.v_proj"};
    must(ag_targets_select(&set, &(ag_target_rules){.names = names, .n_names = 2, .saved = saved, .n_saved = 3, .exclude = excluded, .n_exclude = 1},
                           &tiny, &arena, &err));
    /* the name "0.self_attn.q_proj" ends the path of layer 10, too, but keeps pairs from layer 0 alone; both are saved */
    assert_int_equal(24 - 2 - 1, set.n_lora);
    assert_true(is_in(set.saved, "lm_head") && is_in(set.saved, "model.norm") && is_in(set.saved, "model.layers.7.input_layernorm"));
    assert_true(is_in(set.saved, "model.layers.0.self_attn.q_proj") && is_in(set.saved, "model.layers.10.self_attn.q_proj"));
    assert_true(!is_in(set.lora, "model.layers.0.self_attn.q_proj") && !is_in(set.lora, "model.layers.3.self_attn.v_proj"));
    must(ag_targets_select(&set, &(ag_target_rules){.pattern = "all-linear", .exclude_pattern = ".*mlp.*"}, &tiny, &arena, &err));
    assert_int_equal(48, set.n_lora);
    const char *const containers[] = {"self_attn"}, *const missing[] = {"classifier"};
    must_fail(AG_E_CONFIG, "modules_to_save 'self_attn' selects 'model.layers.0.self_attn', which is no single layer",
              ag_targets_select(&set, &(ag_target_rules){.names = names, .n_names = 2, .saved = containers, .n_saved = 1}, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "modules_to_save 'classifier' selects no module",
              ag_targets_select(&set, &(ag_target_rules){.names = names, .n_names = 2, .saved = missing, .n_saved = 1}, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "leave no module of target_modules",
              ag_targets_select(&set, &(ag_target_rules){.names = names, .n_names = 1, .exclude = names, .n_exclude = 1}, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "exclude_modules '(' is no regular expression",
              ag_targets_select(&set, &(ag_target_rules){.names = names, .n_names = 1, .exclude_pattern = "("}, &tiny, &arena, &err));
    ag_arena_free(&arena);
}

static void keys_of_patterns_are_expressions_for_the_end_of_a_path(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    int64_t *first;
    static const char *const keys[] = {"layers.1.self_attn.q_proj", "(q|k)_proj", "^model.layers.2.mlp.up_proj", "proj"};
    static const struct {
        const char *path;
        int64_t first;
    } want[] = {{"model.layers.1.self_attn.q_proj", 0}, {"model.layers.11.self_attn.q_proj", 1}, {"model.layers.1.self_attn.k_proj", 1},
                {"model.layers.2.mlp.up_proj", 2},      {"model.layers.3.mlp.up_proj", -1},     {"model.layers.0.self_attn.v_proj", -1}};
    must(ag_targets_first_keys(&first, keys, 4, "rank_pattern", &tiny, &arena, &err));
    for (size_t k = 0; k < sizeof want / sizeof *want; k++)
        for (int64_t i = 0; i < ag_modules_count(&tiny); i++)
            if (strcmp(ag_modules_get(&tiny, i).path, want[k].path) == 0) assert_int_equal(want[k].first, first[i]);
    must_fail(AG_E_CONFIG, "rank_pattern ')(' is no regular expression",
              ag_targets_first_keys(&first, (const char *const[]){")("}, 1, "rank_pattern", &tiny, &arena, &err));
    ag_arena_free(&arena);
}

static void the_layers_list_can_have_a_name(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    const int64_t layers[] = {3, 11};
    const char *const names[] = {"q_proj"}, *const here[] = {"layers"}, *const elsewhere[] = {"h", "blocks"};
    must(ag_targets_select(&set, &(ag_target_rules){.names = names, .n_names = 1, .layers = layers, .n_layers = 2, .layers_patterns = here,
                                                    .n_layers_patterns = 1}, &tiny, &arena, &err));
    assert_int_equal(2, set.n_lora);
    must_fail(AG_E_CONFIG, "'q_proj' selects no module",
              ag_targets_select(&set, &(ag_target_rules){.names = names, .n_names = 1, .layers = layers, .n_layers = 2,
                                                         .layers_patterns = elsewhere, .n_layers_patterns = 2}, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "layers_pattern stands without layers_to_transform",
              ag_targets_select(&set, &(ag_target_rules){.names = names, .n_names = 1, .layers_patterns = here, .n_layers_patterns = 1}, &tiny,
                                &arena, &err));
    must_fail(AG_E_CONFIG, "exclude each other",
              ag_targets_select(&set, &(ag_target_rules){.pattern = ".*q_proj", .layers = layers, .n_layers = 1}, &tiny, &arena, &err));
    ag_arena_free(&arena);
}

static void layers_bound_what_ends_of_paths_select(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    const int64_t layers[] = {3, 7};
    const char *const names[] = {"q_proj", "model.layers.5.mlp.up_proj"};
    must(of_names(&set, names, 2, layers, 2, &arena, &err));
    assert_int_equal(3, set.n_lora);
    assert_true(is_in(set.lora, "model.layers.3.self_attn.q_proj") && is_in(set.lora, "model.layers.7.self_attn.q_proj") && is_in(set.lora, "model.layers.5.mlp.up_proj"));
    const int64_t outside[] = {12};
    must_fail(AG_E_CONFIG, "'q_proj' selects no module", of_names(&set, names, 1, outside, 1, &arena, &err));
    ag_arena_free(&arena);
}

static void patterns_must_match_whole_paths(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    must(of_pattern(&set, ".*layers\\.1\\..*\\.(k|up)_proj", &arena, &err));
    assert_int_equal(2, set.n_lora);
    assert_true(is_in(set.lora, "model.layers.1.self_attn.k_proj") && is_in(set.lora, "model.layers.1.mlp.up_proj"));
    must(of_pattern(&set, ".*q_proj", &arena, &err));
    assert_int_equal(12, set.n_lora);
    must(of_pattern(&set, "all-linear", &arena, &err));
    assert_int_equal(12 * AG_N_PROJ, set.n_lora);
    must_fail(AG_E_CONFIG, "selects no module", of_pattern(&set, "q_proj", &arena, &err));
    must_fail(AG_E_CONFIG, "no regular expression", of_pattern(&set, "(q_proj", &arena, &err));
    must_fail(AG_E_CONFIG, "only q_proj", of_pattern(&set, ".*", &arena, &err));
    ag_arena_free(&arena);
}

static void a_pattern_cannot_keep_the_program_busy(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    must_fail(AG_E_CONFIG, "takes too long", of_pattern(&set, "(.*)*(.*)*(.*)*(.*)*[0-9][A-Z]", &arena, &err));
    char longest[AG_TARGETS_MAX_PATTERN + 2];
    memset(longest, 'a', sizeof longest);
    longest[AG_TARGETS_MAX_PATTERN + 1] = 0;
    must_fail(AG_E_CONFIG, "has 1025 bytes", of_pattern(&set, longest, &arena, &err));
    ag_arena_free(&arena);
}

static void auto_common_keeps_what_is_common(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    const char *const *names;
    size_t n;
    must(ag_targets_choose(&names, &n, AG_TARGETS_AUTO_COMMON, NULL, 0, &tiny, &arena, &err));
    assert_int_equal(7, n);
    logged[0] = 0;
    must(ag_targets_choose(&names, &n, AG_TARGETS_AUTO_COMMON, (const char *const[]){"v_proj", "c_attn", "q_proj"}, 3, &tiny, &arena, &err));
    assert_int_equal(2, n);
    assert_string_equal("v_proj", names[0]);
    assert_string_equal("warn: target module 'c_attn' is not in the model and is left out\ntarget modules: v_proj, q_proj\n", logged);
    must_fail(AG_E_CONFIG, "none of the target modules",
              ag_targets_choose(&names, &n, AG_TARGETS_AUTO_COMMON, (const char *const[]){"c_attn"}, 1, &tiny, &arena, &err));
    ag_arena_free(&arena);
}

static void discover_required_warns_where_explicit_refuses(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    const char *const *names;
    size_t n;
    const char *const asked[] = {"mlp.up_proj", "layers\\.\\d+\\.self_attn\\.k_proj", "c_attn"};
    logged[0] = 0;
    must(ag_targets_choose(&names, &n, AG_TARGETS_DISCOVER_REQUIRED, asked, 3, &tiny, &arena, &err));
    assert_int_equal(2, n);
    assert_non_null(strstr(logged, "warn: target module 'c_attn'"));
    must_fail(AG_E_CONFIG, "target module 'c_attn' is not in the model",
              ag_targets_choose(&names, &n, AG_TARGETS_EXPLICIT, asked, 3, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "target_modules is empty",
              ag_targets_choose(&names, &n, AG_TARGETS_DISCOVER_REQUIRED, NULL, 0, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "none of the target modules",
              ag_targets_choose(&names, &n, AG_TARGETS_DISCOVER_REQUIRED, asked + 2, 1, &tiny, &arena, &err));
    ag_arena_free(&arena);
}

static void plain_patterns_are_told_from_others(void **state)
{
    (void)state;
    static const char *const plain[] = {".*q_proj", "^model\\.layers\\.0\\..*\\.q_proj$", "q_proj", ".*\\.mlp\\..*", "^a", "a\\$", "\\.\\*"};
    static const char *const other[] = {"", ".*.*q", "a.b", "(k|up)_proj", "a$b", "a\\d", "[qk]_proj", "a+", "a\\", "b^a", "q?", "\xff"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!ag_targets_pattern_is_plain(plain[i])) fail_msg("%s is plain", plain[i]);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (ag_targets_pattern_is_plain(other[i])) fail_msg("%s is not plain", other[i]);
}

int main(void)
{
    ag_log_set_sink(keep, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_select_whole_paths_and_dotted_ends),
        cmocka_unit_test(names_that_select_nothing_or_too_much_are_refused),
        cmocka_unit_test(the_embedding_can_have_a_pair),
        cmocka_unit_test(saved_and_excluded_modules_get_no_pair),
        cmocka_unit_test(keys_of_patterns_are_expressions_for_the_end_of_a_path),
        cmocka_unit_test(the_layers_list_can_have_a_name),
        cmocka_unit_test(layers_bound_what_ends_of_paths_select),
        cmocka_unit_test(patterns_must_match_whole_paths),
        cmocka_unit_test(a_pattern_cannot_keep_the_program_busy),
        cmocka_unit_test(auto_common_keeps_what_is_common),
        cmocka_unit_test(discover_required_warns_where_explicit_refuses),
        cmocka_unit_test(plain_patterns_are_told_from_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
