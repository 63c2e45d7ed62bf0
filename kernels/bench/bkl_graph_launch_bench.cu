/* What a launch costs, one by one and as a CUDA graph: an empty kernel, a chain of 32, and a SAXPY of 2^20 floats. A synthetic
 * measure of launches; it decides nothing about models. */
#include "bench_cuda.h"

enum { CHAIN = 32, ELEMENTS = 1 << 20, THREADS = 256, MAX_RUNS = 3 };

#define CUDA(call)                                                                                    \
    do {                                                                                              \
        const cudaError_t error_ = (call);                                                            \
        if (error_) {                                                                                 \
            fprintf(stderr, "%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

__global__ void empty_kernel() {}

__global__ void saxpy_kernel(float *y, const float *x, float a, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = a * x[i] + y[i];
}

static cudaStream_t stream;
static float *device_x, *device_y;

static void launch_empty() { empty_kernel<<<1, 1, 0, stream>>>(); }
static void launch_chain()
{
    for (int i = 0; i < CHAIN; i++) empty_kernel<<<1, 1, 0, stream>>>();
}
static void launch_saxpy() { saxpy_kernel<<<ELEMENTS / THREADS, THREADS, 0, stream>>>(device_y, device_x, 1, ELEMENTS); }

/* Launches `times` times between two events; errors of launches are looked for once, at the end. */
static double timed(void (*launch)(void *), void *what, int times)
{
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaEventRecord(begin, stream));
    for (int i = 0; i < times; i++) launch(what);
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaGetLastError());
    CUDA(cudaEventSynchronize(end));
    float ms;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return ms;
}

static void launch_eager(void *what) { (*(void (**)())what)(); }
static void launch_graph(void *what) { cudaGraphLaunch(*(cudaGraphExec_t *)what, stream); }

typedef struct {
    double eager_us, graph_us, speedup;
} result;

static result measure(void (*work)(), int times, int runs, int kernels)
{
    double eager_ms[MAX_RUNS], graph_ms[MAX_RUNS];
    for (int r = 0; r < runs; r++) eager_ms[r] = timed(launch_eager, &work, times);
    for (int r = 0; r < runs; r++) {
        cudaGraph_t recorded;
        cudaGraphExec_t graph;
        CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        work();
        CUDA(cudaStreamEndCapture(stream, &recorded));
        CUDA(cudaGraphInstantiate(&graph, recorded, 0));
        CUDA(cudaGraphLaunch(graph, stream)); /* once, untimed */
        CUDA(cudaStreamSynchronize(stream));
        graph_ms[r] = timed(launch_graph, &graph, times);
        CUDA(cudaGraphExecDestroy(graph));
        CUDA(cudaGraphDestroy(recorded));
    }
    const double eager = median_of(eager_ms, runs), graph = median_of(graph_ms, runs), per = 1000.0 / ((double)times * kernels);
    return {eager * per, graph * per, graph > 0 ? eager / graph : 0};
}

static void report_result(FILE *f, const char *name, const char *extra, int times, const char *per, result r, bool last)
{
    fprintf(f,
            "    \"%s\": {\n%s      \"iterations\": %d,\n      \"eager_us_per_%s\": %.4f,\n      \"graph_us_per_%s\": %.4f,\n  "
            "    \"speedup\": %.4f\n    }%s\n",
            name, extra, times, per, r.eager_us, per, r.graph_us, r.speedup, last ? "" : ",");
}

int main(int argc, char **argv)
{
    const bench_options options = bench_parse(argc, argv);
    const int runs = options.smoke ? 1 : MAX_RUNS, n_empty = options.smoke ? 2 : 20000, n_chain = options.smoke ? 1 : 2000,
              n_saxpy = options.smoke ? 1 : 2000;
    cudaDeviceProp device;
    int runtime = 0;
    CUDA(cudaGetDeviceProperties(&device, 0));
    printf("device0: %s compute %d.%d\n", device.name, device.major, device.minor);
    if (device.major != 12 || device.minor != 0) {
        fflush(stdout);
        fprintf(stderr, "expected compute 12.0 (sm_120), got %d.%d\n", device.major, device.minor);
        return 1;
    }
    CUDA(cudaRuntimeGetVersion(&runtime));
    if (options.smoke)
        printf("scale=smoke runs=%d empty_iters=%d chain_iters=%d saxpy_iters=%d\n", runs, n_empty, n_chain, n_saxpy);
    printf("bkl graph_launch_bench sm_120\n");

    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc(&device_x, ELEMENTS * sizeof(float)));
    CUDA(cudaMalloc(&device_y, ELEMENTS * sizeof(float)));
    CUDA(cudaMemsetAsync(device_x, 0, ELEMENTS * sizeof(float), stream));
    CUDA(cudaMemsetAsync(device_y, 0, ELEMENTS * sizeof(float), stream));
    const float one = 1;
    CUDA(cudaMemcpyAsync(device_x, &one, sizeof one, cudaMemcpyHostToDevice, stream));
    CUDA(cudaStreamSynchronize(stream));
    launch_empty();
    CUDA(cudaGetLastError());
    CUDA(cudaStreamSynchronize(stream));

    const result empty = measure(launch_empty, n_empty, runs, 1), chain = measure(launch_chain, n_chain, runs, CHAIN);
    launch_saxpy();
    CUDA(cudaGetLastError());
    CUDA(cudaStreamSynchronize(stream));
    const result saxpy = measure(launch_saxpy, n_saxpy, runs, 1);
    printf("empty eager_us/launch=%.4f graph_us/launch=%.4f speedup=%.2fx\n", empty.eager_us, empty.graph_us, empty.speedup);
    printf("empty_chain eager_us/kernel=%.4f graph_us/kernel=%.4f speedup=%.2fx\n", chain.eager_us, chain.graph_us,
           chain.speedup);
    printf("saxpy eager_us/launch=%.4f graph_us/launch=%.4f speedup=%.2fx\n", saxpy.eager_us, saxpy.graph_us, saxpy.speedup);

    float first;
    const float expected =
        1.0f + (float)runs * (2.0f * (float)n_saxpy + 1.0f); /* all launches but the untimed first add 1, and so does that */
    CUDA(cudaMemcpy(&first, device_y, sizeof first, cudaMemcpyDeviceToHost));
    if (first != expected) {
        fprintf(stderr, "SAXPY validation failed: got %g, expected %g\n", first, expected);
        return 1;
    }

    char run_id[64], path[128], now[32];
    unsigned random = 0;
    FILE *urandom = fopen("/dev/urandom", "rb");
    if (!urandom || fread(&random, sizeof random, 1, urandom) != 1) random = (unsigned)unix_ms();
    if (urandom) fclose(urandom);
    snprintf(run_id, sizeof run_id, "graph-launch-bench-%lld-%08x", (long long)unix_ms(), random);
    snprintf(path, sizeof path, "results/%s.json", run_id);
    timestamp_utc(now);
    const char *out = options.out ? options.out : path;
    FILE *f = make_parents(out) ? fopen(out, "w") : nullptr;
    if (!f) {
        fprintf(stderr, "%s: %s\n", out, strerror(errno));
        return 1;
    }
    fprintf(
        f,
        "{\n  \"schema_version\": 1,\n  \"run_id\": \"%s\",\n  \"timestamp_utc\": \"%s\",\n  \"host\": {\n    \"gpu_name\": ",
        run_id, now);
    json_string(f, device.name);
    fprintf(f, ",\n    \"vram_total_mb\": %lld,\n    \"cuda_runtime_version\": %d\n  },\n",
            (long long)((device.totalGlobalMem + (1 << 19)) >> 20), runtime);
    fprintf(
        f,
        "  \"engine\": {\n    \"name\": \"cuda-runtime\",\n    \"version\": null,\n    \"endpoint\": null\n  },\n"
        "  \"model\": {\n    \"id\": null,\n    \"quant\": null,\n    \"context_length\": null\n  },\n"
        "  \"workload\": {\n    \"profile\": \"l3_graph_launch_synthetic\",\n    \"concurrency\": 1,\n    \"steps\": null\n  "
        "},\n"
        "  \"metrics\": {\n    \"tool_loop_wall_ms\": [],\n    \"tool_loop_p50_ms\": null,\n    \"ttft_ms\": [],\n    "
        "\"ttft_p50_ms\": null,\n"
        "    \"tpot_ms\": [],\n    \"tpot_p50_ms\": null,\n    \"tokens_per_s\": null,\n    \"prefix_cache_hit_rate\": null,\n"
        "    \"vram_peak_mb\": null,\n    \"vram_free_mb\": null\n  },\n  \"benchmarks\": {\n");
    report_result(f, "empty", "", n_empty, "launch", empty, false);
    report_result(f, "empty_chain", "      \"kernels_per_graph\": 32,\n", n_chain, "kernel", chain, false);
    report_result(f, "saxpy", "      \"elements\": 1048576,\n", n_saxpy, "launch", saxpy, true);
    fprintf(f,
            "  },\n  \"notes\": \"Synthetic benchmark of kernel launches%s; explicit device memory is 8 MiB of SAXPY buffers. "
            "Not a measurement of a model.\"\n}\n",
            options.smoke ? " at smoke scale, which measures nothing" : "");
    const bool written = !ferror(f);
    if (fclose(f) != 0 || !written) {
        fprintf(stderr, "%s: %s\n", out, strerror(errno));
        return 1;
    }
    printf("wrote %s\nbkl graph_launch_bench sm_120 ok\n", out);
    return 0;
}
