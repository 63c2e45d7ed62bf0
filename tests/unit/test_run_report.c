/* A run's page: the curves are those of metrics.jsonl, what comes from files is escaped, and nothing is loaded from anywhere. */
#define _GNU_SOURCE
#include "support/run_fixture.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "runs/metrics_series.h"
#include "runs/run_report.h"
#include "runs/svg_chart.h"

#include <ctype.h>
#include <math.h>

static ag_arena arena;

static int setup(void **state)
{
    (void)state;
    run_fixture_begin();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_fixture_end();
    ag_arena_free(&arena);
    return 0;
}

/* ---- metrics.jsonl ----------------------------------------------------------------------------------------------- */
static void lines_become_series_and_an_unfinished_one_waits(void **state)
{
    (void)state;
    ag_err err;
    ag_series s;
    fixture_write("m.jsonl", "{\"step\": 1, \"loss\": 2.5, \"lr\": 0.1, \"grad_norm\": 3.0, \"tokens\": 10, \"tok_s\": 20, \"ms\": 500}\n"
                             "no json\n[1]\n{\"step\": 2, \"loss\": NaN, \"tokens\": 5, \"ms\": 250}\n"
                             "{\"step\": 2, \"eval_loss\": 1.5, \"eval_targets\": 7}\n\n{\"step\": 3, \"lo");
    must(ag_series_read(&s, "m.jsonl", &arena, &err));
    assert_int_equal(2, s.n_steps);
    assert_true(s.steps[0].step == 1 && s.steps[0].loss == 2.5 && s.steps[0].lr == 0.1 && s.steps[0].grad_norm == 3.0);
    assert_true(isnan(s.steps[1].loss) && isnan(s.steps[1].lr));
    assert_true(s.n_evals == 1 && s.evals[0].step == 2 && s.evals[0].loss == 1.5 && s.evals[0].targets == 7);
    assert_int_equal(2, s.n_unreadable);
    assert_int_equal(15, s.tokens);
    assert_true(s.seconds == 0.75);
    must_fail(AG_E_NOT_FOUND, "nowhere", ag_series_read(&s, "nowhere", &arena, &err));
}

static void a_resumed_run_replaces_what_it_takes_again(void **state)
{
    (void)state;
    ag_err err;
    ag_series s;
    fixture_write("m.jsonl", "{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 2}\n{\"step\": 2, \"eval_loss\": 9}\n{\"step\": 3, \"loss\": 3}\n"
                             "{\"step\": 2, \"loss\": 20}\n{\"step\": 3, \"loss\": 30}\n");
    must(ag_series_read(&s, "m.jsonl", &arena, &err));
    assert_int_equal(3, s.n_steps);
    assert_int_equal(0, s.n_evals);
    assert_true(s.steps[1].loss == 20 && s.steps[2].loss == 30);
}

/* ---- charts ------------------------------------------------------------------------------------------------------ */
static size_t count(const char *text, const char *part)
{
    size_t n = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) n++;
    return n;
}

static void a_chart_keeps_spikes_and_shows_gaps(void **state)
{
    (void)state;
    enum { N = 100000 };
    double *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = i == 77777 ? 100 : 1;
    }
    ag_str out = {0};
    const ag_curve curve = {"a", x, y, N, false};
    ag_svg_chart(&out, "a title with <tags>", &curve, 1);
    assert_true(out.n < 40000);
    assert_non_null(strstr(out.text, " 12.0L")); /* the spike reaches the top of the chart */
    assert_non_null(strstr(out.text, "aria-label=\"a title with &lt;tags&gt;\""));
    ag_str_clear(&out);
    for (int i = 0; i < 10; i++) y[i] = i == 4 ? (double)NAN : i == 7 ? (double)INFINITY : i;
    const ag_curve gaps = {"b", x, y, 10, true};
    ag_svg_chart(&out, "gaps", &gaps, 1);
    assert_int_equal(3, count(out.text, "M") ); /* the line begins anew behind each gap */
    assert_int_equal(8, count(out.text, "<circle"));
    ag_str_clear(&out);
    for (int i = 0; i < 10; i++) y[i] = (double)NAN;
    ag_svg_chart(&out, "nothing", &gaps, 1);
    assert_int_equal(0, out.n);
    for (int i = 0; i < 10; i++) y[i] = 3;
    ag_svg_chart(&out, "flat", &gaps, 1);
    assert_null(strstr(out.text, "nan"));
    ag_str_free(&out);
    free(x);
    free(y);
}

static void text_is_escaped(void **state)
{
    (void)state;
    ag_str out = {0};
    ag_html_add(&out, "<a href=\"x\" title='y'>&\x01\xff\xc2\x85\n");
    assert_string_equal("&lt;a href=&quot;x&quot; title=&#39;y&#39;&gt;&amp;\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\n", out.text);
    ag_str_free(&out);
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */
/* Every tag is closed in its order, and there are none but known ones. */
static void expect_well_formed(const char *html)
{
    static const char *const lone[] = {"!doctype", "meta", "line"};
    char stack[64][16];
    int depth = 0;
    for (const char *at = strchr(html, '<'); at; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        char name[16] = "";
        assert_non_null(end);
        const bool closes = at[1] == '/';
        for (size_t i = 0; i < sizeof name - 1 && (isalnum((unsigned char)at[1 + closes + i]) || at[1 + i] == '!'); i++) name[i] = at[1 + closes + i];
        bool is_lone = end[-1] == '/';
        for (size_t i = 0; i < 3; i++) is_lone |= strcmp(name, lone[i]) == 0;
        if (is_lone) continue;
        if (!closes) {
            assert_true(depth < 64);
            strcpy(stack[depth++], name);
        } else if (depth == 0 || strcmp(stack[--depth], name) != 0) {
            fail_msg("</%s> closes <%s>: %.80s", name, stack[depth], at);
        }
    }
    assert_int_equal(0, depth);
    assert_null(strstr(html, "<script"));
    assert_null(strstr(html, "://"));
    assert_null(strstr(html, " src="));
    assert_null(strstr(html, "url("));
    assert_null(strstr(html, "@import"));
}

static const char *page_of(const char *run_dir)
{
    ag_err err;
    ag_str out = {0};
    must(ag_run_report_write(&out, &(ag_run_report_options){.run_dir = run_dir, .n_threads = 1}, NULL, &arena, &err));
    const char *text = ag_arena_strdup(&arena, out.text);
    ag_str_free(&out);
    expect_well_formed(text);
    return text;
}

static void a_page_shows_curves_samples_memory_and_digests(void **state)
{
    (void)state;
    const char *run = "adapters/<run>&\"x\"";
    run_fixture_adapter(run);
    run_fixture_checkpoint(ag_path_join(&arena, run, "checkpoint-2"), 2);
    run_fixture_seal(run, true);
    fixture_make_dir("runs/<run>&\"x\"");
    fixture_write("runs/<run>&\"x\"/metrics.jsonl", "{\"step\": 1, \"loss\": 4.0, \"lr\": 0.1, \"grad_norm\": 3, \"tokens\": 1234567, \"tok_s\": 5, \"ms\": 90000}\n"
                                                    "{\"step\": 2, \"loss\": 3.0, \"lr\": 0.1, \"grad_norm\": 3, \"tokens\": 1, \"tok_s\": 5, \"ms\": 1000}\n"
                                                    "{\"step\": 2, \"eval_loss\": 2.5, \"eval_targets\": 9}\n"
                                                    "{\"step\": 0, \"samples\": [{\"prompt\": \"who?\", \"answer\": \"<i>nobody</i>\"}]}\n"
                                                    "{\"step\": 2, \"samples\": [{\"prompt\": \"who?\", \"answer\": \"the keeper\"}]}\n");
    fixture_write("runs/<run>&\"x\"/manifest.json", "{\"config\": {\"model_id\": \"<b>bold</b>\", \"training\": {\"seed\": 42}}, \"metrics\": {\"cpu_report\": "
                                                    "{\"planned_bytes\": 2097152, \"peak_rss_bytes\": 2000000, \"threads\": 2}}}");
    fixture_make_dir("eval/<run>&\"x\"/base");
    fixture_make_dir("eval/<run>&\"x\"/sft");
    fixture_write("eval/<run>&\"x\"/comparison.json", "{\"conclusion\": \"improved\", \"n_tasks\": 1, \"pairs\": [{\"task_id\": \"t<1>\", \"outcome\": \"improved\"}]}");
    fixture_write("eval/<run>&\"x\"/base/generations.jsonl", "{\"task_id\": \"t<1>\", \"prompt\": \"what?\", \"completion\": \"<img onerror=x>\", \"expected_completion\": \"4\"}\n");
    fixture_write("eval/<run>&\"x\"/sft/generations.jsonl", "{\"task_id\": \"t<1>\", \"completion\": \"four & more\"}\n");
    const char *page = page_of(run);
    static const char *const parts[] = {"<title>&lt;run&gt;&amp;&quot;x&quot;", "<b>1,234,568</b>", "<b>1 min 31 s</b>", "aria-label=\"Training and held-out loss over steps\"",
                                        "2.5000", "&lt;img onerror=x&gt;", "four &amp; more", "t&lt;1&gt;", "&lt;b&gt;bold&lt;/b&gt;", "training.seed", "2.0 MiB", "+4.9 %",
                                        "the index carries the provenance", "adapter_model.safetensors", "&lt;i&gt;nobody", "behind step 2", "the keeper", "prefers-color-scheme: dark"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(page, parts[i])) fail_msg("the page has no '%s'", parts[i]);
}

static void what_is_not_there_is_left_out(void **state)
{
    (void)state;
    ag_err err;
    ag_str out = {0};
    run_fixture_adapter("adapters/run");
    const char *page = page_of("adapters/run");
    assert_non_null(strstr(page, "There are no curves"));
    assert_non_null(strstr(page, "There is no manifest.json"));
    fixture_make_dir("adapters/empty");
    must_fail(AG_E_NOT_FOUND, "--logging-dir", ag_run_report_write(&out, &(ag_run_report_options){.run_dir = "adapters/empty"}, NULL, &arena, &err));
    ag_str_free(&out);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(lines_become_series_and_an_unfinished_one_waits),
        T(a_resumed_run_replaces_what_it_takes_again),
        T(a_chart_keeps_spikes_and_shows_gaps),
        T(text_is_escaped),
        T(a_page_shows_curves_samples_memory_and_digests),
        T(what_is_not_there_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
