/* sample: telemetry of GPU 0 while a run goes on. */
#define _GNU_SOURCE
#include "kernels/tools/bkl_command.h"

#include "base/fs.h"
#include "lab/f0_clock.h"
#include "lab/gpu_sampler.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    const char *run_id, *out, *capability_out, *window;
    int64_t cadence_ms, duration_s, pid;
} sample_options;

static const int64_t reopen_ns = 5000000000;

static volatile sig_atomic_t stop_asked;
static void ask_to_stop(int signal_number) { stop_asked = signal_number; }

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One write a line, so that a reader never sees half of one unless the disk is full. */
static ag_status append(int fd, const char *path, const ag_str *line, ag_err *err)
{
    size_t at = 0;
    while (at < line->n) {
        const ssize_t n = write(fd, line->text + at, line->n - at);
        if (n < 0 && errno != EINTR) return ag_fail_errno(err, errno, "%s: the sample could not be written", path);
        if (n > 0) at += (size_t)n;
    }
    return AG_OK;
}

/* A lost card keeps its library's state; starting the library anew is the only way to see it come back. */
static void reopen_when_lost(ag_nvml *nvml, int64_t *last_ns)
{
    unsigned count = 0;
    const int code = nvml->gpu_count(nvml, &count);
    const ag_f0_status state = ag_nvml_status(code);
    unsigned power;
    const bool lost = state == AG_F0_DEVICE_LOST || nvml->open_code || (code == 0 && ag_nvml_status(nvml->power_mw(nvml, &power)) == AG_F0_DEVICE_LOST);
    if (!lost || now_ns() - *last_ns < reopen_ns) return;
    *last_ns = now_ns();
    ag_nvml_close(nvml);
    ag_nvml_open(nvml, getenv("BKL_NVML_LIBRARY"));
}

static ag_status sample_until_end(const sample_options *o, const ag_gpu_sampler *sampler, ag_nvml *nvml, int fd, size_t *n, ag_err *err)
{
    const int64_t period = o->cadence_ms * 1000000, begin = now_ns();
    const int64_t end = o->duration_s ? begin + o->duration_s * 1000000000 : INT64_MAX;
    int64_t next = begin, last_open = begin;
    ag_str line = {0};
    ag_status status = AG_OK;
    while (!status && !stop_asked && now_ns() < end && (!o->pid || kill((pid_t)o->pid, 0) == 0 || errno == EPERM)) {
        ag_str_clear(&line);
        ag_gpu_sample_add(&line, sampler, nvml);
        status = append(fd, o->out, &line, err);
        *n += !status;
        reopen_when_lost(nvml, &last_open);
        next += period;
        if (next < now_ns()) next = now_ns(); /* a machine that slept does not catch up */
        const struct timespec until = {next / 1000000000, next % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
    ag_str_free(&line);
    return status;
}

static ag_status sample(const sample_options *o, ag_nvml *nvml, json_t **snapshot, ag_err *err)
{
    char timestamp[40];
    ag_clock_observation now;
    ag_clock_observe(&now, AG_CLOCK_NO_ROLE, timestamp);
    const ag_capability_context context = {o->run_id, bkl_hostname(), timestamp, now.monotonic_ns, NULL};
    *snapshot = ag_capability_discover(nvml, &context);
    const char *device = json_string_value(json_object_get(*snapshot, "device_status"));
    if (strcmp(device, "ok") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "there is no GPU to sample (%s%s%s); `bkl nvml-capability --live` says more", device, nvml->detail[0] ? ": " : "", nvml->detail);
    if (o->capability_out) AG_TRY(bkl_json_publish(o->capability_out, *snapshot, err));
    ag_arena arena = {0};
    ag_status status = ag_make_dirs(ag_path_dir(&arena, o->out), err);
    ag_arena_free(&arena);
    AG_TRY(status);
    const int fd = open(o->out, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return ag_fail_errno(err, errno, "%s: cannot be written", o->out);
    const ag_gpu_sampler sampler = {o->run_id, bkl_hostname(), o->cadence_ms, *snapshot, o->window};
    size_t n = 0;
    status = sample_until_end(o, &sampler, nvml, fd, &n, err);
    if (close(fd) != 0 && !status) status = ag_fail_errno(err, errno, "%s: the samples could not be written", o->out);
    if (!status) fprintf(stderr, "%zu sample(s) in %s\n", n, o->out);
    return status;
}

static int run(int argc, char **argv)
{
    sample_options o = {.cadence_ms = 500};
    CLI_PARSE(&bkl_sample, &o, argc, argv);
    struct sigaction on_stop = {.sa_handler = ask_to_stop};
    sigaction(SIGINT, &on_stop, NULL);
    sigaction(SIGTERM, &on_stop, NULL);
    ag_nvml nvml;
    ag_nvml_open(&nvml, getenv("BKL_NVML_LIBRARY"));
    json_t *snapshot = NULL;
    ag_err err;
    ag_status status = sample(&o, &nvml, &snapshot, &err);
    json_decref(snapshot);
    ag_nvml_close(&nvml);
    return status ? cli_fail(&err) : 0;
}

static const cli_option table[] = {
    CLI_STRING("agoge-run-id", sample_options, run_id, "ID", "the run that the samples belong to", CLI_REQUIRED),
    CLI_STRING("out", sample_options, out, "F", "samples are appended to this file, JSONL", CLI_REQUIRED),
    CLI_STRING("capability-out", sample_options, capability_out, "F", "write the capability snapshot there", 0),
    CLI_STRING("profile-window", sample_options, window, "ID", "the profile window that the samples belong to", 0),
    CLI_INT("cadence-ms", sample_options, cadence_ms, "N", "milliseconds from sample to sample (500)", 10, 3600000),
    CLI_INT("duration-s", sample_options, duration_s, "N", "stop after so many seconds (0: when told to)", 0, 1 << 30),
    CLI_INT("pid", sample_options, pid, "N", "stop when this process is gone", 0, 1 << 30),
    CLI_END};
const cli_command bkl_sample = {"sample", NULL, "record power, clocks, memory and load of GPU 0 while something runs", NULL, table, run};
