#include "eval/eval_bundle.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "eval/paired_statistics.h"

#include <string.h>

/* ---- the report -------------------------------------------------------------------------------------------------- */
static void write_arm(ag_str *out, const char *name, const ag_scored_arm *arm)
{
    const ag_arm_counts c = ag_arm_count(arm);
    const int64_t scored = c.correct + c.incorrect;
    ag_str_printf(out, "| %s | %lld | %lld | %lld | ", name, (long long)c.n, (long long)scored, (long long)c.correct);
    if (scored > 0)
        ag_str_printf(out, "%.4f |\n", (double)c.correct / (double)scored);
    else
        ag_str_add(out, "n/a |\n");
}

static void write_statistics(ag_str *out, const ag_comparison *c)
{
    const int64_t n = c->n - c->invalid;
    if (n == 0) {
        ag_str_add(out, "- Delta accuracy (SFT - base): n/a\n");
        return;
    }
    const ag_interval i = ag_paired_difference_interval(c->both_correct, c->improved, c->regressed, c->both_incorrect);
    ag_str_printf(out,
                  "- Delta accuracy (SFT - base): %+.4f over %lld pairs, 95 %% interval %+.4f to %+.4f (Newcombe, paired)\n",
                  (double)(c->improved - c->regressed) / (double)n, (long long)n, i.low, i.high);
    ag_str_printf(out, "- Exact McNemar test, two-sided: p = %.4g (pairs that differ: %lld)\n",
                  ag_mcnemar_exact(c->improved, c->regressed), (long long)(c->improved + c->regressed));
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

void ag_eval_report_write(ag_str *out, const ag_eval_bundle *b, const ag_comparison *c)
{
    ag_str_printf(out, "# Held-out comparison: %s\n\n", c->conclusion);
    ag_str_printf(out, "The held-out split (SHA-256 `%s`) was read as it was frozen; nothing was split again.\n\n",
                  text_of(b->contract, "held_out_split_sha256"));
    ag_str_printf(out, "Scorer: `%s`. No model judged a completion.\n\n", AG_SCORING_VERSION);
    ag_str_add(out, "| Arm | Tasks | Scored | Correct | Accuracy |\n| --- | --- | --- | --- | --- |\n");
    write_arm(out, "base", b->base);
    write_arm(out, "sft", b->sft);
    ag_str_printf(out, "\n- Pairs: %lld improved, %lld regressed, %lld tied, %lld invalid\n", (long long)c->improved,
                  (long long)c->regressed, (long long)c->tied, (long long)c->invalid);
    write_statistics(out, c);
    ag_str_printf(out, "- Task set SHA-256: `%s`\n- Scoring version: `%s`\n- Seed: %lld\n",
                  text_of(b->contract, "logical_task_set_sha256"), AG_SCORING_VERSION, (long long)b->seed);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static ag_status put(const char *dir, const char *name, const ag_str *text, ag_arena *arena, ag_err *err)
{
    return ag_file_publish(ag_path_join(arena, dir, name), text->text ? text->text : "", text->n, err);
}

static ag_status write_generations(const ag_scored_arm *arm, const char *path, ag_err *err)
{
    ag_file_writer w;
    ag_str line = {0};
    AG_TRY(ag_file_begin(&w, path, err));
    ag_status status = AG_OK;
    for (size_t i = 0; i < arm->n && !status; i++) {
        ag_str_clear(&line);
        ag_generation_write(&line, &arm->generation[i]);
        ag_str_add_char(&line, '\n');
        status = ag_file_write(&w, line.text, line.n, err);
    }
    ag_str_free(&line);
    if (status) ag_file_abort(&w);
    return status ? status : ag_file_commit(&w, err);
}

static ag_status write_arm_files(const ag_scored_arm *arm, const char *dir, ag_arena *arena, ag_err *err)
{
    ag_str metrics = {0};
    AG_TRY(ag_make_dirs(dir, err));
    AG_TRY(write_generations(arm, ag_path_join(arena, dir, "generations.jsonl"), err));
    ag_metrics_write(&metrics, arm);
    ag_status status = put(dir, "metrics.json", &metrics, arena, err);
    ag_str_free(&metrics);
    return status;
}

static ag_status write_comparison(const ag_eval_bundle *b, const char *dir, ag_arena *arena, ag_err *err)
{
    const ag_comparison c = ag_compare(b->base, b->sft);
    ag_str text[4] = {{0}, {0}, {0}, {0}};
    static const char *const names[] = {"comparison.json", "regressions.jsonl", "statistics.json", "report.md"};
    ag_comparison_write(&text[0], &c, b->base, b->sft);
    ag_regressions_write(&text[1], b->base, b->sft);
    ag_statistics_write(&text[2], &c);
    ag_eval_report_write(&text[3], b, &c);
    ag_status status = AG_OK;
    for (int i = 0; i < 4; i++) {
        if (!status) status = put(dir, names[i], &text[i], arena, err);
        ag_str_free(&text[i]);
    }
    return status;
}

static ag_status write_all(const ag_eval_bundle *b, const char *dir, ag_arena *arena, ag_err *err)
{
    ag_str contract = {0};
    ag_json_add_canonical(&contract, b->contract);
    ag_str_add_char(&contract, '\n');
    ag_status status = put(dir, b->sft ? "contract.json" : "g0-contract.json", &contract, arena, err);
    ag_str_free(&contract);
    if (status) return status;
    AG_TRY(write_arm_files(b->base, ag_path_join(arena, dir, b->sft ? "base" : "g0-base"), arena, err));
    if (!b->sft) return AG_OK;
    AG_TRY(write_arm_files(b->sft, ag_path_join(arena, dir, "sft"), arena, err));
    return write_comparison(b, dir, arena, err);
}

/* What killed publications of this output left: "<prefix><pid>-<n>" beside it. Nobody else publishes it, the journal is locked.
 */
static ag_status remove_leftovers(const char *output, const char *prefix, ag_arena *arena, ag_err *err)
{
    char **names;
    size_t n;
    const char *parent = ag_path_dir(arena, output);
    AG_TRY(ag_dir_list(&names, &n, parent, arena, err));
    for (size_t i = 0; i < n; i++) {
        if (!ag_str_starts(names[i], prefix)) continue;
        const char *number = names[i] + strlen(prefix), *second = number + strspn(number, "0123456789");
        if (second == number || *second != '-' || !second[1] || second[1 + strspn(second + 1, "0123456789")]) continue;
        AG_TRY(ag_remove_tree(ag_path_join(arena, parent, names[i]), err));
    }
    return AG_OK;
}

ag_status ag_eval_bundle_publish(const ag_eval_bundle *b, const char *output, ag_err *err)
{
    ag_arena arena = {0};
    ag_dir_writer w;
    const char *prefix = ag_arena_printf(&arena, ".agoge-eval-staging-%s-", ag_path_base(output));
    ag_status status = remove_leftovers(output, prefix, &arena, err);
    if (!status) status = ag_dir_begin(&w, output, prefix, err);
    if (!status) {
        status = write_all(b, w.staging, &arena, err);
        if (status)
            ag_dir_abort(&w);
        else
            status = ag_dir_commit(&w, err);
    }
    ag_arena_free(&arena);
    return status;
}
