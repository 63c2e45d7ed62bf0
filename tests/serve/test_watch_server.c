/* The server behind the page of a run: lines as they come, from files alone, and no way to any other file. */
#define _GNU_SOURCE
#include "serve/watch_server.h"
#include "support/http_peer.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/json.h"

#include <unistd.h>

static ag_watch_server *server;
static int64_t port;
static char path[512], gone[512];
static ag_watch_run runs[2];

static void put(const char *text, const char *mode)
{
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(0, fclose(f));
}

static int setup(void **state)
{
    (void)state;
    ag_err err;
    scratch_dir_create();
    snprintf(path, sizeof path, "%s", scratch_path("metrics.jsonl"));
    snprintf(gone, sizeof gone, "%s", scratch_path("not-yet.jsonl"));
    runs[0] = (ag_watch_run){"a <run>", path};
    runs[1] = (ag_watch_run){"later", gone};
    must(ag_watch_server_start(&server, runs, 2, "127.0.0.1", 0, &err));
    port = ag_watch_server_port(server);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ag_watch_server_stop(&server);
    scratch_dir_remove();
    return 0;
}

static void the_page_is_served_and_asks_nobody_else(void **state)
{
    (void)state;
    http_answer a = http_peer_ask(port, "/", NULL, NULL);
    assert_int_equal(200, a.status);
    assert_non_null(strstr(a.head.text, "text/html"));
    assert_non_null(strstr(a.body.text, "<title>agoge watch</title>"));
    for (const char *at = strstr(a.body.text, "://"); at; at = strstr(at + 1, "://"))
        assert_memory_equal("http://www.w3.org/", at - 4, 18); /* the name of SVG, which nobody fetches */
    http_answer_free(&a);
}

static void lines_come_as_they_are_written(void **state)
{
    (void)state;
    put("{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": NaN}\nno json\n{\"step\": 3, \"lo", "w");
    json_t *list = http_peer_json(port, "/runs", NULL, 200), *first = http_peer_json(port, "/runs/0/0", NULL, 200);
    assert_string_equal("a <run>", json_text(list, "runs.0"));
    assert_int_equal(2, json_array_size(json_at(first, "lines")));
    assert_true(json_number_value(json_at(first, "lines.0.loss")) == 2.5);
    assert_true(json_is_null(json_at(first, "lines.1.loss")));
    put("ss\": 1.5}\n", "a");
    char next[64];
    snprintf(next, sizeof next, "/runs/0/%lld", (long long)json_integer_value(json_at(first, "next")));
    json_t *second = http_peer_json(port, next, NULL, 200);
    assert_int_equal(1, json_array_size(json_at(second, "lines")));
    assert_int_equal(3, json_integer_value(json_at(second, "lines.0.step")));
    snprintf(next, sizeof next, "/runs/0/%lld", (long long)json_integer_value(json_at(second, "next")));
    json_t *third = http_peer_json(port, next, NULL, 200);
    assert_int_equal(0, json_array_size(json_at(third, "lines")));
    put("{\"step\": 1, \"loss\": 9}\n", "w"); /* begun anew */
    json_t *anew = http_peer_json(port, next, NULL, 200);
    assert_true(json_is_true(json_at(anew, "restarted")));
    assert_int_equal(1, json_array_size(json_at(anew, "lines")));
    json_t *later = http_peer_json(port, "/runs/1/0", NULL, 200);
    assert_int_equal(0, json_array_size(json_at(later, "lines")));
    json_t *all[] = {list, first, second, third, anew, later};
    for (int i = 0; i < 6; i++) json_decref(all[i]);
}

static void a_long_file_comes_in_pieces_that_end_with_lines(void **state)
{
    (void)state;
    enum { N = 60000 };
    FILE *f = fopen(path, "w");
    for (int i = 1; i <= N; i++) fprintf(f, "{\"step\": %d, \"loss\": 1.25, \"tok_s\": 12345.5}\n", i);
    assert_int_equal(0, fclose(f));
    int64_t seen = 0, offset = 0;
    for (int piece = 0; piece < 10; piece++) {
        char ask[64];
        snprintf(ask, sizeof ask, "/runs/0/%lld", (long long)offset);
        json_t *got = http_peer_json(port, ask, NULL, 200);
        const size_t n = json_array_size(json_at(got, "lines"));
        if (n > 0) assert_int_equal(seen + 1, json_integer_value(json_at(got, "lines.0.step")));
        seen += (int64_t)n;
        offset = json_integer_value(json_at(got, "next"));
        json_decref(got);
        if (n == 0) break;
    }
    assert_int_equal(N, seen);
}

static void other_paths_and_methods_are_refused(void **state)
{
    (void)state;
    static const char *const paths[] = {"/runs/2/0", "/runs/-1/0", "/runs/0", "/runs/0/", "/runs/0/x", "/runs/0/1x", "/runs/0/-1", "/runs/0/99999999999999999999",
                                        "/runs/../metrics.jsonl", "/metrics.jsonl", "//", "/runs/00000000000000000009/0"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        http_answer a = http_peer_ask(port, paths[i], NULL, NULL);
        if (a.status != 404) fail_msg("%s: status %d", paths[i], a.status);
        http_answer_free(&a);
    }
    http_answer a = http_peer_ask(port, "/", "{}", NULL);
    assert_int_equal(405, a.status);
    http_answer_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_page_is_served_and_asks_nobody_else, setup, teardown),
        cmocka_unit_test_setup_teardown(lines_come_as_they_are_written, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_file_comes_in_pieces_that_end_with_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(other_paths_and_methods_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
