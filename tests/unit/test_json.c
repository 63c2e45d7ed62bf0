#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/canonical_json.h"
#include "base/fs.h"

#include <math.h>

static ag_status parse(json_t **root, const char *text, ag_err *err) { return ag_json_parse(root, text, strlen(text), "a.json", err); }

static void getters_read_and_name_what_is_wrong(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    must(parse(&root, "{\"i\": 7, \"d\": 1.5, \"b\": true, \"s\": \"x\", \"n\": null, \"z\": \"a\\u0000b\"}", &err));
    int64_t i = -1;
    double d = -1;
    bool b = false;
    const char *s = "default";
    must(ag_json_get_int(root, "i", 0, 10, &i, "a.json", &err));
    must(ag_json_get_double(root, "d", &d, "a.json", &err));
    must(ag_json_get_bool(root, "b", &b, "a.json", &err));
    must(ag_json_get_string(root, "s", &s, "a.json", &err));
    assert_true(i == 7 && d == 1.5 && b && strcmp(s, "x") == 0);
    must(ag_json_get_double(root, "i", &d, "a.json", &err));
    assert_true(d == 7);
    must(ag_json_get_int(root, "n", 0, 10, &i, "a.json", &err));
    must(ag_json_get_string(root, "missing", &s, "a.json", &err));
    assert_true(i == 7 && strcmp(s, "x") == 0);
    must_fail(AG_E_FORMAT, "a.json: 'i' must be between 0 and 6, found 7", ag_json_get_int(root, "i", 0, 6, &i, "a.json", &err));
    must_fail(AG_E_FORMAT, "a.json: 'b' must be an integer, found true", ag_json_get_int(root, "b", 0, 6, &i, "a.json", &err));
    must_fail(AG_E_FORMAT, "'d' must be an integer", ag_json_get_int(root, "d", 0, 6, &i, "a.json", &err));
    must_fail(AG_E_FORMAT, "'b' must be a number, found true", ag_json_get_double(root, "b", &d, "a.json", &err));
    must_fail(AG_E_FORMAT, "'i' must be true or false, found an integer", ag_json_get_bool(root, "i", &b, "a.json", &err));
    must_fail(AG_E_FORMAT, "'i' must be a string", ag_json_get_string(root, "i", &s, "a.json", &err));
    must_fail(AG_E_FORMAT, "without NUL", ag_json_get_string(root, "z", &s, "a.json", &err));
    must_fail(AG_E_FORMAT, "'n' is missing", ag_json_need_int(root, "n", 0, 6, &i, "a.json", &err));
    must_fail(AG_E_FORMAT, "'x' is missing", ag_json_need_int(root, "x", 0, 6, &i, "a.json", &err));
    must_fail(AG_E_FORMAT, "must be an object", ag_json_get_int(json_object_get(root, "s"), "x", 0, 6, &i, "a.json", &err));
    ag_json_free(&root);
    assert_null(root);
}

static void malformed_json_is_refused(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    static const char *const bad[] = {"", "{", "{} x", "{\"a\": 1, \"a\": 2}", "[NaN]", "[Infinity]", "[1e999]", "\"\xff\"", "[1,]",
                                      "\xef\xbb\xbf{}", "[01]", "'a'"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        must_fail(AG_E_FORMAT, "a.json: not valid JSON at line 1", parse(&root, bad[i], &err));
        assert_null(root);
    }
}

static void nesting_has_a_bound(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    char text[2 * AG_JSON_MAX_DEPTH + 3] = {0};
    memset(text, '[', AG_JSON_MAX_DEPTH);
    memset(text + AG_JSON_MAX_DEPTH, ']', AG_JSON_MAX_DEPTH);
    must(parse(&root, text, &err));
    ag_str s = {0};
    ag_jw_value(&(ag_json_writer){.out = &s, .indent = -1}, NULL, root); /* the deepest that was read can be written */
    assert_string_equal(text, s.text);
    ag_str_free(&s);
    ag_json_free(&root);
    memset(text, '[', AG_JSON_MAX_DEPTH + 1);
    must_fail(AG_E_FORMAT, "nests deeper than 512", parse(&root, text, &err));
    memset(text, '[', sizeof text - 1);
    text[0] = text[sizeof text - 2] = '"'; /* inside a string they do not count */
    must(parse(&root, text, &err));
    ag_json_free(&root);
}

static void integers_beyond_64_bits_read_as_doubles(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    must(parse(&root, "[9223372036854775807, -9223372036854775808, 9223372036854775808, -9223372036854775809,"
                      " 1000000000000000019884624838656, 1.00000000000000000000000000001, 1e00000000000000000000000001,"
                      " 99999999999999999999999e-10, 18446744073709551616, \"99999999999999999999\"]", &err));
    assert_int_equal(INT64_MAX, json_integer_value(json_array_get(root, 0)));
    assert_int_equal(INT64_MIN, json_integer_value(json_array_get(root, 1)));
    const double want[] = {0x1p63, -0x1p63, 1e30, 1.0, 10.0, 99999999999999999999999e-10, 0x1p64};
    for (size_t i = 0; i < 7; i++) {
        assert_true(json_is_real(json_array_get(root, 2 + i)));
        assert_true(json_real_value(json_array_get(root, 2 + i)) == want[i]);
    }
    assert_string_equal("99999999999999999999", json_string_value(json_array_get(root, 9)));
    ag_json_free(&root);
}

static void integers_keep_their_digits_where_asked(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    const char *text = "[1, 12345678901234567890, {\"a\": -99999999999999999999999999999999999999999}, 1e30, \"99999999999999999999\"]";
    must(ag_json_parse_exact(&root, text, strlen(text), "a.json", &err));
    assert_null(ag_json_big_integer(json_array_get(root, 0)));
    assert_null(ag_json_big_integer(json_array_get(root, 2)));
    assert_string_equal("12345678901234567890", ag_json_big_integer(json_array_get(root, 1)));
    ag_str s = {0};
    ag_jw_value(&(ag_json_writer){.out = &s}, NULL, root);
    assert_string_equal("[1, 12345678901234567890, {\"a\": -99999999999999999999999999999999999999999}, 1e+30, \"99999999999999999999\"]", s.text);
    ag_str_free(&s);
    ag_json_free(&root);
}

static void python_nan_reads_as_null_only_where_asked(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    const char *text = "{\"a\": NaN, \"b\": [-Infinity, Infinity, -1], \"NaN\": \"NaN\", \"c\": 99999999999999999999}";
    must_fail(AG_E_FORMAT, "not valid JSON", parse(&root, text, &err));
    must(ag_json_parse_nan(&root, text, strlen(text), "a.json", &err));
    ag_str s = {0};
    ag_jw_value(&(ag_json_writer){.out = &s, .indent = -1}, NULL, root);
    assert_string_equal("{\"a\":null,\"b\":[null,null,-1],\"NaN\":\"NaN\",\"c\":1e+20}", s.text);
    ag_str_free(&s);
    ag_json_free(&root);
    must_fail(AG_E_FORMAT, "not valid JSON", ag_json_parse_nan(&root, "[NaNa]", 6, "a.json", &err));
}

static void files_larger_than_allowed_are_not_read(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    scratch_dir_create();
    must(ag_file_publish(scratch_path("a.json"), "{\"a\": [1, 2]}", 13, &err));
    must(ag_json_load(&root, scratch_path("a.json"), 13, &err));
    assert_int_equal(2, json_array_size(json_object_get(root, "a")));
    ag_json_free(&root);
    must_fail(AG_E_FORMAT, "has 13 bytes; at most 12", ag_json_load(&root, scratch_path("a.json"), 12, &err));
    must_fail(AG_E_NOT_FOUND, "b.json", ag_json_load(&root, scratch_path("b.json"), 12, &err));
    scratch_dir_remove();
}

static void write_sample(ag_str *s, int indent, bool ascii)
{
    ag_json_writer w = {.out = s, .indent = indent, .ascii = ascii};
    ag_jw_object(&w, NULL);
    ag_jw_int(&w, "i", -5);
    ag_jw_array(&w, "a");
    ag_jw_double(&w, NULL, 0.1);
    ag_jw_null(&w, NULL);
    ag_jw_bool(&w, NULL, true);
    ag_jw_object(&w, NULL);
    ag_jw_end(&w);
    ag_jw_array(&w, NULL);
    ag_jw_end(&w);
    ag_jw_end(&w);
    ag_jw_string(&w, "s", "\"\\\n\t\x01\x7f\xc3\xa9\xf0\x9f\x98\x80");
    ag_jw_string(&w, "none", NULL);
    ag_jw_double(&w, "nan", (double)NAN);
    ag_jw_uint(&w, "u", UINT64_MAX);
    ag_jw_end(&w);
}

/* json.dumps of Python 3.11 on the same value */
static void written_json_looks_as_python_writes_it(void **state)
{
    (void)state;
    ag_str s = {0};
    write_sample(&s, 2, true);
    assert_string_equal("{\n  \"i\": -5,\n  \"a\": [\n    0.1,\n    null,\n    true,\n    {},\n    []\n  ],\n"
                        "  \"s\": \"\\\"\\\\\\n\\t\\u0001\\u007f\\u00e9\\ud83d\\ude00\",\n"
                        "  \"none\": null,\n  \"nan\": null,\n  \"u\": 18446744073709551615\n}", s.text);
    ag_str_clear(&s);
    write_sample(&s, 0, false);
    assert_string_equal("{\"i\": -5, \"a\": [0.1, null, true, {}, []], \"s\": \"\\\"\\\\\\n\\t\\u0001\x7f\xc3\xa9\xf0\x9f\x98\x80\", "
                        "\"none\": null, \"nan\": null, \"u\": 18446744073709551615}", s.text);
    ag_str_clear(&s);
    write_sample(&s, -1, false);
    assert_non_null(strstr(s.text, "{\"i\":-5,\"a\":[0.1,null,true,{},[]],\"s\":"));
    ag_str_free(&s);
}

static void values_are_copied_in_their_own_order(void **state)
{
    (void)state;
    ag_err err;
    json_t *root;
    const char *text = "{\"z\":1,\"a\":[1.5,\"q\",null,false],\"m\":{\"k\":-2}}";
    must(parse(&root, text, &err));
    ag_str s = {0};
    ag_jw_value(&(ag_json_writer){.out = &s, .indent = -1}, NULL, root);
    assert_string_equal(text, s.text);
    ag_str_free(&s);
    ag_json_free(&root);
}

/* repr() of Python 3.11 */
static void doubles_are_written_as_python_writes_them(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.0, "0.0"}, {-0.0, "-0.0"}, {1.0, "1.0"}, {0.1, "0.1"}, {1.0 / 3, "0.3333333333333333"}, {2.0 / 3, "0.6666666666666666"},
        {1e15, "1000000000000000.0"}, {1e16, "1e+16"}, {123456789012345680.0, "1.2345678901234568e+17"}, {0.0001, "0.0001"},
        {0.00001, "1e-05"}, {2e-4, "0.0002"}, {1e100, "1e+100"}, {1.5e-7, "1.5e-07"}, {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"}, {2.225073858507201e-308, "2.225073858507201e-308"},
        {1.7976931348623157e308, "1.7976931348623157e+308"}, {0x1p-44, "5.684341886080802e-14"}, {0x1p-1074 * 3, "1.5e-323"},
        {9007199254740993.0, "9007199254740992.0"}, {0.30000000000000004, "0.30000000000000004"}, {-1234.5, "-1234.5"},
        {9.5367431640625e-07, "9.5367431640625e-07"}, {0x1p-24, "5.960464477539063e-08"}, {100.0, "100.0"},
    };
    ag_str s = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ag_str_clear(&s);
        ag_str_add_double(&s, cases[i].value);
        assert_string_equal(cases[i].text, s.text);
    }
    ag_str_free(&s);
}

static void every_double_reads_back_to_the_same_bits(void **state)
{
    (void)state;
    ag_str s = {0};
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        uint64_t pattern = i % 8 == 7 ? bits & 0xfff0000000000000u : bits; /* powers of two are the odd ones */
        double value;
        memcpy(&value, &pattern, sizeof value);
        if (!isfinite(value)) continue;
        ag_str_clear(&s);
        ag_str_add_double(&s, value);
        char *end;
        double back = strtod(s.text, &end);
        assert_int_equal(0, *end);
        assert_memory_equal(&value, &back, sizeof value);
        assert_non_null(strpbrk(s.text, ".e"));
    }
    ag_str_free(&s);
}

static void canonical_json_is_one_spelling(void **state)
{
    (void)state;
    ag_err err;
    /* as Python's json.dumps(…, sort_keys=True, separators=(",", ":"), ensure_ascii=False) writes the same value */
    static const char expected[] = "{\"Z\":{\"x\":[],\"y\":{}},\"a\":[true,null,1.5,-0.0,1e+22,123456789012345678901234567890],\"b\":1,"
                                   "\"\xc3\xa9\":\"\x7f\\u0001\xe2\x80\xa8\\\"\\\\/\",\"\xef\xbf\xae\":1,\"\xf0\x9f\x98\x80\":0}";
    static const char spelt[] = " {\"b\": 1, \"\\ud83d\\ude00\": 0, \"a\": [true, null, 1.50, -0.0, 1e22, 123456789012345678901234567890],"
                                "\"\\u00e9\": \"\\u007f\\u0001\\u2028\\\"\\\\\\/\", \"\\uffee\": 1, \"Z\": {\"y\": {}, \"x\": []}}\n";
    json_t *root;
    must(ag_json_parse_exact(&root, spelt, strlen(spelt), "a.json", &err));
    ag_str s = {0};
    ag_json_add_canonical(&s, root);
    assert_string_equal(expected, s.text);
    assert_string_equal(ag_sha256_bytes(expected, strlen(expected)).hex, ag_json_canonical_digest(root).hex);
    assert_false(ag_json_is_canonical_file(root, spelt, strlen(spelt)));
    assert_false(ag_json_is_canonical_file(root, s.text, s.n));
    ag_str_add_char(&s, '\n');
    assert_true(ag_json_is_canonical_file(root, s.text, s.n));
    ag_json_free(&root);
    ag_str_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(getters_read_and_name_what_is_wrong),
        cmocka_unit_test(malformed_json_is_refused),
        cmocka_unit_test(nesting_has_a_bound),
        cmocka_unit_test(integers_beyond_64_bits_read_as_doubles),
        cmocka_unit_test(integers_keep_their_digits_where_asked),
        cmocka_unit_test(python_nan_reads_as_null_only_where_asked),
        cmocka_unit_test(files_larger_than_allowed_are_not_read),
        cmocka_unit_test(written_json_looks_as_python_writes_it),
        cmocka_unit_test(values_are_copied_in_their_own_order),
        cmocka_unit_test(canonical_json_is_one_spelling),
        cmocka_unit_test(doubles_are_written_as_python_writes_them),
        cmocka_unit_test(every_double_reads_back_to_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
