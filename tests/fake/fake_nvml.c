/* Stands in for NVIDIA's management library (BKL_NVML_LIBRARY): one card whose state is the word in the file named by FAKE_NVML_STATE:
 * "ok", "lost", "denied" or "none"; a file that is not there reads as "ok". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_PERMISSION = 4, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

static int is_state(const char *word)
{
    char text[32] = "ok";
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (f) {
        if (fscanf(f, "%31s", text) != 1) strcpy(text, "ok");
        fclose(f);
    }
    return strcmp(text, word) == 0;
}

static int reading(void) { return is_state("lost") ? GPU_IS_LOST : 0; }

#define EXPORT __attribute__((visibility("default")))
EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlSystemGetNVMLVersion(char *text, unsigned n);
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned n);
EXPORT int nvmlDeviceGetCount_v2(unsigned *n);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device);
EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned n);
EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned n);
EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *mw);
EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
EXPORT int nvmlDeviceGetUtilizationRates(void *device, unsigned *two);
EXPORT int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *three);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *mask);
EXPORT int nvmlDeviceGetPerformanceState(void *device, int *state);

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetNVMLVersion(char *text, unsigned n) { return snprintf(text, n, "13.3.58") < 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { return snprintf(text, n, "610.43.03") < 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = is_state("none") ? 0 : 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device)
{
    (void)i;
    *device = (void *)1;
    return 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned n) { return (void)device, snprintf(text, n, "GPU-fake-1") < 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned n) { return (void)device, snprintf(text, n, "Fake GPU") < 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { return (void)device, *major = 12, *minor = 0, 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { return (void)device, *mw = 123456, is_state("denied") ? NO_PERMISSION : reading(); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { return (void)device, (void)sensor, *celsius = 55, reading(); }
int nvmlDeviceGetUtilizationRates(void *device, unsigned *two) { return (void)device, two[0] = 90, two[1] = 30, reading(); }
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz) { return (void)device, *mhz = clock ? 14000 : 2500, reading(); }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *three)
{
    (void)device;
    three[0] = 16303ull << 20;
    three[1] = (6000ull << 20) + 99; /* a MiB that is not whole is rounded down */
    three[2] = 10303ull << 20;
    return reading();
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *mask) { return (void)device, *mask = 4, reading(); }
int nvmlDeviceGetPerformanceState(void *device, int *state) { return (void)device, *state = 0, reading(); }
