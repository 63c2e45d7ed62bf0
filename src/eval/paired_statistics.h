/* Statistics of paired yes/no results: a interval for one share, one for the difference of two shares of the same tasks, and
 * the exact test whether the arms differ at all. */
#ifndef AG_PAIRED_STATISTICS_H
#define AG_PAIRED_STATISTICS_H

#include <stdint.h>

typedef struct {
    double low, high;
} ag_interval;

/* Wilson's score interval of x of n at 95 % (Wilson 1927). n >= 1. */
ag_interval ag_wilson_interval(int64_t x, int64_t n);

/* Of the pairs a are right in both, b only in the second, c only in the first, d in none: the interval at 95 % of (b - c)/n by
 * Newcombe's square-and-add method with Wilson's intervals and the continuity-corrected phi (Newcombe 1998, Statistics in
 * Medicine 17:2635, method 10). a + b + c + d >= 1. */
ag_interval ag_paired_difference_interval(int64_t a, int64_t b, int64_t c, int64_t d);

/* The two-sided p-value of the exact McNemar test, which is the sign test of the b + c pairs that differ: min(1, 2·P(X <=
 * min(b, c))) with X binomial (b + c, 1/2). */
double ag_mcnemar_exact(int64_t b, int64_t c);

#endif
