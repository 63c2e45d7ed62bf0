#define _GNU_SOURCE
#include "runs/run_report_parts.h"

#include "base/fs.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SAMPLES = 24, LARGEST_FILE = 64 << 20, LONGEST_TEXT = 4000 };

static json_t *load(const ag_report *r, const char *name)
{
    json_t *root = NULL;
    ag_err ignored; /* a part that cannot be read is left out of the page */
    const char *path = ag_path_join(r->arena, r->eval_dir, name);
    if (!ag_path_is_file(path) || ag_json_load(&root, path, LARGEST_FILE, &ignored)) return NULL;
    return root;
}

/* ---- figures ----------------------------------------------------------------------------------------------------- */
static void add_interval(ag_report *r, const char *label, const json_t *interval)
{
    if (!json_is_object(interval)) return;
    ag_report_row_printf(r, label, "%.1f %% (%.1f to %.1f)", 100 * json_number_value(json_object_get(interval, "estimate")),
                         100 * json_number_value(json_object_get(interval, "low")),
                         100 * json_number_value(json_object_get(interval, "high")));
}

static void add_count(ag_report *r, const char *label, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (json_is_integer(value)) ag_report_row_printf(r, label, "%lld", (long long)json_integer_value(value));
}

static void add_figures(ag_report *r, const json_t *comparison)
{
    json_t *statistics = load(r, "statistics.json");
    const json_t *test = json_object_get(statistics, "mcnemar");
    const char *conclusion = json_string_value(json_object_get(comparison, "conclusion"));
    ag_str_add(r->out, "<div class=\"scroll\"><table>\n");
    if (conclusion) ag_report_row(r, "conclusion", conclusion);
    add_interval(r, "base, correct (95 %)", json_object_get(statistics, "base_accuracy"));
    add_interval(r, "fine-tuned, correct (95 %)", json_object_get(statistics, "sft_accuracy"));
    add_interval(r, "difference (95 %)", json_object_get(statistics, "delta_accuracy"));
    if (json_is_object(test))
        ag_report_row_printf(r, "exact McNemar test, p", "%.4g", json_number_value(json_object_get(test, "p_value")));
    add_count(r, "tasks", comparison, "n_tasks");
    add_count(r, "improved", comparison, "n_improved");
    add_count(r, "regressed", comparison, "n_regressed");
    add_count(r, "tied", comparison, "n_tied");
    add_count(r, "invalid", comparison, "n_invalid");
    ag_str_add(r->out, "</table></div>\n");
    ag_json_free(&statistics);
}

/* ---- answers side by side ---------------------------------------------------------------------------------------- */
/* generations.jsonl as an object of rows by task_id. */
static json_t *load_answers(const ag_report *r, const char *arm)
{
    ag_map map;
    ag_err ignored;
    json_t *rows = json_object();
    if (ag_map_open(&map, ag_path_join(r->arena, r->eval_dir, ag_arena_printf(r->arena, "%s/generations.jsonl", arm)),
                    &ignored))
        return rows;
    const char *text = (const char *)map.bytes;
    for (size_t at = 0, n = map.n <= LARGEST_FILE ? map.n : 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t n_line = end ? (size_t)(end - text) - at : n - at;
        json_t *row = NULL;
        if (ag_json_parse(&row, text + at, n_line, "generations.jsonl", &ignored) == AG_OK) {
            const char *id = json_string_value(json_object_get(row, "task_id"));
            if (id) json_object_set(rows, id, row);
        }
        ag_json_free(&row);
        at += n_line + 1;
    }
    ag_map_close(&map);
    return rows;
}

static void add_text(ag_report *r, const char *title, const json_t *value)
{
    const char *text = json_string_value(value);
    const size_t n = text ? json_string_length(value) : 0;
    ag_str_printf(r->out, "<div><h3>%s</h3><pre dir=\"auto\">", title);
    if (text) ag_html_add_n(r->out, text, n < LONGEST_TEXT ? n : LONGEST_TEXT);
    else ag_str_add(r->out, "–");
    if (n > LONGEST_TEXT) ag_str_add(r->out, " […]");
    ag_str_add(r->out, "</pre></div>\n");
}

static void add_sample(ag_report *r, const json_t *pair, const json_t *base, const json_t *sft)
{
    const char *id = json_string_value(json_object_get(pair, "task_id")),
               *outcome = json_string_value(json_object_get(pair, "outcome"));
    const json_t *before = json_object_get(base, id), *after = json_object_get(sft, id);
    const bool is_good = strcmp(outcome, "improved") == 0, is_bad = strcmp(outcome, "regressed") == 0;
    ag_str_printf(r->out, "<article><p><span class=\"%s\">", is_good ? "good" : is_bad ? "bad" : "soft");
    ag_html_add(r->out, outcome);
    ag_str_add(r->out, "</span> <span class=\"soft mono\">");
    ag_html_add(r->out, id);
    ag_str_add(r->out, "</span></p>\n");
    add_text(r, "asked", json_object_get(before, "prompt"));
    add_text(r, "expected", json_object_get(before, "expected_completion"));
    ag_str_add(r->out, "<div class=\"pair\">");
    add_text(r, "before (base)", json_object_get(before, "completion"));
    add_text(r, "after (fine-tuned)", json_object_get(after, "completion"));
    ag_str_add(r->out, "</div></article>\n");
}

/* What changed comes first: regressions, then improvements, then the rest. */
static void add_samples(ag_report *r, const json_t *pairs)
{
    static const char *const order[] = {"regressed", "improved", NULL};
    json_t *base = load_answers(r, "base"), *sft = load_answers(r, "sft");
    size_t n_added = 0;
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < json_array_size(pairs) && n_added < MOST_SAMPLES; i++) {
            const json_t *pair = json_array_get(pairs, i);
            const char *outcome = json_string_value(json_object_get(pair, "outcome"));
            if (!outcome || !json_string_value(json_object_get(pair, "task_id"))) continue;
            const bool is_change = strcmp(outcome, order[0]) == 0 || strcmp(outcome, order[1]) == 0;
            if (order[pass] ? strcmp(outcome, order[pass]) != 0 : is_change) continue;
            add_sample(r, pair, base, sft);
            n_added++;
        }
    if (json_array_size(pairs) > n_added)
        ag_str_printf(r->out, "<p class=\"soft\">%zu of %zu tasks are shown; all of them are in the evaluation's folder.</p>\n",
                      n_added, json_array_size(pairs));
    json_decref(base);
    json_decref(sft);
}

/* ---- answers while it trained ------------------------------------------------------------------------------------------ */
/* The first and the newest line of metrics.jsonl that hold answers; NULL where there is none. The caller frees both. */
static void load_training_answers(const ag_report *r, json_t **first, json_t **last)
{
    ag_map map;
    ag_err ignored;
    *first = *last = NULL;
    if (!r->logging_dir || ag_map_open(&map, ag_path_join(r->arena, r->logging_dir, "metrics.jsonl"), &ignored)) return;
    const char *text = (const char *)map.bytes;
    static const char mark[] = "\"samples\": [";
    for (size_t at = 0, n = map.n <= LARGEST_FILE ? map.n : 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t n_line = end ? (size_t)(end - text) - at : n - at;
        json_t *line = NULL;
        if (memmem(text + at, n_line, mark, sizeof mark - 1) && ag_json_parse(&line, text + at, n_line, "metrics.jsonl", &ignored) == AG_OK &&
            json_is_array(json_object_get(line, "samples"))) {
            if (!*first) *first = json_incref(line);
            json_decref(*last);
            *last = json_incref(line);
        }
        ag_json_free(&line);
        at += n_line + 1;
    }
    ag_map_close(&map);
}

static void add_training_answers(ag_report *r)
{
    json_t *first, *last;
    load_training_answers(r, &first, &last);
    const json_t *before = json_object_get(first, "samples"), *after = json_object_get(last, "samples");
    const json_int_t begin = json_integer_value(json_object_get(first, "step")), end = json_integer_value(json_object_get(last, "step"));
    if (json_array_size(after) > 0) ag_report_section(r, "Answers while it trained");
    for (size_t i = 0; i < json_array_size(after) && i < MOST_SAMPLES; i++) {
        ag_str_add(r->out, "<article>");
        add_text(r, "asked", json_object_get(json_array_get(after, i), "prompt"));
        ag_str_add(r->out, "<div class=\"pair\">");
        add_text(r, begin == 0 ? "before the first step" : ag_arena_printf(r->arena, "behind step %lld", (long long)begin),
                 json_object_get(json_array_get(before, i), "answer"));
        if (end != begin)
            add_text(r, ag_arena_printf(r->arena, "behind step %lld", (long long)end), json_object_get(json_array_get(after, i), "answer"));
        ag_str_add(r->out, "</div></article>\n");
    }
    if (json_array_size(after) > 0) ag_report_end(r);
    json_decref(first);
    json_decref(last);
}

void ag_report_samples(ag_report *r)
{
    add_training_answers(r);
    json_t *comparison = load(r, "comparison.json");
    if (!json_is_object(comparison)) {
        ag_json_free(&comparison);
        return;
    }
    ag_report_section(r, "Before and after, on rows that it never saw");
    add_figures(r, comparison);
    add_samples(r, json_object_get(comparison, "pairs"));
    ag_report_end(r);
    ag_json_free(&comparison);
}
