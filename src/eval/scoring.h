/* exact-match-v1 and the paired comparison of two arms: what is right, what got better, what got worse, and how sure that is.
 *
 * A generation is correct where it equals the expected completion after CRLF became LF and white space at the end was taken
 * away; leading white space counts. It is invalid where there is no text to compare, or nothing was expected. */
#ifndef AG_SCORING_H
#define AG_SCORING_H

#include "eval/generation.h"

#define AG_SCORING_VERSION   "exact-match-v1"
#define AG_COMPARISON_SCHEMA "agoge.paired-comparison.v1"
#define AG_STATISTICS_SCHEMA "agoge.paired-statistics.v1"

typedef enum { AG_VERDICT_CORRECT, AG_VERDICT_INCORRECT, AG_VERDICT_INVALID } ag_verdict;
const char *ag_verdict_name(ag_verdict verdict);
ag_verdict ag_score_generation(const ag_generation *g);

typedef struct {
    const char *role; /* "causal_base", "causal_sft" */
    ag_generation *generation;
    ag_verdict *verdict;
    size_t n;
} ag_scored_arm;
typedef struct {
    int64_t n, correct, incorrect, invalid;
} ag_arm_counts;
ag_arm_counts ag_arm_count(const ag_scored_arm *arm);
/* metrics.json, canonical, with its newline. */
void ag_metrics_write(ag_str *out, const ag_scored_arm *arm);

typedef enum { AG_OUTCOME_IMPROVED, AG_OUTCOME_REGRESSED, AG_OUTCOME_TIED, AG_OUTCOME_INVALID } ag_outcome;
const char *ag_outcome_name(ag_outcome outcome);
ag_outcome ag_pair_outcome(ag_verdict base, ag_verdict sft);

typedef struct {
    int64_t n, improved, regressed, tied, invalid;
    int64_t both_correct, both_incorrect;
    const char *conclusion; /* improved, regressed, mixed, null, inconclusive */
} ag_comparison;
/* The arms hold the same tasks in the same order (an assertion). */
ag_comparison ag_compare(const ag_scored_arm *base, const ag_scored_arm *sft);
void ag_comparison_write(ag_str *out, const ag_comparison *c, const ag_scored_arm *base,
                         const ag_scored_arm *sft);                                          /* comparison.json */
void ag_regressions_write(ag_str *out, const ag_scored_arm *base, const ag_scored_arm *sft); /* regressions.jsonl */
void ag_statistics_write(ag_str *out, const ag_comparison *c);                               /* statistics.json */

#endif
