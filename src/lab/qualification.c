#include "lab/qualification.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double required_percent = 5.0, floor_mib = 2048;

typedef struct {
    json_t *reasons;
    bool failed, invalid;
} judgement;

static void reason(judgement *j, bool invalid, const char *model, size_t pair, const char *what)
{
    char text[512];
    snprintf(text, sizeof text, "%s, pair %zu: %s", model, pair + 1, what);
    json_array_append_new(j->reasons, json_string(text));
    *(invalid ? &j->invalid : &j->failed) = true;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the steps behind the warm-up; false where they are too few or one is no time. */
static bool steady_median(double *out, const json_t *steps)
{
    const size_t n = json_array_size(steps);
    if (n < AG_QUALIFICATION_WARM_UP + AG_QUALIFICATION_STEPS) return false;
    const size_t measured = n - AG_QUALIFICATION_WARM_UP;
    double *values = malloc(measured * sizeof *values);
    bool good = values != NULL;
    for (size_t i = 0; good && i < measured; i++) {
        values[i] = json_number_value(json_array_get(steps, i + AG_QUALIFICATION_WARM_UP));
        good = isfinite(values[i]) && values[i] > 0;
    }
    if (good) {
        qsort(values, measured, sizeof *values, by_value);
        *out = measured % 2 ? values[measured / 2] : (values[measured / 2 - 1] + values[measured / 2]) / 2;
    }
    free(values);
    return good;
}

static bool same_losses(const json_t *a, const json_t *b, double tolerance)
{
    const size_t n = json_array_size(a);
    if (n == 0 || n != json_array_size(b)) return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        if (!json_is_number(x) || !json_is_number(y) || !(fabs(json_number_value(x) - json_number_value(y)) <= tolerance)) return false;
    }
    return true;
}

static void judge_pair(judgement *j, json_t *row, const char *model, size_t i, const json_t *pair, double tolerance)
{
    const json_t *arms[] = {json_object_get(pair, "reference"), json_object_get(pair, "candidate")};
    static const char *const orders[] = {"reference_first", "candidate_first"};
    const char *order = json_string_value(json_object_get(pair, "order"));
    if (!order || strcmp(order, orders[i % 2]) != 0) reason(j, true, model, i, "the order does not alternate, beginning with the reference");
    double median[2] = {0, 0};
    bool timed = true;
    for (int k = 0; k < 2; k++) {
        const json_t *left = json_object_get(arms[k], "min_free_mib");
        if (!steady_median(&median[k], json_object_get(arms[k], "step_ms"))) {
            timed = false;
            reason(j, true, model, i, k ? "the candidate has fewer than 5 + 30 timed steps" : "the reference has fewer than 5 + 30 timed steps");
        }
        if (!json_is_number(left) || json_number_value(left) < floor_mib) reason(j, true, model, i, "less than 2048 MiB were free, or it was not watched");
    }
    const char *backends[] = {json_string_value(json_object_get(arms[0], "backend")), json_string_value(json_object_get(arms[1], "backend"))};
    if (!backends[0] || !backends[1] || strcmp(backends[0], backends[1]) == 0)
        reason(j, true, model, i, "the candidate ran on the reference's backend, so nothing was compared");
    if (!same_losses(json_object_get(arms[0], "loss"), json_object_get(arms[1], "loss"), tolerance))
        reason(j, false, model, i, "the losses differ by more than the tolerance");
    const double improvement = timed ? 100 * (median[0] - median[1]) / median[0] : 0;
    if (timed && improvement < required_percent) reason(j, false, model, i, "the median step is not at least 5 % faster");
    json_object_set_new(row, "reference_median_ms", timed ? json_real(median[0]) : json_null());
    json_object_set_new(row, "candidate_median_ms", timed ? json_real(median[1]) : json_null());
    json_object_set_new(row, "improvement_percent", timed ? json_real(improvement) : json_null());
}

ag_status ag_qualification_judge(json_t **verdict, const json_t *evidence, ag_err *err)
{
    const char *schema = json_string_value(json_object_get(evidence, "schema"));
    const json_t *models = json_object_get(evidence, "models"), *model, *pair;
    if (!schema || strcmp(schema, AG_QUALIFICATION_SCHEMA) != 0)
        return ag_fail(err, AG_E_FORMAT, "'schema' is '%s', expected '%s'", schema ? schema : "(none)", AG_QUALIFICATION_SCHEMA);
    if (json_array_size(models) != AG_QUALIFICATION_MODELS)
        return ag_fail(err, AG_E_FORMAT, "'models' must hold %d models, found %zu", AG_QUALIFICATION_MODELS, json_array_size(models));
    judgement j = {.reasons = json_array()};
    json_t *rows = json_array();
    size_t m, i;
    ag_status status = AG_OK;
    json_array_foreach(models, m, model) {
        const char *name = json_string_value(json_object_get(model, "name"));
        const json_t *tolerance = json_object_get(model, "loss_tolerance"), *pairs = json_object_get(model, "pairs");
        if (!name || !json_is_number(tolerance) || !json_is_array(pairs)) {
            status = ag_fail(err, AG_E_FORMAT, "model %zu needs 'name', 'loss_tolerance' and 'pairs'", m + 1);
            break;
        }
        if (json_array_size(pairs) != AG_QUALIFICATION_PAIRS) reason(&j, true, name, 0, "there are not exactly 3 pairs");
        json_array_foreach(pairs, i, pair) {
            json_t *row = json_object();
            json_object_set_new(row, "model", json_string(name));
            json_object_set_new(row, "pair", json_integer((json_int_t)i + 1));
            judge_pair(&j, row, name, i, pair, json_number_value(tolerance));
            json_array_append_new(rows, row);
        }
    }
    if (!status)
        *verdict = json_pack("{ss ss sO sO sf}", "schema", AG_QUALIFICATION_VERDICT_SCHEMA, "verdict", j.invalid ? "invalid" : j.failed ? "fail" : "pass",
                             "pairs", rows, "reasons", j.reasons, "required_improvement_percent", required_percent);
    json_decref(rows);
    json_decref(j.reasons);
    return status;
}
