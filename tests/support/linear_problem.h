/* One call of linear, forward and backward, with its data: shared by the checks of the levels and of the emulated matrix unit. */
#ifndef AG_TEST_LINEAR_PROBLEM_H
#define AG_TEST_LINEAR_PROBLEM_H

#include "support/op_check.h"
#include "support/tolerance.h"
#include "support/weight_make.h"

typedef struct {
    ag_compute compute;
    int n;              /* weights in the call */
    bool accumulate, bias;
    float scale;
} variant;

typedef struct {
    int64_t T, K, N[AG_LINEAR_MAX];
    variant v;
    ag_weight w[AG_LINEAR_MAX];
    float *x, *bias[AG_LINEAR_MAX], *y[AG_LINEAR_MAX], *dy[AG_LINEAR_MAX], *dx;
} problem;

/* K is rounded up to the type's block. The same arguments give the same data. */
problem problem_create(ag_weight_type type, int64_t T, int64_t K, int64_t N, variant v);
void problem_free(problem *p);
ag_linear_fwd_args fwd_args(problem *p, int64_t T);
ag_linear_bwd_args bwd_args(problem *p, int64_t T);
/* Forward and backward of the first T rows. Scratch is as large as the header asks for, to the byte, and full of NaN. */
void run_rows(problem *p, ag_backend *be, int64_t T);
void check_problem(problem *got, const problem *want);
void check_same_bits(const problem *a, const problem *b, int64_t rows);
/* A mixture of all that a call can ask for; odd numbers compute in bf16. */
variant variant_of(int number);

#endif
