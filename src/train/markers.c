#define _GNU_SOURCE
#include "train/markers.h"

#include "base/canonical_json.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "lab/nvml.h"

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
    ag_nvml_identity gpu;   /* texts are empty on the CPU, and where the driver does not tell */
    char config_digest[80]; /* "sha256:…" of the canonical JSON of the config */
    const char *dir, *path;
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

const char *ag_markers_run_id(const ag_train_job *job)
{
    return job->config->telemetry.run_id ? job->config->telemetry.run_id : job->config->run_name;
}

static const char *text_or_null(const char *text) { return *text ? text : NULL; }

/* Samples of the card are joined by its uuid, which the management library knows; an emulated device has none. */
static void identify_gpu(ag_markers *m)
{
    const ag_device *device = m->job->device;
    if (!device || device->info.emulated) return;
    ag_nvml nvml;
    ag_nvml_open(&nvml, NULL);
    if (nvml.identity(&nvml, &m->gpu)) {
        m->gpu = (ag_nvml_identity){0};
        snprintf(m->gpu.name, sizeof m->gpu.name, "%.127s", device->info.name);
        snprintf(m->gpu.compute_capability, sizeof m->gpu.compute_capability, "%d.%d", device->info.major, device->info.minor);
    }
    ag_nvml_close(&nvml);
}

static void write_envelope(ag_json_writer *w, ag_markers *m, const char *kind)
{
    const uint64_t now = ag_clock_ns();
    m->last_ns = now > m->last_ns ? now : m->last_ns + 1;
    ag_jw_string(w, "schema_version", "bkl.f0_correlation.v1");
    ag_jw_string(w, "record_kind", kind);
    ag_jw_string(w, "agoge_run_id", ag_markers_run_id(m->job));
    ag_jw_object(w, "host");
    ag_jw_string(w, "hostname", m->host);
    ag_jw_end(w);
    ag_jw_object(w, "gpu");
    ag_jw_string(w, "pci_bus_id", text_or_null(m->gpu.pci_bus_id));
    ag_jw_string(w, "uuid", text_or_null(m->gpu.uuid));
    ag_jw_string(w, "name", text_or_null(m->gpu.name));
    ag_jw_string(w, "compute_capability", text_or_null(m->gpu.compute_capability));
    ag_jw_end(w);
    write_time(w);
    ag_jw_uint(w, "monotonic_ns", m->last_ns);
    ag_jw_object(w, "collector");
    ag_jw_string(w, "id", "agoge-forger");
    ag_jw_string(w, "version", m->job->record && m->job->record->version ? m->job->record->version : "unknown");
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

static void compose_marker(ag_markers *m, const ag_marker *k)
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
    ag_jw_string(&w, "config_digest", m->config_digest);
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
    if (k->tok_s > 0) {
        ag_jw_object(&w, "throughput_tokens_per_s");
        ag_jw_double(&w, "value", k->tok_s);
        ag_jw_string(&w, "unit", "token/s");
        ag_jw_string(&w, "status", "ok");
        ag_jw_end(&w);
    }
    if (k->window_id) ag_jw_string(&w, "profile_window_ref", k->window_id);
    ag_jw_end(&w);
    ag_str_add_char(&m->line, '\n');
}

void ag_markers_write(ag_markers *m, const ag_marker *marker)
{
    if (!m || m->fd < 0) return;
    compose_marker(m, marker);
    for (size_t at = 0; at < m->line.n;) {
        const ssize_t n = write(m->fd, m->line.text + at, m->line.n - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            ag_log(AG_LOG_WARN, "the marker stream cannot be written (%s); it ends here, the run goes on",
                   strerror(n < 0 ? errno : ENOSPC));
            close(m->fd);
            m->fd = -1;
            return;
        }
        at += (size_t)n;
    }
}

bool ag_markers_publish_text(ag_markers *m, const char *file, const char *text, size_t n)
{
    ag_err err;
    if (!m) return false;
    if (!ag_file_publish(ag_path_join(&m->arena, m->dir, file), text, n, &err)) return true;
    ag_log(AG_LOG_WARN, "%s; the run goes on", err.text);
    return false;
}

bool ag_markers_publish(ag_markers *m, const char *file, const char *record_kind, ag_markers_compose *compose, void *user)
{
    if (!m) return false;
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    write_envelope(&w, m, record_kind);
    compose(user, &w);
    ag_jw_end(&w);
    ag_str_add_char(&text, '\n');
    const bool done = ag_markers_publish_text(m, file, text.text, text.n);
    ag_str_free(&text);
    return done;
}

/* The digest of the config as a bundle's config/locked.json holds it, without that file's newline. */
static void digest_config(ag_markers *m)
{
    ag_str text = {0};
    ag_err err;
    json_t *root;
    ag_json_writer w = {.out = &text, .indent = -1};
    ag_train_config_write(m->job->config, &w, NULL);
    if (!ag_json_parse(&root, text.text, text.n, "the config", &err)) {
        const ag_sha256 digest = ag_json_canonical_digest(root);
        snprintf(m->config_digest, sizeof m->config_digest, "sha256:%s", digest.hex);
        ag_json_free(&root);
    }
    ag_str_free(&text);
}

static void open_stream(ag_markers *m)
{
    const char *path = ag_path_join(&m->arena, m->dir, "agoge-markers.jsonl");
    m->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (m->fd < 0)
        ag_log(AG_LOG_WARN, "%s: %s; the run goes on without markers", path, strerror(errno));
    else
        m->path = path;
}

ag_markers *ag_markers_open(const ag_train_job *job)
{
    ag_err err;
    if (job->record && job->record->is_secondary) return NULL;
    ag_markers *m = calloc(1, sizeof *m);
    if (!m) ag_out_of_memory(sizeof *m);
    m->job = job;
    m->fd = -1;
    if (gethostname(m->host, sizeof m->host - 1) || !m->host[0]) strcpy(m->host, "unknown");
    digest_config(m);
    identify_gpu(m);
    m->dir = ag_arena_printf(&m->arena, "runs/%s/telemetry", job->config->run_name);
    if (ag_make_dirs(m->dir, &err)) {
        ag_log(AG_LOG_WARN, "%s; the run goes on without telemetry", err.text);
        ag_markers_close(&m);
        return NULL;
    }
    if (job->config->telemetry.emit_markers) open_stream(m);
    ag_markers_write(m, &(ag_marker){.event = "run_start", .phase = "setup", .n_tokens = -1, .n_examples = -1});
    return m;
}

const char *ag_markers_path(const ag_markers *m) { return m ? m->path : NULL; }
const char *ag_markers_dir(const ag_markers *m) { return m ? m->dir : NULL; }

void ag_markers_close(ag_markers **markers)
{
    if (!markers || !*markers) return;
    if ((*markers)->fd >= 0) close((*markers)->fd);
    ag_str_free(&(*markers)->line);
    ag_arena_free(&(*markers)->arena);
    free(*markers);
    *markers = NULL;
}
