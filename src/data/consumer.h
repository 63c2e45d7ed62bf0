/* What a consumer asks of incoming JSONL before it is used: every row of a form that training reads, and nothing in it that
 * knows the future.
 *
 *     ag_consumer_result r;
 *     AG_TRY(ag_consumer_check(&r, "incoming.jsonl", err));      // r.ok, r.sidecar: canonical JSON with its newline
 *     ag_consumer_result_free(&r);
 *
 * The sidecar (agoge.consumer-sidecar.v1): source_path (the file's name), source_sha256, parser, row_count, rows (line, format,
 * text_sha256), errors ("line 3: …"), ok. A row's `_prometheus` is taken away before the row is read; what it says of time must
 * be in order: event_timestamps, and the timestamp of each of events, must not go back. Times are ISO 8601 (without an offset
 * they count as UTC) or seconds since 1970. */
#ifndef AG_CONSUMER_H
#define AG_CONSUMER_H

#include "base/json.h"
#include "base/status.h"

#define AG_CONSUMER_SCHEMA "agoge.consumer-sidecar.v1"

typedef struct {
    ag_str sidecar;
    size_t n_rows, n_errors;
    bool ok;
} ag_consumer_result;

/* A file that cannot be read is a status; whatever is wrong in it is in the result. */
AG_MUST_USE ag_status ag_consumer_check(ag_consumer_result *out, const char *path, ag_err *err);
void ag_consumer_result_free(ag_consumer_result *result);

/* "2030-01-02T03:04:05.5+02:00", "2030-01-02 03:04", "2030-01-02" or seconds since 1970, as nanoseconds since then. False where
 * it is none. */
bool ag_event_time_parse(int64_t *ns, const json_t *value);

#endif
