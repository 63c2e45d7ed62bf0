/* Models from folders and GGUF files: every weight is the one that stands in the file, and what is wrong is named. */
#include "model/model.h"

#include "base/fs.h"
#include "base/num.h"
#include "format/gguf.h"
#include "format/little_endian.h"
#include "format/safetensors.h"
#include "model/model_internal.h"
#include "support/golden.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include <math.h>

#define GGUF_DIR AGOGE_TESTS_DIR "/golden/gguf/"
static ag_err err;

/* ---- comparing --------------------------------------------------------------------------------------------------------- */
/* Logical rows of w against the golden's tensor, at most `tolerance` of the tensor's largest entry away. */
static void check_weight(const ag_weight *w, const golden *g, const char *name, double tolerance)
{
    float *want = golden_floats(g, name), *got = malloc((size_t)w->K * sizeof *got), largest = 0;
    assert_int_equal(golden_n(g, name), w->N * w->K);
    assert_int_equal(golden_dim(g, name, 0), w->N);
    for (int64_t i = 0; i < w->N * w->K; i++) largest = fmaxf(largest, fabsf(want[i]));
    for (int64_t n = 0; n < w->N; n++) {
        ag_weight_row(got, w, n, 0, w->K);
        for (int64_t k = 0; k < w->K; k++)
            if (!(fabs((double)got[k] - (double)want[n * w->K + k]) <= tolerance * (double)largest))
                fail_msg("%s[%d,%d] is %g, expected %g", name, (int)n, (int)k, (double)got[k], (double)want[n * w->K + k]);
    }
    free(got);
    free(want);
}

static void check_vector(const float *got, const golden *g, const char *name)
{
    float *want = golden_floats(g, name);
    assert_non_null(got);
    for (int64_t i = 0; i < golden_n(g, name); i++) assert_true(got[i] == want[i]);
    free(want);
}

static void check_model(const ag_model *m, const char *folder, double tolerance)
{
    char name[128];
    snprintf(name, sizeof name, "gguf/%s/model.safetensors", folder);
    golden g = golden_open(name);
    check_weight(&m->embed, &g, "model.embed_tokens.weight", tolerance);
    check_weight(&m->head, &g, m->d.tied ? "model.embed_tokens.weight" : "lm_head.weight", tolerance);
    assert_true(m->d.tied == (m->head.data == m->embed.data));
    check_vector(m->final_norm, &g, "model.norm.weight");
    for (int l = 0; l < m->d.L; l++) {
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
        check_vector(m->layers[l].norm[AG_NORM_ATTN], &g, name);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
        check_vector(m->layers[l].norm[AG_NORM_FFN], &g, name);
        for (int p = 0; p < AG_N_PROJ; p++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, ag_projection_path((ag_projection)p));
            check_weight(&m->layers[l].proj[p], &g, name, tolerance);
            snprintf(name, sizeof name, "model.layers.%d.%s.bias", l, ag_projection_path((ag_projection)p));
            assert_true(golden_has(&g, name) == (m->layers[l].bias[p] != NULL));
            if (m->layers[l].bias[p]) check_vector(m->layers[l].bias[p], &g, name);
        }
    }
    golden_close(&g);
}

static void open_and_check(const char *path, const char *folder, double tolerance, const char *quantization)
{
    ag_model *m;
    must(ag_model_open(&m, path, NULL, &err));
    check_model(m, folder, tolerance);
    assert_string_equal(quantization, m->quantization);
    ag_model_close(&m);
    assert_null(m);
}

/* ---- changed copies of the tiny model ------------------------------------------------------------------------------------ */
typedef struct {
    ag_safetensors st;
    ag_st_entry entries[64];
    size_t n;
    uint16_t changed[64 * 64]; /* room for one changed tensor's data */
} copy;

static ag_st_entry *entry(copy *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->entries[i].name, name) == 0) return &c->entries[i];
    fail_msg("no entry %s", name);
    return NULL;
}

static copy *copy_begin(void)
{
    copy *c = calloc(1, sizeof *c);
    assert_non_null(c);
    must(ag_safetensors_open(&c->st, GGUF_DIR "tiny/model.safetensors", &err));
    c->n = c->st.n_tensors;
    for (size_t i = 0; i < c->n; i++) {
        const ag_st_tensor *t = &c->st.tensors[i];
        c->entries[i] = (ag_st_entry){.name = t->name, .dtype = t->dtype, .rank = t->rank, .data = t->data};
        memcpy(c->entries[i].dim, t->dim, sizeof t->dim);
    }
    return c;
}

static void write_text(const char *name, const char *text)
{
    must(ag_file_publish(scratch_path(name), text, strlen(text), &err));
}

static char *config_text(ag_arena *arena)
{
    char *text;
    size_t n;
    must(ag_file_read(&text, &n, GGUF_DIR "tiny/config.json", 1 << 20, arena, &err));
    return text;
}

/* Writes the copy with tiny's config into the scratch directory and frees it. */
static void copy_end(copy *c)
{
    ag_arena arena = {0};
    must(ag_safetensors_write(scratch_path("model.safetensors"), c->entries, c->n, AG_ST_ORDER_LIBRARY, NULL, 0, &err));
    write_text("config.json", config_text(&arena));
    ag_arena_free(&arena);
    ag_safetensors_close(&c->st);
    free(c);
}

static ag_status open_scratch(const ag_model_options *options)
{
    ag_model *m;
    ag_status status = ag_model_open(&m, scratch_path("."), options, &err);
    assert_true((status == AG_OK) == (m != NULL));
    ag_model_close(&m);
    return status;
}

/* ---- what is right ---------------------------------------------------------------------------------------------------------
 */
static void a_folder_gives_every_weight_as_stored(void **state)
{
    (void)state;
    ag_model *m;
    must(ag_model_open(&m, GGUF_DIR "tiny", NULL, &err));
    assert_int_equal(AG_SOURCE_HF, m->source);
    assert_int_equal(7, m->d.eos_id); /* generation_config.json was read */
    assert_int_equal(AG_W_BF16, m->layers[1].proj[AG_PROJ_DOWN].type);
    assert_int_equal(0, m->layers[1].proj[AG_PROJ_Q].rope_pairs_head_dim);
    assert_true(m->made_bytes < 4096 && m->weight_bytes > 40000); /* nothing but the norms is copied */
    ag_model_close(&m);
    open_and_check(GGUF_DIR "tiny", "tiny", 0, "none");
    open_and_check(GGUF_DIR "qwen2", "qwen2", 0, "none");
    open_and_check(GGUF_DIR "biased", "biased", 0, "none");
}

static void a_gguf_file_gives_the_same_weights_in_the_same_order_of_rows(void **state)
{
    (void)state;
    ag_model *m;
    must(ag_model_open(&m, GGUF_DIR "tiny.q4_1.gguf", &(ag_model_options){.quantize_nf4 = true},
                       &err)); /* a GGUF keeps its own */
    assert_int_equal(AG_SOURCE_GGUF, m->source);
    assert_int_equal(AG_W_Q4_1, m->layers[0].proj[AG_PROJ_Q].type);
    assert_int_equal(8, m->layers[0].proj[AG_PROJ_K].rope_pairs_head_dim);
    assert_int_equal(0, m->layers[0].proj[AG_PROJ_V].rope_pairs_head_dim);
    ag_model_close(&m);
    open_and_check(GGUF_DIR "tiny.f32.gguf", "tiny", 0, "f32");
    open_and_check(GGUF_DIR "tiny.f16.gguf", "tiny", 0x1p-11, "f16");
    open_and_check(GGUF_DIR "tiny.q8_0.gguf", "tiny", 0.51 / 127, "q8_0");
    open_and_check(GGUF_DIR "tiny.q4_1.gguf", "tiny", 0.51 * 2 / 15 + 0.001, "q4_1");
    open_and_check(GGUF_DIR "qwen2.f32.gguf", "qwen2", 0, "f32");
    open_and_check(GGUF_DIR "granite.f32.gguf", "granite", 0, "f32");
    open_and_check(GGUF_DIR "biased.f32.gguf", "biased", 0, "f32"); /* biases of q and k are stored in pairs, too */
}

static void shards_are_one_model(void **state)
{
    (void)state;
    scratch_dir_create();
    copy *c = copy_begin();
    ag_str index = {0};
    ag_arena arena = {0};
    const size_t half = c->n / 2;
    ag_str_add(&index, "{\"weight_map\":{");
    for (size_t i = 0; i < c->n; i++)
        ag_str_printf(&index, "%s\"%s\":\"model-0000%d-of-00002.safetensors\"", i ? "," : "", c->entries[i].name,
                      i < half ? 1 : 2);
    ag_str_add(&index, "}}");
    write_text("model.safetensors.index.json", index.text);
    must(ag_safetensors_write(scratch_path("model-00001-of-00002.safetensors"), c->entries, half, AG_ST_ORDER_LIBRARY, NULL, 0,
                              &err));
    must(ag_safetensors_write(scratch_path("model-00002-of-00002.safetensors"), c->entries + half, c->n - half,
                              AG_ST_ORDER_LIBRARY, NULL, 0, &err));
    write_text("config.json", config_text(&arena));
    open_and_check(scratch_path("."), "tiny", 0, "none");
    ag_arena_free(&arena);
    ag_str_free(&index);
    ag_safetensors_close(&c->st);
    free(c);
    scratch_dir_remove();
}

static void badly_aligned_data_are_copied(void **state)
{
    (void)state;
    scratch_dir_create();
    ag_map map;
    ag_arena arena = {0};
    copy_end(copy_begin());
    must(ag_map_open(&map, GGUF_DIR "tiny/model.safetensors", &err));
    unsigned char *moved = malloc(map.n + 1); /* a space more in the header: all data lie at odd addresses */
    assert_non_null(moved);
    const size_t head = 8 + (size_t)ag_little_read(map.bytes, 8);
    memcpy(moved, map.bytes, head);
    moved[head] = ' ';
    memcpy(moved + head + 1, map.bytes + head, map.n - head);
    ag_little_write(moved, head - 8 + 1, 8);
    must(ag_file_publish(scratch_path("model.safetensors"), moved, map.n + 1, &err));
    open_and_check(scratch_path("."), "tiny", 0, "none");
    ag_model *m;
    must(ag_model_open(&m, scratch_path("."), &(ag_model_options){.quantize_nf4 = true}, &err));
    assert_int_equal(0, (uintptr_t)m->embed.data % 2);
    ag_model_close(&m);
    free(moved);
    ag_map_close(&map);
    ag_arena_free(&arena);
    scratch_dir_remove();
}

/* ---- NF4
 * ---------------------------------------------------------------------------------------------------------------------- */
static void quantizing_gives_bitsandbytes_bytes(void **state)
{
    (void)state;
    ag_model *mine, *theirs;
    must(ag_model_open(&mine, GGUF_DIR "tiny", &(ag_model_options){.quantize_nf4 = true, .double_quant = true, .n_threads = 2},
                       &err));
    must(ag_model_open(&theirs, GGUF_DIR "tiny-nf4", &(ag_model_options){.quantize_nf4 = true}, &err));
    assert_string_equal("nf4 (double)", mine->quantization);
    assert_string_equal("nf4 (double)", theirs->quantization);
    assert_int_equal(mine->weight_bytes, theirs->weight_bytes);
    for (int l = 0; l < mine->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) {
            const ag_weight *a = &mine->layers[l].proj[p], *b = &theirs->layers[l].proj[p];
            assert_int_equal(AG_W_NF4, b->type);
            assert_memory_equal(a->data, b->data, (size_t)(a->N * a->K / 2));
            assert_true(fabsf(a->offset - b->offset) <= 1e-6f * b->offset);
            float x[64], y[64];
            for (int64_t n = 0; n < a->N; n++) { /* their CPU kernel takes a neighbouring code for the scale here and there */
                ag_weight_row(x, a, n, 0, a->K);
                ag_weight_row(y, b, n, 0, b->K);
                for (int64_t k = 0; k < a->K; k++) assert_true(fabsf(x[k] - y[k]) <= 0.02f * fabsf(y[k]));
            }
        }
    assert_int_equal(AG_W_BF16, mine->embed.type); /* embedding and head stay as stored */
    assert_int_equal(AG_W_BF16, mine->head.type);
    ag_model_close(&mine);
    ag_model_close(&theirs);
}

static void bytes_are_the_same_for_any_number_of_threads(void **state)
{
    (void)state;
    ag_model *one, *three;
    for (int double_quant = 0; double_quant < 2; double_quant++) {
        must(ag_model_open(&one, GGUF_DIR "tiny", &(ag_model_options){.quantize_nf4 = true, .double_quant = double_quant},
                           &err));
        must(ag_model_open(&three, GGUF_DIR "tiny",
                           &(ag_model_options){.quantize_nf4 = true, .double_quant = double_quant, .n_threads = 3}, &err));
        for (int p = 0; p < AG_N_PROJ; p++) {
            const ag_weight *a = &one->layers[1].proj[p], *b = &three->layers[1].proj[p];
            const size_t n_blocks = (size_t)(a->N * a->K / AG_NF4_BLOCK);
            assert_memory_equal(a->data, b->data, (size_t)(a->N * a->K / 2));
            if (double_quant) {
                assert_memory_equal(a->absmax_q, b->absmax_q, n_blocks);
                assert_memory_equal(a->nested_absmax, b->nested_absmax, sizeof(float));
                assert_true(a->offset == b->offset && !a->absmax);
            } else {
                assert_memory_equal(a->absmax, b->absmax, n_blocks * sizeof(float));
                assert_string_equal("nf4", one->quantization);
            }
        }
        ag_model_close(&one);
        ag_model_close(&three);
    }
}

/* ---- what is wrong --------------------------------------------------------------------------------------------------------
 */
static void a_missing_tensor_is_named(void **state)
{
    (void)state;
    scratch_dir_create();
    copy *c = copy_begin();
    *entry(c, "model.layers.1.mlp.up_proj.weight") = c->entries[c->n - 1];
    c->n--;
    copy_end(c);
    must_fail(AG_E_NOT_FOUND, "'model.layers.1.mlp.up_proj.weight'", open_scratch(NULL));
    scratch_dir_remove();
}

static void a_wrong_shape_or_dtype_is_named_with_what_was_expected(void **state)
{
    (void)state;
    scratch_dir_create();
    copy *c = copy_begin();
    ag_st_entry *e = entry(c, "model.layers.0.self_attn.k_proj.weight"); /* [16,32] */
    e->dim[0] = 32, e->dim[1] = 16;
    copy_end(c);
    must_fail(AG_E_SHAPE, "'model.layers.0.self_attn.k_proj.weight' is BF16 [32,16], config.json asks for [16,32]",
              open_scratch(NULL));
    c = copy_begin();
    e = entry(c, "model.norm.weight");
    e->rank = 2, e->dim[0] = 1, e->dim[1] = 32;
    copy_end(c);
    must_fail(AG_E_SHAPE, "'model.norm.weight' is BF16 [1,32], config.json asks for [32]", open_scratch(NULL));
    c = copy_begin();
    e = entry(c, "lm_head.weight");
    e->dtype = AG_ST_I16;
    copy_end(c);
    must_fail(AG_E_UNSUPPORTED, "'lm_head.weight' is I16; F32, F16 and BF16", open_scratch(NULL));
    scratch_dir_remove();
}

static void a_tensor_too_many_is_refused_unless_it_is_known_to_be_of_no_use(void **state)
{
    (void)state;
    static const float x[4] = {0};
    scratch_dir_create();
    copy *c = copy_begin();
    c->entries[c->n++] = (ag_st_entry){
        .name = "model.layers.0.self_attn.rotary_emb.inv_freq", .dtype = AG_ST_F32, .rank = 1, .dim = {4}, .data = x};
    copy_end(c);
    must(open_scratch(NULL));
    c = copy_begin();
    c->entries[c->n++] =
        (ag_st_entry){.name = "model.layers.0.self_attn.q_norm.weight", .dtype = AG_ST_F32, .rank = 1, .dim = {4}, .data = x};
    copy_end(c);
    must_fail(AG_E_UNSUPPORTED, "'model.layers.0.self_attn.q_norm.weight' (F32 [4]) has no place in a llama model",
              open_scratch(NULL));
    scratch_dir_remove();
}

static void weights_that_are_no_numbers_are_found(void **state)
{
    (void)state;
    scratch_dir_create();
    copy *c = copy_begin();
    ag_st_entry *e = entry(c, "model.layers.1.self_attn.o_proj.weight"); /* [32,32] */
    memcpy(c->changed, e->data, 32 * 32 * 2);
    c->changed[5 * 32 + 7] = 0x7fc0; /* NaN */
    e->data = c->changed;
    copy_end(c);
    must(open_scratch(NULL));
    must_fail(AG_E_NUMERIC,
              "'model.layers.1.self_attn.o_proj.weight' has a weight that is infinite or no number (row 5, column 7)",
              open_scratch(&(ag_model_options){.check_finite = true, .n_threads = 2}));
    c = copy_begin();
    e = entry(c, "model.layers.1.self_attn.o_proj.weight");
    memcpy(c->changed, e->data, 32 * 32 * 2);
    c->changed[5 * 32 + 7] = 0xff80; /* -infinity: the scales show it without a look at every weight */
    e->data = c->changed;
    copy_end(c);
    must_fail(AG_E_NUMERIC, "o_proj.weight", open_scratch(&(ag_model_options){.quantize_nf4 = true}));
    scratch_dir_remove();
}

/* A matrix of 3 rows in memory, with one bad number or scale in it, must be refused with its place; a good one must not. */
static void check_one_bad(ag_weight_type type, int64_t K, int64_t at_in_block, size_t n_bytes, const unsigned char *bad)
{
    unsigned char bytes[3 * 512] = {0};
    char place[64];
    const int64_t block = ag_weight_block_bytes(type);
    const ag_map nowhere = {0};
    const ag_found f = {.file = "f", .name = "t", .map = &nowhere, .w = {.type = type, .N = 3, .K = K, .data = bytes}};
    must(ag_model_check_finite(&f, 1, &err));
    for (int64_t i = 0; i < 3 * K / ag_weight_block_weights(type); i++) {
        memcpy(bytes + i * block + at_in_block, bad, n_bytes);
        const int64_t e = i * ag_weight_block_weights(type);
        snprintf(place, sizeof place, "(row %d, column %d)", (int)(e / K), (int)(e % K));
        must_fail(AG_E_NUMERIC, place, ag_model_check_finite(&f, 1, &err));
        memset(bytes + i * block + at_in_block, 0, n_bytes);
    }
}

static void bad_numbers_and_scales_of_every_type_are_found(void **state)
{
    (void)state;
    static const unsigned char inf_f32[] = {0, 0, 0x80, 0x7f}, nan_f32[] = {1, 0, 0x80, 0xff}, inf_bf16[] = {0x80, 0xff},
                               nan_bf16[] = {0xc0, 0x7f}, inf_f16[] = {0, 0xfc}, nan_f16[] = {1, 0x7c};
    static const struct {
        ag_weight_type type;
        int first, second;
    } blocks[] = {{AG_W_Q4_0, 0, -1},  {AG_W_Q4_1, 0, 2},    {AG_W_Q5_0, 0, -1}, {AG_W_Q5_1, 0, 2}, {AG_W_Q8_0, 0, -1},
                  {AG_W_Q2_K, 80, 82}, {AG_W_Q3_K, 108, -1}, {AG_W_Q4_K, 0, 2},  {AG_W_Q5_K, 0, 2}, {AG_W_Q6_K, 208, -1}};
    check_one_bad(AG_W_F32, 7, 0, 4, inf_f32);
    check_one_bad(AG_W_F32, 7, 0, 4, nan_f32);
    check_one_bad(AG_W_BF16, 7, 0, 2, inf_bf16);
    check_one_bad(AG_W_BF16, 7, 0, 2, nan_bf16);
    check_one_bad(AG_W_F16, 7, 0, 2, inf_f16);
    check_one_bad(AG_W_F16, 7, 0, 2, nan_f16);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        const int64_t K = ag_weight_block_weights(blocks[i].type) * 2;
        check_one_bad(blocks[i].type, K, blocks[i].first, 2, nan_f16);
        if (blocks[i].second >= 0) check_one_bad(blocks[i].type, K, blocks[i].second, 2, inf_f16);
    }
}

static void paths_that_hold_no_model_say_why(void **state)
{
    (void)state;
    ag_model *m;
    scratch_dir_create();
    must_fail(AG_E_NOT_FOUND, "/nothing/here", ag_model_open(&m, "/nothing/here", NULL, &err));
    must_fail(AG_E_NOT_FOUND, "has no config.json", open_scratch(NULL));
    write_text("adapter_config.json", "{}");
    must_fail(AG_E_NOT_FOUND, "is an adapter, not a model", open_scratch(NULL));
    must_fail(AG_E_FORMAT, "one file of a model", ag_model_open(&m, GGUF_DIR "tiny/model.safetensors", NULL, &err));
    must_fail(AG_E_FORMAT, "no GGUF file", ag_model_open(&m, GGUF_DIR "tiny/config.json", NULL, &err));
    write_text("config.json", "{\"model_type\":\"mamba\"}");
    must_fail(AG_E_UNSUPPORTED, "'mamba'", open_scratch(NULL));
    copy_end(copy_begin());
    must(ag_file_publish(scratch_path("model.safetensors"), "short", 5, &err));
    must_fail(AG_E_FORMAT, "model.safetensors: 5 bytes", open_scratch(NULL));
    scratch_dir_remove();
}

/* The tiny GGUF model with one tensor renamed, dropped, of another type, or with another shape. */
static ag_status open_changed_gguf(const char *which, const char *new_name, uint32_t new_type, bool turn)
{
    ag_gguf g;
    ag_gguf_writer w = {0};
    ag_model *m;
    must(ag_gguf_open(&g, GGUF_DIR "tiny.f32.gguf", &err));
    for (size_t i = 0; i < g.n_pairs; i++) ag_gguf_put_pair(&w, &g.pairs[i]);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < g.n_tensors; i++) {
            const ag_gguf_tensor *t = &g.tensors[i];
            const bool is_it = strcmp(t->name, which) == 0;
            const int64_t turned[2] = {t->ne[1], t->ne[0]};
            if (pass == 0)
                ag_gguf_writer_tensor(&w, is_it && new_name ? new_name : t->name, is_it ? new_type : t->type, t->rank,
                                      is_it && turn ? turned : t->ne);
            else
                must(ag_gguf_writer_add(
                    &w, t->data,
                    (size_t)ag_ggml_bytes(is_it ? new_type : t->type, (uint64_t)t->ne[0], (uint64_t)(t->ne[0] * t->ne[1])),
                    &err));
        }
        if (pass == 0) must(ag_gguf_writer_begin(&w, scratch_path("changed.gguf"), &err));
    }
    must(ag_gguf_writer_commit(&w, &err));
    ag_gguf_close(&g);
    ag_status status = ag_model_open(&m, scratch_path("changed.gguf"), NULL, &err);
    ag_model_close(&m);
    return status;
}

static void a_gguf_files_tensors_are_held_against_its_metadata(void **state)
{
    (void)state;
    scratch_dir_create();
    must(open_changed_gguf("none", NULL, 0, false));
    must_fail(AG_E_NOT_FOUND, "no tensor 'blk.1.ffn_up.weight'",
              open_changed_gguf("blk.1.ffn_up.weight", "blk.1.ffn_other.weight", AG_GGML_F32, false));
    must_fail(AG_E_SHAPE, "'blk.1.ffn_up.weight' is F32 [64,32] (innermost first), the metadata ask for [32,64]",
              open_changed_gguf("blk.1.ffn_up.weight", NULL, AG_GGML_F32, true));
    must_fail(AG_E_UNSUPPORTED, "IQ4_NL [32,64] (innermost first), a type that cannot be computed with",
              open_changed_gguf("blk.1.ffn_up.weight", NULL, AG_GGML_IQ4_NL, false));
    must_fail(AG_E_UNSUPPORTED, "'blk.1.attn_norm.weight' is Q8_0",
              open_changed_gguf("blk.1.attn_norm.weight", NULL, AG_GGML_Q8_0, false));
    /* Without output.weight the head is tied, and the tensor of that size has no place. */
    must_fail(AG_E_UNSUPPORTED, "'cls.output.weight'",
              open_changed_gguf("output.weight", "cls.output.weight", AG_GGML_F32, false));
    scratch_dir_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_gives_every_weight_as_stored),
        cmocka_unit_test(a_gguf_file_gives_the_same_weights_in_the_same_order_of_rows),
        cmocka_unit_test(shards_are_one_model),
        cmocka_unit_test(badly_aligned_data_are_copied),
        cmocka_unit_test(quantizing_gives_bitsandbytes_bytes),
        cmocka_unit_test(bytes_are_the_same_for_any_number_of_threads),
        cmocka_unit_test(a_missing_tensor_is_named),
        cmocka_unit_test(a_wrong_shape_or_dtype_is_named_with_what_was_expected),
        cmocka_unit_test(a_tensor_too_many_is_refused_unless_it_is_known_to_be_of_no_use),
        cmocka_unit_test(weights_that_are_no_numbers_are_found),
        cmocka_unit_test(bad_numbers_and_scales_of_every_type_are_found),
        cmocka_unit_test(paths_that_hold_no_model_say_why),
        cmocka_unit_test(a_gguf_files_tensors_are_held_against_its_metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
