/* Every kind of adapter that PEFT makes and agoge follows, on tiny models with biases: logits, merged logits and gradients against PEFT's
 * (tools/golden/adapter_kinds.py), files written and read, other layouts of names, and adapters that do not belong to the base. */
#include "support/adapter_golden.h"
#include "support/golden.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "adapter/peft_io.h"
#include "base/fs.h"
#include "base/log.h"
#include "format/safetensors.h"

#include <math.h>

#define ROOT AGOGE_TESTS_DIR "/golden/adapter_kinds/"
static ag_err err;

static const struct {
    const char *name, *base;
} kinds[] = {{"dora", "base"},      {"bias", "base"},      {"saved", "base"},      {"tables", "base"},   {"embedding", "base"},
             {"patterns", "base"},  {"tied_head", "tied"}, {"tied_embed", "tied"}, {"tied_pair", "tied"},
             {"granite_pair", "granite"}, {"granite_dora", "granite"}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static const char *path_of(const char *name)
{
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, 512, ROOT "%s", name);
    return path;
}

static void logits_merge_and_gradients_are_those_of_peft(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        adapter_distances d;
        const char *scratch = scratch_dir_create();
        must(adapter_golden_compare(&d, path_of(kinds[i].base), path_of(kinds[i].name), scratch, &err));
        if (!(d.logits <= 2e-5 && d.merged <= 2e-5 && d.attached_merged <= 2e-5 && d.gradient <= 3e-5))
            fail_msg("%s: logits %g, merged %g, merged against attached %g, gradient %g", kinds[i].name, d.logits, d.merged, d.attached_merged,
                     d.gradient);
        assert_int_equal(d.n_tensors, d.n_gradients); /* everything that is trained has a gradient in the file */
        assert_true(d.n_tensors > 0);
        scratch_dir_remove();
    }
}

/* One pair for projections that are fused (Phi-3, Granite 4). */
static void fused_modules_have_one_pair(void **state)
{
    (void)state;
    static const char *const families[] = {"phi3", "granite4"};
    for (size_t i = 0; i < 2; i++) {
        adapter_distances d;
        char base[500], adapter[512];
        snprintf(base, sizeof base, AGOGE_TESTS_DIR "/golden/families/%s", families[i]);
        snprintf(adapter, sizeof adapter, "%s/adapter", base);
        must(adapter_golden_compare(&d, base, adapter, NULL, &err));
        if (!(d.logits <= 1e-4 && d.gradient <= 1e-4 && d.n_gradients == d.n_tensors))
            fail_msg("%s: logits %g, gradient %g of %zu tensors", families[i], d.logits, d.gradient, d.n_gradients);
    }
}

static ag_model *open_base(const char *name)
{
    ag_model *m;
    must(ag_model_open(&m, path_of(name), NULL, &err));
    return m;
}

static void what_is_written_is_what_peft_wrote(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        const char *dir = scratch_dir_create();
        ag_model *base = open_base(kinds[i].base);
        ag_peft *p, *again;
        must(ag_peft_open_on(&p, path_of(kinds[i].name), base, NULL, &err));
        must(ag_peft_save(&p->adapter, dir, p->config.base_model, p->config.revision, &err));
        must(ag_peft_open_on(&again, dir, base, NULL, &err));
        assert_memory_equal(p->adapter.params, again->adapter.params, p->adapter.n_params * sizeof(float));
        char file[600];
        snprintf(file, sizeof file, "%s/adapter_model.safetensors", path_of(kinds[i].name));
        ag_safetensors ours, theirs;
        must(ag_safetensors_open(&ours, scratch_path("adapter_model.safetensors"), &err));
        must(ag_safetensors_open(&theirs, file, &err));
        for (size_t t = 0; t < ours.n_tensors; t++) {
            const ag_st_tensor *a = &ours.tensors[t], *b = ag_safetensors_find(&theirs, a->name);
            if (!b) fail_msg("%s: PEFT has no '%s'", kinds[i].name, a->name);
            assert_int_equal(a->bytes, b->bytes);
            assert_memory_equal(a->data, b->data, a->bytes);
        }
        for (size_t t = 0; t < theirs.n_tensors; t++) {
            const char *name = theirs.tensors[t].name;
            const bool is_spare = strstr(name, ".original_module.") || strstr(name, ".modules_to_save.");
            if (!is_spare && !ag_safetensors_find(&ours, name)) fail_msg("%s: we have no '%s'", kinds[i].name, name);
        }
        ag_safetensors_close(&ours);
        ag_safetensors_close(&theirs);
        ag_peft_close(&p);
        ag_peft_close(&again);
        ag_model_close(&base);
        scratch_dir_remove();
    }
}

static void older_layouts_hold_the_same_numbers(void **state)
{
    (void)state;
    static const char *const layouts[] = {"layout_bare", "layout_named", "layout_wrapped", "layout_torch"};
    ag_model *base = open_base("base");
    ag_peft *want, *got;
    must(ag_peft_open_on(&want, path_of("bias"), base, NULL, &err));
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        must(ag_peft_open_on(&got, path_of(layouts[i]), base, &(ag_peft_options){.allow_pickle = true}, &err));
        assert_int_equal(want->adapter.n_params, got->adapter.n_params);
        assert_memory_equal(want->adapter.params, got->adapter.params, want->adapter.n_params * sizeof(float));
        ag_peft_close(&got);
    }
    must_fail(AG_E_NOT_FOUND, "is not read without --allow-unsafe-serialization", ag_peft_open_on(&got, path_of("layout_torch"), base, NULL, &err));
    ag_peft_close(&want);
    ag_model_close(&base);
}

static char logged[8192];
static void keep(void *user, ag_log_level level, const char *text)
{
    (void)user, (void)level;
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", text);
}

static void an_adapter_of_another_base_is_refused_with_all_that_does_not_fit(void **state)
{
    (void)state;
    ag_peft *p;
    ag_model *base = open_base("base");
    base->d.F = 30, base->d.V = 50; /* as if the adapter came from a wider model */
    logged[0] = '\0';
    must_fail(AG_E_SHAPE, "layers.0.mlp.gate_proj.lora_B.weight' is F32 [24,2], but rank 2 on this base model needs [30,2]",
              ag_peft_open_on(&p, path_of("dora"), base, NULL, &err));
    assert_non_null(strstr(err.text, "more that do not fit (in the log)"));
    assert_non_null(strstr(logged, "layers.1.mlp.down_proj.lora_A.weight' is F32 [2,24], but rank 2 on this base model needs [2,30]"));
    must_fail(AG_E_SHAPE, "embed_tokens.weight' is F32 [41,16], but this base model needs [50,16]",
              ag_peft_open_on(&p, path_of("tables"), base, NULL, &err));
    base->d.F = 24, base->d.V = 41;
    base->d.L = 1;
    must_fail(AG_E_FORMAT, "layers.1.mlp.down_proj.bias' belongs to no module", ag_peft_open_on(&p, path_of("bias"), base, NULL, &err));
    base->d.L = 2;
    memset(base->d.has_bias, 0, sizeof base->d.has_bias);
    must_fail(AG_E_FORMAT, "bias' belongs to no module", ag_peft_open_on(&p, path_of("bias"), base, NULL, &err));
    ag_model_close(&base);
}

/* A pair beside the embedding, with what PEFT adds to the file where it is asked to save embedding layers. */
static void the_table_beside_an_embedding_pair_must_be_the_bases(void **state)
{
    (void)state;
    ag_model *base = open_base("base");
    ag_peft *p;
    ag_safetensors st;
    char file[600];
    const char *dir = scratch_dir_create();
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", path_of("embedding"));
    must(ag_safetensors_open(&st, file, &err));
    float table[41 * 16];
    for (int v = 0; v < 41; v++) ag_weight_row(table + v * 16, &base->embed, v, 0, 16);
    ag_st_entry entries[16] = {{.name = "base_model.model.model.embed_tokens.base_layer.weight", .dtype = AG_ST_F32, .rank = 2, .dim = {41, 16},
                                .data = table}};
    size_t n = 1;
    for (size_t i = 0; i < st.n_tensors; i++, n++) {
        entries[n] = (ag_st_entry){.name = st.tensors[i].name, .dtype = st.tensors[i].dtype, .rank = st.tensors[i].rank, .data = st.tensors[i].data};
        for (int d = 0; d < st.tensors[i].rank; d++) entries[n].dim[d] = st.tensors[i].dim[d];
    }
    ag_arena arena = {0};
    char *config;
    size_t n_config;
    snprintf(file, sizeof file, "%s/adapter_config.json", path_of("embedding"));
    must(ag_file_read(&config, &n_config, file, 1 << 16, &arena, &err));
    must(ag_file_publish(scratch_path("adapter_config.json"), config, n_config, &err));
    must(ag_safetensors_write(scratch_path("adapter_model.safetensors"), entries, n, AG_ST_ORDER_LIBRARY, NULL, 0, &err));
    must(ag_peft_open_on(&p, dir, base, NULL, &err));
    ag_peft_close(&p);
    table[77] += 1;
    must(ag_safetensors_write(scratch_path("adapter_model.safetensors"), entries, n, AG_ST_ORDER_LIBRARY, NULL, 0, &err));
    must_fail(AG_E_UNSUPPORTED, "is not the base's own table", ag_peft_open_on(&p, dir, base, NULL, &err));
    entries[0].dim[0] = 40;
    must(ag_safetensors_write(scratch_path("adapter_model.safetensors"), entries, n, AG_ST_ORDER_LIBRARY, NULL, 0, &err));
    must_fail(AG_E_SHAPE, "another vocabulary", ag_peft_open_on(&p, dir, base, NULL, &err));
    ag_arena_free(&arena);
    ag_safetensors_close(&st);
    ag_model_close(&base);
    scratch_dir_remove();
}

static void what_changes_the_model_cannot_stand_beside_a_shared_one(void **state)
{
    (void)state;
    ag_peft *p;
    ag_model *base = open_base("base");
    must_fail(AG_E_UNSUPPORTED, "trains more than pairs beside projections", ag_peft_open(&p, path_of("tables"), &base->d, &err));
    must(ag_peft_open(&p, path_of("patterns"), &base->d, &err));
    ag_peft_close(&p);
    ag_model_close(&base);
}

/* A new adapter computes what the base computes: B and the embedding's A are zero, magnitudes are the rows' lengths, copies the base's. */
static void a_new_adapter_changes_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        ag_model *base = open_base(kinds[i].base);
        ag_peft *p;
        must(ag_peft_open_on(&p, path_of(kinds[i].name), base, NULL, &err));
        must(ag_adapter_draw(&p->adapter, base, 42, 1, &err));
        ag_backend be;
        must(ag_backend_init_cpu(&be, ag_cpu_best_level(), 1, &err));
        float logits[2][41];
        for (int with = 0; with < 2; with++) {
            ag_decoder *dec;
            ag_kv_cache *cache;
            ag_decoder_options o = {.model = base, .backend = &be, .max_tokens = 4, .max_positions = 8};
            if (with) ag_adapter_use(&o, &p->adapter);
            must(ag_decoder_create(&dec, &o, &err));
            must(ag_kv_cache_create(&cache, base, 1, 8, &err));
            must(ag_decoder_infer(dec, cache, &(ag_decoder_run){.slot = 0, .n_new = 4}, 1, (const int32_t[]){5, 7, 40, 0}, logits[with], &err));
            ag_kv_cache_free(&cache);
            ag_decoder_free(&dec);
        }
        for (int v = 0; v < 41; v++)
            if (!(fabs((double)logits[0][v] - (double)logits[1][v]) < 1e-5)) fail_msg("%s changes logit %d", kinds[i].name, v);
        ag_peft_close(&p);
        ag_model_close(&base);
    }
}

int main(void)
{
    ag_log_set_sink(keep, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_merge_and_gradients_are_those_of_peft),
        cmocka_unit_test(fused_modules_have_one_pair),
        cmocka_unit_test(what_is_written_is_what_peft_wrote),
        cmocka_unit_test(older_layouts_hold_the_same_numbers),
        cmocka_unit_test(an_adapter_of_another_base_is_refused_with_all_that_does_not_fit),
        cmocka_unit_test(the_table_beside_an_embedding_pair_must_be_the_bases),
        cmocka_unit_test(what_changes_the_model_cannot_stand_beside_a_shared_one),
        cmocka_unit_test(a_new_adapter_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
