#define _GNU_SOURCE
#include "data/examples.h"

#include "base/fs.h"
#include "support/data_golden.h"

#include <unistd.h>

static ag_err err;
static json_t *golden;
static const char *const POSTS[] = {"none", "bos", "bos_eos", "odd"};

/* ---- a tokenizer with a golden's post-processor, and a ChatML template written in C ------------------------------------ */

static ag_tokenizer *tokenizer_with(const json_t *post_processor, const char *config)
{
    json_t *root = data_golden("tokenizer.json");
    json_object_set(root, "post_processor", (json_t *)post_processor);
    char *text = json_dumps(root, JSON_COMPACT);
    ag_tokenizer_files files = {
        .name = "tokenizer.json", .tokenizer = text, .n_tokenizer = strlen(text), .config = config, .n_config = strlen(config)};
    ag_tokenizer *t;
    if (ag_tokenizer_from_json(&t, &files, &err)) fail_msg("%s", err.text);
    free(text);
    ag_json_free(&root);
    return t;
}

static const char CONFIG[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"pad_token\":\"<pad>\"}";

static ag_tokenizer *tokenizer_of(const char *post)
{
    return tokenizer_with(json_object_get(json_object_get(json_object_get(golden, "post"), post), "post_processor"), CONFIG);
}

/* Quirks that templates have. */
typedef enum { ORDINARY, LAST_DIFFERS, PROMPT_DIFFERS, FAILS } quirk;

static ag_status render(void *user, const json_t *messages, const json_t *tools, bool prompt, ag_str *out, ag_range_list *marks,
                        ag_err *e)
{
    quirk q = user ? *(const quirk *)user : ORDINARY;
    (void)tools;
    if (q == FAILS) return ag_fail(e, AG_E_DATA, "the template says no");
    size_t n = json_array_size(messages);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(m, "role")),
                   *content = json_string_value(json_object_get(m, "content"));
        if (i == 0 && strcmp(role, "system") != 0) ag_str_add(out, "<|im_start|>system\nBe brief.<|im_end|>\n");
        ag_str_printf(out, "<|im_start|>%s\n", role);
        size_t start = out->n;
        if (q == LAST_DIFFERS && i + 1 == n) ag_str_add(out, "now: ");
        ag_str_printf(out, "%s<|im_end|>", content);
        if (marks && strcmp(role, "assistant") == 0) ag_range_list_add(marks, start, out->n);
        ag_str_add(out, "\n");
    }
    if (prompt) ag_str_add(out, q == PROMPT_DIFFERS ? "<|im_start|>assistant\n<think>" : "<|im_start|>assistant\n");
    return AG_OK;
}

/* ---- datasets ------------------------------------------------------------------------------------------------------------ */

static void add_row(ag_str *jsonl, const char *key, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    ag_str_printf(jsonl, "{\"%s\":%s}\n", key, text);
    free(text);
}

static ag_status make(ag_examples **x, const char *jsonl, const ag_examples_options *options)
{
    ag_rows *rows;
    *x = NULL;
    AG_TRY(ag_rows_over(&rows, jsonl, strlen(jsonl), "d.jsonl", &err));
    ag_status status = ag_examples_make(x, rows, options, &err);
    ag_rows_close(&rows);
    return status;
}

static ag_examples *must_make(const char *jsonl, const ag_examples_options *options)
{
    ag_examples *x;
    if (make(&x, jsonl, options)) fail_msg("%s", err.text);
    return x;
}

static void refuse(const char *jsonl, const ag_examples_options *options, const char *sentence)
{
    ag_examples *x;
    if (!make(&x, jsonl, options)) fail_msg("accepted: %s", jsonl);
    assert_null(x);
    assert_string_equal(err.text, sentence);
}

static ag_examples_options options_for(const ag_tokenizer *t)
{
    return (ag_examples_options){.tokenizer = t, .text_field = "text", .max_seq_length = 512, .n_threads = 2};
}

static void check_ids(const ag_examples *x, int64_t r, const json_t *ids, const json_t *mask, const char *what)
{
    int64_t n = x->offset[r + 1] - x->offset[r];
    if (n != (int64_t)json_array_size(ids))
        fail_msg("%s, row %lld: %lld ids, want %zu", what, (long long)r, (long long)n, json_array_size(ids));
    for (int64_t i = 0; i < n; i++) {
        int64_t t = x->offset[r] + i, want = json_integer_value(json_array_get(ids, (size_t)i));
        bool target = mask ? json_integer_value(json_array_get(mask, (size_t)i)) == 1 : true;
        if (x->ids[t] != want)
            fail_msg("%s, row %lld, token %lld: %d, want %lld", what, (long long)r, (long long)i, x->ids[t], (long long)want);
        if (ag_examples_is_target(x, t) != (target && i > 0))
            fail_msg("%s, row %lld: token %lld %s a target", what, (long long)r, (long long)i, target ? "is not" : "is");
    }
}

static void text_rows_are_those_of_trl(void **state)
{
    (void)state;
    for (int p = 0; p < 4; p++) {
        const json_t *texts = json_object_get(golden, "texts"), *text;
        const json_t *want = json_object_get(json_object_get(json_object_get(golden, "post"), POSTS[p]), "texts");
        ag_str jsonl = {0};
        size_t i;
        json_array_foreach(texts, i, text) add_row(&jsonl, "text", text);
        ag_tokenizer *t = tokenizer_of(POSTS[p]);
        ag_examples_options o = options_for(t);
        ag_examples *x = must_make(jsonl.text, &o);
        assert_int_equal(x->n, json_array_size(texts));
        assert_int_equal(x->n_targets, x->n_tokens - x->n);
        for (int64_t r = 0; r < x->n; r++) check_ids(x, r, json_array_get(want, (size_t)r), NULL, POSTS[p]);
        ag_examples_free(&x);
        ag_tokenizer_free(&t);
        ag_str_free(&jsonl);
    }
}

static void chats_are_those_of_transformers(void **state)
{
    (void)state;
    const json_t *chats = json_object_get(golden, "chats"), *chat;
    ag_str jsonl = {0};
    size_t i;
    json_array_foreach(chats, i, chat) add_row(&jsonl, "messages", chat);
    for (int p = 0; p < 4; p++) {
        const json_t *want = json_object_get(json_object_get(json_object_get(golden, "post"), POSTS[p]), "chats");
        ag_tokenizer *t = tokenizer_of(POSTS[p]);
        /* On the whole text; on the assistant's by marks, and by rendering up to each turn. */
        for (int how = 0; how < 3; how++) {
            ag_chat c = {.render = render, .marks_assistant = how == 1};
            ag_examples_options o = options_for(t);
            o.chat = &c;
            o.assistant_only = how > 0;
            ag_examples *x = must_make(jsonl.text, &o);
            for (int64_t r = 0; r < x->n; r++) {
                const json_t *row = json_array_get(want, (size_t)r);
                check_ids(x, r, json_object_get(row, "ids"), how ? json_object_get(row, "mask") : NULL,
                          how == 1 ? "marks" : "chat");
            }
            assert_int_equal(x->n_chat, 3);
            assert_int_equal(x->n_plain_chat, 0);
            ag_examples_free(&x);
        }
        ag_tokenizer_free(&t);
    }
    ag_str_free(&jsonl);
}

static void chats_without_a_template_train_as_text(void **state)
{
    (void)state;
    ag_tokenizer *t = tokenizer_of("bos");
    ag_examples_options o = options_for(t);
    ag_examples *x =
        must_make("{\"messages\":[{\"role\":\"user\",\"content\":\"fox\"},{\"role\":\"assistant\",\"content\":\"dog\"}]}\n"
                  "{\"text\":\"User: fox\\nAssistant: dog\"}\n{\"instruction\":\"a\"}\n"
                  "{\"text\":\"Instruction: a\\nOutput: \"}\n",
                  &o);
    for (int64_t r = 0; r < 4; r += 2) {
        assert_int_equal(x->offset[r + 1] - x->offset[r], x->offset[r + 2] - x->offset[r + 1]);
        assert_memory_equal(x->ids + x->offset[r], x->ids + x->offset[r + 1], (size_t)(x->offset[r + 1] - x->offset[r]) * 4);
    }
    assert_int_equal(x->n_plain_chat, 1);
    ag_examples_free(&x);
    o.assistant_only = true;
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &o,
           "d.jsonl: line 1: 'assistant_only_loss' needs a model with a chat template, and this one has none");
    ag_tokenizer_free(&t);
}

static void templates_that_hide_a_turn_are_refused(void **state)
{
    (void)state;
    static const char jsonl[] =
        "\n{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
        "{\"role\":\"user\",\"content\":\"c\"}]}\n";
    ag_tokenizer *t = tokenizer_of("none");
    ag_examples_options o = options_for(t);
    for (quirk q = LAST_DIFFERS; q <= PROMPT_DIFFERS; q++) {
        ag_chat c = {.render = render, .user = &q};
        o.chat = &c;
        o.assistant_only = true;
        refuse(
            jsonl, &o,
            "d.jsonl: line 2: message 2: the chat template writes this turn differently when more follows, or without the "
            "generation prompt in front, so 'assistant_only_loss' cannot find it; use a template with {% generation %} marks, "
            "or train on the whole text");
        c.marks_assistant = true; /* marks find it */
        ag_examples *x = must_make(jsonl, &o);
        assert_true(x->n_targets > 0);
        ag_examples_free(&x);
    }
    quirk fails = FAILS;
    ag_chat c = {.render = render, .user = &fails};
    o.chat = &c;
    o.assistant_only = false;
    refuse(jsonl, &o, "d.jsonl: line 2: the template says no");
    c.user = NULL;
    o.assistant_only = true;
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &o,
           "d.jsonl: line 1: no token of the row carries loss: it has no assistant message");
    ag_tokenizer_free(&t);
}

/* ---- completion-only rows ------------------------------------------------------------------------------------------------ */

static void completions_have_loss_behind_the_boundary_only(void **state)
{
    (void)state;
    const json_t *rows = json_object_get(golden, "completion_rows"), *row;
    ag_str jsonl = {0};
    size_t i;
    json_array_foreach(rows, i, row)
    {
        char *text = json_dumps(row, 0);
        ag_str_printf(&jsonl, "%s\n", text);
        free(text);
    }
    for (int p = 0; p < 3; p++) {
        const json_t *post = json_object_get(json_object_get(golden, "post"), POSTS[p]);
        ag_tokenizer *t = tokenizer_of(POSTS[p]);
        ag_examples_options o = options_for(t);
        o.completion_only = true;
        ag_examples *x = must_make(jsonl.text, &o);
        for (int64_t r = 0; r < x->n; r++) {
            const json_t *want = json_array_get(json_object_get(post, "completions"), (size_t)r);
            check_ids(x, r, json_object_get(want, "ids"), json_object_get(want, "mask"), POSTS[p]);
        }
        assert_string_equal(x->prepared.hex, json_string_value(json_object_get(post, "prepared_sha256")));

        char path[] = "/tmp/agoge-evidence-XXXXXX", wanted[600];
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        if (ag_examples_write_evidence(x, 512, path, &err)) fail_msg("%s", err.text);
        ag_arena arena = {0};
        char *text;
        size_t n;
        if (ag_file_read(&text, &n, path, 4096, &arena, &err)) fail_msg("%s", err.text);
        snprintf(wanted, sizeof wanted,
                 "{\n  \"completion_only_loss\": true,\n  \"boundary_unit\": \"unicode_code_point\",\n"
                 "  \"truncation\": false,\n  \"max_seq_length\": 512,\n  \"rows\": 3,\n  \"max_tokens\": %d,\n"
                 "  \"shifted_supervised_tokens\": %d,\n  \"prepared_sha256\": \"%s\"\n}\n",
                 (int)x->longest, (int)x->n_targets, x->prepared.hex);
        assert_string_equal(text, wanted);
        ag_arena_free(&arena);
        unlink(path);
        ag_examples_free(&x);
        ag_tokenizer_free(&t);
    }
    ag_str_free(&jsonl);
}

static void completions_that_break_a_rule_are_refused(void **state)
{
    (void)state;
    ag_tokenizer *t = tokenizer_of("none"), *odd = tokenizer_of("odd"), *no_eos;
    ag_examples_options o = options_for(t);
    o.completion_only = true;
    refuse("{\"text\":\"The quick fox\",\"completion_start_char\":5}", &o,
           "d.jsonl: line 1: token 3 (code points 4 to 6) crosses 'completion_start_char' 5; move the boundary to where a "
           "token begins");
    refuse("{\"text\":\"answer\",\"completion_start_char\":0}", &o,
           "d.jsonl: line 1: the completion begins with the row's first token, which nothing predicts; put a prompt in front "
           "of it");
    refuse("{\"text\":\"a <pad>b\",\"completion_start_char\":1}", &o,
           "d.jsonl: line 1: the completion holds the special token 2 (PAD) at code point 2; it would be trained as text");
    refuse("{\"text\":\"a b<s>\",\"completion_start_char\":1}", &o,
           "d.jsonl: line 1: the completion holds the special token 0 (BOS) at code point 3; it would be trained as text");
    refuse("{\"text\":\"a</s>\",\"completion_start_char\":1}", &o, "d.jsonl: line 1: the completion has no token but the EOS");
    o.max_seq_length = 4;
    refuse("{\"text\":\"a\\n\\n\",\"completion_start_char\":1}\n{\"text\":\"abcd\",\"completion_start_char\":1}", &o,
           "d.jsonl: line 1: the completion (from code point 1 on) is blank");
    refuse("{\"text\":\"a b\",\"completion_start_char\":1}\n\n{\"text\":\"xyzw\",\"completion_start_char\":1}", &o,
           "d.jsonl: line 3: the row has 5 tokens, its EOS included, more than 'max_seq_length' 4; 'completion_only_loss' cuts "
           "nothing: raise "
           "the limit or shorten the row");
    o.tokenizer = odd;
    refuse("{\"text\":\"a b\",\"completion_start_char\":1}", &o,
           "d.jsonl: line 1: the tokenizer adds the special token 2 as token 1; 'completion_only_loss' takes only a BOS in "
           "front and an EOS "
           "at the end");
    no_eos = tokenizer_with(json_null(), "{}");
    o.tokenizer = no_eos;
    refuse("{\"text\":\"a b\",\"completion_start_char\":1}", &o,
           "'completion_only_loss' needs a tokenizer with an EOS token, and this one has none");
    ag_tokenizer_free(&t);
    ag_tokenizer_free(&odd);
    ag_tokenizer_free(&no_eos);
}

/* ---- lengths, threads, errors ---------------------------------------------------------------------------------------------
 */

static void long_rows_are_cut_and_counted(void **state)
{
    (void)state;
    ag_tokenizer *t = tokenizer_of("none");
    ag_examples_options o = options_for(t);
    o.max_seq_length = 4;
    ag_examples *x = must_make("{\"text\":\"x\"}\n\n{\"text\":\"wwwwwwww\"}\n{\"text\":\"wwwwwwwwww\"}\n", &o);
    assert_int_equal(x->shortest, 2);
    assert_int_equal(x->longest, 4);
    assert_int_equal(x->n_cut, 2);
    assert_int_equal(x->n_cut_tokens, 5 + 7);
    assert_int_equal(x->first_cut_line, 3);
    assert_int_equal(x->line[0], 1);
    assert_int_equal(x->line[2], 4);
    ag_examples_free(&x);

    o.max_seq_length = 12;
    ag_chat c = {.render = render};
    o.chat = &c;
    o.assistant_only = true;
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":\"wwwwwwwwwwww\"},{\"role\":\"assistant\",\"content\":\"b\"}]}", &o,
           "d.jsonl: line 1: the row has 37 tokens, and none of the first 12, which 'max_seq_length' keeps, carries loss; "
           "raise the limit or "
           "shorten the row");
    ag_tokenizer_free(&t);
}

static void rows_that_train_nothing_are_refused(void **state)
{
    (void)state;
    ag_tokenizer *t = tokenizer_with(json_null(), "{}"); /* no EOS */
    ag_examples_options o = options_for(t);
    refuse("{\"text\":\"xw\"}\n{\"text\":\"x\"}", &o,
           "d.jsonl: line 2: no token of the row carries loss: one token alone predicts nothing");
    refuse("{\"text\":\"\"}", &o, "d.jsonl: line 1: the text is empty");
    o.allow_no_target = true;
    ag_examples *x = must_make("{\"text\":\"x\"}", &o);
    assert_int_equal(x->n_targets, 0);
    assert_int_equal(x->longest, 1);
    ag_examples_free(&x);
    ag_tokenizer_free(&t);
}

static void a_tokenizer_of_another_model_is_refused(void **state)
{
    (void)state;
    ag_tokenizer *t = tokenizer_of("none");
    ag_examples_options o = options_for(t);
    o.n_vocab = 4;
    refuse("{\"text\":\"</s>\\u0021\"}", &o,
           "d.jsonl: line 1: the tokenizer gives id 5, and the model has embeddings for ids below 4; the tokenizer belongs to "
           "another model");
    ag_tokenizer_free(&t);
}

static void threads_change_neither_result_nor_error(void **state)
{
    (void)state;
    ag_str good = {0}, bad = {0};
    for (int i = 0; i < 1000; i++) {
        ag_str_printf(&good, "{\"text\":\"row %d %.*s\"}\n", i, i % 37, "The quick brown fox jumps over the lazy dog");
        /* Of two wrong rows the second is found while the first's thread is long done, or not looked for at all. */
        int width = (i >= 448 && i < 480) || (i >= 512 && i < 575) ? 3000 : 1;
        if (i == 480 || i == 575)
            ag_str_printf(&bad, "{\"text\":%d}\n", i);
        else
            ag_str_printf(&bad, "{\"text\":\"row %0*d\"}\n", width, i);
    }
    ag_tokenizer *t = tokenizer_of("bos");
    ag_examples *one = NULL;
    for (int threads = 1; threads <= 4; threads++) {
        ag_examples_options o = options_for(t);
        o.n_threads = threads;
        ag_examples *x = must_make(good.text, &o);
        if (!one) {
            one = x;
        } else {
            assert_int_equal(x->n_tokens, one->n_tokens);
            assert_int_equal(x->n_targets, one->n_targets);
            assert_memory_equal(x->ids, one->ids, (size_t)x->n_tokens * 4);
            assert_memory_equal(x->offset, one->offset, (size_t)(x->n + 1) * 8);
            assert_memory_equal(x->target_bits, one->target_bits, (size_t)((x->n_tokens + 63) / 64) * 8);
            assert_int_equal(x->line[999], 1000);
            ag_examples_free(&x);
        }
        refuse(bad.text, &o, "d.jsonl: line 481: 'text' must be a string, found a number");
    }
    ag_examples_free(&one);
    ag_tokenizer_free(&t);
    ag_str_free(&good);
    ag_str_free(&bad);
}

static int load_golden(void **state)
{
    (void)state;
    golden = data_golden("examples.json");
    return 0;
}

static int free_golden(void **state)
{
    (void)state;
    ag_json_free(&golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_rows_are_those_of_trl),
        cmocka_unit_test(chats_are_those_of_transformers),
        cmocka_unit_test(chats_without_a_template_train_as_text),
        cmocka_unit_test(templates_that_hide_a_turn_are_refused),
        cmocka_unit_test(completions_have_loss_behind_the_boundary_only),
        cmocka_unit_test(completions_that_break_a_rule_are_refused),
        cmocka_unit_test(long_rows_are_cut_and_counted),
        cmocka_unit_test(rows_that_train_nothing_are_refused),
        cmocka_unit_test(a_tokenizer_of_another_model_is_refused),
        cmocka_unit_test(threads_change_neither_result_nor_error),
    };
    return cmocka_run_group_tests(tests, load_golden, free_golden);
}
