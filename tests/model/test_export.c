/* Exports read back: as a folder and as GGUF, from a folder and from GGUF, with and without an adapter; every number is the one
 * that it must be, and tensors made by other programs lie in ours byte by byte. */
#include "adapter/export_gguf.h"
#include "adapter/export_hf.h"

#include "base/fs.h"
#include "base/json.h"
#include "base/num.h"
#include "data/model_text.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "support/op_check.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#define GGUF_DIR AGOGE_TESTS_DIR "/golden/gguf/"
static ag_err err;

static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
    "{\"id\":0,\"content\":\"<pad>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true},"
    "{\"id\":1,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true},"
    "{\"id\":2,\"content\":\"</s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
    "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
    "\"vocab\":{\"<pad>\":0,\"<s>\":1,\"</s>\":2,\"a\":3,\"b\":4,\"\xc4\xa0\":5,\"ab\":6,\"\xc4\xa0" "ab\":7},"
    "\"merges\":[[\"a\",\"b\"],[\"\xc4\xa0\",\"ab\"]]}}";
static const char tokenizer_config[] =
    "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"pad_token\":\"<pad>\",\"tokenizer_class\":\"PreTrainedTokenizerFast\","
    "\"chat_template\":\"{% for m in messages %}{{ m.content }}{% endfor %}\"}";

/* A fresh scratch directory with a tokenizer's folder "text" and an empty folder "out". */
static void begin(void)
{
    scratch_dir_create();
    must(ag_make_dirs(scratch_path("text"), &err));
    must(ag_make_dirs(scratch_path("out"), &err));
    must(ag_file_publish(scratch_path("text/tokenizer.json"), tokenizer_json, strlen(tokenizer_json), &err));
    must(ag_file_publish(scratch_path("text/tokenizer_config.json"), tokenizer_config, strlen(tokenizer_config), &err));
}

static ag_model *open_golden(const char *name)
{
    char path[512];
    ag_model *m;
    snprintf(path, sizeof path, GGUF_DIR "%s", name);
    must(ag_model_open(&m, path, &(ag_model_options){0}, &err));
    return m;
}

typedef float expect_fn(float); /* what writing may do to a number */
static float as_it_is(float x) { return x; }
static float in_f16(float x) { return ag_f16_to_f32(ag_f32_to_f16(x)); }

static void check_rows(const ag_weight *got, const ag_weight *want, const ag_lora_view *pair, expect_fn *expect, const char *what)
{
    assert_int_equal(want->N, got->N);
    assert_int_equal(want->K, got->K);
    float *a = malloc((size_t)want->K * sizeof *a), *b = malloc((size_t)want->K * sizeof *b);
    for (int64_t n = 0; n < want->N; n++) {
        ag_weight_row(a, got, n, 0, got->K);
        ag_merge_rows(b, want, pair, n, n + 1, 1);
        for (int64_t k = 0; k < want->K; k++)
            if (a[k] != expect(b[k])) fail_msg("%s[%d,%d] is %g, expected %g", what, (int)n, (int)k, (double)a[k], (double)expect(b[k]));
    }
    free(a);
    free(b);
}

static void check_vector(const float *got, const float *want, int64_t n, expect_fn *expect, const char *what)
{
    for (int64_t i = 0; want && i < n; i++)
        if (got[i] != expect(want[i])) fail_msg("%s[%d] is %g, expected %g", what, (int)i, (double)got[i], (double)expect(want[i]));
    assert_true((got == NULL) == (want == NULL));
}

static void check_same_model(const ag_model *got, const ag_model *want, const ag_layer_lora *lora, expect_fn *matrix, expect_fn *vector)
{
    check_rows(&got->embed, &want->embed, NULL, matrix, "embedding");
    check_rows(&got->head, &want->head, NULL, matrix, "head");
    check_vector(got->final_norm, want->final_norm, want->d.C, vector, "final norm");
    for (int64_t l = 0; l < want->d.L; l++) {
        check_vector(got->layers[l].norm[AG_NORM_ATTN], want->layers[l].norm[AG_NORM_ATTN], want->d.C, vector, "attention norm");
        check_vector(got->layers[l].norm[AG_NORM_FFN], want->layers[l].norm[AG_NORM_FFN], want->d.C, vector, "ffn norm");
        for (int p = 0; p < AG_N_PROJ; p++) {
            check_rows(&got->layers[l].proj[p], &want->layers[l].proj[p], lora ? &lora[l].pair[p] : NULL, matrix,
                       ag_projection_name((ag_projection)p));
            check_vector(got->layers[l].bias[p], want->layers[l].bias[p], want->layers[l].proj[p].N, vector, "bias");
        }
    }
}

static void check_same_description(const ag_description *a, const ag_description *b)
{
    double fa[64], fb[64], mscale;
    assert_string_equal(b->model_type, a->model_type);
    assert_true(a->C == b->C && a->L == b->L && a->H == b->H && a->G == b->G && a->D == b->D && a->F == b->F && a->V == b->V &&
                a->context_length == b->context_length && a->tied == b->tied && a->rms_eps == b->rms_eps);
    assert_int_equal(b->bos_id, a->bos_id);
    assert_int_equal(b->n_eos_ids, a->n_eos_ids); /* in any order: a GGUF's eos is the tokenizer's, the others are eot and eom */
    for (int i = 0; i < a->n_eos_ids; i++) {
        bool is_there = false;
        for (int k = 0; k < b->n_eos_ids; k++) is_there |= a->eos_ids[i] == b->eos_ids[k];
        assert_true(is_there);
    }
    assert_int_equal(b->pad_id, a->pad_id);
    assert_true(a->embedding_scale == b->embedding_scale && a->residual_scale == b->residual_scale &&
                a->attention_scale == b->attention_scale && fabsf(a->logit_scale - b->logit_scale) < 1e-7f);
    ag_description_rope(fa, &mscale, a, 0);
    ag_description_rope(fb, &mscale, b, 0);
    for (int64_t i = 0; i < a->D / 2; i++) assert_true(fabs(fa[i] - fb[i]) <= 1e-6 * fb[i]);
}

/* A pair of rank 3 beside every projection. */
static ag_layer_lora *random_lora(const ag_model *m, ag_arena *arena)
{
    enum { R = 3 };
    ag_layer_lora *lora = ag_arena_array(arena, (size_t)m->d.L, sizeof *lora);
    for (int64_t l = 0; l < m->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) {
            const ag_weight *w = &m->layers[l].proj[p];
            float *a = ag_arena_array(arena, (size_t)(R * (w->K + w->N)), sizeof *a), *b = a + R * w->K;
            check_fill(a, R * (w->K + w->N), (uint32_t)(100 * l + p + 1), 0.5f);
            lora[l].pair[p] = (ag_lora_view){.R = R, .a = a, .b = b, .scale = 0.75f};
        }
    return lora;
}

static ag_export_options options_for(const ag_model *m) { return (ag_export_options){.base = m, .text_path = scratch_path("text"), .n_threads = 2}; }

static void a_gguf_file_holds_the_folders_model(void **state)
{
    (void)state;
    static const char *const names[] = {"tiny", "qwen2", "biased", "granite"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        begin();
        ag_model *m = open_golden(names[i]), *back;
        const ag_export_options o = options_for(m);
        ag_export_report report;
        must(ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_F32, &o, &report, &err));
        must(ag_model_open(&back, scratch_path("m.gguf"), &(ag_model_options){0}, &err));
        check_same_description(&back->d, &m->d);
        check_same_model(back, m, NULL, as_it_is, as_it_is);
        assert_true(report.rounding.largest == 0 && report.rounding.n > 0 && report.n_files == 1);
        ag_model_close(&back);

        /* Tensors that the gguf package wrote lie in ours byte by byte, in the order that llama.cpp wants for q and k. */
        char path[512];
        snprintf(path, sizeof path, GGUF_DIR "%s.f32.gguf", names[i]);
        ag_gguf theirs, ours;
        must(ag_gguf_open(&theirs, path, &err));
        must(ag_gguf_open(&ours, scratch_path("m.gguf"), &err));
        assert_int_equal(theirs.n_tensors, ours.n_tensors);
        for (size_t t = 0; t < theirs.n_tensors; t++) {
            const ag_gguf_tensor *want = &theirs.tensors[t], *got = ag_gguf_find(&ours, want->name);
            if (!got) fail_msg("%s: there is no %s", names[i], want->name);
            assert_true(got->type == want->type && got->rank == want->rank && memcmp(got->ne, want->ne, sizeof got->ne) == 0);
            if (strcmp(want->name, "rope_freqs.weight") != 0) assert_memory_equal(want->data, got->data, want->bytes);
        }
        ag_gguf_close(&theirs);
        ag_gguf_close(&ours);
        ag_model_close(&m);
        scratch_dir_remove();
    }
}

static void a_gguf_file_has_the_tokenizer_and_the_template(void **state)
{
    (void)state;
    begin();
    ag_model *m = open_golden("tiny");
    ag_export_options o = options_for(m);
    o.name = "A Tiny One";
    ag_export_report report;
    must(ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_BF16, &o, &report, &err));
    ag_gguf g;
    ag_arena arena = {0};
    const char *text = NULL;
    int64_t number = 0;
    must(ag_gguf_open(&g, scratch_path("m.gguf"), &err));
    must(ag_gguf_get_text(&g, "general.name", &text, &arena, &err));
    assert_string_equal("A Tiny One", text);
    must(ag_gguf_get_text(&g, "tokenizer.chat_template", &text, &arena, &err));
    assert_string_equal("{% for m in messages %}{{ m.content }}{% endfor %}", text);
    must(ag_gguf_need_int(&g, "general.file_type", 0, 99, &number, &err));
    assert_int_equal(32, number);
    assert_int_equal(48, ag_gguf_pair_of(&g, "tokenizer.ggml.tokens")->n); /* filled up to the embedding's rows */
    ag_gguf_close(&g);
    ag_arena_free(&arena);

    ag_model_text *side;
    must(ag_model_text_open(&side, scratch_path("m.gguf"), &err));
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding e = {0};
    must(ag_tokenizer_encode(side->tokenizer, scratch, "ab ab", 5, NULL, &e, &err));
    assert_true(e.n == 2 && e.ids[0] == 6 && e.ids[1] == 7);
    assert_int_equal(2, ag_tokenizer_special_id(side->tokenizer, AG_SPECIAL_EOS));
    ag_encoding_free(&e);
    ag_tokenizer_scratch_free(&scratch);
    ag_model_text_close(&side);
    ag_model_close(&m);
    scratch_dir_remove();
}

static void a_gguf_base_keeps_its_metadata(void **state)
{
    (void)state;
    begin();
    ag_model *m = open_golden("tiny.q8_0.gguf"), *back;
    const ag_export_options o = options_for(m);
    ag_export_report report;
    must(ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_F16, &o, &report, &err));
    must(ag_model_open(&back, scratch_path("m.gguf"), &(ag_model_options){0}, &err));
    check_same_description(&back->d, &m->d);
    check_same_model(back, m, NULL, in_f16, as_it_is);
    ag_model_close(&back);
    ag_gguf theirs, ours;
    must(ag_gguf_open(&theirs, GGUF_DIR "tiny.q8_0.gguf", &err));
    must(ag_gguf_open(&ours, scratch_path("m.gguf"), &err));
    int n_same = 0;
    for (size_t i = 0; i < theirs.n_pairs; i++) {
        const ag_gguf_pair *want = &theirs.pairs[i], *got = ag_gguf_pair_of(&ours, want->key);
        if (!got) fail_msg("there is no %s", want->key);
        if (strncmp(want->key, "general.", 8) == 0) continue;
        assert_true(got->type == want->type && got->item == want->item && got->n == want->n);
        assert_memory_equal(want->bytes, got->bytes, 4);
        n_same++;
    }
    assert_true(n_same > 10);
    int64_t type = 0;
    must(ag_gguf_need_int(&ours, "general.file_type", 0, 99, &type, &err));
    assert_int_equal(1, type);
    ag_gguf_close(&theirs);
    ag_gguf_close(&ours);
    ag_model_close(&m);
    scratch_dir_remove();
}

static void an_adapter_is_merged_and_rounded_once(void **state)
{
    (void)state;
    static const char *const bases[] = {"tiny", "tiny.q4_1.gguf"};
    for (int i = 0; i < 2; i++) {
        begin();
        ag_model *m = open_golden(bases[i]), *back;
        ag_arena arena = {0};
        ag_export_options o = options_for(m);
        ag_export_report report;
        o.lora = random_lora(m, &arena);
        must(ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_F32, &o, &report, &err));
        must(ag_model_open(&back, scratch_path("m.gguf"), &(ag_model_options){0}, &err));
        check_same_model(back, m, o.lora, as_it_is, as_it_is);
        ag_model_close(&back);
        must(ag_export_hf(scratch_path("out"), &o, &report, &err));
        must(ag_model_open(&back, scratch_path("out"), &(ag_model_options){0}, &err));
        check_same_model(back, m, o.lora, ag_round_bf16, ag_round_bf16);
        assert_true(report.rounding.largest > 1e-5 && ag_deviation_relative(&report.rounding) < 0x1p-9);
        ag_model_close(&back);
        ag_arena_free(&arena);
        ag_model_close(&m);
        scratch_dir_remove();
    }
}

static void a_folder_is_carried_over_as_it_is(void **state)
{
    (void)state;
    begin();
    ag_model *m = open_golden("tiny");
    const ag_export_options o = options_for(m);
    ag_export_report report;
    must(ag_export_hf(scratch_path("out"), &o, &report, &err));
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) { /* bf16 before, bf16 after: the very bytes */
        char from[512], to[64];
        snprintf(from, sizeof from, GGUF_DIR "tiny/%s", files[i]);
        snprintf(to, sizeof to, "out/%s", files[i]);
        ag_map a, b;
        must(ag_map_open(&a, from, &err));
        must(ag_map_open(&b, scratch_path(to), &err));
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.bytes, b.bytes, a.n);
        ag_map_close(&a);
        ag_map_close(&b);
    }
    assert_true(ag_path_is_file(scratch_path("out/tokenizer.json")) && ag_path_is_file(scratch_path("out/tokenizer_config.json")));
    assert_int_equal(1, report.n_files);
    ag_model_close(&m);
    scratch_dir_remove();
}

static void shards_hold_every_tensor_once_and_the_index_says_where(void **state)
{
    (void)state;
    begin();
    ag_model *m = open_golden("tiny"), *back;
    ag_export_options o = options_for(m);
    o.max_shard_bytes = 12000;
    ag_export_report report;
    must(ag_export_hf(scratch_path("out"), &o, &report, &err));
    must(ag_model_open(&back, scratch_path("out"), &(ag_model_options){0}, &err));
    check_same_model(back, m, NULL, as_it_is, as_it_is);
    ag_model_close(&back);
    assert_true(report.n_files > 2);
    json_t *index;
    must(ag_json_load(&index, scratch_path("out/model.safetensors.index.json"), 1 << 20, &err));
    const json_t *metadata = json_object_get(index, "metadata"), *map = json_object_get(index, "weight_map");
    assert_int_equal(report.weight_bytes, json_integer_value(json_object_get(metadata, "total_size")));
    assert_int_equal(report.n_tensors, json_object_size(map));
    char first[64];
    snprintf(first, sizeof first, "model-00001-of-%05d.safetensors", (int)report.n_files);
    assert_string_equal(first, json_string_value(json_object_get(map, "model.embed_tokens.weight")));
    ag_json_free(&index);
    ag_model_close(&m);
    scratch_dir_remove();
}

static void shards_are_filled_greedily(void **state)
{
    (void)state;
    int64_t shard[5];
    const uint64_t bytes[5] = {4, 6, 1, 30, 2};
    assert_int_equal(4, ag_hf_shards(shard, bytes, 5, 10));
    assert_true(shard[0] == 0 && shard[1] == 0 && shard[2] == 1 && shard[3] == 2 && shard[4] == 3);
    assert_int_equal(1, ag_hf_shards(shard, bytes, 5, 0));
    assert_int_equal(1, ag_hf_shards(shard, bytes, 5, UINT64_MAX));
}

static void a_gguf_base_becomes_a_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"tiny.q8_0.gguf", "qwen2.f32.gguf", "biased.f32.gguf", "granite.f32.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        begin();
        ag_model *m = open_golden(names[i]), *back;
        const ag_export_options o = options_for(m);
        ag_export_report report;
        must(ag_export_hf(scratch_path("out"), &o, &report, &err));
        must(ag_model_open(&back, scratch_path("out"), &(ag_model_options){0}, &err));
        check_same_description(&back->d, &m->d);
        check_same_model(back, m, NULL, ag_round_bf16, ag_round_bf16);
        if (i == 0) assert_true(back->d.rope_kind == AG_ROPE_LLAMA3 && back->d.rope_original_context == 32 && back->d.rope_factor == 8);
        ag_model_close(&back);
        ag_model_close(&m);
        scratch_dir_remove();
    }
}

static void a_gguf_files_own_tokenizer_goes_into_the_folder(void **state)
{
    (void)state;
    begin();
    ag_model *m = open_golden("tiny"), *from_gguf;
    ag_export_options o = options_for(m);
    ag_export_report report;
    must(ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_F16, &o, &report, &err));
    must(ag_model_open(&from_gguf, scratch_path("m.gguf"), &(ag_model_options){0}, &err));
    o = (ag_export_options){.base = from_gguf, .n_threads = 1};
    must(ag_export_hf(scratch_path("out"), &o, &report, &err));
    ag_model_text *text;
    must(ag_model_text_open(&text, scratch_path("out"), &err));
    assert_int_equal(7, ag_tokenizer_token_id(text->tokenizer, "\xc4\xa0" "ab", 4));
    assert_int_equal(0, ag_tokenizer_special_id(text->tokenizer, AG_SPECIAL_PAD));
    assert_string_equal("{% for m in messages %}{{ m.content }}{% endfor %}", text->chat_source);
    ag_model_text_close(&text);
    ag_model_close(&from_gguf);
    ag_model_close(&m);
    scratch_dir_remove();
}

static void what_quantizing_changed_is_measured(void **state)
{
    (void)state;
    begin();
    ag_model *original = open_golden("tiny"), *quantized, *other = open_golden("granite");
    must(ag_model_open(&quantized, GGUF_DIR "tiny", &(ag_model_options){.quantize_nf4 = true, .n_threads = 1}, &err));
    ag_export_options o = options_for(quantized);
    o.original = original;
    ag_export_report report;
    must(ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_BF16, &o, &report, &err));
    const double relative = ag_deviation_relative(&report.quantization);
    assert_true(report.quantization.n > 1000 && relative > 0.02 && relative < 0.2); /* NF4 of normal numbers: about 9 % */
    o.original = other;
    must_fail(AG_E_SHAPE, "are not the same model", ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_BF16, &o, &report, &err));
    ag_model_close(&original);
    ag_model_close(&quantized);
    ag_model_close(&other);
    scratch_dir_remove();
}

static void rows_that_q8_0_cannot_hold_are_f16(void **state)
{
    (void)state;
    begin();
    ag_model *m = open_golden("mistral"); /* 4 heads of 12: o_proj has 48 columns */
    const ag_export_options o = options_for(m);
    ag_export_report report;
    must_fail(AG_E_UNSUPPORTED, "a window of 4 tokens", ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_Q8_0, &o, &report, &err));
    assert_false(ag_path_is_file(scratch_path("m.gguf")));
    m->d.sliding_window = 0;
    must(ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_Q8_0, &o, &report, &err));
    ag_gguf g;
    must(ag_gguf_open(&g, scratch_path("m.gguf"), &err));
    assert_int_equal(AG_GGML_F16, ag_gguf_find(&g, "blk.0.attn_output.weight")->type);
    assert_int_equal(AG_GGML_Q8_0, ag_gguf_find(&g, "blk.0.attn_q.weight")->type);
    assert_int_equal(AG_GGML_F32, ag_gguf_find(&g, "blk.0.attn_norm.weight")->type);
    ag_gguf_close(&g);
    ag_model *back;
    must(ag_model_open(&back, scratch_path("m.gguf"), &(ag_model_options){0}, &err)); /* a llama there, in rope pairs */
    check_rows(&back->layers[0].proj[AG_PROJ_O], &m->layers[0].proj[AG_PROJ_O], NULL, in_f16, "o_proj");
    float q[32], want[32];
    for (int64_t n = 0; n < m->layers[0].proj[AG_PROJ_Q].N; n++) {
        ag_weight_row(q, &back->layers[0].proj[AG_PROJ_Q], n, 0, 32);
        ag_weight_row(want, &m->layers[0].proj[AG_PROJ_Q], n, 0, 32);
        for (int k = 0; k < 32; k++) assert_true(fabsf(q[k] - want[k]) < 0.01f);
    }
    ag_model_close(&back);
    ag_model_close(&m);
    scratch_dir_remove();
}

static void what_cannot_be_exported_is_refused(void **state)
{
    (void)state;
    begin();
    ag_model *m = open_golden("tiny");
    ag_arena arena = {0};
    ag_export_options o = options_for(m);
    ag_export_report report;
    o.text_path = GGUF_DIR "tiny";
    must_fail(AG_E_NOT_FOUND, "has no tokenizer.json", ag_export_hf(scratch_path("out"), &o, &report, &err));
    o = options_for(m);
    ag_layer_lora *lora = random_lora(m, &arena);
    o.lora = lora;
    ((float *)lora[1].pair[AG_PROJ_UP].b)[3 * 5] = 1e6f;
    must_fail(AG_E_NUMERIC, "of 'model.layers.1.mlp.up_proj.weight' is", ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_F16, &o, &report, &err));
    must_fail(AG_E_NUMERIC, "of 'model.layers.1.mlp.up_proj.weight': column", ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_Q4_K_M, &o, &report, &err));
    must_fail(AG_E_NUMERIC, "which f16 cannot hold; choose another type", ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_F16, &o, &report, &err));
    ((float *)lora[1].pair[AG_PROJ_UP].b)[3 * 5] = NAN;
    must_fail(AG_E_NUMERIC, "which q8_0 cannot hold", ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_Q8_0, &o, &report, &err));
    assert_false(ag_path_is_file(scratch_path("m.gguf")));
    ag_arena_free(&arena);
    ag_model_close(&m);
    scratch_dir_remove();
}

static void a_base_without_a_tokenizer_is_exported_without_one(void **state)
{
    (void)state;
    begin();
    ag_model *m = open_golden("tiny"), *back;
    const ag_export_options o = {.base = m, .n_threads = 1};
    ag_export_report report;
    must(ag_export_hf(scratch_path("out"), &o, &report, &err));
    assert_false(ag_path_is_file(scratch_path("out/tokenizer.json")));
    must(ag_export_gguf(scratch_path("m.gguf"), AG_RECIPE_F32, &o, &report, &err));
    must(ag_model_open(&back, scratch_path("m.gguf"), &(ag_model_options){0}, &err));
    check_same_model(back, m, NULL, as_it_is, as_it_is);
    ag_model_close(&back);
    ag_model_close(&m);
    scratch_dir_remove();
}

static void an_adapter_alone_has_the_bases_order_of_rows(void **state)
{
    (void)state;
    begin();
    ag_model *m = open_golden("tiny");
    ag_arena arena = {0};
    ag_adapter a;
    ag_export_report report;
    const char *const targets[] = {"q_proj", "down_proj"};
    must(ag_adapter_plan(&a, &m->d, &(ag_lora_config){.r = 4, .alpha = 6, .rslora = true, .targets = targets, .n_targets = 2}, &arena, &err));
    float *params = malloc(a.n_params * sizeof *params);
    check_fill(params, (int64_t)a.n_params, 5, 1);
    ag_adapter_bind(&a, params, NULL);
    must_fail(AG_E_UNSUPPORTED, "cannot be written as q8_0", ag_export_gguf_lora(scratch_path("l.gguf"), AG_W_Q8_0, &a, &m->d, "x", &report, &err));
    must(ag_export_gguf_lora(scratch_path("l.gguf"), AG_W_F32, &a, &m->d, "x", &report, &err));
    ag_gguf g;
    double alpha = 0;
    const char *type = NULL;
    must(ag_gguf_open(&g, scratch_path("l.gguf"), &err));
    must(ag_gguf_need_double(&g, "adapter.lora.alpha", &alpha, &err));
    must(ag_gguf_get_text(&g, "general.type", &type, &arena, &err));
    assert_string_equal("adapter", type);
    assert_true(alpha / 4 == (double)a.pairs[0].scale); /* what llama.cpp computes: alpha over the rank */
    assert_int_equal(8, g.n_tensors);
    /* llama.cpp adds B·A to rows as the base stores them: stored row 2j+i of a head is row i·D/2+j here. */
    const ag_gguf_tensor *q = ag_gguf_find(&g, "blk.1.attn_q.weight.lora_b"), *down = ag_gguf_find(&g, "blk.1.ffn_down.weight.lora_b");
    assert_true(q && q->ne[0] == 4 && q->ne[1] == 32 && down && down->ne[1] == 32);
    const float *b = a.layers[1].pair[AG_PROJ_Q].b;
    for (int head = 0; head < 4; head++)
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 4; k++) assert_memory_equal(b + (head * 8 + i * 4 + k) * 4, q->data + (head * 8 + 2 * k + i) * 16, 16);
    assert_memory_equal(a.layers[1].pair[AG_PROJ_DOWN].b, down->data, down->bytes);
    assert_memory_equal(a.layers[1].pair[AG_PROJ_Q].a, ag_gguf_find(&g, "blk.1.attn_q.weight.lora_a")->data, 4 * 32 * 4);
    ag_gguf_close(&g);
    free(params);
    ag_arena_free(&arena);
    ag_model_close(&m);
    scratch_dir_remove();
}

static void a_config_is_changed_only_where_it_must_be(void **state)
{
    (void)state;
    ag_str out = {0};
    static const char same[] = "{ \"torch_dtype\":\"bfloat16\",\n\"a\": 1.50 }";
    must(ag_hf_config_carry_over(&out, same, strlen(same), "c", false, &err));
    assert_string_equal(same, out.text);
    ag_str_clear(&out);
    static const char none[] = "{\"a\": 1}";
    must(ag_hf_config_carry_over(&out, none, strlen(none), "c", false, &err));
    assert_string_equal(none, out.text);
    ag_str_clear(&out);
    static const char other[] = "{\"b\": 1e-05, \"dtype\": \"float32\", \"quantization_config\": {\"load_in_4bit\": true}, \"a\": [1, 2]}";
    must(ag_hf_config_carry_over(&out, other, strlen(other), "c", false, &err));
    assert_string_equal("{\n  \"b\": 1e-05,\n  \"dtype\": \"bfloat16\",\n  \"a\": [\n    1,\n    2\n  ]\n}\n", out.text);
    ag_str_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gguf_file_holds_the_folders_model),
        cmocka_unit_test(a_gguf_file_has_the_tokenizer_and_the_template),
        cmocka_unit_test(a_gguf_base_keeps_its_metadata),
        cmocka_unit_test(an_adapter_is_merged_and_rounded_once),
        cmocka_unit_test(a_folder_is_carried_over_as_it_is),
        cmocka_unit_test(shards_hold_every_tensor_once_and_the_index_says_where),
        cmocka_unit_test(shards_are_filled_greedily),
        cmocka_unit_test(a_gguf_base_becomes_a_folder),
        cmocka_unit_test(a_gguf_files_own_tokenizer_goes_into_the_folder),
        cmocka_unit_test(what_quantizing_changed_is_measured),
        cmocka_unit_test(rows_that_q8_0_cannot_hold_are_f16),
        cmocka_unit_test(what_cannot_be_exported_is_refused),
        cmocka_unit_test(a_base_without_a_tokenizer_is_exported_without_one),
        cmocka_unit_test(an_adapter_alone_has_the_bases_order_of_rows),
        cmocka_unit_test(a_config_is_changed_only_where_it_must_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
