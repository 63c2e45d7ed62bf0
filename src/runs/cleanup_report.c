#include "runs/cleanup.h"

#include "base/json.h"
#include "runs/report_table.h"

#include <stdio.h>

static double gib(uint64_t bytes) { return (double)bytes / (1 << 30); }

static void put_notes(ag_json_writer *w, const char *key, const char *word, const ag_cleanup_note *notes, size_t n)
{
    ag_jw_array(w, key);
    for (size_t i = 0; i < n; i++) {
        ag_jw_object(w, NULL);
        ag_jw_string(w, "path", notes[i].path);
        ag_jw_string(w, word, notes[i].why);
        ag_jw_end(w);
    }
    ag_jw_end(w);
}

void ag_cleanup_json(ag_str *out, const ag_cleanup *c)
{
    ag_json_writer w = {.out = out, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    ag_jw_int(&w, "schema_version", 1);
    ag_jw_string(&w, "run_dir", c->place.real);
    ag_jw_string(&w, "run_name", c->place.name);
    ag_jw_bool(&w, "dry_run", c->dry_run);
    ag_jw_int(&w, "keep_latest", c->keep_latest);
    ag_jw_bool(&w, "allow_unsafe_serialization", c->allow_unsafe);
    ag_jw_object(&w, "guard");
    ag_jw_bool(&w, "final_artifact", c->final_artifact);
    ag_jw_bool(&w, "forced", c->forced);
    ag_jw_end(&w);
    ag_jw_array(&w, "removed");
    for (size_t i = 0; i < c->n_removed; i++) {
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "path", c->removed[i].path);
        ag_jw_int(&w, "step", c->removed[i].step);
        ag_jw_uint(&w, "bytes", c->removed[i].bytes);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_array(&w, "kept");
    for (size_t i = 0; i < c->n_kept; i++) ag_jw_string(&w, NULL, c->kept[i]);
    ag_jw_end(&w);
    put_notes(&w, "skipped", "reason", c->skipped, c->n_skipped);
    put_notes(&w, "failed", "error", c->failed, c->n_failed);
    ag_jw_uint(&w, "bytes_reclaimed", c->bytes_reclaimed);
    ag_jw_bool(&w, "artifact_index_rewritten", c->index_rewritten);
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
}

void ag_cleanup_table(ag_str *out, const ag_cleanup *c)
{
    ag_table t = {0};
    char reclaimed[AG_TABLE_CELL_BYTES];
    snprintf(reclaimed, sizeof reclaimed, "%.2f", gib(c->bytes_reclaimed));
    ag_table_int(&t, "schema_version", 1);
    ag_table_text(&t, "run_name", c->place.name);
    ag_table_text(&t, "run_dir", c->place.real);
    ag_table_bool(&t, "dry_run", c->dry_run);
    ag_table_int(&t, "keep_latest", (long long)c->keep_latest);
    ag_table_bool(&t, "final_artifact", c->final_artifact);
    ag_table_bool(&t, "forced", c->forced);
    ag_table_int(&t, "checkpoints_removed", (long long)c->n_removed);
    ag_table_int(&t, "checkpoints_kept", (long long)c->n_kept);
    ag_table_int(&t, "checkpoints_skipped", (long long)c->n_skipped);
    ag_table_int(&t, "checkpoints_failed", (long long)c->n_failed);
    ag_table_int(&t, "bytes_reclaimed", (long long)c->bytes_reclaimed);
    ag_table_text(&t, "gib_reclaimed", reclaimed);
    ag_table_bool(&t, "artifact_index_rewritten", c->index_rewritten);
    ag_table_write(out, &t);
}

static void add_line(ag_str *out, const ag_cleanup *c, const char *verb, const char *path, const char *more)
{
    ag_str_add(out, c->dry_run ? "[dry-run] " : "");
    ag_str_add(out, verb);
    ag_str_add_char(out, ' ');
    ag_str_add_visible(out, path);
    if (*more) ag_str_add(out, ": ");
    ag_str_add_visible(out, more);
    ag_str_add_char(out, '\n');
}

void ag_cleanup_words(ag_str *out, const ag_cleanup *c)
{
    for (size_t i = 0; i < c->n_removed; i++) {
        char size[32];
        snprintf(size, sizeof size, "%.2f GiB", gib(c->removed[i].bytes));
        add_line(out, c, c->dry_run ? "would remove" : "removed", c->removed[i].path, size);
    }
    for (size_t i = 0; i < c->n_kept; i++) add_line(out, c, "kept", c->kept[i], "");
    for (size_t i = 0; i < c->n_skipped; i++) add_line(out, c, "skipped", c->skipped[i].path, c->skipped[i].why);
    for (size_t i = 0; i < c->n_failed; i++) add_line(out, c, "failed", c->failed[i].path, c->failed[i].why);
    if (c->n_removed + c->n_failed == 0) add_line(out, c, "nothing to remove in", c->place.real, "");
    if (c->index_rewritten)
        ag_str_add(out, "warning: artifact_index.json was rewritten and has another digest; publish evaluation contracts after "
                        "cleaning up\n");
    if (c->forced && c->n_kept == 0 && c->n_removed > 0) {
        ag_str_add(out, c->dry_run ? "[dry-run] " : "");
        ag_str_printf(out, "warning: with no final adapter and no merged model, %s can no longer be resumed or exported\n",
                      c->dry_run ? "the run" : "this run");
    }
}
