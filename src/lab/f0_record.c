#define _GNU_SOURCE
#include "lab/f0_record.h"

#include "base/fs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const kind_names[] = {"agoge_marker", "bkl_gpu_sample", "bkl_clock_skew"};
static const char *const status_names[] = {
#define X(name, text) text,
    AG_F0_STATUSES(X)
#undef X
};
static const struct {
    const char *key, *unit;
} readings[] = {
#define X(name, key, unit) {key, unit},
    AG_F0_READINGS(X)
#undef X
};

const char *ag_f0_kind_name(ag_f0_kind kind) { return kind_names[kind]; }
const char *ag_f0_status_name(ag_f0_status status) { return status_names[status]; }
const char *ag_f0_reading_key(ag_f0_reading reading) { return readings[reading].key; }
const char *ag_f0_reading_unit(ag_f0_reading reading) { return readings[reading].unit; }

bool ag_f0_status_find(ag_f0_status *out, const char *name)
{
    for (int i = 0; i < AG_F0_N_STATUSES; i++)
        if (strcmp(name, status_names[i]) == 0) {
            *out = (ag_f0_status)i;
            return true;
        }
    return false;
}

/* ---- time ------------------------------------------------------------------------------------------------------ */
static bool digits(const char *text, int n, int *value)
{
    *value = 0;
    for (int i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        *value = *value * 10 + (text[i] - '0');
    }
    return true;
}

static bool calendar(const char *text, struct tm *tm, int *microseconds)
{
    static const char shape[] = "0000-00-00T00:00:00";
    if (strlen(text) < sizeof shape) return false; /* at least the shape and Z */
    for (int i = 0; shape[i]; i++)
        if (shape[i] != '0' && text[i] != shape[i]) return false;
    if (!digits(text, 4, &tm->tm_year) || !digits(text + 5, 2, &tm->tm_mon) || !digits(text + 8, 2, &tm->tm_mday) ||
        !digits(text + 11, 2, &tm->tm_hour) || !digits(text + 14, 2, &tm->tm_min) || !digits(text + 17, 2, &tm->tm_sec))
        return false;
    *microseconds = 0;
    const char *at = text + 19;
    if (*at == '.') {
        int n = 0;
        for (at++; *at >= '0' && *at <= '9'; at++, n++)
            if (n < 6) *microseconds = *microseconds * 10 + (*at - '0');
        if (n == 0) return false;
        for (; n < 6; n++) *microseconds *= 10;
    }
    return strcmp(at, "Z") == 0;
}

ag_status ag_f0_timestamp_parse(int64_t *wall_ns, const char *text, ag_err *err)
{
    static const int month_days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    struct tm tm = {0};
    int microseconds;
    bool good = calendar(text, &tm, &microseconds);
    if (good) {
        const int year = tm.tm_year;
        const int leap = tm.tm_mon == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        good = year >= 1678 && year <= 2261 && tm.tm_mon >= 1 && tm.tm_mon <= 12 && tm.tm_mday >= 1 && tm.tm_hour <= 23 &&
               tm.tm_min <= 59 && tm.tm_sec <= 59 && tm.tm_mday <= month_days[tm.tm_mon - 1] + leap;
    }
    if (!good)
        return ag_fail(err, AG_E_FORMAT, "the timestamp '%s' is no UTC time; write it as 2030-01-02T03:04:05.678Z", text);
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *wall_ns = (int64_t)timegm(&tm) * 1000000000 + (int64_t)microseconds * 1000;
    return AG_OK;
}

void ag_f0_timestamp_print(char out[40], int64_t wall_ns)
{
    int64_t seconds = wall_ns / 1000000000, rest = wall_ns % 1000000000;
    if (rest < 0) {
        rest += 1000000000;
        seconds--;
    }
    struct tm tm;
    const time_t t = (time_t)seconds;
    gmtime_r(&t, &tm);
    size_t n = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &tm);
    if (rest) {
        n += (size_t)snprintf(out + n, 40 - n, ".%09lld", (long long)rest);
        while (out[n - 1] == '0') n--;
    }
    out[n] = 'Z';
    out[n + 1] = 0;
}

/* ---- parts of a record ------------------------------------------------------------------------------------------- */
/* A text that must be there and not be empty; a NUL inside would hide what follows. */
static ag_status need_text(const char **out, const json_t *object, const char *key, ag_err *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value) || json_string_length(value) == 0 || strlen(json_string_value(value)) != json_string_length(value))
        return ag_fail(err, AG_E_FORMAT, "'%s' must be a text that is not empty", key);
    *out = json_string_value(value);
    return AG_OK;
}

static ag_status optional_text(const char **out, const json_t *object, const char *key, ag_err *err)
{
    const json_t *value = json_object_get(object, key);
    *out = NULL;
    return value && !json_is_null(value) ? need_text(out, object, key, err) : AG_OK;
}

static ag_status need_count(int64_t *out, const json_t *object, const char *key, ag_err *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return ag_fail(err, AG_E_FORMAT, "'%s' must be a whole number of at least 0", key);
    *out = json_integer_value(value);
    return AG_OK;
}

static ag_status optional_count(int64_t *out, const json_t *object, const char *key, ag_err *err)
{
    const json_t *value = json_object_get(object, key);
    *out = AG_F0_NO_COUNT;
    return value && !json_is_null(value) ? need_count(out, object, key, err) : AG_OK;
}

static ag_status need_object(const json_t **out, const json_t *object, const char *key, ag_err *err)
{
    *out = json_object_get(object, key);
    if (!json_is_object(*out)) return ag_fail(err, AG_E_FORMAT, "'%s' must be an object", key);
    return AG_OK;
}

ag_status ag_f0_measurement_read(ag_f0_measurement *out, const json_t *value, const char *key, const char *unit, ag_err *err)
{
    if (!json_is_object(value)) return ag_fail(err, AG_E_FORMAT, "'%s' must be a measurement: {value, unit, status}", key);
    const json_t *number = json_object_get(value, "value");
    if (!number) return ag_fail(err, AG_E_FORMAT, "'%s' has no key 'value'; write null where nothing was measured", key);
    const char *status = json_string_value(json_object_get(value, "status"));
    if (!status || !ag_f0_status_find(&out->status, status))
        return ag_fail(err, AG_E_FORMAT, "'%s': the status '%s' is not known", key, status ? status : "(none)");
    const char *found = json_string_value(json_object_get(value, "unit"));
    if (!found || strcmp(found, unit) != 0)
        return ag_fail(err, AG_E_FORMAT, "'%s': the unit is '%s', expected '%s'", key, found ? found : "(none)", unit);
    out->value = 0;
    if (out->status != AG_F0_OK) {
        if (!json_is_null(number))
            return ag_fail(err, AG_E_FORMAT, "'%s' is %s and yet has a value; what was not measured is null, never a number", key,
                           ag_f0_status_name(out->status));
        return AG_OK;
    }
    if (!json_is_number(number) || !isfinite(json_number_value(number)))
        return ag_fail(err, AG_E_FORMAT, "'%s' is ok, so its value must be a finite number", key);
    out->value = json_number_value(number);
    if (strcmp(unit, "%") == 0 && (out->value < 0 || out->value > 100))
        return ag_fail(err, AG_E_FORMAT, "'%s' is %g %%, outside 0 to 100", key, out->value);
    return AG_OK;
}

ag_status ag_f0_gpu_read(ag_f0_gpu *out, const json_t *object, bool strict, ag_err *err)
{
    const struct {
        const char *key, **text;
    } parts[] = {{"pci_bus_id", &out->pci_bus_id},
                 {"uuid", &out->uuid},
                 {"name", &out->name},
                 {"compute_capability", &out->compute_capability}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const json_t *value = json_object_get(object, parts[i].key);
        *parts[i].text = NULL;
        if (!strict && json_is_string(value) && json_string_length(value) == 0) continue;
        if (optional_text(parts[i].text, object, parts[i].key, err)) return ag_err_prefix(err, "gpu");
    }
    return AG_OK;
}

static ag_status optional_measurement(const json_t *object, const char *key, const char *unit, ag_err *err)
{
    ag_f0_measurement ignored;
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) ? ag_f0_measurement_read(&ignored, value, key, unit, err) : AG_OK;
}

static ag_status read_marker(ag_f0_record *r, ag_err *err)
{
    const json_t *o = r->json, *dataset;
    const char *ignored;
    int64_t microstep;
    AG_TRY(need_text(&ignored, o, "model_id", err));
    AG_TRY(need_text(&ignored, o, "model_revision", err));
    AG_TRY(need_object(&dataset, o, "dataset", err));
    AG_TRY(need_text(&ignored, dataset, "id", err));
    AG_TRY(need_text(&ignored, dataset, "split", err));
    AG_TRY(optional_text(&ignored, dataset, "config_digest", err));
    AG_TRY(need_text(&r->phase, o, "phase", err));
    AG_TRY(need_count(&r->global_step, o, "global_step", err));
    AG_TRY(optional_count(&microstep, o, "microstep", err));
    AG_TRY(optional_count(&r->tokens_accepted, o, "tokens_accepted", err));
    AG_TRY(optional_count(&r->examples_accepted, o, "examples_accepted", err));
    AG_TRY(optional_measurement(o, "loss", "1", err));
    return optional_measurement(o, "throughput_tokens_per_s", "token/s", err);
}

ag_status ag_f0_throttle_check(const json_t *reasons, ag_f0_status status, ag_err *err)
{
    if (status != AG_F0_OK) {
        if (reasons && !json_is_null(reasons) && !(json_is_array(reasons) && json_array_size(reasons) == 0))
            return ag_fail(err, AG_E_FORMAT, "'throttle' is %s and yet has reasons", ag_f0_status_name(status));
        return AG_OK;
    }
    if (!json_is_array(reasons)) return ag_fail(err, AG_E_FORMAT, "'throttle' is ok, so its reasons must be a list of texts");
    size_t i;
    const json_t *reason;
    json_array_foreach(reasons, i, reason)
        if (!json_is_string(reason)) return ag_fail(err, AG_E_FORMAT, "'throttle': its reasons must be texts");
    return AG_OK;
}

static ag_status read_throttle(const json_t *o, ag_err *err)
{
    const json_t *throttle;
    AG_TRY(need_object(&throttle, o, "throttle", err));
    const char *name = json_string_value(json_object_get(throttle, "status"));
    ag_f0_status status;
    if (!name || !ag_f0_status_find(&status, name)) return ag_fail(err, AG_E_FORMAT, "'throttle' has no status that is known");
    return ag_f0_throttle_check(json_object_get(throttle, "reasons"), status, err);
}

static bool is_digest(const char *text)
{
    if (strncmp(text, "sha256:", 7) != 0 || strlen(text) != 7 + 64) return false;
    return strspn(text + 7, "0123456789abcdef") == 64;
}

static ag_status read_sample(ag_f0_record *r, ag_err *err)
{
    const json_t *o = r->json, *cuda;
    const char *ignored;
    if (r->cadence_ms < 1) return ag_fail(err, AG_E_FORMAT, "'cadence_ms' of a sample must be a whole number of at least 1");
    if (!r->gpu.uuid && !r->gpu.pci_bus_id) return ag_fail(err, AG_E_FORMAT, "a sample must name its GPU by 'uuid' or 'pci_bus_id'");
    for (int i = 0; i < AG_F0_N_READINGS; i++) {
        const json_t *value = json_object_get(o, readings[i].key);
        if (!value) return ag_fail(err, AG_E_FORMAT, "a sample must have '%s', with its status where it could not be read", readings[i].key);
        AG_TRY(ag_f0_measurement_read(&r->readings[i], value, readings[i].key, readings[i].unit, err));
    }
    AG_TRY(read_throttle(o, err));
    AG_TRY(optional_text(&r->profile_window_ref, o, "profile_window_ref", err));
    AG_TRY(need_object(&cuda, o, "cuda", err));
    AG_TRY(optional_text(&ignored, cuda, "driver_version", err));
    AG_TRY(optional_text(&ignored, cuda, "runtime_version", err));
    AG_TRY(optional_text(&ignored, cuda, "tool", err));
    AG_TRY(optional_text(&r->capability_digest, o, "capability_digest", err));
    if (r->capability_digest && !is_digest(r->capability_digest))
        return ag_fail(err, AG_E_FORMAT, "'capability_digest' must be \"sha256:\" and 64 lower-case hexadecimal digits");
    return AG_OK;
}

ag_status ag_f0_record_read(ag_f0_record *out, const json_t *object, ag_f0_kind kind, ag_err *err)
{
    *out = (ag_f0_record){.kind = kind, .json = object, .global_step = AG_F0_NO_COUNT, .tokens_accepted = AG_F0_NO_COUNT,
                          .examples_accepted = AG_F0_NO_COUNT};
    if (!json_is_object(object)) return ag_fail(err, AG_E_FORMAT, "a record must be an object");
    const char *text;
    const json_t *part;
    AG_TRY(need_text(&text, object, "schema_version", err));
    if (strcmp(text, AG_F0_SCHEMA) != 0)
        return ag_fail(err, AG_E_FORMAT, "'schema_version' is '%s', expected '%s'", text, AG_F0_SCHEMA);
    AG_TRY(need_text(&text, object, "record_kind", err));
    if (strcmp(text, kind_names[kind]) != 0)
        return ag_fail(err, AG_E_FORMAT, "'record_kind' is '%s', expected '%s'", text, kind_names[kind]);
    AG_TRY(need_text(&out->run_id, object, "agoge_run_id", err));
    AG_TRY(need_object(&part, object, "host", err));
    AG_TRY(need_text(&out->hostname, part, "hostname", err));
    AG_TRY(need_object(&part, object, "gpu", err));
    AG_TRY(ag_f0_gpu_read(&out->gpu, part, false, err));
    AG_TRY(need_text(&out->timestamp, object, "timestamp_utc", err));
    AG_TRY(ag_f0_timestamp_parse(&out->wall_ns, out->timestamp, err));
    AG_TRY(need_count(&out->monotonic_ns, object, "monotonic_ns", err));
    AG_TRY(need_object(&part, object, "collector", err));
    AG_TRY(need_text(&text, part, "id", err));
    AG_TRY(need_text(&text, part, "version", err));
    AG_TRY(optional_count(&out->cadence_ms, object, "cadence_ms", err));
    if (kind == AG_F0_SAMPLE) return read_sample(out, err);
    if (out->cadence_ms != AG_F0_NO_COUNT) return ag_fail(err, AG_E_FORMAT, "'cadence_ms' must be null in a record of kind %s", kind_names[kind]);
    return kind == AG_F0_MARKER ? read_marker(out, err) : AG_OK;
}

bool ag_f0_same_gpu(const ag_f0_gpu *a, const ag_f0_gpu *b)
{
    if (a->uuid && b->uuid) return strcmp(a->uuid, b->uuid) == 0;
    return a->pci_bus_id && b->pci_bus_id && strcmp(a->pci_bus_id, b->pci_bus_id) == 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\v\f", text[i])) return false;
    return true;
}

static ag_status parse_lines(ag_f0_line **lines, size_t *n, const ag_map *map, const char *path, ag_err *err)
{
    const char *at = (const char *)map->bytes, *end = at + map->n;
    size_t room = 0;
    for (size_t number = 1; at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t length = (size_t)((stop ? stop : end) - at);
        if (!is_blank(at, length)) {
            char where[512];
            snprintf(where, sizeof where, "%s:%zu", path, number);
            if (length > AG_F0_MAX_LINE_BYTES) return ag_fail(err, AG_E_FORMAT, "%s: the line has %zu bytes, at most %d are read", where, length, AG_F0_MAX_LINE_BYTES);
            json_t *line;
            AG_TRY(ag_json_parse(&line, at, length, where, err));
            if (*n == room) {
                room = room ? room * 2 : 64;
                *lines = realloc(*lines, room * sizeof **lines);
                if (!*lines) ag_out_of_memory(room * sizeof **lines);
            }
            (*lines)[(*n)++] = (ag_f0_line){line, number};
            if (!json_is_object(line)) return ag_fail(err, AG_E_FORMAT, "%s: a line must be a JSON object", where);
        }
        at = stop ? stop + 1 : end;
    }
    if (*n == 0) return ag_fail(err, AG_E_FORMAT, "%s: there is no record in the file", path);
    return AG_OK;
}

ag_status ag_f0_lines_load(ag_f0_line **lines, size_t *n, const char *path, ag_err *err)
{
    *lines = NULL;
    *n = 0;
    ag_map map;
    AG_TRY(ag_map_open(&map, path, err));
    ag_status status = map.n > AG_F0_MAX_FILE_BYTES
                           ? ag_fail(err, AG_E_FORMAT, "%s: %zu bytes, at most %d are read", path, map.n, AG_F0_MAX_FILE_BYTES)
                           : parse_lines(lines, n, &map, path, err);
    ag_map_close(&map);
    if (status) ag_f0_lines_free(lines, *n);
    return status;
}

void ag_f0_lines_free(ag_f0_line **lines, size_t n)
{
    for (size_t i = 0; *lines && i < n; i++) json_decref((*lines)[i].json);
    free(*lines);
    *lines = NULL;
}

ag_status ag_f0_stream_load(ag_f0_stream *out, const char *path, ag_f0_kind kind, ag_err *err)
{
    *out = (ag_f0_stream){0};
    AG_TRY(ag_f0_lines_load(&out->lines, &out->n, path, err));
    out->records = calloc(out->n, sizeof *out->records);
    if (!out->records) ag_out_of_memory(out->n * sizeof *out->records);
    for (size_t i = 0; i < out->n; i++)
        if (ag_f0_record_read(&out->records[i], out->lines[i].json, kind, err)) {
            ag_status status = ag_err_prefix(err, "%s:%zu", path, out->lines[i].number);
            ag_f0_stream_free(out);
            return status;
        }
    return AG_OK;
}

void ag_f0_stream_free(ag_f0_stream *stream)
{
    ag_f0_lines_free(&stream->lines, stream->n);
    free(stream->records);
    *stream = (ag_f0_stream){0};
}
