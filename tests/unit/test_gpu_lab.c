/* Capability snapshots, the GPU gate, sanitizer logs, Green Context reports and qualification verdicts. */
#include "support/unit_test.h"

#include "lab/gpu_capability.h"
#include "lab/gpu_gate.h"
#include "lab/green_ctx_report.h"
#include "lab/qualification.h"
#include "lab/sanitizer_log.h"

static json_t *loaded(const char *path)
{
    ag_err err;
    json_t *root;
    must(ag_json_load(&root, path, 1 << 20, &err));
    return root;
}

static json_t *json(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    return value;
}

/* ---- capability --------------------------------------------------------------------------------------------------------- */
#define CAPABILITIES AGOGE_SOURCE_DIR "/fixtures/f0-nvml-capability/"

static void every_fixture_is_a_valid_snapshot_and_its_digest_ignores_values(void **state)
{
    (void)state;
    static const char *const names[] = {"full-support", "transient-failure", "valid-zero", "partial-support", "permission-denied", "device-lost", "no-device"};
    char digests[7][80];
    ag_err err;
    for (int i = 0; i < 7; i++) {
        char path[512];
        snprintf(path, sizeof path, CAPABILITIES "%s.json", names[i]);
        json_t *s = loaded(path);
        must(ag_capability_check(s, &err));
        snprintf(digests[i], sizeof digests[i], "%s", json_string_value(json_object_get(s, "capability_digest")));
        json_decref(s);
    }
    assert_string_equal(digests[0], digests[1]);
    assert_string_equal(digests[0], digests[2]);
    for (int i = 3; i < 7; i++) assert_string_not_equal(digests[0], digests[i]);
}

static void a_snapshot_that_breaks_a_rule_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *outer, *key, *value, *sentence;
    } cases[] = {
        {NULL, "schema_version", "\"bkl.f0_capability.v2\"", "schema_version"},
        {NULL, "record_kind", "\"agoge_marker\"", "record_kind"},
        {NULL, "agoge_run_id", "\"\"", "agoge_run_id"},
        {"gpu", "uuid", "\"\"", "gpu.uuid"},
        {"tools", "nvml_version", "\"\"", "tools.nvml_version"},
        {NULL, "timestamp_utc", "\"2026-09-14\"", "no UTC time"},
        {NULL, "device_status", "\"fine\"", "not known"},
        {NULL, "gpu", "{\"pci_bus_id\":null,\"uuid\":null,\"name\":null,\"compute_capability\":null}", "'uuid' or 'pci_bus_id'"},
        {"metrics", "power", "{\"capability\":\"supported\",\"status\":\"ok\",\"unit\":\"W\",\"value\":null}", "finite number"},
        {"metrics", "power", "{\"capability\":\"supported\",\"status\":\"unsupported\",\"unit\":\"W\",\"value\":null}", "capability must be 'unsupported'"},
        {"metrics", "power", "{\"capability\":\"unsupported\",\"status\":\"unsupported\",\"unit\":\"W\",\"value\":0}", "never a number"},
        {"metrics", "utilization_gpu", "{\"capability\":\"supported\",\"status\":\"ok\",\"unit\":\"%\",\"value\":101}", "outside 0 to 100"},
        {"metrics", "throttle", "{\"capability\":\"supported\",\"status\":\"ok\",\"unit\":null,\"value\":0,\"reasons\":[]}", "null value"},
        {NULL, "capability_digest", "\"sha256:00\"", "capability_digest"},
        {"tools", "driver_version", "\"999\"", "capability_digest"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *s = loaded(CAPABILITIES "full-support.json");
        json_object_set_new(cases[i].outer ? json_object_get(s, cases[i].outer) : s, cases[i].key, json(cases[i].value));
        ag_err err = {0};
        if (!ag_capability_check(s, &err)) fail_msg("%s = %s was accepted", cases[i].key, cases[i].value);
        if (!strstr(err.text, cases[i].sentence)) fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].sentence);
        json_decref(s);
    }
    json_t *s = loaded(CAPABILITIES "full-support.json");
    json_object_del(json_object_get(s, "metrics"), "clock_memory");
    ag_err err;
    must_fail(AG_E_FORMAT, "'clock_memory' is missing", ag_capability_check(s, &err));
    json_decref(s);
}

static void codes_of_nvml_map_to_their_status(void **state)
{
    (void)state;
    static const struct {
        int code;
        ag_f0_status status;
    } cases[] = {{0, AG_F0_OK},           {2, AG_F0_UNSUPPORTED},        {3, AG_F0_UNSUPPORTED},  {4, AG_F0_PERMISSION_DENIED}, {6, AG_F0_UNSUPPORTED},
                 {9, AG_F0_UNSUPPORTED},  {10, AG_F0_TRANSIENT_FAILURE}, {12, AG_F0_UNSUPPORTED}, {13, AG_F0_UNSUPPORTED},      {15, AG_F0_DEVICE_LOST},
                 {16, AG_F0_TRANSIENT_FAILURE}, {21, AG_F0_UNAVAILABLE}, {27, AG_F0_TRANSIENT_FAILURE}, {28, AG_F0_DEVICE_LOST}, {999, AG_F0_TRANSIENT_FAILURE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_int_equal(cases[i].status, ag_nvml_status(cases[i].code));
    assert_string_equal("NVML_ERROR_TIMEOUT", ag_nvml_code_name(10));
    const char *names[AG_NVML_MAX_REASONS];
    assert_int_equal(3, ag_nvml_throttle_reasons(names, 0x1000000000 | 0x104 | 0x1));
    assert_string_equal("gpu_idle", names[0]);
    assert_string_equal("sw_power_cap", names[1]);
    assert_string_equal("display_clock_setting", names[2]);
}

static ag_status bind_changed(const char *outer, const char *key, const char *value, ag_err *out)
{
    ag_err err;
    json_t *snapshot = loaded(AGOGE_SOURCE_DIR "/fixtures/f0-correlation/bkl-gpu-capability.json");
    ag_f0_stream samples;
    must(ag_f0_stream_load(&samples, AGOGE_SOURCE_DIR "/fixtures/f0-correlation/bkl-gpu-samples.jsonl", AG_F0_SAMPLE, &err));
    if (key) {
        json_t *line = samples.lines[1].json;
        json_object_set_new(outer ? json_object_get(line, outer) : line, key, json(value));
        must(ag_f0_record_read(&samples.records[1], line, AG_F0_SAMPLE, &err));
    }
    ag_status status = ag_capability_bind(snapshot, samples.records, samples.n, out);
    ag_f0_stream_free(&samples);
    json_decref(snapshot);
    return status;
}

static void samples_bind_to_the_snapshot_they_were_taken_under(void **state)
{
    (void)state;
    ag_err err;
    must(bind_changed(NULL, NULL, NULL, &err));
    must_fail(AG_E_VERIFY, "sample 1 belongs to the run", bind_changed(NULL, "agoge_run_id", "\"other\"", &err));
    must_fail(AG_E_VERIFY, "sample 1 was taken on the host", bind_changed("host", "hostname", "\"other\"", &err));
    must_fail(AG_E_VERIFY, "digest is missing", bind_changed(NULL, "capability_digest", "null", &err));
    must_fail(AG_E_VERIFY, "another GPU", bind_changed("gpu", "uuid", "\"GPU-other\"", &err));
    must_fail(AG_E_VERIFY, "before the snapshot", bind_changed(NULL, "timestamp_utc", "\"2020-01-01T00:00:00Z\"", &err));
    json_t *snapshot = loaded(AGOGE_SOURCE_DIR "/fixtures/f0-correlation/bkl-gpu-capability.json");
    must_fail(AG_E_DATA, "no sample", ag_capability_bind(snapshot, NULL, 0, &err));
    json_decref(snapshot);
}

/* ---- the gate -------------------------------------------------------------------------------------------------------------- */
static void paths_need_a_gpu_unless_a_rule_says_otherwise(void **state)
{
    (void)state;
    static const char *const gpu[] = {"kernels/src/a.cu", "kernels/include/bkl.h", "CMakeLists.txt", "kernels/CMakeLists.txt", "unknown.xyz",
                                      "fixtures/compute-sanitizer/memcheck-clean.log", "recipes/run.sh", "src/lab/gpu_gate.c", "src/train/step.c",
                                      "fixtures/f0-efficiency/a.txt", "tools/gpu_ci_gate.py"};
    static const char *const none[] = {"README.md", "kernels/README.md", "LICENSE", ".gitignore", "fixtures/f0-correlation/a.jsonl", "src/lab/f0_join.c",
                                       "fixtures/f0-nvml-capability/deep/a.json"};
    for (size_t i = 0; i < sizeof gpu / sizeof *gpu; i++)
        if (!ag_gpu_gate_path(gpu[i])) fail_msg("%s needs a GPU", gpu[i]);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (ag_gpu_gate_path(none[i])) fail_msg("%s needs no GPU", none[i]);
}

static void the_gate_passes_only_what_was_proven(void **state)
{
    (void)state;
    static const struct {
        const char *detection, *required, *trusted, *gpu;
        bool passes;
    } cases[] = {
        {"success", "true", "true", "success", true},     {"success", "false", "true", "skipped", true},   {"success", "false", "false", "skipped", true},
        {"success", "true", "true", "failure", false},    {"success", "true", "true", "cancelled", false}, {"success", "true", "true", "skipped", false},
        {"success", "true", "true", "", false},           {"success", "true", "false", "success", false},  {"success", "false", "true", "success", false},
        {"success", "false", "true", "failure", false},   {"failure", "false", "true", "skipped", false},  {"success", "yes", "true", "success", false},
        {"success", "true", "", "success", false},        {NULL, NULL, NULL, NULL, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ag_err err;
        const ag_gpu_verdict_input in = {cases[i].detection, cases[i].required, cases[i].trusted, cases[i].gpu};
        if ((ag_gpu_gate_verify(&in, &err) == AG_OK) != cases[i].passes) fail_msg("case %zu: expected %s", i, cases[i].passes ? "a pass" : "a failure");
    }
    assert_true(ag_gpu_gate_is_commit("0123456789abcdef0123456789abcdef01234567"));
    assert_false(ag_gpu_gate_is_commit("0123456789ABCDEF0123456789abcdef01234567"));
    assert_false(ag_gpu_gate_is_commit("0123"));
    assert_true(ag_gpu_gate_is_repository("owner/na.me_1"));
    assert_false(ag_gpu_gate_is_repository("owner"));
    assert_false(ag_gpu_gate_is_repository("owner/name/more"));
    assert_false(ag_gpu_gate_is_repository("own er/name"));
}

/* ---- sanitizer logs ----------------------------------------------------------------------------------------------------------- */
static void the_last_summary_line_counts(void **state)
{
    (void)state;
    int64_t errors = -1;
    static const char two[] = "===== ERROR SUMMARY: 0 errors\nmore\n===== ERROR SUMMARY: 1 error\n";
    assert_true(ag_sanitizer_summary(&errors, two, strlen(two)));
    assert_int_equal(1, errors);
    static const char *const none[] = {"", "ERROR SUMMARY: ", "ERROR SUMMARY: x errors", "ERROR SUMMARY: 5 warnings", "ERROR SUMMARY: 5"};
    for (int i = 0; i < 5; i++) assert_false(ag_sanitizer_summary(&errors, none[i], strlen(none[i])));
    ag_str s = {0};
    assert_false(ag_sanitizer_truncate(&s, "12345", 5, 5));
    assert_string_equal("12345", s.text);
    ag_str_clear(&s);
    assert_true(ag_sanitizer_truncate(&s, "12345", 5, 4)); /* below the room of the mark: the mark alone */
    assert_string_equal("\n[truncated]\n", s.text);
    ag_str_clear(&s);
    char many[100];
    memset(many, 'a', sizeof many);
    assert_true(ag_sanitizer_truncate(&s, many, sizeof many, 40));
    assert_int_equal(8 + 13, s.n);
    ag_str_free(&s);
}

/* ---- Green Context reports --------------------------------------------------------------------------------------------------------- */
#define SEVEN "[1,1,1,1,1,1,1]"
#define INVOCATION "{\"correctness\":true,\"ordinary_gpu_latency_ms\":" SEVEN ",\"partitioned_gpu_latency_ms\":" SEVEN ",\"ordinary_median_ms\":10.0,\"partitioned_median_ms\":9.0,\"gate_pass\":true}"
static const char measured_report[] =
    "{\"schema\":\"bkl.green_ctx_bench.v1\",\"outcome\":\"measured\",\"measurement_skipped_reason\":null,"
    "\"host\":{\"compute_capability\":\"12.0\",\"required_headroom_bytes\":2147483648,\"projected_free_after_bytes\":3000000000,\"vram_min_observed_bytes\":3000000000},"
    "\"capability\":{\"created_groups\":2,\"sm_total\":84,\"background_sm_count\":40},"
    "\"workload\":{\"background_grid_blocks\":252,\"background_active_blocks_per_sm\":1,\"ordinary_background_waves\":3.0,\"partitioned_background_waves\":6.3},"
    "\"invocations\":[" INVOCATION "," INVOCATION "," INVOCATION "],\"summary\":{\"ordinary_median_ms\":10.0,\"partitioned_median_ms\":9.0},"
    "\"decision\":{\"required_improvement_percent\":10.0,\"passed_all_three\":true,\"follow_up_justified\":true}}";
static const char skipped_report[] =
    "{\"schema\":\"bkl.green_ctx_bench.v1\",\"outcome\":\"unsupported\",\"measurement_skipped_reason\":\"cuda_error_not_supported\","
    "\"host\":{\"compute_capability\":\"12.0\"},\"invocations\":[],"
    "\"summary\":{\"ordinary_median_ms\":null,\"partitioned_median_ms\":null,\"improvement_percent\":null},"
    "\"decision\":{\"required_improvement_percent\":10.0,\"passed_all_three\":null,\"follow_up_justified\":false}}";

typedef struct {
    const char *block, *key, *value, *sentence;
} green_case;

static void check_green(const char *text, const green_case *cases, size_t n)
{
    const char *outcome;
    ag_err err;
    json_t *report = json(text);
    must(ag_green_ctx_report_check(&outcome, report, &err));
    json_decref(report);
    for (size_t i = 0; i < n; i++) {
        report = json(text);
        json_t *block = !cases[i].block ? report : strcmp(cases[i].block, "first") == 0 ? json_array_get(json_object_get(report, "invocations"), 0) : json_object_get(report, cases[i].block);
        json_object_set_new(block, cases[i].key, json(cases[i].value));
        err.text[0] = 0;
        if (!ag_green_ctx_report_check(&outcome, report, &err)) fail_msg("%s = %s was accepted", cases[i].key, cases[i].value);
        if (!strstr(err.text, cases[i].sentence)) fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].sentence);
        json_decref(report);
    }
}

static void a_green_context_report_must_agree_with_itself(void **state)
{
    (void)state;
    static const green_case cases[] = {
        {NULL, "schema", "\"x\"", "schema"},
        {"host", "compute_capability", "\"9.0\"", "12.0"},
        {NULL, "outcome", "\"guessed\"", "not known"},
        {NULL, "measurement_skipped_reason", "\"x\"", "null"},
        {"host", "vram_min_observed_bytes", "5", "headroom"},
        {"capability", "created_groups", "1", "created_groups"},
        {"capability", "background_sm_count", "0", "divide by zero"},
        {"workload", "partitioned_background_waves", "6.30001", "partitioned_background_waves"},
        {"summary", "ordinary_median_ms", "0", "above 0"},
        {NULL, "invocations", "[" INVOCATION "," INVOCATION "]", "exactly 3"},
        {"first", "correctness", "1", "correctness"},
        {"first", "ordinary_gpu_latency_ms", "[1]", "7 samples"}, /* a smoke report */
        {"first", "partitioned_median_ms", "9.01", "gate_pass"},
        {"first", "gate_pass", "1", "true or false"},
        {"first", "ordinary_median_ms", "0", "no improvement"},
        {"decision", "passed_all_three", "false", "passed_all_three"},
        {"decision", "follow_up_justified", "false", "follow_up_justified"},
        {"decision", "required_improvement_percent", "11", "gate_pass"},
    };
    check_green(measured_report, cases, sizeof cases / sizeof *cases);
    static const green_case skipped[] = {
        {NULL, "measurement_skipped_reason", "\"\"", "say why"},
        {NULL, "invocations", "[" INVOCATION "]", "no invocations"},
        {"summary", "ordinary_median_ms", "1", "must be null"},
        {"decision", "passed_all_three", "false", "must be null"},
        {"decision", "follow_up_justified", "null", "must be false"},
    };
    check_green(skipped_report, skipped, sizeof skipped / sizeof *skipped);
}

/* ---- qualification ------------------------------------------------------------------------------------------------------------------- */
static json_t *run_of(double step_ms, const char *backend)
{
    json_t *steps = json_array(), *losses = json_array();
    for (int i = 0; i < AG_QUALIFICATION_WARM_UP + AG_QUALIFICATION_STEPS; i++) {
        json_array_append_new(steps, json_real(i < AG_QUALIFICATION_WARM_UP ? 1000 : step_ms)); /* warm-up does not count */
        json_array_append_new(losses, json_real(2));
    }
    return json_pack("{ss so so si}", "backend", backend, "step_ms", steps, "loss", losses, "min_free_mib", 4096);
}

static json_t *evidence_of(double candidate_ms)
{
    json_t *models = json_array();
    for (int m = 0; m < 2; m++) {
        json_t *pairs = json_array();
        for (int p = 0; p < 3; p++)
            json_array_append_new(pairs, json_pack("{ss so so}", "order", p % 2 ? "candidate_first" : "reference_first", "reference", run_of(100, "reference"),
                                                   "candidate", run_of(candidate_ms, "bkl")));
        json_array_append_new(models, json_pack("{ss sf so}", "name", m ? "granite" : "minicpm5", "loss_tolerance", 1e-3, "pairs", pairs));
    }
    return json_pack("{ss so}", "schema", AG_QUALIFICATION_SCHEMA, "models", models);
}

static json_t *second_pair(json_t *evidence)
{
    return json_array_get(json_object_get(json_array_get(json_object_get(evidence, "models"), 1), "pairs"), 1);
}

static void expect_verdict(json_t *evidence, const char *verdict, size_t n_reasons)
{
    ag_err err;
    json_t *result;
    must(ag_qualification_judge(&result, evidence, &err));
    assert_string_equal(verdict, json_string_value(json_object_get(result, "verdict")));
    assert_int_equal(n_reasons, json_array_size(json_object_get(result, "reasons")));
    json_decref(result);
    json_decref(evidence);
}

static void qualification_needs_every_pair_of_both_models(void **state)
{
    (void)state;
    expect_verdict(evidence_of(95), "pass", 0);
    expect_verdict(evidence_of(95.01), "fail", 6);
    json_t *e = evidence_of(80);
    json_object_set_new(second_pair(e), "candidate", run_of(96, "bkl"));
    expect_verdict(e, "fail", 1);
    e = evidence_of(80);
    json_object_set_new(second_pair(e), "candidate", run_of(80, "reference"));
    expect_verdict(e, "invalid", 1);
    e = evidence_of(80);
    json_object_set_new(json_object_get(second_pair(e), "candidate"), "min_free_mib", json_integer(2047));
    expect_verdict(e, "invalid", 1);
    e = evidence_of(80);
    json_array_remove(json_object_get(json_object_get(second_pair(e), "reference"), "step_ms"), 0);
    expect_verdict(e, "invalid", 1);
    e = evidence_of(80);
    json_array_set_new(json_object_get(json_object_get(second_pair(e), "reference"), "loss"), 7, json_real(2.01));
    expect_verdict(e, "fail", 1);
    e = evidence_of(80);
    json_object_set_new(second_pair(e), "order", json_string("reference_first"));
    expect_verdict(e, "invalid", 1);
    ag_err err;
    json_t *result;
    e = evidence_of(80);
    json_array_remove(json_object_get(e, "models"), 0);
    must_fail(AG_E_FORMAT, "must hold 2 models", ag_qualification_judge(&result, e, &err));
    json_decref(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_is_a_valid_snapshot_and_its_digest_ignores_values),
        cmocka_unit_test(a_snapshot_that_breaks_a_rule_is_refused),
        cmocka_unit_test(codes_of_nvml_map_to_their_status),
        cmocka_unit_test(samples_bind_to_the_snapshot_they_were_taken_under),
        cmocka_unit_test(paths_need_a_gpu_unless_a_rule_says_otherwise),
        cmocka_unit_test(the_gate_passes_only_what_was_proven),
        cmocka_unit_test(the_last_summary_line_counts),
        cmocka_unit_test(a_green_context_report_must_agree_with_itself),
        cmocka_unit_test(qualification_needs_every_pair_of_both_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
