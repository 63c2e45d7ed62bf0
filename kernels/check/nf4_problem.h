/* A random NF4 weight on both sides: as the CPU's reference reads it, and as the device does. */
#ifndef BKL_NF4_PROBLEM_H
#define BKL_NF4_PROBLEM_H

#include "device_check.h"

typedef struct {
    ag_weight host;
    bkl_nf4_weight device;
    float *values;  /* [N,K] what was quantized */
    uint8_t *packed, *absmax_q;
    float *absmax, *nested;
} nf4_problem;

nf4_problem nf4_problem_create(int64_t N, int64_t K, bool doubly_quantized, uint32_t seed);
void nf4_problem_free(nf4_problem *p);

#endif
