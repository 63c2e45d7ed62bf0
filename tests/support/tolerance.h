/* How close a level must come to the reference: one table, by op and kind of numbers. Relative to the largest value of the
 * output. 6e-8 is half an ulp of f32; n the length of the sum. A change to a kernel may not loosen its row. */
#ifndef AG_TEST_TOLERANCE_H
#define AG_TEST_TOLERANCE_H

#include <math.h>

/* f32 sums of n terms against double: rounding errors grow like sqrt(n); 8 for the formula's own roundings. */
static inline double tolerance_f32_sum(double n) { return 6e-8 * (8 + sqrt(n)); }
/* Attention: sums of n terms, and e^score: an error of half an ulp of the score is a relative error of the probability, and
 * comes twice, from the score and from the stored lse. */
static inline double tolerance_attention_f32(double n, double largest_score) { return tolerance_f32_sum(n) + 4 * 6e-8 * largest_score; }
/* The same with operands rounded to bf16, each off by 2^-9 at most: both of the last product, and in the exponent by as much of a
 * score. */
static inline double tolerance_attention_bf16(double largest_score) { return 0x1p-9 * (2 + largest_score); }
/* Element-wise formulas with an exponential of 2 ulp. */
static const double TOLERANCE_F32_ELEMENT = 1e-6;
/* GELU's exponential has a cubic for its argument, up to 12 in size where the result still counts: its rounding is a relative error. */
static const double TOLERANCE_F32_GELU = 3e-6;

#endif
