#define _GNU_SOURCE
#include "base/json.h"
#include "text/chat_template.h"

#include "support/unit_test.h"

#include <time.h>

static ag_err err;
static const ag_chat_special specials[] = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "</s>"}};

/* ---- goldens of transformers
 * ------------------------------------------------------------------------------------------------------------------ */
static json_t *golden_lines(const char *name)
{
    char path[512], *line = NULL;
    size_t room = 0;
    snprintf(path, sizeof path, "%s/golden/chat/%s", AGOGE_TESTS_DIR, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    json_t *rows = json_array();
    for (ssize_t n; (n = getline(&line, &room, f)) > 0;) {
        json_t *row;
        must(ag_json_parse_exact(&row, line, (size_t)n, path, &err));
        json_array_append_new(rows, row);
    }
    free(line);
    fclose(f);
    return rows;
}

static size_t code_points(const ag_str *text, size_t bytes) { return ag_utf8_count(text->text, bytes); }

static void check_marks(const json_t *wanted, const ag_chat_marks *marks, const ag_str *text)
{
    assert_int_equal(json_array_size(wanted), marks->n);
    for (size_t i = 0; i < marks->n; i++) {
        assert_int_equal(json_integer_value(json_array_get(json_array_get(wanted, i), 0)),
                         code_points(text, marks->range[i].start));
        assert_int_equal(json_integer_value(json_array_get(json_array_get(wanted, i), 1)),
                         code_points(text, marks->range[i].end));
    }
}

/* Renders one row of a golden file and holds it against what stands there. */
static void check_row(const json_t *row, const json_t *messages)
{
    const char *source = json_string_value(json_object_get(row, "template"));
    const json_t *text_wanted = json_object_get(row, "text");
    ag_chat_template *t;
    ag_str text = {0};
    ag_chat_marks marks = {0};
    ag_status status =
        ag_chat_template_compile(&t, source, json_string_length(json_object_get(row, "template")), "t.jinja", &err);
    if (!status)
        status = ag_chat_template_render(
            t,
            &(ag_chat_render_args){.messages = messages,
                                   .tools = json_object_get(row, "tools"),
                                   .variables = json_object_get(row, "kwargs"),
                                   .add_generation_prompt = json_is_true(json_object_get(row, "add_generation_prompt")),
                                   .specials = specials,
                                   .n_specials = 3,
                                   .date = "2026-03-07"},
            &text, &marks, &err);
    if (text_wanted) {
        if (status) fail_msg("%s\n%s", source, err.text);
        if (text.n != json_string_length(text_wanted) || memcmp(text.text, json_string_value(text_wanted), text.n))
            fail_msg("%s\nwanted \"%s\"\nfound  \"%s\"", source, json_string_value(text_wanted), text.text);
        if (json_object_get(row, "generation")) check_marks(json_object_get(row, "generation"), &marks, &text);
    } else {
        const char *kind = json_string_value(json_object_get(row, "kind")),
                   *error = json_string_value(json_object_get(row, "error"));
        if (!status) fail_msg("%s\ngave \"%s\", must fail with %s", source, text.text, kind);
        assert_int_equal(text.n, 0);
        if (strcmp(kind, "raise_exception") == 0)
            assert_string_equal(error, err.text);
        else if (strcmp(kind, "SyntaxError") != 0 && !strstr(err.text, kind))
            fail_msg("%s\nmust fail with %s: %s", source, kind, err.text);
    }
    free(marks.range);
    ag_str_free(&text);
    ag_chat_template_free(&t);
}

static void every_rule_of_the_language_is_that_of_jinja2(void **state)
{
    (void)state;
    json_t *rows = golden_lines("rules.jsonl"), *hi = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi");
    assert_true(json_array_size(rows) > 300);
    for (size_t i = 0; i < json_array_size(rows); i++) check_row(json_array_get(rows, i), hi);
    json_decref(rows);
    json_decref(hi);
}

static void whole_conversations_render_as_in_transformers(void **state)
{
    (void)state;
    json_t *rows = golden_lines("whole.jsonl");
    assert_true(json_array_size(rows) >= 20);
    for (size_t i = 0; i < json_array_size(rows); i++)
        check_row(json_array_get(rows, i), json_object_get(json_array_get(rows, i), "messages"));
    json_decref(rows);
}

/* ---- what no golden says
 * ------------------------------------------------------------------------------------------------------------------------ */
static ag_status compile(ag_chat_template **t, const char *source)
{
    return ag_chat_template_compile(t, source, strlen(source), "t.jinja", &err);
}

static ag_status render_with(const char *source, const char *variables, ag_str *text)
{
    ag_chat_template *t;
    json_t *hi = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi"),
           *v = variables ? json_loads(variables, 0, NULL) : NULL;
    must(compile(&t, source));
    ag_status status = ag_chat_template_render(t, &(ag_chat_render_args){.messages = hi, .variables = v}, text, NULL, &err);
    ag_chat_template_free(&t);
    json_decref(hi);
    json_decref(v);
    return status;
}

static ag_status render(const char *source, ag_str *text) { return render_with(source, NULL, text); }

static void check_text(const char *source, const char *wanted)
{
    ag_str text = {0};
    must(render(source, &text));
    assert_string_equal(text.text, wanted);
    ag_str_free(&text);
}

static void refuse_run(const char *source, ag_status code, const char *part)
{
    ag_str text = {0};
    must_fail(code, part, render(source, &text));
    assert_int_equal(text.n, 0);
    ag_str_free(&text);
}

static void refuse_compile(const char *source, ag_status code, const char *part)
{
    ag_chat_template *t;
    must_fail(code, part, compile(&t, source));
    assert_null(t);
}

static void what_is_wrong_is_named_with_its_line(void **state)
{
    (void)state;
    refuse_compile("a\n{% if x %}\n{% endfor %}", AG_E_FORMAT,
                   "t.jinja: line 3: TemplateSyntaxError: Encountered unknown tag 'endfor'");
    refuse_compile("a\n\n{% for x in y %}\n", AG_E_FORMAT, "line 3: ");
    refuse_compile("\n{{ x | from_json }}", AG_E_UNSUPPORTED, "line 2: TemplateAssertionError: No filter named 'from_json'");
    refuse_compile("{{ x is nosuchtest }}", AG_E_UNSUPPORTED, "No test named 'nosuchtest'");
    refuse_compile("{% include 'x' %}", AG_E_UNSUPPORTED, "'include'");
    refuse_compile("\xff", AG_E_FORMAT, "UTF-8");
    refuse_compile("{{ 'a\\ud800' }}", AG_E_FORMAT, "escape");
    refuse_compile("{# never", AG_E_FORMAT, "end of comment");
    refuse_run("{% set x = 1 %}\n{{ 'a'\n + x }}", AG_E_DATA, "t.jinja: line 3: TypeError: can only concatenate str");
    refuse_run("\n{% if true %}{{ x | from_json }}{% endif %}", AG_E_DATA,
               "line 2: TemplateRuntimeError: No filter named 'from_json'");
    refuse_run("{{ [1] | pprint }}", AG_E_UNSUPPORTED, "'pprint'");
    refuse_run("{{ 'a'.translate({}) }}", AG_E_UNSUPPORTED, "'translate'");
}

static void a_stranger_program_has_bounds(void **state)
{
    (void)state;
    char deep[4096];
    refuse_run("{% set r = range(9999) | list %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", AG_E_DATA, "steps");
    refuse_run("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", AG_E_DATA, "RecursionError");
    refuse_run("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
               AG_E_DATA, "RecursionError");
    refuse_run("{% for i in range(1000) %}{{ 'x' * 1000000 }}{% endfor %}", AG_E_DATA, "MiB");
    refuse_run("{% set ns = namespace(x='ab' * 1000) %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
               AG_E_DATA, "MiB");
    refuse_run("{{ [1] * 99999999999 }}", AG_E_DATA, "MiB");
    refuse_run("{{ 'a'.center(99999999999) }}", AG_E_DATA, "Error");
    refuse_run("{{ range(100001) }}", AG_E_DATA, "Range too big");
    refuse_run("{{ 2 ** 127 }}", AG_E_DATA, "127 bits");
    snprintf(deep, sizeof deep, "{{ %0300d", 0);
    memset(deep + 3, '(', 300);
    refuse_compile(deep, AG_E_FORMAT, "deep");
    memset(deep + 3, '-', 300);
    refuse_compile(deep, AG_E_UNSUPPORTED, "deeper");
    strcpy(deep, "{{ 1");
    for (int i = 0; i < 300; i++) strcat(deep, "+1");
    strcat(deep, " }}");
    refuse_compile(deep, AG_E_UNSUPPORTED, "deeper");
    check_text("{% macro f(n) %}{% if n %}{{ f(n - 1) }}.{% endif %}{% endmacro %}{{ f(100) | length }}", "100");
}

static void the_caller_gives_the_variables(void **state)
{
    (void)state;
    ag_str text = {0};
    must_fail(AG_E_USAGE, "'tools'", render_with("x", "{\"tools\": []}", &text));
    must(render_with("{{ a.b }}{{ bos_token is defined }}{{ tools }}{{ add_generation_prompt }}", "{\"a\": {\"b\": \"v\"}}",
                     &text));
    assert_string_equal(text.text, "vFalseNoneFalse");
    ag_chat_template *t;
    must(compile(&t, "x"));
    json_t *empty = json_array(), *wrong = json_pack("[s]", "x");
    must_fail(AG_E_DATA, "at least one",
              ag_chat_template_render(t, &(ag_chat_render_args){.messages = empty}, &text, NULL, &err));
    must_fail(AG_E_DATA, "message 1", ag_chat_template_render(t, &(ag_chat_render_args){.messages = wrong}, &text, NULL, &err));
    json_decref(empty);
    json_decref(wrong);
    ag_chat_template_free(&t);
    ag_str_free(&text);
}

static void text_is_appended_and_marks_count_from_its_start(void **state)
{
    (void)state;
    ag_chat_template *t;
    ag_chat_marks marks = {0};
    ag_str text = {0};
    json_t *hi = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi");
    must(compile(&t, "é{% generation %}ü{% endgeneration %}{% generation %}{% endgeneration %}-"
                     "{% for i in [1, 2] %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}"));
    assert_true(ag_chat_template_has_generation(t));
    ag_str_add(&text, "ab");
    must(ag_chat_template_render(t, &(ag_chat_render_args){.messages = hi}, &text, &marks, &err));
    assert_string_equal(text.text, "abéü-12");
    const size_t wanted[][2] = {{4, 6}, {6, 6}, {7, 8}, {8, 9}};
    assert_int_equal(marks.n, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(marks.range[i].start, wanted[i][0]);
        assert_int_equal(marks.range[i].end, wanted[i][1]);
    }
    ag_chat_template_free(&t);
    must(compile(&t, "x"));
    assert_false(ag_chat_template_has_generation(t));
    ag_chat_template_free(&t);
    free(marks.range);
    ag_str_free(&text);
    json_decref(hi);
}

static void any_number_of_threads_may_render_one_template(void **state)
{
    (void)state;
    ag_chat_template *t;
    json_t *hi = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi");
    int wrong = 0;
    must(compile(&t, "{% macro f(x) %}{{ x | upper }}{% endmacro %}{% set ns = namespace(n=0) %}"
                     "{% for i in range(50) %}{% set ns.n = ns.n + i %}{{ f('é') }}{% endfor %}{{ ns.n }}{{ messages }}"));
#pragma omp parallel for num_threads(4) reduction(+ : wrong)
    for (int i = 0; i < 64; i++) {
        ag_str text = {0};
        ag_err mine;
        wrong += ag_chat_template_render(t, &(ag_chat_render_args){.messages = hi}, &text, NULL, &mine) != AG_OK;
        wrong += text.n != 100 + 4 + strlen("[{'role': 'user', 'content': 'Hi'}]") || !strstr(text.text, "É1225[");
        ag_str_free(&text);
    }
    assert_int_equal(wrong, 0);
    ag_chat_template_free(&t);
    json_decref(hi);
}

static void today_is_today_where_no_date_is_given(void **state)
{
    (void)state;
    char wanted[32];
    time_t now = time(NULL);
    struct tm date;
    strftime(wanted, sizeof wanted, "%Y-%m", localtime_r(&now, &date));
    check_text("{{ strftime_now('%Y-%m') }}", wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_of_the_language_is_that_of_jinja2),
        cmocka_unit_test(whole_conversations_render_as_in_transformers),
        cmocka_unit_test(what_is_wrong_is_named_with_its_line),
        cmocka_unit_test(a_stranger_program_has_bounds),
        cmocka_unit_test(the_caller_gives_the_variables),
        cmocka_unit_test(text_is_appended_and_marks_count_from_its_start),
        cmocka_unit_test(any_number_of_threads_may_render_one_template),
        cmocka_unit_test(today_is_today_where_no_date_is_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
