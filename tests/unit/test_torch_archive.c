#define _GNU_SOURCE
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "format/torch_archive.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

#define GOLDEN AGOGE_TESTS_DIR "/golden/torch_archive/"
#define CORPUS AGOGE_TESTS_DIR "/fuzz/corpus/torch_archive/"

static const ag_torch_value *need(const ag_torch_value *dict, const char *key, ag_torch_kind kind)
{
    const ag_torch_value *v = ag_torch_get(dict, key);
    if (!ag_torch_is(v, kind)) fail_msg("'%s' is missing or of another kind", key);
    return v;
}

/* ---- files of torch --------------------------------------------------------------------------------------------------------- */

static void scalars_and_containers_of_torch_are_read(void **state)
{
    (void)state;
    ag_err err;
    ag_torch_archive a;
    must(ag_torch_open(&a, GOLDEN "values.pt", AG_TORCH_NEEDS_STORAGE, &err));
    need(a.root, "none", AG_TORCH_NONE);
    assert_true(need(a.root, "true", AG_TORCH_BOOLEAN)->boolean);
    assert_false(need(a.root, "false", AG_TORCH_BOOLEAN)->boolean);
    const int64_t want[] = {0, -1, 255, 65535, INT32_MIN, INT64_C(2147483648), INT64_MAX, INT64_MIN,
                            INT64_C(-2147483649)};
    const ag_torch_value *ints = need(a.root, "ints", AG_TORCH_LIST);
    assert_int_equal(9, ints->n);
    for (int i = 0; i < 9; i++) assert_true(ints->items[i]->kind == AG_TORCH_INT && ints->items[i]->integer == want[i]);
    const ag_torch_value *floats = need(a.root, "floats", AG_TORCH_TUPLE);
    assert_int_equal(4, floats->n);
    assert_true(floats->items[0]->real == 0 && signbit(floats->items[1]->real) && floats->items[2]->real == 1e-300 &&
                isinf(floats->items[3]->real));
    assert_string_equal("h\xc3\xa9llo \xf0\x9f\x98\x80", need(a.root, "text", AG_TORCH_STRING)->text);
    const ag_torch_value *nested = need(need(a.root, "nested", AG_TORCH_DICT), "a", AG_TORCH_LIST);
    assert_int_equal(4, nested->n);
    assert_int_equal(2, nested->items[3]->items[1]->items[0]->integer);
    const ag_torch_value *by_int = need(a.root, "by_int", AG_TORCH_DICT);
    assert_int_equal(5, by_int->items[0]->integer);
    assert_string_equal("five", by_int->items[1]->text);
    assert_null(ag_torch_get(a.root, "missing"));
    assert_null(ag_torch_get(ints, "a"));
    ag_torch_close(&a);
    assert_null(a.root);
}

static void check_view(const ag_torch_value *root, const char *key, ag_torch_dtype dtype, const void *first, size_t n_bytes)
{
    const ag_torch_view *v = need(root, key, AG_TORCH_TENSOR)->tensor;
    assert_int_equal(dtype, v->dtype);
    assert_memory_equal(first, v->data, n_bytes);
}

static void tensors_of_torch_are_views_into_the_file(void **state)
{
    (void)state;
    ag_err err;
    ag_torch_archive a;
    must(ag_torch_open(&a, GOLDEN "values.pt", 0, &err));
    const ag_torch_view *v = need(a.root, "f32", AG_TORCH_TENSOR)->tensor;
    assert_true(v->rank == 3 && v->dim[0] == 2 && v->dim[1] == 3 && v->dim[2] == 4 && ag_torch_is_contiguous(v));
    assert_int_equal(24, ag_torch_count(v));
    const float *numbers = v->data;
    assert_true((const unsigned char *)numbers > a.map.bytes && (const unsigned char *)(numbers + 24) <= a.map.bytes + a.map.n);
    for (int i = 0; i < 24; i++) assert_true(numbers[i] == (float)i);
    v = need(a.root, "transposed", AG_TORCH_TENSOR)->tensor;
    assert_true(v->dim[0] == 4 && v->dim[1] == 2 && v->dim[2] == 3 && v->stride[0] == 1 && v->stride[1] == 12 && v->stride[2] == 4);
    assert_false(ag_torch_is_contiguous(v));
    v = need(a.root, "row", AG_TORCH_TENSOR)->tensor;
    assert_true(v->rank == 1 && v->dim[0] == 4 && v->data == numbers + 20 && ag_torch_is_contiguous(v));
    v = need(a.root, "scalar", AG_TORCH_TENSOR)->tensor;
    assert_true(v->rank == 0 && ag_torch_count(v) == 1 && *(const float *)v->data == 7.5f);
    v = need(a.root, "empty", AG_TORCH_TENSOR)->tensor;
    assert_true(v->rank == 2 && ag_torch_count(v) == 0 && ag_torch_is_contiguous(v));
    v = need(a.root, "expanded", AG_TORCH_TENSOR)->tensor;
    assert_true(v->dim[0] == 3 && v->stride[0] == 0 && !ag_torch_is_contiguous(v));
    v = need(a.root, "odd_stride", AG_TORCH_TENSOR)->tensor;
    assert_true(v->stride[0] == 17 && ag_torch_is_contiguous(v)); /* a single row may have any stride */
    check_view(a.root, "f64", AG_TORCH_F64, (double[]){1.5, -2.5}, 16);
    check_view(a.root, "f16", AG_TORCH_F16, (uint16_t[]){0x3e00}, 2);
    check_view(a.root, "bf16", AG_TORCH_BF16, (uint16_t[]){0xc040}, 2);
    check_view(a.root, "i64", AG_TORCH_I64, (int64_t[]){INT64_C(1) << 40}, 8);
    check_view(a.root, "i32", AG_TORCH_I32, (int32_t[]){-7}, 4);
    check_view(a.root, "i16", AG_TORCH_I16, (int16_t[]){-300}, 2);
    check_view(a.root, "i8", AG_TORCH_I8, (int8_t[]){-5}, 1);
    check_view(a.root, "u8", AG_TORCH_U8, (uint8_t[]){200}, 1);
    check_view(a.root, "bool", AG_TORCH_BOOL, (uint8_t[]){1, 0}, 2);
    check_view(a.root, "parameter", AG_TORCH_F32, (float[]){4}, 4);
    ag_torch_close(&a);
}

static void every_kind_of_value_that_weights_only_allows_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        ag_torch_dtype dtype;
        const char *bytes; /* of 1, 2, 4 */
        size_t n;
    } cases[] = {{"complex64", AG_TORCH_C64, "\0\0\x80\x3f\0\0\0\0\0\0\0\x40\0\0\0\0", 16},
                 {"complex128", AG_TORCH_C128, "\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\0", 16},
                 {"uint16", AG_TORCH_U16, "\1\0\2\0\4\0", 6},
                 {"uint32", AG_TORCH_U32, "\1\0\0\0\2\0\0\0", 8},
                 {"uint64", AG_TORCH_U64, "\1\0\0\0\0\0\0\0\2", 9},
                 {"float8_e4m3fn", AG_TORCH_F8_E4M3, "\x38\x40\x48", 3},
                 {"float8_e5m2", AG_TORCH_F8_E5M2, "\x3c\x40\x44", 3},
                 {"view8", AG_TORCH_F8_E5M2, "\x40\x44", 2},
                 {"float8_e8m0fnu", AG_TORCH_F8_E8M0, "\x7f\x80\x81", 3},
                 {"attributed", AG_TORCH_F32, "\0\0\xa0\x40\0\0\xc0\x40", 8},
                 {"parameter", AG_TORCH_F32, "\0\0\xe0\x40", 4}};
    static const char *const opaque[] = {"quantized", "sparse", "meta", "device", "dtype", "layout", "set", "complex"};
    ag_err err;
    ag_torch_archive a;
    must(ag_torch_open(&a, GOLDEN "kinds.pt", 0, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_view(a.root, cases[i].key, cases[i].dtype, cases[i].bytes, cases[i].n);
    assert_int_equal(2, need(a.root, "view8", AG_TORCH_TENSOR)->tensor->dim[0]);
    for (size_t i = 0; i < sizeof opaque / sizeof *opaque; i++) (void)need(a.root, opaque[i], AG_TORCH_OPAQUE);
    assert_string_equal("bfloat16", need(a.root, "dtype", AG_TORCH_OPAQUE)->text);
    const ag_torch_value *size = need(a.root, "size", AG_TORCH_TUPLE), *bytes = need(a.root, "bytes", AG_TORCH_BYTES);
    assert_true(size->n == 2 && size->items[1]->integer == 3);
    assert_true(bytes->n_text == 2 && memcmp(bytes->text, "\0\xff", 2) == 0);
    assert_memory_equal("ab", need(a.root, "bytearray", AG_TORCH_BYTES)->text, 2);
    assert_int_equal(2, ag_torch_get(need(a.root, "counter", AG_TORCH_DICT), "a")->integer);
    assert_int_equal(1, ag_torch_get(need(a.root, "ordered", AG_TORCH_DICT), "a")->integer);
    ag_torch_close(&a);
}

static void a_module_of_torch_is_read(void **state)
{
    (void)state;
    ag_err err;
    ag_torch_archive a;
    must(ag_torch_open(&a, GOLDEN "adapter_model.bin", AG_TORCH_NEEDS_STORAGE, &err));
    assert_int_equal(1, a.root->n);
    const ag_torch_view *v = need(a.root, "weight", AG_TORCH_TENSOR)->tensor;
    assert_true(v->dim[0] == 2 && v->dim[1] == 3 && ((const float *)v->data)[5] == 0.5f);
    ag_torch_close(&a);
}

static void numpy_is_read_only_where_it_is_asked_for(void **state)
{
    (void)state;
    ag_err err;
    ag_torch_archive a;
    must_fail(AG_E_UNSUPPORTED, "numpy._core.multiarray._reconstruct", ag_torch_open(&a, GOLDEN "rng_state.pth", 0, &err));
    must(ag_torch_open(&a, GOLDEN "rng_state.pth", AG_TORCH_NUMPY | AG_TORCH_NEEDS_STORAGE, &err));
    const ag_torch_value *numpy = need(a.root, "numpy", AG_TORCH_TUPLE), *words = numpy->items[1];
    assert_true(ag_torch_is(words, AG_TORCH_U32_ARRAY) && words->n_words == 624);
    uint32_t first;
    memcpy(&first, words->words, 4);
    assert_int_equal(42, first); /* numpy.random.seed(42) */
    assert_int_equal(625, need(a.root, "python", AG_TORCH_TUPLE)->items[1]->n);
    ag_torch_close(&a);
}

/* ---- refusals ----------------------------------------------------------------------------------------------------------------- */

static void hostile_and_damaged_archives_are_refused_with_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *name, *says;
    } cases[] = {
        {"append-to-dict", "no container"}, {"bare-name", "bare name"}, {"bare-storage", "bare name, storage"},
        {"below-mark", "a value is missing"}, {"cycle", "holds itself"}, {"deep", "deeper than 64"}, {"deep-marks", "nests too deep"},
        {"doubling", "repeats its values"}, {"evil-build", "sets the state"}, {"evil-eval", "builtins.eval"}, {"evil-inst", "opcode 0x69"},
        {"evil-class-call", "a way that torch does not"}, {"evil-from-type", "of a class"}, {"evil-newobj", "posix.system"}, {"evil-numpy", "numpy.dtype"}, {"evil-stack-global", "protocol 2"},
        {"evil-storage-name", "torch.load"}, {"evil-system", "posix.system"}, {"integer-huge", "larger than 64 bits"},
        {"key-float", "neither a string nor an integer"}, {"key-list", "neither a string nor an integer"},
        {"key-int-on-top", "a key that is no string"}, {"key-twice", "same key twice"}, {"legacy", "before torch 1.6"},
        {"mark-missing", "a mark is missing"}, {"memo-far", "out of order"}, {"memo-missing", "does not have"},
        {"name-endless", "name is too long"}, {"no-crc", "its CRC is"}, {"not-a-dict", "a dict was expected at the top of data.pkl, found a list of 0"},
        {"odd-items", "a key has no value"}, {"pickle-cut", "ends too early"}, {"pickle-empty", "protocol 2"},
        {"pickle-trailing", "bytes follow its end"}, {"stack-empty", "left over"}, {"stack-left", "left over"},
        {"stack-underflow", "a value is missing"}, {"storage-huge", "has 16 bytes"}, {"storage-long", "not 3 elements"}, {"storage-negative", "has 16 bytes"},
        {"storage-other", "data/7 is missing"}, {"storage-path", "is missing"}, {"storage-size", "not 5 elements"},
        {"tensor-offset", "outside its storage"}, {"tensor-offset-huge", "outside its storage"},
        {"tensor-offset-negative", "outside its storage"}, {"tensor-outside", "outside its storage"}, {"tensor-rank-nine", "at most 8"},
        {"tensor-ranks-differ", "make no sense"}, {"tensor-shape-negative", "make no sense"},
        {"tensor-shape-overflow", "outside its storage"}, {"tensor-stride", "outside its storage"},
        {"tensor-stride-huge", "outside its storage"}, {"tensor-stride-negative", "make no sense"}, {"text-huge", "ends too early"},
        {"text-not-utf8", "no valid UTF-8"}, {"untyped-outside", "outside its storage of 4"}, {"untyped-without-type", "without a type"}, {"zip-64-count", "directory is damaged"}, {"zip-64-missing", "ZIP64 locator is missing"},
        {"zip-64-offset", "ZIP64 locator"}, {"zip-big-endian", "big-endian"}, {"zip-crc", "data/1 of the archive is damaged"},
        {"zip-deflated", "compressed"}, {"zip-directory", "a directory"}, {"zip-duplicate", "stands twice"},
        {"zip-gap", "does not end where its end record begins"}, {"zip-local-name", "another name in its local header"}, {"zip-no-id", "serialization_id"}, {"zip-no-pickle", "<root>/data.pkl"},
        {"zip-no-root", "lies in no directory"}, {"zip-no-version", "<root>/version"}, {"zip-odd-storage", "must be a number"},
        {"zip-overlap", "overlap"}, {"zip-size", "reaches over its end"}, {"zip-trailing", "followed by other bytes"},
        {"zip-truncated", "no ZIP archive"}, {"zip-two-roots", "different roots"},
    };
    ag_err err;
    ag_torch_archive a;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512];
        snprintf(path, sizeof path, CORPUS "%s", cases[i].name);
        err.text[0] = 0;
        if (ag_torch_open(&a, path, 0, &err) == AG_OK) fail_msg("%s was accepted", cases[i].name);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].name, err.text, cases[i].says);
        if (strncmp(err.text, path, strlen(path))) fail_msg("\"%s\" does not begin with the path", err.text);
        assert_null(a.root);
    }
    const char *const good[] = {"good-comment", "good-zip64", "good-tensor", "good-empty-huge", "good-newobj", "good-old", "good-untyped"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char path[512];
        snprintf(path, sizeof path, CORPUS "%s", good[i]);
        must(ag_torch_open(&a, path, 0, &err));
        ag_torch_close(&a);
    }
}

static void files_that_are_no_archives_are_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_torch_archive a;
    scratch_dir_create();
    must(ag_file_publish(scratch_path("empty.pt"), "", 0, &err));
    must_fail(AG_E_FORMAT, "no ZIP archive", ag_torch_open(&a, scratch_path("empty.pt"), 0, &err));
    assert_int_equal(0, symlink(GOLDEN "scheduler.pt", scratch_path("link.pt")));
    must_fail(AG_E_IO, "is a symbolic link", ag_torch_open(&a, scratch_path("link.pt"), 0, &err));
    must_fail(AG_E_FORMAT, "no tensor in it", ag_torch_open(&a, GOLDEN "scheduler.pt", AG_TORCH_NEEDS_STORAGE, &err));
    must(ag_torch_open(&a, GOLDEN "scheduler.pt", 0, &err));
    ag_torch_close(&a);
    scratch_dir_remove();
}

/* Every cut and every changed byte of a file ends in a refusal or in a value; sanitizers watch. */
static void no_cut_and_no_changed_byte_does_harm(void **state)
{
    (void)state;
    ag_err err;
    ag_map map;
    must(ag_map_open(&map, GOLDEN "optimizer.pt", &err));
    unsigned char *bytes = malloc(map.n);
    assert_non_null(bytes);
    ag_torch_archive a;
    size_t n_accepted = 0;
    for (size_t i = 0; i < map.n; i++) {
        memcpy(bytes, map.bytes, i);
        assert_int_not_equal(AG_OK, ag_torch_parse(&a, bytes, i, "cut", 0, &err));
    }
    for (size_t i = 0; i < map.n; i++) {
        memcpy(bytes, map.bytes, map.n);
        bytes[i] ^= (unsigned char)(1 + i % 255);
        if (ag_torch_parse(&a, bytes, map.n, "changed", 0, &err)) continue;
        n_accepted++; /* padding, times, flags: nothing that is read */
        ag_torch_close(&a);
    }
    assert_true(n_accepted > 0 && n_accepted < map.n / 2);
    free(bytes);
    ag_map_close(&map);
}

/* ---- writing -------------------------------------------------------------------------------------------------------------------- */

static float numbers[1000];
static ag_torch_value *make_value(ag_arena *arena)
{
    for (int i = 0; i < 1000; i++) numbers[i] = (float)i * 0.25f;
    ag_torch_value *root = ag_torch_dict(arena), *list = ag_torch_list(arena), *tuple = ag_torch_tuple(arena), *inner = ag_torch_dict(arena);
    const int64_t ints[] = {0, -1, INT32_MAX, INT32_MIN, INT64_C(2147483648), INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) ag_torch_push(arena, list, ag_torch_int(arena, ints[i]));
    ag_torch_push(arena, tuple, ag_torch_none(arena));
    ag_torch_push(arena, tuple, ag_torch_bool(arena, true));
    ag_torch_push(arena, tuple, ag_torch_bool(arena, false));
    ag_torch_push(arena, tuple, ag_torch_float(arena, -0.1));
    ag_torch_put_at(arena, inner, 7, ag_torch_string(arena, "h\xc3\xa9"));
    ag_torch_put(arena, root, "ints", list);
    ag_torch_put(arena, root, "tuple", tuple);
    ag_torch_put(arena, root, "inner", inner);
    ag_torch_put(arena, root, "matrix", ag_torch_tensor(arena, numbers, AG_TORCH_F32, 2, (int64_t[]){25, 40}));
    ag_torch_put(arena, root, "one", ag_torch_tensor(arena, numbers + 3, AG_TORCH_F32, 0, NULL));
    ag_torch_put(arena, root, "bytes", ag_torch_tensor(arena, "abc", AG_TORCH_U8, 1, (int64_t[]){3}));
    ag_torch_put(arena, root, "none", ag_torch_tensor(arena, NULL, AG_TORCH_F32, 2, (int64_t[]){0, 4}));
    return root;
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_torch_archive a;
    scratch_dir_create();
    must(ag_torch_save(scratch_path("some.thing.pt"), make_value(&arena), &err));
    must(ag_torch_open(&a, scratch_path("some.thing.pt"), AG_TORCH_NEEDS_STORAGE, &err));
    assert_memory_equal("some.thing/data.pkl", a.map.bytes + 30, 19);
    assert_int_equal(7, a.root->n);
    const ag_torch_value *ints = need(a.root, "ints", AG_TORCH_LIST);
    assert_true(ints->n == 7 && ints->items[4]->integer == INT64_C(2147483648) && ints->items[5]->integer == INT64_MIN &&
                ints->items[6]->integer == INT64_MAX && ints->items[3]->integer == INT32_MIN);
    const ag_torch_value *tuple = need(a.root, "tuple", AG_TORCH_TUPLE);
    assert_true(tuple->n == 4 && tuple->items[0]->kind == AG_TORCH_NONE && tuple->items[1]->boolean && !tuple->items[2]->boolean &&
                tuple->items[3]->real == -0.1);
    assert_string_equal("h\xc3\xa9", need(a.root, "inner", AG_TORCH_DICT)->items[1]->text);
    const ag_torch_view *v = need(a.root, "matrix", AG_TORCH_TENSOR)->tensor;
    assert_true(v->rank == 2 && v->dim[0] == 25 && v->dim[1] == 40 && ag_torch_is_contiguous(v));
    assert_memory_equal(numbers, v->data, sizeof numbers);
    const char *const tensors[] = {"matrix", "one", "bytes"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(0, ((const unsigned char *)need(a.root, tensors[i], AG_TORCH_TENSOR)->tensor->data - a.map.bytes) % 64);
    ag_torch_close(&a);
    scratch_dir_remove();
    ag_arena_free(&arena);
}

static void the_same_value_gives_the_same_bytes(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    char *first, *second;
    size_t n_first, n_second;
    scratch_dir_create();
    must(ag_torch_save(scratch_path("x.pt"), make_value(&arena), &err));
    must(ag_file_read(&first, &n_first, scratch_path("x.pt"), 1 << 20, &arena, &err));
    must(ag_torch_save(scratch_path("x.pt"), make_value(&arena), &err));
    must(ag_file_read(&second, &n_second, scratch_path("x.pt"), 1 << 20, &arena, &err));
    assert_int_equal(n_first, n_second);
    assert_memory_equal(first, second, n_first);
    scratch_dir_remove();
    ag_arena_free(&arena);
}

static ssize_t full_disk(int fd, const void *bytes, size_t n)
{
    (void)fd, (void)bytes, (void)n;
    errno = ENOSPC;
    return -1;
}

static void a_full_disk_leaves_the_old_archive(void **state)
{
    (void)state;
    ag_err err;
    ag_arena arena = {0};
    ag_torch_archive a;
    char **names;
    size_t n;
    scratch_dir_create();
    must(ag_torch_save(scratch_path("x.pt"), make_value(&arena), &err));
    ag_torch_value *large = ag_torch_dict(&arena);
    ag_torch_put(&arena, large, "zeros", ag_torch_tensor(&arena, ag_arena_alloc(&arena, 1 << 20), AG_TORCH_U8, 1, (int64_t[]){1 << 20}));
    ag_fs_calls_used.write = full_disk;
    ag_status status = ag_torch_save(scratch_path("x.pt"), large, &err);
    ag_fs_calls_used = ag_fs_system_calls;
    assert_int_equal(AG_E_NO_SPACE, status);
    must(ag_torch_open(&a, scratch_path("x.pt"), 0, &err));
    need(a.root, "matrix", AG_TORCH_TENSOR);
    ag_torch_close(&a);
    must(ag_dir_list(&names, &n, scratch_path("."), &arena, &err));
    assert_int_equal(1, n);
    scratch_dir_remove();
    ag_arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_and_containers_of_torch_are_read),
        cmocka_unit_test(tensors_of_torch_are_views_into_the_file),
        cmocka_unit_test(every_kind_of_value_that_weights_only_allows_is_read),
        cmocka_unit_test(a_module_of_torch_is_read),
        cmocka_unit_test(numpy_is_read_only_where_it_is_asked_for),
        cmocka_unit_test(hostile_and_damaged_archives_are_refused_with_a_sentence),
        cmocka_unit_test(files_that_are_no_archives_are_refused),
        cmocka_unit_test(no_cut_and_no_changed_byte_does_harm),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(the_same_value_gives_the_same_bytes),
        cmocka_unit_test(a_full_disk_leaves_the_old_archive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
