/* The F0 records, their join and their clocks: each rule of the contract (docs/telemetry.md) as a case. */
#include "support/unit_test.h"

#include "lab/f0_join.h"

static json_t *parsed(const char *text)
{
    ag_err err;
    json_t *root;
    must(ag_json_parse(&root, text, strlen(text), "test", &err));
    return root;
}

static const char marker_text[] =
    "{\"schema_version\":\"bkl.f0_correlation.v1\",\"record_kind\":\"agoge_marker\",\"agoge_run_id\":\"r\",\"host\":{\"hostname\":\"h\"},"
    "\"gpu\":{\"pci_bus_id\":\"0000:01:00.0\",\"uuid\":\"GPU-1\",\"name\":null,\"compute_capability\":null},\"timestamp_utc\":\"2026-01-01T00:00:01Z\","
    "\"monotonic_ns\":1000,\"collector\":{\"id\":\"agoge\",\"version\":\"1\"},\"cadence_ms\":null,\"model_id\":\"m\",\"model_revision\":\"v\","
    "\"dataset\":{\"id\":\"d\",\"split\":\"train\",\"config_digest\":null},\"phase\":\"train\",\"global_step\":0}";
#define READING(key, unit, value) "\"" key "\":{\"value\":" value ",\"unit\":\"" unit "\",\"status\":\"ok\"},"
static const char sample_text[] =
    "{\"schema_version\":\"bkl.f0_correlation.v1\",\"record_kind\":\"bkl_gpu_sample\",\"agoge_run_id\":\"r\",\"host\":{\"hostname\":\"h\"},"
    "\"gpu\":{\"pci_bus_id\":\"0000:01:00.0\",\"uuid\":\"GPU-1\"},\"timestamp_utc\":\"2026-01-01T00:00:01Z\",\"monotonic_ns\":1000,"
    "\"collector\":{\"id\":\"s\",\"version\":\"1\"},\"cadence_ms\":500," READING("power", "W", "50") READING("temperature_gpu", "C", "50")
        READING("temperature_memory", "C", "50") READING("utilization_gpu", "%", "50") READING("utilization_memory", "%", "50")
            READING("clock_graphics", "MHz", "50") READING("clock_memory", "MHz", "50") READING("vram_used", "MiB", "50")
                READING("vram_free", "MiB", "50") READING("vram_total", "MiB", "50") READING("headroom", "MiB", "50")
    "\"throttle\":{\"status\":\"ok\",\"reasons\":[]},\"cuda\":{}}";

/* `text` with one change: key (or "outer.inner") set to `value`, which is JSON, or removed where value is NULL. */
static void change(json_t *object, const char *path, const char *value)
{
    char outer[64];
    const char *dot = strchr(path, '.');
    if (dot) {
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - path), path);
        object = json_object_get(object, outer);
        path = dot + 1;
    }
    if (value)
        json_object_set_new(object, path, json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL));
    else
        json_object_del(object, path);
}

static ag_status read_changed(const char *text, ag_f0_kind kind, const char *path, const char *value, ag_err *err)
{
    json_t *object = parsed(text);
    if (path) change(object, path, value);
    ag_f0_record record;
    ag_status status = ag_f0_record_read(&record, object, kind, err);
    json_decref(object);
    return status;
}

typedef struct {
    const char *path, *value, *sentence; /* sentence NULL: accepted */
} record_case;

static void check_cases(const char *text, ag_f0_kind kind, const record_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ag_err err = {0};
        const ag_status status = read_changed(text, kind, cases[i].path, cases[i].value, &err);
        if (!cases[i].sentence && status) fail_msg("%s = %s was refused: %s", cases[i].path, cases[i].value, err.text);
        if (cases[i].sentence && !status) fail_msg("%s = %s was accepted", cases[i].path, cases[i].value ? cases[i].value : "(missing)");
        if (cases[i].sentence && !strstr(err.text, cases[i].sentence)) fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].sentence);
    }
}

static void a_measurement_that_is_missing_is_null_and_never_zero(void **state)
{
    (void)state;
    static const char *const statuses[] = {"unavailable", "unsupported", "permission_denied", "transient_failure", "device_lost"};
    for (int i = 0; i < 5; i++) {
        char zero[128], none[128];
        snprintf(zero, sizeof zero, "{\"value\":0,\"unit\":\"W\",\"status\":\"%s\"}", statuses[i]);
        snprintf(none, sizeof none, "{\"value\":null,\"unit\":\"W\",\"status\":\"%s\"}", statuses[i]);
        const record_case cases[] = {{"power", zero, "never a number"}, {"power", none, NULL}};
        check_cases(sample_text, AG_F0_SAMPLE, cases, 2);
    }
    static const record_case cases[] = {
        {"power", "{\"value\":null,\"unit\":\"W\",\"status\":\"ok\"}", "finite number"},
        {"power", "{\"value\":\"5\",\"unit\":\"W\",\"status\":\"ok\"}", "finite number"},
        {"power", "{\"value\":true,\"unit\":\"W\",\"status\":\"ok\"}", "finite number"},
        {"power", "{\"unit\":\"W\",\"status\":\"unsupported\"}", "no key 'value'"},
        {"power", "{\"value\":5,\"unit\":\"w\",\"status\":\"ok\"}", "expected 'W'"},
        {"power", "{\"value\":5,\"unit\":\"W\",\"status\":\"good\"}", "not known"},
        {"power", "5", "must be a measurement"},
        {"power", NULL, "must have 'power'"},
        {"utilization_gpu", "{\"value\":0,\"unit\":\"%\",\"status\":\"ok\"}", NULL},
        {"utilization_gpu", "{\"value\":100,\"unit\":\"%\",\"status\":\"ok\"}", NULL},
        {"utilization_gpu", "{\"value\":150,\"unit\":\"%\",\"status\":\"ok\"}", "outside 0 to 100"},
        {"utilization_gpu", "{\"value\":-1,\"unit\":\"%\",\"status\":\"ok\"}", "outside 0 to 100"},
    };
    check_cases(sample_text, AG_F0_SAMPLE, cases, sizeof cases / sizeof *cases);
}

static void throttle_reasons_follow_their_status(void **state)
{
    (void)state;
    static const record_case cases[] = {
        {"throttle", "{\"status\":\"unsupported\",\"reasons\":null}", NULL},
        {"throttle", "{\"status\":\"unsupported\",\"reasons\":[]}", NULL},
        {"throttle", "{\"status\":\"unsupported\",\"reasons\":[\"gpu_idle\"]}", "yet has reasons"},
        {"throttle", "{\"status\":\"ok\",\"reasons\":[\"gpu_idle\"]}", NULL},
        {"throttle", "{\"status\":\"ok\",\"reasons\":null}", "list of texts"},
        {"throttle", "{\"status\":\"ok\",\"reasons\":[1]}", "must be texts"},
    };
    check_cases(sample_text, AG_F0_SAMPLE, cases, sizeof cases / sizeof *cases);
}

static void an_envelope_must_be_whole(void **state)
{
    (void)state;
    static const record_case cases[] = {
        {NULL, NULL, NULL},
        {"extra", "{\"a\":1}", NULL},
        {"schema_version", "\"bkl.f0_correlation.v2\"", "expected 'bkl.f0_correlation.v1'"},
        {"record_kind", "\"bkl_gpu_sample\"", "expected 'agoge_marker'"},
        {"agoge_run_id", "\"\"", "not empty"},
        {"agoge_run_id", "\"a\\u0000b\"", "not empty"},
        {"host.hostname", NULL, "'hostname'"},
        {"timestamp_utc", "\"2026-01-01T00:00:01+00:00\"", "no UTC time"},
        {"timestamp_utc", "\"not-a-dateZ\"", "no UTC time"},
        {"timestamp_utc", "\"2026-02-30T00:00:01Z\"", "no UTC time"},
        {"timestamp_utc", "\"2026-01-01T00:00:01.Z\"", "no UTC time"},
        {"timestamp_utc", "\"2024-02-29T00:00:01.123456789Z\"", NULL},
        {"monotonic_ns", "true", "whole number"},
        {"monotonic_ns", "-1", "whole number"},
        {"monotonic_ns", "1.0", "whole number"},
        {"collector.id", "\"\"", "not empty"},
        {"cadence_ms", "500", "must be null"},
        {"model_id", "\"\"", "not empty"},
        {"dataset.config_digest", "\"\"", "not empty"},
        {"dataset.config_digest", "\"x\"", NULL},
        {"phase", NULL, "'phase'"},
        {"global_step", "true", "whole number"},
        {"global_step", "-1", "whole number"},
        {"microstep", "true", "whole number"},
        {"tokens_accepted", "null", NULL},
        {"tokens_accepted", "-5", "whole number"},
        {"loss", "{\"value\":2.5,\"unit\":\"1\",\"status\":\"ok\"}", NULL},
        {"loss", "{\"value\":2.5,\"unit\":\"nat\",\"status\":\"ok\"}", "expected '1'"},
        {"throughput_tokens_per_s", "{\"value\":0,\"unit\":\"token/s\",\"status\":\"unavailable\"}", "never a number"},
    };
    check_cases(marker_text, AG_F0_MARKER, cases, sizeof cases / sizeof *cases);
}

static void a_sample_must_name_its_gpu_and_cadence(void **state)
{
    (void)state;
    static const record_case cases[] = {
        {NULL, NULL, NULL},
        {"cadence_ms", "null", "at least 1"},
        {"cadence_ms", "0", "at least 1"},
        {"cadence_ms", "-5", "whole number"},
        {"gpu", "{\"uuid\":\"\",\"pci_bus_id\":\"\"}", "must name its GPU"},
        {"gpu", "{\"uuid\":\"\",\"pci_bus_id\":\"0000:01:00.0\"}", NULL},
        {"cuda", NULL, "'cuda'"},
        {"cuda", "{\"driver_version\":\"\"}", "not empty"},
        {"profile_window_ref", "\"\"", "not empty"},
        {"capability_digest", "\"sha256:be8f69cc3b29c8f74082ca94c168f68b0d2f9d5c97ba2a6234f7d8d7a32f359a\"", NULL},
        {"capability_digest", "\"sha256:BE8f69cc3b29c8f74082ca94c168f68b0d2f9d5c97ba2a6234f7d8d7a32f359a\"", "lower-case"},
        {"capability_digest", "\"be8f69cc3b29c8f74082ca94c168f68b0d2f9d5c97ba2a6234f7d8d7a32f359a\"", "lower-case"},
    };
    check_cases(sample_text, AG_F0_SAMPLE, cases, sizeof cases / sizeof *cases);
    ag_err err;
    must(read_changed(marker_text, AG_F0_MARKER, "gpu", "{}", &err)); /* a marker without a GPU is accepted, and joins nothing */
}

static void times_are_read_to_the_microsecond_and_printed_without_trailing_zeros(void **state)
{
    (void)state;
    ag_err err;
    int64_t ns;
    char text[40];
    must(ag_f0_timestamp_parse(&ns, "2026-09-14T18:00:02.250Z", &err));
    assert_int_equal(1789408802250000000, ns);
    ag_f0_timestamp_print(text, ns);
    assert_string_equal("2026-09-14T18:00:02.25Z", text);
    must(ag_f0_timestamp_parse(&ns, "1970-01-01T00:00:00.1234567Z", &err));
    assert_int_equal(123456000, ns);
    ag_f0_timestamp_print(text, 1789408802000000000);
    assert_string_equal("2026-09-14T18:00:02Z", text);
}

/* ---- joins ------------------------------------------------------------------------------------------------------------- */
static ag_f0_record record_at(int64_t monotonic_ns, int64_t wall_ns, const char *uuid, const char *pci)
{
    return (ag_f0_record){.run_id = "r", .hostname = "h", .monotonic_ns = monotonic_ns, .wall_ns = wall_ns, .gpu = {.uuid = uuid, .pci_bus_id = pci}};
}

static const ag_f0_record *joined(const ag_f0_record *markers, size_t n, ag_f0_record sample)
{
    static ag_f0_record kept;
    ag_arena arena = {0};
    kept = sample;
    const ag_f0_record *marker = ag_f0_join(markers, n, &kept, 1, &arena)[0].marker;
    ag_arena_free(&arena);
    return marker;
}

static void a_sample_joins_the_last_marker_of_its_gpu(void **state)
{
    (void)state;
    const ag_f0_record markers[] = {record_at(300, 3, "B", "p"), record_at(100, 1, "A", "p"), record_at(100, 2, "A", "p")};
    assert_ptr_equal(&markers[2], joined(markers, 3, record_at(100, 0, "A", "p"))); /* at the same time; the later timestamp wins */
    assert_ptr_equal(&markers[2], joined(markers, 3, record_at(500, 0, "A", "p"))); /* a newer marker of another GPU is passed over */
    assert_null(joined(markers, 3, record_at(99, 0, "A", "p")));                    /* before the first */
    assert_null(joined(markers, 3, record_at(500, 0, "C", "p")));                   /* another uuid, whatever the address */
    assert_ptr_equal(&markers[0], joined(markers, 3, record_at(500, 0, NULL, "p"))); /* no uuid: the address decides */
    assert_null(joined(markers, 3, record_at(500, 0, NULL, NULL)));
    ag_f0_record elsewhere = record_at(500, 0, "A", "p"), another_run = elsewhere;
    elsewhere.hostname = "other";
    another_run.run_id = "other";
    assert_null(joined(markers, 3, elsewhere));
    assert_null(joined(markers, 3, another_run));
}

/* ---- clocks -------------------------------------------------------------------------------------------------------------- */
static ag_arena clock_arena;

static ag_clock_calibration calibrated(const ag_clock_observation *o, size_t n)
{
    ag_err err;
    ag_clock_calibration c;
    const ag_clock_settings settings = AG_CLOCK_DEFAULTS;
    must(ag_clock_calibrate(&c, o, n, settings, &clock_arena, &err));
    return c;
}

static void a_jump_begins_one_nanosecond_beyond_the_bound(void **state)
{
    (void)state;
    ag_clock_observation o[] = {{AG_CLOCK_NO_ROLE, 0, 5000000000, ""}, {AG_CLOCK_NO_ROLE, 100, 6000000100, ""}};
    assert_int_equal(0, calibrated(o, 2).n_jumps);
    o[1].wall_ns++;
    ag_clock_calibration c = calibrated(o, 2);
    assert_int_equal(AG_CLOCK_FORWARD_JUMP, c.jumps[0].kind);
    assert_int_equal(AG_CLOCK_DEGRADED, c.validity);
    o[1] = (ag_clock_observation){AG_CLOCK_NO_ROLE, 2000000000, 6000000000, ""}; /* forward, but 1 s slower than the monotonic clock */
    assert_int_equal(0, calibrated(o, 2).n_jumps);
    o[1].wall_ns--;
    c = calibrated(o, 2);
    assert_int_equal(AG_CLOCK_BACKWARD_WALL, c.jumps[0].kind);
    assert_int_equal(AG_CLOCK_REFUSED, c.validity);
}

static void without_roles_first_and_last_are_the_ends_and_order_is_not_judged(void **state)
{
    (void)state;
    const ag_clock_observation o[] = {{AG_CLOCK_NO_ROLE, 3000, 13000, ""}, {AG_CLOCK_NO_ROLE, 1000, 11000, ""}, {AG_CLOCK_NO_ROLE, 2000, 12000, ""}};
    const ag_clock_calibration c = calibrated(o, 3);
    assert_int_equal(0, c.n_jumps);
    assert_true(c.has_end);
    assert_int_equal(1000, c.start.monotonic_ns);
    assert_int_equal(3000, c.end.monotonic_ns);
    assert_int_equal(10000, c.offset_ns);
    const ag_clock_calibration one = calibrated(o, 1);
    assert_false(one.has_end);
    assert_int_equal(AG_CLOCK_DEGRADED, one.validity);
    assert_int_equal(AG_CLOCK_OK, one.correlation);
    assert_false(one.has_drift);
}

static void with_roles_a_falling_monotonic_clock_is_listed_first(void **state)
{
    (void)state;
    const ag_clock_observation o[] = {{AG_CLOCK_START, 2000, 9000000000, ""}, {AG_CLOCK_SAMPLE, 1000, 8000000000, ""}, {AG_CLOCK_END, 1500, 20000000000, ""}};
    const ag_clock_calibration c = calibrated(o, 3);
    assert_int_equal(AG_CLOCK_REGRESSION, c.jumps[0].kind);
    assert_int_equal(2000, c.jumps[0].from.monotonic_ns);
    assert_int_equal(AG_CLOCK_FORWARD_JUMP, c.jumps[1].kind);
    assert_int_equal(AG_CLOCK_BACKWARD_WALL, c.jumps[2].kind);
    assert_int_equal(3, c.n_jumps);
    assert_int_equal(AG_CLOCK_REFUSED, c.validity);
    assert_false(c.has_drift); /* the end is not later than the start */
}

static void only_a_pair_that_straddles_a_jump_is_touched(void **state)
{
    (void)state;
    const ag_clock_observation o[] = {{AG_CLOCK_NO_ROLE, 0, 1000000000, ""}, {AG_CLOCK_NO_ROLE, 10, 9000000000, ""}, {AG_CLOCK_NO_ROLE, 20, 1000000, ""}};
    const ag_clock_calibration c = calibrated(o, 3);
    assert_int_equal(2, c.n_jumps);
    assert_int_equal(AG_CLOCK_OK, ag_clock_between(&c, 5, 9));
    assert_int_equal(AG_CLOCK_OK, ag_clock_between(&c, 1, 10));
    assert_int_equal(AG_CLOCK_DEGRADED, ag_clock_between(&c, 0, 10));
    assert_int_equal(AG_CLOCK_REFUSED, ag_clock_between(&c, 10, 20));
    assert_int_equal(AG_CLOCK_REFUSED, ag_clock_between(&c, 0, 20)); /* both */
    const ag_f0_record marker = record_at(0, 0, "A", NULL), samples[] = {record_at(5, 0, "A", NULL), record_at(10, 0, "A", NULL), record_at(20, 0, "A", NULL)};
    const ag_f0_join_counts counts = ag_f0_join_classify(ag_f0_join(&marker, 1, samples, 3, &clock_arena), 3, &c);
    assert_int_equal(1, counts.ok);
    assert_int_equal(1, counts.degraded);
    assert_int_equal(1, counts.refused);
}

static void a_skew_record_that_does_not_follow_from_its_observations_is_stale(void **state)
{
    (void)state;
    ag_err err;
    json_t *record;
    ag_clock_calibration c;
    static const struct {
        const char *path, *value, *sentence;
    } cases[] = {
        {"validity", "\"degraded\"", "stale"},
        {"validity", "\"good\"", "not known"},
        {"offset_ns", "5", "stale"},
        {"end_offset_ns", "null", "stale"},
        {"drift_ns_per_s", "0.5", "stale"},
        {"drift_ns_per_s", "\"0\"", "finite number or null"},
        {"drift_ns_per_s", "null", "stale"},
        {"join_order", "\"wall\"", "must be 'monotonic'"},
        {"correlation_across_discontinuity", "\"ok\"", "not known"},
        {"observations", "[]", "at least one"},
        {"clock_resolution", "{\"monotonic_ns\":0,\"realtime_ns\":1}", "at least 1"},
        {"assumed_utc_bound_ns", "true", "whole number"},
        {"discontinuities", "[{}]", "'kind'"},
        {"cadence_ms", "5", "must be null"},
        {"start_observation", "{\"timestamp_utc\":\"2026-01-01T00:00:00Z\",\"monotonic_ns\":true}", "whole number"},
        {"observations", "[{\"role\":\"first\",\"timestamp_utc\":\"2026-01-01T00:00:00Z\",\"monotonic_ns\":1}]", "not known"},
    };
    must(ag_json_load(&record, AGOGE_SOURCE_DIR "/fixtures/f0-correlation/clock-skew.json", 1 << 20, &err));
    must(ag_clock_record_check(&c, record, &clock_arena, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *changed = json_deep_copy(record);
        change(changed, cases[i].path, cases[i].value);
        err.text[0] = 0;
        if (!ag_clock_record_check(&c, changed, &clock_arena, &err)) fail_msg("%s = %s was accepted", cases[i].path, cases[i].value);
        if (!strstr(err.text, cases[i].sentence)) fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].sentence);
        json_decref(changed);
    }
    ag_json_free(&record);
}

static void wall_ns_wins_over_the_timestamp(void **state)
{
    (void)state;
    ag_err err;
    ag_clock_observation *o;
    size_t n;
    json_t *list = parsed("[{\"timestamp_utc\":\"2026-01-01T00:00:00Z\",\"monotonic_ns\":1,\"wall_ns\":77},{\"timestamp_utc\":\"1970-01-01T00:00:01Z\",\"monotonic_ns\":2}]");
    must(ag_clock_observations_read(&o, &n, list, &clock_arena, &err));
    assert_int_equal(77, o[0].wall_ns);
    assert_int_equal(1000000000, o[1].wall_ns);
    json_decref(list);
    ag_clock_observation a;
    char text[40];
    ag_clock_observe(&a, AG_CLOCK_START, text);
    assert_true(a.monotonic_ns >= 0 && a.role == AG_CLOCK_START);
    const ag_clock_settings here = ag_clock_settings_here();
    assert_true(here.monotonic_resolution_ns >= 1 && here.wall_resolution_ns >= 1);
}

static int free_arena(void **state)
{
    (void)state;
    ag_arena_free(&clock_arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_measurement_that_is_missing_is_null_and_never_zero),
        cmocka_unit_test(throttle_reasons_follow_their_status),
        cmocka_unit_test(an_envelope_must_be_whole),
        cmocka_unit_test(a_sample_must_name_its_gpu_and_cadence),
        cmocka_unit_test(times_are_read_to_the_microsecond_and_printed_without_trailing_zeros),
        cmocka_unit_test(a_sample_joins_the_last_marker_of_its_gpu),
        cmocka_unit_test(a_jump_begins_one_nanosecond_beyond_the_bound),
        cmocka_unit_test(without_roles_first_and_last_are_the_ends_and_order_is_not_judged),
        cmocka_unit_test(with_roles_a_falling_monotonic_clock_is_listed_first),
        cmocka_unit_test(only_a_pair_that_straddles_a_jump_is_touched),
        cmocka_unit_test(a_skew_record_that_does_not_follow_from_its_observations_is_stale),
        cmocka_unit_test(wall_ns_wins_over_the_timestamp),
    };
    return cmocka_run_group_tests(tests, NULL, free_arena);
}
