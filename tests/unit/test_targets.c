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

static void names_select_whole_paths_and_dotted_ends(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    must(ag_targets_of_names(&set, (const char *const[]){"q_proj"}, 1, NULL, 0, &tiny, &arena, &err));
    assert_int_equal(12, set.n);
    must(ag_targets_of_names(&set, (const char *const[]){"model.layers.1.self_attn.v_proj", "layers.11.mlp.down_proj", "mlp.up_proj"}, 3,
                             NULL, 0, &tiny, &arena, &err));
    assert_int_equal(14, set.n);
    assert_true(set.on[1 * AG_N_PROJ + AG_PROJ_V] && set.on[11 * AG_N_PROJ + AG_PROJ_DOWN] && !set.on[1 * AG_N_PROJ + AG_PROJ_DOWN]);
    ag_arena_free(&arena);
}

static void names_that_select_nothing_or_too_much_are_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    must_fail(AG_E_CONFIG, "'proj' selects no module", ag_targets_of_names(&set, (const char *const[]){"proj"}, 1, NULL, 0, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "'' selects no module", ag_targets_of_names(&set, (const char *const[]){""}, 1, NULL, 0, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "'lm_head' selects 'lm_head'; only q_proj",
              ag_targets_of_names(&set, (const char *const[]){"q_proj", "lm_head"}, 2, NULL, 0, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "'embed_tokens' selects 'model.embed_tokens'",
              ag_targets_of_names(&set, (const char *const[]){"embed_tokens"}, 1, NULL, 0, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "'self_attn' selects 'model.layers.0.self_attn'",
              ag_targets_of_names(&set, (const char *const[]){"self_attn"}, 1, NULL, 0, &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "is empty", ag_targets_of_names(&set, NULL, 0, NULL, 0, &tiny, &arena, &err));
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
    must(ag_targets_of_names(&set, names, 2, layers, 2, &tiny, &arena, &err));
    assert_int_equal(3, set.n);
    assert_true(set.on[3 * AG_N_PROJ + AG_PROJ_Q] && set.on[7 * AG_N_PROJ + AG_PROJ_Q] && set.on[5 * AG_N_PROJ + AG_PROJ_UP]);
    const int64_t outside[] = {12};
    must_fail(AG_E_CONFIG, "'q_proj' selects no module", ag_targets_of_names(&set, names, 1, outside, 1, &tiny, &arena, &err));
    ag_arena_free(&arena);
}

static void patterns_must_match_whole_paths(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    must(ag_targets_of_pattern(&set, ".*layers\\.1\\..*\\.(k|up)_proj", &tiny, &arena, &err));
    assert_int_equal(2, set.n);
    assert_true(set.on[AG_N_PROJ + AG_PROJ_K] && set.on[AG_N_PROJ + AG_PROJ_UP]);
    must(ag_targets_of_pattern(&set, ".*q_proj", &tiny, &arena, &err));
    assert_int_equal(12, set.n);
    must(ag_targets_of_pattern(&set, "all-linear", &tiny, &arena, &err));
    assert_int_equal(12 * AG_N_PROJ, set.n);
    must_fail(AG_E_CONFIG, "selects no module", ag_targets_of_pattern(&set, "q_proj", &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "no regular expression", ag_targets_of_pattern(&set, "(q_proj", &tiny, &arena, &err));
    must_fail(AG_E_CONFIG, "only q_proj", ag_targets_of_pattern(&set, ".*", &tiny, &arena, &err));
    ag_arena_free(&arena);
}

static void a_pattern_cannot_keep_the_program_busy(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_target_set set;
    must_fail(AG_E_CONFIG, "takes too long", ag_targets_of_pattern(&set, "(.*)*(.*)*(.*)*(.*)*[0-9][A-Z]", &tiny, &arena, &err));
    char longest[AG_TARGETS_MAX_PATTERN + 2];
    memset(longest, 'a', sizeof longest);
    longest[AG_TARGETS_MAX_PATTERN + 1] = 0;
    must_fail(AG_E_CONFIG, "has 1025 bytes", ag_targets_of_pattern(&set, longest, &tiny, &arena, &err));
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
        cmocka_unit_test(layers_bound_what_ends_of_paths_select),
        cmocka_unit_test(patterns_must_match_whole_paths),
        cmocka_unit_test(a_pattern_cannot_keep_the_program_busy),
        cmocka_unit_test(auto_common_keeps_what_is_common),
        cmocka_unit_test(discover_required_warns_where_explicit_refuses),
        cmocka_unit_test(plain_patterns_are_told_from_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
