#include "train/replay.h"

#include "base/fs.h"
#include "train/checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum { MANIFEST_MAX_BYTES = 16 << 20, METRICS_MAX_BYTES = 1 << 30 };

/* ---- metrics.jsonl --------------------------------------------------------------------------------------------------- */
static ag_status read_line(ag_replay_line *line, bool *is_step, const char *text, size_t n, const char *name, ag_arena *arena, ag_err *err)
{
    json_t *root;
    *is_step = false;
    AG_TRY(ag_json_parse(&root, text, n, name, err));
    const json_t *loss = json_object_get(root, "loss"), *norm = json_object_get(root, "grad_norm"), *step = json_object_get(root, "step");
    if (json_is_integer(step) && json_is_number(loss) && json_is_number(norm)) {
        const char *cpu = json_string_value(json_object_get(root, "cpu"));
        *line = (ag_replay_line){.step = json_integer_value(step), .loss = json_number_value(loss), .grad_norm = json_number_value(norm),
                                 .cpu = cpu ? ag_arena_strdup(arena, cpu) : NULL};
        *is_step = true;
    }
    ag_json_free(&root);
    return AG_OK;
}

static ag_status read_metrics(ag_replay_record *r, ag_err *err)
{
    ag_map map;
    size_t room = 0;
    AG_TRY(ag_map_open(&map, r->files.metrics, err));
    ag_status status = AG_OK;
    if (map.n > METRICS_MAX_BYTES)
        status =
            ag_fail(err, AG_E_UNSUPPORTED, "%s: has over %d bytes; cut it to the steps in question", r->files.metrics, METRICS_MAX_BYTES);
    for (size_t at = 0; at < map.n && !status;) {
        const char *text = (const char *)map.bytes + at, *newline = memchr(text, '\n', map.n - at);
        const size_t n = newline ? (size_t)(newline - text) : map.n - at;
        if (r->n_lines == room) {
            ag_replay_line *lines = ag_arena_array(&r->arena, room = room ? 2 * room : 256, sizeof *lines);
            if (r->n_lines) memcpy(lines, r->lines, r->n_lines * sizeof *lines);
            r->lines = lines;
        }
        bool is_step = false;
        if (newline)
            status = read_line(&r->lines[r->n_lines], &is_step, text, n, r->files.metrics, &r->arena,
                               err); /* a last line without one was cut */
        /* Steps rise; a run that went back to an earlier checkpoint by other means may repeat some. */
        if (is_step) {
            const ag_replay_line line = r->lines[r->n_lines];
            while (r->n_lines > 0 && r->lines[r->n_lines - 1].step >= line.step) r->n_lines--;
            r->lines[r->n_lines++] = line;
        }
        at += n + 1;
    }
    ag_map_close(&map);
    return status;
}

ag_status ag_replay_record_open(ag_replay_record *out, const ag_replay_files *files, ag_err *err)
{
    *out = (ag_replay_record){.files = *files};
    ag_status status = ag_json_load(&out->manifest, files->manifest, MANIFEST_MAX_BYTES, err);
    if (!status) {
        out->config = json_object_get(out->manifest, "config");
        if (!json_is_object(out->config))
            status = ag_fail(err, AG_E_FORMAT, "%s: holds no config; give the run's own manifest", files->manifest);
    }
    if (!status) status = read_metrics(out, err);
    if (status) ag_replay_record_close(out);
    return status;
}

void ag_replay_record_close(ag_replay_record *record)
{
    ag_json_free(&record->manifest);
    ag_arena_free(&record->arena);
    *record = (ag_replay_record){0};
}

/* ---- where to begin, and at which level ------------------------------------------------------------------------------ */
static ag_status fail_no_checkpoint(const ag_replay_record *r, const char *text, ag_err *err)
{
    ag_arena arena = {0};
    ag_str there = {0};
    char **names;
    size_t n;
    ag_status status = ag_dir_list(&names, &n, r->files.checkpoints, &arena, err);
    for (size_t i = 0; !status && i < n; i++)
        if (ag_checkpoint_step(r->files.checkpoints, names[i]) >= 0) ag_str_printf(&there, "%s%s", there.n ? ", " : "", names[i]);
    if (!status)
        status = ag_fail(err, AG_E_NOT_FOUND, "--from %.80s: is no checkpoint of this record; there are: start%s%.400s", text,
                         there.n ? ", " : "", there.n ? there.text : "");
    ag_str_free(&there);
    ag_arena_free(&arena);
    return status;
}

ag_status ag_replay_from(int64_t *step, const ag_replay_record *r, const char *text, ag_err *err)
{
    *step = 0;
    if (strcmp(text, "start") == 0) return AG_OK;
    if (strchr(text, '/') || strncmp(text, "checkpoint-", 11) != 0)
        return ag_fail(err, AG_E_USAGE, "--from takes checkpoint-<step> or start, found '%.80s'", text);
    *step = ag_checkpoint_step(r->files.checkpoints, text);
    return *step >= 0 ? AG_OK : fail_no_checkpoint(r, text, err);
}

ag_status ag_replay_level(ag_cpu_level *out, const ag_replay_record *r, int64_t from, int64_t n_steps, ag_err *err)
{
    const json_t *report = json_object_get(json_object_get(r->manifest, "metrics"), "cpu_report");
    const char *cpu = NULL;
    if (json_is_object(json_object_get(json_object_get(r->manifest, "metrics"), "gpu_report")))
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: the run was computed on a GPU or its emulator, whose steps are not replayed",
                       r->files.manifest);
    for (size_t i = 0; i < r->n_lines; i++) {
        const ag_replay_line *line = &r->lines[i];
        if (line->step <= from || line->step - from > n_steps || !line->cpu) continue;
        if (cpu && strcmp(cpu, line->cpu) != 0)
            return ag_fail(
                err, AG_E_UNSUPPORTED,
                "the steps to replay were computed at different levels: %s up to step %lld, then %s; replay the two parts apart", cpu,
                (long long)line->step - 1, line->cpu);
        cpu = line->cpu;
    }
    if (!cpu) cpu = json_string_value(json_object_get(report, "numerics"));
    if (!cpu) cpu = json_string_value(json_object_get(report, "level"));
    if (!cpu)
        return ag_fail(err, AG_E_FORMAT, "%s: does not say at which CPU level the run was made; name it with --cpu", r->files.manifest);
    char level[32];
    const size_t n = strcspn(cpu, "+");
    if (n >= sizeof level) return ag_fail(err, AG_E_FORMAT, "%s: '%.60s' is no CPU level; name it with --cpu", r->files.manifest, cpu);
    memcpy(level, cpu, n);
    level[n] = 0;
    AG_TRY(ag_cpu_level_parse(out, level, err));
    if (!ag_cpu_has_level(*out) || strcmp(ag_cpu_numerics_name(*out), cpu) != 0)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "the run was computed at '%s', which this machine cannot do (its best is '%s'); replay it where it can be, or "
                       "name another level with --cpu to see how far that goes",
                       cpu, ag_cpu_numerics_name(ag_cpu_best_level()));
    return AG_OK;
}
