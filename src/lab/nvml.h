/* NVIDIA's management library, reached at run time: no header of it, no link to it. A machine without the library gives the code
 * "library not found" from every call, and programs say so.
 *
 *     ag_nvml nvml;
 *     ag_nvml_open(&nvml, NULL);            // never fails: what is missing shows in the calls
 *     int code = nvml.power_mw(&nvml, &mw); // an NVML return code
 *     ag_nvml_close(&nvml);
 *
 * Everything is about GPU 0. No CUDA context is made. The calls are a table so that a test can stand in for a card. */
#ifndef AG_NVML_H
#define AG_NVML_H

#include "lab/f0_record.h"

#include <stdint.h>

/* Return codes that we know, with the status a reading then has. */
#define AG_NVML_CODES(X)                             \
    X(SUCCESS, 0, OK)                                \
    X(ERROR_INVALID_ARGUMENT, 2, UNSUPPORTED)        \
    X(ERROR_NOT_SUPPORTED, 3, UNSUPPORTED)           \
    X(ERROR_NO_PERMISSION, 4, PERMISSION_DENIED)     \
    X(ERROR_NOT_FOUND, 6, UNSUPPORTED)               \
    X(ERROR_DRIVER_NOT_LOADED, 9, UNSUPPORTED)       \
    X(ERROR_TIMEOUT, 10, TRANSIENT_FAILURE)          \
    X(ERROR_LIBRARY_NOT_FOUND, 12, UNSUPPORTED)      \
    X(ERROR_FUNCTION_NOT_FOUND, 13, UNSUPPORTED)     \
    X(ERROR_GPU_IS_LOST, 15, DEVICE_LOST)            \
    X(ERROR_RESET_REQUIRED, 16, TRANSIENT_FAILURE)   \
    X(ERROR_NO_DATA, 21, UNAVAILABLE)                \
    X(ERROR_NOT_READY, 27, TRANSIENT_FAILURE)        \
    X(ERROR_GPU_NOT_FOUND, 28, DEVICE_LOST)
enum {
#define X(name, code, status) AG_NVML_##name = code,
    AG_NVML_CODES(X)
#undef X
};
ag_f0_status ag_nvml_status(int code); /* a code we do not know is a transient failure */
/* "NVML_ERROR_TIMEOUT"; "NVML_ERROR_<n>" for a code we do not know (in a buffer of this thread). */
const char *ag_nvml_code_name(int code);

typedef struct {
    char pci_bus_id[64], uuid[96], name[128], compute_capability[16]; /* "": not known */
} ag_nvml_identity;

typedef struct ag_nvml ag_nvml;
struct ag_nvml {
    int (*versions)(ag_nvml *, char library[80], char driver[80]);
    int (*gpu_count)(ag_nvml *, unsigned *n);
    int (*identity)(ag_nvml *, ag_nvml_identity *);
    int (*power_mw)(ag_nvml *, unsigned *);
    int (*temperature_c)(ag_nvml *, bool of_memory, unsigned *);
    int (*utilization)(ag_nvml *, unsigned *gpu_percent, unsigned *memory_percent);
    int (*clock_mhz)(ag_nvml *, bool of_memory, unsigned *);
    int (*memory_bytes)(ag_nvml *, uint64_t *total, uint64_t *free, uint64_t *used);
    int (*throttle_mask)(ag_nvml *, uint64_t *);
    int (*performance_state)(ag_nvml *, unsigned *); /* 0 = P0 */
    void *library, *state; /* of the implementation */
    int open_code;         /* why nothing works, AG_NVML_SUCCESS when it does */
    char detail[256];      /* the loader's own words where the library could not be loaded */
};

/* `library` NULL: libnvidia-ml.so.1, where the system's loader finds it. */
void ag_nvml_open(ag_nvml *out, const char *library);
void ag_nvml_close(ag_nvml *nvml);

/* Names of the bits that are set, in the order of the bits, into names[]; returns how many. Unknown bits are left out. */
enum { AG_NVML_MAX_REASONS = 9 };
int ag_nvml_throttle_reasons(const char *names[AG_NVML_MAX_REASONS], uint64_t mask);

#endif
