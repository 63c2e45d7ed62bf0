#define _GNU_SOURCE
#include "data/rows.h"

#include "support/cmocka_all.h"

#include <stdio.h>
#include <unistd.h>

static ag_err err;
static const ag_row_rules plain = {.text_field = "text"}, body = {.text_field = "body"},
                          completion = {.text_field = "text", .completion_only = true},
                          assistant = {.text_field = "text", .assistant_only = true};

static ag_rows *over(const char *text)
{
    ag_rows *rows;
    if (ag_rows_over(&rows, text, strlen(text), "d.jsonl", &err)) fail_msg("%s", err.text);
    return rows;
}

/* The only row of `line` must be refused with this sentence. */
static void refuse_as(const char *line, const ag_row_rules *rules, ag_status code, const char *sentence)
{
    ag_rows *rows = over(line);
    ag_row row = {0};
    ag_status status = ag_row_read(&row, rows, 0, rules, &err);
    if (!status) fail_msg("accepted: %s", line);
    assert_string_equal(err.text, sentence);
    assert_int_equal(status, code);
    assert_null(row.root);
    ag_rows_close(&rows);
}
#define REFUSE(line, rules, sentence) refuse_as(line, &(rules), AG_E_DATA, "d.jsonl: line 1: " sentence)

static void check_text(const char *line, const ag_row_rules *rules, ag_row_form form, const char *text)
{
    ag_rows *rows = over(line);
    ag_row row = {0};
    if (ag_row_read(&row, rows, 0, rules, &err)) fail_msg("%s", err.text);
    assert_int_equal(row.form, form);
    assert_int_equal(row.n_text, strlen(text));
    assert_memory_equal(row.text, text, row.n_text);
    ag_row_clear(&row);
    ag_rows_close(&rows);
}

static void blank_lines_are_skipped_and_line_numbers_kept(void **state)
{
    (void)state;
    ag_rows *rows = over("\n  \t\r\n{\"text\":\"a\"}\r\n\n \n  {\"text\":\"b\"}");
    assert_int_equal(rows->n, 2);
    assert_int_equal(rows->line[0].number, 3);
    assert_int_equal(rows->line[1].number, 6);
    ag_row row = {0};
    if (ag_row_read(&row, rows, 1, &plain, &err)) fail_msg("%s", err.text);
    assert_string_equal(row.text, "b");
    assert_int_equal(row.number, 6);
    ag_row_clear(&row);
    ag_rows_close(&rows);
    rows = over("\xef\xbb\xbf{\"text\":\"a\"}\n");
    assert_int_equal(rows->n, 1);
    assert_int_equal(rows->line[0].number, 1);
    ag_rows_close(&rows);
}

static void empty_and_blank_files_are_refused(void **state)
{
    (void)state;
    ag_rows *rows;
    assert_int_equal(ag_rows_over(&rows, "", 0, "d.jsonl", &err), AG_E_DATA);
    assert_string_equal(err.text, "d.jsonl: the dataset is empty; it must have one JSON object a line");
    assert_int_equal(ag_rows_over(&rows, " \n\n\t", 4, "d.jsonl", &err), AG_E_DATA);
    assert_string_equal(err.text, "d.jsonl: the dataset is blank; it must have one JSON object a line");
    assert_null(rows);
    assert_int_not_equal(ag_rows_open(&rows, "/tmp/agoge-no-such-file.jsonl", &err), AG_OK);
    assert_null(rows);
}

static void a_file_is_mapped_and_read(void **state)
{
    (void)state;
    char path[] = "/tmp/agoge-rows-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char text[] = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    ag_rows *rows;
    if (ag_rows_open(&rows, path, &err)) fail_msg("%s", err.text);
    assert_int_equal(rows->n, 2);
    assert_string_equal(rows->path, path);
    ag_rows_close(&rows);
    ag_rows_close(&rows);
    unlink(path);
}

static void the_first_form_that_is_there_wins(void **state)
{
    (void)state;
    check_text("{\"messages\":3,\"text\":\"t\"}", &plain, AG_ROW_TEXT, "t");
    check_text("{\"instruction\":\"do\",\"text\":\"t\"}", &plain, AG_ROW_TEXT, "t");
    check_text("{\"text\":\"\"}", &plain, AG_ROW_TEXT, "");
    check_text("{\"text\":\"t\",\"body\":\"b\"}", &body, AG_ROW_TEXT, "b");
    check_text("{\"body\":\"b\"}", &body, AG_ROW_TEXT, "b");
}

static void instructions_are_written_out(void **state)
{
    (void)state;
    check_text("{\"instruction\":\"Add\",\"input\":\"1 2\",\"output\":\"3\"}", &plain, AG_ROW_INSTRUCTION,
               "Instruction: Add\nInput: 1 2\nOutput: 3");
    check_text("{\"instruction\":\"Add\"}", &plain, AG_ROW_INSTRUCTION, "Instruction: Add\nOutput: ");
    check_text("{\"instruction\":\"Add\",\"input\":\"\",\"output\":null}", &plain, AG_ROW_INSTRUCTION,
               "Instruction: Add\nOutput: ");
    REFUSE("{\"instruction\":3}", plain, "'instruction' must be a string, found a number");
    REFUSE("{\"instruction\":\"a\",\"input\":[1]}", plain, "'input' must be a string, found a list");
    REFUSE("{\"instruction\":\"a\",\"output\":{\"b\":1}}", plain, "'output' must be a string, found an object");
}

static void messages_without_a_template_are_lines(void **state)
{
    (void)state;
    ag_rows *rows = over("{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"},"
                         "{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"tool\",\"content\":\"t\"}],\"tools\":[]}");
    ag_row row = {0};
    if (ag_row_read(&row, rows, 0, &assistant, &err)) fail_msg("%s", err.text);
    assert_int_equal(row.form, AG_ROW_MESSAGES);
    assert_null(row.text);
    assert_non_null(row.tools);
    ag_str text = {0};
    ag_messages_write_plain(row.messages, &text);
    assert_string_equal(text.text, "System: s\nUser: u\nAssistant: \nTool: t");
    ag_str_free(&text);
    ag_row_clear(&row);
    ag_rows_close(&rows);
}

static void wrong_rows_are_named_by_line_and_message(void **state)
{
    (void)state;
    refuse_as("[1]", &plain, AG_E_FORMAT, "d.jsonl: line 1: a row must be an object, found a list");
    REFUSE("{\"text\":3}", plain, "'text' must be a string, found a number");
    REFUSE("{\"text\":null}", plain, "'text' must be a string, found null");
    REFUSE("{\"prompt\":\"a\",\"completion\":\"b\"}", plain,
           "the row has none of the forms that are known: 'text' (a string), 'messages' (a list of role and content), or "
           "'instruction' "
           "with 'input' and 'output'");
    REFUSE("{\"text\":\"a\"}", body, "the row has no column 'body', which 'dataset_text_field' asks for");
    REFUSE("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", body,
           "the row has no column 'body', which 'dataset_text_field' asks for");
    REFUSE("{\"messages\":{}}", plain, "'messages' must be a list, found an object");
    REFUSE("{\"messages\":[]}", plain, "'messages' is an empty list");
    REFUSE("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},3]}", plain, "message 2 must be an object, found a number");
    REFUSE("{\"messages\":[{\"content\":\"a\"}]}", plain, "message 1 has no 'role'");
    REFUSE("{\"messages\":[{\"role\":\"bot\",\"content\":\"a\"}]}", plain,
           "message 1: 'role' must be user, assistant, system or tool, found 'bot'");
    REFUSE("{\"messages\":[{\"role\":\"user\\u0000\",\"content\":\"a\"}]}", plain,
           "message 1: 'role' must be user, assistant, system or tool, found 'user'");
    REFUSE("{\"messages\":[{\"role\":\"user\"}]}", plain, "message 1 has no 'content'");
    REFUSE("{\"messages\":[{\"role\":\"user\",\"content\":[\"a\"]}]}", plain,
           "message 1: 'content' must be a string, found a list");
    REFUSE("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":\"x\"}", plain,
           "'tools' must be a list, found a string");
    REFUSE("{\"text\":\"a\"}", assistant, "'assistant_only_loss' needs rows with 'messages', and this row has none");
}

static void broken_json_names_the_line(void **state)
{
    (void)state;
    static const char *const bad[] = {"{\"text\":\"a\"",
                                      "{\"text\":\"a\"} x",
                                      "{\"text\":\"\xff\"}",
                                      "{\"text\":\"a\",\"text\":\"b\"}",
                                      "{\"text\":NaN}",
                                      "{\"text\":\"\\ud800\"}",
                                      "nothing"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[100];
        snprintf(text, sizeof text, "{\"text\":\"fine\"}\n\n%s\n", bad[i]);
        ag_rows *rows = over(text);
        ag_row row = {0};
        assert_int_equal(ag_row_read(&row, rows, 1, &plain, &err), AG_E_FORMAT);
        if (strncmp(err.text, "d.jsonl: line 3: ", 17) != 0) fail_msg("%s", err.text);
        ag_rows_close(&rows);
    }
}

static void a_line_that_is_too_long_is_refused(void **state)
{
    (void)state;
    size_t n = AG_ROW_MAX_BYTES + 3;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'x', n);
    ag_rows *rows;
    ag_row row = {0};
    if (ag_rows_over(&rows, text, n, "d.jsonl", &err)) fail_msg("%s", err.text);
    assert_int_equal(ag_row_read(&row, rows, 0, &plain, &err), AG_E_DATA);
    assert_string_equal(err.text, "d.jsonl: line 1: the line has 67108867 bytes, more than the 67108864 that a row may have");
    ag_rows_close(&rows);
    free(text);
}

static void completion_rows_need_a_boundary_inside_the_text(void **state)
{
    (void)state;
    ag_rows *rows = over("{\"text\":\"\xc3\xa9\xf0\x9f\x99\x82x\",\"completion_start_char\":2}");
    ag_row row = {0};
    if (ag_row_read(&row, rows, 0, &completion, &err)) fail_msg("%s", err.text);
    assert_int_equal(row.completion_start, 2);
    ag_row_clear(&row);
    ag_rows_close(&rows);
    REFUSE("{\"text\":\"ab\"}", completion,
           "'completion_only_loss' needs 'completion_start_char' in every row, and it is missing here");
    REFUSE("{\"text\":\"ab\",\"completion_start_char\":true}", completion,
           "'completion_start_char' must be an integer, found a boolean");
    REFUSE("{\"text\":\"ab\",\"completion_start_char\":1.0}", completion,
           "'completion_start_char' must be an integer, found a number");
    REFUSE("{\"text\":\"ab\",\"completion_start_char\":2}", completion,
           "'completion_start_char' must be from 0 to below 2, the code points of 'text', found 2");
    REFUSE("{\"text\":\"ab\",\"completion_start_char\":-1}", completion,
           "'completion_start_char' must be from 0 to below 2, the code points of 'text', found -1");
    REFUSE("{\"text\":\"\xc3\xa9\",\"completion_start_char\":1}", completion,
           "'completion_start_char' must be from 0 to below 1, the code points of 'text', found 1");
    REFUSE("{\"text\":\"a \xe3\x80\x80\\n\",\"completion_start_char\":1}", completion,
           "the completion (from code point 1 on) is blank");
    REFUSE("{\"text\":\"ab\",\"completion_start_char\":1,\"labels\":[]}", completion,
           "the column 'labels' is reserved: with 'completion_only_loss' the loss follows from 'completion_start_char' alone; "
           "remove the "
           "column");
    REFUSE("{\"text\":\"ab\",\"completion_start_char\":1,\"seq_lengths\":1}", completion,
           "the column 'seq_lengths' is reserved: with 'completion_only_loss' the loss follows from 'completion_start_char' "
           "alone; remove "
           "the column");
    REFUSE("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion_start_char\":1}", completion,
           "'completion_only_loss' needs rows with 'text' and 'completion_start_char', and this row has no 'text'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blank_lines_are_skipped_and_line_numbers_kept),
        cmocka_unit_test(empty_and_blank_files_are_refused),
        cmocka_unit_test(a_file_is_mapped_and_read),
        cmocka_unit_test(the_first_form_that_is_there_wins),
        cmocka_unit_test(instructions_are_written_out),
        cmocka_unit_test(messages_without_a_template_are_lines),
        cmocka_unit_test(wrong_rows_are_named_by_line_and_message),
        cmocka_unit_test(broken_json_names_the_line),
        cmocka_unit_test(a_line_that_is_too_long_is_refused),
        cmocka_unit_test(completion_rows_need_a_boundary_inside_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
