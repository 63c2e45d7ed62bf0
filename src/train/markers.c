#define _GNU_SOURCE
#include "train/markers.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct ag_markers {
    const ag_train_job *job;
    int fd;
    uint64_t last_ns;
    char host[128];
    ag_str line;
    ag_arena arena;
};

static void write_time(ag_json_writer *w)
{
    struct timespec now;
    struct tm utc;
    char text[64];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    const size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + n, sizeof text - n, ".%03ldZ", now.tv_nsec / 1000000);
    ag_jw_string(w, "timestamp_utc", text);
}

static void write_envelope(ag_json_writer *w, ag_markers *m, const char *kind)
{
    const ag_train_config *c = m->job->config;
    const uint64_t now = ag_clock_ns();
    m->last_ns = now > m->last_ns ? now : m->last_ns + 1;
    ag_jw_string(w, "schema_version", "bkl.f0_correlation.v1");
    ag_jw_string(w, "record_kind", kind);
    ag_jw_string(w, "agoge_run_id", c->telemetry.run_id ? c->telemetry.run_id : c->run_name);
    ag_jw_object(w, "host");
    ag_jw_string(w, "hostname", m->host);
    ag_jw_end(w);
    ag_jw_object(w, "gpu");
    ag_jw_null(w, "pci_bus_id");
    ag_jw_null(w, "uuid");
    ag_jw_null(w, "name");
    ag_jw_null(w, "compute_capability");
    ag_jw_end(w);
    write_time(w);
    ag_jw_uint(w, "monotonic_ns", m->last_ns);
    ag_jw_object(w, "collector");
    ag_jw_string(w, "id", "agoge-forger");
    ag_jw_string(w, "version", "0.1.0");
    ag_jw_end(w);
    ag_jw_null(w, "cadence_ms");
}

static void count_or_null(ag_json_writer *w, const char *key, int64_t n)
{
    if (n < 0)
        ag_jw_null(w, key);
    else
        ag_jw_int(w, key, n);
}

static void compose(ag_markers *m, const ag_marker *k)
{
    const ag_train_config *c = m->job->config;
    ag_str_clear(&m->line);
    ag_json_writer w = {.out = &m->line, .indent = -1, .ascii = true};
    ag_jw_object(&w, NULL);
    write_envelope(&w, m, "agoge_marker");
    ag_jw_string(&w, "event", k->event);
    ag_jw_string(&w, "model_id", c->model_id);
    ag_jw_string(&w, "model_revision", c->revision ? c->revision : "unpinned");
    ag_jw_object(&w, "dataset");
    ag_jw_string(&w, "id", ag_path_base(c->dataset_path));
    ag_jw_string(&w, "split", "train");
    ag_jw_null(&w, "config_digest");
    ag_jw_end(&w);
    ag_jw_string(&w, "phase", k->phase);
    ag_jw_int(&w, "global_step", k->step);
    ag_jw_null(&w, "microstep");
    count_or_null(&w, "tokens_accepted", k->n_tokens);
    count_or_null(&w, "examples_accepted", k->n_examples);
    if (k->has_loss) {
        ag_jw_object(&w, "loss");
        ag_jw_double(&w, "value", k->loss);
        ag_jw_string(&w, "unit", "1");
        ag_jw_string(&w, "status", isfinite(k->loss) ? "ok" : "unavailable");
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_str_add_char(&m->line, '\n');
}

void ag_markers_write(ag_markers *m, const ag_marker *marker)
{
    if (!m || m->fd < 0) return;
    compose(m, marker);
    for (size_t at = 0; at < m->line.n;) {
        const ssize_t n = write(m->fd, m->line.text + at, m->line.n - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            ag_log(AG_LOG_WARN, "the marker stream cannot be written (%s); it ends here, the run goes on", strerror(n < 0 ? errno : ENOSPC));
            close(m->fd);
            m->fd = -1;
            return;
        }
        at += (size_t)n;
    }
}

static void write_request(ag_markers *m, const char *dir)
{
    const ag_train_config *c = m->job->config;
    ag_str text = {0};
    ag_err err;
    ag_json_writer w = {.out = &text, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    write_envelope(&w, m, "agoge_profile_window_request");
    ag_jw_bool(&w, "enabled", false);
    ag_jw_string(&w, "phase", "train");
    ag_jw_int(&w, "start_step", c->telemetry.profile_window.start_step);
    ag_jw_int(&w, "end_step", c->telemetry.profile_window.end_step);
    ag_jw_null(&w, "profile_window_id");
    ag_jw_string(&w, "backend", c->telemetry.profile_window.backend);
    ag_jw_object(&w, "backends");
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"torch", "nsight_systems", "nsight_compute", "cupti"};
        ag_jw_object(&w, names[i]);
        ag_jw_string(&w, "status", "unsupported");
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_string(&w, "reason", "profile window disabled");
    ag_jw_end(&w);
    ag_str_add_char(&text, '\n');
    if (ag_file_publish(ag_path_join(&m->arena, dir, "profile-window-request.json"), text.text, text.n, &err))
        ag_log(AG_LOG_WARN, "%s; the run goes on", err.text);
    ag_str_free(&text);
}

ag_markers *ag_markers_open(const ag_train_job *job)
{
    if (!job->config->telemetry.emit_markers) return NULL;
    ag_err err;
    ag_markers *m = calloc(1, sizeof *m);
    if (!m) ag_out_of_memory(sizeof *m);
    m->job = job;
    m->fd = -1;
    if (gethostname(m->host, sizeof m->host - 1)) strcpy(m->host, "unknown");
    const char *dir = ag_arena_printf(&m->arena, "runs/%s/telemetry", job->config->run_name);
    const char *path = ag_path_join(&m->arena, dir, "agoge-markers.jsonl");
    if (ag_make_dirs(dir, &err)) {
        ag_log(AG_LOG_WARN, "%s; the run goes on without markers", err.text);
    } else {
        m->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
        if (m->fd < 0) ag_log(AG_LOG_WARN, "%s: %s; the run goes on without markers", path, strerror(errno));
        write_request(m, dir);
    }
    ag_markers_write(m, &(ag_marker){.event = "run_start", .phase = "setup", .n_tokens = -1, .n_examples = -1});
    return m;
}

void ag_markers_close(ag_markers **markers)
{
    if (!markers || !*markers) return;
    if ((*markers)->fd >= 0) close((*markers)->fd);
    ag_str_free(&(*markers)->line);
    ag_arena_free(&(*markers)->arena);
    free(*markers);
    *markers = NULL;
}
