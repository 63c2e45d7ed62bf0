#include "support/unit_test.h"

#include "base/str.h"

static void texts_grow_and_end_in_nul(void **state)
{
    (void)state;
    ag_str s = {0};
    for (int i = 0; i < 1000; i++) {
        ag_str_printf(&s, "%d", i % 10);
        assert_int_equal(0, s.text[s.n]);
    }
    assert_int_equal(1000, s.n);
    assert_memory_equal("0123456789", s.text + 990, 10);
    ag_str_clear(&s);
    assert_string_equal("", s.text);
    ag_str_add_n(&s, "a\0b", 3);
    ag_str_add_char(&s, 'c');
    ag_str_add(&s, "");
    assert_int_equal(4, s.n);
    assert_memory_equal("a\0bc", s.text, 5);
    ag_str_free(&s);
    assert_null(s.text);
}

static void code_points_are_written_as_utf8(void **state)
{
    (void)state;
    ag_str s = {0};
    ag_str_add_code_point(&s, 'A');
    ag_str_add_code_point(&s, 0xe9);
    ag_str_add_code_point(&s, 0x20ac);
    ag_str_add_code_point(&s, 0x1f600);
    assert_string_equal("A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", s.text);
    ag_str_free(&s);
}

static void starts_and_ends_are_found(void **state)
{
    (void)state;
    assert_true(ag_str_starts("lora_A.weight", "lora_"));
    assert_false(ag_str_starts("lo", "lora_"));
    assert_true(ag_str_ends("lora_A.weight", ".weight"));
    assert_false(ag_str_ends("weight", ".weight"));
    assert_true(ag_str_ends("x", ""));
}

static void the_nearest_word_is_offered_only_when_near(void **state)
{
    (void)state;
    const char *const known[] = {"learning_rate", "lora_rank", "seed", "max_seq_length"};
    assert_string_equal("learning_rate", ag_str_nearest("lerning_rate", known, 4));
    assert_string_equal("seed", ag_str_nearest("sede", known, 4));
    assert_string_equal("max_seq_length", ag_str_nearest("max_length", known, 4));
    assert_null(ag_str_nearest("zzzz", known, 4));
    assert_null(ag_str_nearest("", known, 4));
    const char *const two_letters[] = {"ab"};
    assert_string_equal("ab", ag_str_nearest("ba", two_letters, 1)); /* a swap is one step; two would be too many */
    assert_null(ag_str_nearest("cd", two_letters, 1));
    char long_word[500];
    memset(long_word, 'a', sizeof long_word - 1);
    long_word[sizeof long_word - 1] = 0;
    assert_null(ag_str_nearest(long_word, known, 4));
}

/* Python: bytes(x).decode('utf-8', errors='replace') */
static void malformed_utf8_is_replaced_as_python_does(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        uint32_t want[8]; /* ends in 0 */
    } cases[] = {
        {"a\xc3\xa9z", {'a', 0xe9, 'z'}},
        {"\xf0\x9f\x98\x80", {0x1f600}},
        {"\xff", {0xfffd}},
        {"\xc0\xaf", {0xfffd, 0xfffd}},                         /* overlong */
        {"\xe0\x80\xaf", {0xfffd, 0xfffd, 0xfffd}},             /* overlong */
        {"\xed\xa0\x80", {0xfffd, 0xfffd, 0xfffd}},             /* a surrogate */
        {"\xf4\x90\x80\x80", {0xfffd, 0xfffd, 0xfffd, 0xfffd}}, /* over U+10FFFF */
        {"\xe2\x82", {0xfffd}},                                 /* cut: one for the whole subpart */
        {"\xe2\x82z", {0xfffd, 'z'}},
        {"\xf0\x9f\x98z", {0xfffd, 'z'}},
        {"\xf0\x9f\xe2\x82\xac", {0xfffd, 0x20ac}},
        {"\x80\x80", {0xfffd, 0xfffd}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].bytes), at = 0, count = 0;
        bool malformed = false;
        while (at < n) {
            uint32_t c = ag_utf8_next(cases[i].bytes, n, &at);
            assert_int_equal(cases[i].want[count++], c);
            malformed |= c == 0xfffd;
        }
        assert_int_equal(0, cases[i].want[count]);
        assert_int_equal(count, ag_utf8_count(cases[i].bytes, n));
        assert_int_equal(!malformed, ag_utf8_valid(cases[i].bytes, n));
    }
    assert_true(ag_utf8_valid("\xef\xbf\xbd", 3)); /* U+FFFD itself is fine */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_grow_and_end_in_nul),
        cmocka_unit_test(code_points_are_written_as_utf8),
        cmocka_unit_test(starts_and_ends_are_found),
        cmocka_unit_test(the_nearest_word_is_offered_only_when_near),
        cmocka_unit_test(malformed_utf8_is_replaced_as_python_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
