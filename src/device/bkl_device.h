/* A GPU, or the emulator of one, through the kernel lab's library (kernels/include/bkl.h), which is loaded at run time: a program
 * without it, or on a machine without a GPU, says so in a sentence and runs on the CPU only where it was asked to.
 *
 *     ag_device *device;
 *     AG_TRY(ag_device_open(&device, "/usr/lib/agoge/libbkl.so", err));
 *     …
 *     ag_device_close(&device);
 */
#ifndef AG_BKL_DEVICE_H
#define AG_BKL_DEVICE_H

#include "base/status.h"
#include "bkl.h"

typedef struct {
    const bkl_api *bkl;
    bkl_context *context; /* NULL: only sizes can be asked (ag_device_open_for_sizes) */
    bkl_stream *stream;
    bkl_device_info info;
    void *library;
} ag_device;

/* Device 0. AG_E_NOT_FOUND: there is no such library; AG_E_UNSUPPORTED: it is of another version, or there is no device it can use. */
AG_MUST_USE ag_status ag_device_open(ag_device **out, const char *library, ag_err *err);
/* The library alone, for plans: its answers about workspaces need no device. */
AG_MUST_USE ag_status ag_device_open_for_sizes(ag_device **out, const char *library, ag_err *err);
void ag_device_close(ag_device **device);

/* "bkl cuda" or "bkl emulated": what a run's record says it was computed by. */
const char *ag_device_backend_name(const ag_device *device);

/* AG_OK, or the library's own sentence for what went wrong. */
AG_MUST_USE ag_status ag_device_check(const ag_device *device, bkl_status status, const char *what, ag_err *err);

#endif
