/* An attention problem: shapes, spans, guarded tensors with repeatable numbers, and running it forward and backward. For the
 * checks of attention on every level and with the matrix unit emulated. */
#ifndef AG_TEST_ATTENTION_PROBLEM_H
#define AG_TEST_ATTENTION_PROBLEM_H

#include "ops/attention/attention_cases.h"
#include "support/op_check.h"

enum { MAX_SPANS = 12 };

typedef struct {
    int64_t T, S, H, G, D, window;
    float scale, softcap; /* softcap 0 at first */
    double largest_score;
    ag_attention_span spans[MAX_SPANS];
    int64_t n_spans, longest;
    float *q, *k, *v, *d_o, *o, *lse, *dq, *dk, *dv;
} attention_problem;

/* (Re)makes the spans that a layout of attention_cases.h names. */
void attention_problem_lay_out(attention_problem *p, ag_attention_layout layout);
attention_problem attention_problem_create(int64_t T, int64_t S, int64_t H, int64_t G, int64_t D, ag_attention_layout layout, int64_t window,
                       double largest_score);
attention_problem attention_problem_like(const attention_problem *p); /* the same numbers in other memory */
void attention_problem_free(attention_problem *p);

ag_attention_fwd_args attention_problem_fwd_args(attention_problem *p);
ag_attention_bwd_args attention_problem_bwd_args(attention_problem *p);
/* Scratch that is large enough, filled with NaNs: what is not written must not be read. */
void attention_problem_scratch(const attention_problem *p, ag_backend *be);
void attention_problem_run(attention_problem *p, ag_backend *be, ag_compute compute); /* frees be's scratch afterwards */

void attention_problem_check_guards(const attention_problem *p);
/* Every output of got is near that of want. */
void attention_problem_check_close(const attention_problem *got, const attention_problem *want, double tolerance);
void attention_problem_check_same_bits(const attention_problem *got, const attention_problem *want, const char *than);

#endif
