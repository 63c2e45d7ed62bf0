#include "train/profile_window.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "train/profile_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EVENTS = 1 << 17, MAX_STEPS = 4096 };
static const char FILE_NAME[] = "profile-window.json";

typedef struct {
    int64_t step;
    uint64_t start_ns, ns;
} step_time;

struct ag_profile_window {
    const ag_train_job *job;
    char id[AG_PROFILE_ID_MAX];
    int64_t start_step, end_step, actual_end_step; /* the last: -1 before the window's first step was done */
    bool is_supported, is_started, is_ended;
    uint64_t start_ns, end_ns;
    double profiled_s, unprofiled_s;
    int64_t n_profiled, n_unprofiled;
    ag_profile ops;
    step_time *steps; /* MAX_STEPS */
    size_t n_steps;
    void *block;
    size_t block_bytes;
    ag_err error;     /* what went wrong with measuring; code AG_OK: nothing */
    const char *path; /* of the published summary */
    ag_arena arena;
};

/* ---- the request ----------------------------------------------------------------------------------------------------- */
static const char *const backends[] = {"torch", "nsight_systems", "nsight_compute", "cupti"};
enum { N_BACKENDS = sizeof backends / sizeof *backends };

static bool is_supported(const char *backend) { return strcmp(backend, backends[0]) == 0; }

static void write_backend(ag_json_writer *w, const char *name)
{
    ag_jw_object(w, name);
    ag_jw_string(w, "status", is_supported(name) ? "ok" : "unsupported");
    ag_jw_end(w);
}

static void compose_request(void *user, ag_json_writer *w)
{
    const ag_train_job *job = user;
    const ag_train_config *c = job->config;
    const char *backend = c->telemetry.profile_window.backend;
    char id[AG_PROFILE_ID_MAX];
    bool is_known = false;
    ag_profile_window_id(id, ag_markers_run_id(job), c->telemetry.profile_window.start_step, c->telemetry.profile_window.end_step);
    ag_jw_bool(w, "enabled", c->telemetry.profile_window.enabled);
    ag_jw_string(w, "phase", "train");
    ag_jw_int(w, "start_step", c->telemetry.profile_window.start_step);
    ag_jw_int(w, "end_step", c->telemetry.profile_window.end_step);
    ag_jw_string(w, "profile_window_id", c->telemetry.profile_window.enabled ? id : NULL);
    ag_jw_string(w, "backend", backend);
    ag_jw_object(w, "backends");
    for (int i = 0; i < N_BACKENDS; i++) {
        write_backend(w, backends[i]);
        is_known = is_known || strcmp(backends[i], backend) == 0;
    }
    if (!is_known) write_backend(w, backend);
    ag_jw_end(w);
    ag_jw_string(w, "reason", c->telemetry.profile_window.enabled ? NULL : "profile window disabled");
}

/* ---- the window ------------------------------------------------------------------------------------------------------ */
static void make_room(ag_profile_window *w)
{
    ag_layout layout = {0};
    for (int pass = 0; pass < 2; pass++) {
        w->ops.events = ag_layout_place(&layout, MAX_EVENTS * sizeof *w->ops.events);
        w->steps = ag_layout_place(&layout, MAX_STEPS * sizeof *w->steps);
        if (pass == 1) break;
        w->block_bytes = layout.bytes;
        if (ag_pages_alloc(&w->block, layout.bytes, "the events of a profile window", &w->error)) {
            w->block = NULL;
            return;
        }
        layout = (ag_layout){.base = w->block};
    }
    w->ops.room = MAX_EVENTS;
}

ag_profile_window *ag_profile_window_open(const ag_train_job *job, ag_markers *markers)
{
    const ag_train_config *c = job->config;
    (void)ag_markers_publish(markers, "profile-window-request.json", "agoge_profile_window_request", compose_request, (void *)job);
    if (!c->telemetry.profile_window.enabled || !markers) return NULL;
    ag_profile_window *w = calloc(1, sizeof *w);
    if (!w) ag_out_of_memory(sizeof *w);
    w->job = job;
    w->start_step = c->telemetry.profile_window.start_step;
    w->end_step = c->telemetry.profile_window.end_step;
    w->actual_end_step = -1;
    w->is_supported = is_supported(c->telemetry.profile_window.backend) && !job->device; /* what runs on a device passes no op of ours */
    ag_profile_window_id(w->id, ag_markers_run_id(job), w->start_step, w->end_step);
    if (w->is_supported)
        make_room(w);
    else if (job->device)
        ag_log(AG_LOG_WARN, "the profile window measures ops of the CPU, and this run computes on a device, so nothing is measured; use "
                            "the vendor's profiler");
    else
        ag_log(AG_LOG_WARN, "the profile window's backend '%s' is not supported, so nothing is measured; 'torch' is agoge's own profiler",
               c->telemetry.profile_window.backend);
    return w;
}

void ag_profile_window_close(ag_profile_window **window)
{
    if (!window || !*window) return;
    if ((*window)->block) ag_pages_free((*window)->block, (*window)->block_bytes);
    ag_arena_free(&(*window)->arena);
    free(*window);
    *window = NULL;
}

static bool can_measure(const ag_profile_window *w) { return w->is_supported && w->block; }
static bool is_inside(const ag_profile_window *w, int64_t step) { return step >= w->start_step && step <= w->end_step; }

ag_profile *ag_profile_window_ops(ag_profile_window *w) { return w && can_measure(w) ? &w->ops : NULL; }
bool ag_profile_window_starts(const ag_profile_window *w, int64_t step) { return w && !w->is_started && is_inside(w, step); }
bool ag_profile_window_ends(const ag_profile_window *w, int64_t step) { return w && w->is_started && step == w->end_step; }
const char *ag_profile_window_ref(const ag_profile_window *w, int64_t step) { return w && is_inside(w, step) ? w->id : NULL; }
const char *ag_profile_window_is_open(const ag_profile_window *w) { return w && w->is_started && !w->is_ended ? w->id : NULL; }
const char *ag_profile_window_id_of(const ag_profile_window *w) { return w ? w->id : NULL; }
const char *ag_profile_window_path(const ag_profile_window *w) { return w ? w->path : NULL; }

void ag_profile_window_step_begin(ag_profile_window *w, int64_t step)
{
    if (!w || !is_inside(w, step)) return;
    w->ops.is_on = can_measure(w);
    if (w->is_started) return;
    w->is_started = true;
    w->start_ns = ag_clock_ns();
}

void ag_profile_window_step_end(ag_profile_window *w, int64_t step, uint64_t ns)
{
    if (!w) return;
    w->ops.is_on = false;
    if (!is_inside(w, step)) {
        w->unprofiled_s += (double)ns * 1e-9;
        w->n_unprofiled++;
        return;
    }
    w->end_ns = ag_clock_ns();
    w->actual_end_step = step;
    w->is_ended = step == w->end_step;
    w->profiled_s += (double)ns * 1e-9;
    w->n_profiled++;
    if (w->block && w->n_steps < MAX_STEPS) w->steps[w->n_steps++] = (step_time){step, w->end_ns - ns, ns};
}

/* ---- the summary ----------------------------------------------------------------------------------------------------- */
static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest value that at least `share` of the n sorted ones do not exceed. */
static double percentile(const double *sorted, size_t n, double share)
{
    size_t rank = (size_t)(share * (double)n);
    if ((double)rank < share * (double)n) rank++;
    return sorted[rank > 0 ? rank - 1 : 0];
}

static void write_duration(ag_profile_window *w, ag_json_writer *j)
{
    double *us = ag_arena_array(&w->arena, w->ops.n_events, sizeof *us), sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < w->ops.n_events; i++)
        if (w->ops.events[i].depth == 0) us[n++] = (double)w->ops.events[i].ns * 1e-3;
    for (size_t i = 0; i < n; i++) sum += us[i];
    ag_jw_object(j, "kernel_duration");
    ag_jw_string(j, "status", n > 0 ? "ok" : w->is_supported ? "unavailable" : "unsupported");
    if (n > 0) {
        qsort(us, n, sizeof *us, ascending);
        ag_jw_double(j, "p50", percentile(us, n, 0.50));
        ag_jw_double(j, "p95", percentile(us, n, 0.95));
        ag_jw_double(j, "sum", sum);
        ag_jw_uint(j, "count", n);
    } else {
        ag_jw_null(j, "value");
        ag_jw_int(j, "count", 0);
    }
    ag_jw_string(j, "unit", "us");
    ag_jw_end(j);
}

static void mean_or_null(ag_json_writer *j, const char *key, double sum, int64_t n)
{
    if (n > 0) ag_jw_double(j, key, sum / (double)n);
    else ag_jw_null(j, key);
}

static void write_overhead(const ag_profile_window *w, ag_json_writer *j)
{
    const bool ok = can_measure(w) && w->n_profiled > 0 && w->n_unprofiled > 0;
    ag_jw_object(j, "overhead");
    ag_jw_string(j, "status", ok ? "ok" : "unavailable");
    if (!ok) ag_jw_string(j, "reason", "needs steps inside and outside of the window, and a profiler that runs");
    mean_or_null(j, "profiled_step_mean_s", w->profiled_s, w->n_profiled);
    mean_or_null(j, "unprofiled_step_mean_s", w->unprofiled_s, w->n_unprofiled);
    if (ok) ag_jw_double(j, "ratio", w->profiled_s / (double)w->n_profiled / (w->unprofiled_s / (double)w->n_unprofiled));
    else ag_jw_null(j, "ratio");
    ag_jw_end(j);
}

/* Ops that were called, the most expensive first. */
static size_t order_ops(const ag_profile_window *w, ag_profile_op order[AG_N_PROFILE_OPS])
{
    size_t n = 0;
    for (int op = 0; op < AG_N_PROFILE_OPS; op++) {
        if (w->ops.total[op].n == 0) continue;
        size_t at = n++;
        while (at > 0 && w->ops.total[order[at - 1]].ns < w->ops.total[op].ns) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = (ag_profile_op)op;
    }
    return n;
}

static void write_kernels(const ag_profile_window *w, ag_json_writer *j)
{
    ag_profile_op order[AG_N_PROFILE_OPS];
    const size_t n = order_ops(w, order);
    ag_jw_array(j, "kernels");
    for (size_t i = 0; i < n; i++) {
        const ag_profile_total *t = &w->ops.total[order[i]];
        ag_jw_object(j, NULL);
        ag_jw_string(j, "name", ag_profile_op_name(order[i]));
        ag_jw_uint(j, "count", t->n);
        ag_jw_double(j, "sum_us", (double)t->ns * 1e-3);
        ag_jw_double(j, "share", w->profiled_s > 0 ? (double)t->ns * 1e-9 / w->profiled_s : 0);
        ag_jw_double(j, "flop", t->flop);
        ag_jw_double(j, "bytes", t->bytes);
        ag_jw_double(j, "gflop_per_s", t->ns ? t->flop / (double)t->ns : 0);
        ag_jw_double(j, "gb_per_s", t->ns ? t->bytes / (double)t->ns : 0);
        ag_jw_end(j);
    }
    ag_jw_end(j);
}

/* Fields of a measurement that a CPU has nothing to say about. */
static void write_missing(ag_json_writer *j, const char *key, const char *status, const char *const *fields)
{
    ag_jw_object(j, key);
    ag_jw_string(j, "status", status);
    for (; fields && *fields; fields++) ag_jw_null(j, *fields);
    ag_jw_end(j);
}

static void compose_window(void *user, ag_json_writer *j)
{
    ag_profile_window *w = user;
    const bool reached = w->actual_end_step >= 0;
    ag_jw_string(j, "profile_window_id", w->id);
    ag_jw_string(j, "phase", "train");
    ag_jw_int(j, "start_step", w->start_step);
    ag_jw_int(j, "end_step", w->end_step);
    if (reached) ag_jw_int(j, "actual_end_step", w->actual_end_step);
    else ag_jw_null(j, "actual_end_step");
    ag_jw_bool(j, "complete", w->is_ended && w->n_profiled == w->end_step - w->start_step + 1);
    if (reached) {
        ag_jw_uint(j, "monotonic_ns_start", w->start_ns);
        ag_jw_uint(j, "monotonic_ns_end", w->end_ns);
    } else {
        ag_jw_null(j, "monotonic_ns_start");
        ag_jw_null(j, "monotonic_ns_end");
    }
    ag_jw_string(j, "backend", w->job->config->telemetry.profile_window.backend);
    ag_jw_string(j, "backend_status", can_measure(w) ? "ok" : w->is_supported ? "unavailable" : "unsupported");
    ag_jw_string(j, "profiler_error", w->error.code ? w->error.text : NULL);
    write_overhead(w, j);
    write_kernels(w, j);
    write_duration(w, j);
    write_missing(j, "sync", "unsupported", (const char *const[]){"count", "duration_us", NULL});
    write_missing(j, "transfers", "unsupported", (const char *const[]){"h2d_us", "d2h_us", NULL});
    write_missing(j, "graph_capture", "unavailable", NULL);
    write_missing(j, "allocator", "unavailable", NULL);
    ag_jw_string(j, "profiler_version", w->job->record && w->job->record->version ? w->job->record->version : "unknown");
    ag_jw_uint(j, "events", w->ops.n_events);
    ag_jw_uint(j, "events_dropped", w->ops.n_dropped);
}

/* ---- for people ------------------------------------------------------------------------------------------------------ */
static void compose_table(const ag_profile_window *w, ag_str *out)
{
    ag_profile_op order[AG_N_PROFILE_OPS];
    const size_t n = order_ops(w, order);
    double seconds = 0;
    ag_str_printf(out, "%s: %lld steps, %.3f s\n\n%-22s %9s %11s %7s %11s %9s %9s %9s\n", w->id, (long long)w->n_profiled, w->profiled_s,
                  "op", "calls", "ms", "share", "GFLOP", "GFLOP/s", "MB", "GB/s");
    for (size_t i = 0; i < n; i++) {
        const ag_profile_total *t = &w->ops.total[order[i]];
        const double s = (double)t->ns * 1e-9;
        seconds += s;
        ag_str_printf(out, "%-22s %9llu %11.3f %6.2f%% %11.3f %9.2f %9.1f %9.2f\n", ag_profile_op_name(order[i]),
                      (unsigned long long)t->n, s * 1e3, w->profiled_s > 0 ? 100 * s / w->profiled_s : 0, t->flop * 1e-9,
                      s > 0 ? t->flop * 1e-9 / s : 0, t->bytes * 1e-6, s > 0 ? t->bytes * 1e-9 / s : 0);
    }
    ag_str_printf(out, "%-22s %9s %11.3f %6.2f%%\n", "between ops", "", (w->profiled_s - seconds) * 1e3,
                  w->profiled_s > 0 ? 100 * (w->profiled_s - seconds) / w->profiled_s : 0);
    if (w->ops.n_dropped)
        ag_str_printf(out, "\n%llu of the calls are counted above and missing in the trace\n", (unsigned long long)w->ops.n_dropped);
}

static void add_trace_event(ag_str *out, const char *name, const char *category, uint64_t start_ns, uint64_t origin_ns, uint64_t ns)
{
    ag_str_printf(out, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f", name, category,
                  (double)(start_ns - origin_ns) * 1e-3, (double)ns * 1e-3);
}

/* The format is that of Chrome's trace viewer; times are microseconds from the window's start. */
static void compose_trace(const ag_profile_window *w, ag_str *out)
{
    ag_str name = {0};
    ag_json_writer j = {.out = &name, .indent = -1, .ascii = true};
    ag_str_printf(&name, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":");
    ag_jw_object(&j, NULL);
    ag_jw_string(&j, "name", w->id);
    ag_jw_end(&j);
    ag_str_printf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n%s}", name.text);
    ag_str_free(&name);
    for (size_t i = 0; i < w->n_steps; i++) {
        char step[32];
        snprintf(step, sizeof step, "step %lld", (long long)w->steps[i].step);
        add_trace_event(out, step, "step", w->steps[i].start_ns < w->start_ns ? w->start_ns : w->steps[i].start_ns, w->start_ns,
                        w->steps[i].ns);
        ag_str_add(out, "}");
    }
    for (size_t i = 0; i < w->ops.n_events; i++) {
        const ag_profile_event *e = &w->ops.events[i];
        add_trace_event(out, ag_profile_op_name((ag_profile_op)e->op), "op", e->start_ns, w->start_ns, e->ns);
        ag_str_printf(out, ",\"args\":{\"flop\":%.0f,\"bytes\":%.0f}}", (double)e->flop, (double)e->bytes);
    }
    ag_str_add(out, "\n]}\n");
}

void ag_profile_window_publish(ag_profile_window *w, ag_markers *markers)
{
    if (!w || !markers) return;
    if (ag_markers_publish(markers, FILE_NAME, "agoge_profile_window", compose_window, w))
        w->path = ag_path_join(&w->arena, ag_markers_dir(markers), FILE_NAME);
    if (!can_measure(w) || w->actual_end_step < 0) return;
    ag_str text = {0};
    compose_table(w, &text);
    (void)ag_markers_publish_text(markers, "profile-table.txt", text.text, text.n);
    ag_str_clear(&text);
    compose_trace(w, &text);
    (void)ag_markers_publish_text(markers, "profile-trace.json", text.text, text.n);
    ag_str_free(&text);
}
