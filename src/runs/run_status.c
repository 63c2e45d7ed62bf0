#include "runs/run_status.h"

#include "base/fs.h"
#include "base/json.h"
#include "runs/adapter_check.h"
#include "runs/base_check.h"
#include "runs/report_table.h"
#include "runs/trainer_check.h"
#include "seal/artifact_index.h"

#include <string.h>

/* ---- looking ----------------------------------------------------------------------------------------------------- */
typedef struct {
    ag_run_status *s;
    const ag_run_status_options *options;
    const char *access;
    ag_arena *arena;
} look;

static void check_adapter(ag_adapter_report *report, const look *l, const char *name)
{
    const ag_adapter_check_options options = {.allow_unsafe = l->options->allow_unsafe, .hub_cache = l->options->hub_cache};
    const char *dir = name ? ag_path_join(l->arena, l->access, name) : l->access;
    const char *shown = name ? ag_path_join(l->arena, l->s->place.real, name) : l->s->place.real;
    ag_adapter_check(report, dir, shown, &options, l->arena);
}

static const char *fault_of(const ag_adapter_report *report, const look *l)
{
    return report->config_usable && report->weights_usable ? NULL : ag_arena_strdup(l->arena, report->why.text);
}

static void look_at_resume(const look *l, const ag_adapter_report *latest)
{
    ag_run_status *s = l->s;
    ag_err why;
    if (!s->scan.latest) {
        s->why_not_resume =
            s->scan.n ? "no checkpoint is whole; train again, or name an older run" : "there is no checkpoint yet";
        return;
    }
    s->why_not_resume = fault_of(latest, l);
    if (s->why_not_resume) return;
    const char *dir = ag_path_join(l->arena, l->access, s->scan.latest->name);
    s->resume_ready =
        ag_trainer_check(dir, s->latest_path, s->scan.latest->step, latest->shapes, latest->n_shapes, &why) == AG_OK;
    if (!s->resume_ready) s->why_not_resume = ag_arena_strdup(l->arena, why.text);
}

static void look_at_merged(const look *l)
{
    ag_run_status *s = l->s;
    ag_artifact_index index;
    ag_description d;
    ag_err why;
    if (!s->place.merged) {
        s->why_not_merged = "there is no such folder; export-final-model makes it";
        return;
    }
    ag_status status = ag_artifact_index_verify(&index, s->place.merged, l->options->n_threads > 0 ? l->options->n_threads : 1,
                                                l->arena, &why);
    if (!status && index.n == 0) status = ag_fail(&why, AG_E_FORMAT, "%s: its index lists nothing", s->place.merged);
    if (!status) status = ag_model_folder_check(&d, s->place.merged, l->arena, &why);
    if (status) s->why_not_merged = ag_arena_strdup(l->arena, why.text);
    else s->merged_path = s->place.merged;
}

ag_status ag_run_status_make(ag_run_status *out, const ag_run_place *place, const ag_run_status_options *options,
                             ag_arena *arena, ag_err *err)
{
    *out = (ag_run_status){.place = *place, .allow_unsafe = options->allow_unsafe};
    const look l = {.s = out, .options = options, .access = options->access ? options->access : place->real, .arena = arena};
    ag_adapter_report final = {0}, latest = {0};
    AG_TRY(ag_run_scan_make(&out->scan, l.access, options->allow_unsafe, arena, err));
    if (out->scan.latest) {
        out->latest_path = ag_path_join(arena, place->real, out->scan.latest->name);
        check_adapter(&latest, &l, out->scan.latest->name);
    }
    if (out->scan.has_final_adapter) check_adapter(&final, &l, NULL);
    const ag_adapter_report *source = out->scan.has_final_adapter ? &final : out->scan.latest ? &latest : NULL;
    if (source) {
        out->source = source == &final ? AG_SOURCE_FINAL_ADAPTER : AG_SOURCE_CHECKPOINT;
        out->source_path = source == &final ? place->real : out->latest_path;
        out->base_model = source->base_model ? source->base_model : latest.base_model;
        out->base_revision = source->base_model ? source->revision : latest.revision;
        out->export_ready = source->config_usable && source->weights_usable;
        out->why_not_export = fault_of(source, &l);
    } else {
        out->why_not_export = out->scan.unsafe
                                  ? ag_arena_printf(arena,
                                                    "%s/%s could hold code and hides what it lies beside; move it away, or "
                                                    "pass --allow-unsafe-serialization",
                                                    place->real, out->scan.unsafe)
                                  : "there is neither a final adapter nor a whole checkpoint";
    }
    look_at_resume(&l, &latest);
    look_at_merged(&l);
    return AG_OK;
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */
static const char *kind_text(const ag_run_status *s)
{
    return s->source == AG_SOURCE_FINAL_ADAPTER ? "final_adapter" : s->source == AG_SOURCE_CHECKPOINT ? "checkpoint" : NULL;
}

static const char *final_path(const ag_run_status *s) { return s->scan.has_final_adapter ? s->place.real : NULL; }

static void put_presence(ag_json_writer *w, const char *key, const char *path)
{
    ag_jw_object(w, key);
    ag_jw_bool(w, "present", path != NULL);
    ag_jw_string(w, "path", path);
    ag_jw_end(w);
}

static void put_checkpoints(ag_json_writer *w, const ag_run_status *s)
{
    ag_jw_object(w, "checkpoints");
    ag_jw_uint(w, "valid_count", s->scan.n_valid);
    ag_jw_array(w, "steps");
    for (size_t i = 0; i < s->scan.n; i++)
        if (!s->scan.entries[i].lacks) ag_jw_int(w, NULL, s->scan.entries[i].step);
    ag_jw_end(w);
    if (s->scan.latest) ag_jw_int(w, "latest_step", s->scan.latest->step);
    else ag_jw_null(w, "latest_step");
    ag_jw_string(w, "latest_path", s->latest_path);
    ag_jw_end(w);
}

void ag_run_status_json(ag_str *out, const ag_run_status *s)
{
    ag_json_writer w = {.out = out, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    ag_jw_int(&w, "schema_version", 1);
    ag_jw_string(&w, "run_dir", s->place.real);
    ag_jw_string(&w, "run_name", s->place.name);
    ag_jw_bool(&w, "allow_unsafe_serialization", s->allow_unsafe);
    put_checkpoints(&w, s);
    put_presence(&w, "final_adapter", final_path(s));
    put_presence(&w, "merged_model", s->merged_path);
    ag_jw_string(&w, "base_model", s->base_model);
    ag_jw_string(&w, "base_revision", s->base_revision);
    ag_jw_object(&w, "resume");
    ag_jw_bool(&w, "ready", s->resume_ready);
    ag_jw_string(&w, "checkpoint_path", s->latest_path);
    ag_jw_end(&w);
    ag_jw_object(&w, "export");
    ag_jw_bool(&w, "ready", s->export_ready);
    ag_jw_string(&w, "source_path", s->source_path);
    ag_jw_string(&w, "source_kind", kind_text(s));
    ag_jw_end(&w);
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
}

void ag_run_status_table(ag_str *out, const ag_run_status *s)
{
    ag_table t = {0};
    ag_str steps = {0};
    for (size_t i = 0; i < s->scan.n; i++)
        if (!s->scan.entries[i].lacks) ag_str_printf(&steps, "%s%lld", steps.n ? ", " : "", (long long)s->scan.entries[i].step);
    ag_table_int(&t, "schema_version", 1);
    ag_table_text(&t, "run_name", s->place.name);
    ag_table_text(&t, "run_dir", s->place.real);
    ag_table_bool(&t, "allow_unsafe_serialization", s->allow_unsafe);
    ag_table_int(&t, "valid_checkpoints", (long long)s->scan.n_valid);
    ag_table_text(&t, "checkpoint_steps", steps.n ? steps.text : NULL);
    if (s->scan.latest) ag_table_int(&t, "latest_checkpoint_step", s->scan.latest->step);
    else ag_table_text(&t, "latest_checkpoint_step", NULL);
    ag_table_text(&t, "latest_checkpoint_path", s->latest_path);
    ag_table_bool(&t, "final_adapter", s->scan.has_final_adapter);
    ag_table_text(&t, "final_adapter_path", final_path(s));
    ag_table_bool(&t, "merged_model", s->merged_path != NULL);
    ag_table_text(&t, "merged_model_path", s->merged_path);
    ag_table_text(&t, "base_model", s->base_model);
    ag_table_text(&t, "base_revision", s->base_revision);
    ag_table_bool(&t, "resume_ready", s->resume_ready);
    ag_table_text(&t, "resume_checkpoint_path", s->latest_path);
    ag_table_bool(&t, "export_ready", s->export_ready);
    ag_table_text(&t, "export_source_kind", kind_text(s));
    ag_table_text(&t, "export_source_path", s->source_path);
    ag_table_write(out, &t);
    ag_str_free(&steps);
}
