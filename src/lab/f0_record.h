/* F0 records (docs/telemetry.md): the lines that join a training run with what the GPU did meanwhile. JSONL, one object a line;
 * three kinds share one envelope:
 *
 *     agoge_marker     written by training: phase, step, counters
 *     bkl_gpu_sample   written by the sampler: eleven physical readings, throttle reasons
 *     bkl_clock_skew   wall clock against monotonic clock (f0_clock.h)
 *
 * A reading is {"value", "unit", "status"}. A status that is not "ok" has a null value: missing is never zero.
 *
 *     ag_f0_stream s = {0};
 *     AG_TRY(ag_f0_stream_load(&s, "agoge-markers.jsonl", AG_F0_MARKER, err));
 *     … s.records[i].monotonic_ns …
 *     ag_f0_stream_free(&s);
 *
 * Texts of a record borrow from its JSON, which the stream owns. */
#ifndef AG_F0_RECORD_H
#define AG_F0_RECORD_H

#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AG_F0_SCHEMA "bkl.f0_correlation.v1"

typedef enum { AG_F0_MARKER, AG_F0_SAMPLE, AG_F0_CLOCK_SKEW } ag_f0_kind;
const char *ag_f0_kind_name(ag_f0_kind kind);

/* How a reading ended. In this order: the first one has a value, the others have none. */
#define AG_F0_STATUSES(X)                        \
    X(OK, "ok")                                  \
    X(UNAVAILABLE, "unavailable")                \
    X(UNSUPPORTED, "unsupported")                \
    X(PERMISSION_DENIED, "permission_denied")    \
    X(TRANSIENT_FAILURE, "transient_failure")    \
    X(DEVICE_LOST, "device_lost")
typedef enum {
#define X(name, text) AG_F0_##name,
    AG_F0_STATUSES(X)
#undef X
    AG_F0_N_STATUSES
} ag_f0_status;
const char *ag_f0_status_name(ag_f0_status status);
bool ag_f0_status_find(ag_f0_status *out, const char *name);

/* The eleven physical readings of a sample, with their units. */
#define AG_F0_READINGS(X)                                  \
    X(POWER, "power", "W")                                 \
    X(TEMPERATURE_GPU, "temperature_gpu", "C")             \
    X(TEMPERATURE_MEMORY, "temperature_memory", "C")       \
    X(UTILIZATION_GPU, "utilization_gpu", "%")             \
    X(UTILIZATION_MEMORY, "utilization_memory", "%")       \
    X(CLOCK_GRAPHICS, "clock_graphics", "MHz")             \
    X(CLOCK_MEMORY, "clock_memory", "MHz")                 \
    X(VRAM_USED, "vram_used", "MiB")                       \
    X(VRAM_FREE, "vram_free", "MiB")                       \
    X(VRAM_TOTAL, "vram_total", "MiB")                     \
    X(HEADROOM, "headroom", "MiB")
typedef enum {
#define X(name, key, unit) AG_F0_##name,
    AG_F0_READINGS(X)
#undef X
    AG_F0_N_READINGS
} ag_f0_reading;
const char *ag_f0_reading_key(ag_f0_reading reading);
const char *ag_f0_reading_unit(ag_f0_reading reading);

typedef struct {
    ag_f0_status status;
    double value; /* 0 unless status is AG_F0_OK */
} ag_f0_measurement;

typedef struct { /* NULL: unknown */
    const char *pci_bus_id, *uuid, *name, *compute_capability;
} ag_f0_gpu;

enum { AG_F0_NO_COUNT = -1 }; /* of a counter that is absent or null */

typedef struct {
    ag_f0_kind kind;
    const char *run_id, *hostname, *timestamp;
    ag_f0_gpu gpu;
    int64_t wall_ns;      /* the timestamp since 1970, in whole microseconds */
    int64_t monotonic_ns;
    int64_t cadence_ms;   /* AG_F0_NO_COUNT: null */
    const json_t *json;   /* the whole object */
    /* of a marker */
    const char *phase;
    int64_t global_step, tokens_accepted, examples_accepted;
    /* of a sample */
    ag_f0_measurement readings[AG_F0_N_READINGS];
    const char *profile_window_ref, *capability_digest; /* NULL: none */
} ag_f0_record;

/* "2026-09-14T18:00:02.250Z" in nanoseconds since 1970, with the microseconds that Python's datetime keeps; the offset must be Z. */
AG_MUST_USE ag_status ag_f0_timestamp_parse(int64_t *wall_ns, const char *text, ag_err *err);
/* The reverse, without trailing zeros of the fraction. */
void ag_f0_timestamp_print(char out[40], int64_t wall_ns);

/* One reading under `key`. `unit` must be the reading's own; a percentage must lie in 0..100. */
AG_MUST_USE ag_status ag_f0_measurement_read(ag_f0_measurement *out, const json_t *value, const char *key, const char *unit, ag_err *err);
/* Reasons for throttling: a list of texts where the status is ok, null, empty or absent where it is not. */
AG_MUST_USE ag_status ag_f0_throttle_check(const json_t *reasons, ag_f0_status status, ag_err *err);
/* {uuid, pci_bus_id, name, compute_capability}; an empty text is refused where `strict`, and unknown otherwise. */
AG_MUST_USE ag_status ag_f0_gpu_read(ag_f0_gpu *out, const json_t *object, bool strict, ag_err *err);
/* Checks every rule of the record's kind (of a clock-skew record the envelope alone) and fills *out, which borrows from `object`. */
AG_MUST_USE ag_status ag_f0_record_read(ag_f0_record *out, const json_t *object, ag_f0_kind kind, ag_err *err);

/* The same device: equal uuid where both have one, else equal PCI address where both have one, else not. */
bool ag_f0_same_gpu(const ag_f0_gpu *a, const ag_f0_gpu *b);

typedef struct {
    json_t *json;  /* owned: an object */
    size_t number; /* of the line, from 1 */
} ag_f0_line;
typedef struct {
    ag_f0_record *records; /* in file order */
    ag_f0_line *lines;     /* what they borrow from */
    size_t n;
} ag_f0_stream;
enum { AG_F0_MAX_FILE_BYTES = 1 << 30, AG_F0_MAX_LINE_BYTES = 1 << 20 };
/* All lines of `path` as parsed objects. Blank lines are skipped; a file without a record is refused; sentences say path:line. */
AG_MUST_USE ag_status ag_f0_lines_load(ag_f0_line **lines, size_t *n, const char *path, ag_err *err);
void ag_f0_lines_free(ag_f0_line **lines, size_t n);
AG_MUST_USE ag_status ag_f0_stream_load(ag_f0_stream *out, const char *path, ag_f0_kind kind, ag_err *err);
void ag_f0_stream_free(ag_f0_stream *stream);

#endif
