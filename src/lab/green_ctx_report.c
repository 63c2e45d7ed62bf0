#include "lab/green_ctx_report.h"

#include <math.h>
#include <string.h>

enum { INVOCATIONS = 3, SAMPLES_PER_MODE = 7, GROUPS = 2 };
static const double wave_tolerance = 1e-6;

static ag_status need_number(double *out, const json_t *object, const char *key, ag_err *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) return ag_fail(err, AG_E_FORMAT, "'%s' must be a number", key);
    *out = json_number_value(value);
    return isfinite(*out) ? AG_OK : ag_fail(err, AG_E_FORMAT, "'%s' must be finite", key);
}

static ag_status need_object(const json_t **out, const json_t *object, const char *key, ag_err *err)
{
    *out = json_object_get(object, key);
    return json_is_object(*out) ? AG_OK : ag_fail(err, AG_E_FORMAT, "'%s' must be an object", key);
}

static ag_status broken(ag_err *err, const char *rule) { return ag_fail(err, AG_E_VERIFY, "%s", rule); }

/* Waves of a grid = its blocks over the blocks that fit at once on the multiprocessors it has. */
static ag_status check_waves(const json_t *workload, const char *key, double sm_count, ag_err *err)
{
    double stated, grid, per_sm;
    AG_TRY(need_number(&stated, workload, key, err));
    AG_TRY(need_number(&grid, workload, "background_grid_blocks", err));
    AG_TRY(need_number(&per_sm, workload, "background_active_blocks_per_sm", err));
    if (per_sm * sm_count == 0) return ag_fail(err, AG_E_FORMAT, "'%s' would divide by zero", key);
    return fabs(grid / (per_sm * sm_count) - stated) <= wave_tolerance
               ? AG_OK
               : ag_fail(err, AG_E_VERIFY, "'%s' is %.6f, the grid makes it %.6f", key, stated, grid / (per_sm * sm_count));
}

static ag_status check_invocation(bool *passed, const json_t *invocation, double required, ag_err *err)
{
    static const char *const modes[] = {"ordinary_gpu_latency_ms", "partitioned_gpu_latency_ms"};
    double ordinary, partitioned;
    if (!json_is_true(json_object_get(invocation, "correctness"))) return broken(err, "'correctness' of an invocation is not true");
    for (int i = 0; i < 2; i++)
        if (json_array_size(json_object_get(invocation, modes[i])) != SAMPLES_PER_MODE)
            return ag_fail(err, AG_E_VERIFY, "'%s' must have %d samples", modes[i], SAMPLES_PER_MODE);
    AG_TRY(need_number(&ordinary, invocation, "ordinary_median_ms", err));
    AG_TRY(need_number(&partitioned, invocation, "partitioned_median_ms", err));
    const json_t *stated = json_object_get(invocation, "gate_pass");
    if (!json_is_boolean(stated)) return ag_fail(err, AG_E_FORMAT, "'gate_pass' must be true or false");
    if (ordinary == 0) return ag_fail(err, AG_E_FORMAT, "'ordinary_median_ms' is 0, which no improvement can be taken of");
    *passed = 100 * (ordinary - partitioned) / ordinary >= required;
    return *passed == json_is_true(stated) ? AG_OK : broken(err, "'gate_pass' is not what the medians of its invocation say");
}

static ag_status check_headroom(const json_t *host, ag_err *err)
{
    double required, projected, observed;
    AG_TRY(need_number(&required, host, "required_headroom_bytes", err));
    AG_TRY(need_number(&projected, host, "projected_free_after_bytes", err));
    AG_TRY(need_number(&observed, host, "vram_min_observed_bytes", err));
    if (projected < required || observed < required) return broken(err, "the free memory was below the headroom that is required");
    return AG_OK;
}

static ag_status check_measured(const json_t *report, ag_err *err)
{
    const json_t *host, *capability, *workload, *summary, *decision, *invocation;
    double groups, sm_total, sm_background, required, median;
    AG_TRY(need_object(&host, report, "host", err));
    AG_TRY(need_object(&capability, report, "capability", err));
    AG_TRY(need_object(&workload, report, "workload", err));
    AG_TRY(need_object(&summary, report, "summary", err));
    AG_TRY(need_object(&decision, report, "decision", err));
    if (!json_is_null(json_object_get(report, "measurement_skipped_reason")))
        return broken(err, "a measured report must have a null 'measurement_skipped_reason'");
    AG_TRY(check_headroom(host, err));
    AG_TRY(need_number(&groups, capability, "created_groups", err));
    if (groups != GROUPS) return broken(err, "'created_groups' must be 2");
    AG_TRY(need_number(&sm_total, capability, "sm_total", err));
    AG_TRY(need_number(&sm_background, capability, "background_sm_count", err));
    AG_TRY(check_waves(workload, "ordinary_background_waves", sm_total, err));
    AG_TRY(check_waves(workload, "partitioned_background_waves", sm_background, err));
    static const char *const medians[] = {"ordinary_median_ms", "partitioned_median_ms"};
    for (int i = 0; i < 2; i++) {
        AG_TRY(need_number(&median, summary, medians[i], err));
        if (median <= 0) return ag_fail(err, AG_E_VERIFY, "'summary.%s' must be above 0", medians[i]);
    }
    AG_TRY(need_number(&required, decision, "required_improvement_percent", err));
    const json_t *invocations = json_object_get(report, "invocations");
    if (json_array_size(invocations) != INVOCATIONS) return broken(err, "'invocations' must hold exactly 3");
    bool all = true;
    size_t i;
    json_array_foreach(invocations, i, invocation) {
        bool passed = false;
        if (check_invocation(&passed, invocation, required, err)) return ag_err_prefix(err, "invocation %zu", i + 1);
        all &= passed;
    }
    static const char *const verdicts[] = {"passed_all_three", "follow_up_justified"};
    for (i = 0; i < 2; i++) {
        const json_t *stated = json_object_get(decision, verdicts[i]);
        if (!json_is_boolean(stated) || json_is_true(stated) != all)
            return ag_fail(err, AG_E_VERIFY, "'%s' must be %s, which is what the invocations say", verdicts[i], all ? "true" : "false");
    }
    return AG_OK;
}

static ag_status check_skipped(const json_t *report, ag_err *err)
{
    const json_t *reason = json_object_get(report, "measurement_skipped_reason"), *invocations = json_object_get(report, "invocations");
    const json_t *summary, *decision;
    if (json_string_length(reason) == 0) return broken(err, "a report without a measurement must say why in 'measurement_skipped_reason'");
    if (!json_is_array(invocations) || json_array_size(invocations)) return broken(err, "a report without a measurement must have no invocations");
    AG_TRY(need_object(&summary, report, "summary", err));
    AG_TRY(need_object(&decision, report, "decision", err));
    static const char *const keys[] = {"ordinary_median_ms", "partitioned_median_ms", "improvement_percent"};
    for (int i = 0; i < 3; i++)
        if (!json_is_null(json_object_get(summary, keys[i]))) return ag_fail(err, AG_E_VERIFY, "'summary.%s' must be null where nothing was measured", keys[i]);
    if (!json_is_null(json_object_get(decision, "passed_all_three"))) return broken(err, "'passed_all_three' must be null where nothing was measured");
    return json_is_false(json_object_get(decision, "follow_up_justified"))
               ? AG_OK
               : broken(err, "'follow_up_justified' must be false where nothing was measured");
}

ag_status ag_green_ctx_report_check(const char **outcome, const json_t *report, ag_err *err)
{
    static const char *const outcomes[] = {"measured",      "compile_time_api_unavailable", "unsupported",
                                           "not_permitted", "no_legal_split",               "insufficient_vram_headroom"};
    const char *schema = json_string_value(json_object_get(report, "schema"));
    if (!schema || strcmp(schema, "bkl.green_ctx_bench.v1") != 0)
        return ag_fail(err, AG_E_FORMAT, "'schema' is '%s', expected 'bkl.green_ctx_bench.v1'", schema ? schema : "(none)");
    const char *capability = json_string_value(json_object_get(json_object_get(report, "host"), "compute_capability"));
    if (!capability || strcmp(capability, "12.0") != 0)
        return ag_fail(err, AG_E_VERIFY, "'compute_capability' is '%s', expected '12.0'", capability ? capability : "(none)");
    *outcome = json_string_value(json_object_get(report, "outcome"));
    size_t i = 0;
    while (i < sizeof outcomes / sizeof *outcomes && (!*outcome || strcmp(*outcome, outcomes[i]) != 0)) i++;
    if (i == sizeof outcomes / sizeof *outcomes)
        return ag_fail(err, AG_E_FORMAT, "'outcome' is '%s', which is not known", *outcome ? *outcome : "(none)");
    return i == 0 ? check_measured(report, err) : check_skipped(report, err);
}
