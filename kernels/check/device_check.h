/* What every check of a kernel needs: the library (emulated, or on a GPU) opened by its interface alone, device arrays from
 * host arrays and back, and the tests/support of the CPU's ops, whose references and cases the kernels answer to.
 *
 * Which library: the environment's BKL_LIBRARY. Values that go in are rounded to bf16 on the host first, so that kernel and
 * reference start from the same numbers. */
#ifndef BKL_DEVICE_CHECK_H
#define BKL_DEVICE_CHECK_H

#include "bkl.h"
#include "support/op_check.h"
#include "support/tolerance.h"

extern const bkl_api *bkl;
extern bkl_stream *device_stream;
extern bkl_device_info device_info;

/* For cmocka's group set-up and tear-down; where there is no device the program ends with 77 and says so: skipped. */
int device_open(void **state);
int device_close(void **state);

/* A call that must succeed, or the test fails with the library's sentence. */
#define must_run(call)                                                                                           \
    do {                                                                                                         \
        const bkl_status status_ = (call);                                                                       \
        if (status_) fail_msg("%s: %s: %s", #call, bkl->status_text(status_), device_error());                   \
    } while (0)
/* A call that must be refused with this status and a sentence that holds `part`. */
#define must_refuse(status, part, call)                                                                          \
    do {                                                                                                         \
        assert_int_equal(status, call);                                                                          \
        if (!strstr(device_error(), part)) fail_msg("\"%s\" does not say \"%s\"", device_error(), part);         \
    } while (0)
const char *device_error(void);

/* Runs an op with a workspace of just the size it asks for. */
#define run_op(op, ...)                                                                                          \
    do {                                                                                                         \
        const bkl_##op##_args args_ = __VA_ARGS__;                                                               \
        const size_t bytes_ = bkl->op##_workspace(&args_);                                                       \
        void *workspace_ = bytes_ ? device_bytes(NULL, bytes_) : NULL;                                           \
        must_run(bkl->op(device_stream, &args_, workspace_, bytes_));                                            \
        must_run(bkl->synchronize(device_stream));                                                               \
        device_drop(workspace_);                                                                                 \
    } while (0)

/* Device arrays. NULL instead of values: unwritten memory. device_drop takes NULL, and fails the test where guard bytes around
 * the array were overwritten. */
void *device_bytes(const void *host, size_t bytes);
float *device_f32(const float *host, int64_t n);
int32_t *device_i32(const int32_t *host, int64_t n);
bkl_bf16 *device_bf16(float *host, int64_t n); /* rounds host's values, too */
void device_drop(void *p);

void fetch_bytes(void *host, const void *device, size_t bytes);
void fetch_f32(float *host, const float *device, int64_t n);
void fetch_bf16(float *host, const bkl_bf16 *device, int64_t n);

/* Fetches a result and compares it with the reference's. */
void check_bf16(const bkl_bf16 *got, const float *want, int64_t n, double tolerance, const char *what);
void check_f32(const float *got, const float *want, int64_t n, double tolerance, const char *what);

/* A result in bf16 of sums of n terms in f32: half an ulp of bf16 is 2^-8 of the value at most. */
static inline double tolerance_bf16(double n) { return 0x1p-8 + tolerance_f32_sum(n); }

/* malloc that cannot fail here */
float *host_floats(int64_t n);

#endif
