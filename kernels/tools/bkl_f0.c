/* Checkers of the F0 records: correlation of markers and samples, and clock skew. */
#include "kernels/tools/bkl_command.h"

#include "base/fs.h"
#include "lab/f0_join.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FIXTURES "fixtures/f0-correlation/"

/* ---- built-in guards: what the checker must refuse is tried before any file is believed ------------------------------------ */
typedef struct {
    const char *what, *unit, *measurement;
    bool accepted;
} guard;
static const guard measurement_guards[] = {
    {"unavailable power written as 0", "W", "{\"value\":0,\"unit\":\"W\",\"status\":\"unavailable\"}", false},
    {"a measurement without a value", "W", "{\"unit\":\"W\",\"status\":\"unsupported\"}", false},
    {"a utilization of 150 %", "%", "{\"value\":150,\"unit\":\"%\",\"status\":\"ok\"}", false},
    {"a value that is no number", "W", "{\"value\":true,\"unit\":\"W\",\"status\":\"ok\"}", false},
    {"a utilization of 0 %", "%", "{\"value\":0,\"unit\":\"%\",\"status\":\"ok\"}", true},
};

static ag_status guard_measurements(ag_err *err)
{
    for (size_t i = 0; i < sizeof measurement_guards / sizeof *measurement_guards; i++) {
        const guard *g = &measurement_guards[i];
        json_t *value;
        ag_f0_measurement m;
        ag_err ignored;
        AG_TRY(ag_json_parse(&value, g->measurement, strlen(g->measurement), g->what, err));
        const bool accepted = ag_f0_measurement_read(&m, value, "guard", g->unit, &ignored) == AG_OK;
        ag_json_free(&value);
        if (accepted != g->accepted)
            return ag_fail(err, AG_E_VERIFY, "guard: %s was %s", g->what, accepted ? "accepted" : "refused");
    }
    json_t *value;
    ag_err ignored;
    static const char nan[] = "{\"value\":NaN}";
    if (ag_json_parse(&value, nan, strlen(nan), "guard", &ignored) == AG_OK) {
        ag_json_free(&value);
        return ag_fail(err, AG_E_VERIFY, "guard: NaN was accepted");
    }
    int64_t ns;
    if (ag_f0_timestamp_parse(&ns, "not-a-dateZ", &ignored) == AG_OK || ag_f0_timestamp_parse(&ns, "2030-01-02T03:04:05+00:00", &ignored) == AG_OK)
        return ag_fail(err, AG_E_VERIFY, "guard: a wrong timestamp was accepted");
    return AG_OK;
}

static ag_status guard_joins(ag_err *err)
{
    const ag_f0_gpu a = {"0000:01:00.0", "GPU-a", NULL, NULL}, b = {"0000:01:00.0", "GPU-b", NULL, NULL}, no_uuid = {"0000:01:00.0", NULL, NULL, NULL};
    if (ag_f0_same_gpu(&a, &b)) return ag_fail(err, AG_E_VERIFY, "guard: GPUs of different uuid joined");
    if (!ag_f0_same_gpu(&a, &no_uuid)) return ag_fail(err, AG_E_VERIFY, "guard: the PCI address did not join where a uuid is missing");
    const ag_clock_observation jump[] = {{AG_CLOCK_START, 1000000000, 20000000000, ""}, {AG_CLOCK_END, 2000000000, 10000000000, ""}};
    ag_clock_calibration c;
    ag_arena arena = {0};
    const ag_clock_settings settings = AG_CLOCK_DEFAULTS;
    ag_status status = ag_clock_calibrate(&c, jump, 2, settings, &arena, err);
    if (!status && ag_clock_between(&c, 1000000000, 2000000000) != AG_CLOCK_REFUSED)
        status = ag_fail(err, AG_E_VERIFY, "guard: a join across a backward jump was not refused");
    ag_arena_free(&arena);
    return status;
}

/* ---- check-f0-correlation ------------------------------------------------------------------------------------------------- */
typedef struct {
    const char *markers, *samples, *clock_skew;
} correlation_options;

/* A fixture that measures 0 % on an idle card: zero is a value, not a missing one. */
static ag_status check_idle_sample(const ag_f0_pair *pairs, size_t n, ag_err *err)
{
    enum { IDLE_SAMPLE_NS = 1500000000 };
    for (size_t i = 0; i < n; i++) {
        const ag_f0_pair *p = &pairs[i];
        if (p->sample->monotonic_ns != IDLE_SAMPLE_NS || !p->marker) continue;
        const ag_f0_measurement *u = &p->sample->readings[AG_F0_UTILIZATION_GPU];
        if (strcmp(p->marker->phase, "train") != 0 || p->marker->global_step != 0 || u->status != AG_F0_OK || u->value != 0)
            return ag_fail(err, AG_E_VERIFY, "the sample at monotonic 1500000000 must join phase train, step 0, with a utilization of 0 %% that is ok");
    }
    return AG_OK;
}

static ag_status check_skew_file(const char *path, const ag_clock_calibration *of_stream, ag_arena *arena, ag_err *err)
{
    json_t *record;
    AG_TRY(bkl_json_load(&record, path, err));
    ag_clock_calibration c;
    ag_status status = ag_clock_record_check(&c, record, arena, err);
    const char *differs = NULL;
    if (!status && c.validity != of_stream->validity) differs = "validity";
    if (!status && c.offset_ns != of_stream->offset_ns) differs = "offset_ns";
    if (!status && c.n_jumps != of_stream->n_jumps) differs = "discontinuities";
    for (size_t i = 0; !status && !differs && i < c.n_jumps; i++)
        if (c.jumps[i].kind != of_stream->jumps[i].kind) differs = "discontinuities";
    if (differs)
        status = ag_fail(err, AG_E_VERIFY, "'%s' disagrees with the clocks of the markers and samples; give the skew record of this run", differs);
    if (status) ag_err_prefix(err, "%s", path);
    ag_json_free(&record);
    return status;
}

static ag_status calibrate_stream(ag_clock_calibration *c, const ag_f0_stream *const streams[2], ag_arena *arena, ag_err *err)
{
    ag_clock_observation *o = ag_arena_array(arena, streams[0]->n + streams[1]->n, sizeof *o);
    size_t n = 0;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < streams[k]->n; i++) {
            const ag_f0_record *r = &streams[k]->records[i];
            o[n++] = (ag_clock_observation){AG_CLOCK_NO_ROLE, r->monotonic_ns, r->wall_ns, r->timestamp};
        }
    const ag_clock_settings settings = AG_CLOCK_DEFAULTS;
    return ag_clock_calibrate(c, o, n, settings, arena, err);
}

static ag_status correlate(const correlation_options *o, ag_f0_stream *markers, ag_f0_stream *samples, ag_arena *arena, ag_err *err)
{
    AG_TRY(guard_measurements(err));
    AG_TRY(guard_joins(err));
    AG_TRY(ag_f0_stream_load(markers, o->markers, AG_F0_MARKER, err));
    AG_TRY(ag_f0_stream_load(samples, o->samples, AG_F0_SAMPLE, err));
    ag_f0_pair *pairs = ag_f0_join(markers->records, markers->n, samples->records, samples->n, arena);
    ag_clock_calibration c;
    const ag_f0_stream *const streams[] = {markers, samples};
    AG_TRY(calibrate_stream(&c, streams, arena, err));
    const ag_f0_join_counts counts = ag_f0_join_classify(pairs, samples->n, &c);
    if (counts.ok + counts.degraded == 0)
        return ag_fail(err, AG_E_VERIFY, "no sample of %s joins a marker of %s (refused %zu, unjoined %zu)", o->samples, o->markers,
                       counts.refused, counts.unjoined);
    AG_TRY(check_idle_sample(pairs, samples->n, err));
    AG_TRY(check_skew_file(o->clock_skew, &c, arena, err));
    printf("markers=%zu samples=%zu joined=%zu degraded=%zu refused=%zu unjoined=%zu clock=%s ok\n", markers->n, samples->n,
           counts.ok + counts.degraded, counts.degraded, counts.refused, counts.unjoined, ag_clock_validity_name(c.validity));
    return AG_OK;
}

static int run_correlation(int argc, char **argv)
{
    correlation_options o = {FIXTURES "agoge-markers.jsonl", FIXTURES "bkl-gpu-samples.jsonl", FIXTURES "clock-skew.json"};
    CLI_PARSE(&bkl_check_f0_correlation, &o, argc, argv);
    ag_f0_stream markers = {0}, samples = {0};
    ag_arena arena = {0};
    ag_err err;
    ag_status status = correlate(&o, &markers, &samples, &arena, &err);
    ag_f0_stream_free(&markers);
    ag_f0_stream_free(&samples);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

static const cli_option correlation_table[] = {
    CLI_STRING("markers", correlation_options, markers, "F", "training's markers, JSONL", 0),
    CLI_STRING("samples", correlation_options, samples, "F", "the sampler's samples, JSONL", 0),
    CLI_STRING("clock-skew", correlation_options, clock_skew, "F", "the clock-skew record of the run", 0),
    CLI_END};
const cli_command bkl_check_f0_correlation = {
    "check-f0-correlation", NULL, "check markers, samples and clock skew of a run, and that they join",
    "Without options the repository's own fixtures are checked.", correlation_table, run_correlation};

/* ---- check-f0-clock-skew ---------------------------------------------------------------------------------------------------- */
typedef struct {
    const char *fixtures;
} skew_options;

static const char *const scenarios[] = {"stable", "bounded_drift", "forward_jump", "backward_jump", "sparse_markers", "missing_end"};
enum { N_SCENARIOS = sizeof scenarios / sizeof *scenarios };

static ag_status scenario_records(ag_f0_record **out, size_t *n, const json_t *list, ag_arena *arena, ag_err *err)
{
    *n = json_array_size(list);
    *out = ag_arena_array(arena, *n + 1, sizeof **out);
    for (size_t i = 0; i < *n; i++) {
        const json_t *o = json_array_get(list, i), *monotonic = json_object_get(o, "monotonic_ns");
        ag_f0_record *r = &(*out)[i];
        r->json = o;
        r->run_id = json_string_value(json_object_get(o, "agoge_run_id"));
        r->hostname = json_string_value(json_object_get(json_object_get(o, "host"), "hostname"));
        r->timestamp = json_string_value(json_object_get(o, "timestamp_utc"));
        if (!r->run_id || !r->hostname || !r->timestamp || !json_is_integer(monotonic))
            return ag_fail(err, AG_E_FORMAT, "record %zu needs agoge_run_id, host, timestamp_utc and monotonic_ns", i + 1);
        r->monotonic_ns = json_integer_value(monotonic);
        AG_TRY(ag_f0_timestamp_parse(&r->wall_ns, r->timestamp, err));
        AG_TRY(ag_f0_gpu_read(&r->gpu, json_object_get(o, "gpu"), false, err));
    }
    return AG_OK;
}

static ag_status expect_text(const json_t *expect, const char *key, const char *found, ag_err *err)
{
    const char *wanted = json_string_value(json_object_get(expect, key));
    if (wanted && strcmp(wanted, found) == 0) return AG_OK;
    return ag_fail(err, AG_E_VERIFY, "'%s' is %s, expected %s", key, found, wanted ? wanted : "(not stated)");
}

static ag_status expect_count(const json_t *expect, const char *key, size_t found, ag_err *err)
{
    const json_t *wanted = json_object_get(expect, key);
    if (json_is_integer(wanted) && json_integer_value(wanted) == (json_int_t)found) return AG_OK;
    return ag_fail(err, AG_E_VERIFY, "'%s' is %zu, expected %lld", key, found, (long long)json_integer_value(wanted));
}

static ag_status compare_scenario(const json_t *expect, const ag_clock_calibration *c, const ag_f0_join_counts *counts, ag_err *err)
{
    AG_TRY(expect_text(expect, "validity", ag_clock_validity_name(c->validity), err));
    AG_TRY(expect_text(expect, "correlation_across_discontinuity", ag_clock_correlation_name(c->correlation), err));
    const json_t *kinds = json_object_get(expect, "discontinuity_kinds"), *drift = json_object_get(expect, "drift_ns_per_s");
    if (!json_is_array(kinds) || json_array_size(kinds) != c->n_jumps)
        return ag_fail(err, AG_E_VERIFY, "%zu discontinuities found, expected %zu", c->n_jumps, json_array_size(kinds));
    for (size_t i = 0; i < c->n_jumps; i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));
        if (!kind || strcmp(kind, ag_clock_jump_name(c->jumps[i].kind)) != 0)
            return ag_fail(err, AG_E_VERIFY, "discontinuity %zu is a %s, expected %s", i + 1, ag_clock_jump_name(c->jumps[i].kind), kind ? kind : "(no text)");
    }
    if (drift && (json_is_null(drift) == c->has_drift || (c->has_drift && fabs(json_number_value(drift) - c->drift_ns_per_s) > 1e-6)))
        return ag_fail(err, AG_E_VERIFY, "the drift is %s%.6f ns/s, which is not what is expected", c->has_drift ? "" : "null, not ", c->has_drift ? c->drift_ns_per_s : json_number_value(drift));
    const json_t *offset = json_object_get(expect, "offset_matches_start"), *end = json_object_get(expect, "has_end_observation");
    if (json_is_true(offset) && c->offset_ns != c->start.wall_ns - c->start.monotonic_ns)
        return ag_fail(err, AG_E_VERIFY, "the offset is not the start's");
    if (end && json_is_true(end) != c->has_end) return ag_fail(err, AG_E_VERIFY, "an end observation is %s", c->has_end ? "there" : "missing");
    AG_TRY(expect_count(expect, "joined_ok", counts->ok, err));
    AG_TRY(expect_count(expect, "joined_degraded", counts->degraded, err));
    return expect_count(expect, "refused", counts->refused, err);
}

static ag_status check_scenario(const json_t *scenario, const char *name, ag_arena *arena, ag_err *err)
{
    AG_TRY(expect_text(scenario, "name", name, err));
    const json_t *expect = json_object_get(scenario, "expect");
    if (!json_is_object(expect)) return ag_fail(err, AG_E_FORMAT, "'expect' must be an object");
    ag_clock_observation *observations;
    ag_clock_settings settings;
    ag_clock_calibration c, again;
    ag_f0_record *markers, *samples;
    size_t n, n_markers, n_samples;
    AG_TRY(ag_clock_settings_read(&settings, scenario, err));
    AG_TRY(ag_clock_observations_read(&observations, &n, json_object_get(scenario, "observations"), arena, err));
    AG_TRY(ag_clock_calibrate(&c, observations, n, settings, arena, err));
    AG_TRY(scenario_records(&markers, &n_markers, json_object_get(scenario, "markers"), arena, err));
    AG_TRY(scenario_records(&samples, &n_samples, json_object_get(scenario, "samples"), arena, err));
    const ag_f0_pair *pairs = ag_f0_join(markers, n_markers, samples, n_samples, arena);
    const ag_f0_join_counts counts = ag_f0_join_classify(pairs, n_samples, &c);
    AG_TRY(compare_scenario(expect, &c, &counts, err));
    json_t *record = ag_clock_record_make(&c, json_object_get(scenario, "envelope"));
    ag_status status = ag_clock_record_check(&again, record, arena, err);
    json_decref(record);
    return status;
}

static ag_status check_scenarios(const char *folder, ag_arena *arena, ag_err *err)
{
    AG_TRY(guard_joins(err));
    for (int i = 0; i < N_SCENARIOS; i++) {
        const char *path = ag_arena_printf(arena, "%s/%s.json", folder, scenarios[i]);
        json_t *scenario;
        AG_TRY(bkl_json_load(&scenario, path, err));
        ag_status status = check_scenario(scenario, scenarios[i], arena, err);
        if (status) ag_err_prefix(err, "%s", path);
        ag_json_free(&scenario);
        AG_TRY(status);
    }
    return AG_OK;
}

static int run_skew(int argc, char **argv)
{
    skew_options o = {FIXTURES "clock-skew"};
    CLI_PARSE(&bkl_check_f0_clock_skew, &o, argc, argv);
    ag_arena arena = {0};
    ag_err err;
    ag_status status = check_scenarios(o.fixtures, &arena, &err);
    ag_arena_free(&arena);
    if (status) return cli_fail(&err);
    printf("%s: %d scenarios ok (", o.fixtures, (int)N_SCENARIOS);
    for (int i = 0; i < N_SCENARIOS; i++) printf("%s%s", i ? ", " : "", scenarios[i]);
    printf(")\n");
    return 0;
}

static const cli_option skew_table[] = {CLI_STRING("fixtures", skew_options, fixtures, "DIR", "the folder with the six scenarios", 0), CLI_END};
const cli_command bkl_check_f0_clock_skew = {"check-f0-clock-skew", NULL, "check clock calibration against its six scenarios", NULL, skew_table, run_skew};

/* ---- calibrate-f0-clock -------------------------------------------------------------------------------------------------------- */
typedef struct {
    const char *markers, *samples, *out;
} calibrate_options;

static ag_status calibrate(const calibrate_options *o, ag_f0_stream *markers, ag_f0_stream *samples, ag_arena *arena, ag_err *err)
{
    AG_TRY(ag_f0_stream_load(markers, o->markers, AG_F0_MARKER, err));
    AG_TRY(ag_f0_stream_load(samples, o->samples, AG_F0_SAMPLE, err));
    ag_clock_calibration c, checked;
    const ag_f0_stream *const streams[] = {markers, samples};
    AG_TRY(calibrate_stream(&c, streams, arena, err));
    const json_t *first = markers->lines[0].json;
    json_t *envelope = json_pack("{sO sO sO s{ss ss}}", "agoge_run_id", json_object_get(first, "agoge_run_id"), "host",
                                 json_object_get(first, "host"), "gpu", json_object_get(samples->lines[0].json, "gpu"), "collector", "id",
                                 "bkl-clock-calibrator", "version", "0.1.0");
    json_t *record = ag_clock_record_make(&c, envelope);
    ag_status status = ag_clock_record_check(&checked, record, arena, err);
    if (!status && o->out) status = bkl_json_publish(o->out, record, err);
    if (!status && !o->out) bkl_json_print(record);
    if (!status) fprintf(stderr, "clock: validity=%s correlation=%s discontinuities=%zu\n", ag_clock_validity_name(c.validity), ag_clock_correlation_name(c.correlation), c.n_jumps);
    json_decref(record);
    json_decref(envelope);
    return status;
}

static int run_calibrate(int argc, char **argv)
{
    calibrate_options o = {0};
    CLI_PARSE(&bkl_calibrate_f0_clock, &o, argc, argv);
    ag_f0_stream markers = {0}, samples = {0};
    ag_arena arena = {0};
    ag_err err;
    ag_status status = calibrate(&o, &markers, &samples, &arena, &err);
    ag_f0_stream_free(&markers);
    ag_f0_stream_free(&samples);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

static const cli_option calibrate_table[] = {
    CLI_STRING("markers", calibrate_options, markers, "F", "training's markers, JSONL", CLI_REQUIRED),
    CLI_STRING("samples", calibrate_options, samples, "F", "the sampler's samples, JSONL", CLI_REQUIRED),
    CLI_STRING("out", calibrate_options, out, "F", "write the record there instead of to standard output", 0),
    CLI_END};
const cli_command bkl_calibrate_f0_clock = {"calibrate-f0-clock", NULL, "write the clock-skew record of a run from its markers and samples", NULL,
                                            calibrate_table, run_calibrate};
