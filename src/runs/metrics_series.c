#include "runs/metrics_series.h"

#include "base/fs.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_FILE = 256 << 20 };

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static int64_t whole(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : 0;
}

/* A step that was taken before is taken again by a resumed run: what came behind it is void. */
static void add_step(ag_series *s, const json_t *line, int64_t step)
{
    while (s->n_steps > 0 && s->steps[s->n_steps - 1].step >= step) s->n_steps--;
    while (s->n_evals > 0 && s->evals[s->n_evals - 1].step >= step) s->n_evals--;
    s->steps[s->n_steps++] = (ag_step_point){.step = step,
                                             .loss = number(line, "loss"),
                                             .lr = number(line, "lr"),
                                             .grad_norm = number(line, "grad_norm"),
                                             .tok_s = number(line, "tok_s"),
                                             .ms = number(line, "ms"),
                                             .tokens = whole(line, "tokens")};
}

static bool add_line(ag_series *s, const json_t *line)
{
    const json_t *step = json_object_get(line, "step");
    if (!json_is_integer(step)) return false;
    if (json_object_get(line, "eval_loss"))
        s->evals[s->n_evals++] = (ag_eval_point){
            .step = json_integer_value(step), .targets = whole(line, "eval_targets"), .loss = number(line, "eval_loss")};
    else if (json_object_get(line, "loss"))
        add_step(s, line, json_integer_value(step));
    return true;
}

static void read_lines(ag_series *s, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        if (!end) break; /* still being written */
        json_t *line = NULL;
        ag_err ignored;
        const size_t n_line = (size_t)(end - text) - at;
        if (n_line > 0 && (ag_json_parse_nan(&line, text + at, n_line, "metrics", &ignored) || !add_line(s, line)))
            s->n_unreadable++;
        ag_json_free(&line);
        at += n_line + 1;
    }
}

ag_status ag_series_read(ag_series *out, const char *path, ag_arena *arena, ag_err *err)
{
    ag_map map;
    *out = (ag_series){0};
    AG_TRY(ag_map_open(&map, path, err));
    if (map.n > LARGEST_FILE) {
        const size_t n = map.n;
        ag_map_close(&map);
        return ag_fail(err, AG_E_FORMAT, "%s has %zu bytes; at most %d are drawn", path, n, LARGEST_FILE);
    }
    size_t n_lines = 1;
    for (size_t i = 0; i < map.n; i++) n_lines += map.bytes[i] == '\n';
    out->steps = ag_arena_array(arena, n_lines, sizeof *out->steps);
    out->evals = ag_arena_array(arena, n_lines, sizeof *out->evals);
    read_lines(out, (const char *)map.bytes, map.n);
    ag_map_close(&map);
    for (size_t i = 0; i < out->n_steps; i++) {
        out->tokens += out->steps[i].tokens;
        if (isfinite(out->steps[i].ms)) out->seconds += out->steps[i].ms * 1e-3;
    }
    return AG_OK;
}
