/* The consumer's contract: which rows pass, what a sidecar says, and events that know the future. */
#include "support/file_tools.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "data/consumer.h"

static ag_consumer_result check(const char *rows)
{
    ag_err err;
    ag_consumer_result r;
    file_put(scratch_path("in.jsonl"), rows);
    must(ag_consumer_check(&r, scratch_path("in.jsonl"), &err));
    return r;
}

static void a_sidecar_is_exactly_this(void **state)
{
    (void)state;
    scratch_dir_create();
    ag_consumer_result r = check(
        "{\"text\":\"a\",\"_prometheus\":{\"event_timestamps\":[\"2030-01-02T03:04:05Z\",\"2030-01-02T05:04:05+02:00\"]}}\n\n"
        "{\"messages\":[{\"role\":\"user\",\"content\":\"b\"}]}\n{\"instruction\":\"c\"}\n");
    assert_true(r.ok && r.n_rows == 3);
    /* sha256 of "a", "User: b" and "Instruction: c\nOutput: " */
    assert_string_equal(
        "{\"errors\":[],\"ok\":true,\"parser\":\"agoge.rows.v1\",\"row_count\":3,\"rows\":["
        "{\"format\":\"text\",\"line\":1,\"text_sha256\":\"ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\"},"
        "{\"format\":\"messages\",\"line\":3,\"text_sha256\":"
        "\"d83e88773abd4e781ed80699c6163d1fa6bcf96df55d0ff516c8e9c1209bed2b\"},"
        "{\"format\":\"instruction\",\"line\":4,\"text_sha256\":"
        "\"753e94102923bbbdf85c71638cb2a0328818da953dc83fda6c99293f493c71f0\"}],"
        "\"schema_version\":\"agoge.consumer-sidecar.v1\",\"source_path\":\"in.jsonl\","
        "\"source_sha256\":\"3a1782eec5578ba1bce986a7520dea921405201927c7ce3ac2dd7bcb8046e125\"}\n",
        r.sidecar.text);
    ag_consumer_result_free(&r);
    scratch_dir_remove();
}

static void every_wrong_row_is_told_by_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *row, *error;
    } cases[] = {
        {"{\"text\":1}", "line 2: 'text' must be a string"},
        {"{\"x\":1}", "line 2: "},
        {"[1]", "line 2: the row must be a JSON object"},
        {"{\"text\":\"x\"", "line 2: the row: not valid JSON"},
        {"{\"text\":\"x\",\"_prometheus\":3}", "line 2: _prometheus must be an object"},
        {"{\"text\":\"x\",\"_prometheus\":{\"event_timestamps\":3}}", "line 2: _prometheus.event_timestamps must be a list"},
        {"{\"text\":\"x\",\"_prometheus\":{\"event_timestamps\":[\"soon\"]}}",
         "line 2: _prometheus.event_timestamps[0] is no time"},
        {"{\"text\":\"x\",\"_prometheus\":{\"event_timestamps\":[2,1]}}",
         "line 2: _prometheus.event_timestamps[1] is earlier than the one before"},
        {"{\"text\":\"x\",\"_prometheus\":{\"event_timestamps\":[\"2030-01-01T01:00:00+02:00\",\"2029-12-31T22:59:59Z\"]}}",
         "[1] is earlier"},
        {"{\"text\":\"x\",\"_prometheus\":{\"events\":[{\"timestamp\":1.5},{},{\"timestamp\":1.25}]}}",
         "line 2: _prometheus.events[2].timestamp is earlier"},
    };
    scratch_dir_create();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ag_str rows = {0};
        ag_str_printf(&rows, "{\"text\":\"fine\"}\n%s\n{\"text\":\"fine\"}\n", cases[i].row);
        ag_consumer_result r = check(rows.text);
        assert_true(!r.ok && r.n_errors == 1 && r.n_rows == 3);
        if (!strstr(r.sidecar.text, cases[i].error)) fail_msg("'%s' is not in %s", cases[i].error, r.sidecar.text);
        assert_non_null(strstr(r.sidecar.text, "\"line\":3")); /* the others are looked at */
        ag_consumer_result_free(&r);
        ag_str_free(&rows);
    }
    ag_consumer_result r = check("");
    assert_true(!r.ok && r.n_rows == 0 && strstr(r.sidecar.text, "is empty"));
    ag_consumer_result_free(&r);
    scratch_dir_remove();
}

static bool time_of(const char *text, int64_t *ns)
{
    json_t *value = json_string(text);
    const bool is_time = ag_event_time_parse(ns, value);
    json_decref(value);
    return is_time;
}

static void times_are_read_as_python_reads_them(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t seconds;
    } good[] = {{"1970-01-01", 0},
                {"2030-01-02T03:04:05Z", 1893553445},
                {"2030-01-02 03:04:05", 1893553445},
                {"2030-01-02T03:04:05.000+00:00", 1893553445},
                {"2030-01-02T05:04:05+02:00", 1893553445},
                {"2030-01-01T21:34:05-0530", 1893553445},
                {"2028-02-29", 1835395200},
                {"1969-12-31T23:59:59Z", -1}};
    static const char *const bad[] = {"",
                                      "2030",
                                      "2030-13-01",
                                      "2030-02-29",
                                      "2030-01-02T24:00",
                                      "2030-01-02T03:60",
                                      "2030-01-02T03:04:05x",
                                      "2030-01-02T03:04:05.",
                                      "soon",
                                      "2030-1-2",
                                      "0000-01-01"};
    int64_t ns;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (!time_of(good[i].text, &ns)) fail_msg("%s is a time", good[i].text);
        if (ns != good[i].seconds * 1000000000) fail_msg("%s: %lld", good[i].text, (long long)ns);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (time_of(bad[i], &ns)) fail_msg("'%s' is no time", bad[i]);
    assert_true(time_of("2030-01-02T03:04:05.25Z", &ns) && ns % 1000000000 == 250000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sidecar_is_exactly_this),
        cmocka_unit_test(every_wrong_row_is_told_by_its_line),
        cmocka_unit_test(times_are_read_as_python_reads_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
