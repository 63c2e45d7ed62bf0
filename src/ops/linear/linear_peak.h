/* What this machine's matrix product can do, as a yardstick for `agoge bench`: training is reported as a share of it.
 *
 *     double gflops;
 *     AG_TRY(ag_linear_peak(&gflops, &be, AG_COMPUTE_F32, err));
 *
 * The best of several products 2048³ of dense f32 matrices by the backend's own kernel, packing included, on all its threads,
 * within about a second; 2·2048³ operations each. Takes its own memory (about 80 MB) and gives it back. */
#ifndef AG_LINEAR_PEAK_H
#define AG_LINEAR_PEAK_H

#include "ops/linear/linear.h"

AG_MUST_USE ag_status ag_linear_peak(double *gflops, const struct ag_backend *be, ag_compute compute, ag_err *err);

#endif
