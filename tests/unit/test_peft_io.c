/* Adapters made by PEFT are read to the bit, our own file says what PEFT's says, and what does not fit is refused by name. */
#include "support/golden.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "adapter/peft_io.h"
#include "base/fs.h"
#include "base/json.h"
#include "format/safetensors.h"

static const ag_description tiny = {.L = 2, .C = 48, .H = 4, .G = 2, .D = 12, .F = 56, .V = 64};

static const char *golden_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/golden/adapter/%s", AGOGE_TESTS_DIR, name);
    return path;
}

static void peft_adapters_are_read_to_the_bit(void **state)
{
    (void)state;
    ag_err err;
    static const struct {
        const char *name;
        size_t n_pairs;
        float scale;
        double dropout;
    } cases[] = {{"all7", 14, 1, 0.25}, {"rslora", 14, 8.485281374f, 0}, {"qv", 4, 16.0f / 3, 0}, {"regex", 2, 2.5f, 0},
                 {"layers", 2, 4, 0},   {"pattern", 6, 0, 0} /* several scales: below */};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        ag_peft *p;
        must(ag_peft_open(&p, golden_path(cases[c].name), &tiny, &err));
        char file[128];
        snprintf(file, sizeof file, "adapter/%s/adapter_model.safetensors", cases[c].name);
        golden g = golden_open(file);
        assert_int_equal(cases[c].n_pairs, p->adapter.n_pairs);
        assert_true(p->config.lora.dropout == cases[c].dropout);
        assert_string_equal("tiny/llama", p->config.base_model);
        assert_string_equal("0000000000000000000000000000000000000000", p->config.revision);
        for (size_t i = 0; i < p->adapter.n_pairs; i++) {
            const ag_adapter_pair *pair = &p->adapter.pairs[i];
            const ag_lora_view *view = &p->adapter.layers[pair->layer].pair[pair->linear->first];
            char name[AG_ADAPTER_NAME_MAX];
            ag_adapter_tensor_name(name, pair, 'A');
            assert_memory_equal(golden_get(&g, name, "F32", pair->R * pair->K), view->a, (size_t)(pair->R * pair->K) * 4);
            ag_adapter_tensor_name(name, pair, 'B');
            assert_memory_equal(golden_get(&g, name, "F32", pair->N * pair->R), view->b, (size_t)(pair->N * pair->R) * 4);
            assert_true((cases[c].scale == 0 || pair->scale == cases[c].scale) && view->scale == pair->scale && view->R == pair->R && !view->da);
        }
        golden_close(&g);
        ag_peft_close(&p);
        assert_null(p);
    }
}

static void patterns_give_modules_ranks_and_alphas_of_their_own(void **state)
{
    (void)state;
    ag_err err;
    ag_peft *p;
    must(ag_peft_open(&p, golden_path("pattern"), &tiny, &err));
    static const struct {
        int64_t R;
        float scale;
    } want[] = {{6, 8.0f / 6}, {4, 3.0f / 4}, {2, 4}, {6, 16.0f / 6}, {4, 3.0f / 4}, {4, 2}}; /* q, v, down of two layers */
    assert_int_equal(6, p->adapter.n_pairs);
    for (int i = 0; i < 6; i++) assert_true(p->adapter.pairs[i].R == want[i].R && p->adapter.pairs[i].scale == want[i].scale);
    ag_peft_close(&p);
}

static void new_pairs_are_drawn_as_peft_draws_them(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_adapter a;
    const char *const seven[] = {"down_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"};
    must(ag_adapter_plan(&a, &tiny, &(ag_lora_config){.r = 3, .alpha = 6, .targets = seven, .n_targets = 7}, &arena, &err));
    golden g = golden_open("adapter/init.safetensors");
    float *params = malloc(a.n_params * sizeof *params), *grads = malloc(a.n_params * sizeof *grads);
    memset(params, 0xff, a.n_params * sizeof *params);
    ag_adapter_bind(&a, params, grads);
    must(ag_adapter_draw(&a, NULL, 42, 1, &err));
    size_t n_seen = 0;
    for (size_t i = 0; i < a.n_pairs; i++) {
        const ag_adapter_pair *pair = &a.pairs[i];
        char name[AG_ADAPTER_NAME_MAX];
        ag_adapter_tensor_name(name, pair, 'A');
        assert_memory_equal(golden_get(&g, name, "F32", pair->R * pair->K), params + pair->a, (size_t)(pair->R * pair->K) * 4);
        ag_adapter_tensor_name(name, pair, 'B');
        assert_memory_equal(golden_get(&g, name, "F32", pair->N * pair->R), params + pair->b, (size_t)(pair->N * pair->R) * 4);
        assert_int_equal(n_seen, pair->a); /* the arrays have no holes, A before B */
        n_seen = pair->b + (size_t)(pair->N * pair->R);
        assert_ptr_equal(grads + pair->b, a.layers[pair->layer].pair[pair->linear->first].db);
    }
    assert_int_equal(n_seen, a.n_params);
    golden_close(&g);
    free(params);
    free(grads);
    ag_arena_free(&arena);
}

/* PEFT writes target_modules in the order of a set. */
static bool same_value(const json_t *a, const json_t *b)
{
    if (!json_is_array(a)) return json_equal((json_t *)a, (json_t *)b);
    size_t n_found = 0;
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t k = 0; k < json_array_size(b); k++) n_found += json_equal(json_array_get(a, i), json_array_get(b, k));
    return n_found == json_array_size(a) && n_found == json_array_size(b);
}

static void what_is_written_reads_back_and_says_what_peft_says(void **state)
{
    (void)state;
    ag_err err;
    static const char *const names[] = {"all7", "rslora", "regex", "layers", "pattern"};
    for (size_t c = 0; c < 5; c++) {
        const char *dir = scratch_dir_create();
        ag_peft *p, *again;
        must(ag_peft_open(&p, golden_path(names[c]), &tiny, &err));
        must(ag_peft_save(&p->adapter, dir, p->config.base_model, p->config.revision, &err));
        must(ag_peft_open(&again, dir, &tiny, &err));
        assert_int_equal(p->adapter.n_params, again->adapter.n_params);
        assert_memory_equal(p->adapter.params, again->adapter.params, p->adapter.n_params * sizeof(float));

        /* The weights are the very bytes that PEFT wrote; of the config every key has PEFT's value. */
        char peft_file[600];
        snprintf(peft_file, sizeof peft_file, "%s/adapter_model.safetensors", golden_path(names[c]));
        ag_map ours, theirs;
        must(ag_map_open(&ours, scratch_path("adapter_model.safetensors"), &err));
        must(ag_map_open(&theirs, peft_file, &err));
        assert_int_equal(theirs.n, ours.n);
        assert_memory_equal(theirs.bytes, ours.bytes, ours.n);
        ag_map_close(&ours);
        ag_map_close(&theirs);

        json_t *config, *want;
        snprintf(peft_file, sizeof peft_file, "%s/adapter_config.json", golden_path(names[c]));
        must(ag_json_load(&want, peft_file, 1 << 20, &err));
        must(ag_json_load(&config, scratch_path("adapter_config.json"), 1 << 20, &err));
        const char *key, *before = "";
        json_t *value;
        json_object_foreach(config, key, value)
        {
            if (!same_value(value, json_object_get(want, key))) fail_msg("%s: '%s' differs from PEFT's", names[c], key);
            assert_true(strcmp(before, key) < 0);
            before = key;
        }
        ag_json_free(&config);
        ag_json_free(&want);
        ag_peft_close(&p);
        ag_peft_close(&again);
        scratch_dir_remove();
    }
}

static ag_status parse(const char *text, ag_err *err)
{
    ag_arena arena = {0};
    ag_peft_config config;
    const ag_status status = ag_peft_config_parse(&config, text, strlen(text), "a.json", &arena, err);
    ag_arena_free(&arena);
    return status;
}

static void what_cannot_be_followed_is_refused_by_its_key(void **state)
{
    (void)state;
    ag_err err;
    static const char *const settings[] = {"\"trainable_token_indices\": [1, 2]", "\"lora_bias\": true", "\"use_qalora\": true",
                                           "\"layer_replication\": [[0, 1]]", "\"fan_in_fan_out\": true", "\"target_parameters\": [\"w\"]",
                                           "\"ensure_weight_tying\": true", "\"alora_invocation_tokens\": [3]"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char text[200], part[100];
        snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], %s}", settings[i]);
        snprintf(part, sizeof part, "a.json: '%.*s' is set, which this version cannot follow", (int)(strchr(settings[i] + 1, '"') - settings[i] - 1),
                 settings[i] + 1);
        must_fail(AG_E_UNSUPPORTED, part, parse(text, &err));
    }
    static const char *const kinds[] = {"LOHA", "LOKR", "IA3", "ADALORA", "PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "OFT", "BOFT", "VERA", "LN_TUNING",
                                        "TRAINABLE_TOKENS", "XLORA"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char text[200], part[100];
        snprintf(text, sizeof text, "{\"peft_type\": \"%s\", \"target_modules\": [\"q_proj\"]}", kinds[i]);
        snprintf(part, sizeof part, "'peft_type' is '%s'; only 'LORA'", kinds[i]);
        must_fail(AG_E_UNSUPPORTED, part, parse(text, &err));
    }
}

static void a_config_needs_its_kinds_of_values(void **state)
{
    (void)state;
    ag_err err;
    must(parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"some_new_option\": null}", &err));
    must_fail(AG_E_UNSUPPORTED, "a.json: 'some_new_option' is set",
              parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"some_new_option\": 3}", &err));
    must_fail(AG_E_UNSUPPORTED, "'peft_type' is 'IA3'; only 'LORA'", parse("{\"peft_type\": \"IA3\"}", &err));
    must_fail(AG_E_UNSUPPORTED, "'peft_type' is 'missing'", parse("{}", &err));
    must_fail(AG_E_FORMAT, "must hold a JSON object", parse("[]", &err));
    must_fail(AG_E_FORMAT, "'target_modules' must be", parse("{\"peft_type\": \"LORA\", \"target_modules\": []}", &err));
    must_fail(AG_E_FORMAT, "item 1 of 'target_modules'", parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"a\", 3]}", &err));
    must_fail(AG_E_FORMAT, "'r'", parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"a\"], \"r\": true}", &err));
    must_fail(AG_E_FORMAT, "'r'", parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"a\"], \"r\": 0}", &err));
    must_fail(AG_E_FORMAT, "'q_proj' of 'rank_pattern' must be a number",
              parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"rank_pattern\": {\"q_proj\": \"6\"}}", &err));
    must_fail(AG_E_FORMAT, "'layers_to_transform' must be",
              parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"a\"], \"layers_to_transform\": [1.5]}", &err));
    must_fail(AG_E_FORMAT, "item 0 of 'layers_pattern'",
              parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"a\"], \"layers_to_transform\": 1, \"layers_pattern\": [1]}", &err));
    must_fail(AG_E_FORMAT, "'modules_to_save' must be a list",
              parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"a\"], \"modules_to_save\": \"lm_head\"}", &err));
    must_fail(AG_E_UNSUPPORTED, "'bias' is 'some'; 'none', 'all' and 'lora_only'",
              parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"a\"], \"bias\": \"some\"}", &err));
    must_fail(AG_E_UNSUPPORTED, "'init_lora_weights' is 'pissa'",
              parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"a\"], \"init_lora_weights\": \"pissa\"}", &err));
}

/* Writes an adapter that selects q_proj of two layers, with `entries` as its tensors. */
static ag_status open_with(const ag_st_entry *entries, size_t n, ag_err *err)
{
    const char *dir = scratch_dir_create();
    static const char config[] = "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"q_proj\"]}";
    ag_peft *p = NULL;
    ag_status status = ag_file_publish(scratch_path("adapter_config.json"), config, strlen(config), err);
    if (!status) status = ag_safetensors_write(scratch_path("adapter_model.safetensors"), entries, n, AG_ST_ORDER_LIBRARY, NULL, 0, err);
    if (!status) status = ag_peft_open(&p, dir, &tiny, err);
    assert_true((p != NULL) == (status == AG_OK));
    ag_peft_close(&p);
    scratch_dir_remove();
    return status;
}

static void tensors_must_be_exactly_the_pairs_of_the_config(void **state)
{
    (void)state;
    ag_err err;
    static float numbers[2 * 96];
    ag_st_entry e[5] = {
        {.name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", .dtype = AG_ST_F32, .rank = 2, .dim = {2, 48}},
        {.name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", .dtype = AG_ST_F32, .rank = 2, .dim = {48, 2}},
        {.name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", .dtype = AG_ST_F16, .rank = 2, .dim = {2, 48}},
        {.name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", .dtype = AG_ST_BF16, .rank = 2, .dim = {48, 2}},
        {.name = "base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector", .dtype = AG_ST_F32, .rank = 1, .dim = {48}},
    };
    for (int i = 0; i < 5; i++) e[i].data = numbers;
    must(open_with(e, 4, &err));
    must_fail(AG_E_FORMAT, "lora_magnitude_vector' belongs to no module", open_with(e, 5, &err));
    must_fail(AG_E_FORMAT, "layers.1.self_attn.q_proj.lora_A.weight' has no counterpart", open_with(e, 3, &err));
    must_fail(AG_E_FORMAT, "selects model.layers.1.self_attn.q_proj, but there is no tensor", open_with(e, 2, &err));
    e[3].dim[0] = 24;
    must_fail(AG_E_SHAPE, "BF16 [24,2], but rank 2 on this base model needs [48,2]", open_with(e, 4, &err));
    e[3].dim[0] = 48;
    e[3].dtype = AG_ST_I16;
    must_fail(AG_E_UNSUPPORTED, "is I16; adapters are read in", open_with(e, 4, &err));
    e[3].dtype = AG_ST_BF16;
    numbers[5] = 1e39;
    must_fail(AG_E_DATA, "number 5 of tensor", open_with(e, 4, &err));
    numbers[5] = 0;
}

static void a_folder_without_an_adapter_is_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_peft *p = NULL;
    const char *dir = scratch_dir_create();
    must_fail(AG_E_NOT_FOUND, "is no adapter: it has no adapter_config.json", ag_peft_open(&p, dir, &tiny, &err));
    static const char config[] = "{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"]}";
    must(ag_file_publish(scratch_path("adapter_config.json"), config, strlen(config), &err));
    must(ag_file_publish(scratch_path("adapter_model.bin"), "x", 1, &err));
    must_fail(AG_E_NOT_FOUND, "adapter_model.bin can hold code and is not read", ag_peft_open(&p, dir, &tiny, &err));
    static const char none[] = "{\"peft_type\": \"LORA\", \"target_modules\": [\"c_attn\"]}";
    must(ag_file_publish(scratch_path("adapter_config.json"), none, strlen(none), &err));
    must_fail(AG_E_CONFIG, "adapter_config.json: target_modules 'c_attn' selects no module", ag_peft_open(&p, dir, &tiny, &err));
    scratch_dir_remove();
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_adapter a;
    ag_lora_config c = {.r = 0, .alpha = 8, .pattern = "all-linear"};
    must_fail(AG_E_CONFIG, "rank r is 0", ag_adapter_plan(&a, &tiny, &c, &arena, &err));
    c.r = 513;
    must_fail(AG_E_CONFIG, "rank r is 513; give 1 to 512", ag_adapter_plan(&a, &tiny, &c, &arena, &err));
    c.r = 8, c.alpha = 0;
    must_fail(AG_E_CONFIG, "lora_alpha is 0", ag_adapter_plan(&a, &tiny, &c, &arena, &err));
    c.alpha = 8;
    const ag_lora_override rank = {"q_proj", 2.5}, alpha = {"q_proj", 0};
    c.ranks = &rank, c.n_ranks = 1;
    must_fail(AG_E_CONFIG, "rank r is 2.5", ag_adapter_plan(&a, &tiny, &c, &arena, &err));
    c.n_ranks = 0, c.alphas = &alpha, c.n_alphas = 1;
    must_fail(AG_E_CONFIG, "lora_alpha is 0", ag_adapter_plan(&a, &tiny, &c, &arena, &err));
    c.n_alphas = 0, c.dropout = 1;
    must_fail(AG_E_CONFIG, "lora_dropout is 1", ag_adapter_plan(&a, &tiny, &c, &arena, &err));
    ag_arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peft_adapters_are_read_to_the_bit),
        cmocka_unit_test(patterns_give_modules_ranks_and_alphas_of_their_own),
        cmocka_unit_test(new_pairs_are_drawn_as_peft_draws_them),
        cmocka_unit_test(what_is_written_reads_back_and_says_what_peft_says),
        cmocka_unit_test(what_cannot_be_followed_is_refused_by_its_key),
        cmocka_unit_test(a_config_needs_its_kinds_of_values),
        cmocka_unit_test(tensors_must_be_exactly_the_pairs_of_the_config),
        cmocka_unit_test(a_folder_without_an_adapter_is_refused),
        cmocka_unit_test(numbers_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
