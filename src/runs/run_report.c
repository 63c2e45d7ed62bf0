#include "runs/run_report.h"

#include "base/fs.h"
#include "base/json.h"
#include "runs/run_report_parts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LARGEST_MANIFEST = 4 << 20 };

/* ---- pieces ------------------------------------------------------------------------------------------------------ */
void ag_report_section(ag_report *r, const char *title) { ag_str_printf(r->out, "<section><h2>%s</h2>\n", title); }
void ag_report_end(ag_report *r) { ag_str_add(r->out, "</section>\n"); }

void ag_report_row(ag_report *r, const char *label, const char *value)
{
    ag_str_add(r->out, "<tr><th scope=\"row\">");
    ag_html_add(r->out, label);
    ag_str_add(r->out, "</th><td>");
    ag_html_add(r->out, value);
    ag_str_add(r->out, "</td></tr>\n");
}

void ag_report_row_printf(ag_report *r, const char *label, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ag_report_row(r, label, text);
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */
static void add_fact(ag_report *r, const char *label, const char *value)
{
    ag_str_add(r->out, "<li><b>");
    ag_html_add(r->out, value);
    ag_str_printf(r->out, "</b><span class=\"soft\">%s</span></li>\n", label);
}

static const char *duration(double seconds, ag_arena *arena)
{
    const long long s = (long long)(seconds + 0.5);
    if (s >= 3600) return ag_arena_printf(arena, "%lld h %02lld min", s / 3600, s / 60 % 60);
    return s >= 60 ? ag_arena_printf(arena, "%lld min %02lld s", s / 60, s % 60) : ag_arena_printf(arena, "%.1f s", seconds);
}

/* 1,536,000 */
static const char *grouped(int64_t n, ag_arena *arena)
{
    const char *text = ag_arena_printf(arena, "%lld", (long long)(n % 1000));
    for (n /= 1000; n > 0; n /= 1000) {
        const int width = (int)strcspn(text, ",");
        text = ag_arena_printf(arena, "%lld,%s%s", (long long)(n % 1000), width == 1 ? "00" : width == 2 ? "0" : "", text);
    }
    return text;
}

static void add_head(ag_report *r)
{
    const ag_series *s = &r->series;
    ag_str_add(r->out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                       "content=\"width=device-width,initial-scale=1\">\n"
                       "<title>");
    ag_html_add(r->out, r->status->place.name);
    ag_str_add(r->out, " – training run</title>\n<style>\n");
    ag_str_add_n(r->out, ag_report_style, ag_report_style_bytes);
    ag_str_add(r->out, "</style>\n</head>\n<body>\n<header><h1>");
    ag_html_add(r->out, r->status->place.name);
    ag_str_add(r->out, "</h1>\n<p class=\"soft\">");
    const char *base = r->status->base_model;
    if (base) {
        ag_str_add(r->out, "fine-tuned from ");
        ag_html_add(r->out, base);
    } else {
        ag_str_add(r->out, "a training run");
    }
    ag_str_add(r->out, "</p>\n<ul class=\"facts\">\n");
    if (s->n_steps > 0) {
        add_fact(r, "steps", ag_arena_printf(r->arena, "%lld", (long long)s->steps[s->n_steps - 1].step));
        add_fact(r, "last loss", ag_arena_printf(r->arena, "%.4f", s->steps[s->n_steps - 1].loss));
        if (s->n_evals > 0)
            add_fact(r, s->n_evals > 1 ? "held-out loss, first and last" : "held-out loss",
                     s->n_evals > 1 ? ag_arena_printf(r->arena, "%.4f → %.4f", s->evals[0].loss, s->evals[s->n_evals - 1].loss)
                                    : ag_arena_printf(r->arena, "%.4f", s->evals[0].loss));
        add_fact(r, "tokens", grouped(s->tokens, r->arena));
        if (s->seconds > 0) {
            add_fact(r, "in steps", duration(s->seconds, r->arena));
            add_fact(r, "tokens a second", ag_arena_printf(r->arena, "%.0f", (double)s->tokens / s->seconds));
        }
    }
    ag_str_add(r->out, "</ul></header>\n<main>\n");
}

/* ---- readiness --------------------------------------------------------------------------------------------------- */
static void add_status(ag_report *r)
{
    const ag_run_status *s = r->status;
    ag_str steps = {0};
    for (size_t i = 0; i < s->scan.n; i++)
        if (!s->scan.entries[i].lacks) ag_str_printf(&steps, "%s%lld", steps.n ? ", " : "", (long long)s->scan.entries[i].step);
    ag_report_section(r, "What it is ready for");
    ag_str_add(r->out, "<div class=\"scroll\"><table>\n");
    ag_report_row(r, "folder", s->place.real);
    ag_report_row(r, "checkpoints", steps.n ? steps.text : "none");
    ag_report_row(r, "final adapter", s->scan.has_final_adapter ? "yes" : "no");
    ag_report_row(r, "merged model", s->merged_path ? s->merged_path : "no");
    ag_report_row(r, "resume", s->resume_ready ? "ready" : ag_arena_printf(r->arena, "not ready: %s", s->why_not_resume));
    ag_report_row(r, "export", s->export_ready ? "ready" : ag_arena_printf(r->arena, "not ready: %s", s->why_not_export));
    ag_str_add(r->out, "</table></div>\n");
    ag_report_end(r);
    ag_str_free(&steps);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */
static const char *sibling(const ag_run_place *place, const char *folder, ag_arena *arena)
{
    const char *root = ag_path_dir(arena, ag_path_dir(arena, place->logical));
    const char *path = ag_path_join(arena, ag_path_join(arena, root, folder), place->name);
    return ag_path_is_dir(path) ? path : NULL;
}

static ag_status find_records(ag_report *r, const ag_run_report_options *options, ag_err *err)
{
    char *dir;
    r->logging_dir = sibling(&r->status->place, "runs", r->arena);
    r->eval_dir = sibling(&r->status->place, "eval", r->arena);
    if (options->logging_dir) {
        AG_TRY(ag_path_existing_dir(&dir, options->logging_dir, r->arena, err));
        r->logging_dir = dir;
    }
    if (options->eval_dir) {
        AG_TRY(ag_path_existing_dir(&dir, options->eval_dir, r->arena, err));
        r->eval_dir = dir;
    }
    if (!r->logging_dir) return AG_OK;
    const char *metrics = ag_path_join(r->arena, r->logging_dir, "metrics.jsonl"),
               *manifest = ag_path_join(r->arena, r->logging_dir, "manifest.json");
    if (ag_path_is_file(metrics)) AG_TRY(ag_series_read(&r->series, metrics, r->arena, err));
    return ag_path_is_file(manifest) ? ag_json_load(&r->manifest, manifest, LARGEST_MANIFEST, err) : AG_OK;
}

static void write_page(ag_report *r)
{
    add_head(r);
    if (r->series.n_steps > 0) ag_report_curves(r);
    else ag_str_add(r->out, "<p>There are no curves: no metrics.jsonl of this run was found.</p>\n");
    if (r->eval_dir) ag_report_samples(r);
    add_status(r);
    ag_report_records(r);
    ag_str_add(r->out,
               "</main>\n<footer>Written by agoge; this page loads nothing from anywhere.</footer>\n</body>\n</html>\n");
}

ag_status ag_run_report_write(ag_str *out, const ag_run_report_options *options, const char **logging_dir, ag_arena *arena,
                              ag_err *err)
{
    ag_run_place place;
    ag_run_status status;
    AG_TRY(ag_run_place_find(&place, options->run_dir, NULL, arena, err));
    AG_TRY(ag_run_status_make(&status, &place,
                              &(ag_run_status_options){.hub_cache = options->hub_cache, .n_threads = options->n_threads}, arena,
                              err));
    ag_report r = {.out = out, .arena = arena, .status = &status};
    ag_status result = find_records(&r, options, err);
    if (!result && !status.scan.has_final_adapter && !status.scan.latest && r.series.n_steps == 0)
        result =
            ag_fail(err, AG_E_NOT_FOUND,
                    "%s has neither an adapter nor a checkpoint, and no metrics.jsonl of it was found; name a run's folder "
                    "(adapters/<run_name>), and its records with --logging-dir",
                    options->run_dir);
    if (!result) write_page(&r);
    if (logging_dir) *logging_dir = r.logging_dir;
    ag_json_free(&r.manifest);
    return result;
}
