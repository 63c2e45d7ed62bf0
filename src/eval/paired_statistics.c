#define _GNU_SOURCE
#include "eval/paired_statistics.h"

#include <math.h>

static const double Z = 1.959963984540054; /* the 97.5 % quantile of the normal distribution */

ag_interval ag_wilson_interval(int64_t x, int64_t n)
{
    const double p = (double)x / (double)n, z2 = Z * Z, denominator = 1 + z2 / (double)n;
    const double middle = (p + z2 / (2 * (double)n)) / denominator;
    const double half = Z * sqrt(p * (1 - p) / (double)n + z2 / (4 * (double)n * (double)n)) / denominator;
    /* exactly 0 and 1 where nothing and everything was right, which rounding would miss */
    return (ag_interval){x == 0 ? 0 : middle - half, x == n ? 1 : middle + half};
}

/* How the two shares go together, -1 … 1. */
static double phi_of(double a, double b, double c, double d)
{
    const double square = (a + b) * (c + d) * (a + c) * (b + d), product = a * d - b * c, half_n = (a + b + c + d) / 2;
    if (square <= 0) return 0;
    const double corrected = product > half_n ? product - half_n : product >= 0 ? 0 : product;
    return corrected / sqrt(square);
}

ag_interval ag_paired_difference_interval(int64_t a, int64_t b, int64_t c, int64_t d)
{
    const double n = (double)(a + b + c + d), second = (double)(a + b) / n, first = (double)(a + c) / n,
                 difference = (double)(b - c) / n;
    const ag_interval of_second = ag_wilson_interval(a + b, a + b + c + d), of_first = ag_wilson_interval(a + c, a + b + c + d);
    const double phi = phi_of((double)a, (double)b, (double)c, (double)d);
    const double second_down = second - of_second.low, second_up = of_second.high - second;
    const double first_down = first - of_first.low, first_up = of_first.high - first;
    return (ag_interval){difference - sqrt(second_down * second_down - 2 * phi * second_down * first_up + first_up * first_up),
                         difference + sqrt(first_down * first_down - 2 * phi * first_down * second_up + second_up * second_up)};
}

double ag_mcnemar_exact(int64_t b, int64_t c)
{
    const int64_t n = b + c, k = b < c ? b : c;
    if (b == c) return 1; /* both tails hold the middle */
    double term = exp(lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1) - (double)n * M_LN2), sum = 0;
    for (int64_t i = k; i >= 0 && term > sum * 1e-18; i--) {
        sum += term;
        term *= (double)i / (double)(n - i + 1);
    }
    return 2 * sum < 1 ? 2 * sum : 1;
}
