/* GGUF: files of the gguf package, hostile bytes, typed getters, and writing. */
#include "format/gguf.h"

#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include <unistd.h>

static const char tiny_file[] = AGOGE_TESTS_DIR "/golden/gguf/tiny.q4_1.gguf";
static ag_err err;

/* ---- files made by hand -------------------------------------------------------------------------------------------- */
static void put(ag_str *s, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) ag_str_add_char(s, (char)(value >> 8 * i));
}

static void put_text(ag_str *s, const char *text)
{
    put(s, strlen(text), 8);
    ag_str_add(s, text);
}

static void put_head(ag_str *s, uint32_t version, uint64_t n_tensors, uint64_t n_pairs)
{
    ag_str_clear(s);
    ag_str_add(s, "GGUF");
    put(s, version, 4);
    put(s, n_tensors, 8);
    put(s, n_pairs, 8);
}

static void put_tensor(ag_str *s, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t offset)
{
    put_text(s, name);
    put(s, 2, 4);
    put(s, ne0, 8);
    put(s, ne1, 8);
    put(s, type, 4);
    put(s, offset, 8);
}

static void pad(ag_str *s, size_t alignment, size_t more)
{
    while (s->n % alignment) ag_str_add_char(s, 0);
    while (more--) ag_str_add_char(s, 0);
}

static ag_status parse(const ag_str *s)
{
    ag_gguf g;
    ag_status status = ag_gguf_parse(&g, s->text, s->n, "x.gguf", &err);
    if (!status) ag_gguf_close(&g);
    return status;
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */
static void the_packages_file_is_read(void **state)
{
    (void)state;
    ag_gguf g;
    ag_arena arena = {0};
    must(ag_gguf_open(&g, tiny_file, &err));
    assert_int_equal(3, g.version);
    assert_int_equal(32, g.alignment);
    int64_t n = 0;
    double theta = 0;
    bool add_bos = true;
    const char *architecture = NULL;
    must(ag_gguf_need_int(&g, "llama.block_count", 1, 100, &n, &err));
    assert_int_equal(2, n);
    must(ag_gguf_need_double(&g, "llama.rope.freq_base", &theta, &err));
    assert_true(theta == 500);
    must(ag_gguf_get_bool(&g, "tokenizer.ggml.add_bos_token", &add_bos, &err));
    assert_false(add_bos);
    must(ag_gguf_get_text(&g, "general.architecture", &architecture, &arena, &err));
    assert_string_equal("llama", architecture);
    const ag_gguf_text *tokens;
    size_t n_tokens;
    must(ag_gguf_get_texts(&g, "tokenizer.ggml.tokens", &tokens, &n_tokens, &arena, &err));
    assert_int_equal(48, n_tokens);
    assert_int_equal(2, tokens[47].n);
    assert_memory_equal("é", tokens[47].text, 2);
    const int64_t *types;
    must(ag_gguf_get_ints(&g, "tokenizer.ggml.token_type", &types, &n_tokens, &arena, &err));
    assert_int_equal(48, n_tokens);
    assert_int_equal(1, types[47]);
    const ag_gguf_tensor *t = ag_gguf_find(&g, "blk.1.ffn_down.weight");
    assert_non_null(t);
    assert_int_equal(AG_GGML_Q4_1, t->type);
    assert_int_equal(64, t->ne[0]);
    assert_int_equal(32, t->ne[1]);
    assert_int_equal(64 * 32 / 32 * 20, t->bytes);
    assert_string_equal("Q4_1 [64,32] (innermost first)", ag_gguf_shape_text(&arena, t));
    assert_null(ag_gguf_find(&g, "blk.2.ffn_down.weight"));
    ag_arena_free(&arena);
    ag_gguf_close(&g);
}

static void getters_name_key_found_and_expected(void **state)
{
    (void)state;
    ag_gguf g;
    ag_arena arena = {0};
    const char *text = NULL;
    int64_t n = 77;
    bool yes = true;
    double x = 0;
    const float *floats;
    const ag_gguf_text *texts;
    size_t count;
    must(ag_gguf_open(&g, tiny_file, &err));
    must(ag_gguf_get_int(&g, "nothing", 0, 1, &n, &err));
    assert_int_equal(77, n);
    must_fail(AG_E_FORMAT, "no 'nothing'", ag_gguf_need_int(&g, "nothing", 0, 1, &n, &err));
    must_fail(AG_E_FORMAT, "'llama.block_count' is 2, expected 3 to 9",
              ag_gguf_get_int(&g, "llama.block_count", 3, 9, &n, &err));
    must_fail(AG_E_FORMAT, "'general.architecture' must be a whole number, found text",
              ag_gguf_get_int(&g, "general.architecture", 3, 9, &n, &err));
    must_fail(AG_E_FORMAT, "must be a text, found u32", ag_gguf_get_text(&g, "llama.block_count", &text, &arena, &err));
    must_fail(AG_E_FORMAT, "must be a bool", ag_gguf_get_bool(&g, "llama.block_count", &yes, &err));
    must_fail(AG_E_FORMAT, "must be a number, found a list of text", ag_gguf_get_double(&g, "tokenizer.ggml.tokens", &x, &err));
    must_fail(AG_E_FORMAT, "found a list of i32",
              ag_gguf_get_floats(&g, "tokenizer.ggml.token_type", &floats, &count, &arena, &err));
    must_fail(AG_E_FORMAT, "must be a list of texts", ag_gguf_get_texts(&g, "llama.block_count", &texts, &count, &arena, &err));
    ag_arena_free(&arena);
    ag_gguf_close(&g);
}

static void every_cut_of_a_file_is_refused(void **state)
{
    (void)state;
    ag_map whole;
    ag_gguf g;
    must(ag_map_open(&whole, tiny_file, &err));
    for (size_t n = 0; n < whole.n - 31; n += n < 4000 ? 1 : 37) {
        unsigned char *cut = malloc(n + 1); /* its own block, so that a read past the end is seen */
        assert_non_null(cut);
        memcpy(cut, whole.bytes, n);
        if (!ag_gguf_parse(&g, cut, n, "cut.gguf", &err)) fail_msg("%zu of %zu bytes were taken for a whole file", n, whole.n);
        free(cut);
    }
    ag_map_close(&whole);
}

static void other_versions_and_byte_orders_are_refused(void **state)
{
    (void)state;
    ag_str s = {0};
    put_head(&s, 3, 0, 0);
    assert_int_equal(AG_OK, parse(&s));
    put_head(&s, 2, 0, 0);
    assert_int_equal(AG_OK, parse(&s));
    put_head(&s, 1, 0, 0);
    must_fail(AG_E_UNSUPPORTED, "GGUF version 1", parse(&s));
    put_head(&s, 4, 0, 0);
    must_fail(AG_E_UNSUPPORTED, "GGUF version 4", parse(&s));
    put_head(&s, 3u << 24, 0, 0);
    must_fail(AG_E_UNSUPPORTED, "big-endian", parse(&s));
    s.text[0] = 'g';
    must_fail(AG_E_FORMAT, "no GGUF file", parse(&s));
    ag_str_free(&s);
}

static void lying_counts_and_lengths_are_refused_before_anything_is_allocated(void **state)
{
    (void)state;
    ag_str s = {0};
    put_head(&s, 3, UINT64_MAX, 0);
    must_fail(AG_E_FORMAT, "18446744073709551615 tensors", parse(&s));
    put_head(&s, 3, 0, 1ull << 60);
    must_fail(AG_E_FORMAT, "metadata pairs", parse(&s));
    put_head(&s, 3, 0, 1);
    put(&s, UINT64_MAX, 8);
    pad(&s, 32, 32);
    must_fail(AG_E_FORMAT, "cut short", parse(&s));
    put_head(&s, 3, 0, 1);
    put_text(&s, "k");
    put(&s, AG_GGUF_TEXT, 4);
    put(&s, 5, 8);
    ag_str_add(&s, "four");
    must_fail(AG_E_FORMAT, "ends inside k", parse(&s));
    put_head(&s, 3, 0, 1);
    put_text(&s, "k");
    put(&s, AG_GGUF_ARRAY, 4);
    put(&s, AG_GGUF_U64, 4);
    put(&s, 1ull << 61, 8); /* times 8 is 0 in 64 bits */
    pad(&s, 32, 32);
    must_fail(AG_E_FORMAT, "ends inside k", parse(&s));
    put_head(&s, 3, 0, 1);
    put_text(&s, "k");
    put(&s, AG_GGUF_ARRAY, 4);
    put(&s, AG_GGUF_ARRAY, 4);
    put(&s, 1, 8);
    pad(&s, 32, 32);
    must_fail(AG_E_FORMAT, "a list cannot hold", parse(&s));
    put_head(&s, 3, 0, 1);
    put_text(&s, "k");
    put(&s, 13, 4);
    pad(&s, 32, 32);
    must_fail(AG_E_FORMAT, "type 13", parse(&s));
    ag_str_free(&s);
}

static void names_keys_alignment_and_offsets_are_checked(void **state)
{
    (void)state;
    ag_str s = {0};
    put_head(&s, 3, 0, 2);
    for (int i = 0; i < 2; i++) put_text(&s, "same"), put(&s, AG_GGUF_U8, 4), put(&s, 1, 1);
    must_fail(AG_E_FORMAT, "the key 'same' stands twice", parse(&s));
    put_head(&s, 3, 0, 1);
    put_text(&s, "general.alignment"), put(&s, AG_GGUF_U32, 4), put(&s, 24, 4);
    must_fail(AG_E_FORMAT, "power of two", parse(&s));
    put_head(&s, 3, 2, 0);
    put_tensor(&s, "t", AG_GGML_F32, 2, 2, 0);
    put_tensor(&s, "t", AG_GGML_F32, 2, 2, 32);
    pad(&s, 32, 64);
    must_fail(AG_E_FORMAT, "the tensor 't' stands twice", parse(&s));
    put_head(&s, 3, 2, 0);
    put_tensor(&s, "t", AG_GGML_F32, 2, 2, 0);
    put_tensor(&s, "u", AG_GGML_F32, 2, 2, 16);
    pad(&s, 32, 64);
    must_fail(AG_E_FORMAT, "lies at offset 16 of the data where 32", parse(&s));
    put_head(&s, 3, 1, 0);
    put_tensor(&s, "t", AG_GGML_Q8_0, 48, 2, 0);
    pad(&s, 32, 128);
    must_fail(AG_E_FORMAT, "no whole blocks", parse(&s));
    put_head(&s, 3, 1, 0);
    put_tensor(&s, "t", AG_GGML_F32, 1ull << 33, 1ull << 33, 0);
    pad(&s, 32, 64);
    must_fail(AG_E_FORMAT, "overflows", parse(&s));
    put_head(&s, 3, 1, 0);
    put_tensor(&s, "t", AG_GGML_F32, 1ull << 30, 1ull << 30, 0);
    pad(&s, 32, 64);
    must_fail(AG_E_FORMAT, "'t' needs bytes 0 to", parse(&s));
    put_head(&s, 3, 1, 0);
    put_tensor(&s, "a-name-of-more-than-sixty-three-bytes-which-the-format-does-not-allow", AG_GGML_F32, 1, 1, 0);
    pad(&s, 32, 64);
    must_fail(AG_E_FORMAT, "longer than 63 bytes", parse(&s));
    put_head(&s, 3, 1, 0);
    put_tensor(&s, "\xff", AG_GGML_F32, 1, 1, 0);
    pad(&s, 32, 64);
    must_fail(AG_E_FORMAT, "not UTF-8", parse(&s));
    ag_str_free(&s);
}

static void an_unknown_tensor_type_is_no_error_until_it_is_used(void **state)
{
    (void)state;
    ag_str s = {0};
    ag_gguf g;
    put_head(&s, 3, 2, 0);
    put_tensor(&s, "new", 9999, 2, 2, 0);
    put_tensor(&s, "old", AG_GGML_F32, 2, 2, 64);
    pad(&s, 32, 64 + 32);
    must(ag_gguf_parse(&g, s.text, s.n, "x", &err));
    assert_null(ag_ggml_type_name(g.tensors[0].type));
    assert_int_equal(64, g.tensors[0].bytes);
    assert_int_equal(16, g.tensors[1].bytes);
    ag_gguf_close(&g);
    ag_str_free(&s);
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */
static void writing_a_file_again_gives_its_bytes(void **state)
{
    (void)state;
    ag_gguf g;
    ag_gguf_writer w = {0};
    scratch_dir_create();
    must(ag_gguf_open(&g, tiny_file, &err));
    for (size_t i = 0; i < g.n_pairs; i++) ag_gguf_put_pair(&w, &g.pairs[i]);
    for (size_t i = 0; i < g.n_tensors; i++)
        ag_gguf_writer_tensor(&w, g.tensors[i].name, g.tensors[i].type, g.tensors[i].rank, g.tensors[i].ne);
    must(ag_gguf_writer_begin(&w, scratch_path("copy.gguf"), &err));
    for (size_t i = 0; i < g.n_tensors; i++) {
        must(ag_gguf_writer_add(&w, g.tensors[i].data, 5, &err)); /* in pieces */
        must(ag_gguf_writer_add(&w, g.tensors[i].data + 5, g.tensors[i].bytes - 5, &err));
    }
    must(ag_gguf_writer_commit(&w, &err));
    ag_map copy;
    must(ag_map_open(&copy, scratch_path("copy.gguf"), &err));
    assert_int_equal(g.map.n, copy.n);
    assert_memory_equal(g.map.bytes, copy.bytes, copy.n);
    ag_map_close(&copy);
    ag_gguf_close(&g);
    scratch_dir_remove();
}

static void what_is_written_reads_back(void **state)
{
    (void)state;
    ag_gguf_writer w = {0};
    ag_gguf g;
    ag_arena arena = {0};
    const ag_gguf_text texts[] = {{"a\0b", 3}, {"", 0}};
    const int32_t ints[] = {-1, 5};
    const float floats[] = {0.5f, -2};
    scratch_dir_create();
    ag_gguf_put_u32(&w, "u32", 7);
    ag_gguf_put_i32(&w, "i32", -7);
    ag_gguf_put_u64(&w, "u64", UINT64_MAX);
    ag_gguf_put_f32(&w, "f32", 0.1f);
    ag_gguf_put_bool(&w, "bool", true);
    ag_gguf_put_text(&w, "text", "über");
    ag_gguf_put_texts(&w, "texts", texts, 2);
    ag_gguf_put_i32s(&w, "i32s", ints, 2);
    ag_gguf_put_f32s(&w, "f32s", floats, 2);
    must(ag_gguf_writer_begin(&w, scratch_path("w.gguf"), &err));
    must(ag_gguf_writer_commit(&w, &err));
    must(ag_gguf_open(&g, scratch_path("w.gguf"), &err));
    int64_t i = 0;
    double x = 0;
    bool yes = false;
    const char *text = NULL;
    must(ag_gguf_get_int(&g, "i32", INT64_MIN, INT64_MAX, &i, &err));
    assert_int_equal(-7, i);
    must_fail(AG_E_FORMAT, "u64", ag_gguf_get_int(&g, "u64", INT64_MIN, INT64_MAX, &i, &err));
    must(ag_gguf_get_double(&g, "f32", &x, &err));
    assert_true(x == 0.1f);
    must(ag_gguf_get_bool(&g, "bool", &yes, &err));
    assert_true(yes);
    must(ag_gguf_get_text(&g, "text", &text, &arena, &err));
    assert_string_equal("über", text);
    const ag_gguf_text *back;
    const int64_t *back_ints;
    const float *back_floats;
    size_t n;
    must(ag_gguf_get_texts(&g, "texts", &back, &n, &arena, &err));
    assert_int_equal(2, n);
    assert_memory_equal("a\0b", back[0].text, 3);
    assert_int_equal(0, back[1].n);
    must(ag_gguf_get_ints(&g, "i32s", &back_ints, &n, &arena, &err));
    assert_int_equal(-1, back_ints[0]);
    must(ag_gguf_get_floats(&g, "f32s", &back_floats, &n, &arena, &err));
    assert_true(back_floats[1] == -2);
    ag_gguf_close(&g);
    ag_arena_free(&arena);
    ag_gguf_put_u32(&w, "u32", 7);
    ag_gguf_writer_abort(&w); /* before begin */
    scratch_dir_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_packages_file_is_read),
        cmocka_unit_test(getters_name_key_found_and_expected),
        cmocka_unit_test(every_cut_of_a_file_is_refused),
        cmocka_unit_test(other_versions_and_byte_orders_are_refused),
        cmocka_unit_test(lying_counts_and_lengths_are_refused_before_anything_is_allocated),
        cmocka_unit_test(names_keys_alignment_and_offsets_are_checked),
        cmocka_unit_test(an_unknown_tensor_type_is_no_error_until_it_is_used),
        cmocka_unit_test(writing_a_file_again_gives_its_bytes),
        cmocka_unit_test(what_is_written_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
