/* The entry of the library of broken kernels. */
#ifndef BKL_BROKEN_H
#define BKL_BROKEN_H

#include "bkl.h"

#ifdef __cplusplus
extern "C"
#endif
/* Runs the kernel of that name with 64 threads a block; out and in hold 256 ints of device memory. */
__attribute__((visibility("default"))) bkl_status bkl_broken_run(bkl_stream *stream, const char *name, int *out, const int *in);

#endif
