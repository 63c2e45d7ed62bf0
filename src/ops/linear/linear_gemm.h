/* The blocked driver under linear.c, the same for every level. */
#ifndef AG_LINEAR_GEMM_H
#define AG_LINEAR_GEMM_H

#include "ops/backend.h"
#include "ops/linear/linear_kernel.h"

size_t ag_linear_gemm_scratch(const ag_linear_kernel *kernel, int n_threads, int64_t T, int64_t K, int64_t N);
void ag_linear_gemm_fwd(const ag_backend *be, const ag_linear_kernel *kernel, const ag_linear_fwd_args *args);
void ag_linear_gemm_bwd(const ag_backend *be, const ag_linear_kernel *kernel, const ag_linear_bwd_args *args);
void ag_linear_few(const ag_backend *be, const ag_linear_kernel *kernel, const ag_linear_fwd_args *args);

#endif
