/* summarize-f0-efficiency, check-f0-efficiency, check-green-ctx-report. */
#include "kernels/tools/bkl_command.h"

#include "base/fs.h"
#include "lab/f0_efficiency.h"
#include "lab/green_ctx_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CORRELATION "fixtures/f0-correlation/"
#define EFFICIENCY "fixtures/f0-efficiency/"

typedef struct {
    const char *markers, *samples, *windows, *train_fit, *run_id, *out, *report;
    double max_gap_factor;
    bool print_json;
} summary_options;

/* All that a summary reads, loaded. */
typedef struct {
    ag_f0_stream markers, samples;
    ag_f0_line *windows;
    size_t n_windows;
    json_t *train_fit;
} inputs;

static ag_status load_inputs(inputs *in, const summary_options *o, ag_err *err)
{
    AG_TRY(ag_f0_stream_load(&in->markers, o->markers, AG_F0_MARKER, err));
    AG_TRY(ag_f0_stream_load(&in->samples, o->samples, AG_F0_SAMPLE, err));
    if (o->windows) AG_TRY(ag_f0_lines_load(&in->windows, &in->n_windows, o->windows, err));
    return o->train_fit ? bkl_json_load(&in->train_fit, o->train_fit, err) : AG_OK;
}

static void free_inputs(inputs *in)
{
    ag_f0_stream_free(&in->markers);
    ag_f0_stream_free(&in->samples);
    ag_f0_lines_free(&in->windows, in->n_windows);
    ag_json_free(&in->train_fit);
}

static ag_status summarize(json_t **out, const inputs *in, const char *run_id, double max_gap_factor, ag_err *err)
{
    const ag_efficiency_input input = {&in->markers, &in->samples, in->windows, in->n_windows, in->train_fit, run_id, max_gap_factor};
    return ag_efficiency_summarize(out, &input, err);
}

static ag_status publish_report(const char *path, const ag_str *report, ag_err *err)
{
    ag_arena arena = {0};
    ag_status status = ag_make_dirs(ag_path_dir(&arena, path), err);
    ag_arena_free(&arena);
    return status ? status : ag_file_publish(path, report->text, report->n, err);
}

static ag_status run_summary_with(const summary_options *o, inputs *in, ag_err *err)
{
    AG_TRY(load_inputs(in, o, err));
    json_t *summary;
    AG_TRY(summarize(&summary, in, o->run_id, o->max_gap_factor, err));
    ag_str report = {0};
    ag_efficiency_report(&report, summary);
    ag_status status = o->out ? bkl_json_publish(o->out, summary, err) : AG_OK;
    if (!status && o->report) status = publish_report(o->report, &report, err);
    if (!status && o->print_json) bkl_json_print(summary);
    if (!status && !o->print_json) fwrite(report.text, 1, report.n, stdout);
    const json_t *coverage = json_object_get(summary, "coverage"), *rate = json_object_get(coverage, "coverage_ratio");
    if (!status) {
        fprintf(stderr, "markers=%zu samples=%zu joined=%lld coverage=", in->markers.n, in->samples.n, (long long)json_integer_value(json_object_get(coverage, "joined_count")));
        json_is_real(rate) ? fprintf(stderr, "%g\n", json_real_value(rate)) : fprintf(stderr, "n/a\n");
    }
    ag_str_free(&report);
    json_decref(summary);
    return status;
}

static int run_summary(int argc, char **argv)
{
    summary_options o = {CORRELATION "agoge-markers.jsonl", CORRELATION "bkl-gpu-samples.jsonl", NULL, NULL, NULL, NULL, NULL, 3.0, false};
    CLI_PARSE(&bkl_summarize_f0_efficiency, &o, argc, argv);
    inputs in = {0};
    ag_err err;
    ag_status status = run_summary_with(&o, &in, &err);
    free_inputs(&in);
    if (status == AG_E_USAGE) err.code = AG_E_CONFIG; /* a gap factor that cannot be is a rejected input, exit 1 */
    return status ? cli_fail(&err) : 0;
}

static const cli_option summary_table[] = {
    CLI_STRING("markers", summary_options, markers, "F", "training's markers, JSONL", 0),
    CLI_STRING("samples", summary_options, samples, "F", "the sampler's samples, JSONL", 0),
    CLI_STRING("profile-windows", summary_options, windows, "F", "compact profile records, JSONL", 0),
    CLI_STRING("train-fit-ref", summary_options, train_fit, "F", "the train-fit reference to compare with, JSON", 0),
    CLI_STRING("run-id", summary_options, run_id, "ID", "the run, where the files hold several", 0),
    CLI_STRING("out", summary_options, out, "F", "write the summary there, JSON", 0),
    CLI_STRING("report", summary_options, report, "F", "write the report there, Markdown", 0),
    CLI_DOUBLE("max-gap-factor", summary_options, max_gap_factor, "X", "longest gap that energy is integrated over, in cadences (3)"),
    CLI_FLAG("print-json", summary_options, print_json, "the summary on standard output instead of the report"),
    CLI_END};
const cli_command bkl_summarize_f0_efficiency = {"summarize-f0-efficiency", NULL, "tokens a second, memory peaks, power and energy of a run", NULL, summary_table, run_summary};

/* ---- check-f0-efficiency: the fixtures' own numbers, and that changing what must not matter changes nothing -------------------- */
static const json_t *at(const json_t *summary, const char *block, const char *key) { return json_object_get(json_object_get(summary, block), key); }

/* JSON values are the same where 2 and 2.0 are the same number. */
static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!same_value(json_array_get(a, i), json_array_get(b, i))) return false;
        return true;
    }
    if (!json_is_object(a)) return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b)) return false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)a, key, value) {
        const json_t *other = json_object_get(b, key);
        if (!other || !same_value(value, other)) return false;
    }
    return true;
}

static ag_status expect(bool holds, const char *what, ag_err *err) { return holds ? AG_OK : ag_fail(err, AG_E_VERIFY, "%s", what); }

static ag_status check_example(const inputs *in, ag_err *err)
{
    json_t *summary, *wanted;
    AG_TRY(bkl_json_load(&wanted, EFFICIENCY "minicpm5-summary.json", err));
    ag_status status = summarize(&summary, in, NULL, 3.0, err);
    if (!status) {
        status = expect(same_value(summary, wanted), "the summary of the correlation fixtures differs from minicpm5-summary.json", err);
        const ag_f0_record *s = in->samples.records;
        double used = 0, left = INFINITY;
        for (size_t i = 0; i < in->samples.n; i++) {
            used = fmax(used, s[i].readings[AG_F0_VRAM_USED].value);
            left = fmin(left, s[i].readings[AG_F0_VRAM_FREE].value);
        }
        if (!status)
            status = expect(json_number_value(at(summary, "vram", "peak_used_mib")) == used && json_number_value(at(summary, "vram", "min_free_mib")) == left,
                            "the extrema are not those of the samples", err);
        if (!status)
            status = expect(json_is_null(at(summary, "energy", "approximate_joules")), "energy was integrated over a long gap", err);
        json_decref(summary);
    }
    ag_json_free(&wanted);
    return status;
}

/* Summaries of the fixtures, and of the fixtures after `change`; the caller compares. */
typedef void changer(inputs *in);
typedef ag_status comparer(const json_t *before, const json_t *after, ag_err *err);

static ag_status check_changed(const summary_options *files, changer *change, comparer *compare, ag_err *err)
{
    inputs in = {0};
    json_t *before = NULL, *after = NULL;
    ag_status status = load_inputs(&in, files, err);
    if (!status) status = summarize(&before, &in, NULL, 3.0, err);
    if (!status) {
        change(&in);
        status = summarize(&after, &in, NULL, 3.0, err);
    }
    if (!status) status = compare(before, after, err);
    json_decref(before);
    json_decref(after);
    free_inputs(&in);
    return status;
}

static void raise_utilization(inputs *in)
{
    for (size_t i = 0; i < in->samples.n; i++) in->samples.records[i].readings[AG_F0_UTILIZATION_GPU].value = 99;
}
static ag_status same_progress(const json_t *before, const json_t *after, ag_err *err)
{
    return expect(json_equal(json_object_get(before, "throughput"), json_object_get(after, "throughput")) &&
                      json_equal(json_object_get(before, "step_time"), json_object_get(after, "step_time")) &&
                      !json_equal(json_object_get(before, "utilization_gpu"), json_object_get(after, "utilization_gpu")),
                  "GPU load changed tokens a second or the step time", err);
}

static void rename_model(inputs *in)
{
    for (size_t i = 0; i < in->markers.n; i++)
        json_object_set_new(in->markers.lines[i].json, "model_id", json_string("ibm-granite/granite-4.1-3b-base"));
}
static ag_status same_numbers(const json_t *before, const json_t *after, ag_err *err)
{
    json_t *a = json_copy((json_t *)(uintptr_t)before), *b = json_copy((json_t *)(uintptr_t)after);
    const bool renamed = !json_equal(json_object_get(a, "run"), json_object_get(b, "run"));
    json_object_del(a, "run");
    json_object_del(b, "run");
    const bool same = json_equal(a, b);
    json_decref(a);
    json_decref(b);
    return expect(same && renamed, "another model's name changed a number", err);
}

static void make_foreign(inputs *in)
{
    in->samples.records[1].gpu = (ag_f0_gpu){.uuid = "GPU-another"};
    in->samples.records[1].readings[AG_F0_VRAM_USED].value = 1e6;
}
static ag_status foreign_left_out(const json_t *before, const json_t *after, ag_err *err)
{
    (void)before;
    return expect(json_integer_value(json_object_get(after, "excluded_foreign_sample_count")) == 1 &&
                      json_number_value(at(after, "vram", "peak_used_mib")) < 1e6,
                  "a sample of another GPU entered the summary", err);
}

static void lose_headroom(inputs *in)
{
    in->samples.records[0].readings[AG_F0_HEADROOM] = (ag_f0_measurement){AG_F0_UNAVAILABLE, 0};
    in->samples.records[0].readings[AG_F0_VRAM_FREE].value = 1000;
    in->samples.records[1].readings[AG_F0_HEADROOM].value = 5000;
}
static ag_status floor_failed(const json_t *before, const json_t *after, ag_err *err)
{
    (void)before;
    return expect(json_is_false(at(after, "vram", "meets_host_floor")) && json_number_value(at(after, "vram", "effective_min_headroom_mib")) == 1000,
                  "free memory below the floor was hidden by another sample's headroom", err);
}

static void lose_power(inputs *in) { in->samples.records[0].readings[AG_F0_POWER] = (ag_f0_measurement){AG_F0_TRANSIENT_FAILURE, 0}; }
static ag_status gap_kept_without_power(const json_t *before, const json_t *after, ag_err *err)
{
    (void)before;
    return expect(json_integer_value(at(after, "energy", "pairs_skipped_long_gap")) == 1 &&
                      json_integer_value(at(after, "energy", "pairs_skipped_missing_power")) == 1 &&
                      json_array_size(at(after, "coverage", "long_gaps")) == 1 && json_is_null(at(after, "energy", "approximate_joules")) &&
                      json_integer_value(at(after, "power", "missing_count")) == 1,
                  "a long gap with missing power was not counted once in each", err);
}

/* The two samples inside the two markers, 1 s apart, cadence 500 ms: a pair of 100 and 200 W. */
static void align(inputs *in)
{
    ag_f0_record *s = in->samples.records;
    s[0].monotonic_ns = in->markers.records[0].monotonic_ns;
    s[1].monotonic_ns = s[0].monotonic_ns + 1000000000;
    in->markers.records[1].monotonic_ns = s[1].monotonic_ns;
    s[0].readings[AG_F0_POWER].value = 100;
    s[1].readings[AG_F0_POWER].value = 200;
}
static ag_status joules_of_a_grid(const json_t *before, const json_t *after, ag_err *err)
{
    (void)before;
    return expect(json_number_value(at(after, "energy", "approximate_joules")) == 150 && json_number_value(at(after, "energy", "approximate_joules_per_step")) == 150 &&
                      json_is_null(at(after, "energy", "rates_omitted_reason")),
                  "100 W and 200 W over 1 s are 150 J for the one step", err);
}

static ag_status check_train_fit(const summary_options *files, ag_err *err)
{
    inputs in = {0};
    json_t *summary = NULL;
    ag_status status = load_inputs(&in, files, err);
    if (!status) {
        json_object_set_new(in.train_fit, "peak_basis", json_string("bkl_gpu_sample.vram_used"));
        json_object_set_new(in.train_fit, "peak_allocated_mib", json_integer(9800));
        json_object_set_new(in.train_fit, "min_free_basis", json_string("bkl_gpu_sample.vram_free"));
        json_object_set_new(in.train_fit, "min_free_mib", json_integer(6503));
        status = summarize(&summary, &in, NULL, 3.0, err);
    }
    if (!status) {
        const json_t *c = json_object_get(summary, "train_fit_comparison");
        status = expect(json_is_true(at(c, "peak_vram", "agreement")) && json_is_true(at(c, "min_headroom", "agreement")) &&
                            json_equal(json_object_get(c, "reference"), in.train_fit),
                        "a reference on the samples' own basis does not agree, or was overwritten", err);
    }
    json_decref(summary);
    free_inputs(&in);
    return status;
}

static ag_status check_efficiency(ag_err *err)
{
    const summary_options files = {CORRELATION "agoge-markers.jsonl", CORRELATION "bkl-gpu-samples.jsonl", EFFICIENCY "profile-windows.jsonl",
                                   EFFICIENCY "train-fit-reference.json", NULL, NULL, NULL, 3.0, false};
    inputs in = {0};
    ag_status status = load_inputs(&in, &files, err);
    if (!status) status = check_example(&in, err);
    free_inputs(&in);
    AG_TRY(status);
    AG_TRY(check_changed(&files, raise_utilization, same_progress, err));
    AG_TRY(check_changed(&files, rename_model, same_numbers, err));
    AG_TRY(check_changed(&files, make_foreign, foreign_left_out, err));
    AG_TRY(check_changed(&files, lose_headroom, floor_failed, err));
    AG_TRY(check_changed(&files, lose_power, gap_kept_without_power, err));
    AG_TRY(check_changed(&files, align, joules_of_a_grid, err));
    return check_train_fit(&files, err);
}

typedef struct {
    char none;
} no_options;

static int run_check_efficiency(int argc, char **argv)
{
    no_options o;
    CLI_PARSE(&bkl_check_f0_efficiency, &o, argc, argv);
    ag_err err;
    if (check_efficiency(&err)) return cli_fail(&err);
    printf("efficiency formulas ok\n");
    return 0;
}

static const cli_option no_table[] = {CLI_END};
const cli_command bkl_check_f0_efficiency = {"check-f0-efficiency", NULL, "check the efficiency formulas against the repository's fixtures", NULL, no_table, run_check_efficiency};

/* ---- check-green-ctx-report ------------------------------------------------------------------------------------------------------ */
static int run_green(int argc, char **argv)
{
    if (argc == 1 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        printf("bkl check-green-ctx-report REPORT.json\n\n%s\n", bkl_check_green_ctx_report.summary);
        return 0;
    }
    if (argc != 1) {
        fprintf(stderr, "usage: bkl check-green-ctx-report REPORT.json\n");
        return 2;
    }
    ag_err err;
    json_t *report;
    const char *outcome;
    ag_status status = bkl_json_load(&report, argv[0], &err);
    if (status) return fprintf(stderr, "%s\n", err.text), 1;
    status = ag_green_ctx_report_check(&outcome, report, &err);
    if (status)
        fprintf(stderr, "%s: %s\n", argv[0], err.text);
    else
        printf("%s: outcome=%s ok\n", argv[0], outcome);
    ag_json_free(&report);
    return status ? 1 : 0;
}
const cli_command bkl_check_green_ctx_report = {"check-green-ctx-report", NULL, "check a Green Context report against its own numbers", NULL, no_table, run_green};
