#include "runs/run_report_parts.h"

#include "base/json.h"
#include "seal/artifact_index.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 400, DEEPEST = 8 };

/* ---- any JSON as rows -------------------------------------------------------------------------------------------- */
/* A leaf under its dotted path; arrays are leaves. */
static void add_leaves(ag_report *r, const char *path, const json_t *value, int depth, size_t *n)
{
    const char *key;
    json_t *item;
    if (*n >= MOST_ROWS) return;
    if (json_is_object(value) && json_object_size(value) > 0 && depth < DEEPEST) {
        json_object_foreach((json_t *)value, key, item)
            add_leaves(r, *path ? ag_arena_printf(r->arena, "%s.%s", path, key) : key, item, depth + 1, n);
        return;
    }
    (*n)++;
    if (json_is_string(value)) {
        ag_report_row(r, path, json_string_value(value));
        return;
    }
    ag_str text = {0};
    ag_json_writer w = {.out = &text};
    ag_jw_value(&w, NULL, value);
    ag_report_row(r, path, text.text);
    ag_str_free(&text);
}

static void add_object(ag_report *r, const char *title, const json_t *object)
{
    size_t n = 0;
    if (!json_is_object(object) || json_object_size(object) == 0) return;
    ag_str_printf(r->out, "<h3>%s</h3>\n<div class=\"scroll\"><table>\n", title);
    add_leaves(r, "", object, 0, &n);
    ag_str_add(r->out, "</table></div>\n");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static void add_memory(ag_report *r, const json_t *metrics)
{
    const json_t *cpu = json_object_get(metrics, "cpu_report");
    const double mib = 1 << 20, planned = json_number_value(json_object_get(cpu, "planned_bytes")),
                 peak = json_number_value(json_object_get(cpu, "peak_rss_bytes"));
    if (!json_is_object(cpu)) return;
    ag_report_section(r, "Memory and machine");
    ag_str_add(r->out, "<div class=\"scroll\"><table>\n");
    if (planned > 0) ag_report_row_printf(r, "planned", "%.1f MiB", planned / mib);
    if (peak > 0) ag_report_row_printf(r, "measured at its peak", "%.1f MiB", peak / mib);
    if (planned > 0 && peak > 0) ag_report_row_printf(r, "plan against truth", "%+.1f %%", 100 * (planned / peak - 1));
    static const char *const keys[] = {"processor", "numerics", "threads"};
    for (size_t i = 0; i < 3; i++) {
        const json_t *value = json_object_get(cpu, keys[i]);
        if (json_is_string(value)) ag_report_row(r, keys[i], json_string_value(value));
        if (json_is_integer(value)) ag_report_row_printf(r, keys[i], "%lld", (long long)json_integer_value(value));
    }
    ag_str_add(r->out, "</table></div>\n");
    ag_report_end(r);
}

/* ---- digests ----------------------------------------------------------------------------------------------------- */
static void add_digests(ag_report *r)
{
    ag_artifact_index index;
    ag_err ignored; /* a run without an index has no digests to show */
    if (ag_artifact_index_load(&index, r->status->place.real, r->arena, &ignored)) return;
    ag_report_section(r, "Digests");
    ag_str_printf(r->out, "<p>%zu files as artifact_index.json lists them%s.</p>\n", index.n,
                  index.has_provenance ? "; the index carries the provenance of a frozen split" : "");
    ag_str_add(r->out, "<div class=\"scroll\"><table>\n<tr><th scope=\"col\">file</th><th scope=\"col\" "
                       "class=\"n\">bytes</th><th scope=\"col\">SHA-256</th></tr>\n");
    for (size_t i = 0; i < index.n && i < MOST_ROWS; i++) {
        ag_str_add(r->out, "<tr><td>");
        ag_html_add(r->out, index.artifacts[i].file);
        ag_str_printf(r->out, "</td><td class=\"n\">%llu</td><td class=\"mono\">",
                      (unsigned long long)index.artifacts[i].size_bytes);
        ag_html_add(r->out, index.artifacts[i].sha256);
        ag_str_add(r->out, "</td></tr>\n");
    }
    ag_str_add(r->out, "</table></div>\n");
    if (index.n > MOST_ROWS) ag_str_printf(r->out, "<p class=\"soft\">The first %d are shown.</p>\n", MOST_ROWS);
    ag_report_end(r);
}

void ag_report_records(ag_report *r)
{
    const json_t *m = r->manifest;
    if (json_is_object(m)) {
        add_memory(r, json_object_get(m, "metrics"));
        ag_report_section(r, "What went in");
        add_object(r, "Configuration", json_object_get(m, "config"));
        add_object(r, "Model", json_object_get(m, "model_metadata"));
        add_object(r, "Tokenizer", json_object_get(m, "tokenizer"));
        add_object(r, "Dataset", json_object_get(m, "dataset"));
        add_object(r, "Environment", json_object_get(m, "environment"));
        add_object(r, "Git", json_object_get(m, "git"));
        ag_report_end(r);
    } else {
        ag_str_add(r->out, "<p class=\"soft\">There is no manifest.json of this run; a run writes it at its end.</p>\n");
    }
    add_digests(r);
}
