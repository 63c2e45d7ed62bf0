/* safetensors: files of the format's own library, every rule that it checks, folders, and writing. */
#define _GNU_SOURCE
#include "format/safetensors.h"

#include "base/num.h"
#include "format/little_endian.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include <sys/stat.h>
#include <unistd.h>

static const char library_file[] = AGOGE_TESTS_DIR "/golden/safetensors/library.safetensors";
static ag_err err;

/* A file in memory: length, header text, n data bytes of zeros. */
static ag_status parse_text(const char *header, size_t n_data)
{
    size_t n = strlen(header), size = 8 + n + n_data;
    unsigned char *bytes = calloc(1, size);
    assert_non_null(bytes);
    ag_little_write(bytes, n, 8);
    memcpy(bytes + 8, header, n);
    ag_safetensors st;
    ag_status status = ag_safetensors_parse(&st, bytes, size, "x.safetensors", &err);
    if (!status) ag_safetensors_close(&st);
    free(bytes);
    return status;
}

static void the_librarys_file_is_read_with_every_dtype(void **state)
{
    (void)state;
    ag_safetensors st;
    must(ag_safetensors_open(&st, library_file, &err));
    assert_int_equal(10, st.n_tensors);
    assert_string_equal("pt", ag_safetensors_meta(&st, "format"));
    assert_null(ag_safetensors_meta(&st, "nothing"));
    const ag_st_tensor *t = ag_safetensors_find(&st, "b.f32");
    assert_non_null(t);
    assert_int_equal(AG_ST_F32, t->dtype);
    assert_int_equal(2, t->rank);
    assert_int_equal(2, t->dim[0]);
    assert_int_equal(3, t->dim[1]);
    float x[6];
    assert_int_equal(sizeof x, t->bytes);
    memcpy(x, t->data, sizeof x);
    for (int i = 0; i < 6; i++) assert_true(x[i] == (float)i);
    assert_int_equal(0, ag_safetensors_find(&st, "a.f32")->rank);
    assert_int_equal(0, ag_safetensors_find(&st, "empty")->bytes);
    assert_int_equal(AG_ST_BOOL, ag_safetensors_find(&st, "yes")->dtype);
    assert_int_equal(255, ag_safetensors_find(&st, "byte")->data[2]);
    assert_int_equal(7, ag_safetensors_find(&st, "über \"x\"")->data[0]);
    assert_int_equal(5, ag_safetensors_find(&st, "deep")->rank);
    assert_null(ag_safetensors_find(&st, "b.f3"));
    uint16_t brain;
    memcpy(&brain, ag_safetensors_find(&st, "brain")->data + 2, sizeof brain);
    assert_true(ag_bf16_to_f32(brain) == 3);
    ag_arena arena = {0};
    assert_string_equal("F32 [2,3]", ag_st_shape_text(&arena, t));
    ag_arena_free(&arena);
    ag_safetensors_close(&st);
}

static void writing_gives_the_librarys_bytes(void **state)
{
    (void)state;
    scratch_dir_create();
    ag_safetensors st;
    ag_st_entry entries[16];
    must(ag_safetensors_open(&st, library_file, &err));
    for (size_t i = 0; i < st.n_tensors; i++) {
        const ag_st_tensor *t = st.by_name[i];
        entries[i] = (ag_st_entry){.name = t->name, .dtype = t->dtype, .rank = t->rank, .data = t->data};
        memcpy(entries[i].dim, t->dim, sizeof t->dim);
    }
    must(ag_safetensors_write(scratch_path("copy"), entries, st.n_tensors, AG_ST_ORDER_LIBRARY, st.metadata, st.n_metadata,
                              &err));
    ag_map copy;
    must(ag_map_open(&copy, scratch_path("copy"), &err));
    assert_int_equal(st.map.n, copy.n);
    assert_memory_equal(st.map.bytes, copy.bytes, copy.n);
    ag_map_close(&copy);
    ag_safetensors_close(&st);
    scratch_dir_remove();
}

static void pieces_and_the_callers_order_are_kept(void **state)
{
    (void)state;
    scratch_dir_create();
    const float x[3] = {1, 2, 3};
    const unsigned char b = 9;
    const ag_st_entry entries[] = {
        {.name = "z", .dtype = AG_ST_U8, .rank = 1, .dim = {1}},
        {.name = "nothing", .dtype = AG_ST_F32, .rank = 1, .dim = {0}},
        {.name = "a", .dtype = AG_ST_F32, .rank = 1, .dim = {3}},
    };
    ag_st_writer w;
    must(ag_st_writer_begin(&w, scratch_path("f"), entries, 3, AG_ST_ORDER_GIVEN, NULL, 0, &err));
    must(ag_st_writer_add(&w, 0, &b, 1, &err));
    must(ag_st_writer_add(&w, 2, x, 4, &err));
    must(ag_st_writer_add(&w, 2, x + 1, 8, &err));
    must(ag_st_writer_commit(&w, &err));
    ag_st_writer_abort(&w);
    ag_safetensors st;
    must(ag_safetensors_open(&st, scratch_path("f"), &err));
    assert_null(st.metadata);
    assert_string_equal("z", st.tensors[0].name);
    assert_memory_equal(x, ag_safetensors_find(&st, "a")->data, sizeof x);
    ag_safetensors_close(&st);
    must(ag_st_writer_begin(&w, scratch_path("g"), entries, 3, AG_ST_ORDER_LIBRARY, NULL, 0, &err));
    assert_int_equal(2, w.order[0]); /* F32 before U8, "a" before "nothing" */
    assert_int_equal(1, w.order[1]);
    ag_st_writer_abort(&w);
    assert_int_equal(-1, access(scratch_path("g"), F_OK));
    scratch_dir_remove();
}

static void every_rule_of_the_format_is_checked(void **state)
{
    (void)state;
    assert_int_equal(AG_OK, parse_text("{}   ", 0));
    assert_int_equal(AG_OK, parse_text("{\"__metadata__\":null}", 0));
    assert_int_equal(AG_OK, parse_text("{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3));
    must_fail(AG_E_FORMAT, "ends inside a byte",
              parse_text("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2));
    must_fail(AG_E_FORMAT, "does not begin with '{'", parse_text(" {}", 0));
    must_fail(AG_E_FORMAT, "does not begin with '{'", parse_text("[]", 0));
    must_fail(AG_E_FORMAT, "take 0 bytes, the file has 1", parse_text("{}", 1));
    must_fail(AG_E_FORMAT, "dtype 'F99'", parse_text("{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4));
    must_fail(AG_E_FORMAT, "no 'dtype'", parse_text("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4));
    must_fail(AG_E_FORMAT, "no 'shape'", parse_text("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4));
    must_fail(AG_E_FORMAT, "dimension 0", parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4));
    must_fail(AG_E_FORMAT, "dimension 0", parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4));
    must_fail(AG_E_UNSUPPORTED, "9 dimensions",
              parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4));
    must_fail(AG_E_FORMAT, "'data_offsets'", parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4));
    must_fail(AG_E_FORMAT, "'data_offsets'", parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4));
    must_fail(AG_E_FORMAT, "ends at byte 8 of 4",
              parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4));
    must_fail(AG_E_FORMAT, "has 4 bytes, its shape needs 8",
              parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4));
    must_fail(AG_E_FORMAT, "overflows",
              parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4));
    must_fail(AG_E_FORMAT, "begins at byte 4 of the data where 0",
              parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8));
    must_fail(AG_E_FORMAT, "tensor 'b' begins at byte 2",
              parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
                         6));
    must_fail(AG_E_FORMAT, "duplicate",
              parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                         8));
    must_fail(AG_E_FORMAT, "'__metadata__'", parse_text("{\"__metadata__\":{\"a\":1}}", 0));
    must_fail(AG_E_FORMAT, "described by an object", parse_text("{\"a\":3}", 0));
}

static void truncated_and_lying_lengths_are_refused(void **state)
{
    (void)state;
    ag_safetensors st;
    unsigned char bytes[64] = {0};
    must_fail(AG_E_FORMAT, "7 bytes are no safetensors file", ag_safetensors_parse(&st, bytes, 7, "x", &err));
    ag_little_write(bytes, 100000001, 8);
    must_fail(AG_E_FORMAT, "claims 100000001 bytes", ag_safetensors_parse(&st, bytes, sizeof bytes, "x", &err));
    ag_little_write(bytes, UINT64_MAX, 8);
    must_fail(AG_E_FORMAT, "claims 18446744073709551615 bytes", ag_safetensors_parse(&st, bytes, sizeof bytes, "x", &err));
    ag_little_write(bytes, 57, 8);
    must_fail(AG_E_FORMAT, "cut short", ag_safetensors_parse(&st, bytes, sizeof bytes, "x", &err));
    ag_little_write(bytes, 0, 8);
    must_fail(AG_E_FORMAT, "does not begin", ag_safetensors_parse(&st, bytes, sizeof bytes, "x", &err));
    ag_map whole;
    must(ag_map_open(&whole, library_file, &err));
    for (size_t n = 0; n < whole.n; n++) assert_int_equal(AG_E_FORMAT, ag_safetensors_parse(&st, whole.bytes, n, "x", &err));
    ag_map_close(&whole);
    must_fail(AG_E_NOT_FOUND, "/nothing", ag_safetensors_open(&st, "/nothing", &err));
}

/* ---- folders ---------------------------------------------------------------------------------------------------------- */
static void write_one(const char *name, const char *tensor)
{
    const float x = 1;
    const ag_st_entry entry = {.name = tensor, .dtype = AG_ST_F32, .rank = 1, .dim = {1}, .data = &x};
    must(ag_safetensors_write(scratch_path(name), &entry, 1, AG_ST_ORDER_LIBRARY, NULL, 0, &err));
}

static void write_text(const char *name, const char *text)
{
    must(ag_file_publish(scratch_path(name), text, strlen(text), &err));
}

static void a_folder_is_one_file_or_an_index_with_its_shards(void **state)
{
    (void)state;
    ag_st_folder f;
    const char *dir = scratch_dir_create();
    must_fail(AG_E_NOT_FOUND, "neither model.safetensors", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_one("model.safetensors", "a");
    write_one("adapter_model.safetensors", "adapter");
    must(ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    assert_false(f.sharded);
    assert_int_equal(1, f.n_tensors);
    assert_null(ag_st_folder_find(&f, "adapter", NULL));
    ag_st_folder_close(&f);
    write_one("other.safetensors", "b");
    must_fail(AG_E_FORMAT, "'other.safetensors'", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_text("model.safetensors.index.json",
               "{\"metadata\":{},\"weight_map\":{\"a\":\"model.safetensors\",\"b\":\"other.safetensors\"}}");
    must(ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    assert_true(f.sharded);
    const ag_safetensors *shard = NULL;
    assert_non_null(ag_st_folder_find(&f, "b", &shard));
    assert_string_equal("other.safetensors", ag_path_base(shard->path));
    ag_st_folder_close(&f);
    scratch_dir_remove();
}

static void an_index_must_agree_with_the_folder(void **state)
{
    (void)state;
    static const char index[] = "model.safetensors.index.json";
    ag_st_folder f;
    const char *dir = scratch_dir_create();
    write_one("model-00001-of-00002.safetensors", "a");
    write_text(index, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}");
    must_fail(AG_E_FORMAT, "complete numbering of 1", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_text(index,
               "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}}");
    must_fail(AG_E_NOT_FOUND, "'model-00002-of-00002.safetensors', which is not in the folder",
              ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_one("model-00002-of-00002.safetensors", "b");
    must(ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    ag_st_folder_close(&f);
    write_text(index, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\","
                      "\"c\":\"model-00002-of-00002.safetensors\"}}");
    must_fail(AG_E_NOT_FOUND, "tensor 'c' is not in 'model-00002-of-00002.safetensors'",
              ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_text(index,
               "{\"weight_map\":{\"b\":\"model-00001-of-00002.safetensors\",\"a\":\"model-00002-of-00002.safetensors\"}}");
    must_fail(AG_E_FORMAT, "the index gives it 'model-00002-of-00002.safetensors'",
              ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_text(index, "{\"weight_map\":{\"a\":\"../model-00001-of-00002.safetensors\"}}");
    must_fail(AG_E_FORMAT, "in the same folder", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_text(index, "{\"weight_map\":{\"a\":3}}");
    must_fail(AG_E_FORMAT, "'a' has 'no text'", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_text(index, "{\"weight_map\":{}}");
    must_fail(AG_E_FORMAT, "'weight_map'", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_text(index, "{\"weight_map\":");
    must_fail(AG_E_FORMAT, "index.json", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    scratch_dir_remove();
}

static void readers_pass_over_files_that_verifiers_refuse(void **state)
{
    (void)state;
    ag_st_folder f;
    const char *dir = scratch_dir_create();
    write_one("vectors.safetensors", "v");
    must_fail(AG_E_FORMAT, "'vectors.safetensors' but no model.safetensors.index.json",
              ag_st_folder_open(&f, dir, AG_ST_READ, &err));
    write_one("elsewhere", "a");
    assert_int_equal(0, symlink("elsewhere", scratch_path("model.safetensors")));
    must(ag_st_folder_open(&f, dir, AG_ST_READ, &err));
    assert_int_equal(1, f.n_tensors);
    ag_st_folder_close(&f);
    must_fail(AG_E_FORMAT, "'vectors.safetensors'", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    write_one("part.safetensors", "b");
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"b\":\"part.safetensors\"}}");
    must_fail(AG_E_FORMAT, "does not name 'model.safetensors'", ag_st_folder_open(&f, dir, AG_ST_READ, &err));
    assert_int_equal(0, unlink(scratch_path("model.safetensors")));
    must(ag_st_folder_open(&f, dir, AG_ST_READ, &err));
    assert_non_null(ag_st_folder_find(&f, "b", NULL));
    assert_null(ag_st_folder_find(&f, "v", NULL));
    ag_st_folder_close(&f);
    must_fail(AG_E_FORMAT, "does not name 'vectors.safetensors'", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    scratch_dir_remove();
}

static void links_are_followed_only_into_the_hub_caches_own_blobs(void **state)
{
    (void)state;
    ag_st_folder f;
    scratch_dir_create();
    must(ag_make_dirs(scratch_path("repo/blobs"), &err));
    must(ag_make_dirs(scratch_path("repo/snapshots/c0ffee"), &err));
    write_one("repo/blobs/abc", "a");
    write_one("stranger", "a");
    const char *dir = scratch_path("repo/snapshots/c0ffee");
    assert_int_equal(0, symlink("../../blobs/abc", scratch_path("repo/snapshots/c0ffee/model.safetensors")));
    must(ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    assert_int_equal(1, f.n_tensors);
    ag_st_folder_close(&f);
    assert_int_equal(0, unlink(scratch_path("repo/snapshots/c0ffee/model.safetensors")));
    assert_int_equal(0, symlink("../../../stranger", scratch_path("repo/snapshots/c0ffee/model.safetensors")));
    must_fail(AG_E_FORMAT, "symbolic link", ag_st_folder_open(&f, dir, AG_ST_VERIFY, &err));
    scratch_dir_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_librarys_file_is_read_with_every_dtype),
        cmocka_unit_test(writing_gives_the_librarys_bytes),
        cmocka_unit_test(pieces_and_the_callers_order_are_kept),
        cmocka_unit_test(every_rule_of_the_format_is_checked),
        cmocka_unit_test(truncated_and_lying_lengths_are_refused),
        cmocka_unit_test(a_folder_is_one_file_or_an_index_with_its_shards),
        cmocka_unit_test(an_index_must_agree_with_the_folder),
        cmocka_unit_test(readers_pass_over_files_that_verifiers_refuse),
        cmocka_unit_test(links_are_followed_only_into_the_hub_caches_own_blobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
