#define _GNU_SOURCE
#include "lab/f0_clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const roles[] = {NULL, "start", "end", "sample"};
static const char *const validities[] = {"ok", "degraded", "refused"};
static const char *const correlations[] = {"allowed", "degraded", "refused"};
static const char *const jump_names[] = {"forward_jump", "backward_wall_clock", "monotonic_regression"};
static const int64_t latest_ns = INT64_MAX / 2; /* so that no difference of two times overflows */
static const double drift_tolerance = 1e-6;

const char *ag_clock_validity_name(ag_clock_grade grade) { return validities[grade]; }
const char *ag_clock_correlation_name(ag_clock_grade grade) { return correlations[grade]; }
const char *ag_clock_jump_name(ag_clock_jump_kind kind) { return jump_names[kind]; }
ag_clock_grade ag_clock_jump_grade(ag_clock_jump_kind kind)
{
    return kind == AG_CLOCK_FORWARD_JUMP ? AG_CLOCK_DEGRADED : AG_CLOCK_REFUSED;
}

/* ---- calibration -------------------------------------------------------------------------------------------------- */
static bool is_before(const ag_clock_observation *a, const ag_clock_observation *b)
{
    return a->monotonic_ns != b->monotonic_ns ? a->monotonic_ns < b->monotonic_ns : a->wall_ns < b->wall_ns;
}

static int by_time(const void *a, const void *b) { return is_before(b, a) - is_before(a, b); }

static void add_jump(ag_clock_calibration *c, ag_clock_jump_kind kind, const ag_clock_observation *from, const ag_clock_observation *to)
{
    c->jumps[c->n_jumps++] = (ag_clock_jump){kind, *from, *to};
    if (ag_clock_jump_grade(kind) > c->correlation) c->correlation = ag_clock_jump_grade(kind);
}

static bool find_ends(ag_clock_calibration *c, const ag_clock_observation *sorted, size_t n)
{
    const ag_clock_observation *start = NULL, *end = NULL;
    bool any_role = false;
    for (size_t i = 0; i < n; i++) {
        const ag_clock_observation *o = &c->observations[i];
        if (o->role == AG_CLOCK_START && !start) start = o;
        if (o->role == AG_CLOCK_END) end = o;
        any_role |= o->role != AG_CLOCK_NO_ROLE;
    }
    if (!end && !start && n >= 2) end = &sorted[n - 1];
    c->start = start ? *start : sorted[0];
    c->has_end = end != NULL;
    if (end) c->end = *end;
    return any_role;
}

ag_status ag_clock_calibrate(ag_clock_calibration *out, const ag_clock_observation *observations, size_t n, ag_clock_settings settings,
                             ag_arena *arena, ag_err *err)
{
    *out = (ag_clock_calibration){.settings = settings, .observations = observations, .n_observations = n};
    if (n == 0) return ag_fail(err, AG_E_FORMAT, "a clock calibration needs at least one observation");
    for (size_t i = 0; i < n; i++)
        if (observations[i].monotonic_ns < 0 || observations[i].monotonic_ns > latest_ns || observations[i].wall_ns < 0 ||
            observations[i].wall_ns > latest_ns)
            return ag_fail(err, AG_E_FORMAT, "observation %zu: a time lies outside 0 to %lld ns", i + 1, (long long)latest_ns);
    ag_clock_observation *sorted = ag_arena_array(arena, n, sizeof *sorted);
    memcpy(sorted, observations, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_time);
    out->jumps = ag_arena_array(arena, 2 * n, sizeof *out->jumps);
    if (find_ends(out, sorted, n))
        for (size_t i = 1; i < n; i++)
            if (observations[i].monotonic_ns < observations[i - 1].monotonic_ns)
                add_jump(out, AG_CLOCK_REGRESSION, &observations[i - 1], &observations[i]);
    for (size_t i = 1; i < n; i++) {
        const int64_t m = sorted[i].monotonic_ns - sorted[i - 1].monotonic_ns, w = sorted[i].wall_ns - sorted[i - 1].wall_ns;
        if (w < 0 || w - m < -settings.bound_ns)
            add_jump(out, AG_CLOCK_BACKWARD_WALL, &sorted[i - 1], &sorted[i]);
        else if (w - m > settings.bound_ns)
            add_jump(out, AG_CLOCK_FORWARD_JUMP, &sorted[i - 1], &sorted[i]);
    }
    out->offset_ns = out->start.wall_ns - out->start.monotonic_ns;
    out->validity = out->has_end ? AG_CLOCK_OK : AG_CLOCK_DEGRADED;
    if (out->has_end) {
        out->end_offset_ns = out->end.wall_ns - out->end.monotonic_ns;
        const int64_t m = out->end.monotonic_ns - out->start.monotonic_ns, w = out->end.wall_ns - out->start.wall_ns;
        out->has_drift = m > 0;
        if (m > 0) out->drift_ns_per_s = (double)(w - m) * 1e9 / (double)m;
    }
    if (out->correlation > out->validity) out->validity = out->correlation;
    return AG_OK;
}

ag_clock_grade ag_clock_between(const ag_clock_calibration *c, int64_t marker_ns, int64_t sample_ns)
{
    ag_clock_grade worst = AG_CLOCK_OK;
    for (size_t i = 0; i < c->n_jumps; i++)
        if (marker_ns <= c->jumps[i].from.monotonic_ns && sample_ns >= c->jumps[i].to.monotonic_ns &&
            ag_clock_jump_grade(c->jumps[i].kind) > worst)
            worst = ag_clock_jump_grade(c->jumps[i].kind);
    return worst;
}

void ag_clock_observe(ag_clock_observation *out, ag_clock_role role, char timestamp[40])
{
    struct timespec monotonic, wall;
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    clock_gettime(CLOCK_REALTIME, &wall);
    *out = (ag_clock_observation){role, (int64_t)monotonic.tv_sec * 1000000000 + monotonic.tv_nsec,
                                  (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec, timestamp};
    ag_f0_timestamp_print(timestamp, out->wall_ns / 1000 * 1000);
}

static int64_t resolution(clockid_t clock)
{
    struct timespec t;
    if (clock_getres(clock, &t) != 0) return 1;
    const int64_t ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    return ns > 0 ? ns : 1;
}

ag_clock_settings ag_clock_settings_here(void)
{
    return (ag_clock_settings){AG_CLOCK_DEFAULT_BOUND_NS, resolution(CLOCK_MONOTONIC), resolution(CLOCK_REALTIME)};
}

/* ---- JSON in ------------------------------------------------------------------------------------------------------- */
static ag_status read_int(int64_t *out, const json_t *object, const char *key, int64_t min, bool needed, ag_err *err)
{
    const json_t *value = json_object_get(object, key);
    if (!value && !needed) return AG_OK;
    if (!json_is_integer(value) || json_integer_value(value) < min)
        return ag_fail(err, AG_E_FORMAT, "'%s' must be a whole number of at least %lld", key, (long long)min);
    *out = json_integer_value(value);
    return AG_OK;
}

static ag_status read_name(int *out, const json_t *object, const char *key, const char *const *names, int n, ag_err *err)
{
    const char *text = json_string_value(json_object_get(object, key));
    for (int i = 0; text && i < n; i++)
        if (names[i] && strcmp(names[i], text) == 0) {
            *out = i;
            return AG_OK;
        }
    return ag_fail(err, AG_E_FORMAT, "'%s' is '%s', which is not known", key, text ? text : "(no text)");
}

static ag_status read_observation(ag_clock_observation *out, const json_t *object, ag_err *err)
{
    *out = (ag_clock_observation){0};
    if (!json_is_object(object)) return ag_fail(err, AG_E_FORMAT, "it must be an object");
    const json_t *role = json_object_get(object, "role");
    int at = 0;
    if (role && !json_is_null(role)) AG_TRY(read_name(&at, object, "role", roles, 4, err));
    out->role = (ag_clock_role)at;
    out->timestamp = json_string_value(json_object_get(object, "timestamp_utc"));
    if (!out->timestamp) return ag_fail(err, AG_E_FORMAT, "'timestamp_utc' must be a text");
    AG_TRY(ag_f0_timestamp_parse(&out->wall_ns, out->timestamp, err));
    AG_TRY(read_int(&out->monotonic_ns, object, "monotonic_ns", 0, true, err));
    const json_t *wall = json_object_get(object, "wall_ns");
    return wall && !json_is_null(wall) ? read_int(&out->wall_ns, object, "wall_ns", 0, true, err) : AG_OK;
}

ag_status ag_clock_observations_read(ag_clock_observation **out, size_t *n, const json_t *list, ag_arena *arena, ag_err *err)
{
    *n = json_array_size(list);
    if (*n == 0) return ag_fail(err, AG_E_FORMAT, "'observations' must be a list with at least one observation");
    *out = ag_arena_array(arena, *n, sizeof **out);
    for (size_t i = 0; i < *n; i++)
        if (read_observation(&(*out)[i], json_array_get(list, i), err)) return ag_err_prefix(err, "observation %zu", i + 1);
    return AG_OK;
}

ag_status ag_clock_settings_read(ag_clock_settings *out, const json_t *object, ag_err *err)
{
    *out = (ag_clock_settings)AG_CLOCK_DEFAULTS;
    AG_TRY(read_int(&out->bound_ns, object, "assumed_utc_bound_ns", 1, false, err));
    const json_t *resolutions = json_object_get(object, "clock_resolution");
    if (!resolutions) return AG_OK;
    if (!json_is_object(resolutions)) return ag_fail(err, AG_E_FORMAT, "'clock_resolution' must be an object");
    AG_TRY(read_int(&out->monotonic_resolution_ns, resolutions, "monotonic_ns", 1, true, err));
    return read_int(&out->wall_resolution_ns, resolutions, "realtime_ns", 1, true, err);
}

static ag_status check_jump(const json_t *jump, ag_err *err)
{
    int kind = 0, correlation = 0;
    int64_t ignored;
    AG_TRY(read_name(&kind, jump, "kind", jump_names, 3, err));
    AG_TRY(read_name(&correlation, jump, "correlation", correlations, 3, err));
    if (correlation != (int)ag_clock_jump_grade((ag_clock_jump_kind)kind))
        return ag_fail(err, AG_E_FORMAT, "a %s is %s, not %s", jump_names[kind], correlations[ag_clock_jump_grade((ag_clock_jump_kind)kind)],
                       correlations[correlation]);
    static const char *const times[] = {"from_monotonic_ns", "to_monotonic_ns", "monotonic_delta_ns", "wall_delta_ns"};
    for (int i = 0; i < 4; i++) AG_TRY(read_int(&ignored, jump, times[i], i < 2 ? 0 : INT64_MIN, true, err));
    static const char *const texts[] = {"from_timestamp_utc", "to_timestamp_utc"};
    for (int i = 0; i < 2; i++) {
        const char *text = json_string_value(json_object_get(jump, texts[i]));
        AG_TRY(ag_f0_timestamp_parse(&ignored, text ? text : "", err));
    }
    return AG_OK;
}

static ag_status stale(ag_err *err, const char *key)
{
    return ag_fail(err, AG_E_VERIFY, "the record is stale: '%s' does not follow from its own observations; calibrate again", key);
}

/* The calibration that the record's observations give must be the one it states. */
static ag_status check_stated(const ag_clock_calibration *c, const json_t *record, ag_err *err)
{
    int validity = 0, correlation = 0;
    int64_t offset = 0, end_offset = 0;
    AG_TRY(read_name(&validity, record, "validity", validities, 3, err));
    AG_TRY(read_name(&correlation, record, "correlation_across_discontinuity", correlations, 3, err));
    const char *order = json_string_value(json_object_get(record, "join_order"));
    if (!order || strcmp(order, "monotonic") != 0) return ag_fail(err, AG_E_FORMAT, "'join_order' must be 'monotonic'");
    AG_TRY(read_int(&offset, record, "offset_ns", INT64_MIN, true, err));
    const json_t *end = json_object_get(record, "end_offset_ns"), *drift = json_object_get(record, "drift_ns_per_s");
    if (!end || !drift) return ag_fail(err, AG_E_FORMAT, "'%s' is missing; write null where there is none", end ? "drift_ns_per_s" : "end_offset_ns");
    if (!json_is_null(end)) AG_TRY(read_int(&end_offset, record, "end_offset_ns", INT64_MIN, true, err));
    if (!json_is_null(drift) && (!json_is_number(drift) || !isfinite(json_number_value(drift))))
        return ag_fail(err, AG_E_FORMAT, "'drift_ns_per_s' must be a finite number or null");
    if (validity != (int)c->validity) return stale(err, "validity");
    if (correlation != (int)c->correlation) return stale(err, "correlation_across_discontinuity");
    if (offset != c->offset_ns) return stale(err, "offset_ns");
    if (json_is_null(end) == c->has_end || (c->has_end && end_offset != c->end_offset_ns)) return stale(err, "end_offset_ns");
    if (json_is_null(drift) == c->has_drift || (c->has_drift && fabs(json_number_value(drift) - c->drift_ns_per_s) > drift_tolerance))
        return stale(err, "drift_ns_per_s");
    return AG_OK;
}

ag_status ag_clock_record_check(ag_clock_calibration *out, const json_t *record, ag_arena *arena, ag_err *err)
{
    ag_f0_record envelope;
    AG_TRY(ag_f0_record_read(&envelope, record, AG_F0_CLOCK_SKEW, err));
    ag_clock_observation *observations, one;
    size_t n;
    AG_TRY(ag_clock_observations_read(&observations, &n, json_object_get(record, "observations"), arena, err));
    if (read_observation(&one, json_object_get(record, "start_observation"), err)) return ag_err_prefix(err, "'start_observation'");
    const json_t *end = json_object_get(record, "end_observation");
    if (!end) return ag_fail(err, AG_E_FORMAT, "'end_observation' is missing; write null where there is none");
    if (!json_is_null(end) && read_observation(&one, end, err)) return ag_err_prefix(err, "'end_observation'");
    ag_clock_settings settings;
    if (!json_object_get(record, "assumed_utc_bound_ns") || !json_object_get(record, "clock_resolution"))
        return ag_fail(err, AG_E_FORMAT, "'assumed_utc_bound_ns' and 'clock_resolution' must be there");
    AG_TRY(ag_clock_settings_read(&settings, record, err));
    const json_t *jumps = json_object_get(record, "discontinuities"), *jump;
    if (!json_is_array(jumps)) return ag_fail(err, AG_E_FORMAT, "'discontinuities' must be a list");
    size_t i;
    json_array_foreach(jumps, i, jump)
        if (check_jump(jump, err)) return ag_err_prefix(err, "discontinuity %zu", i + 1);
    AG_TRY(ag_clock_calibrate(out, observations, n, settings, arena, err));
    AG_TRY(check_stated(out, record, err));
    if (json_array_size(jumps) != out->n_jumps) return stale(err, "discontinuities");
    for (i = 0; i < out->n_jumps; i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(jumps, i), "kind")), jump_names[out->jumps[i].kind]) != 0)
            return stale(err, "discontinuities");
    return AG_OK;
}

/* ---- JSON out ------------------------------------------------------------------------------------------------------ */
static json_t *observation_json(const ag_clock_observation *o)
{
    json_t *object = json_object();
    if (o->role != AG_CLOCK_NO_ROLE) json_object_set_new(object, "role", json_string(roles[o->role]));
    json_object_set_new(object, "timestamp_utc", json_string(o->timestamp));
    json_object_set_new(object, "monotonic_ns", json_integer(o->monotonic_ns));
    json_object_set_new(object, "wall_ns", json_integer(o->wall_ns));
    return object;
}

static json_t *jump_json(const ag_clock_jump *j)
{
    return json_pack("{ss sI sI ss ss sI sI ss}", "kind", jump_names[j->kind], "from_monotonic_ns", (json_int_t)j->from.monotonic_ns,
                     "to_monotonic_ns", (json_int_t)j->to.monotonic_ns, "from_timestamp_utc", j->from.timestamp, "to_timestamp_utc",
                     j->to.timestamp, "monotonic_delta_ns", (json_int_t)(j->to.monotonic_ns - j->from.monotonic_ns), "wall_delta_ns",
                     (json_int_t)(j->to.wall_ns - j->from.wall_ns), "correlation", correlations[ag_clock_jump_grade(j->kind)]);
}

json_t *ag_clock_record_make(const ag_clock_calibration *c, const json_t *envelope)
{
    json_t *record = json_object(), *observations = json_array(), *jumps = json_array();
    static const char *const carried[] = {"agoge_run_id", "host", "gpu", "collector"};
    for (size_t i = 0; i < sizeof carried / sizeof *carried; i++)
        json_object_set(record, carried[i], json_object_get(envelope, carried[i]));
    for (size_t i = 0; i < c->n_observations; i++) json_array_append_new(observations, observation_json(&c->observations[i]));
    for (size_t i = 0; i < c->n_jumps; i++) json_array_append_new(jumps, jump_json(&c->jumps[i]));
    json_object_set_new(record, "schema_version", json_string(AG_F0_SCHEMA));
    json_object_set_new(record, "record_kind", json_string(ag_f0_kind_name(AG_F0_CLOCK_SKEW)));
    json_object_set_new(record, "timestamp_utc", json_string(c->start.timestamp));
    json_object_set_new(record, "monotonic_ns", json_integer(c->start.monotonic_ns));
    json_object_set_new(record, "cadence_ms", json_null());
    json_object_set_new(record, "observations", observations);
    json_object_set_new(record, "start_observation", observation_json(&c->start));
    json_object_set_new(record, "end_observation", c->has_end ? observation_json(&c->end) : json_null());
    json_object_set_new(record, "offset_ns", json_integer(c->offset_ns));
    json_object_set_new(record, "end_offset_ns", c->has_end ? json_integer(c->end_offset_ns) : json_null());
    json_object_set_new(record, "drift_ns_per_s", c->has_drift ? json_real(c->drift_ns_per_s) : json_null());
    json_object_set_new(record, "clock_resolution", json_pack("{sI sI}", "monotonic_ns", (json_int_t)c->settings.monotonic_resolution_ns,
                                                              "realtime_ns", (json_int_t)c->settings.wall_resolution_ns));
    json_object_set_new(record, "assumed_utc_bound_ns", json_integer(c->settings.bound_ns));
    json_object_set_new(record, "discontinuities", jumps);
    json_object_set_new(record, "validity", json_string(validities[c->validity]));
    json_object_set_new(record, "join_order", json_string("monotonic"));
    json_object_set_new(record, "correlation_across_discontinuity", json_string(correlations[c->correlation]));
    return record;
}
