#define _GNU_SOURCE
#include "lab/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- codes -------------------------------------------------------------------------------------------------------- */
ag_f0_status ag_nvml_status(int code)
{
    switch (code) {
#define X(name, value, status) \
    case value: return AG_F0_##status;
        AG_NVML_CODES(X)
#undef X
    }
    return AG_F0_TRANSIENT_FAILURE;
}

const char *ag_nvml_code_name(int code)
{
    static _Thread_local char unknown[32];
    switch (code) {
#define X(name, value, status) \
    case value: return "NVML_" #name;
        AG_NVML_CODES(X)
#undef X
    }
    snprintf(unknown, sizeof unknown, "NVML_ERROR_%d", code);
    return unknown;
}

int ag_nvml_throttle_reasons(const char *names[AG_NVML_MAX_REASONS], uint64_t mask)
{
    static const char *const reasons[AG_NVML_MAX_REASONS] = {
        "gpu_idle",    "applications_clocks_setting", "sw_power_cap",        "hw_slowdown",
        "sync_boost",  "sw_thermal_slowdown",         "hw_thermal_slowdown", "hw_power_brake_slowdown",
        "display_clock_setting"};
    int n = 0;
    for (int bit = 0; bit < AG_NVML_MAX_REASONS; bit++)
        if (mask >> bit & 1) names[n++] = reasons[bit];
    return n;
}

/* ---- the library's own types (NVML API reference, version 2 of its ABI) ---------------------------------------------- */
typedef void *nvml_device;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvml_pci;
typedef struct {
    unsigned gpu, memory;
} nvml_utilization;
typedef struct {
    unsigned long long total, free, used;
} nvml_memory;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int value_type, code;
    union {
        double as_double;
        unsigned as_uint;
        unsigned long as_ulong;
        unsigned long long as_ulonglong;
        long long as_longlong;
    } value;
} nvml_field;
enum { SENSOR_GPU = 0, CLOCK_GRAPHICS = 0, CLOCK_MEMORY = 2, FIELD_MEMORY_TEMPERATURE = 82, VALUE_TYPE_UINT = 1 };

typedef struct {
    int (*init)(void), (*shutdown)(void);
    int (*nvml_version)(char *, unsigned), (*driver_version)(char *, unsigned);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, nvml_device *);
    int (*uuid)(nvml_device, char *, unsigned), (*name)(nvml_device, char *, unsigned);
    int (*pci)(nvml_device, nvml_pci *);
    int (*capability)(nvml_device, int *, int *);
    int (*power)(nvml_device, unsigned *);
    int (*temperature)(nvml_device, int, unsigned *);
    int (*memory_temperature)(nvml_device, unsigned *);
    int (*fields)(nvml_device, int, nvml_field *);
    int (*utilization)(nvml_device, nvml_utilization *);
    int (*clock)(nvml_device, int, unsigned *);
    int (*memory)(nvml_device, nvml_memory *);
    int (*throttle)(nvml_device, unsigned long long *);
    int (*pstate)(nvml_device, int *);
} nvml_functions;

static const struct {
    size_t offset;
    bool required;
    const char *names[2]; /* the first that the library exports */
} symbols[] = {
#define FUNCTION(member, required, ...) {offsetof(nvml_functions, member), required, {__VA_ARGS__}}
    FUNCTION(init, true, "nvmlInit_v2"),
    FUNCTION(shutdown, true, "nvmlShutdown"),
    FUNCTION(count, true, "nvmlDeviceGetCount_v2"),
    FUNCTION(by_index, true, "nvmlDeviceGetHandleByIndex_v2"),
    FUNCTION(nvml_version, false, "nvmlSystemGetNVMLVersion"),
    FUNCTION(driver_version, false, "nvmlSystemGetDriverVersion"),
    FUNCTION(uuid, false, "nvmlDeviceGetUUID"),
    FUNCTION(name, false, "nvmlDeviceGetName"),
    FUNCTION(pci, false, "nvmlDeviceGetPciInfo_v3"),
    FUNCTION(capability, false, "nvmlDeviceGetCudaComputeCapability"),
    FUNCTION(power, false, "nvmlDeviceGetPowerUsage"),
    FUNCTION(temperature, false, "nvmlDeviceGetTemperature"),
    FUNCTION(memory_temperature, false, "nvmlDeviceGetMemoryTemperature"),
    FUNCTION(fields, false, "nvmlDeviceGetFieldValues"),
    FUNCTION(utilization, false, "nvmlDeviceGetUtilizationRates"),
    FUNCTION(clock, false, "nvmlDeviceGetClockInfo"),
    FUNCTION(memory, false, "nvmlDeviceGetMemoryInfo"),
    FUNCTION(throttle, false, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    FUNCTION(pstate, false, "nvmlDeviceGetPerformanceState"),
};

/* The handle is asked for anew at every call: after a card was lost and came back, an old one stays dead. */
#define DEVICE(f, n)                                                \
    if ((n)->open_code) return (n)->open_code;                      \
    const nvml_functions *f = (n)->state;                           \
    nvml_device device;                                             \
    {                                                               \
        const int code_ = f->by_index(0, &device);                  \
        if (code_) return code_;                                    \
    }
#define EXPORTED(function) \
    if (!(function)) return AG_NVML_ERROR_FUNCTION_NOT_FOUND

static int live_versions(ag_nvml *n, char library[80], char driver[80])
{
    if (n->open_code) return n->open_code;
    const nvml_functions *f = n->state;
    EXPORTED(f->nvml_version);
    EXPORTED(f->driver_version);
    const int code = f->nvml_version(library, 80);
    return code ? code : f->driver_version(driver, 80);
}

static int live_count(ag_nvml *n, unsigned *count)
{
    return n->open_code ? n->open_code : ((const nvml_functions *)n->state)->count(count);
}

static int live_identity(ag_nvml *n, ag_nvml_identity *out)
{
    DEVICE(f, n);
    *out = (ag_nvml_identity){0};
    nvml_pci pci = {0};
    int major, minor, code;
    EXPORTED(f->uuid);
    if ((code = f->uuid(device, out->uuid, sizeof out->uuid))) return code;
    if (f->pci && f->pci(device, &pci) == 0) snprintf(out->pci_bus_id, sizeof out->pci_bus_id, "%.31s", pci.bus_id);
    if (f->name && f->name(device, out->name, sizeof out->name) != 0) out->name[0] = 0;
    if (f->capability && f->capability(device, &major, &minor) == 0)
        snprintf(out->compute_capability, sizeof out->compute_capability, "%d.%d", major, minor);
    return AG_NVML_SUCCESS;
}

static int live_power(ag_nvml *n, unsigned *mw)
{
    DEVICE(f, n);
    EXPORTED(f->power);
    return f->power(device, mw);
}

static int live_temperature(ag_nvml *n, bool of_memory, unsigned *celsius)
{
    DEVICE(f, n);
    if (!of_memory) {
        EXPORTED(f->temperature);
        return f->temperature(device, SENSOR_GPU, celsius);
    }
    if (f->memory_temperature) return f->memory_temperature(device, celsius);
    EXPORTED(f->fields);
    nvml_field field = {.field = FIELD_MEMORY_TEMPERATURE};
    const int code = f->fields(device, 1, &field);
    if (code || field.code) return code ? code : field.code;
    if (field.value_type != VALUE_TYPE_UINT) return AG_NVML_ERROR_NOT_SUPPORTED;
    *celsius = field.value.as_uint;
    return AG_NVML_SUCCESS;
}

static int live_utilization(ag_nvml *n, unsigned *gpu, unsigned *memory)
{
    DEVICE(f, n);
    EXPORTED(f->utilization);
    nvml_utilization u = {0};
    const int code = f->utilization(device, &u);
    *gpu = u.gpu;
    *memory = u.memory;
    return code;
}

static int live_clock(ag_nvml *n, bool of_memory, unsigned *mhz)
{
    DEVICE(f, n);
    EXPORTED(f->clock);
    return f->clock(device, of_memory ? CLOCK_MEMORY : CLOCK_GRAPHICS, mhz);
}

static int live_memory(ag_nvml *n, uint64_t *total, uint64_t *free_bytes, uint64_t *used)
{
    DEVICE(f, n);
    EXPORTED(f->memory);
    nvml_memory m = {0};
    const int code = f->memory(device, &m);
    *total = m.total;
    *free_bytes = m.free;
    *used = m.used;
    return code;
}

static int live_throttle(ag_nvml *n, uint64_t *mask)
{
    DEVICE(f, n);
    EXPORTED(f->throttle);
    unsigned long long bits = 0;
    const int code = f->throttle(device, &bits);
    *mask = bits;
    return code;
}

static int live_pstate(ag_nvml *n, unsigned *state)
{
    DEVICE(f, n);
    EXPORTED(f->pstate);
    int p = 0;
    const int code = f->pstate(device, &p);
    if (code == 0 && (p < 0 || p > 15)) return AG_NVML_ERROR_NO_DATA; /* 32: unknown */
    *state = (unsigned)p;
    return code;
}

static int load(ag_nvml *n, const char *library)
{
    n->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!n->library) {
        snprintf(n->detail, sizeof n->detail, "%s", dlerror());
        return AG_NVML_ERROR_LIBRARY_NOT_FOUND;
    }
    nvml_functions *f = calloc(1, sizeof *f);
    if (!f) return AG_NVML_ERROR_LIBRARY_NOT_FOUND;
    n->state = f;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *address = NULL;
        for (int k = 0; k < 2 && !address; k++)
            if (symbols[i].names[k]) address = dlsym(n->library, symbols[i].names[k]);
        if (!address && symbols[i].required) {
            snprintf(n->detail, sizeof n->detail, "%s does not export %s", library, symbols[i].names[0]);
            return AG_NVML_ERROR_FUNCTION_NOT_FOUND;
        }
        memcpy((char *)f + symbols[i].offset, &address, sizeof address);
    }
    const int code = f->init();
    if (code) snprintf(n->detail, sizeof n->detail, "nvmlInit_v2: %s", ag_nvml_code_name(code));
    return code;
}

void ag_nvml_open(ag_nvml *out, const char *library)
{
    *out = (ag_nvml){.versions = live_versions, .gpu_count = live_count, .identity = live_identity, .power_mw = live_power,
                     .temperature_c = live_temperature, .utilization = live_utilization, .clock_mhz = live_clock,
                     .memory_bytes = live_memory, .throttle_mask = live_throttle, .performance_state = live_pstate};
    out->open_code = load(out, library && *library ? library : "libnvidia-ml.so.1");
}

void ag_nvml_close(ag_nvml *nvml)
{
    if (nvml->state && nvml->open_code == AG_NVML_SUCCESS) ((const nvml_functions *)nvml->state)->shutdown();
    free(nvml->state);
    if (nvml->library) dlclose(nvml->library);
    *nvml = (ag_nvml){.open_code = AG_NVML_ERROR_LIBRARY_NOT_FOUND};
}
