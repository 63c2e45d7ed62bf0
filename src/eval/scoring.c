#include "eval/scoring.h"

#include "base/canonical_json.h"
#include "eval/paired_statistics.h"
#include "text/template_value.h"

#include <stdlib.h>
#include <string.h>

const char *ag_verdict_name(ag_verdict verdict)
{
    static const char *const names[] = {"correct", "incorrect", "invalid"};
    return names[verdict];
}

const char *ag_outcome_name(ag_outcome outcome)
{
    static const char *const names[] = {"improved", "regressed", "tied", "invalid"};
    return names[outcome];
}

/* ---- one generation ---------------------------------------------------------------------------------------------- */
static void normalize(ag_str *out, ag_text text)
{
    ag_str_clear(out);
    for (size_t i = 0; i < text.n; i++)
        if (text.text[i] != '\r' || i + 1 == text.n || text.text[i + 1] != '\n') ag_str_add_char(out, text.text[i]);
    size_t end = 0;
    for (size_t at = 0; at < out->n;)
        if (!ag_code_point_is_space(ag_utf8_next(out->text, out->n, &at))) end = at;
    out->n = end;
}

ag_verdict ag_score_generation(const ag_generation *g)
{
    if (g->status != AG_GENERATION_OK || !g->completion.text || !g->expected.text) return AG_VERDICT_INVALID;
    ag_str expected = {0}, found = {0};
    normalize(&expected, g->expected);
    normalize(&found, g->completion);
    ag_verdict verdict = AG_VERDICT_INVALID;
    if (expected.n > 0)
        verdict = expected.n == found.n && memcmp(expected.text, found.text, found.n) == 0 ? AG_VERDICT_CORRECT
                                                                                           : AG_VERDICT_INCORRECT;
    ag_str_free(&expected);
    ag_str_free(&found);
    return verdict;
}

/* ---- one arm ----------------------------------------------------------------------------------------------------- */
ag_arm_counts ag_arm_count(const ag_scored_arm *arm)
{
    ag_arm_counts c = {.n = (int64_t)arm->n};
    for (size_t i = 0; i < arm->n; i++) {
        c.correct += arm->verdict[i] == AG_VERDICT_CORRECT;
        c.incorrect += arm->verdict[i] == AG_VERDICT_INCORRECT;
        c.invalid += arm->verdict[i] == AG_VERDICT_INVALID;
    }
    return c;
}

static void write_share(ag_json_writer *w, const char *key, int64_t x, int64_t n)
{
    if (n > 0)
        ag_jw_double(w, key, (double)x / (double)n);
    else
        ag_jw_null(w, key);
}

void ag_metrics_write(ag_str *out, const ag_scored_arm *arm)
{
    const ag_arm_counts c = ag_arm_count(arm);
    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_object(&w, NULL);
    write_share(&w, "accuracy", c.correct, c.correct + c.incorrect);
    ag_jw_int(&w, "n_correct", c.correct);
    ag_jw_int(&w, "n_incorrect", c.incorrect);
    ag_jw_int(&w, "n_invalid", c.invalid);
    ag_jw_int(&w, "n_scored", c.correct + c.incorrect);
    ag_jw_int(&w, "n_tasks", c.n);
    ag_jw_string(&w, "role", arm->role);
    ag_jw_string(&w, "scoring_version", AG_SCORING_VERSION);
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
}

/* ---- two arms ---------------------------------------------------------------------------------------------------- */
ag_outcome ag_pair_outcome(ag_verdict base, ag_verdict sft)
{
    if (base == AG_VERDICT_INVALID || sft == AG_VERDICT_INVALID) return AG_OUTCOME_INVALID;
    if (base == sft) return AG_OUTCOME_TIED;
    return sft == AG_VERDICT_CORRECT ? AG_OUTCOME_IMPROVED : AG_OUTCOME_REGRESSED;
}

ag_comparison ag_compare(const ag_scored_arm *base, const ag_scored_arm *sft)
{
    AG_ASSERT(base->n == sft->n);
    ag_comparison c = {.n = (int64_t)base->n};
    for (size_t i = 0; i < base->n; i++) {
        AG_ASSERT(strcmp(base->generation[i].task_id, sft->generation[i].task_id) == 0);
        switch (ag_pair_outcome(base->verdict[i], sft->verdict[i])) {
        case AG_OUTCOME_IMPROVED: c.improved++; break;
        case AG_OUTCOME_REGRESSED: c.regressed++; break;
        case AG_OUTCOME_INVALID: c.invalid++; break;
        case AG_OUTCOME_TIED:
            c.tied++;
            if (base->verdict[i] == AG_VERDICT_CORRECT)
                c.both_correct++;
            else
                c.both_incorrect++;
        }
    }
    c.conclusion = c.invalid == c.n            ? "inconclusive"
                   : c.improved && c.regressed ? "mixed"
                   : c.improved                ? "improved"
                   : c.regressed               ? "regressed"
                                               : "null";
    return c;
}

typedef struct {
    const char *id;
    ag_outcome outcome;
} named_outcome;

static int by_id(const void *a, const void *b)
{
    return strcmp(((const named_outcome *)a)->id, ((const named_outcome *)b)->id);
}

void ag_comparison_write(ag_str *out, const ag_comparison *c, const ag_scored_arm *base, const ag_scored_arm *sft)
{
    named_outcome *sorted = malloc((base->n + 1) * sizeof *sorted);
    if (!sorted) ag_out_of_memory((base->n + 1) * sizeof *sorted);
    for (size_t i = 0; i < base->n; i++)
        sorted[i] = (named_outcome){base->generation[i].task_id, ag_pair_outcome(base->verdict[i], sft->verdict[i])};

    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "conclusion", c->conclusion);
    write_share(&w, "delta_accuracy", c->improved - c->regressed, c->n - c->invalid);
    ag_jw_int(&w, "n_improved", c->improved);
    ag_jw_int(&w, "n_invalid", c->invalid);
    ag_jw_int(&w, "n_regressed", c->regressed);
    ag_jw_int(&w, "n_tasks", c->n);
    ag_jw_int(&w, "n_tied", c->tied);
    qsort(sorted, base->n, sizeof *sorted, by_id);
    ag_jw_object(&w, "outcomes");
    for (size_t i = 0; i < base->n; i++) ag_jw_string(&w, sorted[i].id, ag_outcome_name(sorted[i].outcome));
    ag_jw_end(&w);
    ag_jw_array(&w, "pairs");
    for (size_t i = 0; i < base->n; i++) {
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "base_verdict", ag_verdict_name(base->verdict[i]));
        ag_jw_string(&w, "outcome", ag_outcome_name(ag_pair_outcome(base->verdict[i], sft->verdict[i])));
        ag_jw_string(&w, "sft_verdict", ag_verdict_name(sft->verdict[i]));
        ag_jw_string(&w, "task_id", base->generation[i].task_id);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_string(&w, "schema_version", AG_COMPARISON_SCHEMA);
    ag_jw_string(&w, "scoring_version", AG_SCORING_VERSION);
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
    free(sorted);
}

static void write_side(ag_json_writer *w, const char *key, const ag_scored_arm *arm, size_t i)
{
    const ag_generation *g = &arm->generation[i];
    ag_jw_object(w, key);
    ag_jw_string_n(w, "expected_completion", g->expected.text, g->expected.n);
    ag_jw_string_n(w, "predicted_completion", g->completion.text, g->completion.n);
    ag_jw_string_n(w, "raw_text", g->raw_text.text, g->raw_text.n);
    ag_jw_string(w, "reason", g->reason);
    ag_jw_string(w, "verdict", ag_verdict_name(arm->verdict[i]));
    ag_jw_end(w);
}

void ag_regressions_write(ag_str *out, const ag_scored_arm *base, const ag_scored_arm *sft)
{
    for (size_t i = 0; i < base->n; i++) {
        if (ag_pair_outcome(base->verdict[i], sft->verdict[i]) != AG_OUTCOME_REGRESSED) continue;
        ag_json_writer w = {.out = out, .indent = -1};
        ag_jw_object(&w, NULL);
        write_side(&w, "base", base, i);
        ag_jw_string(&w, "outcome", ag_outcome_name(AG_OUTCOME_REGRESSED));
        write_side(&w, "sft", sft, i);
        ag_jw_string(&w, "task_id", base->generation[i].task_id);
        ag_jw_end(&w);
        ag_str_add_char(out, '\n');
    }
}

/* ---- how sure it is ---------------------------------------------------------------------------------------------- */
static void write_interval(ag_json_writer *w, const char *key, int64_t x, int64_t n, ag_interval interval, const char *method)
{
    ag_jw_object(w, key);
    ag_jw_double(w, "estimate", (double)x / (double)n);
    ag_jw_double(w, "high", interval.high);
    ag_jw_double(w, "low", interval.low);
    ag_jw_string(w, "method", method);
    ag_jw_end(w);
}

void ag_statistics_write(ag_str *out, const ag_comparison *c)
{
    const int64_t n = c->n - c->invalid, base = c->both_correct + c->regressed, sft = c->both_correct + c->improved;
    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_object(&w, NULL);
    if (n > 0) {
        write_interval(&w, "base_accuracy", base, n, ag_wilson_interval(base, n), "wilson");
        ag_jw_double(&w, "confidence", 0.95);
        write_interval(&w, "delta_accuracy", c->improved - c->regressed, n,
                       ag_paired_difference_interval(c->both_correct, c->improved, c->regressed, c->both_incorrect),
                       "newcombe-paired-10");
        ag_jw_object(&w, "mcnemar");
        ag_jw_string(&w, "method", "exact-two-sided");
        ag_jw_int(&w, "n_discordant", c->improved + c->regressed);
        ag_jw_double(&w, "p_value", ag_mcnemar_exact(c->improved, c->regressed));
        ag_jw_end(&w);
    } else {
        ag_jw_null(&w, "base_accuracy");
        ag_jw_double(&w, "confidence", 0.95);
        ag_jw_null(&w, "delta_accuracy");
        ag_jw_null(&w, "mcnemar");
    }
    ag_jw_int(&w, "n_both_correct", c->both_correct);
    ag_jw_int(&w, "n_both_incorrect", c->both_incorrect);
    ag_jw_int(&w, "n_improved", c->improved);
    ag_jw_int(&w, "n_pairs", n);
    ag_jw_int(&w, "n_regressed", c->regressed);
    ag_jw_string(&w, "schema_version", AG_STATISTICS_SCHEMA);
    if (n > 0)
        write_interval(&w, "sft_accuracy", sft, n, ag_wilson_interval(sft, n), "wilson");
    else
        ag_jw_null(&w, "sft_accuracy");
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
}
