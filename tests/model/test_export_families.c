/* Models of every family written as GGUF files and as folders, and read back: the logits are still transformers'; with an
 * adapter merged, PEFT's. And what llama.cpp or transformers could not compute is refused. */
#include "adapter/export_gguf.h"
#include "adapter/export_hf.h"
#include "adapter/peft_io.h"
#include "base/log.h"
#include "base/num.h"
#include "format/safetensors.h"
#include "support/model_golden.h"
#include "support/op_check.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include <math.h>
#include <sys/stat.h>

#define FAMILIES AGOGE_TESTS_DIR "/golden/families/"
static ag_err err;

static void quiet(void *user, ag_log_level level, const char *text) { (void)user, (void)level, (void)text; }

/* The written model's logits against a golden's; for f32 and bf16 files of bf16 models nothing is lost. */
static void check_logits(const char *path, const char *name, bool merged, double tolerance)
{
    char file[128];
    ag_model *m;
    must(ag_model_open(&m, path, NULL, &err));
    snprintf(file, sizeof file, "families/%s/vectors.safetensors", name);
    golden rows = golden_open(file);
    snprintf(file, sizeof file, "families/%s/%svectors.safetensors", name, merged ? "adapter/" : "");
    golden want = golden_open(file);
    const model_difference d = model_compare(m, NULL, &rows, &want, ag_cpu_best_level());
    if (!(d.decoded <= tolerance)) fail_msg("%s: %g away", path, d.decoded);
    golden_close(&rows);
    golden_close(&want);
    ag_model_close(&m);
}

static void write_folder(const char *name, const ag_export_options *o)
{
    ag_export_report report;
    assert_int_equal(0, mkdir(scratch_path(name), 0700));
    must(ag_export_hf(scratch_path(name), o, &report, &err));
}

static const char *const models[] = {"qwen3",   "smollm3", "phi3",   "phi4mini", "granite4",
                                     "minicpm", "gemma2",  "gemma3", "dynamic"};
enum { N_MODELS = sizeof models / sizeof *models };
static bool is_one(const char *name, const char *other) { return strcmp(name, other) == 0; }

static void every_family_goes_into_gguf_and_folders_and_back(void **state)
{
    (void)state;
    ag_export_report report;
    for (int i = 0; i < N_MODELS; i++) {
        const char *name = models[i];
        ag_model *m;
        scratch_dir_create();
        char path[512];
        snprintf(path, sizeof path, FAMILIES "%s", name);
        must(ag_model_open(&m, path, NULL, &err));
        const ag_export_options o = {.base = m, .name = name, .n_threads = 2};
        write_folder("folder", &o);
        check_logits(scratch_path("folder"), name, false, 1e-4);
        if (is_one(name, "dynamic")) {
            must_fail(AG_E_UNSUPPORTED, "its rope scaling is dynamic",
                      ag_export_gguf(scratch_path("a.gguf"), AG_RECIPE_F32, &o, &report, &err));
        } else if (is_one(name, "gemma2")) { /* whose golden has a scale of attention that llama.cpp has not */
            must_fail(AG_E_UNSUPPORTED, "query_pre_attn_scalar",
                      ag_export_gguf(scratch_path("a.gguf"), AG_RECIPE_F32, &o, &report, &err));
            m->d.attention_scale = 1 / sqrtf((float)m->d.D);
            must(ag_export_gguf(scratch_path("a.gguf"), AG_RECIPE_F32, &o, &report, &err));
        } else {
            must(ag_export_gguf(scratch_path("a.gguf"), AG_RECIPE_F32, &o, &report, &err));
            check_logits(scratch_path("a.gguf"), name, false, 1e-4);
            ag_model *from_gguf;
            must(ag_model_open(&from_gguf, scratch_path("a.gguf"), NULL, &err));
            const ag_export_options again = {.base = from_gguf, .text_path = NULL, .n_threads = 1};
            must(ag_export_gguf(scratch_path("b.gguf"), AG_RECIPE_F32, &again, &report, &err));
            check_logits(scratch_path("b.gguf"), name, false, 1e-4);
            ag_model_close(&from_gguf);
        }
        ag_model_close(&m);
        scratch_dir_remove();
    }
}

/* A GGUF's description as a config.json says the same. */
static void a_gguf_files_config_is_written_and_read_again(void **state)
{
    (void)state;
    static const char *const files[] = {"qwen3", "smollm3", "phi3", "phi4mini", "granite4", "minicpm", "gemma3"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512];
        ag_model *m;
        ag_description d;
        ag_arena arena = {0};
        ag_str text = {0};
        snprintf(path, sizeof path, FAMILIES "%s.gguf", files[i]);
        must(ag_model_open(&m, path, NULL, &err));
        must(ag_hf_config_write(&text, &m->d, &err));
        must(ag_description_from_config(&d, text.text, text.n, files[i], NULL, 0, &arena, &err));
        const ag_description *a = &m->d, *b = &d;
        assert_string_equal(a->model_type, b->model_type);
        assert_true(a->C == b->C && a->L == b->L && a->H == b->H && a->G == b->G && a->D == b->D && a->F == b->F &&
                    a->V == b->V && a->tied == b->tied);
        assert_true(fabsf(a->attention_scale / b->attention_scale - 1) < 1e-6f &&
                    fabsf(a->residual_scale / b->residual_scale - 1) < 1e-6f &&
                    fabsf(a->logit_scale / b->logit_scale - 1) < 1e-6f && a->embedding_scale == b->embedding_scale);
        assert_true(a->rms_eps == b->rms_eps && a->gate == b->gate && a->has_qk_norm == b->has_qk_norm &&
                    a->has_post_norms == b->has_post_norms);
        assert_true(a->attention_softcap == b->attention_softcap && a->logit_softcap == b->logit_softcap);
        for (int64_t l = 0; l < a->L; l++)
            assert_true(ag_layer_window(a, l) == ag_layer_window(b, l) && ag_layer_rotates(a, l) == ag_layer_rotates(b, l) &&
                        ag_layer_is_local(a, l) == ag_layer_is_local(b, l));
        for (int64_t length = 0; length <= 64; length += 64) {
            double f[8], h[8], at, bt;
            ag_description_rope(f, &at, a, length);
            ag_description_rope(h, &bt, b, length);
            assert_true(fabs(at - bt) < 1e-6);
            for (int k = 0; k < a->D / 2; k++) assert_true(fabs(f[k] - h[k]) <= 4e-7 * h[k]);
        }
        ag_str_free(&text);
        ag_arena_free(&arena);
        ag_model_close(&m);
    }
}

/* Every projection of the folder is the GGUF's, rounded to bf16. */
static void check_rounded(const char *folder, const char *gguf)
{
    ag_model *a, *b;
    must(ag_model_open(&a, folder, NULL, &err));
    must(ag_model_open(&b, gguf, NULL, &err));
    for (int64_t l = 0; l < a->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) {
            const ag_weight *u = &a->layers[l].proj[p], *v = &b->layers[l].proj[p];
            float x[64], y[64];
            assert_true(u->N == v->N && u->K == v->K && u->K <= 64);
            for (int64_t n = 0; n < u->N; n++) {
                ag_weight_row(x, u, n, 0, u->K);
                ag_weight_row(y, v, n, 0, v->K);
                for (int64_t k = 0; k < u->K; k++) assert_true(x[k] == ag_round_bf16(y[k]));
            }
        }
    ag_model_close(&a);
    ag_model_close(&b);
}

static void fused_adapters_are_merged_into_what_they_belong_to(void **state)
{
    (void)state;
    static const char *const with_adapter[] = {"qwen3", "phi3", "granite4", "gemma3"};
    ag_export_report report;
    for (size_t i = 0; i < sizeof with_adapter / sizeof *with_adapter; i++) {
        const char *name = with_adapter[i];
        ag_model *m;
        ag_peft *adapter;
        char path[512];
        scratch_dir_create();
        snprintf(path, sizeof path, FAMILIES "%s", name);
        must(ag_model_open(&m, path, NULL, &err));
        snprintf(path, sizeof path, FAMILIES "%s/adapter", name);
        must(ag_peft_open(&adapter, path, &m->d, &err));
        const ag_export_options o = {.base = m, .lora = adapter->adapter.layers, .name = name, .n_threads = 2};
        must(ag_export_gguf(scratch_path("a.gguf"), AG_RECIPE_F32, &o, &report, &err));
        check_logits(scratch_path("a.gguf"), name, true, 5e-4);
        write_folder("folder", &o);
        check_rounded(scratch_path("folder"), scratch_path("a.gguf"));
        ag_peft_close(&adapter);
        ag_model_close(&m);
        scratch_dir_remove();
    }
}

static void a_folder_has_the_tensors_that_transformers_asks_for(void **state)
{
    (void)state;
    static const char *const wanted[][2] = {{"phi3", "model.layers.1.self_attn.qkv_proj.weight"},
                                            {"phi3", "model.layers.1.mlp.gate_up_proj.weight"},
                                            {"granite4", "model.layers.1.shared_mlp.input_linear.weight"},
                                            {"gemma3", "model.layers.5.post_feedforward_layernorm.weight"},
                                            {"qwen3", "model.layers.1.self_attn.q_norm.weight"}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        ag_model *m;
        ag_safetensors got, want;
        char path[512];
        scratch_dir_create();
        snprintf(path, sizeof path, FAMILIES "%s", wanted[i][0]);
        must(ag_model_open(&m, path, NULL, &err));
        write_folder("folder", &(ag_export_options){.base = m, .n_threads = 1});
        must(ag_safetensors_open(&got, scratch_path("folder/model.safetensors"), &err));
        snprintf(path, sizeof path, FAMILIES "%s/model.safetensors", wanted[i][0]);
        must(ag_safetensors_open(&want, path, &err));
        assert_non_null(ag_safetensors_find(&got, wanted[i][1]));
        assert_int_equal(want.n_tensors, got.n_tensors);
        for (size_t k = 0; k < want.n_tensors; k++) { /* the same bytes: nothing was merged */
            const ag_st_tensor *a = &want.tensors[k], *b = ag_safetensors_find(&got, a->name);
            assert_non_null(b);
            assert_int_equal(a->bytes, b->bytes);
            if (memcmp(a->data, b->data, a->bytes) != 0) fail_msg("%s differs", a->name);
        }
        ag_safetensors_close(&got);
        ag_safetensors_close(&want);
        ag_model_close(&m);
        scratch_dir_remove();
    }
}

static void what_llama_cpp_cannot_compute_is_refused(void **state)
{
    (void)state;
    static const bool odd_slides[6] = {true, false, false, true, true, false}, odd_rotates[4] = {true, false, true, true};
    ag_model *gemma, *smollm;
    ag_export_report report;
    scratch_dir_create();
    must(ag_model_open(&gemma, FAMILIES "gemma3", NULL, &err));
    must(ag_model_open(&smollm, FAMILIES "smollm3", NULL, &err));
    gemma->d.slides = odd_slides;
    must_fail(AG_E_UNSUPPORTED, "follow no period",
              ag_export_gguf(scratch_path("a.gguf"), AG_RECIPE_F32, &(ag_export_options){.base = gemma, .n_threads = 1},
                             &report, &err));
    smollm->d.rotates = odd_rotates;
    must_fail(AG_E_UNSUPPORTED, "than every fourth",
              ag_export_gguf(scratch_path("a.gguf"), AG_RECIPE_F32, &(ag_export_options){.base = smollm, .n_threads = 1},
                             &report, &err));
    ag_model_close(&gemma);
    ag_model_close(&smollm);
    scratch_dir_remove();
}

int main(void)
{
    ag_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_goes_into_gguf_and_folders_and_back),
        cmocka_unit_test(a_gguf_files_config_is_written_and_read_again),
        cmocka_unit_test(fused_adapters_are_merged_into_what_they_belong_to),
        cmocka_unit_test(a_folder_has_the_tensors_that_transformers_asks_for),
        cmocka_unit_test(what_llama_cpp_cannot_compute_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
