/* The evaluation that lies beside its contract: answers to the frozen rows, scores that follow from the answers, a comparison that follows
 * from the scores. Nothing is generated again; everything else is computed once more. */
#include "seal/bundle_checks.h"

#include "seal/portable_path.h"
#include "seal/strict.h"

#include <stdlib.h>
#include <string.h>

#define SCORER "exact-match-v1"
static const size_t FILE_MAX_BYTES = (size_t)1 << 30;

typedef enum { CORRECT, INCORRECT, INVALID } verdict;
static const char *const verdict_names[] = {"correct", "incorrect", "invalid"};
typedef enum { IMPROVED, REGRESSED, TIED, NOT_COMPARED } outcome;
static const char *const outcome_names[] = {"improved", "regressed", "tied", "invalid"};
enum { N_OUTCOMES = 4, N_VERDICTS = 3 };

static void fail(ag_bundle *b, const char *path, const char *what)
{
    ag_bundle_report_add(b->report, AG_BUNDLE_EVALUATION, path, "%s; evaluate again", what);
}

/* ---- exact-match-v1 -------------------------------------------------------------------------------------------------- */
/* White space as Python's str.rstrip has it. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static void normalize(ag_str *out, const json_t *text)
{
    const char *bytes = json_string_value(text);
    const size_t n = json_string_length(text);
    size_t end = 0;
    ag_str_clear(out);
    ag_str_add(out, "");
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != '\r' || i + 1 == n || bytes[i + 1] != '\n') ag_str_add_char(out, bytes[i]);
    for (size_t at = 0; at < out->n;)
        if (!is_space(ag_utf8_next(out->text, out->n, &at))) end = at;
    out->n = end;
}

static verdict score(const json_t *row, ag_str *expected, ag_str *found)
{
    const json_t *want = json_object_get(row, "expected_completion"), *got = json_object_get(row, "completion");
    if (strcmp(ag_strict_text(row, "status"), "ok") != 0 || !json_is_string(want) || !json_is_string(got)) return INVALID;
    normalize(expected, want);
    normalize(found, got);
    if (expected->n == 0) return INVALID;
    return expected->n == found->n && memcmp(expected->text, found->text, found->n) == 0 ? CORRECT : INCORRECT;
}

static outcome pair(verdict base, verdict sft)
{
    if (base == INVALID || sft == INVALID) return NOT_COMPARED;
    return base == sft ? TIED : sft == CORRECT ? IMPROVED : REGRESSED;
}

/* ---- answers ----------------------------------------------------------------------------------------------------------- */
/* A JSONL file of the bundle, line by line. */
typedef struct {
    const char *path;
    char *text;
    size_t n, at;
    ag_arena arena;
} lines;

static bool lines_open(ag_bundle *b, lines *l, const char *path)
{
    const ag_bundle_entry *file = ag_bundle_tree_file(&b->tree, path);
    *l = (lines){.path = path};
    if (!file) {
        ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_FILE, path, "belongs to the evaluation and is not there; bring the file back");
        return false;
    }
    l->text = ag_bundle_tree_read(&b->tree, file, FILE_MAX_BYTES, &l->n, &l->arena, b->report);
    return l->text != NULL;
}

/* The next line as an object, NULL at the end; false after a failure. */
static bool lines_next(ag_bundle *b, lines *l, json_t **row)
{
    ag_err err;
    *row = NULL;
    while (l->at < l->n && l->text[l->at] == '\n') l->at++;
    if (l->at == l->n) return true;
    const char *start = l->text + l->at, *newline = memchr(start, '\n', l->n - l->at);
    const size_t n = newline ? (size_t)(newline - start) : l->n - l->at;
    l->at += n;
    if (!ag_json_parse(row, start, n, "a row", &err) && json_is_object(*row)) return true;
    ag_bundle_report_add(b->report, AG_BUNDLE_INVALID_JSON, l->path, "%s; evaluate again", *row ? "a row is no object" : err.text);
    ag_json_free(row);
    return false;
}

/* Whether prompt and expected completion are the two parts of the frozen row's text. Rows that could not be asked have no parts. */
static bool is_of_row(const json_t *generation, const json_t *frozen)
{
    const json_t *prompt = json_object_get(generation, "prompt"), *expected = json_object_get(generation, "expected_completion");
    const json_t *text = json_object_get(frozen, "text");
    if (!json_is_string(prompt) || !json_is_string(expected)) return strcmp(ag_strict_text(generation, "status"), "ok") != 0;
    const size_t n = json_string_length(prompt);
    return json_is_string(text) && n + json_string_length(expected) == json_string_length(text) &&
           memcmp(json_string_value(text), json_string_value(prompt), n) == 0 &&
           memcmp(json_string_value(text) + n, json_string_value(expected), json_string_length(expected)) == 0;
}

/* Verdicts of one arm, in the order of the contract's ids; NULL after a failure. The caller frees them. */
static verdict *check_answers(ag_bundle *b, const char *path, const json_t *ids, const char *held_out)
{
    const size_t n = json_array_size(ids);
    lines answers, rows = {0};
    verdict *verdicts = calloc(n + 1, sizeof *verdicts);
    if (!verdicts) ag_out_of_memory(n * sizeof *verdicts);
    ag_str expected = {0}, found = {0};
    bool ok = lines_open(b, &answers, path) && lines_open(b, &rows, held_out);
    for (size_t i = 0; i <= n && ok; i++) {
        json_t *answer, *row = NULL;
        ok = lines_next(b, &answers, &answer) && lines_next(b, &rows, &row);
        if (ok && (i == n ? answer != NULL
                          : !answer || strcmp(ag_strict_text(answer, "task_id"), json_string_value(json_array_get(ids, i))) != 0)) {
            fail(b, path, "its rows are not the contract's tasks in their order");
            ok = false;
        } else if (ok && i < n && (!row || !is_of_row(answer, row))) {
            ag_bundle_report_add(b->report, AG_BUNDLE_EVALUATION, path, "row %zu does not ask what the held-out row asks; evaluate again",
                                 i + 1);
            ok = false;
        }
        if (ok && i < n) verdicts[i] = score(answer, &expected, &found);
        ag_json_free(&answer);
        ag_json_free(&row);
    }
    ag_str_free(&expected);
    ag_str_free(&found);
    ag_arena_free(&answers.arena);
    ag_arena_free(&rows.arena);
    if (ok) return verdicts;
    free(verdicts);
    return NULL;
}

/* ---- scores ------------------------------------------------------------------------------------------------------------ */
static bool is_count(const json_t *object, const char *key, size_t n)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) && json_integer_value(value) == (json_int_t)n;
}

static bool is_share(const json_t *object, const char *key, double x, size_t n)
{
    const json_t *value = json_object_get(object, key);
    return n == 0 ? json_is_null(value) : json_is_number(value) && json_number_value(value) == x / (double)n;
}

static void check_metrics(ag_bundle *b, const char *path, const char *role, const verdict *verdicts, size_t n)
{
    json_t *root = ag_bundle_load_json(b, path, 1 << 20);
    size_t count[N_VERDICTS] = {0};
    if (!root) return;
    for (size_t i = 0; i < n; i++) count[verdicts[i]]++;
    const size_t scored = count[CORRECT] + count[INCORRECT];
    if (strcmp(ag_strict_text(root, "role"), role) != 0 || strcmp(ag_strict_text(root, "scoring_version"), SCORER) != 0)
        fail(b, path, "has another role or scorer than the contract");
    else if (!is_count(root, "n_tasks", n) || !is_count(root, "n_correct", count[CORRECT]) ||
             !is_count(root, "n_incorrect", count[INCORRECT]) || !is_count(root, "n_invalid", count[INVALID]) ||
             !is_count(root, "n_scored", scored) || !is_share(root, "accuracy", (double)count[CORRECT], scored))
        fail(b, path, "does not say what follows from the answers");
    ag_json_free(&root);
}

static const char *conclude(const size_t count[N_OUTCOMES], size_t n)
{
    if (count[NOT_COMPARED] == n) return "inconclusive";
    if (count[IMPROVED] && count[REGRESSED]) return "mixed";
    return count[IMPROVED] ? "improved" : count[REGRESSED] ? "regressed" : "null";
}

static bool are_pairs(const json_t *root, const json_t *ids, const verdict *base, const verdict *sft)
{
    const json_t *pairs = json_object_get(root, "pairs"), *outcomes = json_object_get(root, "outcomes");
    if (json_array_size(pairs) != json_array_size(ids) || json_object_size(outcomes) != json_array_size(ids)) return false;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *p = json_array_get(pairs, i);
        const char *id = json_string_value(json_array_get(ids, i)), *want = outcome_names[pair(base[i], sft[i])];
        if (strcmp(ag_strict_text(p, "task_id"), id) != 0 || strcmp(ag_strict_text(p, "outcome"), want) != 0 ||
            strcmp(ag_strict_text(p, "base_verdict"), verdict_names[base[i]]) != 0 ||
            strcmp(ag_strict_text(p, "sft_verdict"), verdict_names[sft[i]]) != 0 || strcmp(ag_strict_text(outcomes, id), want) != 0)
            return false;
    }
    return true;
}

static void check_comparison(ag_bundle *b, const char *path, const json_t *ids, const verdict *base, const verdict *sft)
{
    json_t *root = ag_bundle_load_json(b, path, FILE_MAX_BYTES);
    size_t count[N_OUTCOMES] = {0};
    const size_t n = json_array_size(ids);
    if (!root) return;
    for (size_t i = 0; i < n; i++) count[pair(base[i], sft[i])]++;
    const double gained = (double)count[IMPROVED] - (double)count[REGRESSED];
    if (strcmp(ag_strict_text(root, "schema_version"), "agoge.paired-comparison.v1") != 0)
        ag_bundle_report_add(
            b->report, AG_BUNDLE_UNKNOWN_VERSION, path,
            "schema_version is '%.200s', this program knows 'agoge.paired-comparison.v1'; verify with a version of agoge that knows it",
            ag_strict_text(root, "schema_version"));
    else if (!is_count(root, "n_tasks", n) || !is_count(root, "n_improved", count[IMPROVED]) ||
             !is_count(root, "n_regressed", count[REGRESSED]) || !is_count(root, "n_tied", count[TIED]) ||
             !is_count(root, "n_invalid", count[NOT_COMPARED]) || !is_share(root, "delta_accuracy", gained, n - count[NOT_COMPARED]) ||
             strcmp(ag_strict_text(root, "conclusion"), conclude(count, n)) != 0 || !are_pairs(root, ids, base, sft))
        fail(b, path, "does not say what follows from the scores");
    ag_json_free(&root);
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------- */
static const char *in_dir(ag_bundle *b, const char *dir, const char *file)
{
    return *dir ? ag_arena_printf(&b->arena, "%s/%s", dir, file) : file;
}

void ag_bundle_check_evaluation(ag_bundle *b, const json_t *contract)
{
    const char *dir = "evaluation";
    if (!ag_bundle_tree_file(&b->tree, "evaluation/comparison.json")) dir = ag_portable_path_dir(&b->arena, b->inventory.parts.contract);
    if (!b->split.is_read || !ag_bundle_tree_file(&b->tree, in_dir(b, dir, "comparison.json"))) return; /* none is claimed */
    const json_t *ids = json_object_get(contract, "logical_task_ids");
    const size_t n = json_array_size(ids);
    if (strcmp(ag_strict_text(json_object_get(contract, "base"), "scoring_version"), SCORER) != 0) {
        fail(b, b->inventory.parts.contract, "names another scorer than " SCORER ", whose scores cannot be computed again");
        return;
    }
    verdict *base = check_answers(b, in_dir(b, dir, "base/generations.jsonl"), ids, b->split.held_out_path);
    verdict *sft = check_answers(b, in_dir(b, dir, "sft/generations.jsonl"), ids, b->split.held_out_path);
    if (base) check_metrics(b, in_dir(b, dir, "base/metrics.json"), "causal_base", base, n);
    if (sft) check_metrics(b, in_dir(b, dir, "sft/metrics.json"), "causal_sft", sft, n);
    if (base && sft) check_comparison(b, in_dir(b, dir, "comparison.json"), ids, base, sft);
    free(base);
    free(sft);
}
