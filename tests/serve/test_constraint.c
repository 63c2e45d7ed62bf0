/* Grammars made from schemas: which texts they take, and that what is sampled under them keeps to them. */
#include "base/fs.h"
#include "base/json.h"
#include "base/rng.h"
#include "serve/constraint.h"
#include "support/unit_test.h"

#include <math.h>

static json_t *json(const char *text)
{
    ag_err err;
    json_t *value;
    must(ag_json_parse(&value, text, strlen(text), "test", &err));
    return value;
}

static ag_grammar *grammar(const char *schema)
{
    ag_err err;
    ag_grammar *g;
    json_t *value = json(schema);
    if (ag_grammar_of_schema(&g, value, &err)) fail_msg("%s: %s", schema, err.text);
    ag_json_free(&value);
    return g;
}

static void schemas_take_what_they_allow_and_nothing_else(void **state)
{
    (void)state;
    static const struct {
        const char *schema;
        const char *yes[8], *no[10];
    } cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\"]}",
         {"{\"a\":1}", "{\"a\": -20, \"b\": \"x\"}", "{ \"a\": 0 }", "{\n  \"a\": 5,\n  \"b\": \"\"\n}"},
         {"{}", "{\"b\":\"x\"}", "{\"a\":01}", "{\"a\":1,}", "{\"b\":\"x\",\"a\":1}", "{\"a\":1.5}", "{\"a\":1}x", "[1]", "{\"a\":1", "{\"a\":1,\"c\":2}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}}}",
         {"{}", "{\"a\":null}", "{\"b\":[]}", "{\"c\":{}}", "{\"a\":1,\"c\":2}", "{\"b\":true,\"c\":false}", "{\"a\":{\"x\":[1,2,{}]}}"},
         {"{\"a\":1\"b\":2}", "{,\"b\":1}", "{\"c\":1,\"a\":2}"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":3}",
         {"[true]", "[true, false]", "[false,false,true]", "[ true ]"}, {"[]", "[true,true,true,true]", "[1]", "[true,]", "[,true]", "true"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"const\":\"x\"}],\"items\":false,\"minItems\":2}",
         {"[1,\"x\"]"}, {"[1]", "[1,\"y\"]", "[1,\"x\",2]", "[\"x\",1]"}},
        {"{\"type\":\"array\",\"minItems\":2,\"items\":{\"type\":\"integer\"}}", {"[1,2]", "[1,2,3,4,5]"}, {"[]", "[1]"}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"abc\"", "\"\\n\\\"\"", "\"\xc3\xa4\xf0\x9f\x98\x80\"", "\"\\u00e4b\"", "\"\\ud83d\\ude00x\""},
         {"\"a\"", "\"abcd\"", "\"a\nb\"", "\"\xc3\"", "\"\\ud83dxx\"", "\"\xff\xff\""}},
        {"{\"type\":\"string\"}", {"\"\"", "\"any text, long enough to show that there is no end to it\""}, {"\"", "'a'", "\"\\x\"", "\"\xed\xa0\x80\""}},
        {"{\"enum\":[\"red\",\"reddish\",7,null]}", {"\"red\"", "\"reddish\"", "7", "null"}, {"\"re\"", "\"blue\"", "77", "nul"}},
        {"{\"type\":[\"number\",\"null\"]}", {"0", "-1.5e-3", "12345.678", "null", "1E9"}, {"01", "1.", ".5", "+1", "1e", "-", "NaN", "--1"}},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"title\":\"T\",\"default\":null}", {"\"x\"", "null"}, {"1", "true"}},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", {"{}", "{\"x\":1}", "{\"x\":1,\"y\":2}"}, {"{\"x\":\"1\"}", "{x:1}"}},
        {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}", "{ }"}, {"{\"x\":1}"}},
        {"{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":"
         "\"#/$defs/node\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}}}",
         {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"}, {"{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2}}"}},
        {"{}", {"1", "\"x\"", "{\"a\":[]}", "[[],{}]", "true"}, {"", "tru", "[", "1 2"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ag_grammar *g = grammar(cases[i].schema);
        for (int k = 0; k < 8 && cases[i].yes[k]; k++)
            if (!ag_grammar_matches(g, cases[i].yes[k], strlen(cases[i].yes[k]))) fail_msg("%s does not take %s", cases[i].schema, cases[i].yes[k]);
        for (int k = 0; k < 10 && cases[i].no[k]; k++)
            if (ag_grammar_matches(g, cases[i].no[k], strlen(cases[i].no[k]))) fail_msg("%s takes %s", cases[i].schema, cases[i].no[k]);
        ag_grammar_free(&g);
    }
}

static void what_a_schema_cannot_say_here_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *part;
    } cases[] = {
        {"{\"type\":\"string\",\"pattern\":\"a+\"}", "'pattern'"}, {"{\"type\":\"integer\",\"minimum\":3}", "'minimum'"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}", "'not'"}, {"{\"$ref\":\"http://example.org/x\"}", "http://example.org/x"},
        {"{\"$ref\":\"#/$defs/none\"}", "#/$defs/none"}, {"{\"type\":\"thing\"}", "'thing'"}, {"{\"type\":\"object\",\"required\":[\"x\"]}", "'x'"},
        {"{\"anyOf\":[{}],\"type\":\"string\"}", "'anyOf'"}, {"{\"allOf\":[{},{}]}", "'allOf'"}, {"[]", "object"},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "maxItems"}, {"{\"type\":\"string\",\"minLength\":-1}", "'minLength'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ag_err err;
        ag_grammar *g;
        json_t *schema = json(cases[i].schema);
        if (!ag_grammar_of_schema(&g, schema, &err)) fail_msg("%s is taken", cases[i].schema);
        assert_null(g);
        if (!strstr(err.text, cases[i].part)) fail_msg("\"%s\" does not name %s", err.text, cases[i].part);
        ag_json_free(&schema);
    }
    /* Bounded: lists of long lists of long texts. */
    ag_err err;
    ag_grammar *g;
    json_t *schema = json("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\",\"maxLength\":16000},{\"type\":\"string\",\"maxLength\":16000},"
                          "{\"type\":\"string\",\"maxLength\":16000},{\"type\":\"string\",\"maxLength\":16000},{\"type\":\"string\",\"maxLength\":16000}]}");
    must_fail(AG_E_UNSUPPORTED, "states", ag_grammar_of_schema(&g, schema, &err));
    ag_json_free(&schema);
}

static void a_rule_that_calls_itself_first_ends(void **state)
{
    (void)state;
    ag_grammar *g = grammar("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"null\"}]}}}");
    assert_true(ag_grammar_matches(g, "null", 4));
    assert_false(ag_grammar_matches(g, "1", 1));
    ag_grammar_free(&g);
}

/* ---- tokens -------------------------------------------------------------------------------------------------------------------- */
static ag_tokenizer *tokenizer(void)
{
    ag_err err;
    ag_arena arena = {0};
    char *bytes;
    size_t n;
    ag_tokenizer *t;
    must(ag_file_read(&bytes, &n, AGOGE_TESTS_DIR "/golden/data/tokenizer.json", 1 << 20, &arena, &err));
    must(ag_tokenizer_from_json(&t, &(ag_tokenizer_files){.name = "tokenizer.json", .tokenizer = bytes, .n_tokenizer = n}, &err));
    ag_arena_free(&arena);
    return t;
}

static void random_answers_under_a_schema_are_what_it_says(void **state)
{
    (void)state;
    ag_tokenizer *t = tokenizer();
    const int32_t end = 1;
    const int64_t V = ag_tokenizer_vocab_size(t);
    ag_token_table *table = ag_token_table_create(t, V, &end, 1);
    ag_grammar *g = grammar("{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":6},\"on\":{\"type\":\"boolean\"},\"n\":{\"type\":"
                            "\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":3}},\"required\":[\"name\",\"n\"]}");
    float *logits = malloc((size_t)V * sizeof *logits);
    for (uint64_t seed = 0; seed < 12; seed++) {
        ag_constraint *c = ag_constraint_create(g, table);
        ag_str text = {0};
        int32_t id = -1;
        for (uint64_t i = 0; i < 400 && id != end; i++) {
            for (int64_t v = 0; v < V; v++) logits[v] = 0;
            ag_constraint_mask(c, logits);
            assert_null(ag_constraint_error(c));
            /* Every id that is left really goes on: it and its prefix are a beginning of the grammar. One of them at random. */
            int64_t n_left = 0;
            for (int64_t v = 0; v < V; v++) n_left += logits[v] == 0;
            assert_true(n_left > 0);
            int64_t pick = ag_philox(seed, i, 0).word[0] % n_left;
            for (id = 0; logits[id] != 0 || pick-- > 0;) id++;
            if (id == end) break;
            const ag_text bytes = ag_tokenizer_token_bytes(t, id);
            ag_str_add_n(&text, bytes.text, bytes.n);
            ag_constraint_accept(c, id);
        }
        assert_int_equal(id, end);
        if (!ag_grammar_matches(g, text.text, text.n)) fail_msg("%s", text.text);
        ag_err err;
        json_t *value;
        must(ag_json_parse(&value, text.text, text.n, "answer", &err));
        assert_true(json_is_string(json_object_get(value, "name")) && json_array_size(json_object_get(value, "n")) <= 3);
        ag_json_free(&value);
        ag_str_free(&text);
        ag_constraint_free(&c);
    }
    free(logits);
    ag_grammar_free(&g);
    ag_token_table_free(&table);
    ag_tokenizer_free(&t);
}

/* The mask against the definition: a token may come exactly when the text with it is a beginning of some text of the grammar. Beginnings
 * are found by trying: a text is one when some end from a list makes it whole. */
static void the_mask_is_what_trying_every_token_says(void **state)
{
    (void)state;
    static const char *const ends[] = {"", "\"", "\"}", "1}", "}", "a\"}", "\"b\"}", "\\\"}", "b\"}", "b\": \"}", ":\"\"}", "\":\"\"}", "b\":\"\"}", "\"b\":\"\"}", "n\"}",
                                       "0000\"}", "000\"}", "00\"}", "0\"}", "\x80\"}", "\x80\x80\"}", "\x90\x80\x80\"}", "\x80\x80\x80\"}", "\xa0\x80\"}", "\xa0\x80\x80\"}", ",\"b\":\"\"}",
                                       " \"b\":\"\"}", "\n\"b\":\"\"}"};
    ag_tokenizer *t = tokenizer();
    const int32_t end = 1;
    const int64_t V = ag_tokenizer_vocab_size(t);
    ag_token_table *table = ag_token_table_create(t, V, &end, 1);
    ag_grammar *g = grammar("{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"string\"}},\"required\":[\"b\"],\"additionalProperties\":false}");
    ag_constraint *c = ag_constraint_create(g, table);
    float *logits = malloc((size_t)V * sizeof *logits);
    ag_str text = {0};
    ag_str_add(&text, "");
    static const char answer[] = "{\"b\":\"ab\"}";
    for (size_t at = 0; at < sizeof answer; at++) {
        memset(logits, 0, (size_t)V * sizeof *logits);
        ag_constraint_mask(c, logits);
        for (int32_t id = 0; id < V; id++) {
            const ag_text bytes = ag_tokenizer_token_bytes(t, id);
            if (id == end || bytes.n == 0 || ag_tokenizer_is_special(t, id)) continue;
            bool may = false;
            for (size_t e = 0; e < sizeof ends / sizeof *ends && !may; e++) {
                ag_str whole = {0};
                ag_str_add_n(&whole, text.text, text.n);
                ag_str_add_n(&whole, bytes.text, bytes.n);
                ag_str_add(&whole, ends[e]);
                may = ag_grammar_matches(g, whole.text, whole.n);
                ag_str_free(&whole);
            }
            if (may != (logits[id] == 0)) fail_msg("behind %s the token '%.*s' is %s", text.text, (int)bytes.n, bytes.text, may ? "left out" : "allowed");
        }
        assert_int_equal(logits[end] == 0, at + 1 == sizeof answer);
        if (at + 1 == sizeof answer) break;
        const int32_t id = ag_tokenizer_token_id(t, answer + at, 1);
        assert_true(id >= 0);
        ag_constraint_accept(c, id);
        ag_str_add_n(&text, answer + at, 1);
    }
    ag_str_free(&text);
    free(logits);
    ag_constraint_free(&c);
    ag_grammar_free(&g);
    ag_token_table_free(&table);
    ag_tokenizer_free(&t);
}

static void a_call_has_the_form_of_its_family(void **state)
{
    (void)state;
    ag_err err;
    json_t *tools = json("[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
                         "\"required\":[\"a\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]");
    static const struct {
        ag_call_style style;
        const char *text;
    } cases[] = {{AG_CALLS_HERMES, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
                 {AG_CALLS_MISTRAL, "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}]"},
                 {AG_CALLS_GRANITE, "<|tool_call|>[{\"name\": \"add\", \"arguments\": {\"a\": 1}}]"},
                 {AG_CALLS_LLAMA, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}"}};
    for (size_t i = 0; i < 4; i++) {
        ag_grammar *g;
        must(ag_grammar_of_call(&g, tools, NULL, cases[i].style, &err));
        assert_true(ag_grammar_matches(g, cases[i].text, strlen(cases[i].text)));
        ag_tool_calls calls;
        ag_tool_calls_parse(&calls, cases[i].style, cases[i].text, strlen(cases[i].text));
        assert_int_equal(calls.n, 1);
        assert_string_equal(calls.calls[0].name, "add");
        ag_tool_calls_free(&calls);
        ag_grammar_free(&g);
        must(ag_grammar_of_call(&g, tools, "now", cases[i].style, &err));
        assert_false(ag_grammar_matches(g, cases[i].text, strlen(cases[i].text)));
        ag_grammar_free(&g);
    }
    ag_json_free(&tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_take_what_they_allow_and_nothing_else),
        cmocka_unit_test(what_a_schema_cannot_say_here_is_refused_by_name),
        cmocka_unit_test(a_rule_that_calls_itself_first_ends),
        cmocka_unit_test(random_answers_under_a_schema_are_what_it_says),
        cmocka_unit_test(the_mask_is_what_trying_every_token_says),
        cmocka_unit_test(a_call_has_the_form_of_its_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
