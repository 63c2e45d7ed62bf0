/* Do two disjoint partitions of multiprocessors (Green Contexts) protect a short latency-sensitive kernel from a long
 * background kernel, better than two streams with priorities do? The driver's functions are looked up at run time, so the
 * program starts without a driver and says so. Exit 0 with a sentinel for every outcome that a report can state, 1 for a
 * failure, 2 for wrong usage. */
#include <cuda.h>

#include "green_report.h"

#include <stdarg.h>

enum { POLL_US = 50, READY_TIMEOUT_MS = 10000, ORDINARY = 0, PARTITIONED = 1 };

#if CUDA_VERSION >= 13000 && !defined(BKL_FORCE_NO_GREEN_CONTEXT_API)
#define HAS_GREEN_CONTEXTS 1
#else
#define HAS_GREEN_CONTEXTS 0
#endif

[[noreturn]] __attribute__((format(printf, 1, 2))) static void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "bkl green_ctx_bench failed: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

#define CUDA(call)                                                          \
    do {                                                                    \
        const cudaError_t error_ = (call);                                  \
        if (error_) fail("%s: %s", #call, cudaGetErrorString(error_));      \
    } while (0)

/* ---- the two kernels ------------------------------------------------------------------------------------------------------
 */
__device__ __forceinline__ unsigned long long mix(unsigned long long x)
{
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return x * 2685821657736338717ull;
}

__global__ void __launch_bounds__(BLOCK_THREADS)
    background_kernel(int *resident, unsigned long long *checksums, long long delay_cycles)
{
    if (threadIdx.x == 0) {
        atomicAdd_system(resident, 1);
        __threadfence_system();
    }
    unsigned long long x = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x + 1;
    const long long begin = clock64();
    while (clock64() - begin < delay_cycles) x = mix(x);
    if (threadIdx.x != 0) return;
    checksums[blockIdx.x] = x | 1;
    __threadfence_system();
    atomicSub_system(resident, 1);
}

__host__ __device__ __forceinline__ unsigned sensitive_value(unsigned thread)
{
    unsigned x = thread + 1;
    for (int i = 0; i < SENSITIVE_ITERATIONS; i++) x = (x * 1664525u + 1013904223u) ^ (x >> 7);
    return x;
}

__global__ void __launch_bounds__(BLOCK_THREADS) sensitive_kernel(unsigned *out)
{
    out[threadIdx.x] = sensitive_value(threadIdx.x);
}

/* ---- the driver -----------------------------------------------------------------------------------------------------------
 */
#if HAS_GREEN_CONTEXTS
static struct {
    decltype(&cuDeviceGetDevResource) query;
    decltype(&cuDevSmResourceSplitByCount) split;
    decltype(&cuDevResourceGenerateDesc) describe;
    decltype(&cuGreenCtxCreate) create;
    decltype(&cuGreenCtxDestroy) destroy;
    decltype(&cuGreenCtxStreamCreate) stream;
    decltype(&cuStreamDestroy) stream_destroy;
    decltype(&cuGetErrorName) name;
    decltype(&cuGetErrorString) text;
} driver;

static void *driver_function(const char *name)
{
    void *found = nullptr;
    cudaDriverEntryPointQueryResult status;
    CUDA(cudaGetDriverEntryPointByVersion(name, &found, 13000, cudaEnableDefault, &status));
    if (status != cudaDriverEntryPointSuccess || !found) fail("the driver has no %s", name);
    return found;
}

static void driver_load()
{
    driver.query = (decltype(driver.query))driver_function("cuDeviceGetDevResource");
    driver.split = (decltype(driver.split))driver_function("cuDevSmResourceSplitByCount");
    driver.describe = (decltype(driver.describe))driver_function("cuDevResourceGenerateDesc");
    driver.create = (decltype(driver.create))driver_function("cuGreenCtxCreate");
    driver.destroy = (decltype(driver.destroy))driver_function("cuGreenCtxDestroy");
    driver.stream = (decltype(driver.stream))driver_function("cuGreenCtxStreamCreate");
    driver.stream_destroy = (decltype(driver.stream_destroy))driver_function("cuStreamDestroy");
    driver.name = (decltype(driver.name))driver_function("cuGetErrorName");
    driver.text = (decltype(driver.text))driver_function("cuGetErrorString");
}

typedef struct {
    CUdevResource whole, group[2], rest;
    CUgreenCtx context[2];
} partition;
#endif

/* ---- the run --------------------------------------------------------------------------------------------------------------
 */
static green_report report;

/* Ends the measurement with an outcome that is not a failure. */
static bool skip(const char *outcome, const char *reason)
{
    report.outcome = outcome, report.skipped = reason;
    return false;
}

#if HAS_GREEN_CONTEXTS
static int *resident;
static unsigned *sensitive_out, expected[BLOCK_THREADS];
static unsigned long long *checksums;

static bool has_headroom()
{
    size_t available, total;
    CUDA(cudaMemGetInfo(&available, &total));
    if (report.free_least < 0 || (long long)available < report.free_least) report.free_least = (long long)available;
    return (long long)available >= REQUIRED_HEADROOM || skip("insufficient_vram_headroom", "insufficient_vram_headroom");
}

static bool driver_said(CUresult error, const char *stage)
{
    if (error == CUDA_SUCCESS) return true;
    const char *name = nullptr, *text = nullptr;
    driver.name(error, &name);
    driver.text(error, &text);
    if (error != CUDA_ERROR_NOT_SUPPORTED && error != CUDA_ERROR_NOT_PERMITTED &&
        error != CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)
        fail("%s: %s", stage, text ? text : "an unknown driver error");
    report.error_stage = stage;
    snprintf(report.error_name, sizeof report.error_name, "%s", name ? name : "unknown");
    snprintf(report.error_description, sizeof report.error_description, "%s", text ? text : "unknown");
    if (error == CUDA_ERROR_NOT_SUPPORTED) return skip("unsupported", "cuda_error_not_supported");
    if (error == CUDA_ERROR_NOT_PERMITTED) return skip("not_permitted", "cuda_error_not_permitted");
    return skip("no_legal_split", "no_legal_two_way_sm_split");
}

/* 0: no legal split into two */
static unsigned split_candidate(unsigned sms, unsigned least, unsigned alignment)
{
    if (alignment == 0 || least == 0 || sms < 2 * least) return 0;
    const unsigned candidate = sms / 2 / alignment * alignment, aligned_least = (least + alignment - 1) / alignment * alignment;
    return candidate < aligned_least ? 0 : candidate;
}

/* Queries and splits; what it finds goes to the report at first, and must be the same ever after. */
static bool partition_make(partition *p, bool first)
{
    if (!driver_said(driver.query(0, &p->whole, CU_DEV_RESOURCE_TYPE_SM), "query_sm_resource")) return false;
    const CUdevSmResource sm = p->whole.sm;
    if (p->whole.type != CU_DEV_RESOURCE_TYPE_SM || !sm.smCount || !sm.minSmPartitionSize || !sm.smCoscheduledAlignment)
        fail("the driver describes no multiprocessors: count %u, least %u, alignment %u", sm.smCount, sm.minSmPartitionSize,
             sm.smCoscheduledAlignment);
    if ((int)sm.smCount != report.device.multiProcessorCount)
        fail("the driver counts %u multiprocessors, the runtime %d", sm.smCount, report.device.multiProcessorCount);
    if (!first && ((int)sm.smCount != report.sm_total || (int)sm.minSmPartitionSize != report.min_partition ||
                   (int)sm.smCoscheduledAlignment != report.alignment))
        fail("the driver's description of the multiprocessors has changed");
    report.has_query = true;
    report.sm_total = (int)sm.smCount, report.min_partition = (int)sm.minSmPartitionSize,
    report.alignment = (int)sm.smCoscheduledAlignment;
    const unsigned candidate = split_candidate(sm.smCount, sm.minSmPartitionSize, sm.smCoscheduledAlignment);
    if (!candidate) return skip("no_legal_split", "no_legal_two_way_sm_split");
    unsigned n = 0;
    if (!driver_said(driver.split(nullptr, &n, &p->whole, nullptr, 0, candidate), "discover_sm_split")) return false;
    if (n < 2) return skip("no_legal_split", "no_legal_two_way_sm_split");
    n = 2;
    if (!driver_said(driver.split(p->group, &n, &p->whole, &p->rest, 0, candidate), "create_sm_split")) return false;
    if (n != 2) return skip("no_legal_split", "no_legal_two_way_sm_split");
    const int rest = p->rest.type == CU_DEV_RESOURCE_TYPE_SM ? (int)p->rest.sm.smCount : 0;
    if (!first && ((int)p->group[0].sm.smCount != report.sensitive_sms ||
                   (int)p->group[1].sm.smCount != report.background_sms || rest != report.remainder_sms))
        fail("the split of the multiprocessors has changed");
    report.groups = 2, report.split_min_count = (int)candidate;
    report.sensitive_sms = (int)p->group[0].sm.smCount, report.background_sms = (int)p->group[1].sm.smCount,
    report.remainder_sms = rest;
    return true;
}

static bool partition_open(partition *p, cudaStream_t streams[2])
{
    for (int i = 0; i < 2; i++) {
        CUdevResourceDesc description;
        if (!driver_said(driver.describe(&description, &p->group[i], 1), "generate_resource_desc")) return false;
        if (!driver_said(driver.create(&p->context[i], description, 0, CU_GREEN_CTX_DEFAULT_STREAM), "create_green_context"))
            return false;
        CUstream stream;
        if (!driver_said(driver.stream(&stream, p->context[i], CU_STREAM_NON_BLOCKING,
                                       i == 0 ? report.priority_high : report.priority_low),
                         "create_green_stream"))
            return false;
        streams[i] = stream;
    }
    return true;
}

/* Streams before contexts, the last first. */
static void partition_close(partition *p, cudaStream_t streams[2])
{
    for (int i = 1; i >= 0; i--)
        if (streams[i]) driver.stream_destroy(streams[i]);
    for (int i = 1; i >= 0; i--)
        if (p->context[i]) driver.destroy(p->context[i]);
    memset(p->context, 0, sizeof p->context);
    streams[0] = streams[1] = nullptr;
}

static void wait_until_resident(int target)
{
    const int64_t begin = unix_ms();
    while (*(volatile int *)resident < target) {
        if (unix_ms() - begin > READY_TIMEOUT_MS)
            fail("the background kernel's blocks did not become resident: %d of %d after 10 s", *(volatile int *)resident,
                 target);
        usleep(POLL_US);
    }
}

static double monotonic_ms()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* One sample; false where memory ran short. */
static bool sample(cudaStream_t streams[2], int target, double *gpu_ms, double *host_ms, bool *correct)
{
    static unsigned got[BLOCK_THREADS];
    *resident = 0;
    CUDA(cudaMemset(sensitive_out, 0, sizeof got));
    CUDA(cudaMemset(checksums, 0, (size_t)report.grid_blocks * sizeof *checksums));
    CUDA(cudaDeviceSynchronize());
    background_kernel<<<report.grid_blocks, BLOCK_THREADS, 0, streams[1]>>>(resident, checksums, report.delay_cycles);
    CUDA(cudaGetLastError());
    wait_until_resident(target);
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaEventRecord(begin, streams[0]));
    if (*(volatile int *)resident != target)
        fail("%d blocks of the background kernel are resident, not %d", *(volatile int *)resident, target);
    const double launched = monotonic_ms();
    sensitive_kernel<<<1, BLOCK_THREADS, 0, streams[0]>>>(sensitive_out);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(end, streams[0]));
    const bool enough = has_headroom();
    CUDA(cudaEventSynchronize(end));
    *host_ms = monotonic_ms() - launched;
    float ms;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    *gpu_ms = ms;
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaStreamSynchronize(streams[1]));

    CUDA(cudaMemcpy(got, sensitive_out, sizeof got, cudaMemcpyDeviceToHost));
    *correct &= memcmp(got, expected, sizeof got) == 0;
    unsigned long long *sums = (unsigned long long *)malloc((size_t)report.grid_blocks * sizeof *sums);
    if (!sums) fail("no memory for %d checksums", report.grid_blocks);
    CUDA(cudaMemcpy(sums, checksums, (size_t)report.grid_blocks * sizeof *sums, cudaMemcpyDeviceToHost));
    for (int i = 0; i < report.grid_blocks; i++) *correct &= sums[i] != 0;
    free(sums);
    return enough;
}

static bool run_mode(green_invocation *v, int mode, cudaStream_t streams[2])
{
    const int target = report.active_blocks * (mode == ORDINARY ? report.sm_total : report.background_sms);
    double unrecorded[2];
    if (!sample(streams, target, &unrecorded[0], &unrecorded[1], &v->correct)) return false;
    for (int i = 0; i < report.n_samples; i++)
        if (!sample(streams, target, &v->gpu_ms[mode][i], &v->host_ms[mode][i], &v->correct)) return false;
    v->median_ms[mode] = micro_rounded(median_of(v->gpu_ms[mode], report.n_samples));
    if (!(v->median_ms[mode] > 0) || !isfinite(v->median_ms[mode])) fail("a median latency of %g ms", v->median_ms[mode]);
    return has_headroom();
}

static bool invoke(int index)
{
    green_invocation *v = &report.invocation[index];
    v->partitioned_first = index % 2 == 1, v->correct = true;
    for (int turn = 0; turn < 2; turn++) {
        const int mode = (turn == 1) != v->partitioned_first ? PARTITIONED : ORDINARY;
        cudaStream_t streams[2] = {nullptr, nullptr};
        bool good;
        if (mode == ORDINARY) {
            CUDA(cudaStreamCreateWithPriority(&streams[0], cudaStreamNonBlocking, report.priority_high));
            CUDA(cudaStreamCreateWithPriority(&streams[1], cudaStreamNonBlocking, report.priority_low));
            good = run_mode(v, mode, streams);
            CUDA(cudaStreamDestroy(streams[1]));
            CUDA(cudaStreamDestroy(streams[0]));
        } else {
            partition p = {};
            good = partition_make(&p, false) && partition_open(&p, streams) && has_headroom() && run_mode(v, mode, streams);
            partition_close(&p, streams);
        }
        if (!good) return false;
    }
    v->improvement = 100 * (v->median_ms[ORDINARY] - v->median_ms[PARTITIONED]) / v->median_ms[ORDINARY];
    v->gate_pass = v->improvement >= REQUIRED_IMPROVEMENT && v->correct;
    return true;
}
#endif

static bool measure()
{
    if (!HAS_GREEN_CONTEXTS) return skip("compile_time_api_unavailable", "cuda_headers_precede_green_context_driver_api");
#if HAS_GREEN_CONTEXTS
    driver_load();
    partition p = {};
    if (!partition_make(&p, true)) return false;
    if (report.free_before - report.planned < REQUIRED_HEADROOM)
        return skip("insufficient_vram_headroom", "insufficient_vram_headroom");
    CUDA(cudaHostAlloc(&resident, sizeof *resident, cudaHostAllocMapped));
    CUDA(cudaMalloc(&sensitive_out, sizeof expected));
    CUDA(cudaMalloc(&checksums, (size_t)report.grid_blocks * sizeof *checksums));
    const bool enough = has_headroom();
    report.free_after = report.free_least;
    if (!enough) return false;
    for (unsigned t = 0; t < BLOCK_THREADS; t++) expected[t] = sensitive_value(t);
    for (int i = 0; i < report.n_invocations; i++)
        if (!invoke(i)) return false;
    double medians[2][MAX_INVOCATIONS];
    report.passed_all = true;
    for (int i = 0; i < report.n_invocations; i++) {
        for (int mode = 0; mode < 2; mode++) medians[mode][i] = report.invocation[i].median_ms[mode];
        report.passed_all &= report.invocation[i].gate_pass;
    }
    for (int mode = 0; mode < 2; mode++) report.median_ms[mode] = micro_rounded(median_of(medians[mode], report.n_invocations));
    report.improvement = 100 * (report.median_ms[ORDINARY] - report.median_ms[PARTITIONED]) / report.median_ms[ORDINARY];
    report.outcome = "measured";
    return true;
#endif
}

static void describe_host()
{
    size_t available, total;
    int clock_khz = 0;
    CUDA(cudaSetDevice(0));
    CUDA(cudaFree(nullptr)); /* the primary context */
    CUDA(cudaGetDeviceProperties(&report.device, 0));
    if (report.device.major != 12 || report.device.minor != 0)
        fail("expected compute 12.0 (sm_120), got %d.%d", report.device.major, report.device.minor);
    CUDA(cudaRuntimeGetVersion(&report.runtime_version));
    CUDA(cudaDriverGetVersion(&report.driver_version));
    CUDA(cudaDeviceGetStreamPriorityRange(&report.priority_low, &report.priority_high));
    CUDA(cudaMemGetInfo(&available, &total));
    CUDA(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0));
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&report.active_blocks, background_kernel, BLOCK_THREADS, 0));
    report.header_version = CUDA_VERSION;
    report.free_before = (long long)available, report.total = (long long)total;
    report.grid_blocks = report.active_blocks * report.device.multiProcessorCount * WAVES;
    report.planned = BLOCK_THREADS * (long long)sizeof(unsigned) + report.grid_blocks * (long long)sizeof(unsigned long long);
    report.delay_cycles = (long long)clock_khz * DELAY_US / 1000;
    if (report.delay_cycles <= 0 || report.active_blocks <= 0)
        fail("a clock of %d kHz and %d blocks a multiprocessor", clock_khz, report.active_blocks);
}

int main(int argc, char **argv)
{
    const bench_options options = bench_parse(argc, argv);
    report.is_smoke = options.smoke, report.n_invocations = options.smoke ? 1 : MAX_INVOCATIONS,
    report.n_samples = options.smoke ? 1 : MAX_SAMPLES;
    report.has_api = HAS_GREEN_CONTEXTS, report.free_after = report.free_least = -1;
    snprintf(report.run_id, sizeof report.run_id, "green-ctx-bench-%lld-%ld", (long long)unix_ms(), (long)getpid());
    timestamp_utc(report.timestamp);
    describe_host();
    printf("bkl green_ctx_bench sm_120\nscale=%s invocations=%d samples_per_mode=%d\n", options.smoke ? "smoke" : "full",
           report.n_invocations, report.n_samples);
    const bool measured = measure();
    printf("outcome=%s sm_total=%d min_partition=%d alignment=%d\n", report.outcome, report.sm_total, report.min_partition,
           report.alignment);
    if (measured) {
        printf("split sensitive=%d background=%d remainder=%d\n", report.sensitive_sms, report.background_sms,
               report.remainder_sms);
        for (int i = 0; i < report.n_invocations; i++) {
            const green_invocation *v = &report.invocation[i];
            printf("invocation=%d order=%s ordinary_median_ms=%.6f partitioned_median_ms=%.6f improvement=%.2f%% gate=%s\n",
                   i + 1, v->partitioned_first ? "partitioned_then_ordinary" : "ordinary_then_partitioned", v->median_ms[0],
                   v->median_ms[1], v->improvement, v->gate_pass ? "pass" : "fail");
        }
        printf("follow_up_justified=%s\n", report.passed_all ? "true" : "false");
    } else {
        printf("measurement_skipped_reason=%s\n", report.skipped);
    }
    char path[160];
    snprintf(path, sizeof path, "results/%s.json", report.run_id);
    const char *out = options.out ? options.out : path;
    if (!green_write(&report, out)) fail("%s: %s", out, strerror(errno));
    printf("wrote %s\nbkl green_ctx_bench sm_120 ok\n", out);
    return 0;
}
