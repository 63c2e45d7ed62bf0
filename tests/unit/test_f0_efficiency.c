/* The efficiency summary on bundles made here: what is missing never becomes a number, and no rate is made of a window that does not fit. */
#include "support/unit_test.h"

#include "lab/f0_efficiency.h"

#include <math.h>

enum { MAX_RECORDS = 16 };
static ag_f0_record markers[MAX_RECORDS], samples[MAX_RECORDS];
static ag_f0_stream marker_stream, sample_stream;
static json_t *marker_json, *sample_json;

static const int64_t second = 1000000000;

static int start(void **state)
{
    (void)state;
    marker_stream = (ag_f0_stream){.records = markers};
    sample_stream = (ag_f0_stream){.records = samples};
    marker_json = json_pack("{ss ss s{ss} s{ss}}", "model_id", "m", "model_revision", "v", "host", "hostname", "h", "gpu", "uuid", "GPU-1");
    sample_json = json_object();
    return 0;
}

static int finish(void **state)
{
    (void)state;
    json_decref(marker_json);
    json_decref(sample_json);
    return 0;
}

static ag_f0_record *marker(double at_s, int64_t step, int64_t tokens)
{
    ag_f0_record *m = &markers[marker_stream.n++];
    *m = (ag_f0_record){.kind = AG_F0_MARKER, .run_id = "r", .hostname = "h", .gpu = {.uuid = "GPU-1"}, .json = marker_json, .phase = "train",
                        .monotonic_ns = (int64_t)(at_s * 1e9), .global_step = step, .tokens_accepted = tokens, .examples_accepted = AG_F0_NO_COUNT};
    return m;
}

static ag_f0_record *sample(double at_s, double watts)
{
    ag_f0_record *s = &samples[sample_stream.n++];
    *s = (ag_f0_record){.kind = AG_F0_SAMPLE, .run_id = "r", .hostname = "h", .gpu = {.uuid = "GPU-1"}, .json = sample_json,
                        .monotonic_ns = llround(at_s * 1e9), .cadence_ms = 500};
    s->readings[AG_F0_POWER].value = watts;
    s->readings[AG_F0_VRAM_FREE].value = s->readings[AG_F0_HEADROOM].value = 5000;
    return s;
}

static json_t *summary;

static void summarize_with(const ag_efficiency_input *more)
{
    ag_err err;
    ag_efficiency_input in = more ? *more : (ag_efficiency_input){0};
    in.markers = &marker_stream;
    in.samples = &sample_stream;
    if (in.max_gap_factor == 0) in.max_gap_factor = 3;
    must(ag_efficiency_summarize(&summary, &in, &err));
}

static double number(const char *block, const char *key)
{
    const json_t *value = json_object_get(json_object_get(summary, block), key);
    if (!json_is_number(value)) fail_msg("%s.%s is no number", block, key);
    return json_number_value(value);
}
static bool is_null(const char *block, const char *key) { return json_is_null(json_object_get(json_object_get(summary, block), key)); }
static const char *text(const char *block, const char *key) { return json_string_value(json_object_get(json_object_get(summary, block), key)); }

static void one_sample_is_expected_once_and_has_no_energy(void **state)
{
    (void)state;
    marker(0, 0, 0);
    sample(1, 100);
    summarize_with(NULL);
    assert_true(number("coverage", "expected_samples") == 1);
    assert_true(number("coverage", "coverage_ratio") == 1);
    assert_true(is_null("energy", "approximate_joules"));
    assert_true(is_null("energy", "integrated_span_s"));
    assert_string_equal("energy_window_mismatch", text("energy", "rates_omitted_reason"));
    assert_true(is_null("throughput", "tokens_per_s"));
    json_decref(summary);
}

static void a_grid_of_power_integrates_and_a_longer_gap_does_not(void **state)
{
    (void)state;
    marker(0, 0, 0);
    marker(1, 4, 100);
    sample(0, 100);
    sample(0.5, 200);
    sample(1, 100);
    summarize_with(NULL);
    assert_true(number("energy", "approximate_joules") == 150);
    assert_true(number("energy", "pairs_integrated") == 2);
    assert_true(number("energy", "approximate_joules_per_step") == 37.5); /* 0 to 4 are four steps */
    assert_true(number("energy", "approximate_joules_per_token") == 1.5);
    assert_true(is_null("energy", "rates_omitted_reason"));
    assert_true(number("step_time", "mean") == 0.25); /* and one interval of a quarter second a step */
    assert_true(number("step_time", "count") == 1);
    json_decref(summary);
    samples[2].monotonic_ns = 2 * second; /* 1.5 s after the one before: exactly 3 cadences */
    summarize_with(NULL);
    assert_true(number("energy", "pairs_integrated") == 2);
    json_decref(summary);
    samples[2].monotonic_ns++;
    summarize_with(NULL);
    assert_true(number("energy", "pairs_integrated") == 1);
    assert_true(number("energy", "pairs_skipped_long_gap") == 1);
    assert_string_equal("energy_window_mismatch", text("energy", "rates_omitted_reason"));
    json_decref(summary);
}

static void power_that_is_missing_is_skipped_and_counted(void **state)
{
    (void)state;
    marker(0, 0, 0);
    marker(1, 1, 10);
    sample(0, 100);
    sample(0.5, 100)->readings[AG_F0_POWER] = (ag_f0_measurement){AG_F0_PERMISSION_DENIED, 0};
    sample(1, 100);
    summarize_with(NULL);
    assert_true(is_null("energy", "approximate_joules"));
    assert_true(number("energy", "pairs_skipped_missing_power") == 2);
    assert_true(number("power", "missing_count") == 1);
    assert_true(number("power", "unavailable_count") == 0);
    assert_true(number("power", "avg_w") == 100);
    json_decref(summary);
}

static void equal_times_are_not_increasing(void **state)
{
    (void)state;
    marker(0, 0, 0);
    sample(0, 100);
    sample(0, 200);
    summarize_with(NULL);
    assert_true(number("energy", "pairs_skipped_non_increasing") == 1);
    assert_true(is_null("energy", "approximate_joules"));
    json_decref(summary);
}

static void a_median_cadence_may_be_a_fraction(void **state)
{
    (void)state;
    marker(0, 0, 0);
    sample(0, 1)->cadence_ms = 1;
    sample(0.006, 1)->cadence_ms = 2;
    summarize_with(NULL);
    assert_true(number("coverage", "expected_samples") == 5); /* 1 + floor(6 / 1.5) */
    json_decref(summary);
}

static void a_counter_that_falls_or_is_missing_gives_no_rate(void **state)
{
    (void)state;
    marker(0, 0, 50);
    marker(1, 0, 40);
    marker(2, 1, 90);
    sample(1, 1);
    summarize_with(NULL);
    assert_true(is_null("throughput", "tokens_per_s"));
    assert_true(is_null("throughput", "examples_per_s"));
    assert_true(number("step_time", "count") == 1); /* a step that stands still adds none */
    json_decref(summary);
}

static void samples_of_another_gpu_are_counted_and_left_out(void **state)
{
    (void)state;
    marker(0, 0, 0);
    sample(1, 100)->readings[AG_F0_VRAM_USED].value = 10;
    ag_f0_record *other = sample(2, 100);
    other->gpu.uuid = "GPU-2";
    other->readings[AG_F0_VRAM_USED].value = 99;
    other->readings[AG_F0_HEADROOM].value = 1;
    summarize_with(NULL);
    assert_true(json_integer_value(json_object_get(summary, "excluded_foreign_sample_count")) == 1);
    assert_true(number("vram", "peak_used_mib") == 10);
    assert_true(json_is_true(json_object_get(json_object_get(summary, "vram"), "meets_host_floor")));
    json_decref(summary);
}

static void headroom_falls_back_to_free_memory_sample_by_sample(void **state)
{
    (void)state;
    marker(0, 0, 0);
    ag_f0_record *s = sample(1, 1);
    s->readings[AG_F0_HEADROOM] = (ag_f0_measurement){AG_F0_UNAVAILABLE, 0};
    s->readings[AG_F0_VRAM_FREE].value = 2047;
    sample(2, 1);
    summarize_with(NULL);
    assert_true(number("vram", "effective_min_headroom_mib") == 2047);
    assert_true(number("vram", "min_headroom_mib") == 5000);
    assert_true(json_is_false(json_object_get(json_object_get(summary, "vram"), "meets_host_floor")));
    json_decref(summary);
}

static void the_train_fit_reference_is_compared_on_its_own_basis_only(void **state)
{
    (void)state;
    marker(0, 0, 0);
    sample(1, 1)->readings[AG_F0_VRAM_USED].value = 9800;
    samples[0].readings[AG_F0_HEADROOM].value = 3000; /* free is 5000 */
    json_t *reference = json_pack("{ss si ss si}", "peak_basis", "bkl_gpu_sample.vram_used", "peak_allocated_mib", 9799, "min_free_basis", "bkl_gpu_sample.vram_free", "min_free_mib", 5002);
    const ag_efficiency_input more = {.train_fit = reference};
    summarize_with(&more);
    const json_t *comparison = json_object_get(summary, "train_fit_comparison");
    const json_t *peak = json_object_get(comparison, "peak_vram"), *left = json_object_get(comparison, "min_headroom");
    assert_true(json_is_true(json_object_get(peak, "agreement"))); /* 1 MiB is within the tolerance */
    assert_true(json_is_false(json_object_get(left, "agreement")));
    assert_true(json_number_value(json_object_get(left, "delta")) == -2);
    assert_string_equal("outside_tolerance", json_string_value(json_object_get(left, "reason")));
    json_decref(summary);
    json_object_set_new(reference, "peak_allocated_mib", json_null());
    summarize_with(&more);
    peak = json_object_get(json_object_get(summary, "train_fit_comparison"), "peak_vram");
    assert_string_equal("one_or_both_values_missing", json_string_value(json_object_get(peak, "reason")));
    json_decref(summary);
    json_decref(reference);
}

static void phases_and_windows_are_kept_apart(void **state)
{
    (void)state;
    marker(0, 0, 0);
    marker(2, 1, 0)->phase = "eval";
    sample(1, 100)->profile_window_ref = "w";
    sample(3, 300)->profile_window_ref = "w";
    ag_f0_line lines[3];
    static const char *const records[] = {"{\"schema_version\":\"bkl.f0_profile_window.v1\",\"profile_window_ref\":\"w\",\"kernel_count\":4}",
                                          "{\"schema_version\":\"bkl.f0_profile_window.v1\",\"profile_window_ref\":\"w\",\"agoge_run_id\":\"other\",\"kernel_count\":9}",
                                          "{\"schema_version\":\"bkl.f0_profile_window.v1\",\"profile_window_ref\":\"alone\"}"};
    for (int i = 0; i < 3; i++) lines[i] = (ag_f0_line){json_loads(records[i], 0, NULL), (size_t)i + 1};
    const ag_efficiency_input more = {.windows = lines, .n_windows = 3};
    summarize_with(&more);
    const json_t *phases = json_object_get(summary, "by_phase"), *windows = json_object_get(summary, "profile_windows");
    assert_true(json_number_value(json_object_get(json_object_get(json_object_get(phases, "train"), "power"), "avg_w")) == 100);
    assert_true(json_number_value(json_object_get(json_object_get(json_object_get(phases, "eval"), "power"), "avg_w")) == 300);
    assert_int_equal(2, json_array_size(windows));
    const json_t *w = json_array_get(windows, 0), *alone = json_array_get(windows, 1);
    assert_true(json_number_value(json_object_get(w, "span_s")) == 2);
    assert_int_equal(4, json_integer_value(json_object_get(json_object_get(w, "compact_summary"), "kernel_count")));
    assert_int_equal(2, json_array_size(json_object_get(w, "joined_phases")));
    assert_int_equal(0, json_integer_value(json_object_get(alone, "sample_count")));
    json_decref(summary);
    json_object_del(lines[2].json, "profile_window_ref");
    ag_err err;
    ag_efficiency_input bad = {&marker_stream, &sample_stream, lines, 3, NULL, NULL, 3};
    must_fail(AG_E_FORMAT, "profile_window_ref", ag_efficiency_summarize(&summary, &bad, &err));
    for (int i = 0; i < 3; i++) json_decref(lines[i].json);
}

static void several_runs_need_a_choice_and_a_gap_factor_must_be_possible(void **state)
{
    (void)state;
    marker(0, 0, 0);
    sample(1, 1)->run_id = "another";
    ag_err err;
    ag_efficiency_input in = {&marker_stream, &sample_stream, NULL, 0, NULL, NULL, 3};
    must_fail(AG_E_DATA, "--run-id", ag_efficiency_summarize(&summary, &in, &err));
    in.run_id = "nobody";
    must_fail(AG_E_NOT_FOUND, "nobody", ag_efficiency_summarize(&summary, &in, &err));
    in.run_id = "r";
    must(ag_efficiency_summarize(&summary, &in, &err));
    json_decref(summary);
    static const double wrong[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        in.max_gap_factor = wrong[i];
        must_fail(AG_E_USAGE, "gap factor", ag_efficiency_summarize(&summary, &in, &err));
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, finish)
    const struct CMUnitTest tests[] = {
        TEST(one_sample_is_expected_once_and_has_no_energy),
        TEST(a_grid_of_power_integrates_and_a_longer_gap_does_not),
        TEST(power_that_is_missing_is_skipped_and_counted),
        TEST(equal_times_are_not_increasing),
        TEST(a_median_cadence_may_be_a_fraction),
        TEST(a_counter_that_falls_or_is_missing_gives_no_rate),
        TEST(samples_of_another_gpu_are_counted_and_left_out),
        TEST(headroom_falls_back_to_free_memory_sample_by_sample),
        TEST(the_train_fit_reference_is_compared_on_its_own_basis_only),
        TEST(phases_and_windows_are_kept_apart),
        TEST(several_runs_need_a_choice_and_a_gap_factor_must_be_possible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
