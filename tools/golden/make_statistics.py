#!/usr/bin/env python3
"""Golden for the paired statistics, from scipy and statsmodels.

    python3 tools/golden/make_statistics.py > tests/golden/eval/statistics.txt

A line: a b c d, Wilson's interval of (a+b)/n, Newcombe's paired interval of (b-c)/n, the exact McNemar p-value. Wilson and McNemar are
statsmodels' own; Newcombe's method 10 is written out here from the paper over statsmodels' Wilson intervals.
"""
import math

from scipy.stats import binomtest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint


def newcombe(a, b, c, d):
    n = a + b + c + d
    p1, p2 = (a + b) / n, (a + c) / n
    l1, u1 = proportion_confint(a + b, n, method="wilson")
    l2, u2 = proportion_confint(a + c, n, method="wilson")
    determinant = a * d - b * c
    denominator = (a + b) * (c + d) * (a + c) * (b + d)
    if denominator == 0:
        phi = 0.0
    elif determinant > n / 2:
        phi = (determinant - n / 2) / math.sqrt(denominator)
    elif determinant >= 0:
        phi = 0.0
    else:
        phi = determinant / math.sqrt(denominator)
    delta = math.sqrt((p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2)
    epsilon = math.sqrt((p2 - l2) ** 2 - 2 * phi * (p2 - l2) * (u1 - p1) + (u1 - p1) ** 2)
    return p1 - p2 - delta, p1 - p2 + epsilon


for a, b, c, d in [(36, 12, 2, 0), (36, 14, 0, 0), (0, 0, 0, 19), (19, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (3, 5, 5, 7),
                   (20, 9, 1, 70), (100, 61, 40, 799), (5, 0, 17, 3), (0, 50, 50, 0), (2, 200, 150, 9), (40000, 1200, 1100, 57700),
                   (0, 3000, 2600, 0), (10, 1, 400, 5)]:
    n = a + b + c + d
    table = [[a, c], [b, d]]
    p = float(mcnemar(table, exact=True).pvalue)
    if b + c:
        assert abs(p - binomtest(min(b, c), b + c, 0.5).pvalue) < 1e-12
    else:
        p = 1.0
    low, high = proportion_confint(a + b, n, method="wilson")
    print(a, b, c, d, *(repr(float(x)) for x in (low, high, *newcombe(a, b, c, d), p)))
