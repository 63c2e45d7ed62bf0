#define _GNU_SOURCE
#include "train/metrics.h"

#include "base/arena.h"
#include "base/fs.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct ag_metrics {
    ag_arena arena;
    const char *lines_path, *events_path;
    int lines, events;
    ag_str buffer; /* reused from step to step */
};

static ag_status append(int fd, const char *path, const ag_str *record, ag_err *err)
{
    for (size_t at = 0; at < record->n;) {
        const ssize_t n = write(fd, record->text + at, record->n - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ag_fail_errno(err, n < 0 ? errno : ENOSPC, "%s: the step's numbers could not be written", path);
        at += (size_t)n;
    }
    return AG_OK;
}

/* ---- TensorBoard ------------------------------------------------------------------------------------------------------
 * A record is  u64 length | u32 masked crc32c(length) | data | u32 masked crc32c(data), little-endian; data is a protobuf Event:
 * wall_time 1: double, step 2: int64, file_version 3: string, summary 5: { value 1: { tag 1: string, simple_value 2: float } }. */
static uint32_t crc32c(const unsigned char *bytes, size_t n)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    return ~crc;
}

static uint32_t masked_crc32c(const void *bytes, size_t n)
{
    const uint32_t crc = crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void add_varint(ag_str *s, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) ag_str_add_char(s, (char)(value | 0x80));
    ag_str_add_char(s, (char)value);
}

static void add_bytes_field(ag_str *s, int field, const char *bytes, size_t n)
{
    add_varint(s, (uint64_t)field << 3 | 2);
    add_varint(s, n);
    ag_str_add_n(s, bytes, n);
}

static void add_fixed_field(ag_str *s, int field, const void *value, size_t n) /* 8: double, 4: float */
{
    add_varint(s, (uint64_t)field << 3 | (n == 8 ? 1 : 5));
    ag_str_add_n(s, value, n);
}

static void begin_event(ag_str *event, int64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const double wall_time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    add_fixed_field(event, 1, &wall_time, sizeof wall_time);
    add_varint(event, 2 << 3);
    add_varint(event, (uint64_t)step);
}

static void add_scalar(ag_str *summary, const char *tag, double number)
{
    ag_str value = {0};
    const float single = (float)number;
    add_bytes_field(&value, 1, tag, strlen(tag));
    add_fixed_field(&value, 2, &single, sizeof single);
    add_bytes_field(summary, 1, value.text, value.n);
    ag_str_free(&value);
}

static ag_status write_event(ag_metrics *m, const ag_str *event, ag_err *err)
{
    const uint64_t length = event->n;
    const uint32_t length_crc = masked_crc32c(&length, sizeof length), data_crc = masked_crc32c(event->text, event->n);
    ag_str_clear(&m->buffer);
    ag_str_add_n(&m->buffer, (const char *)&length, sizeof length);
    ag_str_add_n(&m->buffer, (const char *)&length_crc, sizeof length_crc);
    ag_str_add_n(&m->buffer, event->text, event->n);
    ag_str_add_n(&m->buffer, (const char *)&data_crc, sizeof data_crc);
    return append(m->events, m->events_path, &m->buffer, err);
}

typedef struct {
    const char *tag;
    double value;
} scalar;

static ag_status write_scalars(ag_metrics *m, int64_t step, const scalar *scalars, int n, ag_err *err)
{
    ag_str event = {0}, summary = {0};
    begin_event(&event, step);
    for (int i = 0; i < n; i++) add_scalar(&summary, scalars[i].tag, scalars[i].value);
    add_bytes_field(&event, 5, summary.text, summary.n);
    ag_status status = write_event(m, &event, err);
    ag_str_free(&event);
    ag_str_free(&summary);
    return status;
}

/* ---- metrics.jsonl ---------------------------------------------------------------------------------------------------- */
/* Lines of steps up to `last`, whole ones only. */
static ag_status keep_lines(ag_metrics *m, int64_t last, ag_err *err)
{
    char *text;
    size_t n;
    if (!ag_path_is_file(m->lines_path)) return AG_OK;
    AG_TRY(ag_file_read(&text, &n, m->lines_path, (size_t)1 << 30, &m->arena, err));
    ag_str kept = {0};
    for (char *line = text, *end; (end = memchr(line, '\n', n - (size_t)(line - text))); line = end + 1) {
        json_t *object;
        int64_t step = INT64_MAX;
        ag_err ignored; /* a line that is not ours is dropped: it could not be drawn anyhow */
        if (ag_json_parse(&object, line, (size_t)(end - line), m->lines_path, &ignored)) continue;
        if (!ag_json_get_int(object, "step", 0, INT64_MAX, &step, m->lines_path, &ignored) && step <= last)
            ag_str_add_n(&kept, line, (size_t)(end - line) + 1);
        ag_json_free(&object);
    }
    ag_status status = ag_file_publish(m->lines_path, kept.text ? kept.text : "", kept.n, err);
    ag_str_free(&kept);
    return status;
}

static ag_status open_append(int *fd, const char *path, int extra_flags, ag_err *err)
{
    *fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | extra_flags, 0644);
    return *fd < 0 ? ag_fail_errno(err, errno, "%s: cannot be opened for writing", path) : AG_OK;
}

static ag_status open_files(ag_metrics *m, const char *dir, int64_t resumed_step, ag_err *err)
{
    AG_TRY(ag_make_dirs(dir, err));
    char host[128] = "localhost";
    if (gethostname(host, sizeof host - 1)) strcpy(host, "localhost");
    m->lines_path = ag_path_join(&m->arena, dir, "metrics.jsonl");
    m->events_path = ag_arena_printf(&m->arena, "%s/events.out.tfevents.%lld.%s.%d.%lld", dir, (long long)time(NULL), host,
                                     (int)getpid(), (long long)resumed_step);
    if (resumed_step > 0) AG_TRY(keep_lines(m, resumed_step, err));
    AG_TRY(open_append(&m->lines, m->lines_path, resumed_step > 0 ? 0 : O_TRUNC, err));
    AG_TRY(open_append(&m->events, m->events_path, O_TRUNC, err));

    ag_str event = {0};
    begin_event(&event, 0);
    add_bytes_field(&event, 3, "brain.Event:2", strlen("brain.Event:2"));
    ag_status status = write_event(m, &event, err);
    ag_str_free(&event);
    return status;
}

ag_status ag_metrics_open(ag_metrics **out, const char *dir, int64_t resumed_step, ag_err *err)
{
    ag_metrics *m = calloc(1, sizeof *m);
    if (!m) ag_out_of_memory(sizeof *m);
    m->lines = m->events = -1;
    ag_status status = open_files(m, dir, resumed_step, err);
    if (status) ag_metrics_close(&m);
    *out = m;
    return status;
}

void ag_metrics_close(ag_metrics **metrics)
{
    if (!metrics || !*metrics) return;
    ag_metrics *m = *metrics;
    if (m->lines >= 0) close(m->lines);
    if (m->events >= 0) close(m->events);
    ag_str_free(&m->buffer);
    ag_arena_free(&m->arena);
    free(m);
    *metrics = NULL;
}

ag_status ag_metrics_step(ag_metrics *m, const ag_step_metrics *s, ag_err *err)
{
    ag_str_clear(&m->buffer);
    ag_json_writer w = {.out = &m->buffer};
    ag_jw_object(&w, NULL);
    ag_jw_int(&w, "step", s->step);
    ag_jw_double(&w, "loss", s->loss);
    ag_jw_double(&w, "lr", s->lr);
    ag_jw_double(&w, "grad_norm", s->grad_norm);
    ag_jw_int(&w, "tokens", s->n_tokens);
    ag_jw_int(&w, "supervised_tokens", s->n_targets);
    ag_jw_double(&w, "tok_s", s->tok_s);
    ag_jw_double(&w, "ms", s->ms);
    ag_jw_string(&w, s->backend ? "backend" : "cpu", s->backend ? s->backend : s->cpu);
    ag_jw_int(&w, "n_steps", s->n_steps);
    ag_jw_uint(&w, "peak_rss_bytes", s->peak_rss_bytes);
    ag_jw_end(&w);
    ag_str_add_char(&m->buffer, '\n');
    AG_TRY(append(m->lines, m->lines_path, &m->buffer, err));
    return write_scalars(m, s->step, (const scalar[]){{"train/loss", s->loss}, {"train/learning_rate", s->lr},
                         {"train/grad_norm", s->grad_norm}, {"train/tokens_per_second", s->tok_s}}, 4, err);
}

ag_status ag_metrics_samples(ag_metrics *m, int64_t step, const char *const *prompts, const char *const *answers, size_t n, ag_err *err)
{
    ag_str_clear(&m->buffer);
    ag_json_writer w = {.out = &m->buffer};
    ag_jw_object(&w, NULL);
    ag_jw_int(&w, "step", step);
    ag_jw_array(&w, "samples");
    for (size_t i = 0; i < n; i++) {
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "prompt", prompts[i]);
        ag_jw_string(&w, "answer", answers[i]);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_end(&w);
    ag_str_add_char(&m->buffer, '\n');
    return append(m->lines, m->lines_path, &m->buffer, err);
}

ag_status ag_metrics_eval(ag_metrics *m, int64_t step, double loss, int64_t n_targets, ag_err *err)
{
    ag_str_clear(&m->buffer);
    ag_json_writer w = {.out = &m->buffer};
    ag_jw_object(&w, NULL);
    ag_jw_int(&w, "step", step);
    ag_jw_double(&w, "eval_loss", loss);
    ag_jw_int(&w, "eval_targets", n_targets);
    ag_jw_end(&w);
    ag_str_add_char(&m->buffer, '\n');
    AG_TRY(append(m->lines, m->lines_path, &m->buffer, err));
    return write_scalars(m, step, (const scalar[]){{"eval/loss", loss}}, 1, err);
}
